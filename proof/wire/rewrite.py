"""
Keep clients behind the proxy: broker addresses in replies are exchanged, versions that hide them are not offered. Pure.

Replies that name addresses: Metadata, FindCoordinator, DescribeCluster, and Produce from version 10 on (KIP-951).
ApiVersions replies are narrowed to versions whose addresses can be found (`proof.wire.apis.NEWEST`); share groups,
whose replies name addresses too, are hidden. Brokers are reached in plain text: TLS would hide the frames.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proof.wire import codec
from proof.wire.apis import HIDDEN, NEWEST, UNSUPPORTED_VERSION, Api
from proof.wire.codec import Cursor
from proof.wire.frames import Head, reply_body, skip_produced_partition, skip_topic

Address = tuple[str, int]

WITH_ADDRESSES = frozenset({Api.METADATA, Api.FIND_COORDINATOR, Api.DESCRIBE_CLUSTER, Api.PRODUCE})
_ENDPOINTS_TAG = 0
_PRODUCE_NAMES_ADDRESSES = 10


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a reply names a broker: bytes [start, end) hold host and port."""

    start: int
    end: int
    node: int
    address: Address


def spots(head: Head, reply: bytes) -> list[Spot]:
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


def rewritten(head: Head, reply: bytes, found: list[Spot], stands_for: Callable[[Address], Address]) -> bytes:
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


def narrowed(head: Head, reply: bytes) -> bytes:
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


def _spot(body: Cursor, node: int) -> Spot:
    start = body.at
    host = body.text() or ""
    return Spot(start, body.at + 4, node, (host, body.int32()))


def _of_metadata(version: int, body: Cursor) -> Iterator[Spot]:
    if version >= 3:
        body.int32()
    for _ in range(body.length()):
        yield _spot(body, body.int32())
        if version >= 1:
            body.text()  # rack
        body.skip_tags()


def _of_coordinators(version: int, body: Cursor) -> Iterator[Spot]:
    if version >= 1:
        body.int32()
    if version <= 3:
        body.int16()
        if version >= 1:
            body.text()
        yield _spot(body, body.int32())
        return
    for _ in range(body.length()):
        body.text()  # key
        yield _spot(body, body.int32())
        body.int16()
        body.text()
        body.skip_tags()


def _of_cluster(version: int, body: Cursor) -> Iterator[Spot]:
    body.int32()
    body.int16()
    body.text()
    if version >= 1:
        body.int8()  # brokers or controllers
    body.text()
    body.int32()
    for _ in range(body.length()):
        yield _spot(body, body.int32())
        body.text()
        if version >= 2:
            body.int8()
        body.skip_tags()


def _of_produced(version: int, body: Cursor) -> Iterator[Spot]:
    if version < _PRODUCE_NAMES_ADDRESSES:
        return
    _to_produce_tags(version, body)
    for tag, _ in body.tags():
        if tag == _ENDPOINTS_TAG:
            for _ in range(body.length()):
                yield _spot(body, body.int32())
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
