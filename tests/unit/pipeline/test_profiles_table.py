"""The table of profiles: a fold of records, and what it answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.fakes import Broker, FakeTransaction
from hypothesis import given
from hypothesis import strategies as st

from brew.deadline import Deadline
from brew.offsets import OffsetRange, SourcePosition
from brew.orders import DISCOUNTS, profile
from brew.range_transaction import Rows, Targets, transact_range
from brew.record import Reject
from brew.settings import Limits
from pipeline.orders import enricher
from pipeline.profiles import Table, lookup

ORDER = b'{"customer_id":"c-1","x":1}'


def table(*records: tuple[int, int, str, bytes | None]) -> Table:
    made = Table()
    for partition, offset, customer, value in records:
        made.take("profiles", partition, offset, customer.encode(), value)
    return made


def enriched(made: Table, order: bytes = ORDER, key: bytes | None = b"gold-1") -> tuple[dict[str, Any], bytes | None]:
    """The order, enriched, and its header's value."""
    resolve, evidence = lookup(made)
    out = enricher(Limits(), resolve)(key, order)
    assert not isinstance(out, Reject)
    name, value = evidence()
    assert name == "profile.offset"
    return json.loads(out), value


def test_the_tier_is_the_profiles_and_the_header_says_which() -> None:
    """The record's key, which says gold, has no say."""
    order, header = enriched(table((3, 17, "c-1", profile("c-1", "bronze"))))

    assert order == {"customer_id": "c-1", "x": 1, "loyalty_tier": "bronze", "loyalty_discount": DISCOUNTS["bronze"]}
    assert header == b"3/17"


def test_an_update_replaces_and_a_tombstone_removes() -> None:
    """The newest record of a customer counts."""
    made = table((0, 1, "c-1", profile("c-1", "gold")), (0, 5, "c-1", profile("c-1", "silver")))
    assert enriched(made)[0]["loyalty_tier"] == "silver"
    assert enriched(made)[1] == b"0/5"
    made.take("profiles", 0, 6, b"c-1", None)
    made.read_to({0: 7})
    assert enriched(made)[0]["loyalty_tier"] == "standard"
    assert enriched(made)[1] == b"none 7"


def test_a_customer_without_a_profile_is_standard_and_the_header_says_how_far_was_read() -> None:
    made = table((0, 1, "c-2", profile("c-2", "gold")))
    made.read_to({1: 40, 0: 2})
    order, header = enriched(made)
    assert (order["loyalty_tier"], order["loyalty_discount"], header) == ("standard", 0.0, b"none 2,40")


@pytest.mark.parametrize("customer", [b"815", b"8.5", b"true", b'["c-1"]', b'{"c":1}', b"12345678901234567890123"])
def test_a_customer_id_that_is_no_text_has_no_profile(customer: bytes) -> None:
    """And stops nothing."""
    order, header = enriched(table((0, 1, "815", profile("815", "gold"))), b'{"customer_id":' + customer + b"}")
    assert order["loyalty_tier"] == "standard"
    assert header is not None
    assert header.startswith(b"none")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{", "not JSON"),
        (b"[1]", "a JSON list"),
        (b'{"customer_id":"c-1"}', "tier is 'None'"),
        (b'{"tier":"diamond"}', "tier is 'diamond', known are gold, silver, bronze, standard"),
        (b'{"tier":["gold"]}', "tier is"),
        (b'{"customer_id":"c-2","tier":"gold"}', "the value's customer_id another one"),
    ],
)
def test_what_is_no_profile_is_named_and_counted_and_its_customer_has_none(value: bytes, says: str) -> None:
    """The one before does not come back: whoever loads after compaction could not know it."""
    made = table((0, 1, "c-1", profile("c-1", "gold")), (0, 2, "c-1", value))
    assert made.malformed == 1
    assert made.complaints[0].startswith("profiles[0] offset 2: ")
    assert says in made.complaints[0]
    assert enriched(made)[0]["loyalty_tier"] == "standard"


def test_a_key_that_is_no_text_is_named_and_removes_nobody() -> None:
    made = table((0, 1, "c-1", profile("c-1", "gold")))
    made.take("profiles", 0, 2, b"\xff\xfe", profile("c-1", "silver"))
    made.take("profiles", 0, 3, None, profile("c-1", "silver"))
    assert (made.malformed, len(made.entries)) == (2, 1)


def test_a_thousand_malformed_profiles_are_counted_and_five_named() -> None:
    made = table(*((0, at, f"c-{at}", b"?") for at in range(1000)))
    assert (made.malformed, len(made.complaints)) == (1000, 5)


KINDS = st.sampled_from([*DISCOUNTS, None, "malformed"])


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), KINDS), max_size=40), st.randoms())
def test_the_table_is_the_last_record_of_each_customer_however_partitions_interleave(
    written: list[tuple[int, int, str | None]], dice: Any
) -> None:
    """A customer's records lie in one partition, in order; partitions arrive in any order."""
    logs: dict[int, list[tuple[int, int, str, bytes | None]]] = {0: [], 1: [], 2: []}
    expected: dict[str, tuple[str, bytes]] = {}
    for partition, number, kind in written:
        customer = f"c-{partition}-{number}"
        at = len(logs[partition])
        value = None if kind is None else b"{}" if kind == "malformed" else profile(customer, kind)
        logs[partition].append((partition, at, customer, value))
        expected.pop(customer, None)
        if kind in DISCOUNTS:
            expected[customer] = str(kind), b"%d/%d" % (partition, at)
    made = Table()
    left = {p: iter(log) for p, log in logs.items()}
    while left:
        one = dice.choice(sorted(left))
        record = next(left[one], None)
        if record is None:
            del left[one]
        else:
            made.take("profiles", *record[:2], record[2].encode(), record[3])
    resolve, evidence = lookup(made)
    for partition in range(3):
        for number in range(5):
            customer = f"c-{partition}-{number}"
            tier = resolve(None, {"customer_id": customer})
            known = expected.get(customer)
            assert tier == (known[0] if known else "standard")
            assert evidence()[1] == (known[1] if known else b"none ")
    assert made.malformed == sum(kind == "malformed" for *_, kind in written)


def test_the_header_stands_between_the_inputs_own_and_the_source() -> None:
    """A rejected record, which no profile touched, has none."""
    made = table((0, 1, "c-1", profile("c-1", "gold")))
    resolve, evidence = lookup(made)
    broker, offered = Broker(), OffsetRange("in", 2, 0, 3)
    rows = Rows([0, 1], [b"k", b"k"], [ORDER, b"?"], [[("trace", b"1")], None], [7, 7])
    targets = Targets("out", "dead", 2, 2, "", 10_000)
    kafka = FakeTransaction(broker)
    enrich = enricher(Limits(), resolve)
    transact_range([rows], offered, targets, enrich, kafka, Deadline(5), first_time=True, evidence=evidence)
    good, bad = broker.visible()
    assert good.headers == [("trace", b"1"), ("profile.offset", b"0/1"), *SourcePosition("in", 2, 0).headers()]
    assert "profile.offset" not in dict(bad.headers)
