"""Parse raw batches: source positions of records, the first visible record, and a group's commits."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from brew.cluster import OFFSETS_TOPIC, OffsetBatch, OffsetCommit, RawBatch
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import Refused
from brew.kafka.clients import AdminClient
from brew.kafka.cluster_admin import coordinator_partition
from brew.kafka.kafka_python import (
    AdminPartition,
    DefaultRecordBatch,
    RawLogs,
    ask,
    batches_with_bytes,
    kafka_python_admin,
)
from brew.kafka.log_reader import Headers, unreadable
from brew.kafka.offsets import log_offsets
from brew.offsets import SinkBatch, SourcePosition

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function on import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import UnsupportedCodecError
    from kafka.protocol.api_key import ApiKey
    from kafka.protocol.consumer import FetchRequest
    from kafka.record.util import decode_varint

Api = ApiKey
"""The numbers and names of all requests."""
_EACH_BYTES = 1024 * 1024
_ALL_BYTES = 64 * 1024 * 1024


class BatchFetcher:
    def __init__(self, admin: Any, deadline: Deadline) -> None:
        self._admin, self._deadline = admin, deadline

    def batches(
        self, topic: str, wanted: Mapping[int, tuple[int, int]]
    ) -> Iterator[tuple[int, list[tuple[RawBatch, memoryview]]]]:
        """
        Yield each partition with its batches that hold offsets of ``wanted`` (`[start, until)`), in log order. The
        first request fetches a megabyte of each partition; longer ranges are continued one by one. Raises
        `DeadlineExceeded`: not all of them were read in time.
        """
        starts = {partition: start for partition, (start, until) in wanted.items() if start < until}
        answers = self._fetch_all(topic, starts) if starts else {}
        for partition, (start, until) in wanted.items():
            overlapping = [
                batch for batch in batches_with_bytes(answers.get(partition, b"")) if _inside(batch[0], start, until)
            ]
            position = overlapping[-1][0].last_offset + 1 if overlapping else start
            overlapping += RawLogs(self._admin).batches(topic, partition, position, until, self._deadline)
            yield partition, overlapping

    def _fetch_all(self, topic: str, starts: Mapping[int, int]) -> dict[int, bytes]:
        step = f"raw batches of {topic}"

        def once() -> dict[int, bytes]:
            content: dict[int, bytes] = ask(self._admin, self._deadline, step, _fetch, self._admin, topic, starts)
            return content

        return retry_until(once, step, self._deadline)


def _inside(batch: RawBatch, start: int, until: int) -> bool:
    return start <= batch.last_offset and batch.base_offset < until


async def _fetch(admin: Any, topic: str, starts: Mapping[int, int]) -> dict[int, bytes]:
    """Fetch from each leader in one request; a partition that its leader does not answer for is left out."""
    leaders = await admin._async_get_leader_for_partitions([AdminPartition(topic, p) for p in starts])  # noqa: SLF001
    content: dict[int, bytes] = {}
    for leader, partitions in leaders.items():
        asked = [
            FetchRequest.FetchTopic.FetchPartition(
                partition=partition.partition, fetch_offset=starts[partition.partition], partition_max_bytes=_EACH_BYTES
            )
            for partition in sorted(partitions)
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
            max_version=12,  # since 13, topics are named by id
        )
        answer = await admin._manager.send(request, node_id=leader)  # noqa: SLF001
        for one in answer.responses[0].partitions if answer.responses else ():
            if not one.error_code:
                content[one.partition_index] = bytes(one.records or b"")
    return content


@contextmanager
def batch_fetcher(connection: Connection, deadline: Deadline) -> Iterator[BatchFetcher]:
    """Open a connection for several fetches; ``deadline`` limits all of them together."""
    with kafka_python_admin(connection, deadline) as admin:
        yield BatchFetcher(admin, deadline)


_HEADER = DefaultRecordBatch.HEADER_STRUCT
_CODEC_MASK = DefaultRecordBatch.CODEC_MASK
Sources = tuple[SourcePosition, SourcePosition]


def source_positions(content: memoryview) -> Sources | SinkBatch | None:
    """Return the first and last record's source positions, or their sink; None if one has neither, or if compressed."""
    fields = _HEADER.unpack_from(content)
    if fields[5] & _CODEC_MASK or not fields[12]:
        return None
    first = last = _HEADER.size
    headers = _headers(content, first)
    if (sink := SinkBatch.of(headers)) is not None:
        return sink
    for _ in range(fields[12] - 1):
        length, position = decode_varint(content, last)
        last = position + length
    overlapping = SourcePosition.of(headers), SourcePosition.of(_headers(content, last))
    return None if overlapping[0] is None or overlapping[1] is None else (overlapping[0], overlapping[1])


class RawHeaders:
    """Headers of single records, also those that librdkafka's client can't read; keeps those of one batch."""

    def __init__(self, raw: RawLogs) -> None:
        self._raw, self._place, self._kept = raw, ("", -1), dict[int, Headers]()

    def __call__(self, topic: str, partition: int, offset: int) -> Headers:
        """Return a record's headers as Java reads them: U+FFFD stands for what is not UTF-8 in a name."""
        if self._place != (topic, partition) or offset not in self._kept:
            self._place, self._kept = (topic, partition), {}
            for batch, content in self._raw.batches(topic, partition, offset, offset + 1):
                self._kept = dict(_all_headers(batch, content))
        return self._kept[offset] if offset in self._kept else unreadable(topic, partition, offset)


def _all_headers(batch: RawBatch, content: memoryview) -> Iterator[tuple[int, Headers]]:
    records = DefaultRecordBatch(content)
    try:
        records._maybe_uncompress()  # noqa: SLF001 - its iteration raises at such a name
    except UnsupportedCodecError:
        return
    text, position = memoryview(records._buffer), records._pos  # noqa: SLF001
    for _ in range(records.records_count):
        length, after = decode_varint(text, position)
        _, delta = decode_varint(text, after + 1)
        yield batch.base_offset + decode_varint(text, delta)[0], _headers(text, position)
        position = after + length


def _headers(content: memoryview, position: int) -> list[tuple[str, bytes | None]]:
    """Parse a record's headers; before them are length, attributes, two deltas, key and value."""
    _, position = decode_varint(content, position)
    position += 1
    for _ in range(2):
        _, position = decode_varint(content, position)
    for _ in range(2):
        _, position = _bytes(content, position)
    count, position = decode_varint(content, position)
    headers = []
    for _ in range(count):
        name, position = _bytes(content, position)
        value, position = _bytes(content, position)
        headers.append(((name or b"").decode("utf-8", "replace"), value))
    return headers


def _bytes(content: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = decode_varint(content, position)
    return (None, position) if length < 0 else (bytes(content[position : position + length]), position + length)


_FIRST_BYTES, _MORE_BYTES = 1024, 1024 * 1024
_FETCHES = 8
Aborted = list[tuple[int, int]]
"""Producer id and first offset of each aborted transaction."""


@dataclass(frozen=True, slots=True)
class FirstVisible:
    """The first visible record's ``time_ms``, if found in time; ``nothing``: none below the last stable offset."""

    time_ms: int | None = None
    nothing: bool = False


def first_visible(
    raw: RawLogs, topic: str, partition: int, start: int, last_stable: int, deadline: Deadline
) -> FirstVisible:
    """Find the first record from ``start`` on that is no marker and not aborted, within a few fetches."""
    position, max_bytes = start, _FIRST_BYTES
    for _ in range(_FETCHES):
        content, aborted = raw.visible(topic, partition, position, max_bytes, deadline)
        time_ms, position = _first(batches_with_bytes(content), aborted, position)
        if time_ms is not None:
            return FirstVisible(time_ms if time_ms >= 0 else None)
        if position >= last_stable or not content:
            return FirstVisible(nothing=True)
        max_bytes = _MORE_BYTES
    return FirstVisible()


def _first(batches: Iterable[tuple[RawBatch, memoryview]], aborted: Aborted, start: int) -> tuple[int | None, int]:
    """Return the timestamp of the first visible record, or None, and the position to continue from."""
    position, pending, hidden = start, sorted(aborted, key=lambda entry: entry[1]), set[int]()
    for batch, content in batches:
        while pending and pending[0][1] <= batch.last_offset:
            hidden.add(pending.pop(0)[0])
        if batch.control:
            # The marker ends the transaction: later records of the same producer belong to another one.
            hidden.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in hidden):
            time_ms = _time_ms(content, position)
            if time_ms is not None:
                return time_ms, position
        position = max(position, batch.last_offset + 1)
    return None, position


def _time_ms(content: memoryview, start: int) -> int | None:
    """Return the timestamp of the first record at or after ``start``, or None if this batch has none."""
    batch = DefaultRecordBatch(content)
    if batch.last_offset < start or not batch.records_count:
        return None
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        return int(batch.max_timestamp)
    if batch.compression_type:  # the first record's: the exact one would require decompressing the batch
        return int(batch.first_timestamp)
    position = _HEADER.size
    for _ in range(batch.records_count):  # the library's own iteration raises at a header's name that is not UTF-8
        length, after = decode_varint(content, position)
        time_delta, after_time = decode_varint(content, after + 1)
        if batch.base_offset + decode_varint(content, after_time)[0] >= start:
            return int(batch.first_timestamp + time_delta)
        position = after + length
    return None


_ATTRIBUTES_LOW = 22
_COMMIT_KEYS = 1
_MOST_OFFSET_LOG = 200_000


def newest_offset_batches(
    client: AdminClient, raw: RawLogs, group: str, topic: str, partitions: int, deadline: Deadline
) -> Iterator[OffsetBatch]:
    """The last batches of the group's partition of `__consumer_offsets`, which has so many ``partitions``."""
    partition = coordinator_partition(group, partitions)
    log = log_offsets(client, OFFSETS_TOPIC, [partition], deadline)[partition]
    start = max(log.first, log.end - _MOST_OFFSET_LOG)
    return offset_batches(raw, group, topic, partition, start, log.end)


def offset_batches(
    raw: RawLogs, group: str, topic: str, partition: int, start: int, until: int
) -> Iterator[OffsetBatch]:
    """Yield batches of `__consumer_offsets` with the group's commits for ``topic``; `Refused` without the codec."""
    name = group.encode()
    for batch, content in raw.batches(OFFSETS_TOPIC, partition, start, until):
        compressed = content[_ATTRIBUTES_LOW] & DefaultRecordBatch.CODEC_MASK
        may_hold = not batch.control and (compressed or name in bytes(content))
        try:
            commits = tuple(_commits(content, group, topic)) if may_hold else ()
        except UnsupportedCodecError as error:
            raise Refused(
                f"{OFFSETS_TOPIC} is compressed (offsets.topic.compression.codec of the brokers), and can't be read "
                f"here: {error}; install a package for it: lz4, python-snappy or zstandard"
            ) from error
        yield OffsetBatch(batch, commits)


def _commits(content: memoryview, group: str, topic: str) -> Iterator[OffsetCommit]:
    """Parse commits: keys of version 0 and 1 hold group, topic, partition; values begin with version and offset."""
    for record in DefaultRecordBatch(content):
        key, value = record.key, record.value
        if key is None or int.from_bytes(key[:2], "big") > _COMMIT_KEYS:
            continue
        names, position = [], 2
        for _ in range(2):
            end = position + 2 + int.from_bytes(key[position : position + 2], "big")
            names.append(key[position + 2 : end].decode())
            position = end
        if names == [group, topic]:
            until = None if value is None else int.from_bytes(value[2:10], "big", signed=True)
            yield OffsetCommit(int.from_bytes(key[position : position + 4], "big"), until)
