"""The task that holds partitions for a lease and transacts each, one transaction after another."""

from __future__ import annotations

import gc
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Protocol

from brew.attempt import AttemptSpec, Job, attempt
from brew.deadline import Deadline
from brew.errors import BrewError, Unreachable
from brew.fault_injection import CrashInjector, PlannedCrash
from brew.kafka.clients import FULL_MS
from brew.kafka.log_reader import IDLE_MS, FetchedRecords, TailReader
from brew.offsets import OffsetRange
from brew.outcome import Outcome, Status
from brew.range_transaction import Rows
from brew.readers.direct.concurrency import READING, ConcurrencyLimit, SharedLimits
from brew.readers.direct.messages import (
    Grant,
    MessageConnection,
    WorkerSettings,
    begun_message,
    left_message,
    outcome_message,
    parse_grant,
)
from brew.transaction_sizing import TransactionSize

CHUNK = 10_000
"""Records taken at a time: enough to spare calls, few enough that what was read is in the caches when it is written."""


class RecordSource(Protocol):
    """The part of `brew.kafka.log_reader.Tail` that is used here."""

    def take(self, most: int, most_bytes: int, wait_s: float) -> FetchedRecords | None: ...


class TransactionInput:
    """
    What one transaction writes, read while it is written: a few thousand records stay in the processor's caches.

    Ends where nothing more is there now, or a bound is reached.
    """

    def __init__(
        self, tail: RecordSource, first: FetchedRecords, most: int, most_bytes: int, producing: ConcurrencyLimit
    ) -> None:
        self._tail, self._taken, self._producing = tail, first, producing
        self._most, self._most_bytes = most, most_bytes
        self._turn: object = None

    def reached(self) -> int:
        """One past the last offset that was read so far."""
        return self._taken.until

    def aside(self) -> AbstractContextManager[None]:
        """Around a wait between two pieces: another partition of this process produces meanwhile."""
        return self._producing.aside(self._turn)

    def __iter__(self) -> Iterator[Rows]:
        with self._producing.one() as self._turn:
            yield from self._chunks()

    def _chunks(self) -> Iterator[Rows]:
        taken: FetchedRecords | None = self._taken
        while taken is not None:
            self._taken = taken
            yield from _rows(taken)
            self._most -= len(taken.records)
            self._most_bytes -= taken.size
            some = min(CHUNK, self._most)
            taken = self._tail.take(some, self._most_bytes, 0) if some > 0 and self._most_bytes > 0 else None


def _rows(taken: FetchedRecords) -> Iterator[Rows]:
    """The kernel's parallel lists; none when there is nothing but markers."""
    records = taken.records
    if records:
        yield Rows(
            [one.offset() for one in records],
            [one.key() for one in records],
            [one.value() for one in records],
            [one.headers() for one in records],
            [one.timestamp()[1] for one in records],
        )


# A drain wants to know where its partition ends. A following run may hold hundreds that have nothing to do: with the
# waits of a drain 64 of them cost a quarter of a processor, client and broker together. News comes at once either way.
_WAIT_S, _IDLE_WAIT_S = 0.05, 0.2
IDLE_FOLLOWING_MS = 500
_LEAST_AHEAD = 1024 * 1024
_LONGEST_REST_MS = 50
_CONTINUE = {Status.COMMITTED, Status.ALREADY_DONE}


def transact_partition(
    grant: Grant,
    terms: WorkerSettings,
    share: int,
    begun: Callable[[], None],
    report: Callable[[Outcome], None],
    stop: threading.Event,
    desk: SharedLimits,
) -> int:
    """
    Transact until the goal is reached, or ``stop`` is set, or a transaction does not end well; the position then.

    ``share``: how many partitions the holder's read-ahead is for. A backlog waits for its turn to be read, each
    transaction for its turn among those of this process; ``begun`` hears of it then, ``report`` of its end.

    Raises:
        KafkaFailure: the partition can't be read.
    """
    following = grant.goal is None  # somebody who follows wants to hear of news in every partition
    ahead, full_ms = read_ahead(terms.direct.read_ahead_bytes, share, share if following else min(share, READING))
    wait_s, idle_ms = (_IDLE_WAIT_S, IDLE_FOLLOWING_MS) if following else (_WAIT_S, IDLE_MS)
    with nullcontext() if following else desk.reading.one(stop) as turn:
        if stop.is_set():
            return grant.start
        connection, group = terms.transaction.connection, terms.transaction.group
        tail = TailReader(connection, group, terms.topic, grant.partition, grant.start, ahead, idle_ms, full_ms)
        try:
            return _PartitionWorker(grant, terms, tail, begun, report, stop, desk, turn).work(wait_s)
        finally:
            tail.close()


@dataclass(frozen=True, slots=True)
class _PartitionWorker:
    grant: Grant
    terms: WorkerSettings
    tail: TailReader
    begun: Callable[[], None]
    report: Callable[[Outcome], None]
    stop: threading.Event
    desk: SharedLimits
    turn: object

    def work(self, wait_s: float) -> int:
        grant, terms, desk = self.grant, self.terms, self.desk
        dice = CrashInjector(terms.crash)
        at, spared, first_time = grant.start, grant.spared, grant.first_time
        while not self.stop.is_set() and (grant.goal is None or at < grant.goal):
            first = self.tail.take(self._first(), terms.direct.transaction_bytes, wait_s)
            if first is None:
                desk.reading.suspend(self.turn)
                continue
            offered = OffsetRange(terms.topic, grant.partition, at, first.until)
            crash = None if spared else dice.next_crash(offered)
            with desk.transactions.one():
                if self.stop.is_set():  # many partitions may have waited for their turns: none begins after SIGTERM
                    break
                outcome = self._transaction(first, offered, first_time=first_time, crash=crash)
                desk.sizes.apply_outcome(outcome)
            desk.reading.resume_turn(self.turn)
            self.report(outcome)
            if outcome.status not in _CONTINUE:
                break
            at, spared, first_time = outcome.until, False, False
        return at

    def _first(self) -> int:
        """A transformation may want all records read before the transaction begins."""
        cap = self.desk.sizes.of(self.grant.partition).cap
        return min(CHUNK, cap) if not self.terms.transformation.whole_input_first else cap

    def _transaction(
        self, first: FetchedRecords, offered: OffsetRange, *, first_time: bool, crash: PlannedCrash | None
    ) -> Outcome:
        terms, desk = self.terms, self.desk
        # Others may have learned since this one's first records were taken.
        most = desk.sizes.of(offered.partition).cap if not terms.transformation.whole_input_first else 0
        stretch = TransactionInput(self.tail, first, most, terms.direct.transaction_bytes, desk.producing)
        job = Job({}, terms.transaction, terms.transformation, terms.journal, terms.traced)
        self.begun()
        return attempt(
            AttemptSpec(offered, self.grant.targets, first_time, crash, stretch.reached, stretch.aside), stretch, job
        )


def read_ahead(total_bytes: int, share: int, readers: int) -> tuple[int, int]:
    """
    What one of ``share`` partitions fetches ahead, in bytes, and how long a full reader rests, in milliseconds.

    ``readers``: how many of them are read at a time.

    Most of many readers are full and wait for their turn. Each that wakes up costs processor, and what is ahead bounds
    a lone busy one to itself in a rest (20 MiB/s at the least).
    """
    return max(_LEAST_AHEAD, total_bytes // max(1, share)), min(_LONGEST_REST_MS, max(FULL_MS, readers))


def without_crash(terms: WorkerSettings) -> WorkerSettings:
    """The same terms for a task that Spark repeats: a crash on purpose strikes once."""
    return replace(terms, crash=replace(terms.crash, probability=0.0))


_CONNECT_S = 10.0
_GC_AFTER = 500_000


def run_lease_worker(terms: WorkerSettings, slot: int) -> None:
    """
    Work for one driver until it says so, hangs up, or has said nothing for the length of the lease.

    Transactions that run are finished first: what they commit counts, whoever holds the partition next.

    Raises:
        Unreachable: the driver can't be reached from here.
    """
    try:
        line = MessageConnection.to(terms.host, terms.port, terms.direct.lease_s, Deadline(_CONNECT_S))
    except OSError as error:
        raise Unreachable(
            f"the driver at {terms.host}:{terms.port} can't be reached from its task ({error}); "
            "--reader direct needs a way from the executors to spark.driver.host"
        ) from error
    # Tens of thousands of records are alive in each transaction, and none is part of a cycle.
    before = gc.get_threshold()
    gc.set_threshold(_GC_AFTER)
    line.send({"hello": {"token": terms.token, "slot": slot}})
    holder = _LeaseWorker(terms, line)
    try:
        while (message := line.receive()) is not None and "end" not in message:
            holder.handle_message(message)
    finally:
        holder.finish()
        line.close()
        gc.set_threshold(*before)  # the process may be somebody else's, and may run again


class _LeaseWorker:
    def __init__(self, terms: WorkerSettings, line: MessageConnection) -> None:
        self._terms, self._line = terms, line
        self._stops: dict[int, threading.Event] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._desk = SharedLimits(TransactionSize.at_most(terms.max_records, terms.transaction.timeout_s))

    def handle_message(self, message: dict[str, object]) -> None:
        grant = parse_grant(message)
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
                self._line.send(begun_message(grant.partition))

        def report(outcome: Outcome) -> None:
            if outcome.status is Status.CRASHED:
                crashed.set()
            self._line.send(outcome_message(outcome))

        try:
            at = transact_partition(grant, self._terms, share, begun, report, stop, self._desk)
        except BrewError as error:
            why = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - a bug must not kill the other partitions; the driver tells it
            why = traceback.format_exc(limit=-4)
        if not crashed.is_set():
            self._line.send(left_message(grant.partition, at, why))

    def finish(self) -> None:
        """Stop all partitions; return when their transactions have ended."""
        for stop in self._stops.values():
            stop.set()
        self._desk.reading.wake()
        self._terms.transformation.release(loading_only=True)
        for thread in self._threads.values():
            thread.join()
