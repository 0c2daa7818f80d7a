"""One partition of output or dead letters: its records, and the transactions that they belong to; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from proof.checking.layout import Layout
from proof.checking.transactions import ABORT, Attempt, Key, RawLog
from protocol.batches import RawBatch

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
        if attempt.status == ABORT and self.layout is not None:
            for first, last in attempt.spans:
                self.layout.add_aborted(first, last)

    def ended(self) -> list[Attempt]:
        """The transactions that are still open; their records count as aborted for readers."""
        left = list(self._raw.open())
        for attempt in left:
            if self.layout is not None:
                for first, last in attempt.spans:
                    self.layout.add_aborted(first, last)
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
