"""A proxy in a thread of its own, for programs and experiments that wait and block."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from proof.wire.proxy import HOST, Proxy
from proof.wire.rules import Rule, Trap
from proof.wire.shape import PLAIN, Shape
from proof.wire.timeline import Event, Timeline
from protocol.connection import Connection
from protocol.deadline import Deadline

_START_S = 15.0
_CALL_S = 15.0
_Result = TypeVar("_Result")


class WireProxy:
    """
    A running proxy; leaving the block ends it together with all connections.

    Raises:
        Unreachable: no broker answered at the bootstrap servers (when the block is entered).
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        host: str = HOST,
        ports: tuple[int, ...] = (),
        shape: Shape = PLAIN,
        seed: int = 0,
    ) -> None:
        self._upstream, self._host, self._ports = bootstrap, host, ports
        self._shape, self._seed = shape, seed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire-proxy", daemon=True)
        self._proxy: Proxy | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._proxy = self._run(self._start(), _START_S + 1)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run(self._now.close(), _CALL_S)
        finally:
            self._end()

    @property
    def bootstrap(self) -> str:
        """Where clients begin, instead of at the brokers."""
        return self._now.bootstrap

    @property
    def connection(self) -> Connection:
        return Connection(self.bootstrap)

    @property
    def timeline(self) -> Timeline:
        return self._now.timeline

    @property
    def failures(self) -> list[str]:
        """Connections that ended because a frame could not be read; none, or the run proves nothing."""
        return list(self._now.failures)

    def events(self) -> list[Event]:
        return self.timeline.events()

    def add(self, rule: Rule) -> Trap:
        """Put a rule to work; once this returns it sees every frame."""
        return self._do(lambda: self._now.add(rule))

    def remove(self, trap: Trap) -> None:
        self._do(lambda: self._now.remove(trap))

    def reshape(self, shape: Shape) -> None:
        """Make the network slower, or plain again; connections stay."""
        self._do(lambda: setattr(self._now, "shape", shape))

    @property
    def _now(self) -> Proxy:
        if self._proxy is None:
            raise RuntimeError("the proxy is not running; use it in a `with` block")
        return self._proxy

    async def _start(self) -> Proxy:
        proxy = Proxy(self._host, self._shape, self._seed)
        await proxy.start(self._upstream, Deadline(_START_S), self._ports)
        return proxy

    async def _settled(self) -> None:
        """Transports that were closed or aborted give their sockets back in the loop's next turns."""
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
        for _ in range(3):
            await asyncio.sleep(0)

    def _do(self, action: Callable[[], _Result]) -> _Result:
        async def once() -> _Result:
            return action()

        return self._run(once(), _CALL_S)

    def _run(self, work: Coroutine[Any, Any, _Result], seconds: float) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def _end(self) -> None:
        self._run(self._settled(), _CALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()
