"""The direct reader's driver: survey, grant leases to workers, plan again from their outcomes."""

from __future__ import annotations

import queue
import time
from collections.abc import Container, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from brew.driver import assignor
from brew.driver.limits import CircuitBreaker, GiveUpPolicy
from brew.driver.ownership import ALL_PARTITIONS
from brew.driver.partitions import PartitionSurvey
from brew.driver.run_context import Carrier, RunContext
from brew.errors import DeadlineExceeded, KafkaFailure
from brew.kafka.transaction import TransactionSettings
from brew.offsets import OffsetRange
from brew.outcome import GOOD, Outcome, Status
from brew.planner import PartitionFacts, plan_ranges
from brew.readers.direct.messages import Grant, Message, WorkerSettings, grant_message, parse_outcome
from brew.readers.direct.server import LeaseServer, ReceivedMessage, WorkerSession
from brew.settings import Compilers, PipelineSettings
from brew.transformation import transformation


class Assignments:
    """
    ``desks``: slot -> its holder; ``held``: partition -> slot; ``leaving``: partitions that were called back; ``ours``:
    what this driver may give out.
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
        self._spared: set[int] = set()
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
        """Partitions that wait for a holder."""
        waiting = self._partitions - self._done - self.held.keys()
        return {p for p in waiting if p in self.ours and self._rests_until.get(p, 0.0) <= now}

    def back_off(self, partition: int, until: float) -> None:
        """After a failure: not before ``until``, by the monotonic clock."""
        self._rests_until[partition] = until

    def assign(self, partition: int, slot: int) -> None:
        self.held[partition] = slot
        self._rests_until.pop(partition, None)

    def spared(self, partition: int) -> bool:
        """True once after a holder died over the partition."""
        spared = partition in self._spared
        self._spared.discard(partition)
        return spared

    def left(self, partition: int, position: int) -> None:
        self.held.pop(partition, None)
        self.releasing.discard(partition)
        goals = self._shared.goals
        if goals is not None and position >= goals.get(partition, 0):
            self._done.add(partition)

    def gone(self, desk: WorkerSession) -> bool:
        """A holder's line is dead: all it held is free; False when its successor is there already."""
        if self.sessions.get(desk.slot) is not desk:
            return False
        del self.sessions[desk.slot]
        for partition in [p for p, slot in self.held.items() if slot == desk.slot]:
            del self.held[partition]
            self.releasing.discard(partition)
            if (lost := self._shared.running.pop(partition, None)) is not None:
                self._shared.lost[partition] = lost
            self._spared.add(partition)
        return True

    def outcome(self, outcome: Outcome) -> None:
        self._unreported.setdefault(outcome.partition, []).append(outcome)

    def tell(self) -> None:
        """Show what ended since the last time: one range per partition and kind of end."""
        if not self._unreported:
            return
        outcomes = [one for some in self._unreported.values() for one in _merged(some)]
        self._unreported.clear()
        self._shared.view.cycle(0, outcomes, sum(one.seconds for one in outcomes))


def _merged(outcomes: list[Outcome]) -> list[Outcome]:
    joined: list[Outcome] = []
    for one in outcomes:
        last = joined[-1] if joined else None
        if last is not None and last.status is one.status is Status.COMMITTED and last.until == one.start:
            joined[-1] = Outcome(
                one.partition,
                last.start,
                one.until,
                one.status,
                last.position,
                last.enriched + one.enriched,
                last.rejected + one.rejected,
                last.seconds + one.seconds,
            )
        else:
            joined.append(one)
    return joined


_SURVEY_INTERVAL_S = 1.0
_POLL_S = 0.02
_REPORT_INTERVAL_S = 0.25
_STARTUP_WAIT_S = 1.0
"""How long the first holders wait for the others, so that the partitions are spread at once."""


class LeaseWorkers(Carrier, Protocol):
    """Runs a holder on each slot, and starts it again when it ends before it should."""

    server: LeaseServer

    def slots(self) -> int:
        """Task slots that there are now."""

    def open(self, count: int) -> None:
        """Have holders on slots 0 to ``count`` - 1; those that run stay."""

    def stop_restarts(self) -> None:
        """Start no holder again."""

    def check(self) -> None:
        """
        Look whether holders can still be run.

        Raises:
            BrewError: they can't, and nothing that is tried again can succeed.
        """


class LeaseCoordinator:
    """One thread that decides; holders speak to it through the office's queue."""

    def __init__(self, shared: RunContext, crew: LeaseWorkers) -> None:
        self._shared, self._workers, self._settings = shared, crew, shared.settings
        self._survey = PartitionSurvey(shared)
        self._give_up = GiveUpPolicy(shared.settings)
        self._breaker = CircuitBreaker(shared.settings.max_rejected)
        self._assignments = Assignments(shared)
        self._facts: dict[int, PartitionFacts] = {}
        self._next_survey = self._next_move = self._next_report = 0.0
        self._gathered_at: float | None = None

    def run(self) -> None:
        """
        Direct until drained or stopped.

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
            self._survey.close()

    # -- looking ---------------------------------------------------------------------------------------------------

    def _follow_claims(self) -> None:
        """Look at once at what is ours by now; call back what is not, to be handed over when its holder has left it."""
        ours = self._shared.ownership.turn(lambda partition: partition not in self._assignments.held)
        if ours != self._assignments.ours:
            self._survey.ours = self._assignments.ours = ours
            self._next_survey = 0.0
            self._release([partition for partition in self._assignments.held if partition not in ours])

    def _release(self, partitions: Iterable[int]) -> None:
        for partition in set(partitions) - self._assignments.releasing:
            self._assignments.releasing.add(partition)
            self._assignments.sessions[self._assignments.held[partition]].line.send({"release": partition})

    def _survey_if_due(self) -> None:
        now = time.monotonic()
        if now < self._next_survey:
            return
        self._next_survey = now + _SURVEY_INTERVAL_S
        self._workers.check()
        before = {p: max(fact.position, self._survey.known.get(p, 0)) for p, fact in self._facts.items()}
        try:
            facts, all_of_them = self._survey.look(lambda source: range(source.partitions))
        except (KafkaFailure, DeadlineExceeded) as error:
            # An older answer may say of a partition that has come back: no position yet, begin at the first record.
            self._facts = {}
            self._shared.board.unanswered(str(error))
            self._next_survey = time.monotonic() + self._give_up.failed("survey", str(error))
            return
        self._facts = {fact.partition: fact for fact in facts}
        self._release_moved_back(facts, before)
        self._assignments.surveyed(facts, all_of_them=all_of_them)
        self._workers.open(min(self._assignments.unfinished(), self._workers.slots()))
        self._check_standstill(facts)

    def _release_moved_back(self, facts: Iterable[PartitionFacts], before: Mapping[int, int]) -> None:
        """Have what an outsider moved back granted from there: an idle holder commits nothing, so it never looks."""
        stepped = [f.partition for f in facts if f.committed is not None and f.position < before.get(f.partition, 0)]
        self._release(partition for partition in stepped if partition in self._assignments.held)

    def _check_standstill(self, facts: list[PartitionFacts]) -> None:
        plan = plan_ranges(facts, 1, self._shared.goals).split(self._assignments.ours)
        if plan.blocked:
            self._survey.report_blocking_transactions(plan.blocked)
        if plan.ranges:
            if not self._assignments.sessions:
                self._next_survey += self._give_up.failed("no Spark task has reported", "the cluster has no free slot")
            return
        self._give_up.good()
        if self._shared.goals is not None:
            self._give_up.held_back(plan.blocked, plan.elsewhere)
        elif not plan.blocked:
            self._give_up.moved()

    def _drained(self) -> bool:
        return self._shared.goals is not None and self._assignments.drained()

    # -- granting --------------------------------------------------------------------------------------------------

    def _grant(self) -> None:
        free = self._assignments.free(time.monotonic())
        facts = {p: self._facts[p] for p in free if p in self._facts}
        if not facts or not self._workers_connected():
            return
        lags = {p: fact.lag for p, fact in self._facts.items() if p in free or p in self._assignments.held}
        placed = assignor.assign(lags, self._assignments.held, self._assignments.sessions)
        share = max(1, -(-len(lags) // max(1, len(self._assignments.sessions))))
        for partition, slot in placed.items():
            if partition in facts and not self._shared.stop.is_set():
                self._give(facts[partition], slot, share)

    def _give(self, fact: PartitionFacts, slot: int, share: int) -> None:
        goals = self._shared.goals
        goal = None if goals is None else goals.get(fact.partition, fact.log.first)
        start = max(fact.position, self._survey.known.get(fact.partition, 0))
        spared = self._assignments.spared(fact.partition)
        first_time = self._survey.first_attempt(fact)
        grant = Grant(fact.partition, start, self._survey.targets(fact), goal, first_time, spared)
        self._shared.running[fact.partition] = OffsetRange(fact.topic, fact.partition, start, start + 1)
        self._shared.lost.pop(fact.partition, None)
        self._assignments.assign(fact.partition, slot)
        self._assignments.sessions[slot].line.send({**grant_message(grant), "share": share})

    def _workers_connected(self) -> bool:
        """True once every slot's holder is there, or the first one has waited long enough."""
        if not self._assignments.sessions:
            return False
        now = time.monotonic()
        if self._gathered_at is None:
            self._gathered_at = now
        wanted = min(self._workers.slots(), self._assignments.unfinished())
        return len(self._assignments.sessions) >= wanted or now >= self._gathered_at + _STARTUP_WAIT_S

    def _rebalance_if_due(self) -> None:
        """Call one partition back where a slot has much more to do than another."""
        now = time.monotonic()
        if now < self._next_move:
            return
        self._next_move = now + self._settings.direct.lease_s / 3
        lags = {p: fact.lag for p, fact in self._facts.items() if p in self._assignments.held}
        partition = assignor.partition_to_move(lags, self._assignments.held, self._assignments.sessions)
        if partition is not None and not self._assignments.releasing:
            self._release([partition])

    # -- hearing ---------------------------------------------------------------------------------------------------

    def _next_due_s(self) -> float:
        now = time.monotonic()
        due = min(self._next_survey, self._next_move, now + _REPORT_INTERVAL_S)
        return max(_POLL_S, due - now)

    def _receive(self, wait_s: float) -> None:
        """Take all that holders said; wait for the first of it."""
        try:
            self._take(self._workers.server.said.get(timeout=wait_s))
            while True:
                self._take(self._workers.server.said.get_nowait())
        except queue.Empty:
            pass
        now = time.monotonic()
        if now >= self._next_report:
            self._next_report = now + _REPORT_INTERVAL_S
            self._assignments.tell()

    def _take(self, said: ReceivedMessage) -> None:
        desk, message = said.desk, said.message
        if message is None:
            if self._assignments.gone(desk):
                self._next_survey = 0.0
            return
        if "hello" in message:
            self._welcome(desk)
        if self._assignments.sessions.get(desk.slot) is not desk:
            return  # its successor speaks for the slot
        if "begun" in message:
            self._shared.board.begun(int(message["begun"]))
        outcome = parse_outcome(message)
        if outcome is not None:
            self._outcome(outcome)
        if "left" in message:
            self._left(message["left"])
        if outcome is not None:
            self._breaker.apply_outcome(outcome)
            self._shared.first.apply_outcome(outcome)

    def _welcome(self, desk: WorkerSession) -> None:
        if desk.slot in self._assignments.sessions:
            self._assignments.gone(self._assignments.sessions[desk.slot])
        self._assignments.sessions[desk.slot] = desk
        self._next_survey = 0.0 if self._facts and self._assignments.free(time.monotonic()) else self._next_survey

    def _outcome(self, outcome: Outcome) -> None:
        self._shared.board.outcome(outcome)
        self._assignments.outcome(outcome)
        if outcome.status is Status.CRASHED:
            self._shared.crashed.append(outcome)
            self._ended(outcome.partition)
            self._shared.stop.set()
        elif outcome.status is Status.COMMITTED:
            self._give_up.good()
        self._survey.apply_outcome(outcome)
        if outcome.status in GOOD:
            self._give_up.moved()
        elif outcome.status is not Status.CRASHED:
            self._failed(
                outcome.partition, f"partition {outcome.partition} last ended {outcome.status.value}", outcome.detail
            )

    def _left(self, left: Mapping[str, object]) -> None:
        partition, position, why = int(str(left["partition"])), int(str(left["position"])), str(left["why"])
        self._ended(partition)
        self._assignments.left(partition, position)
        self._next_survey = 0.0
        if why:
            self._failed(partition, f"partition {partition} was left", why)

    def _ended(self, partition: int) -> None:
        """A run that crashes on purpose dies as soon as nothing is running: what is known is told before."""
        if self._shared.crashed:
            self._assignments.tell()
        self._shared.running.pop(partition, None)

    def _failed(self, partition: int, what: str, detail: str) -> None:
        self._assignments.back_off(partition, time.monotonic() + self._give_up.failed(what, detail))

    # -- ending ----------------------------------------------------------------------------------------------------

    def _end(self) -> None:
        """Call everyone back; return when nobody holds anything any more, or the office was closed over it."""
        self._workers.stop_restarts()
        message: Message = {"end": True}
        for desk in self._assignments.sessions.values():
            desk.line.send(message)
        while self._assignments.sessions and not self._workers.server.closed:
            self._receive(_POLL_S)
        self._assignments.tell()


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
    kept: SparkContext | None = None,
) -> LeaseWorkers:
    """The crew of this run; Spark is imported only when it is wanted. ``kept``, or a borrowed one, is not ended."""
    if settings.spark.absent:
        from brew.readers.direct.executors import LocalWorker  # noqa: PLC0415

        office = LeaseServer(_LOOPBACK, settings.direct.lease_s)
        alone = _worker_settings(settings, transaction, _LOOPBACK, office)
        return LocalWorker(office, replace(alone, watched=watched, traced=traced))
    from brew.readers.direct.executors import SparkWorkers  # noqa: PLC0415
    from brew.spark import session  # noqa: PLC0415 - a third of a second

    kept = kept or session.borrowed()
    context = kept or session.start_context(settings.spark, compilers)
    conf = context.getConf()
    host = conf.get("spark.driver.host", _LOOPBACK) or _LOOPBACK
    office = LeaseServer(conf.get("spark.driver.bindAddress", host) or host, settings.direct.lease_s)
    more = {"end_s": _ARCHIVE_S} if settings.spark.make_archive else {}
    terms = replace(_worker_settings(settings, transaction, host, office), watched=watched, traced=traced)
    return SparkWorkers(context, office, terms, **more, kept=kept is not None)


def lease_coordinator(shared: RunContext, hired: LeaseWorkers) -> LeaseCoordinator:
    return LeaseCoordinator(shared, hired)


def _worker_settings(
    settings: PipelineSettings, transaction: TransactionSettings, host: str, office: LeaseServer
) -> WorkerSettings:
    return WorkerSettings(
        host,
        office.port,
        office.token,
        settings.input,
        transaction,
        transformation(settings),
        settings.direct,
        settings.crash,
        settings.max_records_per_transaction,
        settings.journal,
    )
