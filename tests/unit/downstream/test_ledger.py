"""Orders as ledger entries, and where the ledger goes on; what checks of stores find."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as some

from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.fault_injection import CrashMoment, StoreCrash
from brew.offsets import SourcePosition
from downstream.check import Findings
from downstream.consume.handler import AssignedPartition, HandlerContext, NotOwned
from downstream.ledger.check import _expected
from downstream.ledger.command import OffsetRow, start
from downstream.ledger.entry import Entry, Problem, entry
from downstream.postgres import DatabaseSettings

ORDER = {"customer_id": "c-1", "order_id": "o-1", "total_cents": 980, "loyalty_tier": "gold", "loyalty_discount": 0.15}


def _seat(
    committed: int | None = None, first: int = 10, last_stable: int = 90, topic_id: str = "id"
) -> AssignedPartition:
    return AssignedPartition("t", topic_id, 3, committed, first, last_stable)


@pytest.mark.parametrize("committed", [None, 0, 20, 49, 50])
def test_kafkas_offset_never_moves_the_ledger(committed: int | None) -> None:
    """Behind the database, equal or missing: read on where the database stands, without an alarm."""
    begin = start(OffsetRow(3, 50, "id"), _seat(committed))
    assert (begin.offset, begin.alarm) == (50, None)


def test_kafka_ahead_of_the_database_is_an_alarm_and_moves_nothing_either() -> None:
    """The one case in which the larger of the two would lose rows."""
    begin = start(OffsetRow(3, 50, "id"), _seat(51))
    assert begin.offset == 50
    assert begin.alarm is not None
    assert begin.alarm.startswith("ledger-rollback: Kafka's offset of t[3] is 51 and the database stands at 50")


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (OffsetRow(3, 9, "id"), "input-lost"),
        (OffsetRow(3, 91, "id"), "offset-ahead"),
        (OffsetRow(3, 50, "other"), "topic-recreated"),
    ],
)
def test_a_position_that_is_none_of_this_log_is_refused(row: OffsetRow, name: str) -> None:
    """One offset before the log's first and one behind its end; the offsets in between are accepted."""
    with pytest.raises(Refused, match=f"^{name}: "):
        start(row, _seat())
    assert [start(OffsetRow(3, at, "id"), _seat()).offset for at in (10, 90)] == [10, 90]


def _entry(order: object, **changed: object) -> Entry:
    value = order if isinstance(order, bytes | None) else json.dumps({**ORDER, **changed}).encode()
    return entry(3, 17, value, SourcePosition("orders", 1, 5).headers())


class Value:
    """A record's value and nothing else."""

    def __init__(self, value: bytes) -> None:
        self.value = lambda: value


_TINY = "1e-99999999999999999999"


@pytest.mark.parametrize("cents", ["980", "98.5"])
@pytest.mark.parametrize(
    "change",
    [
        ("}", f', "more": {_TINY}}}'),
        ('"c-1"', str(2**64 - 1)),
        ('"c-1"', str(-(2**63))),
        ('"c-1"', str(2**64)),
        ('"c-1"', "-0"),
        ("}", ', "more": NaN}'),
        ("{", "\ufeff{"),
    ],
)
def test_the_ledger_and_its_check_read_odd_records_alike(cents: str, change: tuple[str, str]) -> None:
    """Two parsers, one answer: neither stops at a record, and the check finds no fault where there is none."""
    value = json.dumps(ORDER).replace("980", cents).replace(*change).encode()
    booked, expected = entry(3, 17, value, None), _expected(Value(value))
    assert expected.books == (booked.problem is None)
    if expected.books:
        assert tuple(expected)[:4] == (booked.customer_id, booked.tier, booked.cents, booked.discount)


def test_a_record_that_is_nested_too_deep_is_a_row_that_says_so() -> None:
    """The quick parser takes 1,024 levels and the exact one fewer: between the two lies no end of the ledger."""
    value = json.dumps({**ORDER, "total_cents": 98.5}).replace("}", ', "more": ' + "[" * 1010 + "]" * 1010 + "}")
    assert _entry(value.encode()).problem is Problem.BAD_AMOUNT


def test_an_order_becomes_a_row_with_exact_numbers() -> None:
    """Amount and discount as decimals, the source position beside them."""
    found = _entry(ORDER)
    assert found == Entry(3, 17, "orders/1/5", "o-1", "c-1", "gold", Decimal(980), Decimal("0.15"), None)


@pytest.mark.parametrize(
    ("value", "cents"),
    [
        ("0.1", Decimal("0.1")),
        ("0.10000000000000000555", Decimal("0.10000000000000000555")),
        ("123456789012345678901234567890", Decimal(123456789012345678901234567890)),
        ("1234567890123456789012345678901", None),
        ("1e30", None),
        ("-5", Decimal(-5)),
        ('"5"', None),
        ("true", None),
        ("null", None),
    ],
)
def test_an_amount_keeps_every_digit_or_is_none(value: str, cents: Decimal | None) -> None:
    """30 digits are kept, one more is no sum of money; texts and booleans are none either."""
    text = json.dumps({name: one for name, one in ORDER.items() if name != "total_cents"})
    found = _entry(f'{text[:-1]}, "total_cents": {value}}}'.encode())
    assert found.cents == cents
    assert found.problem == (None if cents is not None else Problem.BAD_AMOUNT)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"customer_id": ""}, Problem.NO_CUSTOMER),
        ({"customer_id": None}, Problem.NO_CUSTOMER),
        ({"customer_id": "c" * 256}, None),
        ({"customer_id": "c" * 257}, Problem.NO_CUSTOMER),
        ({"customer_id": 7}, None),
        ({"customer_id": {"a": 1}}, Problem.NO_CUSTOMER),
        ({"loyalty_tier": "tin"}, Problem.BAD_TIER),
        ({"loyalty_tier": ["gold"]}, Problem.BAD_TIER),
        ({"loyalty_discount": None}, Problem.BAD_AMOUNT),
    ],
)
def test_what_cannot_be_booked_says_why(changed: dict[str, object], problem: Problem | None) -> None:
    """A customer's name has 256 characters at most; the tier has to be one that exists."""
    assert _entry(ORDER, **changed).problem == problem


@given(some.binary(max_size=200) | some.none())
def test_no_record_is_an_error(value: bytes | None) -> None:
    """Whatever lies on the topic becomes a row that a database takes."""
    found = entry(0, 0, value, [("source.topic", b"\x00"), ("source.partition", b"1" * 5000), ("source.offset", b"1")])
    assert found.problem is not None
    assert not any("\x00" in text for text in found if isinstance(text, str))


def test_a_wait_longer_than_the_poll_interval_is_refused() -> None:
    """Equal is too long already; just below is accepted."""
    settings = DatabaseSettings("postgresql://h/d", "ledger", lock_s=3, statement_s=29.9, idle_s=20)
    settings.check(30)
    with pytest.raises(UsageError, match=r"--statement-timeout-s is 29\.9 s"):
        settings.check(29.9)
    with pytest.raises(UsageError, match="--schema"):
        DatabaseSettings("postgresql://h/d", "no; drop")
    assert "postgresql" not in repr(settings)


def test_a_lease_ends_with_its_deadline_or_its_partition() -> None:
    """The last good moment, the first bad one, and a partition that is not ours."""
    now = [0.0]
    context = HandlerContext(
        Deadline(10, lambda: now[0]), frozenset({3}), lambda _: None, lambda _: None, lambda _: None
    )
    now[0] = 9.9
    context.check(3)
    with pytest.raises(NotOwned, match="4"):
        context.check(4)
    now[0] = 10.0
    with pytest.raises(NotOwned, match="10 s without a poll"):
        context.check(3)


def test_crashes_are_drawn_alike_from_equal_seeds_and_never_without_a_moment() -> None:
    """About as often as the probability says."""
    drawn = [
        [StoreCrash(CrashMoment.AFTER_COMMIT, 0.3, seed).due(CrashMoment.AFTER_COMMIT) for seed in range(400)]
        for _ in range(2)
    ]
    assert drawn[0] == drawn[1]
    assert 80 < sum(drawn[0]) < 160
    assert not StoreCrash().due(CrashMoment.AFTER_COMMIT)
    assert not StoreCrash(CrashMoment.AFTER_COMMIT).due(CrashMoment.BEFORE_COMMIT)
    with pytest.raises(UsageError, match="--crash-prob"):
        StoreCrash(CrashMoment.AFTER_COMMIT, 1.1)


def test_each_name_is_counted_and_has_examples_of_its_own() -> None:
    found = Findings()
    assert (found.judged()["verdict"], found.lines("all is well")) == ("proven", ["proven: all is well"])
    for number in range(20):
        found.found("often", f"number {number}")
    found.found("once", "the only one", 7)
    told = found.judged(rows=3)
    assert (told["verdict"], told["rows"], told["findings"]) == ("violated", 3, {"often": 20, "once": 7})
    assert told["examples"] == [*(f"often: number {n}" for n in range(5)), "once: the only one"]
    assert found.lines("all is well")[-1] == "20 often, 7 once"
