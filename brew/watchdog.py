"""Watchdog: kills the process when a client call outlives every time-out; its parent process restarts the work."""

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

MAX_TIMEOUTS = 2
"""The maximum length of an attempt in transaction time-outs; all its waits end within the first."""
_TICK_S = 0.25


@contextlib.contextmanager
def watched(task: str, limit_s: float) -> Iterator[None]:
    """
    Kill this process if the block takes longer than ``limit_s``; all its waits have much shorter deadlines.

    Spark restarts a Python worker with its task; a run without Spark ends with exit code 3. The next attempt fences an
    open transaction. The stacks of all threads go to stderr. Time during which the whole process was suspended
    (SIGSTOP, a sleeping machine) does not count.
    """
    watchdog = _watchdog(os.getpid())
    number = watchdog.begin(task, limit_s)
    try:
        yield
    finally:
        watchdog.end(number)


class _Watchdog:
    """One thread for all blocks of a process; it counts its own ticks, so that suspended time does not count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._remaining: dict[int, tuple[str, float, float]] = {}
        self._last = 0
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def begin(self, task: str, limit_s: float) -> int:
        with self._lock:
            self._last += 1
            self._remaining[self._last] = (task, limit_s, limit_s)
            return self._last

    def end(self, number: int) -> None:
        with self._lock:
            del self._remaining[number]

    def _run(self) -> None:
        while True:
            time.sleep(_TICK_S)
            with self._lock:
                for number, (task, limit_s, left_s) in self._remaining.items():
                    self._remaining[number] = (task, limit_s, left_s - _TICK_S)
                    if left_s <= 0:
                        _kill_process(task, limit_s)


@functools.cache
def _watchdog(_pid: int) -> _Watchdog:
    """Return this process's watchdog; Spark forks its workers, and a fork has no threads."""
    return _Watchdog()


def _kill_process(task: str, limit_s: float) -> None:
    logger.critical(
        "pipeline: %s has hung for %g s, twice --transaction-timeout, in a call without a time-out; "
        "ending this process, run again: the run goes on where Kafka says it stands",
        task,
        limit_s,
    )
    faulthandler.dump_traceback(all_threads=True)
    os._exit(ExitCode.REFUSED)
