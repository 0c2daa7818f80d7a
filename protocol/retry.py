"""The same call again, within a deadline, while the failure is retriable."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Retriable

_T = TypeVar("_T")

_PAUSE_S = 0.02


def again(call: Callable[[], _T], step: str, deadline: Deadline) -> _T:
    """
    Call until it returns, or raises something that is not `Retriable`.

    Raises:
        DeadlineExceeded: it was still retriable when time ran out.
    """
    while True:
        try:
            return call()
        except Retriable as error:
            if deadline.remaining_s() <= _PAUSE_S:
                raise DeadlineExceeded(f"{step}: still failing after {deadline.budget_s:g} s: {error}") from error
            time.sleep(_PAUSE_S)
