"""A lane: some of the input's partitions, one cycle of plan, read, transact and reconcile after another."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from brew.attempt import AttemptSpec, Job, attempt
from brew.driver.limits import CircuitBreaker, GiveUpPolicy
from brew.driver.partitions import PartitionSurvey
from brew.driver.run_context import Engine, RunContext
from brew.errors import DeadlineExceeded, KafkaFailure
from brew.kafka.log_reader import scan
from brew.names import READ_COMMITTED
from brew.offsets import OffsetRange
from brew.outcome import GOOD, Outcome, Status
from brew.planner import PartitionFacts, Plan, plan_ranges
from brew.transaction_sizing import TransactionSize
from brew.transformation import transformation


class MicroBatchLane:
    """The partitions whose number modulo the count of lanes is ``index``; runs in a thread of its own."""

    def __init__(self, shared: RunContext, engine: Engine, index: int) -> None:
        self._shared, self._engine, self._index = shared, engine, index
        self._settings = shared.settings
        self._survey = PartitionSurvey(shared)
        self._pace = TransactionSize.at_most(
            self._settings.max_records_per_transaction, self._settings.transaction_timeout_s
        )
        self._give_up = GiveUpPolicy(self._settings)
        self._breaker = CircuitBreaker(self._settings.max_rejected)

    def run(self) -> None:
        """
        Cycle until drained or stopped.

        Raises:
            Refused: going on would guess, or nothing moved for too long.
        """
        shared = self._shared
        try:
            while not shared.stop.is_set():
                try:
                    plan, facts = self._plan()
                except (KafkaFailure, DeadlineExceeded) as error:
                    shared.board.unanswered(str(error))
                    self._failed("survey", str(error))
                    continue
                if plan.drained:
                    return
                if plan.ranges:
                    self._cycle(plan.ranges, {fact.partition: fact for fact in facts})
                else:
                    self._wait(plan)
        finally:
            self._survey.close()

    def _plan(self) -> tuple[Plan, list[PartitionFacts]]:
        lanes = self._settings.lanes
        # Between two cycles nothing is at work here: what others are due goes now.
        ours = self._survey.ours = self._shared.ownership.turn(lambda partition: partition % lanes == self._index)
        facts, all_of_them = self._survey.look(lambda source: range(self._index, source.partitions, lanes))
        plan = plan_ranges(facts, self._pace.cap, self._shared.goals)
        return Plan(plan.ranges, plan.blocked, plan.drained and all_of_them).split(ours), facts

    def _cycle(self, ranges: Sequence[OffsetRange], facts: Mapping[int, PartitionFacts]) -> None:
        began = time.monotonic()
        shared, settings = self._shared, self._settings
        offers = {r.partition: self._offer(r, facts[r.partition]) for r in ranges}
        given = (transformation(settings), settings.journal)
        job = Job(offers, shared.transaction, *given, traced=shared.board.traced)
        shared.running.update({r.partition: r for r in ranges})
        if shared.stop.is_set():  # looked at behind the line above: who stops the run waits for what is in ``running``
            for offered in ranges:
                shared.running.pop(offered.partition, None)
            return
        for offered in ranges:
            shared.board.begun(offered.partition)
        told = self._engine.execute(ranges, job)
        outcomes = [told.get(r.partition) or self._advance(r, job) for r in ranges]
        # Before ``running`` says that they have ended: the number that a crash announces is told right then.
        shared.crashed.extend(one for one in outcomes if one.status is Status.CRASHED)
        for offered, outcome in zip(ranges, outcomes, strict=True):
            if outcome.status is Status.FAILED:
                shared.lost[outcome.partition] = offered
            else:
                shared.lost.pop(outcome.partition, None)
            shared.running.pop(outcome.partition, None)
            shared.board.outcome(outcome)
        shared.view.cycle(self._index, outcomes, time.monotonic() - began)
        self._reconcile(outcomes)

    def _offer(self, offered: OffsetRange, fact: PartitionFacts) -> AttemptSpec:
        targets, crash = self._survey.targets(fact), self._shared.dice.next_crash(offered)
        return AttemptSpec(offered, targets, self._survey.first_attempt(fact), crash)

    def _advance(self, offered: OffsetRange, job: Job) -> Outcome:
        """Move over a range without visible rows: the six steps minus produce, after a second reader's look."""
        span = {offered.partition: (offered.start, offered.until)}
        for batch in scan(self._settings.connection, offered.topic, span, READ_COMMITTED, group=self._settings.group):
            detail = f"Spark reported no row, yet offset {batch[0].offset()} is visible"
            return Outcome(offered.partition, offered.start, offered.until, Status.FAILED, detail=detail)
        return attempt(replace(job.offers[offered.partition], crash=None), iter(()), job)

    def _reconcile(self, outcomes: Sequence[Outcome]) -> None:
        shared = self._shared
        if any(one.status is Status.CRASHED for one in outcomes):
            shared.stop.set()
            return
        for outcome in outcomes:
            self._survey.apply_outcome(outcome)
            self._pace = self._pace.after_outcome(outcome)
        for outcome in outcomes:
            self._breaker.apply_outcome(outcome)
            shared.first.apply_outcome(outcome)
        bad = [o for o in outcomes if o.status not in GOOD]
        if len(bad) < len(outcomes):
            self._give_up.moved()
        if bad:
            self._failed(f"partition {bad[0].partition} last ended {bad[0].status.value}", bad[0].detail)
        else:
            self._give_up.good()

    def _failed(self, what: str, detail: str) -> None:
        self._shared.stop.wait(self._give_up.failed(what, detail))

    def _wait(self, plan: Plan) -> None:
        """Nothing to do now: wait for new records, or for an open upstream transaction to end."""
        self._give_up.good()  # the survey succeeded
        if plan.blocked:
            self._survey.report_blocking_transactions(plan.blocked)
        if self._shared.goals is not None:
            self._give_up.held_back(plan.blocked, plan.elsewhere)
        elif not plan.blocked:
            self._give_up.moved()
        self._shared.stop.wait(self._settings.poll_interval_s)
