"""Read a topic's log from one end to the other, in batches, for either isolation level."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Protocol, TypeVar, cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, KafkaException, TopicPartition

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded
from protocol.kafka.clients import Connection, consumer, mapped
from protocol.rights import SCAN_GROUP

_BATCH = 10_000
_IDLE_S = 60.0
_GROUP = SCAN_GROUP
# consume() waits for a full batch or this long: the time that a scan idles at its end.
_PATIENCE_S = 0.01
# A log that ends in a marker ends with the answer to a fetch that finds nothing more, which brokers hold back for so
# long; at their 500 ms a scan of 40 records behind a commit took 556 ms, now 22 ms (600,000 records: the same).
_LINGER_MS = 10
# What librdkafka reports while it connects again by itself.
TRANSIENT = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}  # noqa: SLF001 - public names


_T = TypeVar("_T")
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]
"""Partition, offset, key, value, headers, and the producer's timestamp in ms; None where the broker set it."""


class LogRecord(Protocol):
    """A record as the client library hands it out, with the types that it has when read from a log."""

    def error(self) -> KafkaError | None: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


def scan(
    connection: Connection,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    isolation: str,
    *,
    idle_s: float = _IDLE_S,
    group: str = _GROUP,
) -> Generator[list[LogRecord], None, None]:
    """
    Yield the records of ``ranges`` (partition -> [start, until)) in offset order per partition.

    The end is the end-of-partition event or an offset at or past ``until``, never a count: markers leave gaps.
    Nothing is committed under ``group``; brokers with ACLs want to know it (Describe).
    For `read_committed`, ``until`` is at most the last stable offset when the scan began, or the scan would wait.

    Raises:
        DeadlineExceeded: nothing arrived for ``idle_s`` seconds.
    """
    yield from _scan(connection, topic, ranges, isolation, idle_s, group, _wanted)


def scan_rows(
    connection: Connection, topic: str, ranges: Mapping[int, tuple[int, int]], isolation: str
) -> Generator[list[Row], None, None]:
    """As `scan`, with plain tuples instead of the library's messages: half the price where millions are read."""
    yield from _scan(connection, topic, ranges, isolation, _IDLE_S, _GROUP, _wanted_rows)


def _scan(
    connection: Connection,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    isolation: str,
    idle_s: float,
    group: str,
    wanted: Callable[[list[LogRecord], dict[int, int]], list[_T]],
) -> Generator[list[_T], None, None]:
    left = {p: until for p, (start, until) in ranges.items() if start < until}
    if not left:
        return
    reader = consumer(
        connection, group, isolation, **{"queued.max.messages.kbytes": 65_536, "fetch.wait.max.ms": _LINGER_MS}
    )
    try:
        reader.assign([TopicPartition(topic, p, ranges[p][0]) for p in left])
        assigned = set(left)
        patience = Deadline(idle_s)
        while left:
            before = len(left)
            with mapped(f"scan of {topic}" if group == SCAN_GROUP else f"read of {topic} as {group}"):
                got = cast("list[LogRecord]", reader.consume(_BATCH, timeout=min(_PATIENCE_S, patience.remaining_s())))
                batch = wanted(got, left)
            if batch:
                yield batch
            if batch or len(left) < before:
                # The caller's own time does not count, nor do errors or records past the ranges.
                patience = Deadline(idle_s)
            elif patience.expired():
                raise DeadlineExceeded(f"scan of {topic}: no record for {idle_s:g} s, partitions {sorted(left)} left")
            if len(left) < before:
                # A partition that is through is fetched no more, whatever is written to it.
                reader.incremental_unassign(
                    [TopicPartition(topic, p) for p in ranges if p not in left and p in assigned]
                )
                assigned &= left.keys()
    finally:
        reader.close()


def _wanted(got: list[LogRecord], left: dict[int, int]) -> list[LogRecord]:
    """The messages below their partition's end; partitions that are at their end leave ``left``."""
    batch = []
    for message in got:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is None:
            if partition in left and offset < left[partition]:
                batch.append(message)
            if partition in left and offset + 1 >= left[partition]:
                del left[partition]
        elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's public name
            if partition in left and offset >= left[partition]:
                del left[partition]
        elif not error.retriable() and error.code() not in TRANSIENT:
            raise KafkaException(error)
    return batch


def _wanted_rows(got: list[LogRecord], left: dict[int, int]) -> list[Row]:
    """As `_wanted`; a batch that ends no partition is not looked at record by record."""
    rows = [
        (
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            message.headers() or [],
            stamp[1] if (stamp := message.timestamp())[0] == TIMESTAMP_CREATE_TIME else None,
        )
        for message in got
        if message.error() is None
    ]
    limits = dict(left)
    if len(rows) < len(got):
        _wanted([message for message in got if message.error() is not None], left)
    last = {row[0]: row[1] for row in rows}
    if all(partition in limits and offset < limits[partition] for partition, offset in last.items()):
        wanted = rows
    else:
        wanted = [row for row in rows if row[0] in limits and row[1] < limits[row[0]]]
    for partition, offset in last.items():
        if partition in left and offset + 1 >= left[partition]:
            del left[partition]
    return wanted
