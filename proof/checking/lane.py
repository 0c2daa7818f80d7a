"""
One input partition's inputs that have not come out yet, and what came out before its input was read; pure.

While outputs come in the order of their sources, memory is what lies between the two readings, plus 16 bytes per
stretch of offsets without a visible record (markers, aborted transactions). An input that is passed by waits by itself.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator

from proof.checking.records import Row

Early = tuple[str, Row]


class Lane:
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
        self._gap_starts = array("q")
        self._gap_ends = array("q")

    def skip_to(self, offset: int) -> None:
        """Offsets from where the reading stands up to ``offset`` hold no visible record."""
        if offset > self.read:
            self._gap_starts.append(self.read)
            self._gap_ends.append(offset)
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
        at = bisect_right(self._gap_starts, source) - 1
        return at < 0 or source >= self._gap_ends[at]

    @property
    def low(self) -> int:
        """Every visible input below has come out."""
        if self.passed:
            return next(iter(self.passed))
        return self.queue[0][1] if self.queue else self.read

    def overdue(self) -> Iterator[Early]:
        """Outputs whose input should have been read by now: there is none."""
        for source in [one for one in self.early if one < self.read]:
            yield self.early.pop(source)

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
        return 16 * len(self._gap_starts)
