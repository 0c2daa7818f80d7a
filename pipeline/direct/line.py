"""One line between driver and holder: JSON objects over TCP, one a line."""

from __future__ import annotations

import contextlib
import socket
import threading

import orjson

from pipeline.direct.terms import Message
from protocol.deadline import Deadline

_LONGEST = 1024 * 1024
_CHUNK = 65_536


class Line:
    """Messages both ways; `send` may be called from any thread, `receive` from one."""

    def __init__(self, connected: socket.socket, silence_s: float) -> None:
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.settimeout(silence_s)
        self._socket = connected
        self._lock = threading.Lock()
        self._held = b""

    @classmethod
    def to(cls, host: str, port: int, silence_s: float, deadline: Deadline) -> Line:
        """
        Connect; ``silence_s`` is how long the other side may say nothing.

        Raises:
            OSError: nobody listens there.
        """
        return cls(socket.create_connection((host, port), deadline.remaining_s()), silence_s)

    def send(self, message: Message) -> bool:
        """False when the line is dead: the reader of this line learns it, too."""
        with self._lock:
            try:
                self._socket.sendall(orjson.dumps(message) + b"\n")
            except OSError:
                self.close()
                return False
        return True

    def receive(self) -> Message | None:
        """The next message; None when the other side has gone, was silent for too long, or sends nonsense."""
        while b"\n" not in self._held:
            try:
                got = self._socket.recv(_CHUNK)
            except OSError:  # a time-out is one, too
                return None
            if not got or len(self._held) > _LONGEST:
                return None
            self._held += got
        text, _, self._held = self._held.partition(b"\n")
        with contextlib.suppress(orjson.JSONDecodeError):
            message = orjson.loads(text)
            if isinstance(message, dict):
                return message
        return None

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
