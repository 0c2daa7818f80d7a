"""The server in the driver: renews the leases of all connected workers, and passes on what they report."""

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
_PAUSE_S = 0.1


@dataclass(frozen=True, eq=False)
class WorkerSession:
    """A connected worker; a task that Spark restarts has a new session."""

    slot: int
    connection: MessageConnection


@dataclass(frozen=True)
class ReceivedMessage:
    """A message of a worker; None if its connection was closed."""

    session: WorkerSession
    message: Message | None


class LeaseServer:
    """Serves workers that know the token and are heard; a thread renews leases while the driver waits for brokers."""

    def __init__(self, bind: str, idle_timeout_s: float) -> None:
        self.token = secrets.token_hex(16)
        self.received: queue.Queue[ReceivedMessage] = queue.Queue()
        self._idle_timeout_s = idle_timeout_s
        self._listener = socket.create_server((bind, 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._sessions: set[WorkerSession] = set()
        self._closed = threading.Event()
        for target in (self._accept, self._renew):
            threading.Thread(target=target, name="lease-server", daemon=True).start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                accepted, _ = self._listener.accept()
            except OSError:  # a caller that gave up, no file descriptor left: later ones must be heard
                self._closed.wait(_PAUSE_S)
                continue
            threading.Thread(target=self._serve, args=[accepted], name="lease-session", daemon=True).start()

    def _renew(self) -> None:
        while not self._closed.wait(self._idle_timeout_s / 3):
            for session in list(self._sessions):
                session.connection.send({"renew": True})

    def _serve(self, accepted: socket.socket) -> None:
        connection = MessageConnection(accepted, _HELLO_S)
        hello = (connection.receive() or {}).get("hello")
        if not isinstance(hello, dict) or not hmac.compare_digest(
            str(hello.get("token")).encode(), self.token.encode()
        ):
            connection.close()
            return
        accepted.settimeout(self._idle_timeout_s)
        session = WorkerSession(int(hello["slot"]), connection)
        self._sessions.add(session)
        self.received.put(ReceivedMessage(session, {"hello": {}}))
        while (message := connection.receive()) is not None:
            self.received.put(ReceivedMessage(session, message))
        connection.close()
        self._sessions.discard(session)
        self.received.put(ReceivedMessage(session, None))

    def close(self) -> None:
        """Close all connections; a worker without one ends by itself."""
        self._closed.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for session in list(self._sessions):
            session.connection.close()

    @property
    def closed(self) -> bool:
        return self._closed.is_set()
