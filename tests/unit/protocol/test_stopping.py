"""SIGTERM sets the program's event, whatever its main thread does just then."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

_DEADLINE_S = 20.0
# A main thread holds its event's lock for microseconds at a time, so a signal seldom falls into them: held here.
_IN_THE_MIDST = """
import signal, sys, threading
from protocol.stopping import stop_on_signals
stop = threading.Event()
stop_on_signals(stop)
with stop._cond:
    signal.raise_signal(int(sys.argv[1]))
sys.exit(0 if stop.wait(10) else 3)
"""
_DEAF = """
import signal, sys, threading
from protocol.stopping import stop_on_signals
stop = threading.Event()
stop_on_signals(stop, *map(float, sys.argv[1:]))
signal.raise_signal(signal.SIGTERM)
if len(sys.argv) == 1:
    signal.raise_signal(signal.SIGTERM)
threading.Event().wait(10)
"""


def _ended(program: str, *words: str) -> int:
    return subprocess.run([sys.executable, "-c", program, *words], timeout=_DEADLINE_S, check=False).returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_main_thread_that_holds_the_events_lock(number: signal.Signals) -> None:
    """A run under load never ended once: the handler waited for the lock of its own thread."""
    assert _ended(_IN_THE_MIDST, str(int(number))) == 0


def test_a_second_signal_ends_a_program_that_does_not_listen() -> None:
    assert _ended(_DEAF) == 128 + signal.SIGTERM


def test_a_grace_ends_a_program_that_does_not_listen_to_the_first() -> None:
    assert _ended(_DEAF, "0.1") == 128 + signal.SIGTERM
