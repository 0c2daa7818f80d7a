"""The direct reader's driver: survey partitions, grant leases to workers, and plan again from their outcomes."""

from __future__ import annotations

import contextlib
import queue
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Protocol

from brew.driver import assignor
from brew.driver.assignments import Assignments
from brew.driver.run_context import RunContext, Runner
from brew.driver.work_planner import SurveyFailedError, WorkPlanner
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused
from brew.kafka.log_reader import scan
from brew.names import READ_COMMITTED
from brew.offsets import OffsetRange
from brew.outcome import GOOD, Outcome, Status
from brew.planner import PartitionFacts
from brew.range_transaction import Targets
from brew.readers.direct.lease_server import LeaseServer, ReceivedMessage, WorkerSession
from brew.readers.direct.messages import Grant, WorkerSettings, grant_message, parse_outcome
from brew.transformation import Transformation, for_executors, transformation

_SURVEY_INTERVAL_S = 1.0
_POLL_S = 0.02
_REPORT_INTERVAL_S = 0.25
_STARTUP_WAIT_S = 1.0
"""How long the first workers wait for the others, so that partitions are distributed only once."""
_READ_S = 5.0


class LeaseWorkers(Runner, Protocol):
    """Runs a lease worker in each slot, and restarts one that ends prematurely."""

    server: LeaseServer

    def slots(self) -> int:
        """Return the current number of task slots."""

    def open(self, count: int) -> None:
        """Start workers in those of slots 0 to ``count`` - 1 that have none."""

    def stop_restarts(self) -> None:
        """Stop restarting workers."""

    def check(self) -> None:
        """Check that workers can still run; raises `BrewError` if they can't, and no retry can succeed."""

    def worked(self, slot: int) -> None:
        """Forget the failures of this slot, because its worker has committed."""

    def last_failure(self) -> str | None:
        """Return why a worker failed last, None if none has, or if all that failed have worked since."""


class LeaseCoordinator:
    """Grants partitions to workers, in one thread; workers report through the server's queue."""

    def __init__(self, shared: RunContext, workers: LeaseWorkers) -> None:
        self._shared, self._workers, self._settings = shared, workers, shared.preflight.settings
        self._planner = WorkPlanner(shared)
        self._assignments = Assignments(shared)
        self._facts: dict[int, PartitionFacts] = {}
        self._positions: dict[int, int] = {}  # of the last survey that was answered, whatever failed since
        self._targets: dict[int, Targets] = {}
        self._next_survey = self._next_move = self._next_report = 0.0
        self._first_connected_at: float | None = None
        self._unread_s, self._unread_checked_at = 0.0, time.monotonic()
        self._ending = False

    def run(self) -> None:
        """Coordinate until drained or stopped; raises `Refused` if that is unsafe, or without progress for too long."""
        try:
            while not self._shared.stop.is_set() and not self._assignments.drained():
                self._apply_ownership()
                self._survey_if_due()
                self._grant()
                self._rebalance_if_due()
                due = min(self._next_survey, self._next_move, time.monotonic() + _REPORT_INTERVAL_S)
                self._receive(max(_POLL_S, due - time.monotonic()))
        finally:
            try:
                self._end()
            finally:
                self._planner.close()

    def _apply_ownership(self) -> None:
        """Apply a change of ownership: survey new partitions at once, and have workers release lost ones."""
        if self._planner.take_ownership(lambda partition: partition not in self._assignments.held):
            self._assignments.owned = owned = self._planner.survey.owned
            self._next_survey = 0.0
            self._release([partition for partition in self._assignments.held if partition not in owned])

    def _release(self, partitions: Iterable[int]) -> None:
        for partition in set(partitions) - self._assignments.releasing:
            self._assignments.releasing.add(partition)
            self._assignments.sessions[self._assignments.held[partition]].connection.send({"release": partition})

    def _survey_if_due(self) -> None:
        now = time.monotonic()
        if now < self._next_survey:
            return
        self._next_survey = now + _SURVEY_INTERVAL_S
        self._workers.check()
        last_positions = self._planner.survey.last_positions
        self._positions = {p: max(position, last_positions.get(p, 0)) for p, position in self._positions.items()}
        try:
            facts, complete = self._planner.survey_partitions(lambda source: range(source.partitions))
        except SurveyFailedError as error:
            self._unread_s = 0.0
            # An outdated answer may report no position for a partition, which would restart it at the first record.
            self._facts = {}
            self._next_survey = time.monotonic() + error.pause_s
            return
        self._facts = {fact.partition: fact for fact in facts}
        # One whose offset was reset is granted again: an idle worker would not notice.
        moved = (f for f in facts if f.committed is not None and f.position < self._positions.get(f.partition, 0))
        self._release(fact.partition for fact in moved if fact.partition in self._assignments.held)
        self._positions = {fact.partition: fact.position for fact in facts}
        # The records of others belong in other output partitions now, since a topic got more of them.
        held, targets = self._assignments.held, self._planner.survey.targets
        self._release(f.partition for f in facts if f.partition in held and targets(f) != self._targets[f.partition])
        self._assignments.surveyed(facts, all_of_them=complete)
        self._workers.open(min(self._assignments.unfinished(), self._workers.slots()))
        self._check_standstill(facts)

    def _check_standstill(self, facts: list[PartitionFacts]) -> None:
        plan = self._planner.plan(facts, 1)
        if plan.blocked:
            self._planner.survey.report_blocking_transactions(plan.blocked)
        if not plan.ranges:
            self._planner.idle(plan)
        elif not self._assignments.sessions:
            reason = self._workers.last_failure() or "the cluster has no free slot"
            self._next_survey += self._planner.failed("no Spark task has reported", reason)
        ready = {range_.partition for range_ in plan.ranges}
        self._check_reading([fact for fact in facts if fact.partition in ready])

    def _check_reading(self, unread: list[PartitionFacts]) -> None:
        """
        Refuse if workers can't reach the brokers and wait for their first record: their client library reports nothing.

        Only a worker that has begun no transaction yet counts: it has called no function, and waits for records alone.

        Raises:
            Refused: for longer than --patience and two transaction time-outs they read nothing that this driver can.
        """
        now = time.monotonic()
        # A process that was suspended has not waited.
        waited_s, self._unread_checked_at = min(now - self._unread_checked_at, 2 * _SURVEY_INTERVAL_S), now
        held = {fact.partition: fact for fact in unread if fact.partition in self._assignments.held}
        if not held or any(self._assignments.held[p] in self._assignments.reading for p in held):
            self._unread_s = 0.0
            return
        self._unread_s += waited_s
        if self._unread_s <= self._settings.patience_s + 2 * self._settings.transaction_timeout_s:
            return
        if not any(self._readable(fact) for fact in held.values()):
            self._unread_s = 0.0  # the log may hold no visible record, or this driver can't reach its leader either
            return
        raise Refused(
            f"the workers have read no record of partitions {sorted(held)} of {self._settings.input} for "
            f"{self._unread_s:.0f} s, which this driver can read: they may not reach the brokers; make the addresses "
            "in the brokers' advertised.listeners reachable from the executors, then run again"
        )

    def _readable(self, fact: PartitionFacts) -> bool:
        settings, span = self._settings, {fact.partition: (fact.position, fact.log.last_stable)}
        with contextlib.suppress(KafkaFailure, DeadlineExceeded):
            records = scan(settings.connection, fact.topic, span, READ_COMMITTED, idle_s=_READ_S, group=settings.group)
            return next(records, None) is not None
        return False

    def _grant(self) -> None:
        free = self._assignments.free(time.monotonic())
        facts = {p: self._facts[p] for p in free if p in self._facts}
        if not facts or not self._workers_connected():
            return
        lags = {p: fact.lag for p, fact in self._facts.items() if p in free or p in self._assignments.held}
        assigned = assignor.assign(lags, self._assignments.held, self._assignments.sessions)
        share = max(1, -(-len(lags) // max(1, len(self._assignments.sessions))))
        for partition, slot in assigned.items():
            if partition in facts and not self._shared.stop.is_set():
                self._send_grant(facts[partition], slot, share)

    def _send_grant(self, fact: PartitionFacts, slot: int, share: int) -> None:
        goals, survey = self._shared.preflight.goals, self._planner.survey
        goal = None if goals is None else goals.get(fact.partition, fact.log.first)
        first_time = survey.first_attempt(fact)  # first: it forgets a position in a topic that was recreated
        start = max(fact.position, survey.last_positions.get(fact.partition, 0))
        exempt = self._assignments.exempt_from_crash(fact.partition)
        self._targets[fact.partition] = targets = survey.targets(fact)
        grant = Grant(fact.partition, start, targets, goal, first_time, exempt)
        self._shared.running[fact.partition] = OffsetRange(fact.topic, fact.partition, start, start + 1)
        self._shared.lost.pop(fact.partition, None)
        self._assignments.assign(fact.partition, slot)
        self._assignments.sessions[slot].connection.send({**grant_message(grant), "share": share})

    def _workers_connected(self) -> bool:
        """Return True once all needed slots have connected workers, or the first one has waited long enough."""
        if not self._assignments.sessions:
            return False
        now = time.monotonic()
        if self._first_connected_at is None:
            self._first_connected_at = now
        expected = min(self._workers.slots(), self._assignments.unfinished())
        return len(self._assignments.sessions) >= expected or now >= self._first_connected_at + _STARTUP_WAIT_S

    def _rebalance_if_due(self) -> None:
        """Release one partition if a slot has much more work than another."""
        now = time.monotonic()
        if now < self._next_move:
            return
        self._next_move = now + self._settings.direct.lease_s / 3
        lags = {p: fact.lag for p, fact in self._facts.items() if p in self._assignments.held}
        partition = assignor.partition_to_move(lags, self._assignments.held, self._assignments.sessions)
        if partition is not None and not self._assignments.releasing:
            self._release([partition])

    def _receive(self, wait_s: float) -> None:
        received = self._workers.server.received
        try:
            self._handle(received.get(timeout=wait_s))
            while True:
                self._handle(received.get_nowait())
        except queue.Empty:
            pass
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + _REPORT_INTERVAL_S
            self._assignments.report()

    def _handle(self, received: ReceivedMessage) -> None:
        session, message = received.session, received.message
        if message is None:
            self._disconnected(session)
            return
        if "hello" in message:
            self._connected(session)
        if self._assignments.sessions.get(session.slot) is not session:
            return  # a later session has the slot
        if "begun" in message:
            self._assignments.reading.add(session.slot)
            self._shared.progress.begun(int(message["begun"]))
        outcome = parse_outcome(message)
        if outcome is not None:
            self._assignments.reading.add(session.slot)
            if outcome.status in GOOD:
                self._workers.worked(session.slot)
            self._outcome(outcome)
            self._planner.check_rejections(outcome)
        if "released" in message:
            self._released(message["released"])

    def _connected(self, session: WorkerSession) -> None:
        if (older := self._assignments.sessions.get(session.slot)) is not None:
            self._assignments.disconnected(older)
            # Its lease would be renewed for ever: if Spark only took it for lost, it would fence its successor again
            # and again.
            older.connection.close()
            self._next_survey = 0.0  # the older worker may have committed since the last one
        self._assignments.sessions[session.slot] = session
        self._next_survey = 0.0 if self._facts and self._assignments.free(time.monotonic()) else self._next_survey

    def _disconnected(self, session: WorkerSession) -> None:
        lost = sorted(p for p, slot in self._assignments.held.items() if slot == session.slot)
        if not self._assignments.disconnected(session):
            return
        self._next_survey = 0.0
        if lost and not self._ending:
            # A record that takes its worker with it has no outcome, and would take one after another for ever.
            reason = self._workers.last_failure() or "its connection was closed, or it was silent for --lease"
            self._planner.failed(f"the worker in slot {session.slot} has ended, which had partitions {lost}", reason)

    def _outcome(self, outcome: Outcome) -> None:
        self._shared.progress.outcome(outcome)
        self._assignments.outcome(outcome)
        if outcome.status is Status.CRASHED:
            self._shared.crashed.append(outcome)
            self._ended(outcome.partition)
        elif outcome.status is Status.FAILED:  # its transaction may be open; before `reconcile`, which may end the run
            failed = OffsetRange(self._settings.input, outcome.partition, outcome.start, outcome.until)
            self._shared.lost[outcome.partition] = failed
        pause_s = self._planner.reconcile([outcome])
        if pause_s > 0:
            self._assignments.back_off(outcome.partition, time.monotonic() + pause_s)

    def _released(self, released: Mapping[str, object]) -> None:
        partition, position = (int(str(released[name])) for name in ("partition", "position"))
        reason = str(released["why"])
        self._ended(partition)
        self._assignments.released(partition, position)
        self._next_survey = 0.0
        if reason:
            self._unread_s = 0.0
            pause_s = self._planner.failed(f"partition {partition} was released", reason)
            self._assignments.back_off(partition, time.monotonic() + pause_s)

    def _ended(self, partition: int) -> None:
        """End a partition's work; report first if the run crashes on purpose, since it dies once nothing is running."""
        if self._shared.crashed:
            self._assignments.report()
        self._shared.running.pop(partition, None)

    def _end(self) -> None:
        """End all workers, also those that connect only now, until all have disconnected or the server was closed."""
        self._ending = True
        failure: BrewError | None = None
        self._workers.stop_restarts()
        notified = set[WorkerSession]()
        while (sessions := set(self._assignments.sessions.values())) and not self._workers.server.closed:
            for session in sessions - notified:
                session.connection.send({"end": True})
            notified = sessions
            try:
                self._receive(_POLL_S)
            except BrewError as error:  # the others finish their transactions
                failure = failure or error
        self._assignments.report()
        if failure is not None and sys.exception() is None:  # else the run ends with the error before
            raise failure


_LOOPBACK = "127.0.0.1"


def lease_workers(shared: RunContext) -> LeaseWorkers:
    """Create this run's workers; imports Spark only if it is used."""
    settings, progress = shared.preflight.settings, shared.progress

    def worker_settings(host: str, server: LeaseServer, made: Transformation) -> WorkerSettings:
        limits = settings.direct, settings.crash, settings.max_records_per_transaction
        more = *limits, settings.journal, progress.watched, progress.traced
        transaction = shared.preflight.transaction
        return WorkerSettings(host, server.port, server.token, settings.input, transaction, made, *more)

    if settings.spark.absent:
        from brew.readers.direct.executors import LocalWorker  # noqa: PLC0415

        server = LeaseServer(_LOOPBACK, settings.direct.lease_s)
        return LocalWorker(server, worker_settings(_LOOPBACK, server, transformation(settings)))
    from brew.readers.direct.executors import SparkWorkers  # noqa: PLC0415
    from brew.spark import session  # noqa: PLC0415 - a third of a second
    from brew.spark.shipping import pickled  # noqa: PLC0415 - as above

    # Before Spark starts: refuses what can't be serialized.
    made = for_executors(transformation(settings), partial(pickled, py_files=settings.spark.py_files))
    context = session.start_context(settings.spark, shared.preflight.compilers)
    conf = context.getConf()
    host = conf.get("spark.driver.host", _LOOPBACK) or _LOOPBACK
    server = LeaseServer(conf.get("spark.driver.bindAddress", host) or host, settings.direct.lease_s)
    return SparkWorkers(context, server, worker_settings(host, server, made))
