"""How a run ends: when it has waited long enough, and what a crash on purpose waits for."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

from pipeline import lane as lanes
from pipeline import run as running
from pipeline.crash import Dice
from pipeline.lane import Lane, Shared
from pipeline.outcome import Outcome, Status
from pipeline.plan import Plan
from pipeline.progress import Board, Silent
from pipeline.settings import PipelineSettings
from protocol.connection import Connection
from protocol.errors import Refused
from protocol.position import OffsetRange


class _Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


class _NoSurveyor:
    def __init__(self, _settings: PipelineSettings) -> None:
        pass


def shared(**settings: Any) -> Shared:
    plain = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
    given = replace(plain, **settings)
    stop = threading.Event()
    stop.set()  # back-offs end at once
    engine: Any = None
    return Shared(given, engine, {}, stop, Board(), Silent(), {0: 100}, 1_000_000, Dice(given.crash))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    clock = _Clock()
    monkeypatch.setattr(lanes, "time", clock)
    monkeypatch.setattr(lanes, "Surveyor", _NoSurveyor)
    return clock


def test_patience_counts_from_the_first_failure_in_a_row(clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour behind somebody's open transaction is not an hour of failing."""
    monkeypatch.setattr(lanes, "tell_who_blocks", lambda *_: None)
    lane = Lane(shared(patience_s=60, blocked_patience_s=7200), 0)
    clock.now += 3600
    lane._wait(Plan((), (0,), drained=False))
    lane._failed("survey", "one bad cycle")
    clock.now += 59
    lane._failed("survey", "still within patience")
    clock.now += 2
    with pytest.raises(Refused, match="no progress for 61 s"):
        lane._failed("survey", "over")


def test_a_good_survey_ends_the_row_of_failures(clock: _Clock) -> None:
    lane = Lane(shared(patience_s=60), 0)
    lane._failed("survey", "once")
    clock.now += 59
    lane._wait(Plan((), (), drained=False))
    clock.now += 10
    lane._failed("survey", "a new row")
    clock.now += 59
    lane._failed("survey", "within the new row's patience")
    assert lane._failures == 2


def test_a_crash_on_purpose_lets_the_other_lane_finish_its_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the number that the crash announces would miss what the other one still writes."""
    whole = shared()
    whole.stop.clear()
    finished, running_now = threading.Event(), threading.Event()

    class _Lane:
        def __init__(self, everything: Shared, index: int) -> None:
            self._everything, self._index = everything, index

        def run(self) -> None:
            if self._index == 0:
                running_now.wait()
                self._everything.crashed.append(Outcome(0, 0, 10, Status.CRASHED, enriched=10))
                self._everything.stop.set()
            else:
                self._everything.running[1] = OffsetRange("in", 1, 0, 10)
                running_now.set()
                self._everything.stop.wait()
                threading.Event().wait(0.2)  # a transaction that is longer than the grace of a stop
                finished.set()
                self._everything.running.clear()
                threading.Event().wait(60)  # what the lane does next is nobody's business any more

    monkeypatch.setattr(running, "Lane", _Lane)
    monkeypatch.setattr(running, "_GRACE_S", 0.01)
    running._work(whole)
    assert finished.is_set()
