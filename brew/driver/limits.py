"""When a run gives up: no progress for too long, or too many rejected records."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field

from brew.acl import denial_in
from brew.claims.heartbeater import DENIED_S, Denials
from brew.errors import Refused
from brew.names import DEAD_LETTER_TOPIC
from brew.outcome import GOOD, Outcome, Status
from brew.settings import PipelineSettings

_BACKOFF_S = 0.1
_MAX_BACKOFF_S = 5.0

_REMEDIES = {
    "MSG_SIZE_TOO_LARGE": (
        "a record with its headers, or a dead letter with the original headers and the message of its rejection, is "
        "larger than max.message.bytes of the topic: raise that"
    ),
    "INVALID_RECORD": "a topic with cleanup.policy=compact takes no record without a key: change its cleanup.policy",
    "INVALID_TIMESTAMP": (
        "a record's timestamp is outside of what the topic allows: raise its message.timestamp.before.max.ms or "
        "message.timestamp.after.max.ms, or correct the transformation"
    ),
}
"""Refusals of records that each attempt gets again, by librdkafka's name, and what to do."""


def _remedy(detail: str) -> str:
    return next((f"; {remedy}, and run again" for name, remedy in _REMEDIES.items() if f"({name})" in detail), "")


def _check_patience(what: str, seconds: float, patience_s: float, problem: str, detail: str) -> None:
    if seconds > patience_s:
        clause = "" if denial_in(detail) is None else " at most after an authorization failure"
        raise Refused(
            f"{what} for {seconds:.0f} s (--patience is {patience_s:g} s{clause}); {problem}: "
            f"{detail or 'see the lines above'}{_remedy(detail)}"
        )


class GiveUpPolicy:
    """Decides when to give up: counts consecutive failures, and the time without progress."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self.failures = 0
        self._denials = Denials()
        self._denied: dict[int, Denials] = {}
        self._owned_by_others: Mapping[int, int] = {}
        self._last_progress = self._failing_since = time.monotonic()

    @property
    def _denied_s(self) -> float:
        return min(DENIED_S, self._settings.patience_s)

    def progressed(self) -> None:
        self._last_progress = time.monotonic()

    def succeeded(self) -> None:
        """Reset the count of consecutive failures."""
        self.failures = 0
        self._denials.clear()

    def failed(self, problem: str, detail: str) -> float:
        """
        Count one failure; return the seconds to wait: exponential, with jitter, so that two pipelines get out of step.
        Raises `Refused`: no progress since the first of these failures for longer than --patience, or for ten seconds
        of nothing but authorization failures.
        """
        now = time.monotonic()
        if self.failures == 0:
            self._failing_since = now  # excludes time blocked by upstream transactions before
        failing_s = now - max(self._last_progress, self._failing_since)
        _check_patience("no progress", failing_s, self._settings.patience_s, problem, detail)
        denied_s = min(self._denials.failed(detail, now), now - self._last_progress)
        _check_patience("no progress", denied_s, self._denied_s, problem, detail)
        self.failures += 1
        max_pause = min(_MAX_BACKOFF_S, _BACKOFF_S * 2 ** min(self.failures, 10))  # a float has no 2**1024
        return random.uniform(max_pause / 4, max_pause)  # noqa: S311 - a pause, not a secret

    def check_denial(self, outcome: Outcome) -> None:
        """Record how an attempt ended; raises `Refused` if this partition was denied for ten seconds, or --patience."""
        if outcome.status in GOOD:
            self._denied.pop(outcome.partition, None)
            return
        denied_s = self._denied.setdefault(outcome.partition, Denials()).failed(outcome.detail, time.monotonic())
        where = f"partition {outcome.partition}"
        problem = f"{where} last ended {outcome.status.value}"
        _check_patience(f"no progress in {where}", denied_s, self._denied_s, problem, outcome.detail)

    def keep_denials(self, owned: Container[int]) -> None:
        """Forget denials of partitions that now belong to another driver: the right may have been granted since."""
        self._denied = {p: denials for p, denials in self._denied.items() if p in owned}

    def blocked(self, partitions: Collection[int], owned_by_others: Mapping[int, int] | None = None) -> None:
        """
        Record that a draining run can't progress now; ``owned_by_others``: positions of partitions of other drivers.
        Raises `Refused`: neither this driver nor the others progressed for longer than --blocked-patience.
        """
        if owned_by_others and owned_by_others != self._owned_by_others:
            self._owned_by_others = owned_by_others
            self.progressed()
        idle = time.monotonic() - self._last_progress
        if idle > self._settings.blocked_patience_s:
            if not partitions and owned_by_others:
                raise Refused(
                    f"partitions {sorted(owned_by_others)} of {self._settings.input} belong to other drivers, which "
                    f"made no progress for {idle:.0f} s; `python -m downstream claims status` shows which, and "
                    "`brew doctor` whether an open transaction holds them back; or raise --blocked-patience"
                )
            if not partitions:
                raise Refused(
                    f"{self._settings.input} gave no record for {idle:.0f} s, and no open transaction holds "
                    "it back: the log may have been truncated below this run's end (unclean leader election); "
                    "run again, which ends where the log ends now, or raise --blocked-patience"
                )
            raise Refused(
                f"partitions {list(partitions)} of {self._settings.input} were held back by an open upstream "
                f"transaction for {idle:.0f} s; end it (its owner, or `brew doctor --abort`), "
                "or raise --blocked-patience"
            )


WINDOW = 1000
FIRST = 100
"""If this many first records of a run are all rejected, the transformation does not fit the topic."""
MIN_AT_END = 10
"""At the end of a drain, which may have fewer records, this many are enough."""


@dataclass
class CircuitBreaker:
    """
    Counts rejected records in each partition's last committed transactions, about the last ``WINDOW`` records. Stopping
    loses nothing: commits stay, and the next run continues after them with a new count. ``max_rejected`` is a share
    from 0 to 1; 1 or None never trips. For one thread.
    """

    max_rejected: float | None
    dead_letter: str = DEAD_LETTER_TOPIC
    _last: dict[int, deque[tuple[int, int]]] = field(default_factory=dict)
    _tripped: bool = False

    def apply_outcome(self, outcome: Outcome) -> None:
        """Count one outcome; raises `Refused` if too many were rejected, once: others report while the run ends."""
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
            f"are dead letters: look at them with `brew dlq list --dead-letter {self.dead_letter}`, then run again, "
            "with a higher --max-rejected to go on anyway"
        )


class FirstRecordsCheck:
    """
    Stops a run that rejects all of its records, as when it reads the wrong topic. Counts the first committed records of
    a run, over all partitions, until one is not rejected. A ``max_rejected`` of 1 allows all to be rejected.
    ``advice``: returns what to say about a reason. Thread-safe.
    """

    def __init__(
        self,
        max_rejected: float | None,
        advice: Callable[[str], str] = lambda _reason: "",
        dead_letter: str = DEAD_LETTER_TOPIC,
    ) -> None:
        self._decided, self._advice, self._dead_letter = max_rejected == 1, advice, dead_letter
        self._lock = threading.Lock()
        self._reasons: Counter[str] = Counter()
        self._examples: dict[str, tuple[int, int]] = {}

    def apply_outcome(self, outcome: Outcome) -> None:
        """Count one outcome; raises `Refused` once if the first `FIRST` records were all rejected."""
        if outcome.status is not Status.COMMITTED:
            return
        with self._lock:
            if self._decided:
                return
            self._reasons.update(outcome.reasons)
            for reason, offset in outcome.examples.items():
                self._examples.setdefault(reason, (outcome.partition, offset))
            self._decided = outcome.records > outcome.rejected
            self._check(FIRST)

    def check_at_end(self) -> None:
        """Check at the end of a drain, which may be shorter: raises `Refused` if `MIN_AT_END` were all rejected."""
        with self._lock:
            self._check(MIN_AT_END)

    def _check(self, least: int) -> None:
        rejected = self._reasons.total()
        if self._decided or rejected < least:
            return
        self._decided = True
        reason, count = self._reasons.most_common(1)[0]
        partition, offset = self._examples[reason]
        raise Refused(
            f"all-rejected: the first {rejected} records were all rejected, {count} of them as {reason}, the first one "
            f"at partition {partition}, offset {offset}: {self._advice(reason)}; nothing is lost, all of them are dead "
            f"letters: look at them with `brew dlq list --dead-letter {self._dead_letter}`, then point --input at "
            "another topic, or run again with --max-rejected 1 to go on anyway"
        )
