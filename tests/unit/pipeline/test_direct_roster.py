"""What the director remembers: who holds what, what is done, what rests, and what is told of it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import pytest

from brew.connection import Connection
from brew.driver.leases import Assignments
from brew.driver.progress import ProgressView, RunProgress
from brew.driver.run_context import RunContext
from brew.fault_injection import CrashInjector
from brew.kafka.transaction import TransactionSettings
from brew.offsets import Committed, LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.readers.direct.server import WorkerSession
from brew.settings import PipelineSettings

GOAL = 100
LINE: Any = None


@dataclass
class View(ProgressView):
    """Keeps what is shown."""

    told: list[list[tuple[int, ...]]] = field(default_factory=list)

    def cycle(self, _lane: int, outcomes: list[Outcome], _seconds: float) -> None:
        self.told.append([(one.partition, one.start, one.until, one.enriched, one.rejected) for one in outcomes])


def roster(goals: dict[int, int] | None, *positions: int | None, complete: bool = True) -> Assignments:
    """A roster after one survey of a log that begins at 10; None: no committed offset."""
    settings = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
    transaction = TransactionSettings(settings.connection, settings.group, 60.0)
    shared = RunContext(
        settings,
        {},
        threading.Event(),
        RunProgress(),
        View(),
        goals,
        1_000_000,
        transaction,
        CrashInjector(settings.crash),
    )
    made = Assignments(shared)
    survey(made, *positions, complete=complete)
    return made


def survey(one: Assignments, *positions: int | None, complete: bool = True) -> None:
    log = LogOffsets(10, 200, 200)
    found = [None if at is None else Committed(at, "") for at in positions]
    one.surveyed([PartitionFacts("in", p, "id", at, log) for p, at in enumerate(found)], all_of_them=complete)


def drain(*positions: int | None, complete: bool = True) -> Assignments:
    return roster(dict.fromkeys(range(9), GOAL), *positions, complete=complete)


@pytest.mark.parametrize(("position", "done"), [(GOAL - 1, False), (GOAL, True), (GOAL + 1, True)])
def test_a_partition_is_done_at_its_goal_and_not_one_offset_before(position: int, done: bool) -> None:
    """By a survey, and by what its worker says when it leaves."""
    assert drain(position).drained() is done
    left = drain(50)
    left.assign(0, 1)
    left.released(0, position)
    assert (left.drained(), left.free(0.0), left.unfinished()) == (done, set() if done else {0}, 0 if done else 1)


@pytest.mark.parametrize(("goal", "drained"), [(10, True), (11, False)])
def test_a_partition_without_a_position_stands_at_its_first_record(goal: int, drained: bool) -> None:
    """The log begins at 10: an input of which retention left nothing is drained."""
    assert roster({0: goal}, None).drained() is drained


def test_a_partition_that_came_later_has_nothing_to_drain() -> None:
    """Its records were written after the run had begun."""
    assert roster({0: GOAL}, GOAL, None).drained()


def test_a_run_that_follows_is_never_done_with_a_partition() -> None:
    one = roster(None, 200)
    one.assign(0, 1)
    one.released(0, 200)
    assert (one.free(0.0), one.unfinished()) == ({0}, 1)


def test_a_run_is_drained_when_all_were_seen_all_are_done_and_nobody_holds_one() -> None:
    """A worker may still have a transaction open in what the survey saw done."""
    one = drain(GOAL, GOAL, complete=False)
    assert not one.drained()
    survey(one, GOAL, GOAL)
    assert one.drained()
    one.assign(0, 1)
    assert not one.drained()
    one.released(0, GOAL)
    assert one.drained()
    survey(one, GOAL, GOAL, GOAL - 1)
    assert not one.drained()


def test_a_partition_rests_until_its_time_has_come() -> None:
    """The last bad and the first good moment; being held ends the rest."""
    one = drain(50)
    one.back_off(0, 5.0)
    assert (one.free(4.999), one.free(5.0)) == (set(), {0})
    one.assign(0, 1)
    one.released(0, 60)
    assert one.free(0.0) == {0}


def test_only_what_is_ours_is_given_out_or_counted() -> None:
    one = drain(50, 50, 50)
    one.owned = {0, 2}
    one.assign(2, 1)
    assert (one.free(0.0), one.unfinished()) == ({0}, 2)


def test_what_a_dead_worker_held_is_free_again_and_exempt_from_crash_once() -> None:
    """The other worker keeps what it has."""
    one = drain(50, 50, 50)
    dead, alive = WorkerSession(0, LINE), WorkerSession(1, LINE)
    one.sessions |= {0: dead, 1: alive}
    for partition, slot in ((0, 0), (1, 1), (2, 0)):
        one.assign(partition, slot)
        one._shared.running[partition] = OffsetRange("in", partition, 50, 51)
    assert one.disconnected(dead)
    assert (one.sessions, one.held, one._shared.running.keys()) == ({1: alive}, {1: 1}, {1})
    assert one.free(0.0) == {0, 2}
    assert [one.exempt_from_crash(p) for p in (0, 0, 1, 2)] == [True, False, False, True]


def test_a_predecessor_that_is_noticed_late_takes_nothing_away_from_its_successor() -> None:
    one = drain(50)
    successor = WorkerSession(0, LINE)
    one.sessions[0] = successor
    one.assign(0, 0)
    assert not one.disconnected(WorkerSession(0, LINE))
    assert (one.sessions, one.held) == ({0: successor}, {0: 0})


@pytest.mark.parametrize("died", [True, False])
def test_what_came_back_can_be_called_back_again(died: bool) -> None:
    """Only what is on its way is not called a second time."""
    one = drain(50)
    worker = WorkerSession(0, LINE)
    one.sessions[0] = worker
    one.assign(0, 0)
    one.releasing.add(0)
    if died:
        one.disconnected(worker)
    else:
        one.released(0, 60)
    assert (one.releasing, one.held) == (set(), {})


def committed(partition: int, start: int, until: int, enriched: int, rejected: int) -> Outcome:
    return Outcome(partition, start, until, Status.COMMITTED, start, enriched, rejected, 0.1)


def test_commits_that_follow_each_other_are_told_as_one_range_and_once() -> None:
    """A range that somebody else did in between stays a gap, and a failure a connection of its own."""
    one = drain(0, 0)
    for outcome in (
        committed(0, 0, 10, 9, 1),
        committed(1, 0, 5, 5, 0),
        committed(0, 10, 30, 18, 2),
        committed(0, 40, 50, 10, 0),
        Outcome(0, 50, 60, Status.FENCED),
        Outcome(0, 60, 70, Status.FENCED),
        committed(0, 60, 70, 10, 0),
    ):
        one.outcome(outcome)
    one.report()
    one.report()
    view: Any = one._shared.view
    assert view.told == [
        [
            (0, 0, 30, 27, 3),
            (0, 40, 50, 10, 0),
            (0, 50, 60, 0, 0),
            (0, 60, 70, 0, 0),
            (0, 60, 70, 10, 0),
            (1, 0, 5, 5, 0),
        ]
    ]
