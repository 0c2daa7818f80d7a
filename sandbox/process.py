"""Processes that outlive the command that started them, and are never mistaken for others."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from protocol.deadline import Deadline

_STILL_S, _LOOK_S = 5.0, 0.002
# The clock that start times are computed from can be set while a server runs.
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A process number together with its start time: the number alone may belong to another process by now."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> Identity:
        return cls(pid, psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """The running process; None when it has ended, or when its number was given to another one."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created) > _CLOCK_SLACK_S:
                return None
            return None if process.status() == psutil.STATUS_ZOMBIE else process
        except psutil.NoSuchProcess:
            return None

    def alive(self) -> bool:
        return self.process() is not None

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; False when the process is no longer there. SIGSTOP is waited for, see `_stand_still`."""
        process = self.process()
        if process is None:
            return False
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        deadline = Deadline(_STILL_S)
        while number is signal.SIGSTOP and not _stand_still(self.pid) and not deadline.expired():
            time.sleep(_LOOK_S)
        return True

    def stop(self, grace: Deadline) -> bool:
        """End the process: SIGTERM, after ``grace`` SIGKILL; False when it was gone before."""
        if not self.send(signal.SIGTERM):
            return False
        self.send(signal.SIGCONT)  # a paused process takes SIGTERM only once it goes on
        if not self.wait(grace):
            self.kill()
        return True

    def kill(self) -> None:
        """SIGKILL, and wait until the system has taken everything back, ports included."""
        if self.send(signal.SIGKILL):
            self.wait(Deadline(10))

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the end; False when the process is still there at the deadline."""
        process = self.process()
        if process is None:
            return True
        try:
            process.wait(timeout=deadline.remaining_s())
        except psutil.TimeoutExpired:
            return False
        return True


class Started:
    """A server that this program has started: its identity, and on request a leash."""

    def __init__(self, command: Sequence[str], log: Path, *, leashed: bool) -> None:
        """Start ``command`` in a session of its own, output appended to ``log``; leashed, it ends when we end."""
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.identity = Identity.of(self._child.pid)
        self._leash = _leash(self._child.pid) if leashed else None

    def ended(self) -> None:
        """Take the leash off and collect the exit status, once the process has been stopped."""
        if self._leash is not None and self._leash.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._leash.communicate(b"ended\n")
            self._leash = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1)


def _leash(pid: int) -> subprocess.Popen[bytes]:
    """
    A shell that kills ``pid`` once this program is gone, however it went.

    It reads from a pipe that only we hold: a word says that the server has ended, the end of the pipe that we have.
    """
    script = 'read -r word || kill -KILL "$1"'
    return subprocess.Popen(
        ["/bin/sh", "-c", script, "leash", str(pid)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _stand_still(pid: int) -> bool:
    """Whether all threads are stopped: the others work on until the one that got the signal has a processor."""
    try:
        states = [(task / "stat").read_text().rpartition(") ")[2][:1] for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended, or this is no Linux
    return set(states) <= set("TtXZ")
