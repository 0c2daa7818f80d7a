"""Compare the ledger with the topic it was booked from: one row per output, balances exact to the cent."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation, localcontext
from typing import Any, NamedTuple, TypeGuard

import orjson

from brew.errors import Refused
from brew.kafka.log_reader import LogRecord
from brew.names import quantity
from brew.orders import DISCOUNTS
from downstream.check import Findings, topic_snapshot
from downstream.consume.handler import LoopSettings
from downstream.postgres import Connection, DatabaseSettings, reading

_PRECISION = 400  # digits: products of the longest amounts, summed without rounding

DUPLICATE, MISSING, DRIFT, ROLLBACK = "ledger-duplicate", "ledger-missing", "ledger-drift", "ledger-rollback"

_FOREIGN = "SELECT consumer_group, topic FROM kafka_offsets WHERE (consumer_group, topic) <> (%s, %s) LIMIT 1"
_POSITIONS = "SELECT partition, next_offset, topic_id FROM kafka_offsets WHERE consumer_group = %s AND topic = %s"
_ROWS = """
SELECT "offset", customer_id, tier, cents, discount, problem IS NULL
FROM ledger_entries WHERE partition = %s ORDER BY "offset"
"""
_BALANCES = "SELECT customer_id, tier, orders, cents, discount_cents FROM ledger_balances"


_DIGITS, _LONGEST_NAME = 30, 256
_LEAST, _MOST = -(2**63), 2**64 - 1  # the whole numbers that the ledger's parser accepts as such


def require_own_tables(connection: Connection, group: str, topic: str) -> None:
    """Raise `Refused` if the tables belong to another group or topic, whose entries cannot be told apart from ours."""
    foreign = connection.execute(_FOREIGN, (group, topic)).fetchone()
    if foreign is not None:
        raise Refused(
            f"these tables are the ledger of group {foreign[0]!r} on topic {foreign[1]!r}, not of "
            f"{group!r} on {topic!r}; give this one its own tables with --schema"
        )


def require_same_topic(where: str, known: str, now: str) -> None:
    """Raise `Refused` if the position at ``where`` was stored for a topic with another id."""
    if known != now:
        raise Refused(
            f"topic-recreated: the ledger's position in {where} belongs to the topic with id {known}, but the topic "
            f"now has id {now}; book its orders with another --group and another --schema, since their offsets are "
            "those of entries that exist"
        )


class _Expected(NamedTuple):
    """The columns expected of a row; if ``books`` is False, only that it moves no balance is compared."""

    customer: str = ""
    tier: str = ""
    cents: Decimal = Decimal(0)
    rate: Decimal = Decimal(0)
    books: bool = False

    def differs(self, row: tuple[Any, ...]) -> bool:
        return row[-1] != self.books or (self.books and tuple(row) != tuple(self))


_NOTHING = _Expected()


class Money(NamedTuple):
    """Amounts of a record, or a customer's balance in one tier: orders, cents, discount in cents."""

    orders: int = 0
    cents: Decimal = Decimal(0)
    discount: Decimal = Decimal(0)

    def plus(self, other: Money) -> Money:
        return Money(self.orders + other.orders, self.cents + other.cents, self.discount + other.discount)


@dataclass
class CheckResult(Findings):
    """
    Result of the comparison; ``waiting`` records are above the ledger's position, which is not an error. ``expired``
    rows are below the log's first offset, or where compaction removed a record: their records are deleted, so only
    their sums are compared.
    """

    records: int = 0
    rows: int = 0
    expired: int = 0
    waiting: int = 0
    total: Money = field(default_factory=Money)
    booked: Money = field(default_factory=Money)

    def document(self) -> dict[str, Any]:
        return self.judged(
            records=self.records,
            rows=self.rows,
            expired_rows=self.expired,
            waiting=self.waiting,
            cents=str(self.total.cents),
            booked_cents=str(self.booked.cents),
            discount_cents=str(self.total.discount),
            booked_discount_cents=str(self.booked.discount),
        )

    def text(self) -> str:
        below = f"{quantity(self.records, 'record')} below the ledger's position"
        head = f"{below}, {quantity(self.rows, 'row')}, {quantity(self.waiting, 'record')} waiting"
        sums = f"{quantity(self.total.cents, 'cent')} in the topic, {self.booked.cents} in the balances"
        if self.expired:
            head += f"; the records of {quantity(self.expired, 'row')} are deleted, only their sums compared"
            sums = sums.replace("in the topic", "in the topic and these rows")
        return "\n".join([head, sums, *self.lines("every output one row, amounts exact to the cent")])


def check(settings: LoopSettings, database: DatabaseSettings) -> CheckResult:
    """Compare, while no ledger is running, with another parser; raises `Refused` if nothing of ours can be compared."""
    topic = topic_snapshot(settings)
    checked, balances = CheckResult(), defaultdict[tuple[str, str], Money](Money)
    with localcontext(prec=_PRECISION), reading(database, "the ledger") as connection:
        require_own_tables(connection, settings.group, settings.topic)
        positions: dict[int, int] = {}
        for partition, offset, topic_id in connection.execute(_POSITIONS, [settings.group, settings.topic]):
            require_same_topic(f"{settings.topic}[{partition}]", topic_id, topic.topic_id)
            positions[partition] = offset
        for partition, log in topic.logs.items():
            stands = positions.get(partition, log.first)
            ahead = topic.committed[partition]
            if ahead is not None and ahead.offset > stands:
                checked.found(ROLLBACK, f"partition {partition}: Kafka has {ahead.offset}, the database {stands}")
            comparison = _PartitionComparison(checked, balances, partition, stands, topic.removed(partition))
            comparison.compare(log.first, topic.records(partition), _rows(connection, partition))
        booked = {(row[0], row[1]): Money(*row[2:]) for row in connection.execute(_BALANCES)}
        for owner in sorted(booked.keys() | balances.keys()):
            has, should = booked.get(owner, Money()), balances.get(owner, Money())
            checked.booked = checked.booked.plus(has)
            if has != should:
                checked.found(DRIFT, f"balance of {owner[0]!r} ({owner[1]}): {tuple(has)} instead of {tuple(should)}")
    return checked


def _rows(connection: Connection, partition: int) -> Iterator[tuple[Any, ...]]:
    with connection.cursor(name=f"rows_{partition}") as cursor:
        cursor.itersize = 10_000
        yield from cursor.execute(_ROWS, [partition])


@dataclass
class _PartitionComparison:
    """
    Compares one partition's rows with its records, both in offset order, and adds up what they book. ``removed`` tells
    whether compaction removed an offset's record.
    """

    checked: CheckResult
    balances: dict[tuple[str, str], Money]
    partition: int
    position: int
    removed: Callable[[int], bool]
    _last_expired: int = -1

    def compare(self, first: int, records: Iterator[LogRecord], rows: Iterator[tuple[Any, ...]]) -> None:
        """Compare; the records below offset ``first`` are deleted."""
        row = next(rows, None)
        for record in records:
            offset, where = record.offset(), f"partition {self.partition} offset {record.offset()}"
            while row is not None and row[0] < offset:
                self._without_record(row, first)
                row = next(rows, None)
            rows_here = 0
            expected = _expected(record)
            while row is not None and row[0] == offset:
                rows_here += 1
                if expected.differs(row[1:]):
                    self.checked.found(DRIFT, f"{where}: the row has {row[1:]}, the record {tuple(expected)}")
                row = next(rows, None)
            self._count(offset, where, rows_here, expected)
        for left in [row, *rows] if row is not None else rows:
            self._without_record(left, first)

    def _count(self, offset: int, where: str, rows_here: int, expected: _Expected) -> None:
        checked = self.checked
        checked.rows += rows_here
        if offset >= self.position:
            checked.waiting += 1
            if rows_here:
                checked.found(DRIFT, f"{where} has a row, but the position is {self.position}")
            return
        checked.records += 1
        if rows_here != 1:
            checked.found(DUPLICATE if rows_here else MISSING, f"{where} has {quantity(rows_here, 'row')}")
        if expected.books:
            self._book(expected.customer, expected.tier, expected.cents, expected.rate)

    def _without_record(self, row: tuple[Any, ...], first: int) -> None:
        """Take a row where the log shows no record: a finding, unless retention or compaction removed the record."""
        offset, customer, tier, cents, rate, books = row
        checked, where = self.checked, f"partition {self.partition}"
        checked.rows += 1
        if offset >= first and not (offset < self.position and self.removed(offset)):
            checked.found(DRIFT, f"{where} has a row for offset {offset}, where there is no record")
            return
        checked.expired += 1
        if offset == self._last_expired:
            checked.found(DUPLICATE, f"{where} offset {offset} has more than one row")
        elif books:
            self._book(customer, tier, cents, rate)
        self._last_expired = offset

    def _book(self, customer: str, tier: str, cents: Decimal, rate: Decimal) -> None:
        money = Money(1, cents, cents * rate)
        self.balances[customer, tier] = self.balances[customer, tier].plus(money)
        self.checked.total = self.checked.total.plus(money)


def _expected(record: LogRecord) -> _Expected:
    """Return the expected row, by a different parser and within the documented limits."""
    value = record.value() or b""
    try:
        orjson.loads(value)  # what the ledger reads as JSON: without NaN, numbers beyond a double, lone surrogates
        order = json.loads(value.decode(), parse_float=_decimal, parse_int=_Integer)
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, dict):
        return _NOTHING
    customer, tier = _named(order.get("customer_id")), order.get("loyalty_tier")
    cents, rate = order.get("total_cents"), order.get("loyalty_discount")
    if not customer or not isinstance(tier, str) or tier not in DISCOUNTS or not (_sum(cents) and _sum(rate)):
        return _NOTHING
    return _Expected(customer, tier, cents, rate, books=True)


class _Integer(Decimal):
    """A number written as an integer; 1e0 and 1.5e1 are none, and name no customer."""


def _decimal(text: str) -> Decimal | None:
    """Return the number; None if its exponent is out of range for `Decimal`."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _named(value: Any) -> str | None:
    if isinstance(value, _Integer) and _LEAST <= value <= _MOST:
        return str(int(value))
    text = value.replace("\x00", "\\u0000") if isinstance(value, str) else ""
    return text if len(text) <= _LONGEST_NAME else None


def _sum(value: Any) -> TypeGuard[Decimal]:
    if not isinstance(value, Decimal):
        return False
    exponent = value.as_tuple().exponent
    return isinstance(exponent, int) and exponent >= -_DIGITS and value.adjusted() < _DIGITS
