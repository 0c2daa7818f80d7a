"""The task's side of a lease: holds the partitions that the driver grants, for as long as it hears from the driver."""

from __future__ import annotations

import gc
import threading
import traceback

from pipeline.direct.line import Line
from pipeline.direct.tenure import work
from pipeline.direct.terms import Grant, Terms, beginning, granted, leaving, telling
from pipeline.direct.turns import Desk
from pipeline.outcome import Outcome, Status
from pipeline.pace import Pace
from pipeline.profiles import held
from protocol.deadline import Deadline
from protocol.errors import BrewError, Unreachable

_CONNECT_S = 10.0
_GC_AFTER = 500_000


def hold(terms: Terms, slot: int) -> None:
    """
    Work for one driver until it says so, hangs up, or has said nothing for the length of the lease.

    Transactions that run are finished first: what they commit counts, whoever holds the partition next.

    Raises:
        Unreachable: the driver can't be reached from here.
    """
    try:
        line = Line.to(terms.host, terms.port, terms.direct.lease_s, Deadline(_CONNECT_S))
    except OSError as error:
        raise Unreachable(
            f"the driver at {terms.host}:{terms.port} can't be reached from its task ({error}); "
            "--reader direct needs a way from the executors to spark.driver.host"
        ) from error
    # Tens of thousands of records are alive in each transaction, and none is part of a cycle.
    gc.set_threshold(_GC_AFTER)
    line.send({"hello": {"token": terms.token, "slot": slot}})
    holder = _Holder(terms, line)
    try:
        while (message := line.receive()) is not None and "end" not in message:
            holder.hear(message)
    finally:
        holder.finish()
        line.close()


class _Holder:
    def __init__(self, terms: Terms, line: Line) -> None:
        self._terms, self._line = terms, line
        self._stops: dict[int, threading.Event] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._desk = Desk(Pace.at_most(terms.max_records, terms.transaction.timeout_s))

    def hear(self, message: dict[str, object]) -> None:
        grant = granted(message)
        if grant is not None:
            self._begin(grant, int(str(message.get("share", 1))))
        released = message.get("release")
        if isinstance(released, int) and released in self._stops:
            self._stops[released].set()
            self._desk.reading.wake()
        if "renew" in message:
            self._line.send({"alive": True})

    def _begin(self, grant: Grant, share: int) -> None:
        """A thread for each partition: one that is slow, or blocked, stops no other."""
        old = self._threads.get(grant.partition)
        if old is not None:
            old.join()  # the driver grants again only what was left
        stop = threading.Event()
        thread = threading.Thread(target=self._work, args=[grant, share, stop], name=f"partition-{grant.partition}")
        self._stops[grant.partition], self._threads[grant.partition] = stop, thread
        thread.start()

    def _work(self, grant: Grant, share: int, stop: threading.Event) -> None:
        at, why = grant.start, ""
        crashed = threading.Event()

        def begun() -> None:
            if self._terms.watched:
                self._line.send(beginning(grant.partition))

        def report(outcome: Outcome) -> None:
            if outcome.status is Status.CRASHED:
                crashed.set()
            self._line.send(telling(outcome))

        try:
            at = work(grant, self._terms, share, begun, report, stop, self._desk)
        except BrewError as error:
            why = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - a bug must not kill the other partitions; the driver tells it
            why = traceback.format_exc(limit=-4)
        if not crashed.is_set():
            self._line.send(leaving(grant.partition, at, why))

    def finish(self) -> None:
        """Stop all partitions; return when their transactions have ended."""
        for stop in self._stops.values():
            stop.set()
        self._desk.reading.wake()
        held.let_go(loading_only=True)
        for thread in self._threads.values():
            thread.join()
