"""How programs take SIGTERM and SIGINT: the first one asks for a clean end, a second one ends the process at once."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

logger = logging.getLogger(__name__)

SAME_S = 0.3
"""A signal so soon after the first is the same request: `make` and `timeout` pass on what their whole group got."""


class Stopped(BaseException):
    """SIGTERM or SIGINT ended what the program did; no `except Exception` swallows it. ``code``: the exit code."""

    def __init__(self, number: int = signal.SIGTERM, code: int | None = None) -> None:
        self.number, self.code = number, 128 + number if code is None else code
        super().__init__(f"stopped by {signal.Signals(number).name}")


class SignalState:
    """What the signals of this process lead to; ``number`` is the signal that asked for its end."""

    def __init__(self, stop: threading.Event | None, grace_s: float | None, *, follow: bool) -> None:
        self.number: int | None = None
        self.raising = stop is None
        self._stop, self._grace_s, self._follow = stop, grace_s, follow
        self._at = 0.0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            if time.monotonic() - self._at > SAME_S:
                os._exit(128 + number)
            return
        self.number, self._at = number, time.monotonic()
        if self._stop is not None:
            _thread.start_new_thread(self._obey, (self._stop, number))
        if self.raising:
            raise self.stopped(number)

    def _obey(self, stop: threading.Event, number: int) -> None:
        stop.set()
        if self._grace_s is not None:
            time.sleep(self._grace_s)
            logger.warning("stopped by %s, %g s after it came", signal.Signals(number).name, self._grace_s)
            os._exit(128 + number)

    def stopped(self, number: int) -> Stopped:
        return Stopped(number, 0 if self._follow else None)

    def check(self) -> None:
        """Raise `Stopped` where a program was to reach an end of its own, and a signal set its event first."""
        if self.number is not None and self._stop is not None and not self._follow:
            raise self.stopped(self.number)


_signal_state: SignalState | None = None


def _listen(asked: SignalState) -> SignalState:
    global _signal_state  # noqa: PLW0603 - handlers are the process's, too
    _signal_state = asked
    signal.signal(signal.SIGTERM, asked.handle)
    signal.signal(signal.SIGINT, asked.handle)
    return asked


def raise_on_signals() -> SignalState:
    """SIGTERM and SIGINT raise `Stopped` in the main thread. A second one ends the process as it is."""
    return _listen(SignalState(None, None, follow=False))


def stop_on_signals(stop: threading.Event, grace_s: float | None = None, *, follow: bool = False) -> SignalState:
    """
    SIGTERM and SIGINT set ``stop``: the program ends what it does. A second one ends the process as it is.

    ``grace_s``: so does a first one, after that many seconds, where what is not committed may be left at any point.
    ``follow``: the program has no end of its own, so that a stop is none that came too early (exit code 0).

    The event is set in a thread of its own: a handler runs between two lines of the main thread, which may hold
    the event's lock just then (it looks at it all the time), and would wait for itself for ever. The thread is a
    bare one, since `threading` takes a lock to start its own.
    """
    return _listen(SignalState(stop, grace_s, follow=follow))


@contextmanager
def interruptible() -> Iterator[None]:
    """
    Around what may be left at any point, as the checks before the work: here a signal raises `Stopped` at once.

    Does nothing outside of the main thread, or in a process whose signals are not taken by this module.
    """
    asked = _signal_state
    if asked is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    before, asked.raising = asked.raising, True
    try:
        if asked.number is not None:
            raise asked.stopped(asked.number)
        yield
    finally:
        asked.raising = before


def check_stopped(code: int = 0) -> None:
    """
    Called when a program's work has ended with ``code``; one that follows is stopped by a signal as it should be.

    Raises:
        Stopped: it was to reach an end of its own, and was stopped before.
    """
    if _signal_state is not None and code == 0:
        _signal_state.check()


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Around a command: whoever called it inside of a process has its own signal handlers back behind it."""
    global _signal_state  # noqa: PLW0603 - handlers are the process's, too
    before, asked = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}, _signal_state
    try:
        yield
    finally:
        _signal_state = asked
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


def end_at_once(code: int) -> None:
    """From now on a signal ends the process with ``code``: its work is done, and Python is closing down."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(code))
