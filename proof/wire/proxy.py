"""
A TCP proxy for a Kafka cluster that understands the protocol.

Clients that connect to its `bootstrap` never bypass it, because it replaces broker addresses in replies
(`proof.wire.codec` has the versions). It decodes only what rules, the timeline and the addresses need.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused, Unreachable
from proof.wire.codec import Address, Details, Malformed, RequestHeader, addresses, brokers_request, with_addresses
from proof.wire.link import Event, Link, Streams, Timeline, frames
from proof.wire.rules import NO_DELAY, NetworkConditions, Rule, Side, Trap

HOST = "127.0.0.1"
_BUFFER = 4 * 1024 * 1024
_CONNECT_S = 30.0
# An accepted connection reaches its handler in the loop's third turn; an aborted one frees its socket in the next.
_CLOSING_TURNS = 8
_START_S = _CALL_S = 15.0
_Result = TypeVar("_Result")


class Proxy:
    """The proxy in the event loop that started it; `WireProxy` runs one in a thread."""

    def __init__(self, host: str, shape: NetworkConditions, seed: int) -> None:
        self.timeline, self.shape = Timeline(), shape
        self.failures: list[str] = []
        self._host, self._seed = host, seed
        self._traps: list[Trap] = []
        self._rules, self._numbers = itertools.count(1), itertools.count(1)
        self._servers: list[asyncio.Server] = []
        self._stands_for: dict[Address, Address] = {}
        self._opening = asyncio.Lock()
        self._links: set[asyncio.Task[None]] = set()
        self._closing = False

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self._stands_for.values())

    async def start(self, bootstrap: str, deadline: Deadline, ports: tuple[int, ...] = ()) -> None:
        """Get the brokers from any bootstrap server, and listen for each on one of ``ports`` or on a free port."""
        wanted = iter(ports)
        for node, address in await _brokers(bootstrap, deadline):
            await self._listen(node, address, next(wanted, 0))

    def add(self, rule: Rule) -> Trap:
        trap = Trap(rule, next(self._rules), asyncio.get_running_loop(), self._seed)
        self._traps.append(trap)
        return trap

    def remove(self, trap: Trap) -> None:
        """Remove a rule, and release the frame that it holds."""
        if trap in self._traps:
            self._traps.remove(trap)
        trap.release()

    async def close(self) -> None:
        """Stop listening and end all connections, including those just accepted."""
        self._closing = True
        for listener in (listener for server in self._servers for listener in server.sockets):
            asyncio.get_running_loop().remove_reader(listener)
        for _ in range(_CLOSING_TURNS):
            for link in self._links:
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)
            await asyncio.sleep(0)
        # Last, because closing a server of Python 3.11 drops connections not yet handed to their handler.
        for server in self._servers:
            server.close()

    # For connections.

    def trap_for(self, side: Side, header: RequestHeader, asked: Details) -> Trap | None:
        """Return the first rule that acts on a frame; all matching rules count it."""
        if not self._traps:
            return None
        taking = [trap for trap in self._traps if trap.takes(side, header, asked)]
        return taking[0] if taking else None

    async def behind(self, header: RequestHeader, reply: bytes) -> bytes:
        """Return the reply with the proxy's addresses, after listening for any new broker."""
        for node, address in addresses(header, reply):
            if address not in self._stands_for:
                await self._listen(node, address, 0)
        return with_addresses(header, reply, self._stands_for.__getitem__)

    async def _listen(self, node: int, address: Address, port: int) -> None:
        async with self._opening:
            if address in self._stands_for:
                return

            async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await self._serve(node, address, (reader, writer))

            try:
                server = await asyncio.start_server(accepted, self._host, port, limit=_BUFFER)
            except OSError as error:
                raise Refused(f"the proxy can't listen at {self._host}:{port}: {error}; use --port 0") from error
            self._servers.append(server)
            self._stands_for[address] = (self._host, server.sockets[0].getsockname()[1])

    async def _serve(self, node: int, address: Address, client: Streams) -> None:
        _, writer = client
        task = asyncio.current_task()
        if task is not None:
            self._links.add(task)
            task.add_done_callback(self._links.discard)
        number = next(self._numbers)
        try:
            if not self._closing:
                await self._link(number, node, address, client)
        except Malformed as error:
            # A frame that can't be read is not forwarded: it might contain the brokers' own addresses.
            self.failures.append(f"connection {number} ended: {error}")
        except asyncio.CancelledError:
            return  # the proxy closes; Python 3.11 logs a cancelled handler as an error
        finally:
            writer.transport.abort()

    async def _link(self, number: int, node: int, address: Address, client: Streams) -> None:
        chance = random.Random(f"{self._seed}:{number}")  # noqa: S311 - jitter, not a secret
        try:
            async with asyncio.timeout(_CONNECT_S):
                broker = await asyncio.open_connection(*address, limit=_BUFFER)
        except OSError:  # a time-out is one, too
            return
        await Link(self, number, node, client, broker, chance).run()


async def _brokers(bootstrap: str, deadline: Deadline) -> list[tuple[int, Address]]:
    header, request = brokers_request()
    last: Exception | None = None
    for server in bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            async with asyncio.timeout(max(0.001, deadline.remaining_s())):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(request)
                    async for reply in frames(reader):
                        return addresses(header, reply)
                finally:
                    writer.transport.abort()
        except (OSError, ValueError) as error:  # a time-out is one, too
            last = error
    raise Unreachable(f"no Kafka broker answered at {bootstrap!r} ({last}); start one with `make up`, or name another")


class WireProxy:
    """A proxy in its own thread, as a context manager; entering raises `Unreachable` if no broker answers."""

    def __init__(
        self,
        bootstrap: str,
        *,
        host: str = HOST,
        ports: tuple[int, ...] = (),
        shape: NetworkConditions = NO_DELAY,
        seed: int = 0,
    ) -> None:
        self._upstream, self._ports = bootstrap, ports
        self._proxy = Proxy(host, shape, seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._proxy.start(self._upstream, Deadline(_START_S), self._ports), _START_S + 1)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._proxy.close(), _CALL_S)
        finally:
            self._end()

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients, instead of the brokers'."""
        return self._proxy.bootstrap

    @property
    def connection(self) -> Connection:
        return Connection(self.bootstrap)

    @property
    def timeline(self) -> Timeline:
        return self._proxy.timeline

    @property
    def failures(self) -> list[str]:
        """Connections that ended because a frame could not be read; a run with any proves nothing."""
        return list(self._proxy.failures)

    def events(self) -> list[Event]:
        return self.timeline.events()

    def add(self, rule: Rule) -> Trap:
        """Activate a rule; after this returns, it sees every frame."""
        return self._do(lambda: self._proxy.add(rule))

    def remove(self, trap: Trap) -> None:
        self._do(lambda: self._proxy.remove(trap))

    def reshape(self, shape: NetworkConditions) -> None:
        """Change the network conditions; connections stay open."""
        self._do(lambda: setattr(self._proxy, "shape", shape))

    async def _settled(self) -> None:
        """Wait until closed transports have released their sockets, in the loop's next turns."""
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
