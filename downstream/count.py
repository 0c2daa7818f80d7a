"""Count what a reader of the output sees, and what waits behind the last stable offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from downstream.duplicates import Distinct, DistinctCount, digest
from protocol.deadline import Deadline
from protocol.kafka import offsets, topics
from protocol.kafka.clients import READ_COMMITTED, READ_UNCOMMITTED, Connection, admin
from protocol.kafka.scan import LogRecord, scan
from protocol.position import LogOffsets, SourcePosition

_ASK_S = 30.0

Identity = Callable[[LogRecord], bytes | None]


@dataclass(frozen=True, slots=True)
class Count:
    """What one reader sees of a topic; ``waiting`` is partition -> records behind its last stable offset."""

    topic: str
    isolation: str
    distinct: Distinct
    examples: list[str]
    waiting: dict[int, int]

    @property
    def alarming(self) -> bool:
        """Duplicates are a fault where only committed records are visible."""
        return self.distinct.duplicates > 0 and self.isolation == READ_COMMITTED


def key_of(message: LogRecord) -> bytes | None:
    return message.key()


def source_of(message: LogRecord) -> bytes | None:
    """The place in the input that the record came from, as its headers tell."""
    found = SourcePosition.of(message.headers())
    return None if found is None else f"{found.topic}[{found.partition}]@{found.offset}".encode()


def count(
    connection: Connection,
    topic: str,
    isolation: str,
    identity: Identity,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> Count:
    """Read the topic from its first record to the end as it is now; ``advance`` hears of batches and the total."""
    deadline = Deadline(_ASK_S)
    client = admin(connection)
    partitions = range(topics.existing(client, topic, deadline).partitions)
    logs = offsets.log_offsets(client, topic, partitions, deadline)
    ranges = {p: (log.first, log.last_stable if isolation == READ_COMMITTED else log.end) for p, log in logs.items()}
    total = sum(until - first for first, until in ranges.values())

    def batches() -> Iterator[list[LogRecord]]:
        return scan(connection, topic, ranges, isolation)

    with DistinctCount() as counting:
        for batch in batches():
            counting.add([identity(message) for message in batch])
            advance(len(batch), total)
        distinct = counting.result()
    waiting = _waiting(connection, topic, logs) if isolation == READ_COMMITTED else {}
    return Count(topic, isolation, distinct, _names(distinct, batches, identity), waiting)


def _waiting(connection: Connection, topic: str, logs: dict[int, LogOffsets]) -> dict[int, int]:
    """Records that a `read_committed` reader can't see yet: markers are no records, so they have to be read."""
    behind = {p: (log.last_stable, log.end) for p, log in logs.items() if log.last_stable < log.end}
    found = dict.fromkeys(behind, 0)
    for batch in scan(connection, topic, behind, READ_UNCOMMITTED):
        for message in batch:
            found[message.partition()] += 1
    return {p: records for p, records in sorted(found.items()) if records}


def _names(distinct: Distinct, batches: Callable[[], Iterator[list[LogRecord]]], identity: Identity) -> list[str]:
    """The examples in words; those of which only digests are left are looked up with a second reading."""
    found = list(distinct.examples)
    missing = set(distinct.example_digests)
    if missing:
        for batch in batches():
            for one in filter(None, map(identity, batch)):
                if (mark := digest(one)) in missing:
                    missing.discard(mark)
                    found.append(one)
            if not missing:
                break
    return [one.decode("utf-8", "backslashreplace") for one in found]
