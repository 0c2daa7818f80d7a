"""One partition as runs of offsets with one fate each, folded from raw batches; pure."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.batches import RawBatch
from protocol.position import LogOffsets, SourcePosition

Sources = tuple[SourcePosition, SourcePosition]
"""Of a run's first and last record."""


class Kind(enum.StrEnum):
    """What lies at an offset."""

    COMMITTED = "committed"
    PLAIN = "plain"
    ABORTED = "aborted"
    OPEN = "open"
    COMMIT_MARKER = "commit-marker"
    ABORT_MARKER = "abort-marker"

    @property
    def marker(self) -> bool:
        return self.value.endswith("-marker")

    @property
    def words(self) -> str:
        return self.value.replace("-", " ")


_ENDS = {"commit": (Kind.COMMITTED, Kind.COMMIT_MARKER), "abort": (Kind.ABORTED, Kind.ABORT_MARKER)}


@dataclass(slots=True)
class Run:
    """
    Neighbouring offsets `[start, end)` of one writer and one fate: what a transaction wrote, or a marker.

    ``written_ms`` and ``ended_ms`` are the brokers' times (see `clock`), ``marker`` is where its transaction ended.
    """

    start: int
    end: int
    kind: Kind
    producer_id: int
    epoch: int
    records: int
    written_ms: int
    ended_ms: int | None = None
    marker: int | None = None
    first: SourcePosition | None = None
    last: SourcePosition | None = None

    @property
    def offsets(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Strip:
    """A partition's window `[start, until)` of its log, and what lies there; ``group`` is the group's position."""

    topic: str
    partition: int
    log: LogOffsets
    start: int
    until: int
    runs: list[Run] = field(default_factory=list)
    group: int | None = None

    def counts(self) -> dict[Kind, int]:
        """Records of each kind; markers count as one each."""
        found = dict.fromkeys(Kind, 0)
        for run in self.runs:
            found[run.kind] += run.records
        return found

    def gaps(self) -> int:
        """Offsets without anything: compaction took them, or a broker never wrote them."""
        return self.until - self.start - sum(run.offsets for run in self.runs)


class Fold:
    """
    Takes a partition's raw batches in log order.

    A transaction's neighbouring batches are one run. Records outside of transactions are one run per ``grain``
    offsets, so that their growth over time stays visible.
    """

    def __init__(self, start: int, until: int, grain: int = 1) -> None:
        self._start, self._until, self._grain = start, until, grain
        self.runs: list[Run] = []
        self._open: dict[int, list[Run]] = {}
        self._ends: dict[int, Callable[[], Sources | None]] = {}

    @property
    def undecided(self) -> bool:
        """Some transaction's marker has not been seen yet."""
        return bool(self._open)

    def add(self, batch: RawBatch, sources: Callable[[], Sources | None] = lambda: None) -> None:
        """``sources`` reads the batch's first and last source; it is called for the ends of transactional runs."""
        if batch.control:
            self._end(batch)
        elif max(batch.base_offset, self._start) <= min(batch.last_offset, self._until - 1):
            self._records(batch, sources)

    def _records(self, batch: RawBatch, sources: Callable[[], Sources | None]) -> None:
        writer = (batch.producer_id, batch.producer_epoch)
        kind = Kind.OPEN if batch.transactional else Kind.PLAIN
        last = self.runs[-1] if self.runs else None
        if (
            last is not None
            and last.kind is kind
            and last.end == batch.base_offset
            and (last.producer_id, last.epoch) == writer
            and (batch.transactional or last.offsets < self._grain)
        ):
            last.end = min(self._until, batch.last_offset + 1)
            last.records += min(batch.records, last.end - batch.base_offset)
            if batch.transactional:
                self._ends[id(last)] = sources
            return
        start, end = max(self._start, batch.base_offset), min(self._until, batch.last_offset + 1)
        run = Run(start, end, kind, *writer, min(batch.records, end - start), batch.max_timestamp)
        self.runs.append(run)
        if batch.transactional:
            self._open.setdefault(batch.producer_id, []).append(run)
            found = sources()
            run.first, run.last = found or (None, None)

    def _end(self, batch: RawBatch) -> None:
        """A marker ends what its producer id has open, whatever the epoch: a fence's marker carries the next one."""
        if batch.marker is None:
            return
        records, marker = _ENDS[batch.marker]
        for run in self._open.pop(batch.producer_id, ()):
            run.kind, run.ended_ms, run.marker = records, batch.max_timestamp, batch.base_offset
            self._close(run)
        if self._start <= batch.base_offset < self._until:
            writer = (batch.producer_id, batch.producer_epoch)
            run = Run(batch.base_offset, batch.last_offset + 1, marker, *writer, 1, batch.max_timestamp)
            self.runs.append(run)

    def _close(self, run: Run) -> None:
        """Read the last source where the run had more batches than one."""
        if (read := self._ends.pop(id(run), None)) is not None:
            found = read()
            run.last = None if found is None else found[1]

    def finish(self) -> list[Run]:
        """The runs in offset order, those of transactions without an end included."""
        for some in self._open.values():
            for run in some:
                self._close(run)
        return self.runs
