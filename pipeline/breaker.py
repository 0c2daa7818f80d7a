"""The breaker: stops a run that rejects more than a set share of its records; pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from pipeline.outcome import Outcome, Status
from protocol.errors import Refused

WINDOW = 1000


@dataclass
class Breaker:
    """
    Counts each partition's last committed transactions, as many as hold ``WINDOW`` records.

    What was committed stays committed, so that stopping loses nothing; the next run goes on behind it and counts anew.
    ``max_rejected`` is a share from 0 to 1; 1 never trips. Used by one thread.
    """

    max_rejected: float
    _last: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    _tripped: bool = False

    def heed(self, outcome: Outcome) -> None:
        """
        Count one outcome.

        Raises:
            Refused: too much was rejected; said once, since what still runs reports while the run ends.
        """
        records = outcome.enriched + outcome.rejected
        if outcome.status is not Status.COMMITTED or records == 0 or self.max_rejected >= 1:
            return
        last = self._last.setdefault(outcome.partition, deque())
        last.append((records, outcome.rejected))
        total = sum(count for count, _ in last)
        while total - last[0][0] >= WINDOW:
            total -= last.popleft()[0]
        rejected = sum(count for _, count in last)
        if total < WINDOW or rejected <= self.max_rejected * total or self._tripped:
            return
        self._tripped = True
        raise Refused(
            f"too-many-rejected: partition {outcome.partition} rejected {rejected} of its last {total} records, a "
            f"share of {rejected / total:.3f}, --max-rejected is {self.max_rejected:g}; nothing is lost, all of them "
            "are dead letters: look at them with `pipeline dlq list`, then run again, with a higher --max-rejected "
            "to go on anyway"
        )
