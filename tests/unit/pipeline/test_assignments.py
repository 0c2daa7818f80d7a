"""What the lease coordinator remembers: who holds what, what is done, what rests, what a survey takes back."""

from __future__ import annotations

from typing import Any

import pytest
from harness.lease_play import run_context

from brew.connection import Connection
from brew.driver.leases import Assignments
from brew.offsets import Committed, LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.readers.direct.lease_server import WorkerSession
from brew.settings import PipelineSettings

GOAL = 100
LINE: Any = None


def unsurveyed(goals: dict[int, int] | None) -> Assignments:
    settings = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
    return Assignments(run_context(settings, goals=goals))


def assignments(goals: dict[int, int] | None, *positions: int | None, complete: bool = True) -> Assignments:
    """After one survey of a log that begins at 10; None: no committed offset."""
    made = unsurveyed(goals)
    survey(made, *positions, complete=complete)
    return made


def survey(one: Assignments, *positions: int | None, complete: bool = True) -> None:
    log = LogOffsets(10, 200, 200)
    found = [None if at is None else Committed(at, "") for at in positions]
    one.surveyed([PartitionFacts("in", p, "id", at, log) for p, at in enumerate(found)], all_of_them=complete)


def drain(*positions: int | None, complete: bool = True) -> Assignments:
    return assignments(dict.fromkeys(range(9), GOAL), *positions, complete=complete)


@pytest.mark.parametrize(("position", "done"), [(GOAL - 1, False), (GOAL, True), (GOAL + 1, True)])
def test_a_partition_is_done_at_its_goal_and_not_one_offset_before(position: int, done: bool) -> None:
    """By a survey, and by what its worker says when it leaves."""
    assert drain(position).drained() is done
    left = drain(50)
    left.assign(0, 1)
    left.released(0, position)
    assert (left.drained(), left.free(0.0), left.unfinished()) == (done, set() if done else {0}, 0 if done else 1)


@pytest.mark.parametrize(
    ("goals", "positions", "drained"),
    [({0: 10}, [None], True), ({0: 11}, [None], False), ({0: GOAL}, [GOAL, None], True)],
    ids=["the log begins at its goal", "one offset before it", "one that came later has nothing to drain"],
)
def test_a_partition_without_a_position_stands_at_its_first_record(
    goals: dict[int, int], positions: list[int | None], drained: bool
) -> None:
    """The log begins at 10: an input of which retention left nothing is drained."""
    assert assignments(goals, *positions).drained() is drained


def test_a_run_that_follows_is_never_done_with_a_partition() -> None:
    one = assignments(None, 200)
    one.assign(0, 1)
    one.released(0, 200)
    assert (one.free(0.0), one.unfinished()) == ({0}, 1)


def test_a_run_is_drained_when_all_were_seen_all_are_done_and_nobody_holds_one() -> None:
    """A worker may still have a transaction open in what the survey saw done."""
    assert unsurveyed({0: 1}).drained() is False
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
    one = drain(50, 50, 50)
    dead, alive = WorkerSession(0, LINE), WorkerSession(1, LINE)
    one.sessions |= {0: dead, 1: alive}
    for partition, slot in ((0, 0), (1, 1), (2, 0)):
        one.assign(partition, slot)
        one._shared.running[partition] = OffsetRange("in", partition, 50, 51)
    assert one.disconnected(dead)
    assert (one.sessions, one.held, one._shared.running.keys()) == ({1: alive}, {1: 1}, {1})
    assert one._shared.lost == {p: OffsetRange("in", p, 50, 51) for p in (0, 2)}
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


def test_commits_that_follow_each_other_are_told_as_one_range_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that somebody else did stays a gap, a failure a range of its own."""
    one = unsurveyed(None)
    outcomes = [
        Outcome(0, 0, 10, Status.COMMITTED, 0, 9, 1, 1.5, dropped=2, written=8),
        Outcome(1, 0, 5, Status.COMMITTED, 0, 5),
        Outcome(0, 10, 30, Status.COMMITTED, 10, 18, 2, 2.0, dropped=3, written=9),
        Outcome(0, 40, 50, Status.COMMITTED, 40, 10),
        Outcome(0, 50, 60, Status.FENCED),
        Outcome(0, 60, 70, Status.FENCED),
        Outcome(0, 60, 70, Status.COMMITTED, 60, 10),
        Outcome(2, 0, 5, Status.FAILED, seconds=0.25),
    ]
    for outcome in outcomes:
        one.outcome(outcome)
    shown = list[tuple[int, list[Outcome], float]]()
    monkeypatch.setattr(one._shared.view, "cycle", lambda *told: shown.append(told))
    one.report()
    one.report()
    joined = Outcome(0, 0, 30, Status.COMMITTED, 0, 27, 3, 3.5, dropped=5, written=17)
    assert shown == [(0, [joined, *outcomes[3:7], outcomes[1], outcomes[7]], 3.75)]


def test_a_drain_is_not_over_where_an_outsider_moved_a_position_back_behind_its_goal() -> None:
    """The other reader looks at each plan anew; this one said that it was done. It ends with its last transaction."""
    one = unsurveyed({0: 10, 1: 10})
    survey(one, 10, 0)
    assert one.free(0.0) == {1}
    survey(one, 4, 10)
    assert not one.drained()
    assert (one.free(0.0), one.unfinished()) == ({0}, 1)
    one.assign(0, 0)
    survey(one, 4, 10)
    assert not one.drained()
    one.released(0, 10)
    assert one.drained(), "what a worker reached counts before the next survey"
    survey(one, 10, 10)
    assert one.drained()


def test_a_partition_that_nobody_holds_may_leave_and_one_without_a_goal_is_done() -> None:
    """It came after the start: a drain does not wait for it."""
    made = unsurveyed({0: 10})
    made.surveyed([], all_of_them=True)
    made.released(7, 0)
    assert 7 in made._done
    made.released(0, 9)
    assert 0 not in made._done
