"""Read a topic's log from one end to the other, in batches, for either isolation level."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Protocol, cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded
from protocol.kafka.clients import Connection, consumer, mapped

_BATCH = 10_000
# consume() waits for a full batch or this long: the time that a scan idles at its end.
_PATIENCE_S = 0.05
# What librdkafka reports while it connects again by itself.
_TRANSIENT = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}  # noqa: SLF001 - public names


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
    idle_s: float = 60.0,
    group: str = "brew-scan",
) -> Generator[list[LogRecord], None, None]:
    """
    Yield the records of ``ranges`` (partition -> [start, until)) in offset order per partition.

    The end is the end-of-partition event or an offset at or past ``until``, never a count: markers leave gaps.
    Nothing is committed under ``group``; brokers with ACLs want to know it (Describe).
    For `read_committed`, ``until`` is at most the last stable offset when the scan began, or the scan would wait.

    Raises:
        DeadlineExceeded: nothing arrived for ``idle_s`` seconds.
    """
    left = {p: until for p, (start, until) in ranges.items() if start < until}
    if not left:
        return
    reader = consumer(connection, group, isolation, **{"queued.max.messages.kbytes": 65_536})
    try:
        reader.assign([TopicPartition(topic, p, ranges[p][0]) for p in left])
        assigned = set(left)
        patience = Deadline(idle_s)
        while left:
            before = len(left)
            with mapped(f"scan of {topic}"):
                got = cast("list[LogRecord]", reader.consume(_BATCH, timeout=min(_PATIENCE_S, patience.remaining_s())))
                batch = _wanted(got, left)
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
        elif not error.retriable() and error.code() not in _TRANSIENT:
            raise KafkaException(error)
    return batch
