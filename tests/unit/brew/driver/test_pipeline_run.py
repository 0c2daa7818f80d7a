"""How a run ends: when it has waited long enough, and what a crash on purpose waits for."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from harness.lease_coordinator import run_context
from harness.pipeline import DrainView
from rich.console import Console

from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import limits, run
from brew.driver.limits import GiveUpPolicy
from brew.driver.run_context import LiveTable, RunProgress
from brew.errors import DeadlineExceeded, Refused, Retriable
from brew.kafka.topics import Topic
from brew.offsets import Committed, LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.settings import PipelineSettings


def settings(**changes: Any) -> PipelineSettings:
    return replace(PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group"), **changes)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Seconds that pass when the test says so."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(limits, "time", clock)
    return clock


def test_patience_counts_from_the_first_failure_in_a_row_and_being_held_back_ends_too(clock: SimpleNamespace) -> None:
    """An hour behind somebody's open transaction is not an hour of failing."""
    patience = GiveUpPolicy(settings(patience_s=60, blocked_patience_s=7200))
    clock.now += 3600
    patience.blocked([0])
    patience.failed("survey", "one bad cycle")
    clock.now += 59
    patience.failed("survey", "still within patience")
    clock.now += 2
    with pytest.raises(Refused, match="no progress for 61 s"):
        patience.failed("survey", "over")
    held_back = GiveUpPolicy(settings(blocked_patience_s=30))
    clock.now += 29
    held_back.blocked([3])
    clock.now += 2
    with pytest.raises(Refused, match=r"partitions \[3\] .* for 31 s"):
        held_back.blocked([3])


def test_a_crash_on_purpose_lets_the_other_lane_finish_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the number that the crash announces would miss what the other one still writes."""
    context = run_context(settings(), goals={0: 100})
    finished, running_now = threading.Event(), threading.Event()

    def crash() -> None:
        running_now.wait()
        context.crashed.append(Outcome(0, 0, 10, Status.CRASHED, enriched=10))
        context.stop.set()

    def transact() -> None:
        context.running[1] = OffsetRange("in", 1, 0, 10)
        running_now.set()
        context.stop.wait()
        threading.Event().wait(0.05)  # a transaction that is longer than the grace of a stop
        finished.set()
        context.running.clear()
        threading.Event().wait(60)  # what the lane does next is nobody's business any more

    monkeypatch.setattr(run, "_FINISH_S", 0.01)
    runner: Any = None
    lanes: list[Any] = [SimpleNamespace(run=crash), SimpleNamespace(run=transact)]
    run.run_loops(context, runner, lanes)
    assert finished.is_set()


def test_the_end_takes_no_longer_for_many_partitions_without_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 400 of them, SIGTERM took seven seconds more: each was tried although the time for all was over."""

    def fence(deadline: Deadline) -> None:
        while not deadline.expired():
            pass
        raise DeadlineExceeded("fence: no end within 0.5 s")

    context, notes = run_context(settings()), list[str]()
    context.running.update({p: OffsetRange("in", p, 0, 1) for p in range(400)})
    monkeypatch.setattr(context.view, "note", notes.append)
    monkeypatch.setattr(run, "KafkaTransaction", lambda *_: SimpleNamespace(fence=fence, close=lambda: None))
    monkeypatch.setattr(run, "_FENCE_S", 0.5)  # within it, the first one is tried on a busy machine, too
    run._fence_remaining(context)
    assert len(notes) == 2
    assert notes[1] == "transactions of 399 more partitions may stay open until the time-out"


class InterruptedWait(threading.Event):
    """Set by Ctrl-C, which reaches the main thread within its wait."""

    def wait(self, timeout: float | None = None) -> bool:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return super().wait(timeout)


@pytest.mark.parametrize(
    ("stop", "error", "raised"),
    [
        (threading.Event(), ValueError("Spark was interrupted"), None),
        (threading.Event(), Refused("too-many-rejected"), Refused),
        (InterruptedWait(), Refused("too-many-rejected"), KeyboardInterrupt),
    ],
    ids=["a call that was interrupted", "a refusal", "Ctrl-C and a refusal"],
)
def test_an_error_after_a_stop_ends_the_run_only_if_it_is_a_refusal(
    stop: threading.Event, error: Exception, raised: type[BaseException] | None
) -> None:
    """The exit code of Ctrl-C is that of its signal, whatever its end broke. A stopped run has not seen all records."""
    context = run_context(settings(), stop, goals={0: 100})
    context.first.check_at_end = Mock()  # type: ignore[method-assign]

    def work() -> None:
        if not isinstance(stop, InterruptedWait):
            stop.set()
        assert stop.wait(10)
        raise error

    with nullcontext() if raised is None else pytest.raises(raised):
        run.run_loops(context, Mock(), [SimpleNamespace(run=work)])
    assert not context.first.check_at_end.called


def test_a_drained_run_checks_its_first_records() -> None:
    context = run_context(settings(), goals={0: 100})
    context.first.check_at_end = Mock(side_effect=Refused("all-rejected"))  # type: ignore[method-assign]
    with pytest.raises(Refused, match="all-rejected"):
        run.run_loops(context, Mock(), [SimpleNamespace(run=lambda: None)])


def test_what_is_left_open_is_fenced_where_this_driver_still_owns_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fence in another driver's partition aborts its transaction; one that fails leaves the others to be fenced."""
    fenced = list[int]()

    def transaction(_settings: object, _topic: str, partition: int) -> Any:
        def fence(_deadline: object) -> None:
            fenced.append(partition)
            raise Retriable("no answer")

        return SimpleNamespace(fence=fence, close=lambda: None)

    monkeypatch.setattr(run, "KafkaTransaction", transaction)
    context = run_context(settings(), view=DrainView())
    context.ownership = SimpleNamespace(current_partitions=lambda: {1, 2})  # type: ignore[assignment]
    context.lost = {p: OffsetRange("in", p, 0, 1) for p in (0, 1)}
    context.running = {p: OffsetRange("in", p, 0, 1) for p in (2, 3)}
    run._fence_remaining(context)
    assert sorted(fenced) == [1, 2]


@pytest.mark.parametrize(
    ("status", "counts"),
    [
        (Status.COMMITTED, {"transactions": 1}),
        (Status.FENCED, {"fenced": 1}),
        (Status.ALREADY_DONE, {"already_done": 1}),
        (Status.AHEAD, {"already_done": 1}),
        (Status.FAILED, {"failed": 1}),
        (Status.OFFSET_GAP, {"failed": 1}),
        (Status.CRASHED, {"failed": 1}),
    ],
)
def test_each_outcome_counts_once_in_the_summary(status: Status, counts: dict[str, int]) -> None:
    progress = RunProgress()
    progress.outcome(Outcome(0, 0, 1, status))
    assert {name: number for name, number in asdict(progress.totals).items() if number} == counts
    of_partition = {name: number for name, number in counts.items() if name != "already_done"}
    assert {name: getattr(progress.partitions[0], name) for name in of_partition} == of_partition


def test_a_commit_that_a_survey_has_seen_lowers_the_lag_once() -> None:
    progress = RunProgress()
    progress.survey([PartitionFacts("in", 0, "id", Committed(20, ""), LogOffsets(0, 30, 30))])
    for start, until, lag in ((10, 20, 10), (15, 25, 5), (25, 40, 0)):
        progress.outcome(Outcome(0, start, until, Status.COMMITTED))
        assert progress.partitions[0].lag == lag


@pytest.mark.parametrize("follow", [False, True])
def test_checks_find_the_end_of_a_drain_and_the_room_in_the_outputs(
    monkeypatch: pytest.MonkeyPatch, follow: bool
) -> None:
    """A record that the smallest output refuses becomes a dead letter. Topics that were missing are checked as made."""
    client, sizes = Mock(), {"out": 300_000, "more": 50_000}
    client.input_topic.return_value = source = Topic("in", "id", 3, 1)
    client.with_leader.return_value = [0, 2]
    client.output_topics.return_value = {name: Topic(name, name, 3, 1) for name in ("out", "more", "dead")}
    client.facts = lambda _topic, partitions, *_: [
        PartitionFacts("in", p, "id", Committed(10, ""), LogOffsets(0, 30, 40 + p)) for p in partitions
    ]
    topics_before = {**client.output_topics(), "in": source, "more": None}
    before, after = Mock(topics=topics_before), Mock(number_of=lambda name, _: sizes.get(name))
    answers = Mock(side_effect=[before, after])
    monkeypatch.setattr(run, "ClusterQueries", lambda *_: Mock(answers=answers))
    monkeypatch.setattr(run, "OffsetsClient", lambda _settings: client)
    monkeypatch.setattr(run, "run_checks", lambda _settings, cluster, _limit: cluster)
    monkeypatch.setattr(run, "enforce", lambda cluster, _allow: ("unsafe",) if cluster is after else ())
    monkeypatch.setattr(run.topics, "max_message_bytes", lambda _admin, name, _deadline: {"dead": 40_000}[name])
    for name in ("reach", "transformation"):
        monkeypatch.setattr(run, name, Mock())
    found = run.check(settings(follow=follow, also_output=("more",)))
    assert found.goals == (None if follow else {0: 40, 1: 41, 2: 42})
    assert (found.backlog, found.notes, client.close.called) == (40 if follow else 60, ("unsafe",), True)
    assert (found.settings.limits.max_bytes, found.dead_letter_max_bytes) == (50_000 - 16_384, 40_000)
    assert found.transaction.batch_bytes == 40_000


def test_the_live_table_shows_a_note_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Without the client's own words in brackets, and with an emoji for a name; `[/a]` ended the display."""
    for note in ("trying again: [thrd:kafka:9092/1]: down", "g:ox:0", "[/a]"):
        table = LiveTable(RunProgress(note=note))._table()
        Console(width=120).print(table)
        assert note in capsys.readouterr().out


@pytest.mark.parametrize(
    ("commits", "rate"),
    [
        ([(10.0, 40)], 4.0),
        ([(10.0, 30), (10.00001, 30)], 60 / 10.00001),
        ([(10.0, 30), (11.0, 40)], 40.0),
        ([(10.0, 30), (11.0, 40), (12.0, 10)], 25.0),
    ],
    ids=["one", "two at once", "two", "three"],
)
def test_the_rate_counts_what_was_committed_after_the_first_commit(
    monkeypatch: pytest.MonkeyPatch, commits: list[tuple[float, int]], rate: float
) -> None:
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr("brew.driver.run_context.time", clock)
    progress, until = RunProgress(started=0.0), 0
    for at, records in commits:
        clock.now, start, until = at, until, until + records
        progress.outcome(Outcome(0, start, until, Status.COMMITTED, enriched=records))
    assert progress.rate() == pytest.approx(rate)
