"""
Read Kafka's frames as far as the proxy needs: headers, details of transactions, broker addresses in replies; pure.

kafka-python's schemas decode and encode the messages. Replies with addresses are Metadata, FindCoordinator,
DescribeCluster, and Produce from version 10 on (KIP-951). ApiVersions replies are limited to versions that can be
decoded; share groups, whose replies also contain addresses, are hidden.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from brew.kafka import raw_log
from brew.kafka.kafka_python import error_title, message_class

Api = raw_log.Api
WITH_ADDRESSES = frozenset({Api.Metadata, Api.FindCoordinator, Api.DescribeCluster, Api.Produce})
# Requests of the transaction protocol, which are decoded and recorded in the timeline.
_TO_TXN = {Api.AddPartitionsToTxn, Api.AddOffsetsToTxn, Api.TxnOffsetCommit}
TRANSACTIONAL = frozenset({Api.Produce, Api.InitProducerId, Api.EndTxn} | _TO_TXN)
# The latest version offered to clients. From Fetch 16 on, a reply may name the new leader's address after all its
# records, so clients must use 15.
NEWEST = {int(api): message_class(api, request=False).max_version for api in WITH_ADDRESSES | TRANSACTIONAL}
NEWEST[Api.Fetch] = 15
HIDDEN = frozenset({Api.ShareFetch, Api.ShareAcknowledge})
Address = tuple[str, int]
_HEAD = struct.Struct(">hhih")
# Position of producer id, epoch, first sequence and record count in a record batch, format 2.
_BATCH_PRODUCER = struct.Struct(">qhii")
_BATCH_PRODUCER_AT = 43
_LAST_OF_CLIENTS = 3  # AddPartitionsToTxn: only brokers send later versions


class Malformed(ValueError):
    """The bytes do not match the schema."""


@dataclass(frozen=True, slots=True)
class RequestHeader:
    api: int
    version: int
    correlation_id: int
    client_id: str | None

    @property
    def title(self) -> str:
        try:
            return str(Api(self.api).name)
        except ValueError:
            return f"request {self.api}"


@dataclass(frozen=True, slots=True)
class Details:
    """The content of a transactional frame; ``text`` describes it for people."""

    transactional_id: str | None = None
    producer_id: int = -1
    epoch: int = -1
    committed: bool | None = None
    error: int | None = None
    text: str = ""


NO_DETAILS = Details()


def api_named(text: str) -> int:
    """Return the request with that name, such as `EndTxn`, `end-txn` or `26`; raise `ValueError` if unknown."""
    wanted = text.replace("-", "").replace("_", "").lower()
    matching: list[int] = [api for api in Api if wanted in {api.name.lower(), str(int(api))}]
    if not matching:
        raise ValueError(f"unknown request {text!r}; known are {', '.join(api.name for api in Api)}")
    return matching[0]


def error_name(code: int) -> str:
    """Return the protocol's name of an error code, `ok` for 0, or the number if it is unknown."""
    return "ok" if code == 0 else error_title(code) or f"error {code}"


def request_header(frame: bytes) -> RequestHeader:
    """Parse the header of a frame without length prefix (client id: int16 length, KIP-482), or raise `Malformed`."""
    try:
        api, version, correlation_id, length = _HEAD.unpack_from(frame)
    except struct.error as error:
        raise Malformed("a request of less than ten bytes") from error
    if (end := _HEAD.size + max(0, length)) > len(frame):
        raise Malformed(f"a client id of {length} bytes in a frame of {len(frame)}")
    client_id = frame[_HEAD.size : end].decode("utf-8", "replace") if length >= 0 else None
    return RequestHeader(api, version, correlation_id, client_id)


def correlation_id(reply: bytes) -> int:
    """Return the id that matches a reply with its request; raise `Malformed` if the frame is not a reply."""
    if len(reply) < 4:  # noqa: PLR2004 - an int32
        raise Malformed("a reply of less than four bytes")
    return int.from_bytes(reply[:4], signed=True)


def _decoded(header: RequestHeader, frame: bytes, *, request: bool = False) -> Any:
    try:
        return message_class(header.api, request=request).decode(frame, version=header.version, header=True)
    except Exception as error:  # generated code raises anything on bytes that match no schema
        raise Malformed(f"{header.title} version {header.version} can't be decoded: {error!r}") from error


def request_details(header: RequestHeader, frame: bytes) -> Details:
    """Return the details of a transactional request; empty for others and for frames that can't be decoded."""
    if header.api not in TRANSACTIONAL:
        return NO_DETAILS
    try:
        return _requested(header, _decoded(header, frame, request=True))
    except Malformed:
        return NO_DETAILS


def _requested(header: RequestHeader, message: Any) -> Details:
    if header.api == Api.Produce:
        return _produced(message)
    if header.api == Api.AddPartitionsToTxn:
        if header.version > _LAST_OF_CLIENTS:
            return NO_DETAILS
        added = len(message.v3_and_below_topics or ())
        ids = (message.v3_and_below_transactional_id, message.v3_and_below_producer_id)
        return Details(*ids, message.v3_and_below_producer_epoch, text=f"{added} topics")
    details = Details(message.transactional_id, message.producer_id, message.producer_epoch)
    if header.api == Api.EndTxn:
        committed = bool(message.committed)
        return replace(details, committed=committed, text="commit" if committed else "abort")
    if header.api == Api.AddOffsetsToTxn:
        return replace(details, text=f"group {message.group_id}")
    if header.api == Api.TxnOffsetCommit:
        sent = (p for topic in message.topics or () for p in topic.partitions or ())
        first = next((f"partition {p.partition_index} -> offset {p.committed_offset}" for p in sent), "")
        return replace(details, text=first)
    return details


def _produced(message: Any) -> Details:
    """Return the transactional id, and the producer of the first record batch."""
    for topic in message.topic_data or ():
        for partition in topic.partition_data or ():
            records = bytes(partition.records or b"")
            if len(records) >= _BATCH_PRODUCER_AT + _BATCH_PRODUCER.size:
                producer_id, epoch, sequence, count = _BATCH_PRODUCER.unpack_from(records, _BATCH_PRODUCER_AT)
                many = f"{count} record{'s' if count != 1 else ''}"
                text = f"{many} to partition {partition.index}, sequence {sequence}"
                return Details(message.transactional_id, producer_id, epoch, text=text)
    return Details(message.transactional_id)


def reply_details(header: RequestHeader, reply: bytes) -> Details:
    """Return the first error of a transactional reply, and the producer assigned by InitProducerId."""
    if header.api not in TRANSACTIONAL or (header.api == Api.AddPartitionsToTxn and header.version > _LAST_OF_CLIENTS):
        return NO_DETAILS
    try:
        message = _decoded(header, reply)
    except Malformed:
        return NO_DETAILS
    if header.api == Api.InitProducerId:
        return Details(producer_id=message.producer_id, epoch=message.producer_epoch, error=message.error_code)
    return Details(error=next(filter(None, _errors(header.api, message)), 0))


def _errors(api: int, message: Any) -> list[int]:
    if api == Api.Produce:
        return [p.error_code for topic in message.responses or () for p in topic.partition_responses or ()]
    if api == Api.TxnOffsetCommit:
        return [p.error_code for topic in message.topics or () for p in topic.partitions or ()]
    if api == Api.AddPartitionsToTxn:
        topics = message.results_by_topic_v3_and_below or ()
        return [p.partition_error_code for topic in topics for p in topic.results_by_partition or ()]
    return [message.error_code]


def _brokers(header: RequestHeader, message: Any) -> list[Any]:
    """Return the parts of a reply with host and port, without unavailable coordinators (port -1)."""
    if header.api == Api.Produce:
        parts = message.node_endpoints
    elif header.api == Api.FindCoordinator:
        parts = message.coordinators if header.version > 3 else [message]  # noqa: PLR2004 - KIP-699 asks for several
    else:
        parts = message.brokers
    return [part for part in parts or () if part.port > 0]


def addresses(header: RequestHeader, reply: bytes) -> list[tuple[int, Address]]:
    """Return node and address of every broker in a reply, in order; raise `Malformed` if it matches no schema."""
    parts = _brokers(header, _decoded(header, reply))
    is_cluster = header.api == Api.DescribeCluster
    return [(part.broker_id if is_cluster else part.node_id, (part.host, part.port)) for part in parts]


def with_addresses(header: RequestHeader, reply: bytes, stands_for: Callable[[Address], Address]) -> bytes:
    """Return the reply with every address replaced; unchanged if it has none."""
    message = _decoded(header, reply)
    parts = _brokers(header, message)
    for part in parts:
        part.host, part.port = stands_for((part.host, part.port))
    return bytes(message.encode(header=True)) if parts else reply


def without_unsupported_versions(header: RequestHeader, reply: bytes) -> bytes:
    """Limit an ApiVersions reply to the versions whose addresses can be replaced."""
    message = _decoded(header, reply)
    offered = []
    for api in message.api_keys or ():
        api.max_version = min(api.max_version, NEWEST.get(api.api_key, api.max_version))
        if api.api_key not in HIDDEN and api.min_version <= api.max_version:
            offered.append(api)
    message.api_keys = offered
    return bytes(message.encode(header=True))


def brokers_request() -> tuple[RequestHeader, bytes]:
    """Return a Metadata request (version 4, no topics) with length prefix; brokers from 0.11 to 4.x support it."""
    message = message_class(Api.Metadata, request=True)(version=4, topics=[], allow_auto_topic_creation=False)
    message.with_header(correlation_id=1, client_id="brew-proxy")
    return RequestHeader(Api.Metadata, 4, 1, "brew-proxy"), bytes(message.encode(header=True, framed=True))
