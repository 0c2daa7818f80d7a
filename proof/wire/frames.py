"""What a request or a reply says about itself: heads of all frames, details of those of a transaction. Pure."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from proof.wire.codec import NO_ERROR, TRANSACTIONAL, Api, Cursor, Malformed, is_flexible, is_read

_HEAD = struct.Struct(">hhih")
# Record batch, format 2: where producer id, epoch, first sequence and record count stand (Kafka's "Record Batch").
_BATCH_PRODUCER = struct.Struct(">qhii")
_BATCH_PRODUCER_AT = 43
_RESULTS_VERSIONS = 3


@dataclass(frozen=True, slots=True)
class Head:
    """A request's header; ``body_at`` is the first byte of its body, in bytes from the frame's first one."""

    api: int
    version: int
    correlation_id: int
    client_id: str | None
    body_at: int

    @property
    def title(self) -> str:
        try:
            return Api(self.api).title
        except ValueError:
            return f"request {self.api}"


@dataclass(frozen=True, slots=True)
class Details:
    """What a frame of a transaction says; ``text`` is what people want to know of it."""

    transactional_id: str | None = None
    producer_id: int = -1
    epoch: int = -1
    committed: bool | None = None
    error: int | None = None
    text: str = ""


NO_DETAILS = Details()


def request_head(frame: bytes) -> Head:
    """
    Read header version 1 or 2 of a frame without its length; the client id has an int16 length in both (KIP-482).

    Raises:
        Malformed: it is no request.
    """
    try:
        api, version, correlation_id, length = _HEAD.unpack_from(frame)
    except struct.error as error:
        raise Malformed("a request of less than ten bytes") from error
    at = _HEAD.size
    cursor = Cursor(frame, at, flexible=False)
    client_id = None
    if length >= 0:
        cursor.skip(length)
        client_id = frame[at : cursor.at].decode("utf-8", "replace")
    if is_read(api) and is_flexible(api, version):
        cursor.flexible = True
        cursor.skip_tags()
    return Head(api, version, correlation_id, client_id, cursor.at)


def correlation_id(reply: bytes) -> int:
    """
    The number that pairs a reply with its request.

    Raises:
        Malformed: it is no reply.
    """
    return Cursor(reply, 0, flexible=False).int32()


def reply_body(head: Head, reply: bytes) -> Cursor:
    """A cursor at the body of a reply; ApiVersions keeps the oldest header, so that anybody can read it (KIP-511)."""
    flexible = is_flexible(head.api, head.version)
    cursor = Cursor(reply, 4, flexible=flexible)
    if flexible and head.api != Api.API_VERSIONS:
        cursor.skip_tags()
    return cursor


def request_details(head: Head, frame: bytes) -> Details:
    """What a request of the transaction protocol says; nothing for all others and for what can't be read."""
    if head.api not in TRANSACTIONAL:
        return NO_DETAILS
    body = Cursor(frame, head.body_at, flexible=is_flexible(head.api, head.version))
    try:
        return _requested(head, body)
    except Malformed:
        return NO_DETAILS


def _requested(head: Head, body: Cursor) -> Details:
    if head.api == Api.PRODUCE:
        return _produced(head, body)
    if head.api == Api.ADD_PARTITIONS_TO_TXN and head.version > _RESULTS_VERSIONS:
        return NO_DETAILS  # only brokers send it
    transactional_id = body.text()
    if head.api == Api.INIT_PRODUCER_ID:
        body.int32()
        known = head.version >= 3
        return Details(transactional_id, body.int64() if known else -1, body.int16() if known else -1)
    group = body.text() if head.api == Api.TXN_OFFSET_COMMIT else None
    producer_id, epoch = body.int64(), body.int16()
    if head.api == Api.END_TXN:
        committed = bool(body.int8())
        return Details(transactional_id, producer_id, epoch, committed, None, "commit" if committed else "abort")
    if head.api == Api.TXN_OFFSET_COMMIT:
        return Details(transactional_id, producer_id, epoch, None, None, _offset(head, body))
    if head.api == Api.ADD_OFFSETS_TO_TXN:
        return Details(transactional_id, producer_id, epoch, None, None, f"group {group or body.text()}")
    return Details(transactional_id, producer_id, epoch, None, None, f"{body.length()} topics")


def _produced(head: Head, body: Cursor) -> Details:
    """The transactional id, and the producer of the first record batch."""
    transactional_id = body.text() if head.version >= 3 else None
    body.skip(6)  # acks, time-out
    if body.length() < 1:
        return Details(transactional_id)
    if head.version >= 13:
        body.uuid()
    else:
        body.text()
    if body.length() < 1:
        return Details(transactional_id)
    partition, size = body.int32(), body.octets()
    at = body.at + _BATCH_PRODUCER_AT
    if size < _BATCH_PRODUCER_AT + _BATCH_PRODUCER.size or at + _BATCH_PRODUCER.size > len(body.data):
        return Details(transactional_id)
    producer_id, epoch, sequence, count = _BATCH_PRODUCER.unpack_from(body.data, at)
    told = f"{count} record{'s' if count != 1 else ''} to partition {partition}, sequence {sequence}"
    return Details(transactional_id, producer_id, epoch, None, None, told)


def _offset(head: Head, body: Cursor) -> str:
    """The first partition's offset."""
    if head.version >= 3:
        body.int32()
        body.text()
        body.text()
    if body.length() < 1:
        return ""
    body.text()
    if body.length() < 1:
        return ""
    partition, offset = body.int32(), body.int64()
    return f"partition {partition} -> offset {offset}"


def reply_details(head: Head, reply: bytes) -> Details:
    """The first error of a reply of the transaction protocol, and the producer that InitProducerId hands out."""
    if head.api not in TRANSACTIONAL:
        return NO_DETAILS
    try:
        return _replied(head, reply_body(head, reply))
    except Malformed:
        return NO_DETAILS


def _replied(head: Head, body: Cursor) -> Details:
    if head.api == Api.PRODUCE:
        return Details(error=_produce_error(head, body))
    body.int32()  # throttled for
    if head.api == Api.INIT_PRODUCER_ID:
        error = body.int16()
        return Details(producer_id=body.int64(), epoch=body.int16(), error=error)
    if head.api in {Api.END_TXN, Api.ADD_OFFSETS_TO_TXN}:
        return Details(error=body.int16())
    if head.api == Api.ADD_PARTITIONS_TO_TXN and head.version > _RESULTS_VERSIONS:
        return NO_DETAILS
    return Details(error=_first_error(body))


def _first_error(body: Cursor) -> int:
    """Of topics with partitions with nothing but an error code."""
    for _ in range(body.length()):
        body.text()
        for _ in range(body.length()):
            body.int32()
            if (error := body.int16()) != NO_ERROR:
                return error
            body.skip_tags()
        body.skip_tags()
    return NO_ERROR


def _produce_error(head: Head, body: Cursor) -> int:
    for _ in range(body.length()):
        skip_topic(head.version, body)
        for _ in range(body.length()):
            if (error := skip_produced_partition(head.version, body)) != NO_ERROR:
                return error
        body.skip_tags()
    return NO_ERROR


def skip_topic(version: int, body: Cursor) -> None:
    """Pass a topic of a Produce reply: a name, from version 13 on an id."""
    if version >= 13:
        body.uuid()
    else:
        body.text()


def skip_produced_partition(version: int, body: Cursor) -> int:
    """Pass one partition of a Produce reply and return its error code."""
    body.int32()
    error = body.int16()
    body.int64()  # base offset
    if version >= 2:
        body.int64()  # append time
    if version >= 5:
        body.int64()  # log start
    if version >= 8:
        for _ in range(body.length()):
            body.int32()
            body.text()
            body.skip_tags()
        body.text()
    body.skip_tags()
    return error
