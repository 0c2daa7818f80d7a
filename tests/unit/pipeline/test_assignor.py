"""Which slot holds which partition: even by lag, nothing moved without need."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from brew.driver.assignor import assign, loads, partition_to_move

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


def test_a_slot_that_ran_dry_gets_work_from_one_that_has_two() -> None:
    assert partition_to_move({0: 500_000, 1: 400_000}, {0: 0, 1: 0}, [0, 1]) == 0
    assert partition_to_move({0: 500_000}, {0: 0}, [0, 1]) is None


def test_without_slots_nothing_is_placed_or_moved() -> None:
    assert assign({0: 1}, {}, []) == {}
    assert partition_to_move({0: 1}, {0: 3}, []) is None
