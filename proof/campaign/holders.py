"""Who holds partitions by a lease, seen from outside: a line from a process to its driver (docs/decisions/0009)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence

import psutil

from proof.campaign.programs import Program

HOLDERS = "holders"
"""What fires: writers that were seen with a holder."""
_LOOK_S = 0.03
_PYTHON = "python"


def holders(writer: Program) -> list[psutil.Process]:
    """The Python processes of a writer, itself included, that are connected to where its driver listens."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        driver = psutil.Process(writer.pid)
        ports = {one.laddr.port for one in driver.net_connections("tcp") if one.status == psutil.CONN_LISTEN}
        # Java connects, too: to the accumulators, which Spark's driver listens for.
        for one in [driver, *driver.children(recursive=True)] if ports else []:
            with contextlib.suppress(psutil.Error):
                if one.name().startswith(_PYTHON) and _connected(one, ports):
                    found.append(one)
    return found


def _connected(process: psutil.Process, ports: set[int]) -> bool:
    lines = (one for one in process.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED and one.raddr)
    return any(one.raddr.port in ports for one in lines)


class LeaseObserver(threading.Thread):
    """Looks at the writers that run, time after time; ``seen`` are those that were caught with a holder."""

    def __init__(self, writers: Callable[[], Sequence[Program]]) -> None:
        super().__init__(name="witness", daemon=True)
        self._writers, self._over = writers, threading.Event()
        self.seen: set[int] = set()

    def run(self) -> None:
        self._look()
        while not self._over.wait(_LOOK_S):
            self._look()
        self._look()  # what came up since, for a play that ended at once

    def _look(self) -> None:
        for writer in [one for one in self._writers() if one.ended_at is None and one.pid not in self.seen]:
            if holders(writer):
                self.seen.add(writer.pid)

    def end(self) -> None:
        self._over.set()
        self.join()


@contextlib.contextmanager
def observe_leases(writers: Callable[[], Sequence[Program]], tell: Callable[[int, int], None]) -> Iterator[None]:
    """A block; behind it ``tell`` gets how many of the writers were seen with a holder, and how many there were."""
    witness = LeaseObserver(writers)
    witness.start()
    try:
        yield
    finally:
        witness.end()
        tell(len(witness.seen), len(writers()))
