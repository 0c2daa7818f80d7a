"""Which slot holds which partition: even by lag, nothing moved without need."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brew.driver.assignor import assign, loads, partition_to_move

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
