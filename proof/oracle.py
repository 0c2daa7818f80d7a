"""
What the pipeline should have written, worked out again from the input alone.

Written independently of `pipeline/`: it shares the tables of `protocol.records` and no code. Numbers are compared as
exact decimals, since `0.1000000000000000055` and `12345678901234567890123` don't survive a float.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

import orjson

from protocol.records import DISCOUNT_FIELD, DISCOUNTS, STANDARD, TIER_FIELD, Reason

_TIERS = {tier.encode(): tier for tier in DISCOUNTS}
# What follows the input's text, up to its last brace, when the two fields are simply added.
_TAILS = {
    tier: f',"{TIER_FIELD}":"{tier}","{DISCOUNT_FIELD}":{discount}}}'.encode() for tier, discount in DISCOUNTS.items()
}

_QUOTE, _BACKSLASH = b'"\\'
_OPENING, _CLOSING = b"[{", b"]}"


@dataclass(frozen=True, slots=True)
class _Number:
    """A number by value, and unequal to every string, boolean and null."""

    value: Decimal | str


class _Unreadable(Exception):
    """Not JSON, or nested too deeply to be read here."""


def wrong_enrichment(key: bytes | None, value: bytes | None, out: bytes | None) -> str | None:
    """What is wrong with an enriched value; None when nothing is."""
    return wrong_with_tier(_TIERS.get((key or b"").partition(b"-")[0], STANDARD), value, out)


def wrong_with_tier(tier: str, value: bytes | None, out: bytes | None) -> str | None:
    """The same, for a customer whose tier is known."""
    if value is not None and out is not None and _only_appended(value, out, tier):
        return None
    if value is None or out is None:
        return f"the {'input' if value is None else 'output'} has no value, so it can't be an enriched order"
    try:
        order = _exact(value)
    except _Unreadable as error:
        return f"the input is not readable ({error}) and belongs on the dead-letter topic"
    if not isinstance(order, dict) or "customer_id" not in order:
        return "the input is not an order with a customer_id and belongs on the dead-letter topic"
    try:
        made = _exact(out)
    except _Unreadable as error:
        return f"the output is not readable JSON: {error}"
    return _difference({**order, TIER_FIELD: tier, DISCOUNT_FIELD: _Number(Decimal(str(DISCOUNTS[tier])))}, made)


def appended(key: bytes | None, value: bytes, out: bytes) -> bool:
    """Whether the output is right in the simplest way; False says nothing yet."""
    tier = _TIERS.get(key.partition(b"-")[0], STANDARD) if key is not None else STANDARD
    return _only_appended(value, out, tier)


def _only_appended(value: bytes, out: bytes, tier: str) -> bool:
    """
    Whether the output's text is the input's with the two fields behind it: the common case, and exact by itself.

    The input still has to be an object that holds a customer and none of the two fields.
    """
    if value[-1:] != b"}" or out != value[:-1] + _TAILS[tier]:
        return False
    try:
        order = orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return (
        isinstance(order, dict) and "customer_id" in order and TIER_FIELD not in order and DISCOUNT_FIELD not in order
    )


def _difference(expected: dict[str, Any], made: object) -> str | None:
    if not isinstance(made, dict):
        return "the output is not a JSON object"
    for name in sorted(expected.keys() | made.keys()):
        if name not in made:
            return f"field {name!r} is missing"
        if name not in expected:
            return f"field {name!r} was added"
        if expected[name] != made[name]:
            return f"field {name!r} is {_told(made[name])}, should be {_told(expected[name])}"
    return None


def _told(value: object) -> str:
    text = str(value.value) if isinstance(value, _Number) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a line's worth


def _exact(text: bytes) -> Any:
    try:
        if b"\\u" in text:
            # Half a surrogate pair is no character, also in a member that a later one of its name replaces.
            every = json.loads(text.decode(), parse_int=float, object_pairs_hook=list)
            json.dumps(every, ensure_ascii=False).encode()
        return json.loads(text.decode(), parse_float=_number, parse_int=_number, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(str(error)) from error


def _number(text: str) -> _Number:
    try:
        return _Number(Decimal(text))
    except InvalidOperation:
        return _Number(text)  # an exponent beyond all measure: equal text is equal value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def unjustified(reason: Reason, value: bytes | None) -> str | None:
    """Why a rejection for that reason is wrong; None when it holds, or depends on limits of the pipeline's own."""
    if reason in {Reason.TOO_LARGE, Reason.TOO_DEEP}:
        return None
    if value is None:
        return None if reason is Reason.NO_VALUE else f"rejected as {reason}, but the input has no value"
    if reason is Reason.NO_VALUE:
        return "rejected as no-value, but the input has a value"
    try:
        order = _exact(value)
    except _Unreadable:
        return None if reason is Reason.NOT_JSON else f"rejected as {reason}, but the input is not JSON"
    if reason is Reason.NOT_JSON:
        return "rejected as not-json, but the input is JSON"
    if reason is Reason.NOT_AN_OBJECT:
        return "rejected as not-an-object, but the input is one" if isinstance(order, dict) else None
    customer = order.get("customer_id") if isinstance(order, dict) else None
    return "rejected as no-customer-id, but the input names one" if isinstance(customer, str) and customer else None


def beyond(value: bytes, max_bytes: int, max_depth: int) -> Reason | None:
    """The limit that a value is over: its length first, then how deep brackets nest outside of strings."""
    if len(value) > max_bytes:
        return Reason.TOO_LARGE
    level, quoted, escaped = 0, False, False
    for byte in value:
        if quoted:
            quoted, escaped = escaped or byte != _QUOTE, not escaped and byte == _BACKSLASH
        elif byte in _OPENING:
            level += 1
            if level > max_depth:
                return Reason.TOO_DEEP
        elif byte in _CLOSING:
            level -= 1
        else:
            quoted = byte == _QUOTE
    return None
