"""kafka-python's admin client, made to leave nothing behind when no broker answers: no thread, no socket."""

from __future__ import annotations

import logging
import warnings
from typing import Any

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka.net.inet import KafkaNetSocket

__all__ = ["KafkaAdminClient", "PlainClient"]

# Failures reach the caller as exceptions; the library would also print them.
logging.getLogger("kafka").addHandler(logging.NullHandler())
logging.getLogger("kafka").propagate = False

_SCHEME = "closed-on-failure"


class _ClosedOnFailure(KafkaNetSocket):  # type: ignore[misc]
    """
    Direct connections, found by the scheme of ``proxy_url`` as the library's own proxies are.

    A connection that fails, or whose client ends first, is held by a cycle of its exception and a frame: its socket
    would stay open until the garbage collector comes by, four of them for each attempt of two seconds.
    """

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class PlainClient(KafkaAdminClient):  # type: ignore[misc]
    """Made like the library's, which leaves its thread behind when its constructor fails."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(proxy_url=f"{_SCHEME}://", **settings)
        except BaseException:
            if hasattr(self, "_net"):
                self._closed = False
                self.close()
            raise
