"""
A client's connection through the proxy, and the timeline of all connections.

Connections to brokers are not encrypted, because TLS would hide the frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proof.wire import codec
from proof.wire.codec import Api, Details, Malformed, RequestHeader
from proof.wire.rules import Action, CaughtFrame, DelayedChannel, Side, Trap

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
_KEPT = 20_000
_FRAME_MAX, _SETTLE_S = 1 << 29, 30.0
_DONE = {Action.HOLD: "held", Action.DROP: "dropped", Action.DELAY: "delayed", Action.CUT: "cut"}

if TYPE_CHECKING:
    from proof.wire.proxy import Proxy


@dataclass(frozen=True, slots=True)
class Event:
    """
    One frame, or the proxy's action on it or its connection.

    ``at`` is in monotonic seconds since the proxy started; ``connection`` counts accepted connections from 1. ``what``
    is `request`, `reply`, or an action: `held`, `cut`, `released`, `dropped`, `delayed`.
    """

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
        self, net: Proxy, number: int, node: int, client: Streams, broker: Streams, chance: random.Random
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
            asked = self._read(frame)
            if asked is not None:
                trap = self._net.trap_for(Side.REQUEST, asked.header, asked.details)
                if trap is not None:
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
        number = codec.correlation_id(reply)
        if number not in self._asked:
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
        if header.api == Api.API_VERSIONS:
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
