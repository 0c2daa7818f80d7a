"""One budget of time, shared by all calls of a step."""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.errors import DeadlineExceeded

_MOMENT_S = 0.001
_DELIVERY = 0.9


def delivery_ms(transaction_s: float) -> int:
    """How long a record of a transaction may be on its way: less than brokers wait for the transaction's end."""
    return int(transaction_s * 1000 * _DELIVERY)


class Deadline:
    """A point in monotonic time; `remaining_s()` never goes below zero, since negative time-outs block for ever."""

    def __init__(self, budget_s: float, now: Callable[[], float] = time.monotonic) -> None:
        if not budget_s > 0:
            raise ValueError(f"a deadline needs a positive budget of seconds, got {budget_s}")
        self.budget_s = budget_s
        self._now = now
        self._end = now() + budget_s

    def remaining_s(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self._end - self._now())

    def expired(self) -> bool:
        return self.remaining_s() == 0.0

    def part(self, seconds: float) -> Deadline:
        """So much of what is left, and a moment where nothing is: whoever asks then runs out of time, and says so."""
        return Deadline(max(_MOMENT_S, min(seconds, self.remaining_s())), self._now)

    def check(self, step: str) -> None:
        """
        Go on while there is time left.

        Raises:
            DeadlineExceeded: the budget is used up; the text names ``step``.
        """
        if self.expired():
            raise DeadlineExceeded(f"{step}: no end within {self.budget_s:g} s")
