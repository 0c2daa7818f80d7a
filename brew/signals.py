"""Handle SIGTERM and SIGINT: the first signal requests a clean stop, a second one ends the process at once."""

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

SAME_REQUEST_S = 0.3
"""A second signal within this time is the same request: `make` and `timeout` forward signals sent to their group."""


class Stopped(BaseException):
    """Raised when SIGTERM or SIGINT interrupts the program; not caught by `except Exception`. ``code``: exit code."""

    def __init__(self, number: int = signal.SIGTERM, code: int | None = None) -> None:
        self.number, self.code = number, 128 + number if code is None else code
        super().__init__(f"stopped by {signal.Signals(number).name}")


class SignalState:
    """How this process handles signals; ``number`` is the signal that requested its end."""

    def __init__(self, stop: threading.Event | None, grace_s: float | None, *, follow: bool) -> None:
        self.number: int | None = None
        self.raising = stop is None
        self._stop, self._grace_s, self._follow = stop, grace_s, follow
        self._received_at = 0.0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        if self.number is not None:
            if time.monotonic() - self._received_at > SAME_REQUEST_S:
                os._exit(128 + number)
            return
        self.number, self._received_at = number, time.monotonic()
        if self._stop is not None:
            _thread.start_new_thread(self._stop_in_thread, (self._stop, number))
        if self.raising:
            raise self.stopped(number)

    def _stop_in_thread(self, stop: threading.Event, number: int) -> None:
        stop.set()
        if self._grace_s is not None:
            time.sleep(self._grace_s)
            logger.warning("stopped by %s, %g s after it came", signal.Signals(number).name, self._grace_s)
            os._exit(128 + number)

    def stopped(self, number: int) -> Stopped:
        return Stopped(number, 0 if self._follow else None)

    def check(self) -> None:
        """Raise `Stopped` if a signal stopped a program that was to end by itself."""
        if self.number is not None and self._stop is not None and not self._follow:
            raise self.stopped(self.number)


_signal_state: SignalState | None = None


def _install(state: SignalState) -> SignalState:
    global _signal_state  # noqa: PLW0603 - handlers are process-wide, too
    _signal_state = state
    signal.signal(signal.SIGTERM, state.handle)
    signal.signal(signal.SIGINT, state.handle)
    return state


def raise_on_signals() -> SignalState:
    """Make SIGTERM and SIGINT raise `Stopped` in the main thread. A second signal ends the process without cleanup."""
    return _install(SignalState(None, None, follow=False))


def stop_on_signals(stop: threading.Event, grace_s: float | None = None, *, follow: bool = False) -> SignalState:
    """
    Make SIGTERM and SIGINT set ``stop``, so that the program finishes its work. A second one ends the process at once.

    ``grace_s``: the first signal also ends the process after that many seconds; for programs that may be interrupted at
    any point. ``follow``: the program never ends by itself, so a stop is not premature (exit code 0).

    A new thread sets the event: the handler runs within the main thread, which may hold the event's lock, and would
    deadlock. It is a bare thread, since `threading` takes a lock to start one.
    """
    return _install(SignalState(stop, grace_s, follow=follow))


@contextmanager
def interruptible() -> Iterator[None]:
    """
    Let a signal raise `Stopped` at once in code that may be interrupted at any point, such as the preflight checks.

    Does nothing outside the main thread, or if this module does not handle the signals of this process.
    """
    state = _signal_state
    if state is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    was_raising, state.raising = state.raising, True
    try:
        if state.number is not None:
            raise state.stopped(state.number)
        yield
    finally:
        state.raising = was_raising


def check_stopped(code: int = 0) -> None:
    """
    Check, after a program's work ended with ``code``, whether a signal ended it prematurely.

    Raises:
        Stopped: a signal stopped a program that was to end by itself.
    """
    if _signal_state is not None and code == 0:
        _signal_state.check()


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore the caller's signal handlers after a command."""
    global _signal_state  # noqa: PLW0603 - handlers are process-wide, too
    handlers, state = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}, _signal_state
    try:
        yield
    finally:
        _signal_state = state
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                signal.signal(number, handler)


def end_at_once(code: int) -> None:
    """Make every later signal end the process with ``code``: the work is done, and Python is shutting down."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(code))
