"""How many records a `read_committed` reader is still given, markers and aborted ones left out; pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from protocol.batches import RawBatch


@dataclass(frozen=True, slots=True)
class Remaining:
    """Records left to read; not ``exact``: at most so many."""

    records: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.records:,}" if self.exact else f"at most {self.records:,}"


class Remainder:
    """
    Counts the visible records of `[start, until)` while raw batches come by, from ``start`` on in log order.

    A transaction below the last stable offset may have its marker above it, so batches behind ``until`` count, too.
    """

    def __init__(self, start: int, until: int) -> None:
        self._start, self._until = start, until
        self._visible = 0
        self._pending: defaultdict[int, int] = defaultdict(int)
        self._sparse = False
        self._reached = start

    def add(self, batch: RawBatch) -> None:
        self._reached = batch.last_offset + 1
        if batch.control:
            count = self._pending.pop(batch.producer_id, 0)
            if batch.marker == "commit":
                self._visible += count
        elif count := self._inside(batch):
            if batch.transactional:
                self._pending[batch.producer_id] += count
            else:
                self._visible += count

    def _inside(self, batch: RawBatch) -> int:
        width = batch.last_offset - batch.base_offset + 1
        inside = min(batch.last_offset, self._until - 1) - max(batch.base_offset, self._start) + 1
        if inside <= 0:
            return 0
        if inside == width:
            return batch.records
        self._sparse |= batch.records != width  # compacted: which of them are inside is not in the header
        return min(inside, batch.records)

    @property
    def settled(self) -> bool:
        """True when no later batch changes the count."""
        return self._reached >= self._until and not self._pending

    def remaining(self) -> Remaining:
        """The count by now; what has no marker yet, or was not looked at, is counted as visible."""
        unseen = max(0, self._until - max(self._reached, self._start))
        count = self._visible + sum(self._pending.values()) + unseen
        return Remaining(count, self.settled and not self._sparse)
