"""
A TCP proxy for a Kafka cluster that understands the protocol, and the timeline of all its connections.

Clients that connect to its `bootstrap` never bypass it, because it replaces broker addresses in replies
(`proof.wire.codec` has the versions). It decodes only what rules, the timeline and the addresses need. Connections to
brokers are not encrypted, because TLS would hide the frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from typing import Any, Self

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused, Unreachable
from proof.wire import codec
from proof.wire.codec import Address, Api, Details, Malformed, RequestHeader
from proof.wire.rules import NO_DELAY, Action, CaughtFrame, DelayedChannel, NetworkConditions, Rule, Side, Trap

HOST = "127.0.0.1"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_BUFFER, _CONNECT_S = 4 * 1024 * 1024, 30.0
# An accepted connection reaches its handler in the loop's third turn; an aborted one frees its socket in the next.
_CLOSING_TURNS = 8
_START_S = _CALL_S = 15.0
_KEPT, _FRAME_MAX, _SETTLE_S = 20_000, 1 << 29, 30.0
_DONE = {Action.HOLD: "held", Action.DROP: "dropped", Action.DELAY: "delayed", Action.CUT: "cut"}


@dataclass(frozen=True, slots=True)
class Event:
    """One frame (``what``: `request`, `reply`), or the proxy's action on it (`held`), ``at`` seconds from its start."""

    at: float
    connection: int
    node: int
    what: str
    header: RequestHeader
    details: Details

    def document(self) -> dict[str, object]:
        place = {"at": round(self.at, 6), "connection": self.connection, "node": self.node, "what": self.what}
        header = dataclasses.asdict(self.header) | {"api": self.header.title}
        details = {name: getattr(self.details, name) for name in ("transactional_id", "producer_id", "epoch", "text")}
        error = None if self.details.error is None else codec.error_name(self.details.error)
        return {**place, **header, **details, "error": error}


class Timeline:
    """The last 20,000 events of the transaction protocol, in order, and a count of all requests; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._counts: Counter[str] = Counter()
        self._began = time.monotonic()

    def add(self, connection: int, node: int, what: str, header: RequestHeader, details: Details) -> None:
        event = Event(time.monotonic() - self._began, connection, node, what, header, details)
        with self._lock:
            self._events.append(event)

    def count(self, header: RequestHeader) -> None:
        self._counts[header.title] += 1

    def events(self) -> list[Event]:
        with self._lock:
            return list(self._events)

    def counts(self) -> dict[str, int]:
        """Return the number of requests by name, in order of first arrival."""
        return dict(self._counts)

    def clear(self) -> None:
        """Discard events and counts; the clock is not reset."""
        with self._lock:
            self._events.clear()
            self._counts.clear()


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    """A request that the broker has not answered yet."""

    header: RequestHeader
    details: Details
    trap: Trap | None = None


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield frames without length prefix, until the other side disconnects."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            size = int.from_bytes(await reader.readexactly(4), signed=True)
            if not 0 <= size <= _FRAME_MAX:
                raise Malformed(f"a frame of {size} bytes is not valid; the proxy can't read encrypted connections")
            yield await reader.readexactly(size)


class Link:
    """A connection between a client and its broker."""

    def __init__(
        self, net: WireProxy, number: int, node: int, client: Streams, broker: Streams, chance: random.Random
    ) -> None:
        self._net, self._number, self._node = net, number, node
        self._from_client, self._client = client
        self._from_broker, self._broker = broker
        self._to_client, self._to_broker = (DelayedChannel(side, chance) for side in (self._client, self._broker))
        self._asked: dict[int, _PendingRequest] = {}
        self._late: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Forward frames until either side disconnects, and a frame that was held is settled."""
        requests, replies = asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._replies())
        try:
            await asyncio.wait({requests, replies}, return_when=asyncio.FIRST_COMPLETED)
            if requests.done() and self._late is not None:
                # The client has left, but the broker still has to answer a released frame.
                await asyncio.wait({replies, self._late}, timeout=_SETTLE_S, return_when=asyncio.FIRST_COMPLETED)
            ended = [task for task in (requests, replies) if task.done()]
            requests.cancel()
            replies.cancel()
            await asyncio.gather(requests, replies, return_exceptions=True)
            await asyncio.gather(self._to_broker.close(), self._to_client.close())
        finally:
            requests.cancel()
            replies.cancel()
            self._to_broker.stop()
            self._to_client.stop()
            self._client.transport.abort()
            self._broker.transport.abort()
        for task in ended:
            task.result()

    def cut(self) -> None:
        """Break the client's side, as a network failure does; the broker's side stays while a frame is held."""
        self._client.transport.abort()

    async def _requests(self) -> None:
        async for frame in frames(self._from_client):
            if (asked := self._read(frame)) is not None:
                if (trap := self._net.trap_for(Side.REQUEST, asked.header, asked.details)) is not None:
                    if not await self._act(trap, asked):
                        continue
                    if trap.rule.action is Action.HOLD:
                        asked = dataclasses.replace(asked, trap=trap)
                        self._late = asyncio.get_running_loop().create_future()
                self._asked[asked.header.correlation_id] = asked
            await self._to_broker.put(frame, self._net.shape)

    def _read(self, frame: bytes) -> _PendingRequest | None:
        """Decode a request; return None if it is none, such as the raw tokens of an old SASL handshake."""
        try:
            header = codec.request_header(frame)
        except Malformed:
            return None
        self._net.timeline.count(header)
        asked = _PendingRequest(header, codec.request_details(header, frame))
        self._note("request", asked)
        return asked

    async def _replies(self) -> None:
        async for frame in frames(self._from_broker):
            asked = self._pair(frame)
            reply = frame
            if asked is not None:
                reply = await self._seen(asked, frame)
                trap = self._net.trap_for(Side.REPLY, asked.header, asked.details)
                if trap is not None and not await self._act(trap, asked):
                    continue
            await self._to_client.put(reply, self._net.shape)

    def _pair(self, reply: bytes) -> _PendingRequest | None:
        if (number := codec.correlation_id(reply)) not in self._asked:
            return None
        # Replies arrive in the order of requests: older requests expect no reply (acks=0).
        while (first := next(iter(self._asked))) != number:
            del self._asked[first]
        return self._asked.pop(number)

    async def _seen(self, asked: _PendingRequest, frame: bytes) -> bytes:
        """Record a reply, pass it to the trap that waits for it, and return it as the client should see it."""
        header = asked.header
        if header.api in codec.TRANSACTIONAL:
            reply = codec.reply_details(header, frame)
            known = {name: getattr(reply, name) for name in ("producer_id", "epoch") if getattr(reply, name) >= 0}
            details = dataclasses.replace(asked.details, error=reply.error, **known)
            self._note("reply", dataclasses.replace(asked, details=details))
            if asked.trap is not None:
                asked.trap.answer(details)
                if self._late is not None and not self._late.done():
                    self._late.set_result(None)
        if header.api == Api.ApiVersions:
            return codec.without_unsupported_versions(header, frame)
        if header.api in codec.WITH_ADDRESSES:
            return await self._net.behind(header, frame)
        return frame

    async def _act(self, trap: Trap, asked: _PendingRequest) -> bool:
        """Apply the rule to a frame; return whether to forward it."""
        rule = trap.rule
        caught = CaughtFrame(self._number, asked.header, asked.details)
        self._note(_DONE[rule.action], asked)
        if rule.action is Action.CUT or rule.cut:
            self.cut()
            if rule.cut:
                self._note("cut", asked)

        def cut() -> None:
            self._note("cut", asked)
            self.cut()

        trap.catch(caught, cut)
        if rule.action is Action.DELAY:
            await asyncio.sleep(trap.delay_s())
            return True
        if rule.action is not Action.HOLD:
            return False
        goes_on = await trap.decision()
        self._note("released" if goes_on else "dropped", asked)
        return goes_on

    def _note(self, what: str, asked: _PendingRequest) -> None:
        if asked.header.api in codec.TRANSACTIONAL or what not in {"request", "reply"}:
            self._net.timeline.add(self._number, self._node, what, asked.header, asked.details)


async def _brokers(bootstrap: str, deadline: Deadline) -> list[tuple[int, Address]]:
    header, request = codec.brokers_request()
    last: Exception | None = None
    for server in bootstrap.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            async with asyncio.timeout(max(0.001, deadline.remaining_s())):
                reader, writer = await asyncio.open_connection(host, int(port))
                try:
                    writer.write(request)
                    async for reply in frames(reader):
                        return codec.addresses(header, reply)
                finally:
                    writer.transport.abort()
        except (OSError, ValueError) as error:  # a time-out is one, too
            last = error
    raise Unreachable(f"no Kafka broker answered at {bootstrap!r} ({last}); start one with `make up`, or name another")


class WireProxy:
    """A proxy in its own thread, thread-safe for the caller; entering raises `Unreachable` if no broker answers."""

    def __init__(
        self,
        bootstrap: str,
        *,
        host: str = HOST,
        ports: tuple[int, ...] = (),
        shape: NetworkConditions = NO_DELAY,
        seed: int = 0,
    ) -> None:
        """``ports``: those of the first brokers; 0, and all others, are free ports."""
        self.timeline, self.shape = Timeline(), shape
        self.failures: list[str] = []
        """Connections that ended because a frame could not be read; a run with any proves nothing."""
        self._upstream, self._host, self._ports, self._seed = bootstrap, host, ports, seed
        self._traps: tuple[Trap, ...] = ()
        self._rules, self._numbers = itertools.count(1), itertools.count(1)
        self._servers: list[asyncio.Server] = []
        self._stands_for: dict[Address, Address] = {}
        self._opening = asyncio.Lock()
        self._links: set[asyncio.Task[None]] = set()
        self._closing = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._start(Deadline(_START_S)), _START_S + 1)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._close(), _CALL_S)
        finally:
            self._end()

    @property
    def bootstrap(self) -> str:
        """The bootstrap servers for clients, instead of the brokers'."""
        return ",".join(f"{host}:{port}" for host, port in self._stands_for.values())

    @property
    def connection(self) -> Connection:
        return Connection(self.bootstrap)

    def add(self, rule: Rule) -> Trap:
        """Activate a rule; after this returns, it sees every frame."""
        trap = Trap(rule, next(self._rules), self._loop, self._seed)
        self._traps += (trap,)
        return trap

    def remove(self, trap: Trap) -> None:
        """Remove a rule, and release the frame that it holds."""
        self._traps = tuple(other for other in self._traps if other is not trap)
        trap.release()

    def _run(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(seconds)

    def _end(self) -> None:
        self._run(self._settled(), _CALL_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CALL_S)
        self._loop.close()

    # In the event loop.

    async def _start(self, deadline: Deadline) -> None:
        """Get the brokers from any bootstrap server, and listen for each."""
        wanted = iter(self._ports)
        for node, address in await _brokers(self._upstream, deadline):
            await self._listen(node, address, next(wanted, 0))

    async def _close(self) -> None:
        """Stop listening and end all connections, including those just accepted."""
        self._closing = True
        for listener in (listener for server in self._servers for listener in server.sockets):
            self._loop.remove_reader(listener)
        for _ in range(_CLOSING_TURNS):
            for link in self._links:
                link.cancel()
            await asyncio.gather(*self._links, return_exceptions=True)
            await asyncio.sleep(0)
        # Last, because closing a server of Python 3.11 drops connections not yet handed to their handler.
        for server in self._servers:
            server.close()

    async def _settled(self) -> None:
        """Wait until closed transports have released their sockets, in the loop's next turns."""
        await self._loop.shutdown_asyncgens()
        await self._loop.shutdown_default_executor()
        for _ in range(3):
            await asyncio.sleep(0)

    def trap_for(self, side: Side, header: RequestHeader, asked: Details) -> Trap | None:
        """Return the first rule that acts on a frame; all matching rules count it."""
        taking = [trap for trap in self._traps if trap.takes(side, header, asked)]
        return taking[0] if taking else None

    async def behind(self, header: RequestHeader, reply: bytes) -> bytes:
        """Return the reply with the proxy's addresses, after listening for any new broker."""
        for node, address in codec.addresses(header, reply):
            if address not in self._stands_for:
                await self._listen(node, address, 0)
        return codec.with_addresses(header, reply, self._stands_for.__getitem__)

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
        if (task := asyncio.current_task()) is not None:
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
