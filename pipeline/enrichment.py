"""Enrich an order: JSON in, enriched JSON or a rejection out; numbers keep their exact value; pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b

import orjson

from brew.orders import DISCOUNT_FIELD, DISCOUNTS, STANDARD, TIER_FIELD, Reason, tier_of_key
from brew.range_transaction import Enrich
from brew.record import Reject, why_not_json
from brew.settings import Limits

# A double keeps 15 significant digits; longer runs, and exponents, may change their value in a round trip.
_KINDS = bytes.maketrans(b"0123456789.E", b"00000000000e")
_LONG_RUN = b"0" * 16
_EXPONENT = re.compile(rb"(?:\A|[:,\[])\s*-?[0-9.]+[eE]")
# Strings as in `pipeline.enrichment.depth`: an unterminated one must not be scanned again from each of its quotes.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)', re.DOTALL)


def may_round(value: bytes) -> bool:
    """Return whether a number of the text could change; translates and searches, since a regex costs 5 us."""
    kinds = value.translate(_KINDS)
    return _LONG_RUN in kinds or (b"0e" in kinds and _EXPONENT.search(value) is not None)


class NumberPlaceholders:
    """Replaces numbers outside strings with marked strings while an order is parsed, so that nothing rounds them."""

    def __init__(self, value: bytes) -> None:
        self._numbers: list[bytes] = []
        # A text can't contain its own hash, so no string of the order equals a mark.
        self._mark = f"number-{blake2b(value, digest_size=12).hexdigest()}-"
        text = _TOKEN.sub(self._swap, value)
        as_name = re.search(f'"{self._mark}[0-9]+"\\s*:'.encode(), text)
        self.text = value if as_name else text  # a bare number can't be a member's name: the parser reports it

    def _swap(self, match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            return match[0]
        self._numbers.append(match[1])
        return f'"{self._mark}{len(self._numbers) - 1}"'.encode()

    def restore(self, enriched: bytes) -> bytes:
        """Put the numbers back, with their original digits."""
        return re.sub(f'"{self._mark}([0-9]+)"'.encode(), lambda match: self._numbers[int(match[1])], enriched)


Resolver = Callable[[bytes | None, dict[str, object]], str]
"""(record key, order) -> loyalty tier; the interface for customer profiles."""


def resolve_by_key(key: bytes | None, _order: dict[str, object]) -> str:
    """Return the tier from the record key's prefix before the first `-`; the default resolver."""
    return tier_of_key(key)


def enricher(limits: Limits, resolve: Resolver = resolve_by_key) -> Enrich:
    """Return enrich(key, value) -> the enriched order's JSON, or `Reject`."""
    max_bytes, max_depth = limits.max_bytes, limits.max_depth
    loads, dumps, tail_of, reserialize = orjson.loads, orjson.dumps, _TAILS.get, _reserialized(resolve)

    def enrich(key: bytes | None, value: bytes | None) -> bytes | Reject:
        if value is None:
            return Reject(Reason.NO_VALUE, "the record has no value (a tombstone)")
        if len(value) > max_bytes:
            return Reject(Reason.TOO_LARGE, f"{len(value)} bytes, the limit is {max_bytes} (--max-record-bytes)")
        # Flat orders have no opener after the first byte; of others the openers bound the depth; the rest is measured.
        if (
            (_BRACKET in value or value.find(b"{", 1) > 0)
            and value.count(b"{") + value.count(b"[") > max_depth
            and depth(value, max_depth) > max_depth
        ):
            return Reject(Reason.TOO_DEEP, f"nested deeper than {max_depth} (--max-record-depth)")
        try:
            order = loads(value)
        except orjson.JSONDecodeError:
            return reserialize(key, value)
        # A text that a round trip reproduces byte by byte hides nothing; most texts are like that.
        if (
            type(order) is dict
            and (dumps(order) == value or _members_show(value, order))
            and TIER_FIELD not in order
            and DISCOUNT_FIELD not in order
            and order.get("customer_id") not in _MISSING_IDS
        ):
            tail = tail_of(resolve(key, order))
            if tail is not None:
                return value[:-1] + tail
        return reserialize(key, value)

    return enrich


def _reserialized(resolve: Resolver) -> Callable[[bytes | None, bytes], bytes | Reject]:
    """Return a function that parses, extends and serializes: for unusual formatting, and for orders to be rejected."""

    def enrich(key: bytes | None, value: bytes) -> bytes | Reject:
        # A number that no double holds is still a number.
        placeholders = NumberPlaceholders(value) if may_round(value) else None
        try:
            order = orjson.loads(value if placeholders is None else placeholders.text)
        except orjson.JSONDecodeError as error:
            return Reject(Reason.NOT_JSON, why_not_json(value, error))
        if type(order) is not dict:
            return Reject(Reason.NOT_AN_OBJECT, f"a JSON {type(order).__name__}, an object is needed")
        if order.get("customer_id") in _MISSING_IDS:
            return Reject(Reason.NO_CUSTOMER_ID, "the order has no customer_id")
        tier = resolve(key, order)
        order[TIER_FIELD] = tier
        order[DISCOUNT_FIELD] = DISCOUNTS.get(tier, DISCOUNTS[STANDARD])
        enriched = orjson.dumps(order)
        return enriched if placeholders is None else placeholders.restore(enriched)

    return enrich


_MISSING_IDS = (None, "")
_BRACE, _BRACKET, _LINE_FEED, _TAB, _RETURN = b"}[\n\t\r"
_TAILS = {
    tier: b"," + orjson.dumps({TIER_FIELD: tier, DISCOUNT_FIELD: discount})[1:] for tier, discount in DISCOUNTS.items()
}
"""Tier -> the bytes that replace an order's last brace."""


def _members_show(value: bytes, order: dict[str, object]) -> bool:
    """
    Return whether appending two fields to the text gives the same values as parsing, extending and serializing it. Each
    member's name is directly followed by a colon, so names can be counted in the text: if as many were parsed, no
    object has a duplicate name. Everything else in the text (spaces, escapes, long numbers) is kept.
    """
    if value[-1] != _BRACE:
        return False
    # Strings have no raw line feeds, tabs or returns, so these are between tokens, perhaps after a name. (`count` takes
    # two thirds of the time of `in` for two bytes.)
    if value.count(b'" ') or _LINE_FEED in value or _TAB in value or _RETURN in value:
        return False
    names = value.count(b'":')
    return names == len(order) or names == _members(order)


def _members(value: object) -> int:
    """Return the total number of members of all objects in it."""
    if type(value) is dict:
        return len(value) + sum(_members(member) for member in value.values())
    return sum(_members(member) for member in value) if type(value) is list else 0


# Possessive: otherwise a megabyte of \" without an end would be scanned again from each quote.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{\]}]', re.DOTALL)


def depth(value: bytes, enough: int | None = None) -> int:
    """Return how deep objects and arrays nest outside strings; stops once it is deeper than ``enough``."""
    deepest = level = 0
    for token in _TOKENS.finditer(value):
        if token[0] in {b"{", b"["}:
            level += 1
            deepest = max(deepest, level)
            if enough is not None and level > enough:
                break
        elif token[0] in {b"}", b"]"}:
            level -= 1
    return deepest
