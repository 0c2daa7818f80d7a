"""Process faults, and their effects as brokers and journals show them; a cell's own actions would prove nothing."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import psutil

from brew.deadline import Deadline
from brew.journal import Entry, Step
from proof.campaign.journals import Kill, is_fenced, open_ranges
from proof.campaign.programs import Background, Program
from proof.campaign.stage import CellEnvironment

OPEN = "open_when_struck"
"""Event: transactions of the target processes that the brokers report as open at the moment of the fault."""
COPIES = "copies"
LEADERS_MOVED = "leaders_moved"
HOLDERS = "holders"
"""Event: writers seen with a lease holder, a process connected to its driver (docs/decisions/0009)."""
_TRIES, _FENCED_S, _DIE_S, _LOOK_S = 400, 5.0, 10.0, 0.03
_PYTHON = "python"
_CGROUPS = (Path("/sys/fs/cgroup/freezer"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
_PROCS = "cgroup.procs"
_PIDFD_GETFD = 438  # the system call's number, the same on all architectures


def caught_open(
    stage: CellEnvironment, stopped: Sequence[psutil.Process], *, at_work: Sequence[psutil.Process] = ()
) -> set[int]:
    """
    Stop processes repeatedly until the brokers report an open transaction of theirs (or of ``at_work``); leave them
    stopped. Return its input partitions, or none, with all continued, if none is caught.
    """
    for _ in range(_TRIES):
        stage.deadline.check("a transaction that is open")
        signal_all(stopped, stop=True)
        if partitions := _open_of(stage, {process.pid for process in at_work or stopped}):
            stage.fire(OPEN, len(partitions))
            return partitions
        signal_all(stopped, stop=False)
        time.sleep(stage.random.uniform(0.001, 0.05))
    return set()


def signal_all(processes: Iterable[psutil.Process], *, stop: bool) -> None:
    """Send SIGSTOP or SIGCONT to processes; those that have ended are skipped."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if stop:
                process.suspend()
            else:
                process.resume()


@contextlib.contextmanager
def stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop processes, or leave stopped ones so, for the duration of the block."""
    signal_all(processes, stop=True)
    try:
        yield
    finally:
        signal_all(processes, stop=False)


def kill_all(processes: Iterable[psutil.Process]) -> float:
    """Send SIGKILL to all of them; return the time at which it was done."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return time.time()


def tree(*roots: psutil.Process) -> list[psutil.Process]:
    """Return processes and all their descendants, each once."""
    known: dict[int, psutil.Process] = {}
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            known |= {process.pid: process for process in (root, *root.children(recursive=True))}
    return list(known.values())


def _open_of(stage: CellEnvironment, pids: Collection[int]) -> set[int]:
    """Return the partitions with transactions open by journals and brokers; asks brokers only if journals have any."""
    entries = stage.journals.look()
    begun = {p for pid in pids for p in open_ranges(entries, Kill(time.time(), pid))}
    if not begun:
        return set()
    known = {transaction.transactional_id for transaction in stage.open_transactions()}
    return {partition for partition in begun if stage.names.transactional_id(partition) in known}


def copies(entries: Iterable[Entry]) -> int:
    """Count the ranges that two processes worked on at the same time."""
    spans: dict[tuple[int, int, int], dict[int, tuple[float, float]]] = {}
    for entry in entries:
        if entry.step is Step.READ:
            continue
        place = entry.fields["partition"], entry.fields["start"], entry.fields["until"]
        began, _ = spans.setdefault(place, {}).get(entry.pid, (entry.at, entry.at))
        spans[place][entry.pid] = (began, entry.at)
    in_order = (sorted(by_pid.values()) for by_pid in spans.values())
    return sum(any(later[0] < earlier[1] for earlier, later in pairwise(some)) for some in in_order)


def fenced_since(stage: CellEnvironment, pids: Collection[int], since: float = 0.0) -> bool:
    """Return whether, within 5 s, the journal of one of these processes shows that it was fenced."""
    limit = Deadline(_FENCED_S)
    while not limit.expired():
        if any(is_fenced(e) for e in stage.journals.look() if e.pid in pids and e.at > since):
            return True
        time.sleep(0.01)
    return False


def lines(writer: Program, holder: psutil.Process) -> set[tuple[int, int]]:
    """Return a lease holder's connections to its driver, as local port and file descriptor."""
    with contextlib.suppress(psutil.Error):
        return _connections(holder, _listening(psutil.Process(writer.pid)))
    return set()


def cut(holder: psutil.Process, descriptor: int) -> None:
    """Shut down a connection of another process in both directions, as a broken network does."""
    process = os.pidfd_open(holder.pid)
    try:
        mine = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
    finally:
        os.close(process)
    if mine < 0:
        raise OSError(ctypes.get_errno(), f"can't access descriptor {descriptor} of process {holder.pid}")
    with socket.socket(fileno=mine) as line:
        line.shutdown(socket.SHUT_RDWR)


def holders(writer: Program) -> list[psutil.Process]:
    """Return a writer's Python processes, itself included, that are connected to a port its driver listens on."""
    connected: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        driver = psutil.Process(writer.pid)
        ports = _listening(driver)
        # Java processes connect as well, to the accumulator server of Spark's driver.
        for process in [driver, *driver.children(recursive=True)] if ports else []:
            with contextlib.suppress(psutil.Error):
                if process.name().startswith(_PYTHON) and _connections(process, ports):
                    connected.append(process)
    return connected


def _listening(process: psutil.Process) -> set[int]:
    return {line.laddr.port for line in process.net_connections("tcp") if line.status == psutil.CONN_LISTEN}


def _connections(process: psutil.Process, ports: set[int]) -> set[tuple[int, int]]:
    """Return a process's established connections to these ports, as local port and file descriptor."""
    established = (line for line in process.net_connections("tcp") if line.status == psutil.CONN_ESTABLISHED)
    return {(line.laddr.port, line.fd) for line in established if line.raddr and line.raddr.port in ports}


class LeaseObserver(Background):
    """Polls the running writers; ``seen`` are those that had a lease holder."""

    def __init__(self, writers: Sequence[Program]) -> None:
        super().__init__("witness")
        self._writers = writers
        self.seen: set[int] = set()

    def run(self) -> None:
        self._look()
        while not self.over.wait(_LOOK_S):
            self._look()
        self._look()  # for a play that ended before the first poll saw its writers

    def _look(self) -> None:
        for writer in list(self._writers):
            if writer.ended_at is None and writer.pid not in self.seen and holders(writer):
                self.seen.add(writer.pid)


class Freezer:
    """
    A cgroup of frozen processes, for faults in which the parents die; needs root or a delegated cgroup.

    SIGSTOP does not hold then: the kernel ends an orphaned process group with stopped members by SIGHUP and SIGCONT.
    """

    def __init__(self) -> None:
        roots = [folder for folder in _CGROUPS if (folder / _PROCS).exists() and os.access(folder, os.W_OK)]
        if not roots:
            raise PermissionError("no cgroup freezer is available; run as root")
        self._root, self._group = roots[0], roots[0] / f"brew-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self._group.mkdir()

    def freeze(self, stopped: Sequence[psutil.Process]) -> None:
        """Freeze processes; those stopped by SIGSTOP are frozen instead."""
        self._move((process.pid for process in stopped), self._group)
        self._set(frozen=True)
        signal_all(stopped, stop=False)

    def release(self, processes: Iterable[psutil.Process]) -> None:
        self._move((process.pid for process in processes), self._root)

    def close(self) -> None:
        """Thaw all processes, and remove the cgroup once the killed ones in it have died."""
        self._set(frozen=False)
        deadline = Deadline(_DIE_S)
        while True:
            self._move((self._group / _PROCS).read_text().split(), self._root)
            try:
                self._group.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or deadline.expired():
                    raise
                time.sleep(_LOOK_S)
            else:
                return

    @staticmethod
    def _move(pids: Iterable[object], group: Path) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (group / _PROCS).write_text(str(pid))

    def _set(self, *, frozen: bool) -> None:
        unified = self._group / "cgroup.freeze"
        if unified.exists():
            unified.write_text("1" if frozen else "0")
        else:
            (self._group / "freezer.state").write_text("FROZEN" if frozen else "THAWED")


@contextlib.contextmanager
def frozen(stopped: Sequence[psutil.Process]) -> Iterator[Freezer]:
    """Freeze processes for the duration of the block; raise `PermissionError` if this user may not."""
    freezer = Freezer()
    try:
        freezer.freeze(stopped)
        yield freezer
    finally:
        freezer.close()
