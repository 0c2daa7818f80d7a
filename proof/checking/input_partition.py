"""
The checker's state of one input partition, and the layout of what readers can see; pure.

While outputs arrive in source order, memory holds the records between the two read positions, plus 16 bytes per range
of offsets without visible records (markers, aborted transactions), and a bit per output whose input retention has
removed. An input that is skipped is kept on its own.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import NamedTuple

from brew.cluster import RawBatch
from brew.journal import Run
from brew.offsets import LogOffsets, SourcePosition
from proof.checking.transactions import ABORT, COMMIT, Attempt, Key, RawLog, lacks_records
from proof.oracle import Profiles

Headers = list[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, Headers, int | None]


class Record(NamedTuple):
    """A record as read; ``created``: timestamp in ms, None if the broker set it. A plain tuple, cheaper, also fits."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    created: int | None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """
    What the brokers report before the records are read.

    ``doubts``: why downstream records may be missing without being lost. ``downstream``: known offsets of output and
    dead-letter partitions. ``settled``: nothing is running, and every transaction has had time to end. ``strict``: a
    producer epoch is used for one transaction only. ``journals``: keep layouts to compare with readers' journals, a few
    bytes per run of visible records. ``healed_ms``: when faults ended, by the brokers' clocks. ``profiles``: the source
    of tiers, instead of the records' keys. ``also_output``: further output topics. ``compacted``: called once an input
    is missing, returns whether newer ones may have replaced older ones.
    """

    input: str
    output: str
    dead_letter: str
    logs: dict[int, LogOffsets]
    committed: dict[int, int | None]
    output_partitions: int
    doubts: tuple[str, ...] = ()
    downstream: dict[str, dict[int, LogOffsets]] = field(default_factory=dict)
    settled: bool = False
    strict: bool = True
    journals: bool = False
    healed_ms: tuple[int, ...] = ()
    profiles: Profiles | None = None
    also_output: tuple[str, ...] = ()
    compacted: Callable[[], bool] = lambda: False

    @property
    def outputs(self) -> tuple[str, ...]:
        """All topics that may contain transformed records."""
        return (self.output, *self.also_output)

    def position(self, partition: int) -> int:
        """Return the committed offset, or -1 if there is none."""
        committed = self.committed.get(partition)
        return -1 if committed is None else committed


def at(source: SourcePosition) -> str:
    return f"{source.topic}[{source.partition}] offset {source.offset}"


class OffsetRanges:
    """A set of offsets, added in ascending order; each contiguous range takes 16 bytes."""

    def __init__(self) -> None:
        self._starts, self._ends = array("q"), array("q")

    def add(self, start: int, until: int) -> None:
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = until
        else:
            self._starts.append(start)
            self._ends.append(until)

    def __contains__(self, offset: int) -> bool:
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]


_PAGE = 8 * 512  # bits of a page


class SeenSources:
    """The sources below the log's start that have an output: a bit for each offset, in pages of 512 bytes."""

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int], int] = {}

    def add(self, offset: int, index: int) -> bool:
        """Add a source, in any order; return whether it was there already."""
        page, bit = divmod(offset, _PAGE)
        seen = self._pages.get((index, page), 0)
        self._pages[index, page] = seen | 1 << bit
        return bool(seen >> bit & 1)


Place = tuple[int, int]
"""An output's source in its partition: offset, and index if an input may have several outputs."""


class Early(NamedTuple):
    """An output whose input is not read yet, and its transaction; None: written outside of transactions."""

    stream: Stream
    record: Record
    attempt: Attempt | None


class InputPartition:
    """
    Inputs and outputs of one partition that wait to be matched.

    ``queue``: inputs in order; ``passed``: inputs skipped by a later output; ``early``: outputs whose input is not read
    yet; ``behind``: sources at or above the committed offset that have an output; ``below_start``: those with one whose
    input retention has removed.
    """

    def __init__(self, first: int) -> None:
        self.queue: deque[Row] = deque()
        self.passed: dict[int, Row] = {}
        self.early: dict[Place, Early] = {}
        self.behind: set[Place] = set()
        self.below_start = SeenSources()
        self.read = first
        self._gaps = OffsetRanges()

    def skip_to(self, offset: int) -> None:
        """Continue at ``offset``; the offsets skipped hold no visible record."""
        if offset > self.read:
            self._gaps.add(self.read, offset)
            self.read = offset

    def take(self, source: int) -> Row | None:
        """Remove and return the input at ``source``; None if it was already taken or is not visible."""
        found = self.passed.pop(source, None)
        if found is not None:
            return found
        queue = self.queue
        while queue and queue[0][1] < source:
            passed = queue.popleft()
            self.passed[passed[1]] = passed
        return queue.popleft() if queue and queue[0][1] == source else None

    def visible(self, source: int) -> bool:
        """Return whether ``source``, an offset below ``read``, held a visible record."""
        return source not in self._gaps

    @property
    def low(self) -> int:
        """The first offset that may lack an output; every visible input below it has one."""
        if self.passed:
            return next(iter(self.passed))
        return self.queue[0][1] if self.queue else self.read

    def overdue(self) -> Iterator[tuple[Place, Early]]:
        """Remove and yield the early outputs below ``read``, with their places."""
        for place in [place for place in self.early if place[0] < self.read]:
            yield place, self.early.pop(place)

    def waiting(self) -> Iterator[Row]:
        """Yield the inputs without an output, in offset order."""
        yield from self.passed.values()
        yield from self.queue

    def forget(self) -> None:
        """Discard the waiting inputs; no more outputs will arrive."""
        self.queue.clear()
        self.passed.clear()


_first = itemgetter(0)


class Layout:
    """
    What readers can see of one partition: runs in offset order, each a transaction or a part of one.

    ``compacted``: they may have seen more.
    """

    def __init__(self, first: int) -> None:
        self.first = first
        self.compacted = False
        self.runs: list[Run] = []
        self._starts: list[int] = []
        self._aborted: list[tuple[int, int]] = []

    def add(self, offset: int, source_partition: int, source_offset: int) -> None:
        if self.runs:
            run = self.runs[-1]
            if (
                run.offset + run.length == offset
                and run.source_partition == source_partition
                and source_offset == run.source_offset + run.length
            ):
                self.runs[-1] = run._replace(length=run.length + 1)
                return
        self.runs.append(Run(offset, source_partition, source_offset, 1))
        self._starts.append(offset)

    def add_aborted(self, first: int, last: int) -> None:
        """Add a range of records that no `read_committed` reader may see."""
        insort(self._aborted, (first, last))

    def between(self, start: int, until: int) -> Iterator[Run]:
        """Yield the visible runs, clipped to `[start, until)`."""
        at = max(0, bisect_right(self._starts, start) - 1)
        while at < len(self.runs) and self.runs[at].offset < until:
            run = self.runs[at]
            low, high = max(start, run.offset), min(until, run.offset + run.length)
            if low < high:
                yield Run(low, run.source_partition, run.source_offset + low - run.offset, high - low)
            at += 1

    def aborted(self, offset: int) -> bool:
        at = bisect_right(self._aborted, offset, key=_first) - 1
        return at >= 0 and self._aborted[at][1] >= offset

    @property
    def end(self) -> int:
        """The offset after the last visible record."""
        return self.runs[-1].offset + self.runs[-1].length if self.runs else self.first


Wrote = Callable[[int, Attempt], None]


class Stream:
    """
    One downstream partition, whose raw batches come before their records.

    ``compacted``: some records are gone. ``attempt``: the transaction of the current record.
    """

    def __init__(self, raw: RawLog, wrote: Wrote, layout: Layout | None, first: int) -> None:
        self.topic, self.partition = raw.topic, raw.partition
        self._raw, self._wrote = raw, wrote
        self.layout = layout
        # (last offset, transaction) of each batch; None: written outside of transactions.
        self._spans: deque[tuple[int, Attempt | None]] = deque()
        self.attempt: Attempt | None = None
        self._outside = -1
        self._next = first
        self.compacted = False
        self.upto = -1
        self.last: dict[int, int] = {}
        if layout is not None:
            raw.on_end = self._keep

    @property
    def key(self) -> Key | None:
        """The producer id and epoch that wrote the current record."""
        return None if self.attempt is None else self.attempt.key

    def batches(self, batches: Iterable[RawBatch]) -> None:
        """Take in raw batches in log order."""
        spans = self._spans
        for batch in batches:
            if lacks_records(batch, self._next):
                self.compacted = True
                if self.layout is not None:
                    self.layout.compacted = True
            self._next = batch.last_offset + 1
            attempt = self._raw.take(batch)
            if attempt is not None and self.layout is not None:
                attempt.spans.append((batch.base_offset, batch.last_offset))
            if not batch.control:
                if spans and spans[-1][1] is attempt:
                    spans.pop()
                spans.append((batch.last_offset, attempt))

    def _keep(self, attempt: Attempt) -> None:
        if attempt.status != COMMIT and self.layout is not None:
            for first, last in attempt.spans:
                self.layout.add_aborted(first, last)

    def ended(self) -> list[Attempt]:
        """Return the transactions that are still open; their records count as aborted for readers."""
        left = self._raw.open()
        for attempt in left:
            self._keep(attempt)
        return left

    def move_to(self, offset: int) -> None:
        """Find the transaction of the next record, at ``offset`` above ``upto``."""
        spans = self._spans
        while spans and spans[0][0] < offset:
            spans.popleft()
        self.upto, attempt = spans[0] if spans else (offset, None)
        self.attempt, self._outside = attempt, offset if spans and attempt is None else -1
        if attempt is not None and attempt.visible < 0:
            attempt.visible = offset
            if attempt.status == ABORT:
                self._raw.aborted_read(attempt, offset)

    def note(self, source_partition: int, lowest: int, highest: int, count: int) -> None:
        """Add ``count`` records with these sources to the current transaction."""
        attempt = self.attempt
        if attempt is None:
            if self._outside >= 0:
                self._raw.outside(self._outside)
                self._outside = -1
            return
        known = attempt.sources.get(source_partition)
        if known is None:
            attempt.sources[source_partition] = [lowest, highest, count]
            self._wrote(source_partition, attempt)
            return
        known[0] = min(known[0], lowest)
        known[1] = max(known[1], highest)
        known[2] += count
