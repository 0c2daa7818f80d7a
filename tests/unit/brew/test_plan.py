"""The planner and the size of transactions: every rule at its edge, and what it leaves alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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


def ranges(*bounds: tuple[int, int]) -> tuple[OffsetRange, ...]:
    return tuple(OffsetRange("in", 3, *one) for one in bounds)


@pytest.mark.parametrize(
    ("facts", "cap", "goals", "plan"),
    [
        pytest.param(fact(10, stable=60), 1000, None, (ranges((10, 60)), {}, False), id="to the last stable offset"),
        pytest.param(fact(None, first=7), 1000, None, (ranges((7, 100)), {}, False), id="from the log's start"),
        pytest.param(fact(10), 5, None, (ranges((10, 15)), {}, False), id="at most the cap"),
        pytest.param(fact(100), 1000, None, ((), {}, False), id="a following run waits for more"),
        pytest.param(fact(60, stable=60), 1000, {3: 100}, ((), {3: 60}, False), id="only an open transaction is left"),
        pytest.param(fact(80, stable=60), 1000, None, ((), {3: 80}, False), id="a position behind the stable offset"),
        # A draining run ends at the offset that was the end when it began: what arrives later is the next run's.
        pytest.param(fact(99, end=200, stable=200), 5, {3: 100}, (ranges((99, 104)), {}, False), id="before its goal"),
        pytest.param(fact(100, end=200, stable=200), 1000, {3: 100}, ((), {}, True), id="at its goal"),
        pytest.param(fact(101, end=200, stable=200), 1000, {3: 100}, ((), {}, True), id="behind its goal"),
        pytest.param(fact(None), 1000, {0: 0}, ((), {}, True), id="it came after the start"),
        pytest.param(fact(None, first=7), 1000, {0: 0}, ((), {}, True), id="it came and lost its begin"),
        pytest.param(fact(7, first=7), 1000, {0: 0}, ((), {}, True), id="it came and has a position"),
    ],
)
def test_a_range_goes_from_the_position_to_what_may_be_read(
    facts: PartitionFacts, cap: int, goals: dict[int, int] | None, plan: tuple[Any, dict[int, int], bool]
) -> None:
    """Records behind an open transaction are not planned, and a transaction has to end inside its time-out."""
    assert plan_ranges([facts], cap, goals) == Plan(*plan)


def test_a_partition_that_has_reached_its_goal_does_not_end_the_plan() -> None:
    plan = plan_ranges([fact(100, partition=0), fact(50)], 1000, {0: 100, 3: 100})
    assert plan == Plan(ranges((50, 100)), {}, drained=False)


IDENTITY = "AbCdEfGhIjKlMnOpQrStUv"
KNOWN = replace(fact(5, metadata=position_metadata(IDENTITY) + "\x00junk"), topic_id=IDENTITY)


@pytest.mark.parametrize(
    ("facts", "refused"),
    [
        pytest.param(fact(7, first=7), None, id="at the log's begin"),
        pytest.param(fact(6, first=7), r"input-lost: .*offsets \[6, 7\) are gone.* in:3 --to-earliest", id="retention"),
        pytest.param(fact(0, first=7), r"input-lost: .*\[0, 7\) are gone.* in:3 --to-earliest", id="0 is a position"),
        pytest.param(fact(100), None, id="at the log's end"),
        pytest.param(fact(101), "offset-ahead", id="the log was cut, or made again"),
        pytest.param(fact(80, stable=60), None, id="behind the last stable offset, an upstream transaction is open"),
        pytest.param(fact(5, metadata=position_metadata("id-1")), None, id="the identity beside the offset"),
        pytest.param(fact(5, metadata=position_metadata("id-0")), r"topic-recreated: .*id-0.*id-1", id="another one"),
        pytest.param(fact(5), None, id="none: a reset by Kafka's own tool"),
        pytest.param(KNOWN, None, id="the client hands out foreign bytes behind it now and then"),
        pytest.param(replace(KNOWN, topic_id=f"{IDENTITY[:-1]}w"), "topic-recreated", id="another one with such bytes"),
    ],
)
def test_a_position_that_would_lose_or_double_records_is_refused(facts: PartitionFacts, refused: str | None) -> None:
    """With the place, and the command that helps."""
    if refused is None:
        check(facts, "g")
        return
    with pytest.raises(Refused, match=refused) as caught:
        check(facts, "g")
    assert "group 'g' in in[3] " in str(caught.value)
    # Kafka's tool resets all partitions of a topic that is named alone: the others would be read twice.
    reset = "--group g --topic in;" if "topic-recreated" in refused else "--group g --topic in:3"
    assert f"kafka-consumer-groups --reset-offsets {reset}" in f"{caught.value};"


@pytest.mark.parametrize(("committed", "lag"), [(None, 53), (10, 50), (59, 1), (60, 0), (61, 0)])
def test_lag_is_what_a_read_committed_reader_can_still_get(committed: int | None, lag: int) -> None:
    assert fact(committed, 7, 60, partition=0).lag == lag


def test_a_driver_gets_its_own_partitions_and_knows_where_the_others_stand() -> None:
    """Neither ranges nor blocked partitions of others are worked on here; a drain waits while they move."""
    all_of_them = tuple(OffsetRange("in", p, 10 * p, 100) for p in (1, 2, 3))
    for drained in (True, False):
        own_plan = Plan(all_of_them, {4: 44, 5: 55}, drained).split({1, 3, 5})
        assert own_plan == Plan((all_of_them[0], all_of_them[2]), {5: 55}, drained, {2: 20, 4: 44})


@pytest.mark.parametrize(
    ("size", "offsets", "seconds", "cap"),
    [
        # It grows when it was full and quick, below a ninth of the time-out.
        ((1000, 90.0, 100), 100, 9.99, 200),
        ((1000, 90.0, 100), 100, 10.0, 100),
        ((1000, 90.0, 100), 99, 1.0, 100),
        ((150, 90.0, 100), 100, 1.0, 150),
        # It shrinks to what fits into a third of the time-out, with a fifth of it in hand, and never below one offset.
        ((1000, 90.0, 100), 100, 30.0, 100),
        ((1000, 90.0, 100), 100, 60.0, 40),
        ((1000, 90.0, 100), 1, 60.0, 1),
    ],
)
def test_a_range_grows_and_shrinks_by_how_long_the_last_one_took(
    size: tuple[int, float, int], offsets: int, seconds: float, cap: int
) -> None:
    """Its size is its offsets, not its position: a range far up in the log is no larger."""
    size_before, expected = TransactionSize(*size), TransactionSize(*size[:2], cap)
    assert size_before.after(offsets, seconds) == expected
    assert size_before.after_outcome(Outcome(0, 5000, 5000 + offsets, Status.COMMITTED, seconds=seconds)) == expected


@pytest.mark.parametrize(("seconds", "cap"), [(89.9, 101), (90.0, 25), (90.1, 25)])
def test_only_a_failure_that_took_the_whole_time_out_shrinks_the_range(seconds: float, cap: int) -> None:
    """Something else was wrong with the quick ones; a quarter is a whole number of offsets, and at least one."""
    size = TransactionSize(1000, 90.0, 101).after_outcome(Outcome(0, 0, 101, Status.FAILED, seconds=seconds))
    assert size == TransactionSize(1000, 90.0, cap)
    assert isinstance(size.cap, int)
    assert TransactionSize(10, 60, 1).after_time_out().cap == 1


def test_a_new_run_begins_with_small_ranges() -> None:
    assert [TransactionSize.at_most(most, 60).cap for most in (100_000, 7)] == [20_000, 7]


def test_a_partition_begins_with_what_another_has_learned_unless_it_has_failed() -> None:
    """64 partitions with 62,500 records each made 192 transactions, each beginning with 20,000."""
    sizes = TransactionSizes(TransactionSize.at_most(100_000, 60))
    assert sizes.of(0).cap == 20_000
    sizes.apply_outcome(Outcome(0, 0, 20_000, Status.COMMITTED, seconds=1.0))
    assert (sizes.of(0).cap, sizes.of(1).cap) == (40_000, 40_000)
    sizes.apply_outcome(Outcome(1, 0, 40_000, Status.FAILED, seconds=60.0))
    assert sizes.of(2).cap == 10_000
    sizes.apply_outcome(Outcome(0, 20_000, 60_000, Status.COMMITTED, seconds=1.0))
    sizes.apply_outcome(Outcome(0, 60_000, 60_000, Status.ALREADY_DONE))
    sizes.apply_outcome(Outcome(3, 0, 40_000, Status.FAILED, seconds=1.0))
    assert [sizes.of(p).cap for p in range(4)] == [80_000, 10_000, 80_000, 20_000]
    sizes.apply_outcome(Outcome(1, 0, 10_000, Status.FAILED, seconds=60.0))
    assert sizes.of(1).cap == 2500, "a slow function: 20,000 records never end in time"
    sizes.apply_outcome(Outcome(1, 0, 2500, Status.COMMITTED, seconds=30.0))
    assert sizes.of(1).cap < 2500
    assert sizes.of(2).cap == sizes.of(1).cap, "who is new begins as carefully as the last one had to"
    sizes.apply_outcome(Outcome(0, 60_000, 140_000, Status.COMMITTED, seconds=1.0))
    assert sizes.of(0).cap == 100_000, "it goes on from its own, not from what another one has learned meanwhile"
