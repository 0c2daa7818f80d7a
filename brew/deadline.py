"""A time budget that is passed down through calls, and calls that are retried within it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from brew.errors import DeadlineExceeded, Retriable

_MOMENT_S = 0.001
_DELIVERY = 0.9


def delivery_ms(transaction_s: float) -> int:
    """Return the delivery time-out for a transaction's records, which is below the transaction time-out."""
    return int(transaction_s * 1000 * _DELIVERY)


class Deadline:
    """A point in monotonic time; `remaining_s()` is never negative: clients block forever on negative time-outs."""

    def __init__(self, budget_s: float, now: Callable[[], float] = time.monotonic) -> None:
        if not budget_s > 0:
            raise ValueError(f"a deadline needs a positive budget of seconds, got {budget_s}")
        self.budget_s = budget_s
        self._now = now
        self._end = now() + budget_s

    def remaining_s(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self._end - self._now())

    def expired(self) -> bool:
        return self.remaining_s() == 0.0

    def part(self, seconds: float) -> Deadline:
        """Return a deadline of ``seconds``, or of the remaining time if that is less; at least a millisecond."""
        return Deadline(max(_MOMENT_S, min(seconds, self.remaining_s())), self._now)

    def check(self, step: str) -> None:
        """
        Return if there is time left.

        Raises:
            DeadlineExceeded: the budget is used up; the text names ``step``.
        """
        if self.expired():
            raise DeadlineExceeded(f"{step}: no end within {self.budget_s:g} s")


_T = TypeVar("_T")

PAUSE_S = 0.02


def retry_until(call: Callable[[], _T], step: str, deadline: Deadline, pause_s: float = PAUSE_S) -> _T:
    """
    Repeat a call every ``pause_s`` until it returns or raises an error that is not `Retriable`.

    Raises:
        DeadlineExceeded: the error was still retriable at the deadline.
    """
    while True:
        try:
            return call()
        except Retriable as error:
            if deadline.remaining_s() <= pause_s:
                raise DeadlineExceeded(f"{step}: still failing after {deadline.budget_s:g} s: {error}") from error
            time.sleep(pause_s)
