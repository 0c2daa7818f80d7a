"""An HTTP client whose time-out is the whole request's: a socket's own starts anew with each byte it receives."""

from __future__ import annotations

import http.client
import io
import socket
from http import HTTPStatus
from typing import Any

import urllib3

from brew.deadline import Deadline


def http_pool(timeout_s: float, connections: int = 1) -> urllib3.PoolManager:
    """Return a client without retries; a request ends after ``timeout_s`` (but for name look-ups and TLS uploads)."""
    whole = urllib3.Timeout(total=timeout_s)
    pool = urllib3.PoolManager(maxsize=connections, block=False, retries=False, timeout=whole)
    pool.pool_classes_by_scheme = {"http": _HttpPool, "https": _HttpsPool}
    return pool


class _UntilDeadline(io.RawIOBase):
    """What a socket receives within the time-out it has now."""

    def __init__(self, sock: socket.socket, raw: io.RawIOBase) -> None:
        self._sock, self._raw = sock, raw
        self._timeout_s = sock.gettimeout()
        self._deadline = Deadline(self._timeout_s or 0.0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int | None:  # type: ignore[override]  # only the buffered reader calls it
        left_s = self._deadline.remaining_s()
        if left_s <= 0:
            raise TimeoutError(f"no complete answer within {self._deadline.budget_s:g} s")
        self._sock.settimeout(left_s)
        try:
            return self._raw.readinto(buffer)
        finally:
            self._sock.settimeout(self._timeout_s)  # the next request on this connection has its own

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *given: Any, **more: Any) -> None:
        super().__init__(sock, *given, **more)
        self.fp = io.BufferedReader(_UntilDeadline(sock, self.fp.detach()))

    def begin(self) -> None:
        """Skip all interim answers (RFC 9110): the library skips only 100, and the next request gets the final one."""
        super().begin()
        while HTTPStatus.SWITCHING_PROTOCOLS < self.status < HTTPStatus.OK:
            self.headers = None  # type: ignore[assignment]  # what the library begins with
            super().begin()


class _Http(urllib3.connection.HTTPConnection):
    response_class = _Answer


class _Https(urllib3.connection.HTTPSConnection):
    response_class = _Answer


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https
