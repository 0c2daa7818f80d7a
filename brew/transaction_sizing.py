"""Adapt the number of offsets per range, so that a transaction stays far below its time-out."""

from __future__ import annotations

from dataclasses import dataclass

from brew.outcome import Outcome, Status

TIMEOUT_SHARE = 1 / 3
"""A transaction may take this share of its time-out."""
_SAFETY_FACTOR = 0.8
_GROW_BELOW = 1 / 9
_AFTER_TIME_OUT = 4
_INITIAL_CAP = 20_000


@dataclass(frozen=True, slots=True)
class TransactionSize:
    """The cap of the next ranges; shrinks after slow transactions, grows up to ``max_cap`` after quick ones."""

    max_cap: int
    timeout_s: float
    cap: int

    @classmethod
    def at_most(cls, max_cap: int, timeout_s: float) -> TransactionSize:
        """The size for a new run: small ranges first, for an early first commit."""
        return cls(max_cap, timeout_s, min(max_cap, _INITIAL_CAP))

    def after_outcome(self, outcome: Outcome) -> TransactionSize:
        if outcome.status is Status.COMMITTED:
            return self.after(outcome.until - outcome.start, outcome.seconds)
        return self.after_time_out() if outcome.seconds >= self.timeout_s else self

    def after(self, offsets: int, seconds: float) -> TransactionSize:
        """The size after a transaction of ``offsets`` that took ``seconds``."""
        allowed = self.timeout_s * TIMEOUT_SHARE
        if seconds > allowed:
            fits = int(offsets * allowed / seconds * _SAFETY_FACTOR)
            return TransactionSize(self.max_cap, self.timeout_s, max(1, min(self.cap, fits)))
        if seconds < self.timeout_s * _GROW_BELOW and offsets >= self.cap:
            return TransactionSize(self.max_cap, self.timeout_s, min(self.max_cap, self.cap * 2))
        return self

    def after_time_out(self) -> TransactionSize:
        return TransactionSize(self.max_cap, self.timeout_s, max(1, self.cap // _AFTER_TIME_OUT))


class TransactionSizes:
    """
    The size for each partition of one process; a new partition starts with the latest size of another one. If each of
    64 partitions starts small, they take twice as many transactions. After a failure a partition starts small again,
    and smaller after each that took the whole time-out, so that its next attempt can end in time.
    """

    def __init__(self, first: TransactionSize) -> None:
        self._first = self._latest = first
        self._by_partition: dict[int, TransactionSize] = {}

    def of(self, partition: int) -> TransactionSize:
        return self._by_partition.get(partition, self._latest)

    def apply_outcome(self, outcome: Outcome) -> None:
        if outcome.status is Status.COMMITTED:
            self._by_partition[outcome.partition] = self._latest = self.of(outcome.partition).after_outcome(outcome)
        elif outcome.status is not Status.ALREADY_DONE:
            small = min(self.of(outcome.partition).after_outcome(outcome), self._first, key=lambda size: size.cap)
            self._by_partition[outcome.partition] = small
            if outcome.seconds >= small.timeout_s:  # a slow function is slow in all partitions
                self._latest = small
