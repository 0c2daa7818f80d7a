"""The watchdog: a block that hangs ends its process with a sentence and all stacks; one that returns does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

IMPORTS = """
import contextlib, os, sys, threading
from brew.watchdog import watched
"""
HANGS = """
with watched("orders[3] offsets [5, 9)", 0.05):
    threading.Event().wait(60)
"""
RETURNS = """
with watched("orders[3]", 0.05):
    pass
threading.Event().wait(0.6)
print("alive")
"""

SLEEPS = """
with watched("orders[3]", 1.0):
    print("ready", flush=True)
    threading.Event().wait(0.3)
print("alive")
"""

FORKS = """
with watched("before the fork", 60.0):
    pass
child = os.fork()
if child == 0:
    with watched("orders[4]", 0.05):
        threading.Event().wait(20)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
SEVERAL = """
def hang():
    with watched("orders[1]", 0.6):
        entered.set()
        threading.Event().wait(20)
entered = threading.Event()
with watched("orders[0]", 60.0):
    threading.Thread(target=hang, daemon=True).start()
    entered.wait(20)
    with watched("orders[2]", 60.0):
        pass
    threading.Event().wait(20)
"""
FAILS = """
with contextlib.suppress(ValueError), watched("orders[3]", 0.05):
    raise ValueError("a transaction that failed")
threading.Event().wait(0.6)
print("alive")
with watched("orders[5]", 0.05):
    threading.Event().wait(20)
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", IMPORTS + program], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (HANGS, "orders[3] offsets [5, 9) has hung for 0.05 s"),
        # The blocks around it and beside it have time left; one that returned takes nobody else's watch away.
        (SEVERAL, "orders[1] has hung"),
    ],
    ids=["alone", "among others"],
)
def test_a_call_that_hangs_ends_the_process_and_says_where(program: str, said: str) -> None:
    ended = run(program)
    assert ended.returncode == 3, ended.stderr
    assert said in ended.stderr
    assert "threading.py" in ended.stderr, "the stacks tell the place"


def test_a_block_that_returns_in_time_stops_the_watch() -> None:
    ended = run(RETURNS)
    assert (ended.returncode, ended.stdout) == (0, "alive\n")


def test_a_process_that_was_stopped_as_a_whole_is_not_blamed() -> None:
    """F05: after a long SIGSTOP the run goes on by itself; it would else die of its sleep."""
    with subprocess.Popen([sys.executable, "-c", IMPORTS + SLEEPS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)  # the time itself is what is tested
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "alive\n"
        assert process.wait(10) == 0


def test_a_process_behind_a_fork_is_watched_too() -> None:
    """Spark forks its Python workers from a process that may have been watched; threads don't survive a fork."""
    ended = run(FORKS)
    assert ended.returncode == 3, ended.stderr
    assert "orders[4] has hung for 0.05 s" in ended.stderr


def test_a_block_that_raises_is_watched_no_longer_and_the_next_one_is() -> None:
    """A failed transaction must not end the process later, nor leave the next one without a watch."""
    ended = run(FAILS)
    assert (ended.returncode, ended.stdout) == (3, "alive\n"), ended.stderr
    assert "orders[5] has hung" in ended.stderr
