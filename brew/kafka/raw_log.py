"""What raw batches tell: sources of first and last records, log ends, the first visible record, a group's commits."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from brew.cluster import OFFSETS_TOPIC, OffsetBatch, OffsetCommit, RawBatch
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.kafka.kafka_python import (
    AdminPartition,
    DefaultRecordBatch,
    RawLogs,
    ask,
    batches_with_bytes,
    kafka_python_admin,
)
from brew.offsets import SourcePosition

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol.consumer import FetchRequest

_EACH_BYTES = 1024 * 1024
_ALL_BYTES = 64 * 1024 * 1024


class BatchFetcher:
    """Made by `batch_fetcher`."""

    def __init__(self, admin: Any, deadline: Deadline) -> None:
        self._admin, self._deadline = admin, deadline

    def batches(
        self, topic: str, wanted: Mapping[int, tuple[int, int]]
    ) -> Iterator[tuple[int, list[tuple[RawBatch, memoryview]]]]:
        """
        Partition, and its batches that hold offsets of ``wanted`` (`[start, until)`), in log order, with their bytes.

        The first answer holds a megabyte of each partition; what is longer is read on by itself.

        Raises:
            DeadlineExceeded: there was no time for the rest of them.
        """
        starts = {partition: start for partition, (start, until) in wanted.items() if start < until}
        answers = self._fetched(topic, starts) if starts else {}
        for partition, (start, until) in wanted.items():
            found = [one for one in batches_with_bytes(answers.get(partition, b"")) if _inside(one[0], start, until)]
            here = found[-1][0].last_offset + 1 if found else start
            found += RawLogs(self._admin).batches(topic, partition, here, until, self._deadline)
            yield partition, found

    def _fetched(self, topic: str, starts: Mapping[int, int]) -> dict[int, bytes]:
        step = f"raw batches of {topic}"

        def once() -> dict[int, bytes]:
            found: dict[int, bytes] = ask(self._admin, self._deadline, step, _fetch, self._admin, topic, starts)
            return found

        return retry_until(once, step, self._deadline)


def _inside(batch: RawBatch, start: int, until: int) -> bool:
    return start <= batch.last_offset and batch.base_offset < until


async def _fetch(admin: Any, topic: str, starts: Mapping[int, int]) -> dict[int, bytes]:
    """A partition that its leader does not tell of is left out."""
    leaders = await admin._async_get_leader_for_partitions([AdminPartition(topic, p) for p in starts])  # noqa: SLF001
    found: dict[int, bytes] = {}
    for leader, partitions in leaders.items():
        asked = [
            FetchRequest.FetchTopic.FetchPartition(
                partition=one.partition, fetch_offset=starts[one.partition], partition_max_bytes=_EACH_BYTES
            )
            for one in sorted(partitions)
        ]
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=_ALL_BYTES,
            isolation_level=0,
            session_id=0,
            session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic=topic, partitions=asked)],
            forgotten_topics_data=[],
            min_version=4,
            max_version=12,  # from 13 on topics go by id
        )
        answer = await admin._manager.send(request, node_id=leader)  # noqa: SLF001
        for one in answer.responses[0].partitions if answer.responses else ():
            if not one.error_code:
                found[one.partition_index] = bytes(one.records or b"")
    return found


@contextmanager
def batch_fetcher(connection: Connection, deadline: Deadline) -> Iterator[BatchFetcher]:
    """A connection for these questions; ``deadline`` holds for all of them together."""
    with kafka_python_admin(connection, deadline) as admin:
        yield BatchFetcher(admin, deadline)


_HEADER = DefaultRecordBatch.HEADER_STRUCT
_CODEC_MASK = DefaultRecordBatch.CODEC_MASK
_MORE = 0x80
Sources = tuple[SourcePosition, SourcePosition]


def source_positions(content: memoryview) -> Sources | None:
    """
    Where the first and the last record of one batch came from, by their headers.

    None where a record names no source, or where the batch is compressed: that would mean to decompress all of it.
    """
    fields = _HEADER.unpack_from(content)
    if fields[5] & _CODEC_MASK or not fields[12]:
        return None
    first = last = _HEADER.size
    for _ in range(fields[12] - 1):
        length, at = _varint(content, last)
        last = at + length
    found = SourcePosition.of(_headers(content, first)), SourcePosition.of(_headers(content, last))
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _headers(content: memoryview, at: int) -> list[tuple[str, bytes | None]]:
    """Of the record at this place: length, attributes, time and offset deltas, key, value, then the headers."""
    _, at = _varint(content, at)
    at += 1
    for _ in range(2):
        _, at = _varint(content, at)
    for _ in range(2):
        _, at = _bytes(content, at)
    count, at = _varint(content, at)
    found = []
    for _ in range(count):
        name, at = _bytes(content, at)
        value, at = _bytes(content, at)
        found.append(((name or b"").decode("utf-8", "replace"), value))
    return found


def _bytes(content: memoryview, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(content, at)
    return (None, at) if length < 0 else (bytes(content[at : at + length]), at + length)


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A zigzag number, and the place behind it."""
    value = shift = 0
    while (byte := content[at]) & _MORE:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    value |= byte << shift
    return value >> 1 ^ -(value & 1), at + 1


_FIRST_BYTES, _MORE_BYTES = 1024, 1024 * 1024
_FETCHES = 8
Aborted = list[tuple[int, int]]
"""Producer id and first offset of each aborted transaction."""


@dataclass(frozen=True, slots=True)
class FirstVisible:
    """
    ``time_ms``: the record's timestamp, in ms since the epoch; None where it has none, or was not found in few fetches.

    ``nothing``: there is no such record below the last stable offset.
    """

    time_ms: int | None = None
    nothing: bool = False


def first_visible(
    raw: RawLogs, topic: str, partition: int, start: int, last_stable: int, deadline: Deadline
) -> FirstVisible:
    """
    The first record at or behind ``start``; markers and aborted records are none.

    One fetch of one batch tells, unless that is aborted; a long row of aborted batches is given up on.
    """
    here, most = start, _FIRST_BYTES
    for _ in range(_FETCHES):
        content, aborted = raw.visible(topic, partition, here, most, deadline)
        found, here = _first(batches_with_bytes(content), aborted, here)
        if found is not None:
            return FirstVisible(found if found >= 0 else None)
        if here >= last_stable or not content:
            return FirstVisible(nothing=True)
        most = _MORE_BYTES
    return FirstVisible()


def _first(batches: Iterable[tuple[RawBatch, memoryview]], aborted: Aborted, start: int) -> tuple[int | None, int]:
    """The timestamp of the first visible record, if there is one; and where to go on."""
    here, begun, hidden = start, sorted(aborted, key=lambda one: one[1]), set[int]()
    for batch, content in batches:
        while begun and begun[0][1] <= batch.last_offset:
            hidden.add(begun.pop(0)[0])
        if batch.control:
            # The marker ends the transaction: what the same producer writes behind it is another one.
            hidden.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in hidden):
            found = _time_ms(content, here)
            if found is not None:
                return found, here
        here = max(here, batch.last_offset + 1)
    return None, here


def _time_ms(content: memoryview, start: int) -> int | None:
    """Of the first record at or behind ``start``; None where there is none in this batch."""
    batch = DefaultRecordBatch(content)
    if batch.last_offset < start or not batch.records_count:
        return None
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        return int(batch.max_timestamp)
    if batch.compression_type:  # its first record's: to know better would be to decompress all of it
        return int(batch.first_timestamp)
    return next((int(one.timestamp) for one in batch if one.offset >= start), None)


_COMMIT_KEYS = 1


def offsets_partition(group: str, partitions: int) -> int:
    """Where a group's offsets lie: Java's hash of its name, modulo the partitions of the offset log."""
    units = group.encode("utf-16-be")
    value = 0
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFFFFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partitions


def offset_batches(
    raw: RawLogs, group: str, topic: str, partition: int, start: int, until: int
) -> Iterator[OffsetBatch]:
    """Batches of one partition of the offset log, with the group's commits for ``topic`` where they hold some."""
    mark = group.encode()
    for batch, content in raw.batches(OFFSETS_TOPIC, partition, start, until):
        ours = not batch.control and mark in bytes(content)
        yield OffsetBatch(batch, tuple(_commits(content, group, topic)) if ours else ())


def _commits(content: memoryview, group: str, topic: str) -> Iterator[OffsetCommit]:
    """Keys of version 0 and 1 hold group, topic, partition; values of all versions begin with version and offset."""
    for record in DefaultRecordBatch(content):
        key, value = record.key, record.value
        if key is None or int.from_bytes(key[:2], "big") > _COMMIT_KEYS:
            continue
        names, at = [], 2
        for _ in range(2):
            end = at + 2 + int.from_bytes(key[at : at + 2], "big")
            names.append(key[at + 2 : end].decode())
            at = end
        if names == [group, topic]:
            until = None if value is None else int.from_bytes(value[2:10], "big", signed=True)
            yield OffsetCommit(int.from_bytes(key[at : at + 4], "big"), until)
