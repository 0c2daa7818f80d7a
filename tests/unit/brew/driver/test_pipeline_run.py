"""How a run ends: when it has waited long enough, and what a crash on purpose waits for."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harness.lease_coordinator import run_context
from rich.console import Console

from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import limits, run
from brew.driver.limits import GiveUpPolicy
from brew.driver.run_context import LiveTable, RunProgress
from brew.errors import DeadlineExceeded, Refused
from brew.offsets import OffsetRange
from brew.outcome import Outcome, Status
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
        raise DeadlineExceeded("fence: no end within 0.01 s")

    context, notes = run_context(settings()), list[str]()
    context.running.update({p: OffsetRange("in", p, 0, 1) for p in range(400)})
    monkeypatch.setattr(context.view, "note", notes.append)
    monkeypatch.setattr(run, "KafkaTransaction", lambda *_: SimpleNamespace(fence=fence, close=lambda: None))
    monkeypatch.setattr(run, "_FENCE_S", 0.01)
    run._fence_remaining(context)
    assert len(notes) == 2
    assert notes[1] == "transactions of 399 more partitions may stay open until the time-out"


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
