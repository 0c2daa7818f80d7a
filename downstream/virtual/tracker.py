"""Virtual offset management: which offset of a partition may be stored while records finish out of order; pure."""

from __future__ import annotations

from collections import deque


class OffsetTracker:
    """
    Records of one partition, taken in rising order and finished in any.

    `position` is the next offset to store: every record below it is finished. A crash therefore repeats what lies
    between the stored position and the last record taken, `span` records at most, and skips none.
    """

    def __init__(self, start: int) -> None:
        """``start``: the offset at which reading begins; all below it is done."""
        self._next = start
        self._taken: deque[int] = deque()
        self._unfinished: set[int] = set()

    @property
    def position(self) -> int:
        """The oldest record that is not finished; where there is none, the next offset to be read."""
        return self._taken[0] if self._taken else self._next

    @property
    def span(self) -> int:
        """Records taken that the position has not passed, finished or not: what a crash would repeat."""
        return len(self._taken)

    @property
    def unfinished(self) -> int:
        """Records that somebody is still to finish."""
        return len(self._unfinished)

    def take(self, offset: int) -> None:
        """
        A record was read and given to a worker; offsets may leave gaps, since markers are no records.

        Raises:
            ValueError: the offset lies below what was read already.
        """
        if offset < self._next:
            raise ValueError(f"offset {offset} was read already: the next one is {self._next} or later")
        self._taken.append(offset)
        self._unfinished.add(offset)
        self._next = offset + 1

    def finish(self, offset: int) -> None:
        """
        The record's effect is done, or it is a dead letter.

        Raises:
            ValueError: it was not taken, or is finished already: one of two workers had another's record.
        """
        if offset not in self._unfinished:
            raise ValueError(f"offset {offset} is not in work")
        self._unfinished.discard(offset)
        while self._taken and self._taken[0] not in self._unfinished:
            self._taken.popleft()

    def passed(self, until: int) -> None:
        """The reader knows that no further record lies below ``until``: markers at the log's end count as read."""
        self._next = max(self._next, until)
