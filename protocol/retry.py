"""The same call again, within a deadline, while the failure is retriable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Retriable

_T = TypeVar("_T")

PAUSE_S = 0.02


def again(call: Callable[[], _T], step: str, deadline: Deadline, pause_s: float = PAUSE_S) -> _T:
    """
    Call until it returns, or raises something that is not `Retriable`; ``pause_s`` lies between two calls.

    Raises:
        DeadlineExceeded: it was still retriable when time ran out.
    """
    while True:
        try:
            return call()
        except Retriable as error:
            if deadline.remaining_s() <= pause_s:
                raise DeadlineExceeded(f"{step}: still failing after {deadline.budget_s:g} s: {error}") from error
            time.sleep(pause_s)
