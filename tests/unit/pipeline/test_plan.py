"""The planner and the size of transactions: every rule at its edge, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brew.errors import Refused
from brew.offsets import Committed, LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts, Plan, check, plan_ranges, position_metadata
from brew.transaction_sizing import TransactionSize, TransactionSizes


def fact(
    committed: int | None, first: int = 0, stable: int = 100, end: int = 100, metadata: str = "", *, partition: int = 3
) -> PartitionFacts:
    position = None if committed is None else Committed(committed, metadata)
    return PartitionFacts("in", partition, "id-1", position, LogOffsets(first, stable, end))


@pytest.mark.parametrize(
    ("given", "cap", "start", "until"),
    [(fact(10, stable=60), 1000, 10, 60), (fact(None, first=7), 1000, 7, 100), (fact(10), 5, 10, 15)],
    ids=["to the last stable offset", "without a committed offset from the log's start", "at most the cap"],
)
def test_a_range_goes_from_the_position_to_what_may_be_read(
    given: PartitionFacts, cap: int, start: int, until: int
) -> None:
    """Records behind an open transaction are not planned, and a transaction has to end inside its time-out."""
    assert plan_ranges([given], cap, None).ranges == (OffsetRange("in", 3, start, until),)


@pytest.mark.parametrize(("committed", "drained"), [(99, False), (100, True), (101, True)])
def test_a_draining_run_ends_at_the_offset_that_was_the_end_when_it_began(committed: int, drained: bool) -> None:
    """What arrives later is the next run's."""
    assert plan_ranges([fact(committed, stable=200, end=200)], 1000, {3: 100}).drained is drained


def test_a_following_run_is_never_drained() -> None:
    """It waits for more."""
    plan = plan_ranges([fact(100)], 1000, None)
    assert (plan.ranges, plan.drained, plan.blocked) == ((), False, ())


def test_a_partition_is_blocked_when_only_an_open_transaction_is_left() -> None:
    """A drain does not call that the end."""
    plan = plan_ranges([fact(60, stable=60)], 1000, {3: 100})
    assert (plan.blocked, plan.drained) == ((3,), False)


def test_a_partition_that_came_after_the_start_does_not_hold_up_a_drain() -> None:
    """Its records were not there when the run began, wherever its log begins."""
    for came in (fact(None), fact(None, first=7), fact(7, first=7)):
        assert plan_ranges([came], 1000, {0: 0}).drained


def test_retention_past_the_position_is_refused_with_the_lost_range() -> None:
    """Going on would lose records without a word; a position of 0 is a position."""
    check(fact(7, first=7), "g")
    for lost in (6, 0):
        with pytest.raises(Refused, match=rf"input-lost: .*offsets \[{lost}, 7\) are gone.*--to-earliest"):
            check(fact(lost, first=7), "g")


def test_a_position_beyond_the_end_is_refused() -> None:
    """The log was cut, or made again."""
    check(fact(100), "g")
    with pytest.raises(Refused, match="offset-ahead"):
        check(fact(101), "g")


def test_a_topic_that_was_made_again_is_refused_even_when_the_offset_exists() -> None:
    """Its identity was committed beside the offset."""
    check(fact(5, metadata=position_metadata("id-1")), "g")
    with pytest.raises(Refused, match=r"topic-recreated: .*id-0.*id-1"):
        check(fact(5, metadata=position_metadata("id-0")), "g")


def test_a_position_that_an_operator_set_by_hand_is_accepted() -> None:
    """A reset by Kafka's own tool carries no identity, and just works."""
    check(fact(5, metadata=""), "g")
    assert plan_ranges([fact(5)], 1000, None).ranges[0].start == 5


def test_foreign_bytes_behind_the_identity_change_nothing() -> None:
    """The client library hands them out now and then; a real identity has 22 characters."""
    identity = "AbCdEfGhIjKlMnOpQrStUv"
    known = replace(fact(5, metadata=position_metadata(identity) + "\x00junk"), topic_id=identity)
    check(known, "g")
    with pytest.raises(Refused, match="topic-recreated"):
        check(replace(known, topic_id="AbCdEfGhIjKlMnOpQrStUw"), "g")


def test_a_position_between_the_last_stable_offset_and_the_end_is_not_ahead() -> None:
    """An upstream transaction began below a position that an operator set: it waits, and has no lag below zero."""
    check(fact(80, stable=60), "g")
    assert (fact(80, stable=60).lag, fact(50, stable=60).lag) == (0, 10)
    assert plan_ranges([fact(80, stable=60)], 1000, None).blocked == (3,)


def test_what_is_other_drivers_is_neither_planned_nor_blamed_and_its_position_is_watched() -> None:
    """A drain waits while they move; what blocks them is told by them."""
    facts = [fact(10, partition=1), fact(20), fact(60, stable=60, partition=5)]
    plan = plan_ranges(facts, 1000, dict.fromkeys((1, 3, 5), 100))
    assert (plan.split({1}).owned_by_others, plan.split({1}).blocked, plan.split({1}).drained) == ({3: 20}, (), False)
    assert [one.partition for one in plan.split({1, 5}).ranges] == [1]
    assert plan.split({1, 5}).blocked == (5,)


@pytest.mark.parametrize(("committed", "lag"), [(None, 53), (10, 50), (59, 1), (60, 0), (61, 0)])
def test_lag_is_what_a_read_committed_reader_can_still_get(committed: int | None, lag: int) -> None:
    """Up to the last stable offset, and never less than none."""
    assert fact(committed, 7, 60, partition=0).lag == lag


def test_a_driver_gets_its_own_partitions_and_knows_where_the_others_stand() -> None:
    """Neither ranges nor blocked partitions of others are worked on here."""
    ranges = tuple(OffsetRange("in", p, 10 * p, 100) for p in (1, 2, 3))
    for drained in (True, False):
        ours = Plan(ranges, (4, 5), drained).split({1, 3, 5})
        assert ours == Plan((ranges[0], ranges[2]), (5,), drained, {2: 20})


def test_a_partition_that_has_reached_its_goal_does_not_end_the_plan() -> None:
    """The partitions behind it are planned as well."""
    plan = plan_ranges([fact(100, partition=0), fact(50, partition=1)], 1000, {0: 100, 1: 100})
    assert plan == Plan((OffsetRange("in", 1, 50, 100),), (), drained=False)


@pytest.mark.parametrize(("committed", "first"), [(101, 0), (6, 7)])
def test_a_refusal_names_the_place_and_the_command_that_helps(committed: int, first: int) -> None:
    with pytest.raises(Refused, match=r"group 'g' in in\[3\] .*--reset-offsets --group g --topic in"):
        check(fact(committed, first), "g")


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
    assert TransactionSize(10, 60, 1).after_time_out().cap == 1


def test_a_new_run_begins_with_small_ranges() -> None:
    assert [TransactionSize.at_most(most, 60).cap for most in (100_000, 7)] == [20_000, 7]


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
