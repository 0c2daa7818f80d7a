"""
One input partition as the checker follows it, and what readers could see; pure.

While outputs come in the order of their sources, memory is what lies between the two readings, plus 16 bytes per
stretch of offsets without a visible record (markers, aborted transactions). An input that is passed by waits by itself.
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
from proof.checking.transactions import ABORT, COMMIT, Attempt, Key, RawLog
from proof.oracle import Profiles

Headers = list[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, Headers, int | None]


class Record(NamedTuple):
    """
    A record as a reader sees it; ``created`` is its timestamp in ms, None where the broker set it.

    Plain tuples of the same six values are taken as well, a million of them cost less.
    """

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    created: int | None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """
    What the brokers say before the records are read.

    ``doubts`` are reasons why downstream records may be missing without having been lost. ``downstream`` are the
    offsets of output and dead-letter partitions where they are known; ``settled`` says that nothing is running and
    every transaction has had the time to end, ``strict`` that a producer epoch is good for one transaction.
    ``journals`` keeps what readers' journals are compared with: some bytes per run of visible records.
    ``healed_ms`` are the moments at which faults ended, as the brokers' clocks show them. ``profiles`` are asked for
    tiers instead of the records' keys. ``also_output`` are further output topics.
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

    @property
    def outputs(self) -> tuple[str, ...]:
        """All topics that transformed records may be in."""
        return (self.output, *self.also_output)

    def position(self, partition: int) -> int:
        """The committed offset, -1 without one."""
        committed = self.committed.get(partition)
        return -1 if committed is None else committed


def at(source: SourcePosition) -> str:
    return f"{source.topic}[{source.partition}] offset {source.offset}"


class Stretches:
    """Offsets, added in rising order: 16 bytes a stretch of them."""

    def __init__(self) -> None:
        self._starts, self._ends = array("q"), array("q")

    def add(self, start: int, until: int) -> None:
        """All offsets of `[start, until)`."""
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = until
        else:
            self._starts.append(start)
            self._ends.append(until)

    def __contains__(self, offset: int) -> bool:
        place = bisect_right(self._starts, offset) - 1
        return place >= 0 and offset < self._ends[place]

    @property
    def held_bytes(self) -> int:
        return 16 * len(self._starts)


Early = tuple[str, Row]


class InputPartition:
    """
    ``queue``: inputs in order; ``passed``: those below an output's source; ``early``: outputs whose input comes later;
    ``behind``: sources that are out above the committed offset.
    """

    def __init__(self, first: int) -> None:
        self.queue: deque[Row] = deque()
        self.passed: dict[int, Row] = {}
        self.early: dict[int, Early] = {}
        self.behind: set[int] = set()
        self.read = first
        self._gaps = Stretches()

    def skip_to(self, offset: int) -> None:
        """Offsets from where the reading stands up to ``offset`` hold no visible record."""
        if offset > self.read:
            self._gaps.add(self.read, offset)
            self.read = offset

    def take(self, source: int) -> Row | None:
        """The input at ``source``, which comes out now; None when it came out before or is not visible."""
        found = self.passed.pop(source, None)
        if found is not None:
            return found
        queue = self.queue
        while queue and queue[0][1] < source:
            passed = queue.popleft()
            self.passed[passed[1]] = passed
        return queue.popleft() if queue and queue[0][1] == source else None

    def visible(self, source: int) -> bool:
        """Whether the input held a visible record there; for offsets below ``read``."""
        return source not in self._gaps

    @property
    def low(self) -> int:
        """Every visible input below has come out."""
        if self.passed:
            return next(iter(self.passed))
        return self.queue[0][1] if self.queue else self.read

    def overdue(self) -> Iterator[tuple[int, Early]]:
        """Sources and outputs whose input should have been read by now: there is none."""
        for source in [offset for offset in self.early if offset < self.read]:
            yield source, self.early.pop(source)

    def waiting(self) -> Iterator[Row]:
        """Inputs that have not come out, in offset order."""
        yield from self.passed.values()
        yield from self.queue

    def forget(self) -> None:
        """Nothing will come out any more."""
        self.queue.clear()
        self.passed.clear()

    def __len__(self) -> int:
        """Records that wait for their other half."""
        return len(self.queue) + len(self.passed) + len(self.early)

    @property
    def held_bytes(self) -> int:
        """Memory that does not go away while the logs are read."""
        return self._gaps.held_bytes


_first = itemgetter(0)


class Layout:
    """Grows in offset order; some 100 bytes per run, which is a transaction or the part of it between two gaps."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.runs: list[Run] = []
        self._starts: list[int] = []
        self._aborted: list[tuple[int, int]] = []

    def add(self, offset: int, source_partition: int, source_offset: int) -> None:
        """One visible record."""
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
        """Records that no `read_committed` reader may see."""
        insort(self._aborted, (first, last))

    def between(self, start: int, until: int) -> Iterator[Run]:
        """The visible runs in `[start, until)`, cut to it."""
        at = max(0, bisect_right(self._starts, start) - 1)
        while at < len(self.runs) and self.runs[at].offset < until:
            run = self.runs[at]
            low, high = max(start, run.offset), min(until, run.offset + run.length)
            if low < high:
                yield Run(low, run.source_partition, run.source_offset + low - run.offset, high - low)
            at += 1

    def aborted(self, offset: int) -> bool:
        """Whether the record there is part of an aborted transaction."""
        at = bisect_right(self._aborted, offset, key=_first) - 1
        return at >= 0 and self._aborted[at][1] >= offset

    @property
    def end(self) -> int:
        """Behind the last visible record."""
        return self.runs[-1].offset + self.runs[-1].length if self.runs else self.first


Wrote = Callable[[int, Attempt], None]


class Stream:
    """Batches come first, as far as records follow; without them nothing is known of transactions."""

    def __init__(self, raw: RawLog, wrote: Wrote, layout: Layout | None) -> None:
        self.topic, self.partition = raw.topic, raw.partition
        self._raw, self._wrote = raw, wrote
        self.layout = layout
        self._spans: deque[tuple[int, Attempt]] = deque()
        self._attempt: Attempt | None = None
        self.upto = -1
        self.last: dict[int, int] = {}
        if layout is not None:
            raw.on_end = self._keep

    @property
    def key(self) -> Key | None:
        """Who wrote the record at hand."""
        return None if self._attempt is None else self._attempt.key

    def batches(self, batches: Iterable[RawBatch]) -> None:
        """Take in raw batches in log order."""
        spans = self._spans
        for batch in batches:
            attempt = self._raw.take(batch)
            if attempt is not None:
                if self.layout is not None:
                    attempt.spans.append((batch.base_offset, batch.last_offset))
                if spans and spans[-1][1] is attempt:
                    spans.pop()
                spans.append((batch.last_offset, attempt))

    def _keep(self, attempt: Attempt) -> None:
        if attempt.status != COMMIT and self.layout is not None:
            for first, last in attempt.spans:
                self.layout.add_aborted(first, last)

    def ended(self) -> list[Attempt]:
        """The transactions that are still open; their records count as aborted for readers."""
        left = self._raw.open()
        for attempt in left:
            self._keep(attempt)
        return left

    def move_to(self, offset: int) -> None:
        """The next record stands at ``offset``, which is above ``upto``: find its transaction."""
        spans = self._spans
        while spans and spans[0][0] < offset:
            spans.popleft()
        if not spans:
            self._attempt, self.upto = None, offset
            return
        self.upto, attempt = spans[0]
        if offset < attempt.first:
            # A record outside of transactions before the next one's first.
            self._attempt, self.upto = None, attempt.first - 1
            return
        self._attempt = attempt
        if attempt.visible < 0:
            attempt.visible = offset
            if attempt.status == ABORT:
                self._raw.aborted_read(attempt, offset)

    def note(self, source_partition: int, lowest: int, highest: int, count: int) -> None:
        """The transaction at hand brought ``count`` records of these sources."""
        attempt = self._attempt
        if attempt is None:
            return
        known = attempt.sources.get(source_partition)
        if known is None:
            attempt.sources[source_partition] = [lowest, highest, count]
            self._wrote(source_partition, attempt)
            return
        known[0] = min(known[0], lowest)
        known[1] = max(known[1], highest)
        known[2] += count
