"""The last resort: a client call that outlives every time-out ends its process, and whoever started it goes on anew."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import logging
import os
import threading
import time
from collections.abc import Iterator

from brew.names import ExitCode

logger = logging.getLogger(__name__)

PATIENCE = 2
"""Transaction time-outs that one may take; all its waits end within the first."""
_TICK_S = 0.25


@contextlib.contextmanager
def watched(what: str, limit_s: float) -> Iterator[None]:
    """
    End this process if the block takes longer than ``limit_s``; all its waits have deadlines well below.

    A Python worker of Spark is started again with its task, a run without Spark ends with exit code 3. What was open
    is fenced by the next attempt. The stacks of all threads go to stderr. Time in which this process stood still as a
    whole (SIGSTOP, a suspended machine) does not count.
    """
    watch = _watch(os.getpid())
    number = watch.begin(what, limit_s)
    try:
        yield
    finally:
        watch.end(number)


class _Watch:
    """One thread for all blocks of a process; it counts its own ticks, so that a process that slept is not blamed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[int, tuple[str, float, float]] = {}
        self._last = 0
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def begin(self, what: str, limit_s: float) -> int:
        with self._lock:
            self._last += 1
            self._left[self._last] = (what, limit_s, limit_s)
            return self._last

    def end(self, number: int) -> None:
        with self._lock:
            del self._left[number]

    def _run(self) -> None:
        while True:
            time.sleep(_TICK_S)
            with self._lock:
                for number, (what, limit_s, left_s) in self._left.items():
                    self._left[number] = (what, limit_s, left_s - _TICK_S)
                    if left_s <= 0:
                        _end(what, limit_s)


@functools.cache
def _watch(_pid: int) -> _Watch:
    """The watch of one process; Spark forks its workers, and a fork has no threads."""
    return _Watch()


def _end(what: str, limit_s: float) -> None:
    logger.critical(
        "pipeline: %s has hung for %g s, twice --transaction-timeout, in a call without a time-out; "
        "ending this process, run again: the run goes on where Kafka says it stands",
        what,
        limit_s,
    )
    faulthandler.dump_traceback(all_threads=True)
    os._exit(ExitCode.REFUSED)
