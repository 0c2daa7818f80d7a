"""A lane: some of the input's partitions, one cycle of plan, read, transact and reconcile after another."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline import missing
from pipeline.attempt import Job, Offer, attempt
from pipeline.blocked import tell_who_blocks
from pipeline.crash import Dice
from pipeline.engine import Engine
from pipeline.outcome import Outcome, Status
from pipeline.pace import Pace
from pipeline.plan import Fact, Plan, check, decide, position_metadata
from pipeline.ports import Targets
from pipeline.progress import Board, Silent
from pipeline.settings import PipelineSettings
from pipeline.survey import Surveyor
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, KafkaFailure, Refused
from protocol.kafka.scan import scan
from protocol.kafka.topics import Topic
from protocol.kafka.transaction import TransactionSettings
from protocol.names import READ_COMMITTED
from protocol.position import OffsetRange

_SURVEY_S = 30.0
_BLOCKED_NOTE_S = 5.0
_BACKOFF_S = 0.1
_LONGEST_BACKOFF_S = 5.0
_GOOD = {Status.COMMITTED, Status.ALREADY_DONE, Status.AHEAD}


@dataclass
class Shared:
    """What all lanes of a run share."""

    settings: PipelineSettings
    engine: Engine
    targets: Mapping[str, Topic]
    stop: threading.Event
    board: Board
    view: Silent
    goals: Mapping[int, int] | None
    dead_letter_max_bytes: int
    dice: Dice
    crashed: list[Outcome] = field(default_factory=list)
    running: dict[int, OffsetRange] = field(default_factory=dict)


class Lane:
    """The partitions whose number modulo the count of lanes is ``index``; runs in a thread of its own."""

    def __init__(self, shared: Shared, index: int) -> None:
        self._shared, self._index = shared, index
        self._settings = shared.settings
        self._surveyor = Surveyor(shared.settings)
        self._topics = shared.targets
        self._pace = Pace.at_most(self._settings.max_records_per_transaction, self._settings.transaction_timeout_s)
        self._may_start: set[int] = set()
        self._known: dict[int, int] = {}
        self._failures = 0
        self._last_progress = self._failing_since = time.monotonic()
        self._next_note = 0.0

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
                    self._failed("survey", str(error))
                    continue
                if plan.drained:
                    return
                if plan.ranges:
                    self._cycle(plan.ranges, {fact.partition: fact for fact in facts})
                else:
                    self._wait(plan)
        finally:
            self._surveyor.close()

    def _plan(self) -> tuple[Plan, list[Fact]]:
        settings, shared = self._settings, self._shared
        deadline = Deadline(_SURVEY_S)
        source = self._surveyor.input_topic(deadline)
        if source.partitions != self._topics[source.name].partitions:
            self._topics = {**self._surveyor.output_topics(source, deadline), source.name: source}
        mine = range(self._index, source.partitions, settings.lanes)
        facts = self._surveyor.facts(source, mine, deadline, self._known)
        for fact in facts:
            check(fact, settings.group)
            if fact.committed is not None:
                self._may_start.discard(fact.partition)
                self._notice_step_back(fact.partition, fact.committed.offset)
        unknown = [f for f in facts if f.committed is None and f.partition not in self._may_start]
        if unknown:
            self._may_start |= missing.resolve(settings, unknown, self._topics)
            allowed = self._may_start
            facts = [f for f in facts if f.committed is not None or f.partition in allowed or f.log.end == f.log.first]
        shared.board.survey(facts)
        goals = shared.goals
        plan = decide(facts, self._pace.cap, goals)
        return (plan if len(facts) == len(mine) else Plan(plan.ranges, plan.blocked, drained=False)), facts

    def _notice_step_back(self, partition: int, offset: int) -> None:
        """One truth: a position that somebody moved back is where this run goes on, and it says so."""
        if offset < self._known.get(partition, 0):
            self._shared.view.tell(
                f"offset-gap: partition {partition} was committed up to {self._known[partition]}, the group now stands "
                f"at {offset}: an outsider moved the position back; going on from there"
            )
            self._known[partition] = offset

    def _cycle(self, ranges: Sequence[OffsetRange], facts: Mapping[int, Fact]) -> None:
        began = time.monotonic()
        shared = self._shared
        offers = {r.partition: self._offer(r, facts[r.partition]) for r in ranges}
        job = Job(offers, self._transaction(), self._settings.limits, self._settings.journal)
        shared.running.update({r.partition: r for r in ranges})
        if shared.stop.is_set():  # looked at behind the line above: who stops the run waits for what is in ``running``
            for offered in ranges:
                shared.running.pop(offered.partition, None)
            return
        told = shared.engine.execute(ranges, job)
        outcomes = [told.get(r.partition) or self._advance(r, job) for r in ranges]
        for outcome in outcomes:
            shared.running.pop(outcome.partition, None)
            shared.board.outcome(outcome)
        shared.view.cycle(self._index, outcomes, time.monotonic() - began)
        self._reconcile(outcomes)

    def _transaction(self) -> TransactionSettings:
        settings = self._settings
        return TransactionSettings(settings.connection, settings.group, settings.transaction_timeout_s)

    def _offer(self, offered: OffsetRange, fact: Fact) -> Offer:
        settings, shared = self._settings, self._shared

        def partition_in(name: str) -> int:
            """The same partition where the counts are equal: order stays, and a crash freezes one LSO only."""
            same = self._topics[name].partitions == self._topics[settings.input].partitions
            return offered.partition if same else -1

        targets = Targets(
            settings.output,
            settings.dead_letter,
            partition_in(settings.output),
            partition_in(settings.dead_letter),
            position_metadata(fact.topic_id),
            shared.dead_letter_max_bytes,
        )
        return Offer(offered, targets, fact.committed is None, shared.dice.throw(offered))

    def _advance(self, offered: OffsetRange, job: Job) -> Outcome:
        """Move over a range without visible rows: the six steps minus produce, after a second reader's look."""
        span = {offered.partition: (offered.start, offered.until)}
        for batch in scan(self._settings.connection, offered.topic, span, READ_COMMITTED, group=self._settings.group):
            detail = f"Spark reported no row, yet offset {batch[0].offset()} is visible"
            return Outcome(offered.partition, offered.start, offered.until, Status.FAILED, detail=detail)
        return attempt(replace(job.offers[offered.partition], crash=None), iter(()), job)

    def _reconcile(self, outcomes: Sequence[Outcome]) -> None:
        shared = self._shared
        crashed = [o for o in outcomes if o.status is Status.CRASHED]
        if crashed:
            shared.crashed.extend(crashed)
            shared.stop.set()
            return
        for outcome in outcomes:
            if outcome.status is Status.COMMITTED:
                self._known[outcome.partition] = outcome.until
                self._pace = self._pace.after(outcome.until - outcome.start, outcome.seconds)
            elif outcome.seconds >= self._settings.transaction_timeout_s:
                self._pace = self._pace.after_time_out()
            elif outcome.status is Status.OFFSET_GAP:
                self._known.pop(outcome.partition, None)
                shared.view.tell(
                    f"offset-gap: partition {outcome.partition} was planned from {outcome.start}, the group stands at "
                    f"{outcome.position}: an outsider moved the position; planning again from there"
                )
        bad = [o for o in outcomes if o.status not in _GOOD]
        if len(bad) < len(outcomes):
            self._last_progress = time.monotonic()
        if bad:
            self._failed(f"partition {bad[0].partition} last ended {bad[0].status.value}", bad[0].detail)
        else:
            self._failures = 0

    def _failed(self, what: str, detail: str) -> None:
        """Wait longer after each bad cycle, by chance: two pipelines that fence each other must get out of step."""
        now = time.monotonic()
        if self._failures == 0:
            self._failing_since = now  # time spent blocked by others, before the first failure, does not count
        idle = now - max(self._last_progress, self._failing_since)
        if idle > self._settings.patience_s:
            raise Refused(
                f"no progress for {idle:.0f} s (--patience is {self._settings.patience_s:g} s); {what}: "
                f"{detail or 'see the lines above'}"
            )
        self._failures += 1
        longest = min(_LONGEST_BACKOFF_S, _BACKOFF_S * 2**self._failures)
        self._shared.stop.wait(random.uniform(longest / 4, longest))  # noqa: S311 - a pause, no secret

    def _wait(self, plan: Plan) -> None:
        """Nothing to do now: wait for new records, or for an open upstream transaction to end."""
        now = time.monotonic()
        self._failures = 0  # the survey succeeded
        if self._shared.goals is None and not plan.blocked:
            self._last_progress = now
        if plan.blocked and now >= self._next_note:
            self._next_note = now + _BLOCKED_NOTE_S
            tell_who_blocks(self._settings, plan.blocked, self._shared.view)
        idle = now - self._last_progress
        if self._shared.goals is not None and idle > self._settings.blocked_patience_s:
            raise Refused(
                f"partitions {list(plan.blocked)} of {self._settings.input} were held back by an open upstream "
                f"transaction for {idle:.0f} s; end it (its owner, or kafka-transactions abort), "
                "or raise --blocked-patience"
            )
        self._shared.stop.wait(self._settings.poll_interval_s)
