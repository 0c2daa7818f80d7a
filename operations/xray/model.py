"""One partition as runs of offsets with one state each, folded from raw batches, and as columns to draw; pure."""

from __future__ import annotations

import enum
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from brew.cluster import RawBatch
from brew.offsets import LogOffsets, SinkBatch, SourcePosition

Sources = tuple[SourcePosition, SourcePosition]
"""Source positions of a run's first and last record."""
ReadSources = Callable[[], Sources | SinkBatch | None]


class Kind(enum.StrEnum):
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


ORDER = (Kind.PLAIN, Kind.COMMITTED, Kind.ABORTED, Kind.OPEN, Kind.COMMIT_MARKER, Kind.ABORT_MARKER)
_ENDS = {"commit": (Kind.COMMITTED, Kind.COMMIT_MARKER), "abort": (Kind.ABORTED, Kind.ABORT_MARKER)}


@dataclass(frozen=True, slots=True)
class BeforeWindow:
    """What a transaction wrote below the window, as far as it was read (``whole``: all), and its first source."""

    records: int = 0
    whole: bool = True
    first: SourcePosition | None = None


@dataclass(slots=True)
class Run:
    """
    Adjacent offsets `[start, end)` of one writer and one outcome: records of a transaction, or a marker.

    ``written_ms`` and ``ended_ms`` are the brokers' times (see `clock`), ``marker`` is where its transaction ended.
    ``earlier`` belongs to a transaction's first run in the window, or to its marker if the window holds nothing else.
    ``sink``: the sink and batch that wrote it.
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
    sink: SinkBatch | None = None

    @property
    def offsets(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Strip:
    """A partition's window `[start, until)` of its log, and its contents; ``group`` is the group's position."""

    topic: str
    partition: int
    log: LogOffsets
    start: int
    until: int
    runs: list[Run] = field(default_factory=list)
    group: int | None = None

    def counts(self) -> dict[Kind, int]:
        """Count the records of each kind; each marker counts as one."""
        found = dict.fromkeys(Kind, 0)
        for run in self.runs:
            found[run.kind] += run.records
        return found

    def gaps(self) -> int:
        """Count the offsets that hold nothing: compacted away, also inside a batch, or never written by a broker."""
        return self.until - self.start - sum(run.records for run in self.runs)


@dataclass(slots=True)
class _BelowWindow:
    whole: bool
    records: int = 0
    sources: ReadSources | None = None

    def result(self) -> BeforeWindow:
        read = self.sources() if self.sources is not None else None
        return BeforeWindow(self.records, self.whole, read[0] if isinstance(read, tuple) else None)


class RunBuilder:
    """
    Builds runs from a partition's raw batches, which are added in log order.

    A transaction's adjacent batches are one run. Records outside of transactions are one run per ``grain`` offsets, so
    that their growth over time stays visible. Batches below ``start`` only complete the transactions that reach into
    the window (`BeforeWindow`). ``origin``: the first batch given is the first that the log ever held.
    """

    def __init__(self, start: int, until: int, grain: int = 1, *, origin: bool = False) -> None:
        self._start, self._until, self._grain = start, until, grain
        self.runs: list[Run] = []
        self._open: dict[int, list[Run]] = {}
        self._ends: dict[int, ReadSources] = {}
        self._origin = origin
        self._below: dict[int, _BelowWindow] = {}
        self._ended: set[int] = set()

    @property
    def undecided(self) -> bool:
        """True if some transaction's marker has not been seen yet."""
        return bool(self._open)

    def add(self, batch: RawBatch, sources: ReadSources = lambda: None) -> None:
        """Add a batch; ``sources`` reads its first and last source, only for the ends of transactional runs."""
        if batch.control:
            self._end(batch)
            return
        if batch.transactional and batch.producer_id not in self._open:
            self._note(batch, sources)
        if max(batch.base_offset, self._start) <= min(batch.last_offset, self._until - 1):
            self._records(batch, sources)

    def _note(self, batch: RawBatch, sources: ReadSources) -> None:
        """Count what a transaction wrote below the window; a producer's sequence numbers begin at 0 in each epoch."""
        if (below := self._below.get(batch.producer_id)) is None:
            whole = self._origin or batch.base_sequence == 0 or batch.producer_id in self._ended
            below = self._below[batch.producer_id] = _BelowWindow(whole)
        if batch.base_offset < self._start:
            below.records += batch.records - min(batch.records, max(0, batch.last_offset + 1 - self._start))
            below.sources = below.sources or sources

    def _records(self, batch: RawBatch, sources: ReadSources) -> None:
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
                run.earlier = self._below.pop(batch.producer_id).result()
            self._open.setdefault(batch.producer_id, []).append(run)
            ends = sources()
            run.sink = ends if isinstance(ends, SinkBatch) else None
            run.first, run.last = ends if isinstance(ends, tuple) else (None, None)

    def _end(self, batch: RawBatch) -> None:
        """End what the marker's producer id has open, whatever the epoch: a fence's marker carries the next one."""
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
                run.earlier = BeforeWindow(whole=known) if below is None else below.result()
            self.runs.append(run)

    def _close(self, run: Run) -> None:
        """Read the last source if the run has more than one batch."""
        if (read := self._ends.pop(id(run), None)) is not None:
            sources = read()
            run.last = sources[1] if isinstance(sources, tuple) else None

    def finish(self) -> list[Run]:
        for open_runs in self._open.values():
            for run in open_runs:
                self._close(run)
        return self.runs


@dataclass(frozen=True, slots=True)
class Bounds:
    """Last stable offset, high watermark and the group's position at one moment."""

    stable: int
    end: int
    group: int | None


@dataclass(frozen=True, slots=True)
class Timeline:
    """The moments in ascending order; the last one is the brokers' own answer."""

    moments: tuple[int, ...]
    bounds: tuple[tuple[Bounds, ...], ...] = field(repr=False)

    def written(self, run: Run) -> int:
        return bisect_left(self.moments, run.written_ms)

    def ended(self, run: Run) -> int:
        """Return the first moment at which its outcome is known; one after the last if it is open."""
        if run.ended_ms is None:
            return len(self.moments) if run.kind is Kind.OPEN else self.written(run)
        return max(self.written(run), bisect_left(self.moments, run.ended_ms))


_NOW = Timeline((0,), ())


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets of one kind in a column, with the moments at which they were written and their outcome was known."""

    kind: Kind
    offsets: int
    written: int
    ended: int


@dataclass(frozen=True, slots=True)
class Writers:
    """Who wrote a bin's records; ids, epochs and source are set if one producer, or one source partition, did."""

    producers: int = 0
    producer_id: int | None = None
    epochs: tuple[int, int] | None = None
    partitions: int = 0
    source: Sources | None = None

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Writers:
        # A fence's marker carries the next epoch, in which nothing has been written yet.
        wrote = [run for run in runs if not run.kind.marker] or runs
        epochs = [(run.producer_id, run.epoch) for run in wrote if run.producer_id >= 0]
        ids = {producer for producer, _ in epochs}
        alone = len(ids) == 1
        ends = [(run.first, run.last) for run in runs if run.first is not None and run.last is not None]
        places = {(source.topic, source.partition) for pair in ends for source in pair}
        return cls(
            len(ids),
            next(iter(ids)) if alone else None,
            (min(epochs)[1], max(epochs)[1]) if alone else None,
            len(places),
            (min(first for first, _ in ends), max(last for _, last in ends)) if len(places) == 1 else None,
        )


@dataclass(frozen=True, slots=True)
class Column:
    """Offsets `[start, end)` drawn as one column; ``run`` is set if one run fills it, otherwise see ``writers``."""

    start: int
    end: int
    pieces: tuple[Piece, ...]
    runs: int
    run: Run | None = None
    writers: Writers = Writers()

    @property
    def offsets(self) -> Counter[Kind]:
        return sum((Counter({piece.kind: piece.offsets}) for piece in self.pieces), Counter())

    def stacked(self, least: float) -> Iterator[tuple[Piece, float, float]]:
        """Yield each piece with the height above it and its own, as shares of the column, at least ``least``."""
        width = self.end - self.start
        shares = [max(piece.offsets, least * width) for piece in self.pieces]
        total, above = max(sum(shares), width), 0.0
        for piece, share in zip(self.pieces, shares, strict=True):
            yield piece, above / total, share / total
            above += share


def columns(strip: Strip, most: int, line: Timeline = _NOW) -> list[Column]:
    """Return the strip in at most ``most`` columns, in offset order; their pieces omit offsets that hold nothing."""
    if len(strip.runs) > most:
        return binned(strip, most, line)
    pieces = [Piece(run.kind, run.offsets, line.written(run), line.ended(run)) for run in strip.runs]
    return [Column(run.start, run.end, (piece,), 1, run) for run, piece in zip(strip.runs, pieces, strict=True)]


def binned(strip: Strip, most: int, line: Timeline = _NOW) -> list[Column]:
    """Return the strip in bins of equal width; empty ones are omitted."""
    span = strip.until - strip.start
    width = max(1, -(-span // most))
    count = -(-span // width)
    offsets: list[Counter[tuple[Kind, int, int]]] = [Counter() for _ in range(count)]
    begun = [0] * count
    inside: list[list[Run]] = [[] for _ in range(count)]
    for run in strip.runs:
        key = (run.kind, line.written(run), line.ended(run))
        start, index = run.start, (run.start - strip.start) // width
        begun[index] += 1
        while start < run.end:
            edge = min(run.end, strip.start + (index + 1) * width)
            offsets[index][key] += edge - start
            inside[index].append(run)
            start, index = edge, index + 1
    found = []
    for index, counts in enumerate(offsets):
        if counts:
            pieces = [Piece(kind, n, written, ended) for (kind, written, ended), n in counts.items()]
            pieces.sort(key=lambda piece: (ORDER.index(piece.kind), piece.written, piece.ended))
            start, end = strip.start + index * width, min(strip.until, strip.start + (index + 1) * width)
            found.append(Column(start, end, tuple(pieces), begun[index], writers=Writers.of(inside[index])))
    return found
