"""Processes of the sandbox: told apart by number and start time, ended in two steps, never outliving a leash."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from harness.waiting import await_ends, has_ended, until

from brew.deadline import Deadline
from sandbox import process
from sandbox.process import Identity, ServerProcess

WAITS = "signal.alarm(600); signal.pause()"
IDLE = [sys.executable, "-c", f"import signal; {WAITS}"]
STUBBORN = [
    sys.executable,
    "-uc",
    f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); {WAITS}",
]


def test_a_process_number_given_to_another_process_is_not_ours(tmp_path: Path) -> None:
    """A state file from before a reboot must not make `down` end somebody else's program."""
    started = ServerProcess(IDLE, tmp_path / "log", leashed=True)
    older = Identity(started.identity.pid, started.identity.created - 3600)
    assert not older.alive()
    assert not older.stop(Deadline(1))
    assert started.identity.alive()
    started.identity.kill()
    started.ended()


def test_a_process_that_has_ended_is_not_alive_and_stopping_it_is_harmless(tmp_path: Path) -> None:
    """Also while nobody has asked for its exit status yet."""
    started = ServerProcess([sys.executable, "-c", ""], tmp_path / "log", leashed=False)
    assert started.identity.wait(Deadline(10))
    assert not started.identity.alive()
    assert not started.identity.stop(Deadline(1))
    started.ended()


def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    """`down` ends, whatever state a server is in."""
    log = tmp_path / "log"
    started = ServerProcess(STUBBORN, log, leashed=True)
    until(lambda: b"ready" in log.read_bytes(), "the process getting ready", 10)
    assert started.identity.stop(Deadline(0.05))
    assert not started.identity.alive()
    started.ended()


def test_a_leashed_server_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    """A test run that is killed with SIGKILL cleans nothing up itself, and still leaves no broker behind."""
    script = (
        "import os, pathlib, signal, sys; from sandbox.process import ServerProcess;"
        f"s = ServerProcess({IDLE!r}, pathlib.Path({str(tmp_path / 'log')!r}), leashed=True);"
        "print(s.identity.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    root = Path(__file__).resolve().parents[3]
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False, cwd=root, text=True)
    left = int(told.stdout)
    await_ends([left], Deadline(10))
    assert has_ended(left)


def test_a_server_without_leash_outlives_its_starter(tmp_path: Path) -> None:
    """`python -m sandbox up` returns, and the broker stays."""
    script = (
        "import pathlib; from sandbox.process import ServerProcess;"
        f"s = ServerProcess({IDLE!r}, pathlib.Path({str(tmp_path / 'log')!r}), leashed=False);"
        "print(s.identity.pid, s.identity.created, flush=True)"
    )
    root = Path(__file__).resolve().parents[3]
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, cwd=root, text=True)
    pid, created = told.stdout.split()
    left = Identity(int(pid), float(created))
    assert left.alive()
    left.kill()
    assert not left.alive()


def test_a_process_that_was_stopped_stands_still_when_the_signal_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its threads work on until the one that got the signal has a processor: under load a paused broker answered."""
    looks, real = list[bool](), process._all_threads_stopped

    def later(pid: int) -> bool:
        looks.append(len(looks) > 1 and real(pid))
        return looks[-1]

    monkeypatch.setattr(process, "_all_threads_stopped", later)
    started = ServerProcess(IDLE, tmp_path / "log", leashed=True)
    try:
        assert started.identity.send(signal.SIGSTOP)
        stopped = psutil.Process(started.identity.pid).status() == psutil.STATUS_STOPPED
        assert (looks[:2], looks[-1], stopped) == ([False, False], True, True)
        seen = len(looks)
        assert started.identity.send(signal.SIGCONT)
        assert len(looks) == seen
    finally:
        started.identity.kill()
        started.ended()
