"""What a fault did, as brokers and journals tell it: a cell that counted the blow alone would show nothing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import psutil

from brew.deadline import Deadline
from brew.journal import Entry, Phase, Step
from brew.kafka.kafka_python import open_transactions
from brew.names import TransactionalId
from proof.campaign.journals import Kill, open_ranges

if TYPE_CHECKING:
    from proof.campaign.programs import Program
    from proof.campaign.stage import CellEnvironment as Stage

OPEN = "open_when_struck"
"""What fires: transactions of those who are struck that the brokers know as open at that moment."""
COPIES = "copies"
LEADERS_MOVED = "leaders_moved"

_TRIES = 400
_ASK_S = 20.0
_FENCED_S = 5.0
_PIDFD_GETFD = 438  # the number of the system call, the same on all architectures


def caught_open(stage: Stage, stopped: Sequence[psutil.Process], *, at_work: Sequence[psutil.Process] = ()) -> set[int]:
    """
    Stop processes, again and again, until the brokers hold a transaction of theirs open; they stay stopped.

    ``at_work`` are those whose transactions count, where they are others. The partitions of the input; empty, with
    all of them going on, when it did not come to that.
    """
    for _ in range(_TRIES):
        stage.deadline.check("a transaction that is open")
        signal_all(stopped, stop=True)
        found = _open_of(stage, {one.pid for one in at_work or stopped})
        if found:
            stage.fire(OPEN, len(found))
            return found
        signal_all(stopped, stop=False)
        time.sleep(stage.random.uniform(0.001, 0.05))
    return set()


def signal_all(processes: Iterable[psutil.Process], *, stop: bool) -> None:
    """SIGSTOP or SIGCONT; to whoever is gone it is nothing."""
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            if stop:
                one.suspend()
            else:
                one.resume()


def tree(*roots: psutil.Process) -> list[psutil.Process]:
    """Processes and all below them, each once."""
    found: dict[int, psutil.Process] = {}
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            found |= {one.pid: one for one in (root, *root.children(recursive=True))}
    return list(found.values())


def _open_of(stage: Stage, pids: Collection[int]) -> set[int]:
    """The brokers are asked only when the journals say that it is worth it."""
    stage.journals.look()
    begun = {p for pid in pids for p in open_ranges(stage.journals.entries, Kill(time.time(), pid))}
    if not begun:
        return set()
    partitions, known = range(stage.cell.partitions), set[str]()
    for topic in (stage.names.output, stage.names.dead_letter):
        told = open_transactions(stage.cluster.connection, topic, partitions, Deadline(_ASK_S))
        known |= {one.transactional_id for one in told if one.transactional_id is not None}
    ids = {p: str(TransactionalId(stage.names.group, stage.names.input, p)) for p in begun}
    return held_open(ids, known)


def held_open(begun: Mapping[int, str], known: Collection[str]) -> set[int]:
    """The partitions whose transaction a process has begun and the brokers know as open; ``begun`` holds their ids."""
    return {partition for partition, name in begun.items() if name in known}


def copies(entries: Iterable[Entry]) -> int:
    """Ranges that two processes were at work on at the same time."""
    spans: dict[tuple[int, int, int], dict[int, tuple[float, float]]] = {}
    for one in entries:
        if one.step is Step.READ:
            continue
        place = one.fields["partition"], one.fields["start"], one.fields["until"]
        began, _ = spans.setdefault(place, {}).get(one.pid, (one.at, one.at))
        spans[place][one.pid] = (began, one.at)
    return sum(_overlap(sorted(by_pid.values())) for by_pid in spans.values())


def _overlap(spans: Sequence[tuple[float, float]]) -> bool:
    return any(later[0] < earlier[1] for earlier, later in pairwise(spans))


def fenced_since(stage: Stage, pids: Collection[int], since: float) -> bool:
    """Whether one of these processes is told within 5 s that somebody newer holds its id."""
    limit = Deadline(_FENCED_S)
    while not limit.expired():
        stage.journals.look()
        mine = (e for e in stage.journals.entries if e.pid in pids and e.at > since and e.phase is Phase.FAILED)
        if any(str(e.fields.get("detail")).startswith("Fenced") for e in mine):
            return True
        time.sleep(0.01)
    return False


def lines(writer: Program, holder: psutil.Process) -> set[tuple[int, int]]:
    """A holder's connections to its driver: its own port, and the number of its descriptor."""
    with contextlib.suppress(psutil.Error):
        driver = psutil.Process(writer.pid)
        listening = {one.laddr.port for one in driver.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        return {
            (one.laddr.port, one.fd)
            for one in holder.net_connections("tcp")
            if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port in listening
        }
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
