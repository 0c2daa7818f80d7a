"""Totals: exact sums, encodings, stores, and round after round what an attempt leaves behind."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from harness.fakes import Broker, FakeTransaction
from harness.records import FakeRecord as Record
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Fatal, Fenced, Refused
from brew.kafka.topics import Topic, TopicSpec
from brew.names import CrashPoint
from brew.offsets import Committed, LogOffsets
from downstream.totals import command, stages, state_store, topics
from downstream.totals import run as running
from downstream.totals.run import Run
from downstream.totals.stages import BY_KEY, Aggregate, AttemptResult, Output, Source, Split, add, advance
from downstream.totals.state_store import CHECKPOINT_KEY, MemoryStore, RocksStore, Store, StoreCheckpoint
from downstream.totals.topics import Position, Topics, TotalsSettings, position
from downstream.totals.total import UNREADABLE, Total, deltas, of_order

NOWHERE: Any = "a client"
SETTINGS = TotalsSettings(Connection("nowhere"), "g", "in", "out")
EMPTY = SimpleNamespace(offset=0)

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
    total = deltas([order("c", "gold", "0.1", "1")] * 10)[b"customer/c"]
    assert total.encode() == b"10 1 1 0"
    shown = {"kind": "customer", "id": "c", "orders": 10, "sum_cents": "1", "discount_cents": "1", "unpriced": 0}
    assert json.loads(total.document(b"customer/c")) == shown
    assert Total(1, unpriced=1).plus(Total(1, unpriced=2)) == Total(2, unpriced=3)


UNPRICED = ['"980"', "null", "true", "[1]", "1e999999999", "1e25", "0.0000000000001", "-1e26"]


@pytest.mark.parametrize("cents", ["1e24", "0.000000000001", *UNPRICED])
def test_an_amount_beyond_25_digits_and_12_behind_the_point_counts_as_unpriced(cents: str) -> None:
    """The order counts, its amount does not; a giant exponent costs no memory."""
    keys, total = of_order(order("c", "gold", cents, "1"))
    assert keys == (b"customer/c", b"tier/gold")
    assert total == (Total(1, unpriced=1) if cents in UNPRICED else Total(1, Decimal(cents), Decimal(cents)))


@pytest.mark.parametrize(
    "value",
    [None, b"", b"no json", b"[]", b"\xff", b'{"customer_id":"c"}', b'{"loyalty_tier":"gold"}', b"NaN", b"[" * 100_000,
     b'{"customer_id":"","loyalty_tier":"gold"}', b'{"customer_id":' + b"9" * 5000 + b',"loyalty_tier":"gold"}',
     order("c" * 32_769, "gold", "1", "1"), order("c", "g" * 32_769, "1", "1")],
)  # fmt: skip
def test_what_is_no_enriched_order_is_counted_apart(value: bytes | None) -> None:
    """Nor is one with a name so long that no broker takes its total: no later order was counted."""
    assert of_order(value) == ((UNREADABLE,), Total(orders=1))
    assert len(of_order(order("c" * 32_768, "g" * 32_768, "1", "1"))[0]) == 2


NAMED = '{"a": "2.50", "b": 1}'


@pytest.mark.parametrize(
    ("customer", "tier", "keys", "shown"),
    [
        (b"7", b"gold", (b"customer/7", b"tier/gold"), "7"),
        (b'{"b":1,"a":2.50}', b"\\ud800", (b"customer/" + NAMED.encode(), b"tier/\xed\xa0\x80"), NAMED),
        (b'"\\ud800/x"', b"gold", (b"customer/\xed\xa0\x80/x", b"tier/gold"), "\ud800/x"),
    ],
)
def test_customers_need_not_be_texts(customer: bytes, tier: bytes, keys: tuple[bytes, ...], shown: str) -> None:
    """Whatever JSON the order has: a structure has one name however it is written, and strange letters survive."""
    total_keys, total = of_order(b'{"customer_id":%b,"loyalty_tier":"%b"}' % (customer, tier))
    assert (total_keys, json.loads(total.document(total_keys[0]))["id"]) == (keys, shown)


def test_a_total_is_written_with_all_its_digits_and_read_back_whole() -> None:
    """No exponent, no rounding, no zero with a sign: equal totals give equal bytes."""
    total = Total(3, Decimal("1000000000000000000000000.000000000001"), Decimal("-1e2"), 2)
    assert total.encode() == b"3 1000000000000000000000000.000000000001 -100 2"
    assert Total.decode(total.encode()) == total
    assert of_order(order("c", "gold", "-5", "0"))[1].encode() == b"1 -5 0 0"


@pytest.mark.parametrize("text", [b"", b"1 2 3", b"1  2 3 4", b"1 x 3 4", b"1.5 2 3 4", b"x" * 81, b"1 NaN 3 4",
                                  b"1 2E+9 3 4", b"\xff 2 3 4"])  # fmt: skip
def test_what_is_no_total_is_refused(text: bytes) -> None:
    """The message shows how it begins. NaN can't be summed, and a giant exponent would take gigabytes."""
    with pytest.raises(ValueError, match=f"^no total: {re.escape(repr(text[:80]))}$"):
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


@pytest.mark.parametrize(
    ("killed", "topic", "wiped"), [(False, "topic", False), (True, "topic", True), (False, "another", True)]
)
def test_only_a_state_that_was_closed_in_good_order_is_there_again(
    tmp_path: Path, *, killed: bool, topic: str, wiped: bool
) -> None:
    """Without the mark nothing is believed; a topic that was made again has another id."""
    store = RocksStore(tmp_path, "topic")
    store.write({b"a": b"1"}, StoreCheckpoint(5, 9, 1))
    store.close()
    store = RocksStore(tmp_path, "topic")
    assert not RocksStore.trusted(tmp_path, "topic"), "a kill leaves no mark of an earlier close"
    store.close()
    if killed:
        (tmp_path / "clean").unlink()
    assert RocksStore.trusted(tmp_path, topic) is not wiped
    again = RocksStore(tmp_path, topic)
    kept = (None, [None]) if wiped else (StoreCheckpoint(5, 9, 1), [b"1"])
    assert (again.wiped, again.checkpoint, again.get([b"a"])) == (wiped, *kept)
    again.close()


def test_a_state_that_could_not_be_written_out_has_no_mark(tmp_path: Path, run: Run) -> None:
    """As on a full disk: what is in its files is not what was committed. Other states are closed all the same."""
    store, other = RocksStore(tmp_path, "topic"), Mock()
    run._stores = {0: other, 1: store, 2: other}
    full = Mock(side_effect=Exception("IO error: No space left on device"))
    database, store._db = store._db, Mock(flush=full, write=full)
    for use in (run.close_stores, lambda: store.write({}, StoreCheckpoint(5, 9, 1))):
        with pytest.raises(Refused, match=r"can't be written: IO error: No space left .*; free .* --state-dir, then"):
            use()
    assert other.close.call_count == 2
    database.close()
    assert (RocksStore.trusted(tmp_path, "topic"), store.checkpoint) == (False, None)


def test_a_state_with_damaged_files_is_wiped_although_it_was_closed_in_good_order(tmp_path: Path) -> None:
    """The changelog contains everything: the next restore puts it back."""
    store = RocksStore(tmp_path, "topic")
    store.write({b"a": b"1"}, StoreCheckpoint(5, 9, 1))
    store.close()
    for table in (tmp_path / "db").glob("*.sst"):
        table.write_bytes(b"damaged")
    again = RocksStore(tmp_path, "topic")
    assert (again.wiped, again.checkpoint, again.get([b"a"])) == (True, None, [None])
    again.close()


def test_two_processes_can_not_have_one_state(tmp_path: Path) -> None:
    store = RocksStore(tmp_path, "topic")
    store.write({b"a": b"1"}, StoreCheckpoint(5, 9, 1))
    with pytest.raises(Refused, match="--state-dir"):
        RocksStore(tmp_path, "topic")
    assert store.get([b"a"]) == [b"1"]
    store.close()


# Positions.

LOG = LogOffsets(first=3, last_stable=20, end=20)


def test_a_position_goes_on_where_it_was_committed() -> None:
    assert position("t[0]", "id", None, LOG) == Position(3, 3)
    for committed in (Position(7, 1), Position(3, 1)):
        assert position("t[0]", "id", Committed(committed.offset, committed.metadata("id")), LOG) == committed


@pytest.mark.parametrize(
    ("committed", "named"),
    [
        (Committed(7, ""), "position-moved"),
        (Committed(7, "topic-id=id"), "position-moved"),
        (Committed(7, Position(7, 1).metadata("older")), "topic-recreated: .* in the topic with the id older;"),
        (Committed(2, Position(2, 1).metadata("id")), "range-lost: (?=.*, and give the topic a longer retention$)"),
    ],
)
def test_a_position_that_would_miscount_is_refused_by_name(committed: Committed, named: str) -> None:
    with pytest.raises(Refused, match=f"^{named}.*another --group and another --output"):
        position("t[0]", "id", committed, LOG)


COUNTED = topics.Topics(*(Topic(name, f"id of {name}".replace(" ", "-"), 2, 1) for name in ("in", "d", "c", "out")))


@pytest.mark.parametrize(
    ("topic", "changes", "named"),
    [
        ("input", {"topic_id": "new"}, r"topic-recreated: in has the id new, .* id id-of-in; .*another --group"),
        ("deltas", {"partitions": 4}, r"partitions-changed: g\.deltas has 4 partitions, .* with 2: .*another --output"),
        ("output", {"topic_id": "new"}, r"results-elsewhere: .* the id id-of-out, but out has the id new, .*--output"),
    ],
)
def test_totals_that_were_counted_with_other_topics_are_refused_at_the_start(
    topic: str, changes: dict[str, Any], named: str
) -> None:
    """A customer's total began at nothing in another partition; another --output got only what changed since."""
    layout = Position(7, 1).metadata("id", COUNTED.layout)
    known = [None, Committed(7, "by hand"), Committed(7, Position(7, 1).metadata("id")), Committed(7, layout)]
    topics.require_same_layout(SETTINGS, COUNTED, known)
    assert position("t[0]", "id", known[-1], LOG) == Position(7, 1)
    with pytest.raises(Refused, match=f"^{named}"):
        topics.require_same_layout(
            SETTINGS, COUNTED._replace(**{topic: replace(getattr(COUNTED, topic), **changes)}), known
        )


@pytest.mark.parametrize(
    ("topic", "changes", "named"),
    [
        ("deltas", {"partitions": 3}, "partitions-changed: d has 3 partitions, and totals were counted with 2:"),
        ("changelog", {"topic_id": "new"}, "topic-recreated: c had the id id-of-c at the start, and has new now"),
        ("output", {"topic_id": "new"}, "topic-recreated: out had"),
        ("input", {"topic_id": "new"}, "topic-recreated: in had"),
    ],
)
def test_topics_that_change_while_it_runs_end_the_run_before_the_next_transaction(
    run: Run, monkeypatch: pytest.MonkeyPatch, topic: str, changes: dict[str, Any], named: str
) -> None:
    """Producers send to new partitions at once: a key's deltas went where its total was not, or to nobody."""
    run._topics, run._admin, run._asking = COUNTED, Mock(), Mock()
    monkeypatch.setattr(running, "committed", lambda *_: {0: None})
    logs_of(monkeypatch, running, log(8))
    now = {topic: replace(getattr(COUNTED, topic), **changes)}
    monkeypatch.setattr(running, "describe", lambda *_: {changed.name: changed for changed in now.values()})
    pool = Mock()
    with pytest.raises(Refused, match=f"^{named}"):
        run._round(running._Stage(COUNTED.input, {0: split()}), pool)
    pool.submit.assert_not_called()
    now.clear()
    assert run._round(running._Stage(COUNTED.input, {0: split()}), pool) == 1


def test_a_position_at_the_end_of_its_log_is_within_it_and_one_behind_is_not() -> None:
    topics.require_within("t[0]", 20, LOG)
    with pytest.raises(Refused, match=r"^offset-ahead: the group is at 21 of t\[0\], whose last stable offset is 20: "):
        topics.require_within("t[0]", 21, LOG)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moment, which the tests set."""
    moment = [0.0]
    monkeypatch.setattr(running, "Deadline", lambda seconds: Deadline(seconds, lambda: moment[0]))
    return moment


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(running, "_PAUSE_S", 0)
    return Run(SETTINGS, lambda _partition, _topic: MemoryStore(), threading.Event())


def test_a_partition_that_only_fails_ends_the_run_although_others_go_on(run: Run, now: list[float]) -> None:
    """With one patience for all, the success of any partition would hide that nothing of this one is counted."""
    bad, good = (Source("in", "id", p, LogOffsets(0, 9, 9)) for p in (0, 1))
    run._failed("failed", bad, "no answer")
    now[0] = running._PATIENCE_S - 0.1
    run._succeeded(good, split(), AttemptResult(0, 9, 9))
    run._failed("failed", bad, "no answer")
    now[0] = running._PATIENCE_S
    with pytest.raises(Refused, match=r"in\[0\]: no transaction succeeded there for 90 s, at last: no answer"):
        run._failed("failed", bad, "no answer")


def test_a_client_that_lost_the_brokers_is_replaced_for_the_work_on_each_partition_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would fail for ever there, and end the run after its patience, while the rounds go on with the new client."""
    clients, asked = iter(["the first client", "the second client"]), list[object]()

    def offsets(client: object, *_: object) -> dict[int, LogOffsets]:
        asked.append(client)
        return {0: LogOffsets(0, 5, 5)}

    monkeypatch.setattr(running, "admin", lambda _connection: next(clients))
    monkeypatch.setattr(running, "consumer", lambda *_: Mock())
    monkeypatch.setattr(running, "is_cut_off", lambda *_: True)
    monkeypatch.setattr(stages, "log_offsets", offsets)
    run._open_clients()
    described = [Topic(name, "id", 1, 1) for name in NAMES]
    _, second = run._stages(topics.Topics(*described))
    run._stores[0].write({}, StoreCheckpoint(2, 0, 0))
    run._replace_if_cut_off()
    assert second.tasks[0].ready(2, fresh=False) is None
    assert asked == ["the second client"]


@pytest.mark.parametrize("committed", [Committed(9, "topic-id=id began=0"), None])
def test_a_log_that_ends_before_the_groups_offset_is_refused_once_it_stays_so(
    run: Run, now: list[float], monkeypatch: pytest.MonkeyPatch, committed: Committed | None
) -> None:
    """A recreated or truncated input: the run called itself drained, and counted only what came behind the offset."""
    run._admin, run._asking = Mock(), Mock()
    monkeypatch.setattr(running, "committed", lambda *_: {0: committed})
    logs_of(monkeypatch, running, log(8))
    stage, pool = running._Stage(Topic("in", "id", 1, 1), {0: split()}, {0: 9}), Mock()
    assert run._round(stage, pool) == 1
    now[0] = running._AHEAD_S
    with pytest.raises(Refused, match=r"^offset-ahead: the group is at 9 of in\[0\], whose .* is 8: "):
        run._round(stage, pool)
    logs_of(monkeypatch, running, log(9))
    assert run._round(stage, pool) == 0
    assert not run._give_up
    assert not run._ahead
    pool.submit.assert_not_called()


def test_a_drain_goes_on_with_what_became_visible_behind_the_last_round(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the deltas of the first stage's last transaction: their markers come after its answer."""
    run._admin = Mock()
    for end, drained in ((9, True), (10, False)):
        logs_of(monkeypatch, state_store, log(end))
        assert run._drained(running._Stage(Topic("d", "id", 1, 1), {0: split()}, {0: 9})) is drained


def test_one_success_begins_its_patience_anew_and_a_missing_right_ends_it_sooner(run: Run, now: list[float]) -> None:
    """A right that is missing does not come by waiting; one that is on its way takes a second or two."""
    for _ in range(3):
        run._failed("fenced", SOURCE, "another one")
        now[0] += running._PATIENCE_S - 1
        run._succeeded(SOURCE, split(), AttemptResult(0, 9, 9))
    assert run.result.fenced == 3
    why, began = "Abortable: produce: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)", now[0]
    for after in (0.0, 9.9):
        now[0] = began + after
        run._failed("failed", SOURCE, why)
    now[0] = began + 10.1
    with pytest.raises(Refused, match="for 10 s, at last: Abortable: produce"):
        run._failed("failed", SOURCE, why)


def test_a_failure_that_lasts_is_told_every_ten_seconds_and_another_one_at_once(run: Run, now: list[float]) -> None:
    """Three lines a second for each partition hid everything else."""
    told: list[tuple[float, str]] = []
    run._tell = lambda text: told.append((now[0], text))
    other = Source("in", "id", 1, LogOffsets(0, 9, 9))
    for now[0] in (0.0, 0.3, 9.9, 10.0, 10.3):
        run._failed("failed", SOURCE, "no answer")
    run._failed("failed", SOURCE, "cut off")
    run._failed("failed", other, "cut off")
    again = "failed, will try again"
    assert told == [
        (0.0, f"{SOURCE}: {again}: no answer"),
        (10.0, f"{SOURCE}: {again}: no answer"),
        (10.3, f"{SOURCE}: {again}: cut off"),
        (10.3, f"in[1]: {again}: cut off"),
    ]


def test_a_denial_before_an_outage_does_not_shorten_its_patience(run: Run, now: list[float]) -> None:
    """The first failure decided how long all of them were waited for."""
    run._failed("failed", SOURCE, "produce: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)")
    for now[0] in (20.0, 89.9):
        run._failed("failed", SOURCE, "no answer")
    now[0] = 90.0
    with pytest.raises(Refused, match="for 90 s, at last: no answer"):
        run._failed("failed", SOURCE, "no answer")


def test_a_log_that_came_back_leaves_its_partition_the_whole_patience(
    run: Run, now: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One failure ended the run, because the log had ended before the group's offset for a moment earlier."""
    run._admin, run._asking = Mock(), Mock()
    monkeypatch.setattr(running, "committed", lambda *_: {0: Committed(9, "topic-id=id began=0")})
    logs_of(monkeypatch, running, log(8))
    stage = running._Stage(Topic("in", "id", 1, 1), {0: split()}, {0: 9})
    run._round(stage, Mock())
    now[0] = running._AHEAD_S + 1
    logs_of(monkeypatch, running, log(10))
    monkeypatch.setattr(run, "_check_topics", Mock())
    run._round(stage, Mock())
    run._failed("failed", Source("in", "id", 0, LogOffsets(0, 10, 10)), "no answer")


ORDER = b'{"customer_id":"c","loyalty_tier":"gold","total_cents":100,"loyalty_discount":0.5}'
ONE = Total(1).encode()


def logs_of(monkeypatch: pytest.MonkeyPatch, module: Any, *answers: LogOffsets) -> list[LogOffsets]:
    """The brokers answer these one after another, the last one for ever; returns what is left of them."""
    left = list(answers)

    def answer(_client: object, _topic: str, partitions: Iterable[int], _deadline: Deadline) -> dict[int, LogOffsets]:
        now = left.pop(0) if len(left) > 1 else left[0]
        return dict.fromkeys(partitions, now)

    monkeypatch.setattr(module, "log_offsets", answer)
    return left


def log(last_stable: int, end: int | None = None, first: int = 0) -> LogOffsets:
    return LogOffsets(first, last_stable, last_stable if end is None else end)


def counts(outputs: Iterable[Output]) -> dict[bytes, int]:
    """Key -> orders, of one topic's outputs."""
    return {one.key: Total.decode(one.value).orders for one in outputs if one.key != CHECKPOINT_KEY}


@pytest.mark.parametrize("how", ["ready", "dropped", "committed"])
def test_orders_that_a_round_took_are_gone_when_the_next_one_begins(how: str) -> None:
    """An attempt may end while it reads, without a word to the work: only the next one's beginning tells."""
    splitting = split()
    splitting.ready(0, fresh=False)
    splitting.take([Record(0, b"k", ORDER)])
    splitting.ready(0, fresh=False) if how == "ready" else getattr(splitting, how)()
    splitting.take([Record(0, b"k", ORDER)])
    sums = [one for one in splitting.outputs(1) if one.topic == SETTINGS.deltas]
    assert {one.partition for one in sums} == {BY_KEY}
    assert counts(sums) == {b"customer/c": 1, b"tier/gold": 1}


def test_the_first_transaction_of_an_input_partition_notes_in_the_changelog_that_it_is_counted() -> None:
    """Once in the life of a process, and again if it was not committed."""
    splitting = split()
    noted = Output(SETTINGS.changelog, 1, state_store.input_key(4), b"7 an id")
    assert list(splitting.outputs(7)) == [noted]
    splitting.dropped()
    assert list(splitting.outputs(7)) == [noted]
    splitting.committed()
    assert list(splitting.outputs(9)) == []


@pytest.mark.parametrize(
    ("noted", "contradiction"),
    [
        ([], None),
        (
            [b"5 an id", b"7 an id"],
            r"^offsets-vanished: group 'g' has no committed offset in in\[4\], but .* below 7 at least",
        ),
        ([b"7 older", b"9 older"], r"^topic-recreated: in\[4\] has the id an id, but .* with the id older"),
    ],
)
def test_a_partition_that_was_counted_and_has_no_offset_any_more_is_not_counted_from_the_start(
    monkeypatch: pytest.MonkeyPatch, noted: list[bytes], contradiction: str | None
) -> None:
    """Brokers delete an offset seven days after its last commit; the orders would be counted twice."""
    written = [Record(0, b"a", ONE), Record(1, state_store.input_key(5), b"8 an id")]
    written += [Record(2 + n, state_store.input_key(4), value) for n, value in enumerate(noted)]
    asked = list[Any]()

    def scan(connection: object, topic: str, ranges: object, isolation: str, *, group: str) -> Iterator[list[Record]]:
        assert connection is SETTINGS.connection
        asked.append((topic, ranges, isolation, group))
        yield written

    def log_offsets(given: object, _topic: str, partitions: Iterable[int], _until: Deadline) -> dict[int, LogOffsets]:
        assert given is client()
        return dict.fromkeys(partitions, log(9, first=2))

    monkeypatch.setattr(state_store, "scan", scan)
    monkeypatch.setattr(state_store, "log_offsets", log_offsets)
    said = split().ready(0, fresh=True)
    assert asked == [("g.changelog", {1: (2, 9)}, "read_committed", "g")]
    assert said is None if contradiction is None else re.search(contradiction, said or "")
    assert split().ready(0, fresh=False) is None
    assert len(asked) == 1


def client() -> Any:
    return NOWHERE


def split() -> Split:
    """The work on partition 4; the changelog has three partitions."""
    return Split(SETTINGS, client, Topic("in", "an id", 9, 1), 4, 3)


def aggregate(store: MemoryStore) -> Aggregate:
    return Aggregate(SETTINGS, client, 0, store)


def own(outputs: Iterable[Output]) -> dict[bytes, int]:
    return counts(one for one in outputs if one.topic == SETTINGS.changelog)


def produced(adding: Aggregate, start: int, *keys: bytes, fresh: bool = False) -> list[Output]:
    """What a round from this offset on writes, with a delta of one order for each key."""
    assert adding.ready(start, fresh=fresh) is None
    adding.take([Record(offset, key, ONE) for offset, key in enumerate(keys, start)])
    return list(adding.outputs(start + len(keys)))


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Two deltas are in it, and its changelog has five records, and more at each look."""
    logs_of(monkeypatch, stages, *map(log, range(5, 500, 5)))
    store = MemoryStore()
    store.write({b"a": Total(2).encode()}, StoreCheckpoint(2, 0, 1))
    return store


@pytest.mark.parametrize("how", ["ready", "dropped"])
def test_deltas_that_a_round_took_are_added_once(store: MemoryStore, how: str) -> None:
    """The round began again after its reading broke off: what it had taken is read, and taken, again."""
    adding = aggregate(store)
    assert adding.ready(2, fresh=False) is None
    adding.take([Record(2, b"a", ONE), Record(3, b"b", ONE)])
    if how == "dropped":
        adding.dropped()
    assert own(produced(adding, 2, b"a")) == {b"a": 3}
    adding.committed()
    assert dict(store.items()) == {b"a": Total(3).encode()}


def test_a_commit_that_failed_changes_neither_the_store_nor_the_next_one(store: MemoryStore) -> None:
    """The next one may be cut shorter; its changes begin from the store, and the keys are counted from there."""
    adding = aggregate(store)
    for _ in range(2):
        outputs = produced(adding, 2, b"a", b"b")
        assert own(outputs) == {b"a": 3, b"b": 1}
        assert outputs[-1].value == state_store.checkpoint_value(4, 2)
        adding.dropped()
    assert store.get([b"a", b"b"]) == [Total(2).encode(), None]
    assert (store.checkpoint.until, store.checkpoint.keys) == (2, 1)
    for start in (2, 3):
        assert own(produced(adding, start, b"a")) == {b"a": start + 1}
        adding.committed()
        assert dict(store.items()) == {b"a": Total(start + 1).encode()}
        assert (store.checkpoint.until, store.checkpoint.keys) == (start + 1, 1)


@pytest.mark.parametrize(("until", "restored"), [(1, True), (2, False), (3, True)])
def test_a_store_that_stands_elsewhere_is_restored_and_one_that_is_ahead_from_nothing(
    monkeypatch: pytest.MonkeyPatch, until: int, restored: bool
) -> None:
    logs_of(monkeypatch, stages, log(5))
    began: list[StoreCheckpoint | None] = []

    def restoring(*where: Any) -> int:
        assert where[:3] == (SETTINGS, NOWHERE, 0)
        began.append(where[3].checkpoint)
        where[3].write({}, StoreCheckpoint(2, 5, 0))
        return records

    monkeypatch.setattr(stages, "restore", restoring)
    restores: list[tuple[int, int, float]] = []
    for records in (0, 1):
        store = MemoryStore()
        began.clear()
        restores.clear()
        store.write({b"a": ONE}, StoreCheckpoint(until, 1, 1))
        adding = Aggregate(SETTINGS, client, 0, store, lambda *given: restores.append(given))
        assert adding.ready(2, fresh=False) is None
        assert [one[:2] for one in restores] == ([(0, 1)] if restored and records else [])
        assert all(0 <= seconds < 10 for *_, seconds in restores)
    assert began == ([None if until > 2 else StoreCheckpoint(until, 1, 1)] if restored else [])
    assert (b"a" in dict(store.items())) == (until <= 2)


@pytest.mark.parametrize("changelog_holds", [None, 1, 3])
def test_a_changelog_that_stands_elsewhere_than_the_group_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch, changelog_holds: int | None
) -> None:
    """Less or more than the committed offset, or nothing: deltas would be left out or counted twice."""
    logs_of(monkeypatch, stages, log(5))

    def restoring(*where: Any) -> int:
        if changelog_holds is not None:
            where[3].write({}, StoreCheckpoint(changelog_holds, 5, 0))
        return 1

    monkeypatch.setattr(stages, "restore", restoring)
    contradiction = aggregate(MemoryStore()).ready(2, fresh=False)
    holds = "nothing" if changelog_holds is None else f"the deltas below {changelog_holds}"
    stands = f"position-moved: g.changelog[0] holds {holds}, and the group stands at"
    assert str(contradiction).startswith(f"{stands} 2 of g.deltas[0]")
    if changelog_holds is not None:
        assert str(aggregate(MemoryStore()).ready(0, fresh=True)).startswith(f"{stands} no offset of g.deltas[0]")


def test_the_first_transaction_of_all_begins_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the log's beginning, and not behind it, where retention took deltas before they were added."""
    lost = Aggregate(SETTINGS, client, 2, MemoryStore()).ready(1, fresh=True)
    assert str(lost).startswith("range-lost: g.deltas[2] begins at 1")
    monkeypatch.setattr(stages, "restore", lambda *_where: 0)
    store = MemoryStore()
    adding = aggregate(store)
    assert produced(adding, 0, b"a", b"b", fresh=True)[-1].value == state_store.checkpoint_value(2, 2)
    adding.committed()
    assert store.checkpoint == StoreCheckpoint(2, 4, 2), "two totals, the checkpoint and a marker"


def test_the_end_is_asked_of_brokers_with_each_transaction(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a transaction's time; a commit adds what it wrote: a total, the checkpoint and a marker."""
    calls, ends = list[tuple[Any, ...]](), [log(4), log(5, 8), log(11)]
    monkeypatch.setattr(stages, "log_offsets", lambda *given: calls.append(given) or {0: ends[len(calls) - 1]})
    adding = aggregate(store)
    for start, end in enumerate((7, 11, 14), 2):
        produced(adding, start, b"a")
        adding.committed()
        assert store.checkpoint == StoreCheckpoint(start + 1, end, 1)
    for client, topic, partitions, deadline in calls:
        assert (client, topic, partitions, deadline.budget_s) == (NOWHERE, "g.changelog", [0], 30.0)


def test_a_broker_that_does_not_know_a_new_topic_yet_is_asked_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The very first start ended with "Unknown topic or partition", on several brokers under load."""
    refusals = [KafkaError.UNKNOWN_TOPIC_OR_PART]

    def list_offsets(asked: Iterable[Any], **_options: Any) -> dict[Any, Any]:
        answer = Future[Any]()
        answer.set_exception(KafkaException(KafkaError(refusals.pop()))) if refusals else answer.set_result(EMPTY)
        return dict.fromkeys(asked, answer)

    monkeypatch.setattr(running, "scan", lambda *_args, **_more: iter(()))
    new = Topics(*(Topic(name, "id", 2, 1) for name in ("in", "g.deltas", "g.changelog", "out")))
    run._admin = Mock(list_offsets=list_offsets)
    run._require_own_results(new)
    refusals.append(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(Fatal, match=r"offsets of g\.changelog: .*TOPIC_AUTHORIZATION_FAILED"):
        run._require_own_results(new)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_changelog_that_lost_its_tail_is_refused_before_anything_is_written_behind_it(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch, *, restarted: bool
) -> None:
    """After one more transaction it held the group's offset again, and older sums: the next restore took them."""
    monkeypatch.setattr(stages, "_CUT_S", 0.01)
    monkeypatch.setattr(stages, "_PAUSE_S", 0.0)
    logs_of(monkeypatch, stages, log(5), log(7), log(8), log(10))
    adding = aggregate(store)
    produced(adding, 2, b"a")
    adding.committed()
    assert adding.ready(3, fresh=False) is None, "a broker that has lost its leadership may know less for a moment"
    logs_of(monkeypatch, stages, log(7))
    adding = aggregate(store) if restarted else adding
    cut = "changelog-damaged: g.changelog[0] ends at 7, but this program wrote it up to 8: "
    assert str(adding.ready(3, fresh=False)).startswith(cut)


def test_a_total_goes_into_state_and_results_and_the_state_says_up_to_where_it_holds(store: MemoryStore) -> None:
    assert produced(aggregate(store), 2, b"tier/gold") == [
        Output("g.changelog", 0, b"tier/gold", ONE),
        Output("out", 0, b"tier/gold", Total(1).document(b"tier/gold")),
        Output("g.changelog", 0, CHECKPOINT_KEY, state_store.checkpoint_value(3, 2)),
    ]


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [(None, ONE, "lacks key or value"), (b"k", None, "lacks key or value"), (b"k", b"{}", r"holds no total: b'\{\}'")],
)
def test_a_delta_that_this_program_did_not_write_is_refused(
    store: MemoryStore, key: bytes | None, value: bytes | None, problem: str
) -> None:
    with pytest.raises(Refused, match=rf"^foreign-delta: g\.deltas\[0\] offset 7 {problem}, so this program did not"):
        aggregate(store).take([Record(7, key, value)])


def test_a_state_that_this_program_did_not_write_is_refused(store: MemoryStore) -> None:
    """As the changelog gave it: another program wrote there."""
    store.write({b"a": b"{}"}, StoreCheckpoint(2, 2, 2))
    with pytest.raises(Refused, match=r"^changelog-damaged: g\.changelog\[0\] holds no total: b'\{\}', so this"):
        produced(aggregate(store), 2, b"a")
    with pytest.raises(Refused, match=r"^changelog-damaged: the changelog has b'9 x' in place of a checkpoint"):
        state_store.parse_checkpoint(b"9 x")


def test_the_end_of_the_changelog_is_believed_after_a_commit(store: MemoryStore) -> None:
    """What is seen before it may hold what a newer holder has added: a restore from there reads too little."""
    adding = aggregate(store)
    for _ in range(2):
        produced(adding, 2, b"a")
        assert store.checkpoint == StoreCheckpoint(2, 0, 1)
    adding.committed()
    assert store.checkpoint == StoreCheckpoint(3, 10 + 3, 1)


def test_an_end_counts_once_no_transaction_is_open_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look sees an open one; its records, and where it ends, are known at the second."""
    monkeypatch.setattr(state_store, "_PAUSE_S", 0.0)
    left = logs_of(monkeypatch, state_store, log(3, 8), log(7, 8), log(9, 9), log(99, 99))
    assert state_store.wait_until_stable(NOWHERE, "t", [0], Deadline(10)) == {0: log(9)}
    assert left == [log(99)]
    logs_of(monkeypatch, state_store, log(3, 6), log(6))
    assert command._ends(NOWHERE, Topic("c", "id", 1, 1)) == {0: (0, 6)}, "a recomputation waits, too"
    logs_of(monkeypatch, state_store, log(3, 8))
    with pytest.raises(DeadlineExceeded, match=r"t\[1\] has an open transaction from offset 3 on"):
        state_store.wait_until_stable(NOWHERE, "t", [1], Deadline(0.001))


def restored(
    monkeypatch: pytest.MonkeyPatch, store: Store, records: list[Record], *seen: LogOffsets, interrupted: bool = False
) -> Any:
    """Restore from these records; return how many were read, and the ranges asked for."""
    read: list[tuple[int, int]] = []

    class Reader:
        def __init__(self, *_where: object) -> None: ...

        def read(self, start: int, until: int, *_how: object) -> Iterator[list[Record]]:
            read.append((start, until))
            inside = [one for one in records if start <= one.offset() < until]
            if inside:
                yield inside
            if interrupted:
                raise DeadlineExceeded("read of c[0]")

        def close(self) -> None: ...

    monkeypatch.setattr(state_store, "_PAUSE_S", 0.0)
    monkeypatch.setattr(state_store, "RangeReader", Reader)
    logs_of(monkeypatch, state_store, *seen)
    stop = threading.Event()
    return state_store.restore(SETTINGS, NOWHERE, 0, store, stop), read


def test_a_restore_reads_to_the_end_of_what_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last transaction's markers are still on their way when it looks first."""
    written = ((0, b"a", ONE), (1, CHECKPOINT_KEY, b"1 1"), (3, b"b", ONE), (4, CHECKPOINT_KEY, b"2 2"))
    records, store = [Record(*one) for one in written], MemoryStore()
    assert restored(monkeypatch, store, records, log(1, 3), log(6)) == (4, [(0, 6)])
    assert (store.checkpoint, dict(store.items())) == (StoreCheckpoint(2, 5, 2), {b"a": ONE, b"b": ONE})


@pytest.mark.parametrize(
    ("known", "first", "start", "kept"),
    [(1, 1, 1, True), (1, 2, 2, False), (6, 0, 6, True), (7, 0, 0, False)],
    ids=["first", "gone", "end", "beyond"],
)
def test_a_restore_begins_where_the_store_stands_while_the_log_holds_that(
    monkeypatch: pytest.MonkeyPatch, known: int, first: int, start: int, kept: bool
) -> None:
    """One before the log's first offset, or one behind its end, is another log's."""
    store = MemoryStore()
    store.write({b"a": ONE}, StoreCheckpoint(1, known, 1))
    _, read = restored(monkeypatch, store, [Record(5, CHECKPOINT_KEY, b"9 %d" % kept)], log(6, first=first))
    assert (read, dict(store.items())) == ([(start, 6)], {b"a": ONE} if kept else {})


def test_a_signal_ends_a_restore(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    """A process that is killed while it restores leaves a state without a mark, and the next one begins anew."""
    asked: list[Any] = []
    run._admin = NOWHERE
    monkeypatch.setattr(stages, "restore", lambda *given: asked.extend(given))
    run._stages(COUNTED)[1].tasks[0]._restore()
    assert run._stop in asked
    read: list[Any] = []
    reader = Mock(return_value=Mock(read=lambda *given: read.extend(given) or []))
    monkeypatch.setattr(state_store, "RangeReader", reader)
    logs_of(monkeypatch, state_store, log(0))
    state_store.restore(SETTINGS, NOWHERE, 0, MemoryStore(), run._stop)
    assert run._stop in read


def test_a_restore_takes_only_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the changelog notes of the input is no state, least of all in a changelog that has nothing else yet."""
    store, noted = MemoryStore(), Record(0, state_store.input_key(0), b"7 an id")
    assert restored(monkeypatch, store, [noted], log(2))[0] == 0
    assert store.checkpoint is None
    records = [noted, Record(2, b"a", ONE), Record(3, CHECKPOINT_KEY, b"1 1")]
    assert restored(monkeypatch, store, records, log(5))[0] == 2
    assert (store.checkpoint, dict(store.items())) == (StoreCheckpoint(1, 4, 1), {b"a": ONE})


def test_a_changelog_that_lost_a_total_is_refused_and_what_it_gave_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    store, damaged = MemoryStore(), [Record(0, b"a", ONE), Record(1, CHECKPOINT_KEY, b"1 2")]
    with pytest.raises(Refused, match=r"changelog-damaged: g.changelog\[0\] has 1 totals, but .* left 2"):
        restored(monkeypatch, store, damaged, log(2))
    assert (store.checkpoint, list(store.items())) == (None, [])


def test_an_interrupted_restore_compares_the_number_of_totals_when_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted behind the last record, a state without a lost total was at the group's offset, and believed."""
    store, damaged = MemoryStore(), [Record(0, b"a", ONE), Record(1, CHECKPOINT_KEY, b"1 2")]
    with pytest.raises(DeadlineExceeded):
        restored(monkeypatch, store, damaged, log(3), interrupted=True)
    assert store.checkpoint == StoreCheckpoint(-1, 1, 1)
    with pytest.raises(Refused, match=r"changelog-damaged: g.changelog\[0\] has 1 totals, but .* left 2"):
        restored(monkeypatch, store, damaged, log(3))


# One attempt: its transaction, and what its work hears of it.

SOURCE = Source("in", "id", 4, LogOffsets(3, 9, 9))


class Task:
    """Keeps what it was told, and has four records to write."""

    def __init__(self, contradiction: str | None = None, before_it: Any = lambda: None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self._contradiction, self._before_it = contradiction, before_it

    def ready(self, position: int, *, fresh: bool) -> str | None:
        self.calls.append(("ready", position, fresh))
        self._before_it()
        return self._contradiction

    def take(self, records: Any) -> None:
        self.calls.append(("take", [one.offset() for one in records]))

    def outputs(self, until: int) -> Iterator[Output]:
        self.calls.append(("outputs", until))
        return (Output("d", BY_KEY if n else 7, b"k%d" % n, b"v%d" % n) for n in range(4))

    def committed(self) -> None:
        self.calls.append(("committed",))

    def dropped(self) -> None:
        self.calls.append(("dropped",))


class Timed(FakeTransaction):
    """Keeps the time that each step was given, and what it maps errors under."""

    def __init__(self, broker: Broker, fail: Any = None, *, queue: int = 1) -> None:
        super().__init__(broker, fail, queue=queue)
        self.given: dict[str, float] = {}
        self.mapping: set[str] = set()
        for step in ("fence", "locate", "make_room", "flush", "send_offsets", "commit"):
            setattr(self, step, self._noting(step, getattr(self, step)))

    def _noting(self, step: str, call: Any) -> Any:
        def noted(*given: Any) -> Any:
            self.given[step] = given[-1].budget_s
            return call(*given)

        return noted

    def mapped(self, step: str) -> Any:
        self.mapping.add(step)
        return super().mapped(step)


def reading(*ranges: tuple[int, int]) -> Any:
    """A reader that gives two batches of these ranges, and of no others."""
    left = list(ranges)

    def read(start: int, until: int) -> Iterator[list[Record]]:
        assert left.pop(0) == (start, until)
        middle = until - 1
        yield [Record(offset, b"k", ORDER) for offset in range(start, middle)]
        yield [Record(middle, b"k", ORDER)]

    return read


def attempt(task: Task, kafka: FakeTransaction, until: int, read: Any = None, crash: Any = None) -> AttemptResult:
    return advance(SOURCE, until, task, read or reading(), kafka, 30.0, crash)


def test_an_attempt_commits_the_offset_behind_what_it_read_and_tells_its_work_afterwards() -> None:
    broker, task = Broker(), Task()
    kafka = Timed(broker)
    assert attempt(task, kafka, 6, reading((3, 6))) == AttemptResult(3, 6, 3)
    written = [("d", BY_KEY if n else 7, b"k%d" % n, b"v%d" % n) for n in range(4)]
    assert [(one.topic, one.partition, one.key, one.value) for one in broker.visible()] == written
    assert broker.committed == Committed(6, "topic-id=id began=3")
    assert task.calls == [("ready", 3, True), ("take", [3, 4]), ("take", [5]), ("outputs", 6), ("committed",)]
    assert (set(kafka.given.values()), len(kafka.given), kafka.mapping) == ({30.0}, 6, {"produce"})
    again = Task()
    assert attempt(again, Timed(broker), 8, reading((6, 8))) == AttemptResult(6, 8, 2)
    assert (again.calls[0], broker.committed) == (("ready", 6, False), Committed(8, "topic-id=id began=3"))
    advance(replace(SOURCE, layout="outputs=4"), 9, Task(), reading((8, 9)), Timed(broker), 30.0)
    assert broker.committed == Committed(9, "topic-id=id began=3 outputs=4")


@pytest.mark.parametrize("until", [5, 6])
def test_an_attempt_behind_what_was_committed_reads_and_writes_nothing(until: int) -> None:
    broker, task = Broker(committed=Committed(6, "topic-id=id began=3")), Task()
    assert attempt(task, FakeTransaction(broker), until) == AttemptResult(6, 6, 0)
    assert (task.calls, broker.log) == ([("ready", 6, False)], [])


@pytest.mark.parametrize("step", ["fence", "locate", "begin", "produce", "flush", "send-offsets", "commit"])
def test_the_work_of_an_attempt_that_failed_is_dropped(step: str) -> None:
    """Also where a commit may have been applied: the next attempt's locate tells."""
    broker, task = Broker(), Task()
    with pytest.raises(Fatal, match="gone"):
        attempt(task, FakeTransaction(broker, (step, Fatal("gone"))), 6, reading((3, 6)))
    assert (task.calls[-1], ("committed",) in task.calls, broker.visible()) == (("dropped",), False, [])


def test_a_contradiction_counts_only_while_the_offset_stays_and_an_untrusted_position_names_its_partition() -> None:
    broker = Broker(committed=Committed(6, "topic-id=id began=3"))
    kafka = Timed(broker)
    with pytest.raises(Refused, match=r"^it stands elsewhere$"):
        attempt(Task("it stands elsewhere"), kafka, 8)
    assert kafka.given["locate"] == 30.0

    def another_process_commits() -> None:
        broker.committed = Committed(7, "topic-id=id began=3")

    with pytest.raises(Fenced, match=r"^in\[4\]: another process continued"):
        attempt(Task("it stands elsewhere", another_process_commits), FakeTransaction(broker), 8)
    broker = Broker(committed=Committed(6, "topic-id=other began=3"))
    with pytest.raises(Refused, match=r"topic-recreated: in\[4\] has the id id"):
        attempt(Task(), FakeTransaction(broker), 8)


def test_a_crash_may_strike_at_each_point_and_half_way_with_half_of_the_records_out() -> None:
    broker, crashes = Broker(), list[tuple[CrashPoint, int, int]]()

    def at(point: CrashPoint, topic: str, transaction: Any) -> None:
        assert topic == "in"
        crashes.append((point, len(transaction.broker.log), len(transaction.broker.visible())))

    attempt(Task(), Timed(broker), 6, reading((3, 6)), SimpleNamespace(at=at))
    assert crashes == [
        (CrashPoint.AFTER_FENCE, 0, 0),
        (CrashPoint.MID_PRODUCE, 2, 0),
        (CrashPoint.AFTER_FLUSH, 4, 0),
        (CrashPoint.AFTER_SEND_OFFSETS, 4, 0),
        (CrashPoint.COMMIT_IN_FLIGHT, 4, 0),
        (CrashPoint.AFTER_COMMIT, 4, 4),
        (CrashPoint.BEFORE_REPORT, 4, 4),
    ]


# Topics.


class FakeTopics:
    """The brokers' topics; keeps what was asked, and what was created."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, partitions: dict[str, int]) -> None:
        self.partitions = partitions
        self.created: list[TopicSpec] = []
        self.deadline = Deadline(5)
        monkeypatch.setattr(topics.topics, "describe", self._describe)
        monkeypatch.setattr(topics.topics, "describe_all", self._describe)
        monkeypatch.setattr(topics.topics, "create", self._create)

    def _describe(self, client: object, names: list[str], deadline: Deadline) -> dict[str, Topic]:
        assert (client, deadline) == (NOWHERE, self.deadline)
        return {n: Topic(n, f"id of {n}", self.partitions[n], 1) for n in names if n in self.partitions}

    def _create(self, client: object, wanted: list[TopicSpec], deadline: Deadline) -> None:
        assert (client, deadline) == (NOWHERE, self.deadline)
        self.created += wanted
        self.partitions |= {one.name: one.partitions for one in wanted}

    def names(self, call: str) -> list[str] | None:
        """The topics that `found` or `ensured` returns."""
        found = getattr(topics, call)(NOWHERE, SETTINGS, self.deadline)
        return found and [one.name for one in (found.input, found.deltas, found.changelog, found.output)]


NAMES = ["in", "g.deltas", "g.changelog", "out"]


def test_missing_topics_are_made_with_the_inputs_partitions_and_compacted(monkeypatch: pytest.MonkeyPatch) -> None:
    described = FakeTopics(monkeypatch, {"in": 5, "out": 5})
    assert described.names("found") is None
    assert described.names("ensured") == NAMES
    compacted = {"cleanup.policy": "compact"}
    assert described.created == [TopicSpec("g.deltas", 5, {}), TopicSpec("g.changelog", 5, compacted)]
    assert described.names("found") == described.names("ensured") == NAMES
    assert len(described.created) == 2
    del described.partitions["out"]
    assert described.names("found") is None
    assert described.names("ensured") == NAMES
    assert described.created[2:] == [TopicSpec("out", 5, compacted)]


@pytest.mark.parametrize("call", ["found", "ensured"])
def test_topics_whose_partitions_differ_are_refused_with_their_numbers(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """The input may have another number: its keys are counted elsewhere."""
    described = FakeTopics(monkeypatch, {"in": 9, "out": 3, "g.deltas": 3, "g.changelog": 2})
    differences = r"^partitions-differ: g\.deltas has 3, g\.changelog has 2, out has 3; .*another --output$"
    with pytest.raises(Refused, match=differences):
        described.names(call)
    described.partitions["g.changelog"] = 3
    assert described.names(call) == NAMES


# The comparison.

TWO_ORDERS = [order("a", "gold", "100", "0.15"), order("b", "gold", "50", "0.15")]
TWO_SUMS = dict[bytes, Total]()
add(TWO_SUMS, deltas(TWO_ORDERS))


class Counted:
    """What a comparison reads: two orders, counted up to 2, whose deltas are added up to 4; each field may differ."""

    settings = SETTINGS

    def __init__(self, **differs: Any) -> None:
        self.values = {0: {key: total.encode() for key, total in TWO_SUMS.items()} | differs.get("changelog", {})}
        self.found = {key: total.document(key) for key, total in TWO_SUMS.items()} | differs.get("results", {})
        self.standings, self.began = {0: differs.get("until", 4)}, differs.get("began", 0)
        self.pending, self.looks = differs.get("pending", []), iter(differs.get("looks", [4, 4]))

    def offsets(self, topic: Topic) -> Any:
        at = Position(2, self.began) if topic.name == "in" else Position(next(self.looks), 0)
        return command._StageOffsets({0: at}, {0: LogOffsets(0, 9, 9)})

    def changelog(self) -> Any:
        return self.values, self.standings

    def results(self) -> dict[bytes, bytes]:
        return self.found

    def records(self, topic: str, ranges: dict[int, tuple[int, int]]) -> Iterator[Record]:
        if topic == "in":
            assert ranges == {0: (self.began, 2)}
            return (Record(offset, b"k", value) for offset, value in enumerate(TWO_ORDERS))
        assert ranges == {0: (4, 9)}
        return (Record(4, key, total.encode()) for key, total in self.pending)


OTHER = Total(1, Decimal(1))
GOLD_TIER = b"tier/gold"


@pytest.mark.parametrize(
    ("differs", "where"),
    [
        ({}, []),
        ({"changelog": {GOLD_TIER: OTHER.encode()}}, ["recomputation", "results"]),
        ({"results": {GOLD_TIER: OTHER.document(GOLD_TIER)}}, ["results"]),
        ({"results": {b"tier/tin": OTHER.document(b"tier/tin")}}, ["results"]),
        ({"until": 3}, ["changelog"]),
        ({"pending": [(GOLD_TIER, OTHER)]}, ["recomputation"]),
    ],
)
def test_each_copy_of_the_totals_is_compared(
    differs: dict[str, Any], where: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changelog, results, the group's offset, and deltas that are not added yet."""
    compared = _compared(Counted(**differs), monkeypatch)
    assert ([one.where for one in compared.first], compared.equal) == (where, not where)
    assert (compared.orders, compared.pending_deltas) == (2, len(differs.get("pending", [])))


def _compared(counted: Counted, monkeypatch: pytest.MonkeyPatch, home: Path | None = None) -> command.Comparison:
    known = topics.Topics(*(Topic(name, "id", 1, 1) for name in ("in", SETTINGS.deltas, SETTINGS.changelog, "out")))
    for name in ("reach", "admin", "wait_until_stable"):
        monkeypatch.setattr(command, name, Mock())
    monkeypatch.setattr(command, "found", lambda *_: known)
    monkeypatch.setattr(command, "_Reading", lambda *_: counted)
    return command.recompute(SETTINGS, home)


@pytest.mark.parametrize(("until", "spoilt", "where"), [(4, False, []), (4, True, ["state"]), (3, True, [])])
def test_a_state_is_compared_if_it_was_closed_at_the_changelogs_place(
    until: int, spoilt: bool, where: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One from elsewhere is restored before it is used, as the comparison says."""
    store = RocksStore(tmp_path / "0", "id")
    store.write({key: total.encode() for key, total in TWO_SUMS.items()}, StoreCheckpoint(until, 9, len(TWO_SUMS)))
    if spoilt:
        store.write({GOLD_TIER: OTHER.encode()}, StoreCheckpoint(until, 9, len(TWO_SUMS)))
    store.close()
    compared = _compared(Counted(), monkeypatch, tmp_path)
    assert [one.where.split()[0] for one in compared.first] == where
    assert len(compared.notes) == (until != 4)


@pytest.mark.parametrize(
    ("differs", "why"), [({"looks": [4, 5]}, "is counting during the comparison"), ({"began": -1}, "^range-lost: ")]
)
def test_totals_that_can_not_be_compared_are_refused(
    differs: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program counts meanwhile, or retention deleted orders that were counted."""
    with pytest.raises(Refused, match=why):
        _compared(Counted(**differs), monkeypatch)
