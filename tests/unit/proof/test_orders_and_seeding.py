"""What the seeder writes, without a broker."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.errors import UsageError
from brew.orders import DISCOUNTS, ORDER_FIELDS, tier_of_key
from proof.seed import Seeding, chunks, orders, spoiled


def plan(count: int, **more: object) -> Seeding:
    return Seeding("t", count, **{"start": 0, **more})  # type: ignore[arg-type]


def visible(seeding: Seeding, partitions: int) -> list[tuple[int, bytes, bytes | None]]:
    return [(p, key, value) for c in chunks(seeding, partitions) if not c.aborted for p, (key, value) in c.records]


def test_an_order_has_exactly_the_fields_of_the_design() -> None:
    """An order's JSON holds the agreed fields in their order, and its id is the record's key."""
    key, value = orders(1)(17)
    fields = json.loads(value or b"")
    assert tuple(fields) == ORDER_FIELDS
    assert fields["order_id"] == key.decode()
    assert key.endswith(b"-000017")


def test_equal_seeds_give_equal_orders_and_other_seeds_others() -> None:
    """The seed alone decides the content."""
    first, again, other = ([make(n) for n in range(50)] for make in (orders(5), orders(5), orders(6)))
    assert first == again
    assert first != other


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.integers(1, 9), st.booleans(), st.integers(0, 10**8))
def test_the_visible_orders_are_as_many_as_asked_for_with_unique_keys(
    count: int, partitions: int, transactional: bool, start: int
) -> None:
    """Aborted transactions come on top of the count, and never share a key with a visible order."""
    seeding = plan(count, start=start, transactional=transactional)
    written = list(chunks(seeding, partitions))
    keys = [key for chunk in written for _, (key, _) in chunk.records]
    assert len(visible(seeding, partitions)) == count
    assert len(keys) == len(set(keys))
    assert any(chunk.aborted for chunk in written) == transactional


def test_thirty_orders_reach_all_partitions_and_tiers_evenly() -> None:
    """Round robin over four partitions, and every partition sees every tier."""
    records = visible(plan(30), 4)
    assert sorted(Counter(p for p, _, _ in records).values()) == [7, 7, 8, 8]
    assert {(p, tier_of_key(key)) for p, key, _ in records} == {(p, tier) for p in range(4) for tier in DISCOUNTS}


def test_every_third_transaction_is_aborted() -> None:
    """Two commits, one abort, and so on."""
    ends = [chunk.aborted for chunk in chunks(plan(600, transactional=True, transaction_size=100), 4)]
    assert ends == [False, False, True] * 3


def test_a_markers_only_partition_gets_no_visible_order_but_aborted_ones() -> None:
    """Its log ends up with aborted records and markers alone."""
    seeding = plan(50, transactional=True, markers_only_partition=2)
    written = list(chunks(seeding, 4))
    assert {p for p, _, _ in visible(seeding, 4)} == {0, 1, 3}
    assert 2 in {p for chunk in written if chunk.aborted for p, _ in chunk.records}


def test_every_nth_order_is_bad_in_one_of_four_ways() -> None:
    """Cut JSON, no object, no customer, no value: and the others are untouched."""
    good, mixed = visible(plan(40), 4), visible(plan(40, bad_every=5), 4)
    different = [n for n in range(40) if good[n] != mixed[n]]
    assert different == list(range(4, 40, 5))
    assert len({spoiled(orders(0)(1), kind)[1] for kind in range(4)}) == 4


@pytest.mark.parametrize(
    "wrong",
    [{"abort_every": 1}, {"markers_only_partition": 1}, {"count": -1}],
    ids=["abort everything", "markers without transactions", "negative"],
)
def test_settings_that_do_not_fit_together_are_refused(wrong: dict[str, int]) -> None:
    """The refusal names the option to change."""
    with pytest.raises(UsageError, match="--"):
        plan(wrong.pop("count", 5), **wrong)


def test_a_markers_only_partition_outside_of_the_topic_is_refused() -> None:
    """The sentence tells how many partitions there are."""
    with pytest.raises(UsageError, match="has 4 partition"):
        list(chunks(plan(5, transactional=True, markers_only_partition=4), 4))
