"""Count the records that a reader sees, and those past the LSO; identities exactly, on disk beyond a limit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import offsets, topics
from brew.kafka.clients import admin
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.topic_reader import readable_headers
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import LogOffsets, SourcePosition

_DIGEST_BYTES = 16
_BUCKETS = 256
_BUFFER_BYTES = 16 * 1024
_EXAMPLES = 10


@dataclass(frozen=True, slots=True)
class Distinct:
    """Numbers of records, distinct and repeated identities; beyond the memory limit ``examples`` are digests."""

    records: int
    unique: int
    unidentified: int
    examples: tuple[bytes, ...] = ()
    example_digests: frozenset[bytes] = field(default=frozenset())

    @property
    def duplicates(self) -> int:
        return self.records - self.unidentified - self.unique


def digest(identity: bytes) -> bytes:
    """Return a 128-bit digest of an identity; among 100 million, a collision has a chance of 1 in 10^22."""
    return blake2b(identity, digest_size=_DIGEST_BYTES).digest()


class DistinctCount(ExitStack):
    """
    Counts distinct identities, added in any order; records without an identity are counted separately. Beyond the
    limits it spills to disk; half a million identities in memory take about 55 MB. With 100 million, the files take
    1.6 GB, and one bucket holds 400,000 entries in memory.
    """

    def __init__(self, identities: int = 500_000, identity_bytes: int = 32 * 1024 * 1024) -> None:
        super().__init__()
        self._most, self._most_bytes = identities, identity_bytes
        self._records = self._unidentified = self._bytes = 0
        self._seen: set[bytes] = set()
        self._again: dict[bytes, None] = {}
        self._spill: _Spill | None = None

    def add(self, identities: Sequence[bytes | None]) -> None:
        known = [identity for identity in identities if identity is not None]
        self._records += len(identities)
        self._unidentified += len(identities) - len(known)
        if self._spill is not None:
            self._spill.write(map(digest, known))
            return
        for identity in known:
            if identity not in self._seen:
                self._seen.add(identity)
                self._bytes += len(identity)
            elif len(self._again) < _EXAMPLES:
                self._again[identity] = None
        if len(self._seen) > self._most or self._bytes > self._most_bytes:
            self._spill = self.enter_context(_Spill())
            self._spill.write(map(digest, self._seen))
            self._seen = set()

    def result(self) -> Distinct:
        examples = tuple(self._again)
        if self._spill is None:
            return Distinct(self._records, len(self._seen), self._unidentified, examples)
        unique, again = self._spill.count(_EXAMPLES - len(examples))
        return Distinct(self._records, unique, self._unidentified, examples, frozenset(again))


class _Spill(ExitStack):
    """Digests in bucket files: equal digests share a bucket, and one bucket at a time fits into memory."""

    def __init__(self) -> None:
        super().__init__()
        home = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="brew-distinct-")))
        files = ((home / f"{n:03d}").open("w+b", buffering=_BUFFER_BYTES) for n in range(_BUCKETS))
        self._files = [self.enter_context(file) for file in files]

    def write(self, digests: Iterable[bytes]) -> None:
        files = self._files
        for digest in digests:
            files[digest[0]].write(digest)

    def count(self, most_examples: int) -> tuple[int, list[bytes]]:
        """Return the number of distinct digests and the first few repeated ones."""
        unique = 0
        again: list[bytes] = []
        for file in self._files:
            file.seek(0)
            seen: set[bytes] = set()
            while mark := file.read(_DIGEST_BYTES):
                if mark in seen and len(again) < most_examples and mark not in again:
                    again.append(mark)
                seen.add(mark)
            unique += len(seen)
        return unique, again


_ASK_S = 30.0

Identity = Callable[[LogRecord], bytes | None]
KEY, SOURCE = "key", "source"
"""What makes two records equal: their key, or the source position in their headers."""


@dataclass(frozen=True, slots=True)
class Count:
    """
    Records of a topic that one reader sees, counted ``by`` key or source position.

    ``keys`` are the keys of all records, ``sources`` the source positions of records that have one, ``others`` the keys
    of the rest. ``examples`` are repeated identities, by kind; ``waiting`` maps each partition to the number of records
    past its last stable offset.
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
        """Number of records that count neither as unique nor as duplicates."""
        return self.keys.unidentified if self.by == KEY else self.others.unidentified

    @property
    def fallen_back(self) -> int:
        """Number of records counted by key because their headers have no readable source position."""
        return 0 if self.by == KEY else self.others.records

    @property
    def alarming(self) -> bool:
        """Whether there are duplicates although only committed records are visible, which is a fault."""
        return self.duplicates > 0 and self.isolation == READ_COMMITTED


def key_of(message: LogRecord) -> bytes | None:
    return message.key()


def source_of(message: LogRecord) -> bytes | None:
    source = SourcePosition.of(readable_headers(message))
    if source is None:
        return None
    which = f"#{source.index}" if source.index else ""
    return f"{source.topic}[{source.partition}]@{source.offset}{which}".encode()


def other_of(message: LogRecord) -> bytes | None:
    return key_of(message) if source_of(message) is None else None


def tally(batches: Iterable[Sequence[LogRecord]]) -> tuple[Distinct, Distinct, Distinct]:
    """Count all keys, all source positions, and the keys of records without a source position."""
    with ExitStack() as ending:
        keys, sources, others = (ending.enter_context(DistinctCount()) for _ in range(3))
        for batch in batches:
            positions = [source_of(message) for message in batch]
            keys.add([key_of(message) for message in batch])
            sources.add([position for position in positions if position is not None])
            others.add([key_of(message) for message, at in zip(batch, positions, strict=True) if at is None])
        return keys.result(), sources.result(), others.result()


def count(
    connection: Connection,
    topic: str,
    isolation: str,
    by: str,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
) -> Count:
    """Read the topic up to its current end; call ``advance`` with the size of each batch and the total."""
    deadline = Deadline(_ASK_S)
    client = admin(connection)
    partitions = range(topics.describe_one(client, topic, deadline).partitions)
    logs = offsets.log_offsets(client, topic, partitions, deadline)
    ranges = {p: (log.first, log.last_stable if isolation == READ_COMMITTED else log.end) for p, log in logs.items()}
    total = sum(until - first for first, until in ranges.values())

    def batches() -> Iterator[list[LogRecord]]:
        return scan(connection, topic, ranges, isolation)

    def counted() -> Iterator[list[LogRecord]]:
        for batch in batches():
            yield batch
            advance(len(batch), total)

    keys, sources, others = tally(counted())
    waiting = _waiting(connection, topic, logs) if isolation == READ_COMMITTED else {}
    wanted = {KEY: (keys, key_of)} if by == KEY else {SOURCE: (sources, source_of), KEY: (others, other_of)}
    examples = {kind: _names(distinct, batches, identity) for kind, (distinct, identity) in wanted.items()}
    return Count(topic, isolation, by, keys, sources, others, examples, waiting)


def _waiting(connection: Connection, topic: str, logs: dict[int, LogOffsets]) -> dict[int, int]:
    """Count records that a `read_committed` reader cannot see yet, by reading them: markers are not records."""
    behind = {p: (log.last_stable, log.end) for p, log in logs.items() if log.last_stable < log.end}
    waiting = dict.fromkeys(behind, 0)
    for batch in scan(connection, topic, behind, READ_UNCOMMITTED):
        for message in batch:
            waiting[message.partition()] += 1
    return {p: records for p, records in sorted(waiting.items()) if records}


def _names(distinct: Distinct, batches: Callable[[], Iterator[list[LogRecord]]], identity: Identity) -> list[str]:
    """Return the examples as text; read the topic again for those of which only digests are left."""
    identities = list(distinct.examples)
    missing = set(distinct.example_digests)
    if missing:
        for batch in batches():
            for known in filter(None, map(identity, batch)):
                if (mark := digest(known)) in missing:
                    missing.discard(mark)
                    identities.append(known)
            if not missing:
                break
    return [example.decode("utf-8", "backslashreplace") for example in identities]
