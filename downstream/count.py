"""Count what a reader of the output sees, and what waits behind the last stable offset."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import offsets, topics
from brew.kafka.clients import admin
from brew.kafka.log_reader import LogRecord, scan
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import LogOffsets, SourcePosition
from downstream.duplicates import Distinct, DistinctCount, Limits, digest

_ASK_S = 30.0

Identity = Callable[[LogRecord], bytes | None]
KEY, SOURCE = "key", "source"
"""What makes two records the same: their key, or the source position in their headers."""
_LIMITS = Limits(identities=500_000, identity_bytes=32 * 1024 * 1024)  # each of two


@dataclass(frozen=True, slots=True)
class Count:
    """
    What one reader sees of a topic, counted ``by`` key or source position.

    ``keys`` are those of all records, ``sources`` the positions of the records that have one, ``others`` the keys of
    those that don't. ``examples`` are identities that came again, by kind; ``waiting`` is partition -> records behind
    its last stable offset.
    """

    topic: str
    isolation: str
    by: str
    keys: Distinct
    sources: Distinct
    others: Distinct
    examples: dict[str, list[str]]
    waiting: dict[int, int]

    @property
    def records(self) -> int:
        return self.keys.records

    @property
    def unique(self) -> int:
        return self.keys.unique if self.by == KEY else self.sources.unique + self.others.unique

    @property
    def duplicates(self) -> int:
        return self.keys.duplicates if self.by == KEY else self.sources.duplicates + self.others.duplicates

    @property
    def unidentified(self) -> int:
        """Records that count neither as unique nor as duplicates."""
        return self.keys.unidentified if self.by == KEY else self.others.unidentified

    @property
    def fallen_back(self) -> int:
        """Records that are counted by key because their headers hold no readable source position."""
        return 0 if self.by == KEY else self.others.records

    @property
    def alarming(self) -> bool:
        """Duplicates are a fault where only committed records are visible."""
        return self.duplicates > 0 and self.isolation == READ_COMMITTED


def key_of(message: LogRecord) -> bytes | None:
    return message.key()


def source_of(message: LogRecord) -> bytes | None:
    """The place in the input that the record came from, as its headers tell."""
    found = SourcePosition.of(message.headers())
    return None if found is None else f"{found.topic}[{found.partition}]@{found.offset}".encode()


def other_of(message: LogRecord) -> bytes | None:
    """The key of a record without a source position."""
    return key_of(message) if source_of(message) is None else None


class Tally(ExitStack):
    """A fold over records: how many differ by key and how many by source position."""

    def __init__(self) -> None:
        super().__init__()
        self._keys, self._sources, self._others = (self.enter_context(DistinctCount(_LIMITS)) for _ in range(3))

    def add(self, batch: Sequence[LogRecord]) -> None:
        """Take in a batch."""
        keys = [key_of(message) for message in batch]
        sources = [source_of(message) for message in batch]
        self._keys.add(keys)
        self._sources.add([source for source in sources if source is not None])
        self._others.add([key for key, source in zip(keys, sources, strict=True) if source is None])

    def result(self) -> tuple[Distinct, Distinct, Distinct]:
        """All keys, all sources, and the keys of records without a source."""
        return self._keys.result(), self._sources.result(), self._others.result()


def count(
    connection: Connection,
    topic: str,
    isolation: str,
    by: str,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> Count:
    """Read the topic from its first record to the end as it is now; ``advance`` hears of batches and the total."""
    deadline = Deadline(_ASK_S)
    client = admin(connection)
    partitions = range(topics.describe_one(client, topic, deadline).partitions)
    logs = offsets.log_offsets(client, topic, partitions, deadline)
    ranges = {p: (log.first, log.last_stable if isolation == READ_COMMITTED else log.end) for p, log in logs.items()}
    total = sum(until - first for first, until in ranges.values())

    def batches() -> Iterator[list[LogRecord]]:
        return scan(connection, topic, ranges, isolation)

    with Tally() as tally:
        for batch in batches():
            tally.add(batch)
            advance(len(batch), total)
        keys, sources, others = tally.result()
    waiting = _waiting(connection, topic, logs) if isolation == READ_COMMITTED else {}
    wanted = {KEY: (keys, key_of)} if by == KEY else {SOURCE: (sources, source_of), KEY: (others, other_of)}
    examples = {kind: _names(distinct, batches, identity) for kind, (distinct, identity) in wanted.items()}
    return Count(topic, isolation, by, keys, sources, others, examples, waiting)


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
