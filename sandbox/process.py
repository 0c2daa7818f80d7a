"""Processes that outlive the command that started them, their ports, and private files."""

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import psutil

from brew.deadline import Deadline
from brew.errors import Refused

_T = TypeVar("_T")


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically that nobody else can ever open, not even between two system calls."""
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    fresh.replace(path)


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a state file atomically: readers see the old or the new one."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(state, indent=2) + "\n")
    fresh.replace(path)


def read_state(path: Path, parse: Callable[[Any], _T], what: str, remedy: str) -> _T | None:
    """Return a state file's content, None without one; `Refused` if it is invalid: a guess might end others."""
    if not path.exists():
        return None
    try:
        return parse(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise Refused(f"{path} is not a valid state file of a {what} ({error}); {remedy}") from error


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """A block that only one process at a time can enter."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


HOST = "127.0.0.1"

# Below the ephemeral port range: a killed server finds its port free when it restarts, and a client that retries a port
# without a listener can't connect to itself.
_CANDIDATES = range(15_000, 30_000)


def is_free(port: int) -> bool:
    """Return whether a server could listen on ``port`` now; ports of connections just closed count as free."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def free(count: int, *, apart_from: Collection[int] = ()) -> list[int]:
    candidates = random.sample(_CANDIDATES, k=len(_CANDIDATES))
    ports = list(islice((port for port in candidates if port not in apart_from and is_free(port)), count))
    if len(ports) < count:
        raise Refused(f"{count} free ports are needed, but only {len(ports)} were found from {_CANDIDATES[0]} on")
    return ports


class PortTaken(Refused):
    """Another process listens on a server's port."""


def require_free(port: int) -> None:
    """Raise `PortTaken`, with the owner's name if known, if ``port`` is taken; 0 means no port."""
    if not port or is_free(port):
        return
    holder = "another process"
    with contextlib.suppress(psutil.Error):  # some systems require root for this
        for connection in psutil.net_connections("tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                holder = f"{psutil.Process(connection.pid).name()} (process {connection.pid})"
                break
    raise PortTaken(f"port {port} is taken by {holder}; stop it, or choose another with --port")


_STILL_S, _LOOK_S, _POLL_S, _LAST_LINES = 5.0, 0.002, 0.02, 12
_ADDRESS_IN_USE = b"Address already in use"
# The clock that start times are computed from may be adjusted while a server runs.
_CLOCK_SLACK_S = 2.0


@dataclass(frozen=True, slots=True)
class Identity:
    """A pid with its start time: the pid alone may have been reused by another process."""

    pid: int
    created: float

    @classmethod
    def of(cls, pid: int) -> Identity:
        return cls(pid, psutil.Process(pid).create_time())

    @classmethod
    def parse(cls, kept: Mapping[str, Any] | None) -> Identity | None:
        """Return the identity of a state file; None if the server was not running."""
        return cls(**kept) if kept else None

    def process(self) -> psutil.Process | None:
        """Return the running process, or None if it has ended or its pid was reused."""
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
        """Send a signal, and wait until a SIGSTOP is in effect; return False if the process is gone."""
        try:
            if (process := self.process()) is None:
                return False
            process.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        deadline = Deadline(_STILL_S)
        while number is signal.SIGSTOP and not _all_threads_stopped(self.pid) and not deadline.expired():
            time.sleep(_LOOK_S)
        return True

    def send_all(self, number: signal.Signals) -> list[psutil.Process]:
        """Send a signal to the process and all its descendants; return those, or nothing if the process is gone."""
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            if (process := self.process()) is not None:
                family = [process, *process.children(recursive=True)]
        for one in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                Identity(one.pid, one.create_time()).send(number)
        return family

    def stop(self, grace: Deadline) -> bool:
        """End the process with SIGTERM and, after ``grace``, SIGKILL; return False if it was already gone."""
        if not self.send(signal.SIGTERM):
            return False
        self.send(signal.SIGCONT)  # a stopped process handles SIGTERM only once it continues
        if not self.wait(grace):
            self.kill()
        return True

    def kill(self) -> None:
        """Send SIGKILL, and wait until the system has released everything, ports included."""
        if self.send(signal.SIGKILL):
            self.wait(Deadline(10))

    def wait(self, deadline: Deadline) -> bool:
        """Wait for the end; return False if the process is still there at the deadline."""
        try:
            if (process := self.process()) is not None:
                process.wait(timeout=deadline.remaining_s())
        except psutil.TimeoutExpired:
            return False
        return True


class ServerProcess:
    """A server that this program has started; ``ends_with_parent``: a watch kills it when this program ends."""

    def __init__(self, command: Sequence[str], log: Path, *, ends_with_parent: bool) -> None:
        """Start ``command`` in its own session, and append its output to ``log``."""
        with log.open("ab") as out:
            self._child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.identity = Identity.of(self._child.pid)
        self._parent_watch = _kill_with_parent(self._child.pid) if ends_with_parent else None

    def ended(self) -> None:
        """End that watch and collect the exit status, once the process has been stopped."""
        if self._parent_watch is not None and self._parent_watch.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._parent_watch.communicate(b"ended\n")
            self._parent_watch = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(timeout=1)


def await_start(
    name: str, ready: Callable[[], bool], alive: Callable[[], bool], log: Path, deadline: Deadline, begin: int = 0
) -> None:
    """Wait until a server is ready; `Refused`, with its log from ``begin`` on, if not in time; `PortTaken` if so."""
    while not ready():
        if not alive():
            refused = not_started(name, "it exited during startup", log, begin)
            raise PortTaken(str(refused)) if _ADDRESS_IN_USE in read_from(log, begin) else refused
        if deadline.expired():
            raise not_started(name, f"it was not ready within {deadline.budget_s:g} s", log, begin)
        time.sleep(_POLL_S)


def not_started(name: str, why: str, log: Path, begin: int = 0) -> Refused:
    lines = read_from(log, begin).decode("utf-8", "replace").splitlines()
    shown = [f"  {line}" for line in lines if not line.startswith("\t")]  # stack traces stay in the log
    last = "\n".join(shown[-_LAST_LINES:])
    return Refused(f"{name} did not start: {why}; last lines of {log}:\n{last}")


def read_from(log: Path, begin: int) -> bytes:
    with log.open("rb") as file:
        file.seek(begin)
        return file.read()


def _kill_with_parent(pid: int) -> subprocess.Popen[bytes]:
    """Start a shell that kills ``pid`` once our end of its pipe closes without a word, however this program ends."""
    script = 'read -r word || kill -KILL "$1"'
    command, nowhere = ["/bin/sh", "-c", script, "watch-parent", str(pid)], subprocess.DEVNULL
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, start_new_session=True)


def _all_threads_stopped(pid: int) -> bool:
    """Return whether all threads are stopped: others keep running until the one that got the signal is scheduled."""
    try:
        states = [(task / "stat").read_text().rpartition(") ")[2][:1] for task in Path(f"/proc/{pid}/task").iterdir()]
    except (FileNotFoundError, ProcessLookupError):
        return True  # it has ended, or this is not Linux
    return set(states) <= set("TtXZ")
