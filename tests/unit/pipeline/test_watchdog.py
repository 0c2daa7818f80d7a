"""The watchdog: a block that hangs ends its process with a sentence and all stacks; one that returns does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

HANGS = """
import threading
from pipeline.watchdog import watched
with watched("orders[3] offsets [5, 9)", 0.05):
    threading.Event().wait(60)
"""
RETURNS = """
import threading
from pipeline.watchdog import watched
with watched("orders[3]", 0.05):
    pass
threading.Event().wait(0.6)
print("alive")
"""

SLEEPS = """
import threading
from pipeline.watchdog import watched
with watched("orders[3]", 1.0):
    print("ready", flush=True)
    threading.Event().wait(0.3)
print("alive")
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)


def test_a_call_that_hangs_ends_the_process_and_says_where() -> None:
    ended = run(HANGS)
    assert ended.returncode == 3
    assert "orders[3] offsets [5, 9) has hung for 0.05 s" in ended.stderr
    assert "threading.py" in ended.stderr, "the stacks tell the place"


def test_a_block_that_returns_in_time_stops_the_watch() -> None:
    ended = run(RETURNS)
    assert (ended.returncode, ended.stdout) == (0, "alive\n")


def test_a_process_that_was_stopped_as_a_whole_is_not_blamed() -> None:
    """F05: after a long SIGSTOP the run goes on by itself; it would else die of its sleep."""
    with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)  # the time itself is what is tested
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "alive\n"
        assert process.wait(10) == 0
