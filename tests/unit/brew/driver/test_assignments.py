"""Who holds which partition: what the lease coordinator remembers, and which slot is given what."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from harness.lease_coordinator import run_context
from hypothesis import given
from hypothesis import strategies as st

from brew.connection import Connection
from brew.driver.assignments import Assignments
from brew.driver.assignor import assign, loads, partition_to_move
from brew.offsets import Committed, LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.readers.direct.lease_server import WorkerSession
from brew.settings import PipelineSettings

GOAL = 100
CONNECTION: Any = None


def unsurveyed(goals: dict[int, int] | None) -> Assignments:
    settings = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
    return Assignments(run_context(settings, goals=goals))


def surveyed(goals: dict[int, int] | None, *positions: int | None, complete: bool = True) -> Assignments:
    """After one survey of a log that begins at 10; None: no committed offset."""
    new = unsurveyed(goals)
    survey(new, *positions, complete=complete)
    return new


def survey(assignments: Assignments, *positions: int | None, complete: bool = True) -> None:
    log = LogOffsets(10, 200, 200)
    committed = [None if offset is None else Committed(offset, "") for offset in positions]
    facts = [PartitionFacts("in", p, "id", position, log) for p, position in enumerate(committed)]
    assignments.surveyed(facts, all_of_them=complete)


def drain(*positions: int | None, complete: bool = True) -> Assignments:
    return surveyed(dict.fromkeys(range(9), GOAL), *positions, complete=complete)


@pytest.mark.parametrize(("position", "done"), [(GOAL - 1, False), (GOAL, True), (GOAL + 1, True)])
def test_a_partition_is_done_at_its_goal_and_not_one_offset_before(position: int, done: bool) -> None:
    """By a survey, and by what its worker says when it leaves."""
    assert drain(position).drained() is done
    assignments = drain(50)
    assignments.assign(0, 1)
    assignments.released(0, position)
    assert (assignments.drained(), assignments.unfinished()) == (done, 0 if done else 1)
    assert assignments.free(0.0) == (set() if done else {0})


@pytest.mark.parametrize(
    ("goals", "positions", "drained"),
    [({0: 10}, [None], True), ({0: 11}, [None], False), ({0: GOAL}, [GOAL, None], True)],
    ids=["the log begins at its goal", "one offset before it", "one that came later has nothing to drain"],
)
def test_a_partition_without_a_position_stands_at_its_first_record(
    goals: dict[int, int], positions: list[int | None], drained: bool
) -> None:
    """The log begins at 10: an input of which retention left nothing is drained."""
    assert surveyed(goals, *positions).drained() is drained


def test_a_run_that_follows_is_never_done_with_a_partition() -> None:
    assignments = surveyed(None, 200)
    assignments.assign(0, 1)
    assignments.released(0, 200)
    assert (assignments.free(0.0), assignments.unfinished()) == ({0}, 1)


def test_a_run_is_drained_when_all_were_seen_all_are_done_and_nobody_holds_one() -> None:
    """A worker may still have a transaction open in what the survey saw done."""
    assert unsurveyed({0: 1}).drained() is False
    assignments = drain(GOAL, GOAL, complete=False)
    assert not assignments.drained()
    survey(assignments, GOAL, GOAL)
    assert assignments.drained()
    assignments.assign(0, 1)
    assert not assignments.drained()
    assignments.released(0, GOAL)
    assert assignments.drained()
    survey(assignments, GOAL, GOAL, GOAL - 1)
    assert not assignments.drained()


def test_a_partition_rests_until_its_time_has_come() -> None:
    """The last bad and the first good moment; being held ends the rest."""
    assignments = drain(50)
    assignments.back_off(0, 5.0)
    assert (assignments.free(4.999), assignments.free(5.0)) == (set(), {0})
    assignments.assign(0, 1)
    assignments.released(0, 60)
    assert assignments.free(0.0) == {0}


def test_only_what_is_ours_is_given_out_or_counted() -> None:
    assignments = drain(50, 50, 50)
    assignments.owned = {0, 2}
    assignments.assign(2, 1)
    assert (assignments.free(0.0), assignments.unfinished()) == ({0}, 2)


def test_what_a_dead_worker_held_is_free_again_and_exempt_from_crash_once() -> None:
    assignments = drain(50, 50, 50)
    dead, alive = WorkerSession(0, CONNECTION), WorkerSession(1, CONNECTION)
    assignments.sessions |= {0: dead, 1: alive}
    for partition, slot in ((0, 0), (1, 1), (2, 0)):
        assignments.assign(partition, slot)
        assignments._shared.running[partition] = OffsetRange("in", partition, 50, 51)
    assignments.reading |= {0, 1}
    assert assignments.disconnected(dead)
    assert assignments.reading == {1}, "its successor has yet to read"
    assert (assignments.sessions, assignments.held, assignments._shared.running.keys()) == ({1: alive}, {1: 1}, {1})
    assert assignments._shared.lost == {p: OffsetRange("in", p, 50, 51) for p in (0, 2)}
    assert assignments.free(0.0) == {0, 2}
    assert [assignments.exempt_from_crash(p) for p in (0, 0, 1, 2)] == [True, False, False, True]


def test_a_predecessor_that_is_noticed_late_takes_nothing_away_from_its_successor() -> None:
    assignments = drain(50)
    successor = WorkerSession(0, CONNECTION)
    assignments.sessions[0] = successor
    assignments.assign(0, 0)
    assert not assignments.disconnected(WorkerSession(0, CONNECTION))
    assert (assignments.sessions, assignments.held) == ({0: successor}, {0: 0})


@pytest.mark.parametrize("died", [True, False])
def test_what_came_back_can_be_called_back_again(died: bool) -> None:
    """Only what is on its way is not called a second time."""
    assignments = drain(50)
    worker = WorkerSession(0, CONNECTION)
    assignments.sessions[0] = worker
    assignments.assign(0, 0)
    assignments.releasing.add(0)
    if died:
        assignments.disconnected(worker)
    else:
        assignments.released(0, 60)
    assert (assignments.releasing, assignments.held) == (set(), {})


def test_commits_that_follow_each_other_are_told_as_one_range_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A range that somebody else did stays a gap, a failure a range of its own."""
    assignments = unsurveyed(None)
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
        assignments.outcome(outcome)
    shown = list[tuple[int, list[Outcome], float]]()
    monkeypatch.setattr(assignments._shared.view, "cycle", lambda *arguments: shown.append(arguments))
    assignments.report()
    assignments.report()
    joined = Outcome(0, 0, 30, Status.COMMITTED, 0, 27, 3, 3.5, dropped=5, written=17)
    assert shown == [(0, [joined, *outcomes[3:7], outcomes[1], outcomes[7]], 3.75)]


def test_a_drain_is_not_over_where_an_outsider_moved_a_position_back_behind_its_goal() -> None:
    """The other reader looks at each plan anew; this one said that it was done. It ends with its last transaction."""
    assignments = unsurveyed({0: 10, 1: 10})
    survey(assignments, 10, 0)
    assert assignments.free(0.0) == {1}
    survey(assignments, 4, 10)
    assert not assignments.drained()
    assert (assignments.free(0.0), assignments.unfinished()) == ({0}, 1)
    assignments.assign(0, 0)
    survey(assignments, 4, 10)
    assert not assignments.drained()
    assignments.released(0, 10)
    assert assignments.drained(), "what a worker reached counts before the next survey"
    survey(assignments, 10, 10)
    assert assignments.drained()


def test_a_partition_that_nobody_holds_may_leave_and_one_without_a_goal_is_done() -> None:
    """It came after the start: a drain does not wait for it."""
    assignments = unsurveyed({0: 10})
    assignments.surveyed([], all_of_them=True)
    assignments.released(7, 0)
    assert 7 in assignments._done
    assignments.released(0, 9)
    assert 0 not in assignments._done


Numbers = dict[int, int]
LAGS = st.dictionaries(st.integers(0, 40), st.integers(0, 1_000_000), min_size=1, max_size=40)


@given(LAGS, st.integers(1, 9))
def test_every_partition_gets_one_slot_and_no_slot_has_much_more_than_another(lags: dict[int, int], slots: int) -> None:
    """The greedy bound: the busiest slot exceeds the idlest by one partition's weight at most."""
    placed = assign(lags, {}, range(slots))
    assert placed.keys() == lags.keys()
    weights = loads(lags)
    carried = [sum(weights[p] for p, one in placed.items() if one == slot) for slot in range(slots)]
    assert max(carried) - min(carried) <= max(weights.values())


@given(LAGS, st.integers(2, 6))
def test_what_is_held_stays_where_it_is(lags: dict[int, int], slots: int) -> None:
    held = dict.fromkeys(list(lags)[::2], 0)
    assert assign(lags, held, range(slots)).keys() == lags.keys() - held.keys()


@given(LAGS, st.integers(1, 6))
def test_moves_come_to_an_end(lags: dict[int, int], slots: int) -> None:
    """Released and placed again, the busiest slot's load falls each time, so no partition goes to and fro."""
    held = dict.fromkeys(lags, 0)
    for _ in range(len(lags) * slots + 1):
        partition = partition_to_move(lags, held, range(slots))
        if partition is None:
            break
        del held[partition]
        held |= assign(lags, held, range(slots))
    else:
        raise AssertionError("it moves for ever")
    assert slots == 1 or len(lags) == 1 or len(set(held.values())) > 1


def test_idle_partitions_are_spread_by_their_number() -> None:
    assert Counter(assign(dict.fromkeys(range(64), 0), {}, range(4)).values()) == {0: 16, 1: 16, 2: 16, 3: 16}


@pytest.mark.parametrize(
    ("lags", "weights"),
    [
        ({0: 20, 1: 60, 2: 0, 3: 0}, {0: 20 + 6, 1: 60 + 6, 2: 6, 3: 6}),
        ({}, {}),
        ({0: 0}, {0: 1}),
        ({0: 7}, {0: 9}),
        ({0: 8}, {0: 11}),
        ({0: 10, 1: 5}, {0: 12, 1: 7}),
    ],
)
def test_a_partition_weighs_its_lag_and_a_quarter_of_the_mean(lags: dict[int, int], weights: dict[int, int]) -> None:
    """In whole offsets, and one more, or idle partitions alone would weigh nothing."""
    assert loads(lags) == weights
    assert all(isinstance(weight, int) for weight in loads(lags).values())


@pytest.mark.parametrize(
    ("lags", "held", "slots", "placed"),
    [
        ({0: 10, 1: 20, 2: 100}, {}, [0, 1], {2: 0, 1: 1, 0: 1}),
        ({3: 5, 1: 5, 2: 90}, {}, [0], {2: 0, 1: 0, 3: 0}),
        ({0: 5}, {9: 0}, [0, 1], {0: 0}),
        ({0: 1}, {}, [], {}),
    ],
    ids=["the heaviest first", "equal ones by number", "one that is held and has no lag", "no slot"],
)
def test_partitions_are_placed(lags: Numbers, held: Numbers, slots: list[int], placed: Numbers) -> None:
    assert list(assign(lags, held, slots).items()) == list(placed.items())


TEN, NINE = dict.fromkeys(range(10), 0), dict.fromkeys(range(9), 0)


@pytest.mark.parametrize(
    ("lags", "held", "slots", "moved"),
    [
        # Of two slots that are equally busy the lower one gives; the lighter of what it has is no worse.
        (dict.fromkeys(range(4), 50), {0: 0, 1: 0, 2: 1, 3: 1}, [0, 1, 2], 0),
        ({0: 500_000, 1: 400_000}, {0: 0, 1: 0}, [0, 1], 0),
        ({0: 500_000}, {0: 0}, [0, 1], None),
        # Ten partitions of one weight become nine, which is the border of nine tenths; nine become eight.
        (TEN, TEN, [0, 1], None),
        (NINE, NINE, [0, 1], 0),
        ({}, {}, [0, 1], None),
        ({0: 1}, {0: 3}, [], None),
    ],
)
def test_a_partition_moves_where_it_pays(lags: Numbers, held: Numbers, slots: list[int], moved: int | None) -> None:
    assert partition_to_move(lags, held, slots) == moved
