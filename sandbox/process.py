"""Processes that outlive the command that started them, their ports, and files that nobody else may open."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from brew.deadline import Deadline
from brew.errors import Refused


def write_private(path: Path, content: bytes) -> None:
    """Write a file that nobody else may ever open, not even between two system calls; readers find old or new."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state file in one step: readers find old or new."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(state, indent=2) + "\n")
    fresh.replace(path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """A block that one process at a time is in."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


HOST = "127.0.0.1"

# Below the range that systems take outgoing ports from: a killed server finds its port free when it comes back, and
# a client that keeps trying a port nobody listens on can't end up connected to itself.
_CANDIDATES = range(15_000, 30_000)


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` now; ports of connections that have just ended count as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free(count: int, *, apart_from: Collection[int] = ()) -> list[int]:
    """``count`` different free ports."""
    ports: list[int] = []
    for port in random.sample(_CANDIDATES, k=len(_CANDIDATES)):
        if len(ports) == count:
            break
        if port not in apart_from and is_free(port):
            ports.append(port)
    if len(ports) < count:
        raise Refused(f"{count} free ports are needed and {len(ports)} were found from {_CANDIDATES[0]} on")
    return ports


def require_free(port: int) -> None:
    """Raise `Refused`, with the holder's name if known, when ``port`` is taken; 0 means no port."""
    if port and not is_free(port):
        raise Refused(f"port {port} is taken by {_holder(port)}; stop it, or choose another with --port")


def _holder(port: int) -> str:
    try:
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                return f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
    except psutil.Error:
        pass  # some systems tell only their administrator
    return "another process"


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
        """Send a signal; False when the process is no longer there. SIGSTOP is awaited (`_all_threads_stopped`)."""
        process = self.process()
        if process is None:
            return False
        try:
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        deadline = Deadline(_STILL_S)
        while number is signal.SIGSTOP and not _all_threads_stopped(self.pid) and not deadline.expired():
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


class ServerProcess:
    """A server that this program has started: its identity, and on request a leash."""

    def __init__(self, command: Sequence[str], log: Path, *, leashed: bool) -> None:
        """Start ``command`` in a session of its own, output appended to ``log``; leashed, it ends when we end."""
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.identity = Identity.of(self._child.pid)
        self._leash = _kill_with_parent(self._child.pid) if leashed else None

    def ended(self) -> None:
        """Take the leash off and collect the exit status, once the process has been stopped."""
        if self._leash is not None and self._leash.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._leash.communicate(b"ended\n")
            self._leash = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1)


def _kill_with_parent(pid: int) -> subprocess.Popen[bytes]:
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


def _all_threads_stopped(pid: int) -> bool:
    """Whether all threads are stopped: the others work on until the one that got the signal has a processor."""
    try:
        states = [(task / "stat").read_text().rpartition(") ")[2][:1] for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended, or this is no Linux
    return set(states) <= set("TtXZ")
