"""Totals: exact sums, encodings, stores; how long a partition may fail."""

from __future__ import annotations

import json
import threading
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.offsets import Committed, LogOffsets
from downstream.totals import run as running
from downstream.totals.run import Run
from downstream.totals.stages import Aggregate, AttemptResult, Source, Split, add
from downstream.totals.state_store import MemoryStore, RocksStore, Store, StoreCheckpoint
from downstream.totals.topics import Position, TotalsSettings, position
from downstream.totals.total import UNREADABLE, Total, deltas, of_order

if TYPE_CHECKING:
    from brew.kafka.clients import AdminClient

amounts = st.one_of(
    st.integers(-(10**20), 10**20).map(str),
    st.decimals(-(10**9), 10**9, allow_nan=False, allow_infinity=False, places=5).map(str),
)


def order(customer: str, tier: str, cents: str, discount: str) -> bytes:
    """JSON with the number's own digits."""
    price = f'"total_cents":{cents},"loyalty_discount":{discount}'
    return f'{{"customer_id":"{customer}","loyalty_tier":"{tier}",{price}}}'.encode()


Orders = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["gold", "silver"]), amounts), max_size=30)


@settings(max_examples=80, deadline=None)
@given(Orders, st.integers(0, 30))
def test_sums_are_exact_however_the_orders_are_cut(orders: list[tuple[str, str, str]], cut: int) -> None:
    """Fractions agree to the last digit, and deltas of two parts add up to the deltas of the whole."""
    values = [order(customer, tier, cents, "0.15") for customer, tier, cents in orders]
    whole = deltas(values)
    parts = deltas(values[:cut])
    add(parts, deltas(values[cut:]))
    assert {key: total.encode() for key, total in parts.items()} == {k: total.encode() for k, total in whole.items()}
    for customer in {one[0] for one in orders}:
        mine = [Fraction(cents) for name, _, cents in orders if name == customer]
        total = whole[f"customer/{customer}".encode()]
        assert (total.orders, total.unpriced) == (len(mine), 0)
        assert Fraction(total.sum_cents) == sum(mine)
        assert Fraction(total.discount_cents) == sum(mine) * Fraction("0.15")
    for total in whole.values():
        assert Total.decode(total.encode()) == total


def test_a_tenth_added_ten_times_is_one() -> None:
    """What doubles can't do; and the results show it as text."""
    found = deltas([order("c", "gold", "0.1", "1")] * 10)[b"customer/c"]
    assert found.encode() == b"10 1 1 0"
    assert json.loads(found.document(b"customer/c")) == {
        "kind": "customer", "id": "c", "orders": 10, "sum_cents": "1", "discount_cents": "1", "unpriced": 0,
    }  # fmt: skip


@pytest.mark.parametrize("cents", ['"980"', "null", "true", "[1]", "1e999999999", "1e25", "0.0000000000001", "-1e26"])
def test_an_amount_that_can_not_be_summed_counts_as_unpriced(cents: str) -> None:
    """The order counts, its amount does not; a giant exponent costs no memory."""
    keys, total = of_order(order("c", "gold", cents, "0.1"))
    assert keys == (b"customer/c", b"tier/gold")
    assert total == Total(orders=1, unpriced=1)


@pytest.mark.parametrize(
    "value",
    [None, b"", b"no json", b"[]", b"\xff", b'{"customer_id":"c"}', b'{"loyalty_tier":"gold"}', b"NaN", b"[" * 100_000,
     b'{"customer_id":"","loyalty_tier":"gold"}', b'{"customer_id":' + b"9" * 5000 + b',"loyalty_tier":"gold"}'],
)  # fmt: skip
def test_what_is_no_enriched_order_is_counted_apart(value: bytes | None) -> None:
    assert of_order(value) == ((UNREADABLE,), Total(orders=1))


def test_customers_need_not_be_texts() -> None:
    """Whatever JSON the order has; strange letters survive the way into a key and out again."""
    keys, _ = of_order(b'{"customer_id":7,"loyalty_tier":"gold"}')
    assert keys[0] == b"customer/7"
    keys, total = of_order(b'{"customer_id":"\\ud800/x","loyalty_tier":"gold"}')
    assert json.loads(total.document(keys[0]))["id"] == "\ud800/x"


@pytest.mark.parametrize("text", [b"", b"1 2 3", b"1 x 3 4", b"1.5 2 3 4"])
def test_what_is_no_total_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="no total"):
        Total.decode(text)


# Stores.


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
def test_a_store_holds_what_was_written_with_its_standing(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else RocksStore(tmp_path, "topic")
    assert store.checkpoint is None
    store.write({b"a": b"1", b"b": b"2", b"c": b"3"}, StoreCheckpoint(5, 9, 3))
    store.write({b"a": b"4", b"b": None}, StoreCheckpoint(6, 12, 2))
    assert store.get([b"a", b"b", b"c", b"d"]) == [b"4", None, b"3", None]
    assert dict(store.items()) == {b"a": b"4", b"c": b"3"}
    assert store.checkpoint == StoreCheckpoint(6, 12, 2)
    store.wipe()
    assert (store.checkpoint, list(store.items())) == (None, [])
    store.close()


def test_a_state_that_was_closed_in_good_order_is_there_again(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, "topic")
    store.write({b"a": b"1"}, StoreCheckpoint(5, 9, 1))
    store.close()
    again = RocksStore(tmp_path, "topic")
    assert (again.wiped, again.checkpoint, again.get([b"a"])) == (False, StoreCheckpoint(5, 9, 1), [b"1"])
    again.close()


def test_a_state_that_was_not_closed_or_is_another_changelogs_is_wiped(tmp_path: Path) -> None:
    """Without the mark nothing is believed; a topic that was made again has another id."""
    store = RocksStore(tmp_path, "topic")
    store.write({b"a": b"1"}, StoreCheckpoint(5, 9, 1))
    store.close()
    assert RocksStore.trusted(tmp_path, "topic")
    (tmp_path / "clean").unlink()
    killed = RocksStore(tmp_path, "topic")
    assert (killed.wiped, killed.checkpoint) == (True, None)
    killed.write({b"a": b"1"}, StoreCheckpoint(5, 9, 1))
    killed.close()
    assert not RocksStore.trusted(tmp_path, "another")
    other = RocksStore(tmp_path, "another")
    assert (other.wiped, other.checkpoint) == (True, None)
    other.close()


def test_two_processes_can_not_have_one_state(tmp_path: Path) -> None:
    """The second is refused before it takes the first one's unfinished state for a killed one's and wipes it."""
    store = RocksStore(tmp_path, "topic")
    store.write({b"a": b"1"}, StoreCheckpoint(5, 9, 1))
    with pytest.raises(Refused, match="--state-dir"):
        RocksStore(tmp_path, "topic")
    assert store.get([b"a"]) == [b"1"]
    store.close()


# Positions.

LOG = LogOffsets(first=3, last_stable=20, end=20)


def test_a_position_goes_on_where_it_was_committed() -> None:
    """What was counted first is carried along; nothing counted begins at the log's first offset."""
    assert position("t[0]", "id", None, LOG) == Position(3, 3)
    assert position("t[0]", "id", Committed(7, Position(7, 1).metadata("id")), LOG) == Position(7, 1)
    assert position("t[0]", "id", Committed(3, Position(3, 1).metadata("id")), LOG) == Position(3, 1)


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (Committed(7, ""), "position-moved"),
        (Committed(7, "topic-id=id"), "position-moved"),
        (Committed(7, Position(7, 1).metadata("older")), "topic-recreated"),
        (Committed(2, Position(2, 1).metadata("id")), "range-lost"),
    ],
)
def test_a_position_that_would_miscount_is_refused_by_name(found: Committed, named: str) -> None:
    with pytest.raises(Refused, match=f"^{named}: .*another --group"):
        position("t[0]", "id", found, LOG)


def test_deltas_that_went_before_they_were_added_are_no_beginning() -> None:
    """The group's own topic begins at 0: a first look that finds it later would leave out what retention took."""
    settings = TotalsSettings(Connection("nowhere"), "g", "in", "out")
    contradiction = Aggregate(settings, cast("AdminClient", None), 2, MemoryStore()).ready(7, fresh=True)
    assert contradiction is not None
    assert contradiction.startswith("range-lost: g.deltas[2] begins at 7")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Run:
    settings = TotalsSettings(Connection("nowhere"), "g", "in", "out")
    monkeypatch.setattr(running, "_PAUSE_S", 0)
    return Run(settings, lambda _partition, _topic: MemoryStore(), threading.Event())


def test_a_partition_that_only_fails_ends_the_run_although_others_go_on(
    made: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one patience for all, the success of any partition would hide that nothing of this one is counted."""
    now = [0.0]
    monkeypatch.setattr(running, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    bad, good = (Source("in", "id", p, LogOffsets(0, 9, 9)) for p in (0, 1))
    made._failed("failed", bad, "no answer")
    now[0] = running._PATIENCE_S - 0.1
    made._succeeded(good, Split("d"), AttemptResult(0, 9, 9))
    made._failed("failed", bad, "no answer")
    now[0] = running._PATIENCE_S
    with pytest.raises(Refused, match=r"in\[0\]: no transaction succeeded there for 90 s, at last: no answer"):
        made._failed("failed", bad, "no answer")


def test_one_success_begins_its_patience_anew(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure now and then, for as long as it likes, ends nothing."""
    now = [0.0]
    monkeypatch.setattr(running, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    source = Source("in", "id", 0, LogOffsets(0, 9, 9))
    for _ in range(3):
        made._failed("fenced", source, "another one")
        now[0] += running._PATIENCE_S - 1
        made._succeeded(source, Split("d"), AttemptResult(0, 9, 9))
    assert made.result.fenced == 3


def test_where_the_brokers_say_no_it_ends_sooner(made: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A right that is missing does not come by waiting; one that is on its way takes a second or two."""
    now = [0.0]
    monkeypatch.setattr(running, "Deadline", lambda seconds: Deadline(seconds, lambda: now[0]))
    source = Source("in", "id", 0, LogOffsets(0, 9, 9))
    why = "Abortable: produce: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"
    made._failed("failed", source, why)
    now[0] = 9.9
    made._failed("failed", source, why)
    now[0] = 10.0
    with pytest.raises(Refused, match="for 10 s, at last: Abortable: produce"):
        made._failed("failed", source, why)
