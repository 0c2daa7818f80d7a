"""A lane in its second round: after an empty range, a failure, a hand-over; planned from brokers that are played."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from harness.lease_coordinator import run_context
from harness.waiting import until

from brew.attempt import AttemptSpec, Job
from brew.claims.heartbeater import ALL_PARTITIONS
from brew.connection import Connection
from brew.driver import limits, micro_batches, work_planner
from brew.driver.limits import GiveUpPolicy
from brew.driver.micro_batches import MicroBatchLane
from brew.errors import BrewError, DeadlineExceeded, Refused, Retriable
from brew.names import READ_COMMITTED
from brew.offsets import Committed, LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts, Plan
from brew.range_transaction import Targets
from brew.settings import CrashSettings, Limits, PipelineSettings
from pipeline.transformation import OrderEnrichment

END = 100


class FakeSurvey:
    """Two partitions of 100 offsets, and where the group stands."""

    def __init__(self) -> None:
        self.committed = {0: 0, 1: 0}
        self.owned: Container[int] = ALL_PARTITIONS
        self.owned_at_reads: list[Container[int]] = []
        self.outcomes: list[Outcome] = []
        self.first_attempts: set[int] = set()
        self.failures: list[Exception] = []
        self.complete, self.closed, self.renewed = True, False, 0
        self.stable, self.blocked = END, list[int]()

    def missing_outputs(self) -> list[str]:
        return []

    def renew_clients(self) -> None:
        self.renewed += 1

    def read(self, mine: Callable[[Any], Iterable[int]]) -> tuple[list[PartitionFacts], bool]:
        self.owned_at_reads.append(self.owned)
        if self.failures:
            raise self.failures.pop(0)
        picked = mine(SimpleNamespace(partitions=len(self.committed)))
        log = LogOffsets(0, self.stable, END)
        return [PartitionFacts("in", p, "id", Committed(self.committed[p], ""), log) for p in picked], self.complete

    def first_attempt(self, fact: PartitionFacts) -> bool:
        return fact.partition in self.first_attempts

    def targets(self, _fact: PartitionFacts) -> Targets:
        return Targets("out", "dead", -1, -1, "topic-id=id")

    def apply_outcome(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        if outcome.status is Status.COMMITTED:
            self.committed[outcome.partition] = outcome.until

    def report_blocking_transactions(self, partitions: Iterable[int]) -> None:
        self.blocked = list(partitions)

    def close(self) -> None:
        self.closed = True


@dataclass
class Engine:
    """Does what the test says with each cycle's ranges; commits what nobody speaks about."""

    rounds: list[Callable[[OffsetRange], Outcome | None]] = field(default_factory=list)
    offered: list[dict[int, OffsetRange]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        self.offered.append({one.partition: one for one in ranges})
        self.jobs.append(job)
        act = self.rounds.pop(0) if self.rounds else committed
        return {one.partition: outcome for one in ranges if (outcome := act(one)) is not None}


def ended(status: Status, seconds: float = 0.1) -> Callable[[OffsetRange], Outcome]:
    return lambda one: Outcome(one.partition, one.start, one.until, status, one.start, seconds=seconds)


committed = ended(Status.COMMITTED)


def silent(_one: OffsetRange) -> None:
    """Spark gave no row."""


class Run:
    """One lane over both partitions; ``visible`` is what a second reader finds in a range."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, index: int = 0, **settings: Any) -> None:
        self.survey, self.engine = FakeSurvey(), Engine()
        self.visible: list[int] = []
        self.scan_errors: list[BrewError] = []
        self.scanned: list[tuple[dict[int, tuple[int, int]], str]] = []
        self.advanced: list[tuple[AttemptSpec, list[Any]]] = []
        monkeypatch.setattr(work_planner, "PartitionSurvey", lambda _shared: self.survey)
        monkeypatch.setattr(micro_batches, "scan", self._scan)
        monkeypatch.setattr(micro_batches, "attempt", self._attempt)
        defaults = {"lanes": 1, "poll_interval_s": 0.001, **settings}
        self.settings = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "g", **defaults)
        self.shared = run_context(self.settings, goals={0: END, 1: END})
        self.lane = MicroBatchLane(self.shared, self.engine, index, OrderEnrichment(Limits()))

    def _scan(self, _connection: Any, _topic: str, span: Any, isolation: str, **_: Any) -> Iterator[list[Any]]:
        self.scanned.append((span, isolation))
        if self.scan_errors:
            raise self.scan_errors.pop()
        if self.visible:
            yield [SimpleNamespace(offset=lambda: self.visible[0])]

    def _attempt(self, offer: AttemptSpec, batches: Iterable[Any], _job: Job) -> Outcome:
        self.advanced.append((offer, list(batches)))
        return committed(offer.offered)

    def drain(self) -> None:
        end = threading.Timer(20, self.shared.stop.set)
        end.start()
        try:
            self.lane.run()
        finally:
            end.cancel()
        assert not self.shared.stop.is_set(), "it was not drained in time"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(monkeypatch)


def test_a_range_without_a_row_is_passed_only_when_a_second_reader_sees_none_either(run: Run) -> None:
    """A reader that returns nothing, and says nothing, must not cost a range of orders."""
    run.visible = [7]
    run.engine.rounds = [silent]
    run.drain()
    failed = run.survey.outcomes[0]
    assert (failed.status, failed.detail) == (Status.FAILED, "Spark reported no row, yet offset 7 is visible")
    assert run.advanced == []
    assert run.scanned[0] == ({0: (0, END)}, READ_COMMITTED)
    assert [offered[0].start for offered in run.engine.offered] == [0, 0], "planned again from where the group stands"


@pytest.mark.parametrize("error", [DeadlineExceeded("scan of in: no record"), Retriable("no answer")])
def test_a_second_reader_without_an_answer_fails_its_range_and_not_the_run(run: Run, error: BrewError) -> None:
    """Brokers may restart at any moment; what the other partition committed in that cycle counts."""
    run.scan_errors = [error]
    run.engine.rounds = [lambda one: committed(one) if one.partition else None]
    run.drain()
    failed, other = run.survey.outcomes[:2]
    assert (failed.partition, failed.status, failed.detail) == (0, Status.FAILED, f"{type(error).__name__}: {error}")
    assert (other.partition, other.status) == (1, Status.COMMITTED)
    assert run.advanced == [], "nobody has confirmed that the range holds no record"
    assert [offered.keys() for offered in run.engine.offered] == [{0, 1}, {0}]
    assert run.shared.running == {}


def test_a_range_of_markers_alone_is_passed_by_a_transaction_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The position moves by the same six steps; a crash on purpose has had its chance in the task."""
    run = Run(monkeypatch, crash=CrashSettings(probability=1.0))
    run.engine.rounds = [silent]
    run.drain()
    assert [(offer.offered.until, offer.crash, rows) for offer, rows in run.advanced] == [(END, None, [])] * 2
    assert run.advanced[0][0].targets.metadata == "topic-id=id", "the position's text too"
    assert run.survey.committed == {0: END, 1: END}


def test_a_failed_range_is_planned_again_beside_what_the_others_have_left(run: Run) -> None:
    """What was committed is not offered a second time, and the survey hears of every end."""
    run.survey.first_attempts = {1}
    fails, lost = lambda one: committed(one) if one.partition else ended(Status.FAILED)(one), list[set[int]]()
    run.engine.rounds = [fails, lambda one: lost.append(set(run.shared.lost)) or committed(one)]
    run.drain()
    assert [offered.keys() for offered in run.engine.offered] == [{0, 1}, {0}]
    assert (lost, run.shared.lost) == ([{0}], {}), "what may be open until the next attempt is fenced at the end"
    # What it does not allow is not offered as a first time: a position that vanished since must not count as that.
    assert {p: offer.first_time for p, offer in run.engine.jobs[0].offers.items()} == {0: False, 1: True}
    outcomes = sorted((one.partition, one.status.value) for one in run.survey.outcomes)
    assert outcomes == [(0, "committed"), (0, "failed"), (1, "committed")]
    assert run.shared.running == {}
    assert run.survey.closed


def test_a_survey_without_an_answer_is_asked_again_and_nothing_is_planned_from_an_older_one(run: Run) -> None:
    run.engine.rounds = [ended(Status.FAILED)]
    original = run.survey.read
    down = [Retriable("no answer")]

    def read(mine: Callable[[Any], Iterable[int]]) -> tuple[list[PartitionFacts], bool]:
        if run.engine.offered and down:
            run.survey.committed = {0: 40, 1: END}
            raise down.pop()
        return original(mine)

    run.survey.read = read  # type: ignore[method-assign]
    run.drain()
    assert run.engine.offered[1:] == [{0: OffsetRange("in", 0, 40, END)}]
    assert run.survey.renewed == 1, "clients that lost the brokers for good are looked for"


def test_a_drain_does_not_end_over_partitions_that_have_to_be_asked_about_again(run: Run) -> None:
    """What the survey holds back is missing among the facts, and is not done."""
    run.survey.committed, run.survey.complete = {0: END, 1: END}, False
    original = run.survey.read

    def read(mine: Callable[[Any], Iterable[int]]) -> tuple[list[PartitionFacts], bool]:
        run.survey.complete = len(run.survey.owned_at_reads) == 2
        return original(mine)

    run.survey.read = read  # type: ignore[method-assign]
    run.drain()
    assert len(run.survey.owned_at_reads) == 3


@pytest.mark.parametrize("wait", ["for records", "after a survey", "after an attempt"])
def test_a_stop_ends_each_wait_of_a_lane(monkeypatch: pytest.MonkeyPatch, wait: str) -> None:
    """Ten seconds after SIGTERM a process is killed."""
    monkeypatch.setattr(GiveUpPolicy, "failed", lambda *_: 60.0)
    run = Run(monkeypatch, poll_interval_s=60.0)
    run.shared.preflight = replace(run.shared.preflight, goals=None)
    if wait == "for records":
        run.survey.committed = {0: END, 1: END}
    run.survey.failures = [Retriable("no answer")] if wait == "after a survey" else []
    run.engine.rounds = [ended(Status.FAILED)]
    thread = threading.Thread(target=run.lane.run, daemon=True)
    thread.start()
    until(lambda: run.engine.jobs if wait == "after an attempt" else run.survey.owned_at_reads, "it waits")
    run.shared.stop.set()
    thread.join(5)
    assert not thread.is_alive()


@pytest.mark.parametrize("index", [0, 1])
def test_a_lane_touches_its_own_partitions_alone(monkeypatch: pytest.MonkeyPatch, index: int) -> None:
    """Nor does it hand over those of the other lane, which may have a transaction open."""
    run, handed_over = Run(monkeypatch, index=index, lanes=2), set[int]()

    def refresh(idle: Callable[[int], bool]) -> Container[int]:
        handed_over.update(filter(idle, range(4)))
        return ALL_PARTITIONS

    run.shared.ownership = SimpleNamespace(refresh=refresh)  # type: ignore[assignment]
    run.drain()
    assert [offered.keys() for offered in run.engine.offered] == [{index}]
    assert handed_over == {index, index + 2}


def test_a_partition_that_is_somebody_elses_now_is_neither_offered_nor_looked_for(run: Run) -> None:
    """What is ours is asked before each plan; the look is told the same."""
    turns = iter([{0, 1}, {1}, {1}])
    run.shared.ownership = SimpleNamespace(refresh=lambda _idle: next(turns))  # type: ignore[assignment]
    run.engine.rounds = [ended(Status.FAILED)]

    def rival(one: OffsetRange) -> Outcome:
        run.survey.committed[0] = END
        return committed(one)

    run.engine.rounds.append(rival)
    run.drain()
    assert [set(offered) for offered in run.engine.offered] == [{0, 1}, {1}]
    assert run.survey.owned_at_reads == [{0, 1}, {1}, {1}]


def test_a_range_grows_smaller_after_a_transaction_that_did_not_end_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, max_records_per_transaction=80)
    run.engine.rounds = [ended(Status.FAILED, seconds=61)]
    run.drain()
    first, second = (offered[0] for offered in run.engine.offered[:2])
    assert (first.until - first.start, second.until - second.start < 80) == (80, True)


def test_a_stop_during_the_survey_begins_no_transaction(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves no range for whose transaction the end of the run would wait."""
    original = run.survey.read

    def read(mine: Callable[[Any], Iterable[int]]) -> tuple[list[PartitionFacts], bool]:
        run.shared.stop.set()
        return original(mine)

    monkeypatch.setattr(run.survey, "read", read)
    run.lane.run()
    assert (run.engine.offered, run.shared.running) == ([], {})


def test_a_lane_that_upstream_holds_back_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, blocked_patience_s=10.0)
    run.survey.stable = 0
    run.lane._planner._give_up._last_progress -= 11.0
    with pytest.raises(Refused, match=r"partitions \[0, 1\] of in were held back by an open upstream transaction"):
        run.drain()
    assert run.survey.blocked == [0, 1]


def test_a_lane_that_upstream_holds_back_waits_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal would end the run before the other lane has written what is visible."""
    run = Run(monkeypatch, blocked_patience_s=10.0, lanes=2)
    other = MicroBatchLane(run.shared, run.engine, 1, OrderEnrichment(Limits()))  # it has not looked for work yet
    give_up, plan = run.lane._planner._give_up, Plan((), {0: 0}, drained=False)
    give_up._last_progress -= 11.0
    run.lane._wait(plan)
    give_up._last_progress -= 11.0
    other._wait(Plan((), {1: 0}, drained=False))
    with pytest.raises(Refused, match=r"partitions \[0\] of in were held back"):
        run.lane._wait(plan)


@pytest.mark.parametrize("stable", [0, END])
def test_a_lane_is_busy_while_it_has_work(monkeypatch: pytest.MonkeyPatch, stable: int) -> None:
    """Or another one, held back by upstream, would end the run between two of its cycles."""
    run, at_execution, at_wait = Run(monkeypatch), list[set[int]](), list[set[int]]()
    run.survey.stable, wait = stable, run.shared.stop.wait

    def note(one: OffsetRange) -> Outcome:
        at_execution.append(set(run.shared.busy_lanes))
        return committed(one)

    def pause(seconds: float) -> bool:
        at_wait.append(set(run.shared.busy_lanes))
        run.survey.stable = END
        return wait(seconds)

    run.engine.rounds = [note]
    monkeypatch.setattr(run.shared.stop, "wait", pause)
    assert run.shared.busy_lanes == {0}
    run.drain()
    assert (at_execution, run.shared.busy_lanes) == ([{0}] * 2, set())
    assert at_wait[0] == (set() if stable == 0 else {0})


def test_too_many_rejected_end_a_lane_after_their_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, max_rejected=0.5)
    run.engine.rounds = [lambda one: replace(committed(one), rejected=limits.WINDOW)]
    with pytest.raises(Refused, match="too-many-rejected"):
        run.drain()
    assert run.survey.committed == {0: END, 1: END}


def test_a_crash_on_purpose_ends_the_lane_with_nothing_planned_behind_it(run: Run) -> None:
    reported = list[int]()

    class Running(dict[int, OffsetRange]):
        def pop(self, partition: int, *_: Any) -> Any:
            reported.append(len(run.shared.crashed))
            return super().pop(partition, None)

    run.shared.running = Running()
    run.engine.rounds = [ended(Status.CRASHED)]
    run.lane.run()
    assert reported == [2, 2], "the process dies with its numbers as soon as nothing runs"
    assert (run.shared.stop.is_set(), len(run.engine.offered), run.survey.outcomes) == (True, 1, [])
    assert {one.partition for one in run.shared.crashed} == {0, 1}
    assert run.shared.running == {}


def test_a_run_that_never_moves_gives_up_and_names_why(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(monkeypatch, patience_s=1.0)
    monkeypatch.setattr(limits, "_MAX_BACKOFF_S", 0.1)
    run.engine.rounds = [ended(Status.FAILED)] * 50
    with pytest.raises(Refused, match=r"no progress for .*partition 0 last ended failed"):
        run.drain()


def test_a_denied_partition_ends_the_run_while_the_other_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    run, denied = Run(monkeypatch, patience_s=1.0), "Broker: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"

    def execute(offered: OffsetRange) -> Outcome:
        if offered.partition == 0:
            return Outcome(0, offered.start, offered.until, Status.FAILED, offered.start, detail=denied)
        return Outcome(1, offered.start, offered.start + 1, Status.COMMITTED, offered.start)

    monkeypatch.setattr(limits, "_MAX_BACKOFF_S", 0.1)
    run.engine.rounds = [execute] * 10_000
    with pytest.raises(Refused, match=r"no progress in partition 0 for .*TOPIC_AUTHORIZATION_FAILED"):
        run.drain()


def test_denials_are_forgotten_with_the_partitions_they_are_about(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    planner, kept = run.lane._planner, list[Container[int]]()
    monkeypatch.setattr(run.shared, "ownership", SimpleNamespace(refresh=lambda _idle: {1}))
    monkeypatch.setattr(planner._give_up, "keep_denials", kept.append)
    assert (planner.take_ownership(lambda _: True), planner.take_ownership(lambda _: True)) == (True, False)
    assert kept == [{1}]


def test_what_one_partition_commits_is_progress_and_an_idle_survey_ends_a_row_of_failures(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a run would give up over one partition, or over failures that are hours apart."""
    planner, ranges = run.lane._planner, [OffsetRange("in", p, 0, END) for p in (0, 1)]
    monkeypatch.setattr(planner._give_up, "progressed", progressed := Mock())
    for other in (Status.COMMITTED, Status.FAILED):
        planner.reconcile([ended(Status.FAILED)(ranges[0]), ended(other)(ranges[1])])
        assert (progressed.call_count, planner._give_up.failures > 0) == (1, True)
    planner.idle(Plan([], [], drained=False))
    assert planner._give_up.failures == 0
