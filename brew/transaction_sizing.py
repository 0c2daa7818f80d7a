"""How many offsets a range may hold, so that a transaction stays far below its time-out."""

from __future__ import annotations

from dataclasses import dataclass

from brew.outcome import Outcome, Status

SHARE = 1 / 3
"""A transaction may take this share of its time-out."""
_MARGIN = 0.8
_GROW_BELOW = 1 / 9
_AFTER_TIME_OUT = 4
_FIRST = 20_000


@dataclass(frozen=True, slots=True)
class TransactionSize:
    """The cap of the next ranges; shrinks with slow transactions, grows back to ``most`` with quick ones."""

    most: int
    timeout_s: float
    cap: int

    @classmethod
    def at_most(cls, most: int, timeout_s: float) -> TransactionSize:
        """The pace of a new run: small ranges first, so that the first commit comes early."""
        return cls(most, timeout_s, min(most, _FIRST))

    def after_outcome(self, outcome: Outcome) -> TransactionSize:
        """The pace after a transaction, however it ended."""
        if outcome.status is Status.COMMITTED:
            return self.after(outcome.until - outcome.start, outcome.seconds)
        return self.after_time_out() if outcome.seconds >= self.timeout_s else self

    def after(self, offsets: int, seconds: float) -> TransactionSize:
        """The pace after a transaction over ``offsets`` that took ``seconds``."""
        allowed = self.timeout_s * SHARE
        if seconds > allowed:
            fits = int(offsets * allowed / seconds * _MARGIN)
            return TransactionSize(self.most, self.timeout_s, max(1, min(self.cap, fits)))
        if seconds < self.timeout_s * _GROW_BELOW and offsets >= self.cap:
            return TransactionSize(self.most, self.timeout_s, min(self.most, self.cap * 2))
        return self

    def after_time_out(self) -> TransactionSize:
        """The pace after a transaction that did not end in time."""
        return TransactionSize(self.most, self.timeout_s, max(1, self.cap // _AFTER_TIME_OUT))


class TransactionSizes:
    """
    The pace of each partition in one process: who is new here begins with what another partition has learned.

    64 partitions that each begin small make twice the transactions that they need. Who has failed begins small again,
    whatever the others do: the next try must be one that can end in time.
    """

    def __init__(self, first: TransactionSize) -> None:
        self._first = self._learned = first
        self._of: dict[int, TransactionSize] = {}

    def of(self, partition: int) -> TransactionSize:
        return self._of.get(partition, self._learned)

    def apply_outcome(self, outcome: Outcome) -> None:
        """Take in how a partition's transaction ended."""
        if outcome.status is Status.COMMITTED:
            self._of[outcome.partition] = self._learned = self.of(outcome.partition).after_outcome(outcome)
        elif outcome.status is not Status.ALREADY_DONE:
            self._of[outcome.partition] = self._first
