"""The direct reader's driver: survey, grant leases to workers, plan again from their outcomes."""

from __future__ import annotations

import queue
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from brew.driver import assignor
from brew.driver.ownership import ALL_PARTITIONS
from brew.driver.run_context import Carrier, RunContext
from brew.driver.work_planner import SurveyFailedError, WorkPlanner
from brew.kafka.transaction import TransactionSettings
from brew.offsets import OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.readers.direct.messages import Grant, Message, WorkerSettings, grant_message, parse_outcome
from brew.readers.direct.server import LeaseServer, ReceivedMessage, WorkerSession
from brew.settings import Compilers, PipelineSettings
from brew.transformation import Transformation, for_executors, transformation


class Assignments:
    """
    Which worker holds which partition.

    ``sessions``: slot -> its worker's session; ``held``: partition -> slot; ``releasing``: partitions whose worker was
    asked to release them; ``ours``: the partitions that this driver may grant.
    """

    def __init__(self, shared: RunContext) -> None:
        self._shared = shared
        self.sessions: dict[int, WorkerSession] = {}
        self.held: dict[int, int] = {}
        self.releasing: set[int] = set()
        self.ours: Container[int] = ALL_PARTITIONS
        self._partitions: set[int] = set()
        self._done: set[int] = set()
        self._rests_until: dict[int, float] = {}
        self._exempt: set[int] = set()
        self._complete = False
        self._unreported: dict[int, list[Outcome]] = {}
        self._told_at = shared.board.started

    def surveyed(self, facts: Iterable[PartitionFacts], *, all_of_them: bool) -> None:
        """Take in which partitions there are, and which of them have reached their goal."""
        goals, self._complete = self._shared.goals, all_of_them
        for fact in facts:
            self._partitions.add(fact.partition)
            if goals is not None and fact.position >= goals.get(fact.partition, fact.log.first):
                self._done.add(fact.partition)
            else:  # somebody may have moved it back
                self._done.discard(fact.partition)

    def drained(self) -> bool:
        return self._complete and self._partitions <= self._done and not self.held

    def unfinished(self) -> int:
        """How many of our partitions have not reached their goal."""
        return sum(p in self.ours for p in self._partitions - self._done)

    def free(self, now: float) -> set[int]:
        """Partitions that wait for a worker."""
        waiting = self._partitions - self._done - self.held.keys()
        return {p for p in waiting if p in self.ours and self._rests_until.get(p, 0.0) <= now}

    def back_off(self, partition: int, until: float) -> None:
        """After a failure: not before ``until``, by the monotonic clock."""
        self._rests_until[partition] = until

    def assign(self, partition: int, slot: int) -> None:
        self.held[partition] = slot
        self._rests_until.pop(partition, None)

    def exempt_from_crash(self, partition: int) -> bool:
        """True once after the partition's worker died."""
        exempt = partition in self._exempt
        self._exempt.discard(partition)
        return exempt

    def released(self, partition: int, position: int) -> None:
        self.held.pop(partition, None)
        self.releasing.discard(partition)
        goals = self._shared.goals
        if goals is not None and position >= goals.get(partition, 0):
            self._done.add(partition)

    def disconnected(self, session: WorkerSession) -> bool:
        """Free all that the session's worker held; False when another session has the slot already."""
        if self.sessions.get(session.slot) is not session:
            return False
        del self.sessions[session.slot]
        for partition in [p for p, slot in self.held.items() if slot == session.slot]:
            del self.held[partition]
            self.releasing.discard(partition)
            if (lost := self._shared.running.pop(partition, None)) is not None:
                self._shared.lost[partition] = lost
            self._exempt.add(partition)
        return True

    def outcome(self, outcome: Outcome) -> None:
        self._unreported.setdefault(outcome.partition, []).append(outcome)

    def report(self) -> None:
        """Show what ended since the last report: one range per partition and kind of end."""
        if not self._unreported:
            return
        outcomes = [merged for outcomes in self._unreported.values() for merged in _merged(outcomes)]
        self._unreported.clear()
        self._shared.view.cycle(0, outcomes, sum(outcome.seconds for outcome in outcomes))


def _merged(outcomes: list[Outcome]) -> list[Outcome]:
    """Commits of adjacent ranges become one."""
    merged: list[Outcome] = []
    for outcome in outcomes:
        last = merged[-1] if merged else None
        if last is not None and last.status is outcome.status is Status.COMMITTED and last.until == outcome.start:
            merged[-1] = replace(
                last,
                until=outcome.until,
                enriched=last.enriched + outcome.enriched,
                rejected=last.rejected + outcome.rejected,
                seconds=last.seconds + outcome.seconds,
                dropped=last.dropped + outcome.dropped,
                written=last.written + outcome.written,
            )
        else:
            merged.append(outcome)
    return merged


_SURVEY_INTERVAL_S = 1.0
_POLL_S = 0.02
_REPORT_INTERVAL_S = 0.25
_STARTUP_WAIT_S = 1.0
"""How long the first workers wait for the others, so that the partitions are spread at once."""


class LeaseWorkers(Carrier, Protocol):
    """Runs a lease worker in each slot, and starts it again when it ends before it should."""

    server: LeaseServer

    def slots(self) -> int:
        """Task slots that there are now."""

    def open(self, count: int) -> None:
        """Have workers in slots 0 to ``count`` - 1; those that run stay."""

    def stop_restarts(self) -> None:
        """Start no worker again."""

    def check(self) -> None:
        """
        Check that workers can still be run.

        Raises:
            BrewError: they can't, and trying again can't help.
        """


class LeaseCoordinator:
    """Grants partitions to workers, in one thread; workers report through the server's queue."""

    def __init__(self, shared: RunContext, workers: LeaseWorkers) -> None:
        self._shared, self._workers, self._settings = shared, workers, shared.settings
        self._planner = WorkPlanner(shared)
        self._assignments = Assignments(shared)
        self._facts: dict[int, PartitionFacts] = {}
        self._next_survey = self._next_move = self._next_report = 0.0
        self._first_connected_at: float | None = None

    def run(self) -> None:
        """
        Coordinate until drained or stopped.

        Raises:
            Refused: going on would guess, or nothing moved for too long.
        """
        try:
            while not self._shared.stop.is_set() and not self._drained():
                self._follow_claims()
                self._survey_if_due()
                self._grant()
                self._rebalance_if_due()
                self._receive(self._next_due_s())
        finally:
            self._end()
            self._planner.close()

    # -- survey ----------------------------------------------------------------------------------------------------

    def _follow_claims(self) -> None:
        """Survey at once what has become ours; have what no longer is released, and hand it over then."""
        if self._planner.take_ownership(lambda partition: partition not in self._assignments.held):
            self._assignments.ours = self._planner.ours
            self._next_survey = 0.0
            self._release([partition for partition in self._assignments.held if partition not in self._planner.ours])

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
        known = self._planner.survey.known
        before = {p: max(fact.position, known.get(p, 0)) for p, fact in self._facts.items()}
        try:
            facts, complete = self._planner.look(lambda source: range(source.partitions))
        except SurveyFailedError as error:
            # An older answer may say of a partition that has come back: no position yet, begin at the first record.
            self._facts = {}
            self._next_survey = time.monotonic() + error.pause_s
            return
        self._facts = {fact.partition: fact for fact in facts}
        self._release_moved_back(facts, before)
        self._assignments.surveyed(facts, all_of_them=complete)
        self._workers.open(min(self._assignments.unfinished(), self._workers.slots()))
        self._check_standstill(facts)

    def _release_moved_back(self, facts: Iterable[PartitionFacts], before: Mapping[int, int]) -> None:
        """Grant anew what an outsider moved back: an idle worker commits nothing, so it never locates."""
        moved = [f.partition for f in facts if f.committed is not None and f.position < before.get(f.partition, 0)]
        self._release(partition for partition in moved if partition in self._assignments.held)

    def _check_standstill(self, facts: list[PartitionFacts]) -> None:
        plan = self._planner.plan(facts, 1)
        if plan.blocked:
            self._planner.survey.report_blocking_transactions(plan.blocked)
        if not plan.ranges:
            self._planner.idle(plan)
        elif not self._assignments.sessions:
            self._next_survey += self._planner.failed("no Spark task has reported", "the cluster has no free slot")

    def _drained(self) -> bool:
        return self._shared.goals is not None and self._assignments.drained()

    # -- grants ----------------------------------------------------------------------------------------------------

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
        goals, survey = self._shared.goals, self._planner.survey
        goal = None if goals is None else goals.get(fact.partition, fact.log.first)
        start = max(fact.position, survey.known.get(fact.partition, 0))
        exempt = self._assignments.exempt_from_crash(fact.partition)
        first_time = survey.first_attempt(fact)
        grant = Grant(fact.partition, start, survey.targets(fact), goal, first_time, exempt)
        self._shared.running[fact.partition] = OffsetRange(fact.topic, fact.partition, start, start + 1)
        self._shared.lost.pop(fact.partition, None)
        self._assignments.assign(fact.partition, slot)
        self._assignments.sessions[slot].connection.send({**grant_message(grant), "share": share})

    def _workers_connected(self) -> bool:
        """True once every slot's worker is connected, or the first one has waited long enough."""
        if not self._assignments.sessions:
            return False
        now = time.monotonic()
        if self._first_connected_at is None:
            self._first_connected_at = now
        wanted = min(self._workers.slots(), self._assignments.unfinished())
        return len(self._assignments.sessions) >= wanted or now >= self._first_connected_at + _STARTUP_WAIT_S

    def _rebalance_if_due(self) -> None:
        """Have one partition released where a slot has much more to do than another."""
        now = time.monotonic()
        if now < self._next_move:
            return
        self._next_move = now + self._settings.direct.lease_s / 3
        lags = {p: fact.lag for p, fact in self._facts.items() if p in self._assignments.held}
        partition = assignor.partition_to_move(lags, self._assignments.held, self._assignments.sessions)
        if partition is not None and not self._assignments.releasing:
            self._release([partition])

    # -- reports of workers ----------------------------------------------------------------------------------------

    def _next_due_s(self) -> float:
        now = time.monotonic()
        due = min(self._next_survey, self._next_move, now + _REPORT_INTERVAL_S)
        return max(_POLL_S, due - now)

    def _receive(self, wait_s: float) -> None:
        """Handle all messages that have come; wait for the first one."""
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
            if self._assignments.disconnected(session):
                self._next_survey = 0.0
            return
        if "hello" in message:
            self._connected(session)
        if self._assignments.sessions.get(session.slot) is not session:
            return  # a later session has the slot
        if "begun" in message:
            self._shared.board.begun(int(message["begun"]))
        outcome = parse_outcome(message)
        if outcome is not None:
            self._outcome(outcome)
        if "released" in message:
            self._released(message["released"])
        if outcome is not None:
            self._planner.check_rejections(outcome)

    def _connected(self, session: WorkerSession) -> None:
        if session.slot in self._assignments.sessions:
            self._assignments.disconnected(self._assignments.sessions[session.slot])
        self._assignments.sessions[session.slot] = session
        self._next_survey = 0.0 if self._facts and self._assignments.free(time.monotonic()) else self._next_survey

    def _outcome(self, outcome: Outcome) -> None:
        self._shared.board.outcome(outcome)
        self._assignments.outcome(outcome)
        if outcome.status is Status.CRASHED:
            self._shared.crashed.append(outcome)
            self._ended(outcome.partition)
        pause_s = self._planner.reconcile([outcome])
        if pause_s > 0:
            self._assignments.back_off(outcome.partition, time.monotonic() + pause_s)

    def _released(self, released: Mapping[str, object]) -> None:
        partition, position, why = int(str(released["partition"])), int(str(released["position"])), str(released["why"])
        self._ended(partition)
        self._assignments.released(partition, position)
        self._next_survey = 0.0
        if why:
            pause_s = self._planner.failed(f"partition {partition} was released", why)
            self._assignments.back_off(partition, time.monotonic() + pause_s)

    def _ended(self, partition: int) -> None:
        """A run that crashes on purpose dies as soon as nothing is running: report what is known before that."""
        if self._shared.crashed:
            self._assignments.report()
        self._shared.running.pop(partition, None)

    # -- end -------------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """End all workers; return when nobody holds anything any more, or the server was closed meanwhile."""
        self._workers.stop_restarts()
        message: Message = {"end": True}
        for session in self._assignments.sessions.values():
            session.connection.send(message)
        while self._assignments.sessions and not self._workers.server.closed:
            self._receive(_POLL_S)
        self._assignments.report()


if TYPE_CHECKING:
    from pyspark import SparkContext

_LOOPBACK = "127.0.0.1"
_ARCHIVE_S = 60.0


def lease_workers(
    settings: PipelineSettings,
    transaction: TransactionSettings,
    compilers: Compilers,
    *,
    watched: bool,
    traced: bool = False,
    context: SparkContext | None = None,
) -> LeaseWorkers:
    """The workers of this run; imports Spark only where it is wanted. ``context``, or a borrowed one, is not ended."""
    if settings.spark.absent:
        from brew.readers.direct.executors import LocalWorker  # noqa: PLC0415

        server = LeaseServer(_LOOPBACK, settings.direct.lease_s)
        local = _worker_settings(settings, transaction, _LOOPBACK, server, transformation(settings))
        return LocalWorker(server, replace(local, watched=watched, traced=traced))
    from brew.readers.direct.executors import SparkWorkers  # noqa: PLC0415
    from brew.spark import session  # noqa: PLC0415 - a third of a second
    from brew.spark.shipping import pickled  # noqa: PLC0415 - the same

    made = for_executors(transformation(settings), pickled)  # before Spark starts: what can't travel is refused
    borrowed = context or session.borrowed(settings.spark)
    used = borrowed or session.start_context(settings.spark, compilers)
    conf = used.getConf()
    host = conf.get("spark.driver.host", _LOOPBACK) or _LOOPBACK
    server = LeaseServer(conf.get("spark.driver.bindAddress", host) or host, settings.direct.lease_s)
    more = {"end_s": _ARCHIVE_S} if settings.spark.make_archive else {}
    worker = replace(_worker_settings(settings, transaction, host, server, made), watched=watched, traced=traced)
    return SparkWorkers(used, server, worker, **more, kept=borrowed is not None)


def _worker_settings(
    settings: PipelineSettings,
    transaction: TransactionSettings,
    host: str,
    server: LeaseServer,
    made: Transformation,
) -> WorkerSettings:
    return WorkerSettings(
        host,
        server.port,
        server.token,
        settings.input,
        transaction,
        made,
        settings.direct,
        settings.crash,
        settings.max_records_per_transaction,
        settings.journal,
    )
