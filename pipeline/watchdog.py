"""The last resort: a client call that outlives every time-out ends its process, and whoever started it goes on anew."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Iterator

from protocol.names import ExitCode


@contextlib.contextmanager
def watched(what: str, limit_s: float) -> Iterator[None]:
    """
    End this process if the block takes longer than ``limit_s``; all its waits have deadlines well below.

    A Python worker of Spark is started again with its task, a run without Spark ends with exit code 3. What was open
    is fenced by the next attempt. The stacks of all threads go to stderr.
    """
    timer = threading.Timer(limit_s, _end, (what, limit_s))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end(what: str, limit_s: float) -> None:
    sys.stderr.write(
        f"pipeline: {what} has hung for {limit_s:g} s, twice --transaction-timeout, in a call without a time-out; "
        "ending this process, run again: the run goes on where Kafka says it stands\n"
    )
    sys.stderr.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(ExitCode.REFUSED)
