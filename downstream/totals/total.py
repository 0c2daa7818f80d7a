"""Orders in, totals out; pure, and exact to the last digit."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation, Overflow
from typing import Any, NoReturn

from brew.errors import Refused
from brew.orders import DISCOUNT_FIELD, TIER_FIELD

CUSTOMER = "customer"
TIER = "tier"
UNREADABLE = b"unreadable"
"""The key that counts records that are not enriched orders; they belong to no customer."""

# Amounts up to 10^25 with 12 decimal places: their products, summed 10^12 times, fit into 120 digits.
_EXACT = Context(prec=120, traps=[Inexact, InvalidOperation, Overflow])
_MOST_MAGNITUDE = 24
_MOST_PLACES = 12
_NONE = Decimal(0)
_CHARACTERS = b"0123456789.- "
_LONGEST_NAME = 32_768  # characters; key and value of its result take up to 16 bytes for each, and brokers take 1 MB


@dataclass(frozen=True, slots=True)
class Total:
    """
    Number of orders, the sum of their `total_cents`, and the discount they received, in cents. ``unpriced`` orders have
    no amount that can be summed (missing, not a number, out of range); they count as orders.
    """

    orders: int = 0
    sum_cents: Decimal = _NONE
    discount_cents: Decimal = _NONE
    unpriced: int = 0

    def plus(self, other: Total) -> Total:
        return Total(
            self.orders + other.orders,
            _EXACT.add(self.sum_cents, other.sum_cents),
            _EXACT.add(self.discount_cents, other.discount_cents),
            self.unpriced + other.unpriced,
        )

    def encode(self) -> bytes:
        """Encode for deltas, changelog and state: equal totals give equal bytes."""
        return f"{self.orders} {_plain(self.sum_cents)} {_plain(self.discount_cents)} {self.unpriced}".encode()

    @classmethod
    def decode(cls, text: bytes) -> Total:
        """Decode what `encode` returned; raises `ValueError` for anything else."""
        ours = not text.translate(None, _CHARACTERS)  # Decimal reads more, such as NaN and an exponent of a billion
        try:
            orders, sum_cents, discount_cents, unpriced = text.decode().split(" ") if ours else []
            return cls(int(orders), Decimal(sum_cents), Decimal(discount_cents), int(unpriced))
        except (ValueError, InvalidOperation) as error:
            raise ValueError(f"no total: {text[:80]!r}") from error

    @classmethod
    def read(cls, where: str, text: bytes) -> Total:
        """Decode what was read from a topic; raises `Refused` if another program wrote it ``where``."""
        try:
            return cls.decode(text)
        except ValueError as error:
            raise Refused(
                f"{where} holds {error}, so this program did not write it; only its group may write there. "
                "Count again with another --group and another --output"
            ) from error

    def document(self, key: bytes) -> bytes:
        """Return the JSON for the results topic; amounts are strings, because a reader's doubles would round them."""
        kind, _, name = key.decode("utf-8", "surrogatepass").partition("/")
        return json.dumps({
            "kind": kind,
            "id": name,
            "orders": self.orders,
            "sum_cents": _plain(self.sum_cents),
            "discount_cents": _plain(self.discount_cents),
            "unpriced": self.unpriced,
        }).encode()  # fmt: skip


def _plain(number: Decimal) -> str:
    """Format without an exponent and without trailing zeros."""
    return format(number.normalize(_EXACT), "f") if number else "0"


def deltas(values: Iterable[bytes | None]) -> dict[bytes, Total]:
    """Return the deltas of these records, one per customer and tier."""
    totals: dict[bytes, Total] = {}
    for value in values:
        keys, total = of_order(value)
        for key in keys:
            before = totals.get(key)
            totals[key] = total if before is None else before.plus(total)
    return totals


def of_order(value: bytes | None) -> tuple[tuple[bytes, ...], Total]:
    """Return the keys of the totals that a record belongs to, and what it adds to each."""
    order = _parsed(value)
    if order is None:
        return (UNREADABLE,), Total(orders=1)
    customer, tier = order.get("customer_id"), order.get(TIER_FIELD)
    if customer is None or customer == "" or not isinstance(tier, str):
        return (UNREADABLE,), Total(orders=1)
    name = customer if isinstance(customer, str) else json.dumps(customer, default=str, sort_keys=True)
    if max(len(name), len(tier)) > _LONGEST_NAME:
        return (UNREADABLE,), Total(orders=1)
    keys = (f"{CUSTOMER}/{name}".encode("utf-8", "surrogatepass"), f"{TIER}/{tier}".encode("utf-8", "surrogatepass"))
    amount, rate = _number(order.get("total_cents")), _number(order.get(DISCOUNT_FIELD))
    if amount is None or rate is None:
        return keys, Total(orders=1, unpriced=1)
    return keys, Total(1, amount, _EXACT.multiply(amount, rate))


def _parsed(value: bytes | None) -> dict[str, Any] | None:
    """Return the record's object; None if it holds anything else."""
    if value is None:
        return None
    try:
        order = _DECODER.decode(value.decode())
    except (ValueError, RecursionError, InvalidOperation):
        return None
    return order if isinstance(order, dict) else None


def _refuse(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(parse_float=Decimal, parse_constant=_refuse)


def _number(value: object) -> Decimal | None:
    """Return an amount within bounds: adding an exponent of a billion would take gigabytes."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    number = Decimal(value)
    if not number:
        return _NONE
    exponent = number.as_tuple().exponent
    if not isinstance(exponent, int) or exponent < -_MOST_PLACES or number.adjusted() > _MOST_MAGNITUDE:
        return None
    return number
