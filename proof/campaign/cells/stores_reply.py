"""A door to PostgreSQL that loses replies: the COMMIT took place, and the client is never told."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from typing import Self
from urllib.parse import urlsplit

_DONE = b"COMMIT\x00"
"""The end of the server's `CommandComplete` for a COMMIT."""
_CHUNK = 65_536
_CONNECT_S = 5.0
_HOST = "127.0.0.1"


class LosesReplies:
    """
    Passes bytes on, and at some replies to a COMMIT, chosen by ``dice``, cuts both connections instead.

    ``recovery_s``: the seconds from each lost reply to the next one that was passed on.
    """

    def __init__(self, url: str, probability: float, dice: random.Random) -> None:
        target = urlsplit(url)
        self._target = (target.hostname or _HOST, target.port or 5432)
        self._probability, self._dice = probability, dice
        self._listening = socket.create_server((_HOST, 0))
        self.url = target._replace(netloc=f"{target.username}@{_HOST}:{self._listening.getsockname()[1]}").geturl()
        self.lost = 0
        self.recovery_s: list[float] = []
        self._lost_at: float | None = None
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="loses-replies", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._cut(*self._open)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._target, _CONNECT_S)
            except OSError:
                return
            server.settimeout(None)
            self._open += [client, server]
            for source, sink, replies in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass_on, args=(source, sink, replies), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while (some := source.recv(_CHUNK)) and not (replies and _DONE in some and self._loses()):
                sink.sendall(some)
        self._cut(source, sink)

    def _loses(self) -> bool:
        """Whether this reply is lost; the server answers a COMMIT in one piece, being asked nothing else."""
        with self._lock:
            if self._dice.random() < self._probability:
                self.lost += 1
                self._lost_at = self._lost_at or time.time()
                return True
            if self._lost_at is not None:
                self.recovery_s.append(time.time() - self._lost_at)
                self._lost_at = None
            return False

    @staticmethod
    def _cut(*sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
