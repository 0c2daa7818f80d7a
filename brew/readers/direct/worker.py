"""
The lease worker: polls the partitions it has a lease for, decides each next range, and transacts it.

The partitions of one process share its limits, and a slow one does not block the others for long.
"""

from __future__ import annotations

import gc
import math
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from brew.attempt import AttemptSpec, Job, attempt
from brew.deadline import Deadline
from brew.errors import BrewError, Refused, Unreachable, text_of
from brew.fault_injection import CrashInjector, PlannedCrash
from brew.kafka.clients import FULL_MS
from brew.kafka.log_reader import IDLE_MS, READ_HEADERS, FetchedRecords, LogRecord, TailReader
from brew.offsets import OffsetRange
from brew.outcome import Outcome, Status
from brew.range_transaction import RecordHeaders, Rows
from brew.readers.direct.messages import (
    Grant,
    MessageConnection,
    WorkerSettings,
    outcome_message,
    parse_grant,
    released_message,
)
from brew.transaction_sizing import TransactionSize, TransactionSizes

MAX_TRANSACTIONS = 4
"""Concurrent transactions; more compete for the processor (measured with 4 and 64 partitions, docs/decisions/0009)."""
MAX_PRODUCING = 1
"""Of these, those that read, enrich and produce: Python runs one thread at a time, and switching costs a tenth."""
MAX_READING = 8
"""Partitions that a drain reads concurrently: each reader has threads and wakes up while its queue is full."""
MAX_TURN_S, MAX_READING_TURN_S = 1.0, 5.0
"""A longer turn is waiting for a broker, and blocks no other; a reader's turn is as long as a large transaction."""


class ConcurrencyLimit:
    """
    Lets ``limit`` threads work at a time. A few transactions keep the processor as busy as 64, which only compete for
    it. A turn longer than ``max_turn_s`` no longer counts, so that a partition with a slow broker does not block the
    others.
    """

    def __init__(self, limit: int, max_turn_s: float = MAX_TURN_S) -> None:
        self._limit, self._max_turn_s = limit, max_turn_s
        self._changed = threading.Condition()
        self._since: dict[object, float] = {}

    @contextmanager
    def turn(self, stop: threading.Event | None = None) -> Iterator[object]:
        """
        Wait for a turn, at most ``max_turn_s`` for each thread that has one; yield the turn for the other methods. If
        ``stop`` is set the wait ends (after `wake`), and the caller has to check ``stop`` itself.
        """
        turn = object()
        self._acquire(turn, stop)
        try:
            yield turn
        finally:
            self._release(turn)

    @contextmanager
    def released(self, turn: object) -> Iterator[None]:
        """Release the turn during the block, in which this thread waits for a broker."""
        self._release(turn)
        try:
            yield
        finally:
            self._acquire(turn)

    def resume_turn(self, turn: object) -> None:
        """Count the turn again, from now on for ``max_turn_s``; does nothing without a turn."""
        with self._changed:
            if turn in self._since:
                self._since[turn] = time.monotonic()

    def suspend(self, turn: object) -> None:
        """Stop counting the turn while there is nothing to do in it; does nothing without a turn."""
        with self._changed:
            if turn in self._since:
                self._since[turn] = -math.inf
                self._changed.notify()

    def wake(self) -> None:
        """Have all waiting threads check whether they should stop."""
        with self._changed:
            self._changed.notify_all()

    def _acquire(self, turn: object, stop: threading.Event | None = None) -> None:
        with self._changed:
            while not (stop is not None and stop.is_set()) and (wait_s := self._wait_s()) > 0:
                self._changed.wait(wait_s)
            self._since[turn] = time.monotonic()

    def _release(self, turn: object) -> None:
        with self._changed:
            del self._since[turn]
            self._changed.notify()

    def _wait_s(self) -> float:
        """Seconds until the oldest turn no longer counts; 0 if there is room."""
        now = time.monotonic()
        counted = [left_s for since in self._since.values() if (left_s := since + self._max_turn_s - now) > 0]
        return 0.0 if len(counted) < self._limit else min(counted)


class SharedLimits:
    """What the partitions of one process share: limits on reading, transactions and producing, and adaptive sizes."""

    def __init__(self, first: TransactionSize) -> None:
        self.sizes = TransactionSizes(first)
        self.reading = ConcurrencyLimit(MAX_READING, MAX_READING_TURN_S)
        self.transactions = ConcurrencyLimit(MAX_TRANSACTIONS)
        self.producing = ConcurrencyLimit(MAX_PRODUCING)


CHUNK = 10_000
"""Records fetched at a time: enough to save calls, few enough to stay in the processor's caches until written."""


class TransactionInput:
    """
    The input of one transaction, read while it is written: a few thousand records stay in the processor's caches. Ends
    if no more records are available now, or at a limit.
    """

    def __init__(
        self, tail: TailReader, first: FetchedRecords, max_records: int, max_bytes: int, producing: ConcurrencyLimit
    ) -> None:
        self._tail, self._fetched, self._producing = tail, first, producing
        self._records_left, self._bytes_left = max_records, max_bytes
        self._turn: object = None

    def reached(self) -> int:
        """One past the last offset read so far."""
        return self._fetched.until

    def waiting(self) -> AbstractContextManager[None]:
        """Around a wait for brokers: let another partition of this process produce meanwhile."""
        return self._producing.released(self._turn)

    def __iter__(self) -> Iterator[Rows]:
        with self._producing.turn() as self._turn:
            yield from self._chunks()

    def _chunks(self) -> Iterator[Rows]:
        fetched: FetchedRecords | None = self._fetched
        while fetched is not None:
            self._fetched = fetched
            if fetched.records:  # there may be only markers
                yield rows_of(fetched.records)
            self._records_left -= len(fetched.records)
            self._bytes_left -= fetched.size
            count = min(CHUNK, self._records_left)
            fetched = self._tail.take(count, self._bytes_left, 0) if count > 0 and self._bytes_left > 0 else None


def rows_of(records: Sequence[LogRecord]) -> Rows:
    """The records as the kernel's parallel lists, headers read-only; raises `Refused` if the client can't read them."""
    headers: list[object] = []
    try:
        for pairs in map(READ_HEADERS, records):
            headers.append(tuple(pairs) if pairs else None)  # noqa: PERF401 - its length tells which record failed
    except (SystemError, UnicodeDecodeError) as error:
        record = records[len(headers)]
        raise Refused(
            f"the record at offset {record.offset()} of input partition {record.partition()} has a header whose name "
            "is not UTF-8, and the client library can't read it; use --reader connector, which writes U+FFFD for what "
            "it can't decode"
        ) from error
    return Rows(
        [record.offset() for record in records],
        [record.key() for record in records],
        [record.value() for record in records],
        cast("list[RecordHeaders]", headers),
        [record.timestamp()[1] for record in records],
    )


# A drain has to find the end of its partition quickly. A following run may hold hundreds of idle partitions: with the
# waits of a drain 64 of them cost a quarter of a processor, client and broker together. New records arrive at once.
_WAIT_S, _IDLE_WAIT_S = 0.05, 0.2
IDLE_FOLLOWING_MS = 500
_MIN_READ_AHEAD = 1024 * 1024
_MAX_FULL_MS = 50
_CONTINUE = {Status.COMMITTED, Status.ALREADY_DONE}


def transact_partition(
    grant: Grant,
    settings: WorkerSettings,
    share: int,
    begun: Callable[[], None],
    report: Callable[[Outcome], None],
    stop: threading.Event,
    limits: SharedLimits,
) -> int:
    """
    Transact until the goal is reached, ``stop`` is set or a transaction fails; return the position.

    ``share``: how many partitions share the worker's read-ahead. Reading a backlog and each transaction wait for a
    turn. ``begun`` is called at the start of a transaction, ``report`` at its end. Raises `KafkaFailure` if it can't be
    read.
    """
    following = grant.goal is None  # every partition may get new records
    read_ahead_bytes, full_ms = read_ahead(
        settings.direct.read_ahead_bytes, share, share if following else min(share, MAX_READING)
    )
    wait_s, idle_ms = (_IDLE_WAIT_S, IDLE_FOLLOWING_MS) if following else (_WAIT_S, IDLE_MS)
    with nullcontext() if following else limits.reading.turn(stop) as turn:
        if stop.is_set():
            return grant.start
        connection, group = settings.transaction.connection, settings.transaction.group
        tail_settings = grant.partition, grant.start, read_ahead_bytes, idle_ms, full_ms
        with closing(TailReader(connection, group, settings.topic, *tail_settings)) as tail:
            return _PartitionWorker(grant, settings, tail, begun, report, stop, limits, turn).work(wait_s)


@dataclass(frozen=True, slots=True)
class _PartitionWorker:
    grant: Grant
    settings: WorkerSettings
    tail: TailReader
    begun: Callable[[], None]
    report: Callable[[Outcome], None]
    stop: threading.Event
    limits: SharedLimits
    turn: object

    def work(self, wait_s: float) -> int:
        grant, settings, limits = self.grant, self.settings, self.limits
        injector = CrashInjector(settings.crash)
        position, exempt, first_time = grant.start, grant.exempt_from_crash, grant.first_time
        while not self.stop.is_set() and (grant.goal is None or position < grant.goal):
            following = self._next_range(position, wait_s)
            if following is None:
                limits.reading.suspend(self.turn)
                continue
            first, offered = following
            crash = None if exempt else injector.next_crash(offered)
            with limits.transactions.turn():
                if self.stop.is_set():  # after waiting for a turn, no transaction begins after SIGTERM
                    break
                outcome = self._transaction(first, offered, first_time=first_time, crash=crash)
                limits.sizes.apply_outcome(outcome)
            limits.reading.resume_turn(self.turn)
            self.report(outcome)
            if outcome.status not in _CONTINUE:
                break
            position, exempt, first_time = outcome.until, False, False
        return position

    def _next_range(self, position: int, wait_s: float) -> tuple[FetchedRecords, OffsetRange] | None:
        """
        Return the next range with its first records, as far as it is known now; None if there are none in ``wait_s``.
        Its end is known when it has been read: the transaction goes on reading up to its limits (`TransactionInput`).
        """
        settings, cap = self.settings, self.limits.sizes.of(self.grant.partition).cap
        # Some transformations need all records before the transaction begins.
        fetch = cap if settings.transformation.whole_input_first else min(CHUNK, cap)
        first = self.tail.take(fetch, settings.direct.transaction_bytes, wait_s)
        if first is None:
            return None
        return first, OffsetRange(settings.topic, self.grant.partition, position, first.until)

    def _transaction(
        self, first: FetchedRecords, offered: OffsetRange, *, first_time: bool, crash: PlannedCrash | None
    ) -> Outcome:
        settings, limits = self.settings, self.limits
        # The size may have been adapted since the first records were fetched.
        max_records = limits.sizes.of(offered.partition).cap if not settings.transformation.whole_input_first else 0
        records = TransactionInput(self.tail, first, max_records, settings.direct.transaction_bytes, limits.producing)
        job = Job({}, settings.transaction, settings.transformation, settings.journal, settings.traced)
        self.begun()
        spec = AttemptSpec(offered, self.grant.targets, first_time, crash, records.reached, records.waiting)
        return whole_attempt(spec, records, job)


def whole_attempt(spec: AttemptSpec, batches: Iterable[Rows], job: Job) -> Outcome:
    """Return the outcome of `attempt` in a thread, whatever ended it: else the thread would end without a word."""
    offered = spec.offered
    try:
        return attempt(spec, batches, job)
    except OSError as error:  # of the journal, whose disk may be full: `attempt` handles all others
        detail = f"{type(error).__name__}: {error}; --journal is {job.journal}"
        return Outcome(offered.partition, offered.start, offered.until, Status.FAILED, detail=detail)
    except BaseException as error:  # noqa: BLE001 - `attempt` handles every Exception; no signal arrives in a thread
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = text_of(error)
        detail = (
            f"transform-failed: the transformation raised {type(error).__name__}{text and f': {text}'} "
            f"({Path(frame.filename).name}, line {frame.lineno}); raise an Exception instead; nothing of {offered} "
            "is visible"
        )
        return Outcome(offered.partition, offered.start, offered.until, Status.TRANSFORM_FAILED, detail=detail)


def read_ahead(total_bytes: int, share: int, readers: int) -> tuple[int, int]:
    """
    The read-ahead of one of ``share`` partitions, in bytes, and how often a full reader checks for room, in ms.
    ``readers``: how many of them are read at a time. With many readers most are full and wait for their turn, and each
    check costs CPU time. A single busy reader gets at most its read-ahead per check (at least 20 MiB/s).
    """
    return max(_MIN_READ_AHEAD, total_bytes // max(1, share)), min(_MAX_FULL_MS, max(FULL_MS, readers))


_CONNECT_S = 10.0
_GC_AFTER = 500_000


def run_lease_worker(settings: WorkerSettings, slot: int) -> None:
    """
    Work for one driver until it ends the worker, closes the connection, or sends nothing for the length of the lease.
    Running transactions are finished first: their commits count, whoever holds the partition next. Raises
    `Unreachable`: the driver can't be reached from this task.
    """
    try:
        connection = MessageConnection.to(settings.host, settings.port, settings.direct.lease_s, Deadline(_CONNECT_S))
    except OSError as error:
        raise Unreachable(
            f"the driver at {settings.host}:{settings.port} can't be reached from its task ({error}); "
            "--reader direct needs a network route from the executors to spark.driver.host"
        ) from error
    # Each transaction keeps tens of thousands of records alive, and none of them is part of a cycle.
    gc_threshold = gc.get_threshold()
    gc.set_threshold(_GC_AFTER)
    connection.send({"hello": {"token": settings.token, "slot": slot}})
    worker = _LeaseWorker(settings, connection)
    try:
        while (message := connection.receive()) is not None and "end" not in message:
            worker.handle_message(message)
    finally:
        worker.finish()
        connection.close()
        gc.set_threshold(*gc_threshold)  # the process may be the caller's own, or be reused


class _LeaseWorker:
    def __init__(self, settings: WorkerSettings, connection: MessageConnection) -> None:
        self._settings, self._connection = settings, connection
        self._stops: dict[int, threading.Event] = {}
        self._threads: dict[int, threading.Thread] = {}
        self._reported_begin = False
        self._limits = SharedLimits(TransactionSize.at_most(settings.max_records, settings.transaction.timeout_s))

    def handle_message(self, message: dict[str, object]) -> None:
        grant = parse_grant(message)
        if grant is not None:
            self._begin(grant, int(str(message.get("share", 1))))
        released = message.get("release")
        if isinstance(released, int) and released in self._stops:
            self._stops[released].set()
            self._limits.reading.wake()
        if "renew" in message:
            self._connection.send({"alive": True})

    def _begin(self, grant: Grant, share: int) -> None:
        """Start a thread for the partition, so that a slow or blocked one does not stop the others."""
        previous = self._threads.get(grant.partition)
        if previous is not None:
            previous.join()  # the driver grants a partition again only after its release
        stop = threading.Event()
        thread = threading.Thread(target=self._work, args=[grant, share, stop], name=f"partition-{grant.partition}")
        self._stops[grant.partition], self._threads[grant.partition] = stop, thread
        thread.start()

    def _work(self, grant: Grant, share: int, stop: threading.Event) -> None:
        position, reason = grant.start, ""
        crashed = threading.Event()

        def begun() -> None:
            if self._settings.watched or not self._reported_begin:
                self._reported_begin = True  # by the first one the driver knows that the brokers can be reached
                self._connection.send({"begun": grant.partition})

        def report(outcome: Outcome) -> None:
            if outcome.status is Status.CRASHED:
                crashed.set()
            self._connection.send(outcome_message(outcome))

        try:
            position = transact_partition(grant, self._settings, share, begun, report, stop, self._limits)
        except BrewError as error:
            reason = f"{type(error).__name__}: {error}"
        except Exception:  # noqa: BLE001 - a bug must not kill the other partitions; the driver reports it
            reason = traceback.format_exc(limit=-4)
        if not crashed.is_set():
            self._connection.send(released_message(grant.partition, position, reason))

    def finish(self) -> None:
        """Stop all partitions; return once their transactions have ended."""
        for stop in self._stops.values():
            stop.set()
        self._limits.reading.wake()
        self._settings.transformation.release(loading_only=True)
        for thread in self._threads.values():
            thread.join()
