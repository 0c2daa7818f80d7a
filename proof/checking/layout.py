"""What readers could see in one partition: runs of visible records, and stretches that were aborted; pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from protocol.journal import Run


class Layout:
    """Grows in offset order; some 100 bytes per run, which is a transaction or the part of it between two gaps."""

    def __init__(self, first: int) -> None:
        self.first = first
        self.runs: list[Run] = []
        self._starts: list[int] = []
        self._aborted: list[tuple[int, int]] = []
        self._sorted = True

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
        self._aborted.append((first, last))
        self._sorted = False

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
        if not self._sorted:
            self._aborted.sort()
            self._sorted = True
        at = bisect_right(self._aborted, (offset, 1 << 62)) - 1
        return at >= 0 and self._aborted[at][1] >= offset

    @property
    def end(self) -> int:
        """Behind the last visible record."""
        return self.runs[-1].offset + self.runs[-1].length if self.runs else self.first
