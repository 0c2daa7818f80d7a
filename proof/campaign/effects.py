"""
Faults of processes, and their effects, from brokers and journals.

A cell that counted only its own action would show nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import threading
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Self

import psutil

from brew.deadline import Deadline
from brew.journal import Entry, Step
from proof.campaign.journals import Kill, is_fenced, open_ranges
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment

OPEN = "open_when_struck"
"""What fires: transactions of those who are struck that the brokers know as open at that moment."""
COPIES = "copies"
LEADERS_MOVED = "leaders_moved"
HOLDERS = "holders"
"""What fires: writers that were seen with a lease holder, a process connected to its driver (docs/decisions/0009)."""

_TRIES = 400
_FENCED_S = 5.0
_DIE_S = 10.0
_LOOK_S = 0.03
_PYTHON = "python"
_CGROUPS = Path("/sys/fs/cgroup")
_PROCS = "cgroup.procs"
_PIDFD_GETFD = 438  # the number of the system call, the same on all architectures


def caught_open(
    stage: CellEnvironment, stopped: Sequence[psutil.Process], *, at_work: Sequence[psutil.Process] = ()
) -> set[int]:
    """
    Stop processes, again and again, until the brokers hold a transaction of theirs open; they stay stopped.

    ``at_work`` are those whose transactions count, where they are others. The partitions of the input; empty, with
    all of them going on, when it did not come to that.
    """
    for _ in range(_TRIES):
        stage.deadline.check("a transaction that is open")
        signal_all(stopped, stop=True)
        partitions = _open_of(stage, {process.pid for process in at_work or stopped})
        if partitions:
            stage.fire(OPEN, len(partitions))
            return partitions
        signal_all(stopped, stop=False)
        time.sleep(stage.random.uniform(0.001, 0.05))
    return set()


def signal_all(processes: Iterable[psutil.Process], *, stop: bool) -> None:
    """SIGSTOP or SIGCONT to processes; those that have ended are passed over."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if stop:
                process.suspend()
            else:
                process.resume()


def kill_all(processes: Iterable[psutil.Process]) -> float:
    """SIGKILL to all of them; return when that was done."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return time.time()


def tree(*roots: psutil.Process) -> list[psutil.Process]:
    """Processes and all below them, each once."""
    known: dict[int, psutil.Process] = {}
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            known |= {process.pid: process for process in (root, *root.children(recursive=True))}
    return list(known.values())


def _open_of(stage: CellEnvironment, pids: Collection[int]) -> set[int]:
    """Ask the brokers for open transactions, if the journals know of any."""
    stage.journals.look()
    begun = {p for pid in pids for p in open_ranges(stage.journals.entries, Kill(time.time(), pid))}
    if not begun:
        return set()
    known = {transaction.transactional_id for transaction in stage.open_transactions()}
    return held_open({p: stage.names.transactional_id(p) for p in begun}, known)


def held_open(begun: Mapping[int, str], known: Collection[str | None]) -> set[int]:
    """The partitions whose transaction a process has begun and the brokers know as open; ``begun`` holds their ids."""
    return {partition for partition, name in begun.items() if name in known}


def copies(entries: Iterable[Entry]) -> int:
    """Ranges that two processes were at work on at the same time."""
    spans: dict[tuple[int, int, int], dict[int, tuple[float, float]]] = {}
    for entry in entries:
        if entry.step is Step.READ:
            continue
        place = entry.fields["partition"], entry.fields["start"], entry.fields["until"]
        began, _ = spans.setdefault(place, {}).get(entry.pid, (entry.at, entry.at))
        spans[place][entry.pid] = (began, entry.at)
    return sum(_overlap(sorted(by_pid.values())) for by_pid in spans.values())


def _overlap(spans: Sequence[tuple[float, float]]) -> bool:
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def fenced_since(stage: CellEnvironment, pids: Collection[int], since: float = 0.0) -> bool:
    """Whether one of these processes is fenced within 5 s, which its journal says."""
    limit = Deadline(_FENCED_S)
    while not limit.expired():
        stage.journals.look()
        if any(is_fenced(e) for e in stage.journals.entries if e.pid in pids and e.at > since):
            return True
        time.sleep(0.01)
    return False


def lines(writer: Program, holder: psutil.Process) -> set[tuple[int, int]]:
    """A lease holder's connections to its driver: its own port, and the number of its descriptor."""
    with contextlib.suppress(psutil.Error):
        return _connections(holder, _listening(psutil.Process(writer.pid)))
    return set()


def cut(holder: psutil.Process, descriptor: int) -> None:
    """
    Shut a connection of another process down, both ways, as a network does that breaks.

    Raises:
        OSError: the system does not hand out its descriptor.
    """
    process = os.pidfd_open(holder.pid)
    try:
        mine = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if mine < 0:
        raise OSError(ctypes.get_errno(), f"no way to descriptor {descriptor} of process {holder.pid}")
    with socket.socket(fileno=mine) as line:
        line.shutdown(socket.SHUT_RDWR)


def holders(writer: Program) -> list[psutil.Process]:
    """The Python processes of a writer, itself included, that are connected to where its driver listens."""
    connected: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        driver = psutil.Process(writer.pid)
        ports = _listening(driver)
        # Java connects, too: to the accumulators, which Spark's driver listens for.
        for process in [driver, *driver.children(recursive=True)] if ports else []:
            with contextlib.suppress(psutil.Error):
                if process.name().startswith(_PYTHON) and _connections(process, ports):
                    connected.append(process)
    return connected


def _listening(process: psutil.Process) -> set[int]:
    """The ports that a process listens on."""
    return {line.laddr.port for line in process.net_connections("tcp") if line.status == psutil.CONN_LISTEN}


def _connections(process: psutil.Process, ports: set[int]) -> set[tuple[int, int]]:
    """Its established connections to one of these ports: its own port, and the number of its descriptor."""
    established = (line for line in process.net_connections("tcp") if line.status == psutil.CONN_ESTABLISHED)
    return {(line.laddr.port, line.fd) for line in established if line.raddr and line.raddr.port in ports}


class LeaseObserver(threading.Thread):
    """A block that polls the running writers; ``seen`` are those that had a lease holder."""

    def __init__(self, writers: Sequence[Program]) -> None:
        super().__init__(name="witness", daemon=True)
        self._writers, self._over = writers, threading.Event()
        self.seen: set[int] = set()

    def run(self) -> None:
        self._look()
        while not self._over.wait(_LOOK_S):
            self._look()
        self._look()  # what came up since, for a play that ended at once

    def _look(self) -> None:
        for writer in list(self._writers):
            if writer.ended_at is None and writer.pid not in self.seen and holders(writer):
                self.seen.add(writer.pid)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()


class Freezer:
    """
    A cgroup of frozen processes; needs root, or a delegated cgroup.

    For faults in which their parents die meanwhile, and SIGSTOP does not hold: when a process group with stopped
    members loses its parent, the kernel ends it with SIGHUP and SIGCONT (POSIX, "orphaned process groups"), so the
    stopped worker would never wake up as a zombie.
    """

    def __init__(self) -> None:
        root = _root()
        if root is None:
            raise PermissionError("no cgroup freezer may be used here")
        self._root, self._group = root, root / f"brew-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._group.mkdir()

    def freeze(self, stopped: Iterable[psutil.Process]) -> None:
        """Freeze processes; one that SIGSTOP had stopped is frozen instead."""
        held = [*stopped]
        for process in held:
            with contextlib.suppress(ProcessLookupError):
                (self._group / _PROCS).write_text(str(process.pid))
        self._set(frozen=True)
        for process in held:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def release(self, processes: Iterable[psutil.Process]) -> None:
        """Let some of them go on."""
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                (self._root / _PROCS).write_text(str(process.pid))

    def close(self) -> None:
        """Let all go on, and remove the cgroup: once those that were killed in it have died."""
        self._set(frozen=False)
        deadline = Deadline(_DIE_S)
        while True:
            for pid in (self._group / _PROCS).read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    (self._root / _PROCS).write_text(pid)
            try:
                self._group.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or deadline.expired():
                    raise
                time.sleep(_LOOK_S)
            else:
                return

    def _set(self, *, frozen: bool) -> None:
        unified = self._group / "cgroup.freeze"
        if unified.exists():
            unified.write_text("1" if frozen else "0")
        else:
            (self._group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


def _root() -> Path | None:
    for folder in (_CGROUPS / "freezer", _CGROUPS / "unified", _CGROUPS):
        if (folder / _PROCS).exists() and os.access(folder, os.W_OK):
            return folder
    return None


@contextlib.contextmanager
def frozen(stopped: Iterable[psutil.Process]) -> Iterator[Freezer]:
    """
    Freeze processes for a while.

    Raises:
        PermissionError: this user may not use the freezer.
    """
    freezer = Freezer()
    try:
        freezer.freeze(stopped)
        yield freezer
    finally:
        freezer.close()
