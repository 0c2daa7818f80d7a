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


@pytest.mark.parametrize(
    ("program", "printed", "hung"),
    [
        pytest.param(HANGS, "", "orders[3] offsets [5, 9) has hung for 0.05 s", id="a call that hangs"),
        # The blocks around it and beside it have time left; one that returned takes nobody else's watch away.
        pytest.param(SEVERAL, "", "orders[1] has hung", id="among others"),
        pytest.param(RETURNS, "alive\n", None, id="a block that returns in time"),
        # Spark forks its Python workers from a process that may have been watched; threads don't survive a fork.
        pytest.param(FORKS, "", "orders[4] has hung for 0.05 s", id="behind a fork"),
        # A failed transaction must not end the process later, nor leave the next one without a watch.
        pytest.param(FAILS, "alive\n", "orders[5] has hung", id="behind a block that raises"),
    ],
)
def test_a_call_that_hangs_ends_the_process_and_says_where(program: str, printed: str, hung: str | None) -> None:
    command = [sys.executable, "-c", IMPORTS + program]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout) == (0 if hung is None else 3, printed), ended.stderr
    if hung is not None:
        assert hung in ended.stderr
        assert "threading.py" in ended.stderr, "the stacks tell the place"


def test_a_process_that_was_stopped_as_a_whole_is_not_blamed() -> None:
    """F05: after a long SIGSTOP the run goes on by itself; it would else die of its sleep."""
    with subprocess.Popen([sys.executable, "-c", IMPORTS + SLEEPS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(1.5)  # the time itself is what is tested
        os.kill(process.pid, signal.SIGCONT)
        assert process.stdout.readline() == "alive\n"
        assert process.wait(10) == 0
