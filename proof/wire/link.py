"""
One client's connection through the proxy, its broker addresses rewritten.

Replies that name addresses: Metadata, FindCoordinator, DescribeCluster, and Produce from version 10 on (KIP-951).
ApiVersions replies are narrowed to versions whose addresses can be found (`proof.wire.codec.NEWEST`); share groups,
whose replies name addresses too, are hidden. Brokers are reached in plain text: TLS would hide the frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from proof.wire import codec
from proof.wire.codec import HIDDEN, NEWEST, TRANSACTIONAL, UNSUPPORTED_VERSION, Api, Cursor, Malformed
from proof.wire.frames import (
    NO_DETAILS,
    Details,
    Head,
    correlation_id,
    reply_body,
    reply_details,
    request_details,
    request_head,
    skip_produced_partition,
    skip_topic,
)
from proof.wire.rules import Action, CaughtFrame, DelayedChannel, NetworkConditions, Side, Trap
from proof.wire.timeline import Timeline

Address = tuple[str, int]

WITH_ADDRESSES = frozenset({Api.METADATA, Api.FIND_COORDINATOR, Api.DESCRIBE_CLUSTER, Api.PRODUCE})
_ENDPOINTS_TAG = 0
_PRODUCE_NAMES_ADDRESSES = 10


@dataclass(frozen=True, slots=True)
class AddressField:
    """Where a reply names a broker: bytes [start, end) hold host and port."""

    start: int
    end: int
    node: int
    address: Address


def address_fields(head: Head, reply: bytes) -> list[AddressField]:
    """
    All addresses of a reply, in their order; a coordinator that is not there (port -1) is none.

    Raises:
        codec.Malformed: the reply is not what its schema says.
    """
    body = reply_body(head, reply)
    find = {
        Api.METADATA: _of_metadata,
        Api.FIND_COORDINATOR: _of_coordinators,
        Api.DESCRIBE_CLUSTER: _of_cluster,
        Api.PRODUCE: _of_produced,
    }[Api(head.api)]
    return [spot for spot in find(head.version, body) if spot.address[1] > 0]


def rewritten(head: Head, reply: bytes, found: list[AddressField], stands_for: Callable[[Address], Address]) -> bytes:
    """The reply with every address exchanged; tagged fields around them get their new length."""
    flexible = reply_body(head, reply).flexible
    parts, at = [], 0
    for spot in found:
        host, port = stands_for(spot.address)
        parts += [reply[at : spot.start], codec.text(host, flexible=flexible), struct.pack(">i", port)]
        at = spot.end
    parts.append(reply[at:])
    if head.api == Api.PRODUCE and found:
        return _with_new_tag_size(head, reply, b"".join(parts))
    return b"".join(parts)


def without_unsupported_versions(head: Head, reply: bytes) -> bytes:
    """An ApiVersions reply that offers nothing whose addresses we could not exchange."""
    body = reply_body(head, reply)
    if body.int16() == UNSUPPORTED_VERSION:
        body.flexible = False  # the broker answers as version 0 does, whatever was asked (KIP-511)
    after_error = body.at
    offered = []
    for _ in range(body.length()):
        api, oldest, newest = body.int16(), body.int16(), body.int16()
        tags_at = body.at
        body.skip_tags()
        newest = min(newest, NEWEST.get(api, newest))  # type: ignore[call-overload]  # an int is as good as its Api
        if api not in HIDDEN and oldest <= newest:
            offered.append(struct.pack(">hhh", api, oldest, newest) + reply[tags_at : body.at])
    length = codec.array_length(len(offered), flexible=body.flexible)
    return reply[:after_error] + length + b"".join(offered) + reply[body.at :]


def _address_field(body: Cursor, node: int) -> AddressField:
    start = body.at
    host = body.text() or ""
    return AddressField(start, body.at + 4, node, (host, body.int32()))


def _of_metadata(version: int, body: Cursor) -> Iterator[AddressField]:
    if version >= 3:
        body.int32()
    for _ in range(body.length()):
        yield _address_field(body, body.int32())
        if version >= 1:
            body.text()  # rack
        body.skip_tags()


def _of_coordinators(version: int, body: Cursor) -> Iterator[AddressField]:
    if version >= 1:
        body.int32()
    if version <= 3:
        body.int16()
        if version >= 1:
            body.text()
        yield _address_field(body, body.int32())
        return
    for _ in range(body.length()):
        body.text()  # key
        yield _address_field(body, body.int32())
        body.int16()
        body.text()
        body.skip_tags()


def _of_cluster(version: int, body: Cursor) -> Iterator[AddressField]:
    body.int32()
    body.int16()
    body.text()
    if version >= 1:
        body.int8()  # brokers or controllers
    body.text()
    body.int32()
    for _ in range(body.length()):
        yield _address_field(body, body.int32())
        body.text()
        if version >= 2:
            body.int8()
        body.skip_tags()


def _of_produced(version: int, body: Cursor) -> Iterator[AddressField]:
    if version < _PRODUCE_NAMES_ADDRESSES:
        return
    _to_produce_tags(version, body)
    for tag, _ in body.tags():
        if tag == _ENDPOINTS_TAG:
            for _ in range(body.length()):
                yield _address_field(body, body.int32())
                body.text()
                body.skip_tags()


def _to_produce_tags(version: int, body: Cursor) -> None:
    for _ in range(body.length()):
        skip_topic(version, body)
        for _ in range(body.length()):
            skip_produced_partition(version, body)
        body.skip_tags()
    body.int32()


def _with_new_tag_size(head: Head, before: bytes, after: bytes) -> bytes:
    """The endpoints are a tagged field with its own size in front; the first and, so far, only one of a reply."""
    body = reply_body(head, before)
    _to_produce_tags(head.version, body)
    body.varint()  # how many tags
    body.varint()  # which
    size_at = body.at
    size = body.varint() + len(after) - len(before)
    return after[:size_at] + codec.varint(size) + after[body.at :]


_FRAME_MAX = 1 << 29
_SETTLE_S = 30.0


class ProxyContext(Protocol):
    """What a connection needs of its proxy."""

    timeline: Timeline
    shape: NetworkConditions

    def trap_for(self, side: Side, head: Head, asked: Details) -> Trap | None: ...
    async def behind(self, head: Head, reply: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _PendingRequest:
    """A request that the broker has still to answer."""

    head: Head
    details: Details
    trap: Trap | None


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Frames without their length, until the other side leaves."""
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            size = int.from_bytes(await reader.readexactly(4), signed=True)
            if not 0 <= size <= _FRAME_MAX:
                raise Malformed(f"a frame of {size} bytes; is this connection encrypted?")
            yield await reader.readexactly(size)


class Link:
    """A client on one side, its broker on the other."""

    def __init__(
        self,
        net: ProxyContext,
        number: int,
        node: int,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        broker: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        line: Callable[[asyncio.StreamWriter], DelayedChannel],
    ) -> None:
        self._net, self._number, self._node = net, number, node
        self._from_client, self._client = client
        self._from_broker, self._broker = broker
        self._to_client, self._to_broker = line(self._client), line(self._broker)
        self._asked: dict[int, _PendingRequest] = {}
        self._late: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Return when either side has left, and a frame that was held is settled."""
        requests, replies = asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._replies())
        try:
            await asyncio.wait({requests, replies}, return_when=asyncio.FIRST_COMPLETED)
            if requests.done() and self._late is not None:
                # The client has left, but a released frame is still to be answered.
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
        """End the client's side as a broken network does; the broker's side stays while a frame is held."""
        self._client.transport.abort()

    async def _requests(self) -> None:
        async for frame in frames(self._from_client):
            asked = self._read(frame)
            if asked is not None:
                trap = self._net.trap_for(Side.REQUEST, asked.head, asked.details)
                if trap is not None:
                    if not await self._act(trap, asked):
                        continue
                    if trap.rule.action is Action.HOLD:
                        asked = dataclasses.replace(asked, trap=trap)
                        self._late = asyncio.get_running_loop().create_future()
                self._asked[asked.head.correlation_id] = asked
            await self._to_broker.put(frame, self._net.shape)

    def _read(self, frame: bytes) -> _PendingRequest | None:
        """What a request says; None for what is no request, as the raw tokens of an old SASL handshake."""
        try:
            head = request_head(frame)
        except Malformed:
            return None
        self._net.timeline.count(head)
        details = request_details(head, frame) if head.api in TRANSACTIONAL else NO_DETAILS
        asked = _PendingRequest(head, details, None)
        self._note("request", asked)
        return asked

    async def _replies(self) -> None:
        async for frame in frames(self._from_broker):
            asked = self._pair(frame)
            reply = frame
            if asked is not None:
                reply = await self._seen(asked, frame)
                trap = self._net.trap_for(Side.REPLY, asked.head, asked.details)
                if trap is not None and not await self._act(trap, asked):
                    continue
            await self._to_client.put(reply, self._net.shape)

    def _pair(self, reply: bytes) -> _PendingRequest | None:
        number = correlation_id(reply)
        if number not in self._asked:
            return None
        # Replies keep the order of their requests: older ones were asked for no reply (acks=0).
        while (first := next(iter(self._asked))) != number:
            del self._asked[first]
        return self._asked.pop(number)

    async def _seen(self, asked: _PendingRequest, frame: bytes) -> bytes:
        """Note a reply, tell who waits for it, and hand it back fit for the client."""
        head = asked.head
        if head.api in TRANSACTIONAL:
            said = reply_details(head, frame)
            known = {name: getattr(said, name) for name in ("producer_id", "epoch") if getattr(said, name) >= 0}
            details = dataclasses.replace(asked.details, error=said.error, **known)
            self._note("reply", dataclasses.replace(asked, details=details))
            if asked.trap is not None:
                asked.trap.answer(details)
                if self._late is not None and not self._late.done():
                    self._late.set_result(None)
        if head.api == Api.API_VERSIONS:
            return without_unsupported_versions(head, frame)
        if head.api in WITH_ADDRESSES:
            return await self._net.behind(head, frame)
        return frame

    async def _act(self, trap: Trap, asked: _PendingRequest) -> bool:
        """Do to a frame what the rule says; True when it goes on."""
        rule = trap.rule
        caught = CaughtFrame(self._number, asked.head, asked.details)
        told = {Action.HOLD: "held", Action.DROP: "dropped", Action.DELAY: "delayed", Action.CUT: "cut"}
        self._note(told[rule.action], asked)
        if rule.action is Action.CUT or rule.cut:
            self.cut()
            if rule.cut:
                self._note("cut", asked)
        trap.catch(caught, self._cut_later(asked))
        if rule.action is Action.DELAY:
            await asyncio.sleep(trap.delay_s())
            return True
        if rule.action is not Action.HOLD:
            return False
        goes_on = await trap.decision()
        self._note("released" if goes_on else "dropped", asked)
        return goes_on

    def _cut_later(self, asked: _PendingRequest) -> Callable[[], None]:
        def cut() -> None:
            self._note("cut", asked)
            self.cut()

        return cut

    def _note(self, what: str, asked: _PendingRequest) -> None:
        if asked.head.api in TRANSACTIONAL or what not in {"request", "reply"}:
            self._net.timeline.add(self._number, self._node, what, asked.head, asked.details)
