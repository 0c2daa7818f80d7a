"""A source that is asked on and on in a thread of its own; what it told last, and whether that is stale."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from brew.deadline import Deadline
from brew.errors import BrewError

_T = TypeVar("_T")
_STALE_AFTER_POLLS = 3


@dataclass(frozen=True, slots=True)
class PollResult(Generic[_T]):
    """
    What a source told last; ``at_s`` and ``since_s`` are monotonic seconds, of that answer and of the first question.

    ``failed`` is why the latest question had no answer. ``every_s`` is the pause between two, ``patience_s`` the time
    that one may take.
    """

    name: str
    every_s: float
    patience_s: float
    value: _T | None = None
    at_s: float | None = None
    since_s: float = 0.0
    took_s: float = 0.0
    failed: str | None = None

    def age_s(self, now_s: float) -> float | None:
        """How old the answer is; None where there was none yet."""
        return None if self.at_s is None else max(0.0, now_s - self.at_s)

    def stale(self, now_s: float) -> bool:
        """True once a question failed, or no answer came for three of its pauses and the time that one may take."""
        last = self.since_s if self.at_s is None else self.at_s
        return (
            self.failed is not None
            or now_s - last > _STALE_AFTER_POLLS * max(self.every_s, self.took_s) + self.patience_s
        )


class Poller(Generic[_T]):
    """
    Asks ``ask`` again and again, each time with a fresh deadline; at most half of the time is spent on asking.

    A question that never ends stops nobody else: the answer just grows old.
    """

    def __init__(
        self,
        name: str,
        ask: Callable[[Deadline], _T],
        every_s: float,
        patience_s: float,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._ask, self._close = ask, close
        self._answer: PollResult[_T] = PollResult(name, every_s, patience_s)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"ask-{name}", daemon=True)

    @property
    def answer(self) -> PollResult[_T]:
        return self._answer

    def start(self) -> None:
        self._answer = replace(self._answer, since_s=time.monotonic())
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stop.set()

    def leave(self, deadline: Deadline) -> None:
        """Wait for the last answer; a question that hangs is left behind with its thread."""
        if self._thread.is_alive():
            self._thread.join(deadline.remaining_s())

    def _run(self) -> None:
        while not self._stop.is_set():
            self._once()
            self._stop.wait(max(self._answer.every_s, self._answer.took_s))
        self._close()

    def _once(self) -> None:
        began = time.monotonic()
        try:
            value = self._ask(Deadline(self._answer.patience_s))
        except BrewError as error:
            self._failed(str(error), began)
        except Exception as error:  # noqa: BLE001 - what nobody foresaw shows as a stale source, not as a silent one
            self._failed(f"a question ended with {type(error).__name__}", began)
        else:
            now = time.monotonic()
            self._answer = replace(self._answer, value=value, at_s=now, took_s=now - began, failed=None)

    def _failed(self, why: str, began: float) -> None:
        self._answer = replace(self._answer, failed=why, took_s=time.monotonic() - began)
