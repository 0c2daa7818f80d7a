"""Ledger and receivers: guards of positions, and what their checks find on each side of a border; no servers."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, cast

import pytest

from brew.deadline import Deadline
from brew.offsets import SourcePosition
from downstream.consume.handler import AssignedPartition, HandlerContext, NotOwned, PartitionBatch, RetryLater
from downstream.ledger import check as ledger_check
from downstream.ledger.check import Money
from downstream.ledger.command import Ledger, OffsetRow
from downstream.receive import check as receive_check
from downstream.receive.receiver import Message, Receiver, ReceiverSettings, identifier, messages, points_grant


class Record:
    """As much of a record as is looked at here."""

    def __init__(self, offset: int, value: bytes = b"{}", source: int | None = None) -> None:
        headers = None if source is None else list(SourcePosition("in", 0, source).headers())
        self.offset, self.value, self.headers = (lambda: offset), (lambda: value), (lambda: headers)
        self.partition = lambda: 3


# The ledger's two guards.


def piece(start: int = 50, until: int = 60) -> PartitionBatch:
    return PartitionBatch(3, start, until, [])


@pytest.mark.parametrize(("stands", "free"), [(49, False), (50, True), (51, False), (None, False)])
def test_a_batch_is_booked_where_the_database_stands_exactly_at_its_start(stands: int | None, free: bool) -> None:
    """Behind it something is missing, ahead of it something would be booked twice."""
    rows = {} if stands is None else {3: OffsetRow(3, stands, "id")}
    if free:
        Ledger("g", "t").require(rows, [piece()])
    else:
        with pytest.raises(RetryLater, match="another was here"):
            Ledger("g", "t").require(rows, [piece()])


@pytest.mark.parametrize(("moved", "free"), [(0, False), (1, False), (2, True)])
def test_every_position_of_a_batch_moves_or_none_does(moved: int, free: bool) -> None:
    """The statement tells how many stood where their slices begin."""

    class Connection:
        def execute(self, *_statement: object) -> Any:
            return type("Result", (), {"rowcount": moved})

    ledger, slices = Ledger("g", "t"), [piece(), PartitionBatch(4, 0, 1, [])]
    if free:
        ledger.advance(cast("Any", Connection()), slices)
    else:
        with pytest.raises(RetryLater, match=f"{2 - moved} of 2 positions"):
            ledger.advance(cast("Any", Connection()), slices)


# The ledger's check.

ORDER = {"customer_id": "c", "loyalty_tier": "gold", "total_cents": 100, "loyalty_discount": 0.5}


def booked(offset: int, cents: int = 100, *, books: bool = True) -> tuple[Any, ...]:
    return (offset, "c", "gold", Decimal(cents), Decimal("0.5"), books)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([0, 1, 2], {}),
        ([0, 2], {"ledger-missing": 1}),
        ([0, 1, 1, 2], {"ledger-duplicate": 1}),
        ([0, 1, 2, 3], {"ledger-drift": 1}),
        ([0, 1], {"ledger-missing": 1}),
        ([0, 1, 2, 4], {"ledger-drift": 1}),
        ([-1, 0, 1, 2], {"ledger-drift": 1}),
    ],
)
def test_the_ledger_has_one_row_for_each_record_below_its_position(rows: list[int], found: dict[str, int]) -> None:
    """The position is 3: record 2 has a row, record 3 has none, and no row is without a record."""
    checked, balances = ledger_check.CheckResult(), defaultdict[tuple[str, str], Money](Money)
    records = [Record(n, json.dumps(ORDER).encode()) for n in range(4)]
    ledger_check._compare(checked, balances, 3, 3, iter(cast("Any", records)), iter([booked(n) for n in rows]))
    assert dict(checked.findings) == found
    assert (checked.records, checked.waiting, checked.rows) == (3, 1, len(rows))
    assert balances == {("c", "gold"): Money(3, Decimal(300), Decimal("150.0"))}


@pytest.mark.parametrize("row", [booked(0, 101), booked(0, books=False)])
def test_a_row_that_differs_from_its_record_is_found(row: tuple[Any, ...]) -> None:
    checked, balances = ledger_check.CheckResult(), defaultdict[tuple[str, str], Money](Money)
    records = [Record(0, json.dumps(ORDER).encode())]
    ledger_check._compare(checked, balances, 3, 1, iter(cast("Any", records)), iter([row]))
    assert dict(checked.findings) == {"ledger-drift": 1}


def test_a_row_that_moves_a_balance_for_a_record_that_is_no_order_is_found() -> None:
    checked, balances = ledger_check.CheckResult(), defaultdict[tuple[str, str], Money](Money)
    ledger_check._compare(checked, balances, 3, 1, iter(cast("Any", [Record(0)])), iter([booked(0)]))
    assert dict(checked.findings) == {"ledger-drift": 1}
    assert balances == {}


# The receivers' check.


@pytest.mark.parametrize(
    ("count", "below", "found"),
    [
        (0, True, {"receiver-lost": 1}),
        (1, True, {}),
        (2, True, {"receiver-duplicate": 1}),
        (4, True, {"receiver-duplicate": 3}),
        (0, False, {}),
        (1, False, {}),
        (2, False, {"receiver-duplicate": 1}),
    ],
)
def test_a_message_has_one_effect_and_above_the_position_one_at_most(
    count: int, below: bool, found: dict[str, int]
) -> None:
    checked = receive_check.CheckResult()
    receive_check._judge(checked, "m", count, below=below)
    assert dict(checked.findings) == found
    assert (checked.effects, checked.duplicates) == (count, max(0, count - 1))


@pytest.mark.parametrize(
    ("points", "found"),
    [
        ({"a": 3}, {}),
        ({"a": 4}, {"receiver-duplicate": 1}),
        ({"a": 2}, {"receiver-lost": 1}),
        ({}, {"receiver-lost": 1}),
        ({"a": 3, "b": 1}, {"receiver-duplicate": 1}),
    ],
)
def test_points_are_compared_from_either_side(points: dict[str, int], found: dict[str, int]) -> None:
    """Too many, too few, none, and a customer of whom no message tells."""
    checked = receive_check.CheckResult()
    receive_check._compare_points(checked, [("a", 1), ("a", 2)], points)
    assert Counter(checked.findings) == Counter(found)


# What a receiver is given.


def test_of_several_records_with_one_id_the_first_counts() -> None:
    """Also where they stand in different partitions; a record without an id is known by its own place."""
    records = [Record(0, b'{"quantity":2,"customer_id":"c"}', 7), Record(1, b"{}", 7), Record(2), Record(3)]
    found = messages("t", cast("Any", records), identifier("source"))
    assert [one.message_id for one in found] == ["in/0/7", "@t/3/2", "@t/3/3"]
    assert found[0].points == 2


@pytest.mark.parametrize(("length", "whole"), [(254, True), (255, False)])
def test_an_id_that_an_index_can_not_take_is_known_by_its_digest(length: int, whole: bool) -> None:
    """`f:` and 254 characters make 256, one more is one too many."""
    record = Record(0, json.dumps({"f": "x" * length}).encode())
    [found] = messages("t", cast("Any", [record]), identifier("field:f"))
    assert (found.message_id == "f:" + "x" * length) is whole


@pytest.mark.parametrize(
    ("cups", "points"), [(1, 1), (0, 0), (-1, 0), (2**31 - 1, 2**31 - 1), (2**31, 0), (True, 0), ("2", 0), (None, 0)]
)
def test_a_gift_is_a_number_that_a_database_takes(cups: object, points: int) -> None:
    gift = points_grant(json.dumps({"customer_id": "c", "quantity": cups}).encode())
    assert (gift.customer, gift.points, gift.refused == "") == ("c", points, points > 0)


@pytest.mark.parametrize(("length", "named"), [(0, False), (1, True), (256, True), (257, False)])
def test_a_customers_name_has_its_limits(length: int, named: bool) -> None:
    assert (points_grant(json.dumps({"customer_id": "c" * length}).encode())[0] != "-") is named


class Claiming(Receiver):
    """Knows the ids that it was given; ``away`` says that its store is."""

    def __init__(self, *, again: bool = False) -> None:
        super().__init__(ReceiverSettings("g", "t", identifier("source"), again=again))
        self.known: set[str] = set()
        self.away = False

    def claim(self, found: Sequence[Message], context: HandlerContext) -> int:  # noqa: ARG002
        if self.away:
            raise RetryLater("the store is away", 0.1)
        fresh = {one.message_id for one in found} - self.known
        self.known |= fresh
        return len(fresh)


def leased(heard: list[Mapping[int, int]], partitions: Iterable[int] = (3,)) -> HandlerContext:
    return HandlerContext(Deadline(10), frozenset(partitions), lambda _: None, lambda _: None, heard.append)


def test_a_position_is_told_behind_the_effects_and_not_when_they_failed() -> None:
    """The round is done again; what is redelivered counts as repeated and has no second effect."""
    receiver, heard = Claiming(), list[Mapping[int, int]]()
    batch = [PartitionBatch(3, 0, 2, cast("Any", [Record(0, source=0), Record(1, source=1)]))]
    receiver.away = True
    with pytest.raises(RetryLater):
        receiver.handle(batch, leased(heard))
    assert (heard, receiver.received.messages) == ([], 0)
    receiver.away = False
    for _ in range(2):
        receiver.handle(batch, leased(heard))
    assert heard == [{3: 2}, {3: 2}]
    assert (receiver.received.messages, receiver.received.effects, receiver.received.repeated) == (4, 2, 2)


def test_nothing_is_claimed_of_a_partition_that_is_not_ours_any_more() -> None:
    """One of two was revoked: the batch has no effect at all."""
    receiver, heard = Claiming(), list[Mapping[int, int]]()
    batch = [
        PartitionBatch(3, 0, 1, cast("Any", [Record(0, source=0)])),
        PartitionBatch(4, 0, 1, cast("Any", [Record(0, source=1)])),
    ]
    with pytest.raises(NotOwned):
        receiver.handle(batch, leased(heard))
    assert (heard, receiver.known) == ([], set())


@pytest.mark.parametrize(("again", "starts"), [(True, [10, 20, 20]), (False, [20, 20, 20])])
def test_all_is_read_again_once_and_not_with_every_assignment(again: bool, starts: list[int]) -> None:
    """A rebalance gives the partition back: it goes on at the group's offset."""
    receiver = Claiming(again=again)
    assignment = AssignedPartition("t", "id", 3, committed=20, first=10, last_stable=90)
    assert [receiver.assigned([assignment], Deadline(10))[3] for _ in range(3)] == starts
