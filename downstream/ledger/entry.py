"""Turn an enriched order into a ledger entry; pure. For an order that cannot be booked, the entry has the reason."""

from __future__ import annotations

import enum
import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import orjson

from brew.offsets import Headers, SourcePosition
from brew.orders import DISCOUNT_FIELD, DISCOUNTS, TIER_FIELD

_AMOUNT = "total_cents"
_MOST_DIGITS = 30
_LARGEST = 10**_MOST_DIGITS
_RATES = {rate: Decimal(str(rate)) for rate in DISCOUNTS.values()}
# A number of a field with more than 15 digits, or with an exponent: it may be rounded to the double of a known rate.
# Two different numbers with up to 15 digits have different doubles (IEEE 754).
_ROUNDED = re.compile(rb":\s*-?(?:[\d.]{17}|[\d.]+[eE])")
_MOST_CHARACTERS = 256  # PostgreSQL's index entries have at most 2,704 bytes; a longer name would stop the partition


class Problem(enum.StrEnum):
    """Why an order has a row but moves no balance."""

    UNREADABLE = "unreadable"
    NO_CUSTOMER = "no-customer"
    BAD_TIER = "bad-tier"
    BAD_AMOUNT = "bad-amount"


class Entry(NamedTuple):
    """One row: its position in the output topic, the order's source position, and its amounts in exact cents."""

    partition: int
    offset: int
    source: str | None
    order_id: str | None
    customer_id: str | None
    tier: str | None
    cents: Decimal | None
    discount: Decimal | None
    problem: Problem | None


def entry(partition: int, offset: int, value: bytes | None, headers: Headers | None) -> Entry:
    source_text = _source(headers)
    try:
        order = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        order = None
    if not isinstance(order, dict):
        return Entry(partition, offset, source_text, None, None, None, None, None, Problem.UNREADABLE)
    customer, tier = _name(order.get("customer_id")), order.get(TIER_FIELD)
    cents, discount = _numbers(order, value or b"")
    problem = None
    if not customer or len(customer) > _MOST_CHARACTERS:
        problem = Problem.NO_CUSTOMER
    elif not isinstance(tier, str) or tier not in DISCOUNTS:
        problem = Problem.BAD_TIER
    elif cents is None or discount is None:
        problem = Problem.BAD_AMOUNT
    order_id = _name(order.get("order_id"))
    return Entry(partition, offset, source_text, order_id, customer, _name(tier), cents, discount, problem)


def _source(headers: Headers | None) -> str | None:
    source = SourcePosition.of(headers)
    return None if source is None else _safe(str(source))


def _name(value: Any) -> str | None:
    """Return a string, or an integer as a string; None for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return _safe(value) if isinstance(value, str) else None


def _safe(text: str) -> str:
    """Replace U+0000, the only character that PostgreSQL's text cannot hold."""
    return text.replace("\x00", "\\u0000") if "\x00" in text else text


def _numbers(order: dict[str, Any], value: bytes) -> tuple[Decimal | None, Decimal | None]:
    """Return amount and discount, exactly as written; known rates need no second parser."""
    cents, discount = order.get(_AMOUNT), order.get(DISCOUNT_FIELD)
    rate = _RATES.get(discount) if type(discount) is float else None
    if rate is not None and type(cents) is int and -_LARGEST < cents < _LARGEST and not _ROUNDED.search(value):
        return Decimal(cents), rate
    if isinstance(cents, float) or isinstance(discount, float):
        try:
            exact = json.loads(value, parse_float=_exact, parse_int=Decimal)
        except RecursionError:  # the fast parser accepts slightly deeper nesting
            return None, None
        cents, discount = exact.get(_AMOUNT), exact.get(DISCOUNT_FIELD)
    return _number(cents), _number(discount)


def _exact(text: str) -> Decimal | None:
    """Return the number; None if its exponent is out of range for `Decimal`."""
    try:
        return Decimal(text)
    except InvalidOperation:
        return None


def _number(value: Any) -> Decimal | None:
    """Return the number; None if it is not one, or has more digits than any sum of money."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    number = Decimal(value)
    exponent = number.as_tuple().exponent
    fits = isinstance(exponent, int) and exponent >= -_MOST_DIGITS and number.adjusted() < _MOST_DIGITS
    return number if fits else None
