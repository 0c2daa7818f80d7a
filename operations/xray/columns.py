"""Runs as columns to draw: one each, or bins of equal width where there are more runs than room; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from operations.xray.model import Kind, Run, Sources, Strip
from operations.xray.timeline import Timeline

ORDER = (Kind.PLAIN, Kind.COMMITTED, Kind.ABORTED, Kind.OPEN, Kind.COMMIT_MARKER, Kind.ABORT_MARKER)
_AGO = Timeline((0,), ())


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets of one kind in a column, from when they lie there and from when their fate is known (moments)."""

    kind: Kind
    offsets: int
    written: int
    ended: int


@dataclass(frozen=True, slots=True)
class Writers:
    """
    Who wrote what lies in a bin, and from where; runs that only begin or end in it count whole, markers not at all.

    ``producer_id`` is there where one producer wrote it all, ``epochs`` are its first and last; ``source`` is there
    where all came from one source partition: its first and last offset.
    """

    producers: int = 0
    producer_id: int | None = None
    epochs: tuple[int, int] | None = None
    partitions: int = 0
    source: Sources | None = None

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Writers:
        # A fence's marker carries the next epoch, which has written nothing yet.
        wrote = [run for run in runs if not run.kind.marker] or runs
        epochs = [(run.producer_id, run.epoch) for run in wrote if run.producer_id >= 0]
        ids = {producer for producer, _ in epochs}
        alone = len(ids) == 1
        ends = [(run.first, run.last) for run in runs if run.first is not None and run.last is not None]
        places = {(one.topic, one.partition) for pair in ends for one in pair}
        return cls(
            len(ids),
            next(iter(ids)) if alone else None,
            (min(epochs)[1], max(epochs)[1]) if alone else None,
            len(places),
            (min(first for first, _ in ends), max(last for _, last in ends)) if len(places) == 1 else None,
        )


@dataclass(frozen=True, slots=True)
class Column:
    """The offsets `[start, end)`, drawn as one; ``run`` is there where it is all of it, else ``writers`` tell whose."""

    start: int
    end: int
    pieces: tuple[Piece, ...]
    runs: int
    run: Run | None = None
    writers: Writers = Writers()

    @property
    def offsets(self) -> Counter[Kind]:
        found: Counter[Kind] = Counter()
        for piece in self.pieces:
            found[piece.kind] += piece.offsets
        return found


def columns(strip: Strip, most: int, line: Timeline = _AGO) -> list[Column]:
    """The strip in offset order, in at most ``most`` columns; offsets that hold nothing are left out of the pieces."""
    if len(strip.runs) <= most:
        return [_single_run(run, line) for run in strip.runs]
    return binned(strip, most, line)


def _single_run(run: Run, line: Timeline) -> Column:
    piece = Piece(run.kind, run.offsets, line.written(run), line.ended(run))
    return Column(run.start, run.end, (piece,), 1, run)


def binned(strip: Strip, most: int, line: Timeline = _AGO) -> list[Column]:
    """Bins of equal width over the whole strip; those that hold nothing are left out."""
    span = strip.until - strip.start
    width = max(1, -(-span // most))
    held: list[Counter[tuple[Kind, int, int]]] = [Counter() for _ in range(-(-span // width))]
    begun = [0] * len(held)
    inside: list[list[Run]] = [[] for _ in held]
    for run in strip.runs:
        key = (run.kind, line.written(run), line.ended(run))
        at = (run.start - strip.start) // width
        begun[at] += 1
        here = run.start
        while here < run.end:
            edge = min(run.end, strip.start + (at + 1) * width)
            held[at][key] += edge - here
            inside[at].append(run)
            here, at = edge, at + 1
    return [
        Column(
            strip.start + at * width,
            min(strip.until, strip.start + (at + 1) * width),
            tuple(Piece(kind, n, w, e) for (kind, w, e), n in sorted(some.items(), key=_place)),
            begun[at],
            writers=Writers.of(inside[at]),
        )
        for at, some in enumerate(held)
        if some
    ]


def _place(item: tuple[tuple[Kind, int, int], int]) -> tuple[int, int, int]:
    kind, written, ended = item[0]
    return ORDER.index(kind), written, ended
