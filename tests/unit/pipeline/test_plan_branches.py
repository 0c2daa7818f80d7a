"""The planner and the size of transactions: what each rule gives at its edge, and what it leaves alone."""

from __future__ import annotations

import pytest

from brew.errors import Refused
from brew.offsets import Committed, LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts, Plan, check, plan_ranges
from brew.transaction_sizing import TransactionSize, TransactionSizes


def fact(partition: int, committed: int | None, stable: int = 100, *, first: int = 0, end: int = 100) -> PartitionFacts:
    position = None if committed is None else Committed(committed, "")
    return PartitionFacts("in", partition, "id-1", position, LogOffsets(first, stable, end))


@pytest.mark.parametrize(("committed", "lag"), [(None, 53), (10, 50), (59, 1), (60, 0), (61, 0)])
def test_lag_is_what_a_read_committed_reader_can_still_get(committed: int | None, lag: int) -> None:
    """Up to the last stable offset, and never less than none."""
    assert fact(0, committed, stable=60, first=7).lag == lag


def test_a_driver_gets_its_own_partitions_and_knows_where_the_others_stand() -> None:
    """Neither ranges nor blocked partitions of others are worked on here."""
    ranges = tuple(OffsetRange("in", p, 10 * p, 100) for p in (1, 2, 3))
    for drained in (True, False):
        ours = Plan(ranges, (4, 5), drained).split({1, 3, 5})
        assert ours == Plan((ranges[0], ranges[2]), (5,), drained, {2: 20})


def test_a_partition_that_has_reached_its_goal_does_not_end_the_plan() -> None:
    """The partitions behind it are planned as well."""
    plan = plan_ranges([fact(0, 100), fact(1, 50)], 1000, {0: 100, 1: 100})
    assert plan == Plan((OffsetRange("in", 1, 50, 100),), (), drained=False)


@pytest.mark.parametrize(("committed", "first"), [(101, 0), (6, 7)])
def test_a_refusal_names_the_place_and_the_command_that_helps(committed: int, first: int) -> None:
    with pytest.raises(Refused, match=r"group 'g' in in\[3\] .*--reset-offsets --group g --topic in"):
        check(fact(3, committed, first=first), "g")


def outcome(start: int, until: int, seconds: float, status: Status = Status.COMMITTED, partition: int = 0) -> Outcome:
    return Outcome(partition, start, until, status, seconds=seconds)


def test_a_range_grows_when_it_was_full_and_quick() -> None:
    """Below a ninth of the time-out; a range that was not full says nothing about a full one."""
    pace = TransactionSize(1000, 90.0, 100)
    assert pace.after(100, 9.99) == TransactionSize(1000, 90.0, 200)
    assert pace.after(100, 10.0) == pace
    assert pace.after(99, 1.0) == pace
    assert TransactionSize(150, 90.0, 100).after(100, 1.0).cap == 150


def test_a_range_shrinks_to_what_fits_into_a_third_of_the_time_out() -> None:
    """With a fifth of it in hand, and never below one offset."""
    pace = TransactionSize(1000, 90.0, 100)
    assert pace.after(100, 30.0) == pace
    assert pace.after(100, 60.0) == TransactionSize(1000, 90.0, 40)
    assert pace.after(1, 60.0) == TransactionSize(1000, 90.0, 1)


def test_the_size_of_an_outcome_is_its_offsets_not_its_position() -> None:
    """A range far up in the log is no larger."""
    assert TransactionSize(1000, 90.0, 100).after_outcome(outcome(5000, 5100, 60.0)).cap == 40
    assert TransactionSize(1000, 90.0, 100).after_outcome(outcome(5000, 5050, 1.0)).cap == 100


@pytest.mark.parametrize(("seconds", "cap"), [(89.9, 101), (90.0, 25), (90.1, 25)])
def test_only_a_failure_that_took_the_whole_time_out_shrinks_the_range(seconds: float, cap: int) -> None:
    """Something else was wrong with the quick ones; a quarter is a whole number of offsets."""
    pace = TransactionSize(1000, 90.0, 101).after_outcome(outcome(0, 101, seconds, Status.FAILED))
    assert pace == TransactionSize(1000, 90.0, cap)
    assert isinstance(pace.cap, int)


def test_a_partition_goes_on_from_its_own_pace() -> None:
    """Not from what another one has learned meanwhile."""
    paces = TransactionSizes(TransactionSize(1000, 90.0, 100))
    paces.apply_outcome(outcome(0, 100, 1.0, partition=0))
    paces.apply_outcome(outcome(0, 200, 60.0, partition=1))
    assert (paces.of(0).cap, paces.of(1).cap) == (200, 80)
    paces.apply_outcome(outcome(100, 300, 1.0, partition=0))
    assert (paces.of(0).cap, paces.of(1).cap, paces.of(2).cap) == (400, 80, 400)
