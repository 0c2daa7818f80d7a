"""Stop a run that rejects more than a set share of its records, or all of its first ones; pure."""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field

from pipeline.outcome import Outcome, Status
from protocol.errors import Refused
from protocol.records import Reason

WINDOW = 1000
FIRST = 100
"""So many records of a run, all of them rejected, are not orders."""
SOME = 10
"""So many are enough where a drain has no more of them."""

_LACK = {
    Reason.NO_VALUE: "have no value (tombstones)",
    Reason.NOT_JSON: "are not JSON",
    Reason.NOT_AN_OBJECT: "are JSON, but no object",
    Reason.NO_CUSTOMER_ID: "have no customer_id",
    Reason.TOO_LARGE: "are larger than --max-record-bytes",
    Reason.TOO_DEEP: "are nested deeper than --max-record-depth",
}
_ORDER = (
    '{"order_id": "o-17", "customer_id": "c-17", "item": "espresso", "quantity": 2, "total_cents": 700, '
    '"store": "s-1", "created_at": "2026-01-01T00:00:00Z"}'
)


@dataclass
class Breaker:
    """
    Counts each partition's last committed transactions, as many as hold ``WINDOW`` records.

    What was committed stays committed, so that stopping loses nothing; the next run goes on behind it and counts anew.
    ``max_rejected`` is a share from 0 to 1; 1 or None never trips. Used by one thread.
    """

    max_rejected: float | None
    _last: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    _tripped: bool = False

    def heed(self, outcome: Outcome) -> None:
        """
        Count one outcome.

        Raises:
            Refused: too much was rejected; said once, since what still runs reports while the run ends.
        """
        records = outcome.enriched + outcome.rejected
        if (
            outcome.status is not Status.COMMITTED
            or records == 0
            or self.max_rejected is None
            or self.max_rejected >= 1
        ):
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


class FirstRecords:
    """
    Whether a run enriches anything at all: one that was pointed at something else than orders should not go on.

    Counts the first committed records of a run, over all partitions, until one was enriched. ``max_rejected`` of 1
    allows that none is. Used by all threads of a run.
    """

    def __init__(self, max_rejected: float | None) -> None:
        self._decided = max_rejected == 1
        self._lock = threading.Lock()
        self._reasons: Counter[str] = Counter()
        self._examples: dict[str, tuple[int, int]] = {}

    def heed(self, outcome: Outcome) -> None:
        """
        Count one outcome.

        Raises:
            Refused: `FIRST` records were rejected, and none was enriched; said once.
        """
        if outcome.status is not Status.COMMITTED:
            return
        with self._lock:
            self._reasons.update(outcome.reasons)
            for reason, offset in outcome.examples.items():
                self._examples.setdefault(reason, (outcome.partition, offset))
            self._decided = self._decided or outcome.enriched > 0
            self._judge(FIRST)

    def check_at_end(self) -> None:
        """
        Called at the end of a drain, which may have fewer records.

        Raises:
            Refused: all were rejected, and there were `SOME` or more.
        """
        with self._lock:
            self._judge(SOME)

    def _judge(self, least: int) -> None:
        rejected = self._reasons.total()
        if self._decided or rejected < least:
            return
        self._decided = True
        reason, count = self._reasons.most_common(1)[0]
        partition, offset = self._examples[reason]
        raise Refused(
            f"all-rejected: the first {rejected} records were all rejected, {count} of them as {reason}: they "
            f"{_LACK[Reason(reason)]}, the first one at partition {partition}, offset {offset}; an order looks like "
            f"{_ORDER} (customer_id is what it must have); nothing is lost, all of them are dead letters: look at them "
            "with `pipeline dlq list`, then point --input at orders, or run again with --max-rejected 1 to go on anyway"
        )
