"""Assignment of partitions to slots at its ties, and what the director's memory shows of joined outcomes."""

from __future__ import annotations

import threading

from brew.connection import Connection
from brew.driver.assignor import assign, loads, partition_to_move
from brew.driver.leases import Assignments
from brew.driver.progress import ProgressView, RunProgress
from brew.driver.run_context import RunContext
from brew.fault_injection import CrashInjector
from brew.kafka.transaction import TransactionSettings
from brew.outcome import Outcome, Status
from brew.settings import PipelineSettings


def test_a_partition_weighs_its_lag_and_a_quarter_of_the_mean_in_whole_offsets() -> None:
    """And one offset where all are idle."""
    assert loads({}) == {}
    assert loads({0: 0}) == {0: 1}
    assert loads({0: 7}) == {0: 9}
    assert loads({0: 10, 1: 5}) == {0: 12, 1: 7}
    assert all(isinstance(weight, int) for weight in loads({0: 10, 1: 5}).values())


def test_the_heaviest_is_placed_first_and_equal_ones_by_number() -> None:
    assert assign({0: 10, 1: 20, 2: 100}, {}, [0, 1]) == {2: 0, 1: 1, 0: 1}
    assert list(assign({3: 5, 1: 5, 2: 90}, {}, [0])) == [2, 1, 3]


def test_of_two_slots_that_are_equally_busy_the_lower_one_gives() -> None:
    """And to a slot that holds nothing, the lighter of what it has is no worse."""
    lags = {0: 50, 1: 50, 2: 50, 3: 50}
    assert partition_to_move(lags, {0: 0, 1: 0, 2: 1, 3: 1}, [0, 1, 2]) == 0
    assert partition_to_move({}, {}, [0, 1]) is None


def test_a_move_that_leaves_exactly_nine_tenths_is_not_worth_it() -> None:
    """Ten partitions of one weight become nine, which is the border; nine become eight."""
    assert partition_to_move(dict.fromkeys(range(10), 0), dict.fromkeys(range(10), 0), [0, 1]) is None
    assert partition_to_move(dict.fromkeys(range(9), 0), dict.fromkeys(range(9), 0), [0, 1]) == 0


def test_a_held_partition_of_which_no_lag_is_known_weighs_nothing() -> None:
    assert assign({0: 5}, {9: 0}, [0, 1]) == {0: 0}


class View(ProgressView):
    def __init__(self) -> None:
        self.told: list[tuple[int, list[Outcome], float]] = []

    def cycle(self, lane: int, outcomes: list[Outcome], seconds: float) -> None:
        self.told.append((lane, outcomes, seconds))


def roster(goals: dict[int, int] | None) -> tuple[Assignments, View]:
    settings = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
    transaction, view = TransactionSettings(settings.connection, settings.group, 60.0), View()
    shared = RunContext(
        settings,
        {},
        threading.Event(),
        RunProgress(),
        view,
        goals,
        1_000_000,
        transaction,
        CrashInjector(settings.crash),
    )
    return Assignments(shared), view


def test_ranges_that_follow_each_other_are_told_as_one_with_their_sums() -> None:
    """Position and start are the first one's, the end is the last one's, the time is that of all."""
    made, view = roster(None)
    made.outcome(Outcome(3, 0, 5, Status.COMMITTED, 0, 4, 1, 1.5))
    made.outcome(Outcome(3, 5, 9, Status.COMMITTED, 5, 2, 2, 2.0))
    made.outcome(Outcome(4, 0, 5, Status.FAILED, seconds=0.25))
    made.report()
    joined = Outcome(3, 0, 9, Status.COMMITTED, 0, 6, 3, 3.5)
    assert view.told == [(0, [joined, Outcome(4, 0, 5, Status.FAILED, seconds=0.25)], 3.75)]


def test_a_run_is_drained_only_after_a_survey_of_all() -> None:
    made, _ = roster({0: 1})
    assert made.drained() is False


def test_a_partition_that_nobody_holds_may_leave_and_one_without_a_goal_is_done() -> None:
    """It came after the start: a drain does not wait for it."""
    made, _ = roster({0: 10})
    made.surveyed([], all_of_them=True)
    made.released(7, 0)
    assert 7 in made._done
    made.released(0, 9)
    assert 0 not in made._done
