"""When a run gives up: no progress for too long, or too many rejected records."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from brew.acl import denial_in
from brew.errors import Refused
from brew.outcome import Outcome, Status
from brew.settings import PipelineSettings

_BACKOFF_S = 0.1
_DENIED_S = 10.0
"""Rights that were taken away do not come back by themselves; one that is on its way takes a second or two."""
_LONGEST_BACKOFF_S = 5.0


def _why(detail: str) -> str:
    return "" if denial_in(detail) is None else " at most where the brokers say no"


class GiveUpPolicy:
    """Counts failures in a row, and the time since something moved."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self.failures = 0
        self._elsewhere: Mapping[int, int] = {}
        self._last_progress = self._failing_since = time.monotonic()

    def moved(self) -> None:
        self._last_progress = time.monotonic()

    def good(self) -> None:
        """The row of failures is over."""
        self.failures = 0

    def failed(self, what: str, detail: str) -> float:
        """
        Count one failure; the seconds to wait now, longer each time and by chance: two pipelines must get out of step.

        Raises:
            Refused: nothing moved since the first failure of the row for longer than --patience.
        """
        now = time.monotonic()
        if self.failures == 0:
            self._failing_since = now  # time spent blocked by others, before the first failure, does not count
        idle = now - max(self._last_progress, self._failing_since)
        patience_s = (
            self._settings.patience_s if denial_in(detail) is None else min(_DENIED_S, self._settings.patience_s)
        )
        if idle > patience_s:
            raise Refused(
                f"no progress for {idle:.0f} s (--patience is {patience_s:g} s{_why(detail)}); {what}: "
                f"{detail or 'see the lines above'}"
            )
        self.failures += 1
        longest = min(_LONGEST_BACKOFF_S, _BACKOFF_S * 2**self.failures)
        return random.uniform(longest / 4, longest)  # noqa: S311 - a pause, no secret

    def held_back(self, partitions: Sequence[int], elsewhere: Mapping[int, int] | None = None) -> None:
        """
        Nothing can move here now, though the run is to drain; ``elsewhere`` is where other drivers stand with the rest.

        Raises:
            Refused: that has lasted longer than --blocked-patience, and the others' positions stood still, too.
        """
        if elsewhere and elsewhere != self._elsewhere:
            self._elsewhere = elsewhere
            self.moved()
        idle = time.monotonic() - self._last_progress
        if idle > self._settings.blocked_patience_s:
            if not partitions and elsewhere:
                raise Refused(
                    f"partitions {sorted(elsewhere)} of {self._settings.input} are other drivers' to drain, and have "
                    f"stood still for {idle:.0f} s; `python -m downstream claims status` shows whose, or raise "
                    "--blocked-patience"
                )
            raise Refused(
                f"partitions {list(partitions)} of {self._settings.input} were held back by an open upstream "
                f"transaction for {idle:.0f} s; end it (its owner, or kafka-transactions abort), "
                "or raise --blocked-patience"
            )


WINDOW = 1000
FIRST = 100
"""So many records of a run, all of them rejected, are not what the transformation is for."""
SOME = 10
"""So many are enough where a drain has no more of them."""


@dataclass
class CircuitBreaker:
    """
    Counts each partition's last committed transactions, as many as hold ``WINDOW`` records.

    What was committed stays committed, so that stopping loses nothing; the next run goes on behind it and counts anew.
    ``max_rejected`` is a share from 0 to 1; 1 or None never trips. Used by one thread.
    """

    max_rejected: float | None
    _last: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    _tripped: bool = False

    def apply_outcome(self, outcome: Outcome) -> None:
        """
        Count one outcome.

        Raises:
            Refused: too much was rejected; said once, since what still runs reports while the run ends.
        """
        records = outcome.records
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
            "are dead letters: look at them with `brew dlq list`, then run again, with a higher --max-rejected "
            "to go on anyway"
        )


class FirstRecordsCheck:
    """
    Whether anything comes out of a run at all: one that was pointed at the wrong topic should not go on.

    Counts the first committed records of a run, over all partitions, until one was not rejected. ``max_rejected`` of 1
    allows that all are. ``advice``: what to say of a reason. Used by all threads of a run.
    """

    def __init__(self, max_rejected: float | None, advice: Callable[[str], str] = lambda _reason: "") -> None:
        self._decided, self._advice = max_rejected == 1, advice
        self._lock = threading.Lock()
        self._reasons: Counter[str] = Counter()
        self._examples: dict[str, tuple[int, int]] = {}

    def apply_outcome(self, outcome: Outcome) -> None:
        """
        Count one outcome.

        Raises:
            Refused: `FIRST` records were rejected, and nothing else became of any; said once.
        """
        if outcome.status is not Status.COMMITTED:
            return
        with self._lock:
            self._reasons.update(outcome.reasons)
            for reason, offset in outcome.examples.items():
                self._examples.setdefault(reason, (outcome.partition, offset))
            self._decided = self._decided or outcome.records > outcome.rejected
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
            f"all-rejected: the first {rejected} records were all rejected, {count} of them as {reason}, the first one "
            f"at partition {partition}, offset {offset}: {self._advice(reason)}; nothing is lost, all of them are dead "
            "letters: look at them with `brew dlq list`, then point --input at another topic, or run again with "
            "--max-rejected 1 to go on anyway"
        )
