"""Where holders report to the driver: a listening socket, a thread for each line, and one queue of what they say."""

from __future__ import annotations

import contextlib
import hmac
import queue
import secrets
import socket
import threading
from dataclasses import dataclass

from brew.readers.direct.messages import Message, MessageConnection

_HELLO_S = 10.0


@dataclass(frozen=True, eq=False)
class WorkerSession:
    """One connected holder; a task that Spark starts again is another one."""

    slot: int
    line: MessageConnection


@dataclass(frozen=True)
class ReceivedMessage:
    """A message of a holder; None when its line is dead."""

    desk: WorkerSession
    message: Message | None


class LeaseServer:
    """
    Only who knows the token gets a desk; ``silence_s`` without a word ends a line.

    Leases are renewed here, by a thread of its own: a driver that waits for brokers must not lose its holders over it.
    """

    def __init__(self, bind: str, silence_s: float) -> None:
        self.token = secrets.token_hex(16)
        self.said: queue.Queue[ReceivedMessage] = queue.Queue()
        self._silence_s = silence_s
        self._listening = socket.create_server((bind, 0), backlog=256)
        self.port: int = self._listening.getsockname()[1]
        self._sessions: set[WorkerSession] = set()
        self._closed = threading.Event()
        for work in (self._admit, self._renew):
            threading.Thread(target=work, name="office", daemon=True).start()

    def _admit(self) -> None:
        while True:
            try:
                connected, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=[connected], name="desk", daemon=True).start()

    def _renew(self) -> None:
        while not self._closed.wait(self._silence_s / 3):
            for desk in list(self._sessions):
                desk.line.send({"renew": True})

    def _serve(self, connected: socket.socket) -> None:
        line = MessageConnection(connected, _HELLO_S)
        hello = (line.receive() or {}).get("hello")
        if not isinstance(hello, dict) or not hmac.compare_digest(str(hello.get("token")), self.token):
            line.close()
            return
        connected.settimeout(self._silence_s)
        desk = WorkerSession(int(hello["slot"]), line)
        self._sessions.add(desk)
        self.said.put(ReceivedMessage(desk, {"hello": {}}))
        while (message := line.receive()) is not None:
            self.said.put(ReceivedMessage(desk, message))
        line.close()
        self._sessions.discard(desk)
        self.said.put(ReceivedMessage(desk, None))

    def close(self) -> None:
        """Hang up on everyone: a holder without a line ends by itself."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for desk in list(self._sessions):
            desk.line.close()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()
