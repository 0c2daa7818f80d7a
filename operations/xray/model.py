"""One partition as runs of offsets with one fate each, folded from raw batches; pure."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field

from brew.cluster import RawBatch
from brew.offsets import LogOffsets, SourcePosition

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


@dataclass(frozen=True, slots=True)
class BeforeWindow:
    """
    What a transaction wrote below the window, as far as it was read.

    ``whole``: nothing else of it lies below; ``first`` is the source of the first record that was read.
    """

    records: int = 0
    whole: bool = True
    first: SourcePosition | None = None


@dataclass(slots=True)
class Run:
    """
    Neighbouring offsets `[start, end)` of one writer and one fate: what a transaction wrote, or a marker.

    ``written_ms`` and ``ended_ms`` are the brokers' times (see `clock`), ``marker`` is where its transaction ended.
    ``earlier`` is of a transaction's first run in the window, or of its marker where the window holds nothing else.
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
    earlier: BeforeWindow = BeforeWindow()

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


@dataclass(slots=True)
class _Below:
    whole: bool
    records: int = 0
    sources: Callable[[], Sources | None] | None = None

    def told(self) -> BeforeWindow:
        found = self.sources() if self.sources is not None else None
        return BeforeWindow(self.records, self.whole, None if found is None else found[0])


class RunBuilder:
    """
    Takes a partition's raw batches in log order.

    A transaction's neighbouring batches are one run. Records outside of transactions are one run per ``grain``
    offsets, so that their growth over time stays visible. Batches below ``start`` only complete the transactions that
    reach into the window (`BeforeWindow`). ``origin``: the first batch given is the first that the log ever held.
    """

    def __init__(self, start: int, until: int, grain: int = 1, *, origin: bool = False) -> None:
        self._start, self._until, self._grain = start, until, grain
        self.runs: list[Run] = []
        self._open: dict[int, list[Run]] = {}
        self._ends: dict[int, Callable[[], Sources | None]] = {}
        self._origin = origin
        self._below: dict[int, _Below] = {}
        self._ended: set[int] = set()

    @property
    def undecided(self) -> bool:
        """Some transaction's marker has not been seen yet."""
        return bool(self._open)

    def add(self, batch: RawBatch, sources: Callable[[], Sources | None] = lambda: None) -> None:
        """``sources`` reads the batch's first and last source; it is called for the ends of transactional runs."""
        if batch.control:
            self._end(batch)
            return
        if batch.transactional and batch.producer_id not in self._open:
            self._note(batch, sources)
        if max(batch.base_offset, self._start) <= min(batch.last_offset, self._until - 1):
            self._records(batch, sources)

    def _note(self, batch: RawBatch, sources: Callable[[], Sources | None]) -> None:
        """Count what a transaction wrote below the window; a producer's sequence numbers begin at 0 in each epoch."""
        below = self._below.get(batch.producer_id)
        if below is None:
            whole = self._origin or batch.base_sequence == 0 or batch.producer_id in self._ended
            below = self._below[batch.producer_id] = _Below(whole)
        if batch.base_offset < self._start:
            inside = max(0, batch.last_offset + 1 - self._start)
            below.records += batch.records - min(batch.records, inside)
            below.sources = below.sources or sources

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
            if batch.producer_id not in self._open:
                run.earlier = self._below.pop(batch.producer_id).told()
            self._open.setdefault(batch.producer_id, []).append(run)
            found = sources()
            run.first, run.last = found or (None, None)

    def _end(self, batch: RawBatch) -> None:
        """A marker ends what its producer id has open, whatever the epoch: a fence's marker carries the next one."""
        if batch.marker is None:
            return
        records, marker = _ENDS[batch.marker]
        below = self._below.pop(batch.producer_id, None)
        known = self._origin or batch.producer_id in self._ended
        self._ended.add(batch.producer_id)
        ended = self._open.pop(batch.producer_id, [])
        for run in ended:
            run.kind, run.ended_ms, run.marker = records, batch.max_timestamp, batch.base_offset
            self._close(run)
        if self._start <= batch.base_offset < self._until:
            writer = (batch.producer_id, batch.producer_epoch)
            run = Run(batch.base_offset, batch.last_offset + 1, marker, *writer, 1, batch.max_timestamp)
            if not ended:
                run.earlier = BeforeWindow(whole=known) if below is None else below.told()
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
