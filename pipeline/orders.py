"""An order in, an enriched order or a rejection out; numbers keep their exact value; pure."""

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
_EXPONENT = re.compile(rb"[:,\[]\s*-?[0-9.]+[eE]")
# Strings as in `pipeline.orders.depth`: one without an end must not be read again from each of its quotes.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*+"?|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)', re.DOTALL)


def may_round(value: bytes) -> bool:
    """True when a number of the text could change its value; a translation and two searches: a regex costs 5 us."""
    kinds = value.translate(_KINDS)
    return _LONG_RUN in kinds or (b"0e" in kinds and _EXPONENT.search(value) is not None)


class NumberPlaceholders:
    """Numbers outside of strings stand behind marked strings while the order is parsed, so that nothing rounds them."""

    def __init__(self, value: bytes) -> None:
        self._numbers: list[bytes] = []
        # A text can't hold a hash of itself, so no string of the order can pass for a mark.
        self._mark = f"number-{blake2b(value, digest_size=12).hexdigest()}-"
        text = _TOKEN.sub(self._swap, value)
        as_name = re.search(f'"{self._mark}[0-9]+"\\s*:'.encode(), text)
        self.text = value if as_name else text  # a bare number can't be a member's name: let the parser say so

    def _swap(self, match: re.Match[bytes]) -> bytes:
        if match[1] is None:
            return match[0]
        self._numbers.append(match[1])
        return f'"{self._mark}{len(self._numbers) - 1}"'.encode()

    def restore(self, enriched: bytes) -> bytes:
        """Put the numbers back, digit by digit as they came."""
        return re.sub(f'"{self._mark}([0-9]+)"'.encode(), lambda match: self._numbers[int(match[1])], enriched)


Resolver = Callable[[bytes | None, dict[str, object]], str]
"""(record key, order) -> loyalty tier; the seam for customer profiles."""


def resolve_by_key(key: bytes | None, _order: dict[str, object]) -> str:
    """The default resolver: the record key's prefix before the first `-`."""
    return tier_of_key(key)


def enricher(limits: Limits, resolve: Resolver = resolve_by_key) -> Enrich:
    """Return enrich(key, value) -> the enriched order's JSON, or `Reject`."""
    max_bytes, max_depth = limits.max_bytes, limits.max_depth
    loads, dumps, tail_of, anew = orjson.loads, orjson.dumps, _TAILS.get, _reserialized(resolve)

    def enrich(key: bytes | None, value: bytes | None) -> bytes | Reject:
        if value is None:
            return Reject(Reason.NO_VALUE, "the record has no value (a tombstone)")
        if len(value) > max_bytes:
            return Reject(Reason.TOO_LARGE, f"{len(value)} bytes, the limit is {max_bytes} (--max-record-bytes)")
        # Flat orders have no opener behind the first byte; of others the openers bound the depth; the rest is measured.
        if (
            (_BRACKET in value or value.find(b"{", 1) > 0)
            and value.count(b"{") + value.count(b"[") > max_depth
            and depth(value, max_depth) > max_depth
        ):
            return Reject(Reason.TOO_DEEP, f"nested deeper than {max_depth} (--max-record-depth)")
        try:
            order = loads(value)
        except orjson.JSONDecodeError:
            return anew(key, value)
        # What reading and writing gives back byte by byte hides nothing; most texts are written that way.
        if (
            type(order) is dict
            and (dumps(order) == value or _members_show(value, order))
            and TIER_FIELD not in order
            and DISCOUNT_FIELD not in order
            and order.get("customer_id") not in _NOBODY
        ):
            tail = tail_of(resolve(key, order))
            if tail is not None:
                return value[:-1] + tail
        return anew(key, value)

    return enrich


def _reserialized(resolve: Resolver) -> Callable[[bytes | None, bytes], bytes | Reject]:
    """Read, add, write: for what is not written the usual way, and for what is to be rejected."""

    def enrich(key: bytes | None, value: bytes) -> bytes | Reject:
        # A number that no double holds is still a number.
        shelter = NumberPlaceholders(value) if may_round(value) else None
        try:
            order = orjson.loads(value if shelter is None else shelter.text)
        except orjson.JSONDecodeError as error:
            return Reject(Reason.NOT_JSON, why_not_json(value, error))
        if type(order) is not dict:
            return Reject(Reason.NOT_AN_OBJECT, f"a JSON {type(order).__name__}, an object is needed")
        if order.get("customer_id") in _NOBODY:
            return Reject(Reason.NO_CUSTOMER_ID, "the order has no customer_id")
        tier = resolve(key, order)
        order[TIER_FIELD] = tier
        order[DISCOUNT_FIELD] = DISCOUNTS.get(tier, DISCOUNTS[STANDARD])
        enriched = orjson.dumps(order)
        return enriched if shelter is None else shelter.restore(enriched)

    return enrich


_NOBODY = (None, "")
_BRACE, _BRACKET, _LINE_FEED, _TAB, _RETURN = b"}[\n\t\r"
_TAILS = {
    tier: b"," + orjson.dumps({TIER_FIELD: tier, DISCOUNT_FIELD: discount})[1:] for tier, discount in DISCOUNTS.items()
}
"""Tier -> what stands behind an order's text instead of its last brace."""


def _members_show(value: bytes, order: dict[str, object]) -> bool:
    """
    True when two fields, put behind the text as it came, give what reading and writing would give: value by value.

    Each member's name is followed by a colon at once, so names can be counted in the text: as many as were read means
    that no object holds a name twice. What a text holds beyond that (spaces, escapes, long numbers) stays as it is.
    """
    if value[-1] != _BRACE:
        return False
    # Strings hold no raw line feeds, tabs or returns: these are there between the tokens, perhaps behind a name.
    # (`count` takes two thirds of the time that `in` does for two bytes.)
    if value.count(b'" ') or _LINE_FEED in value or _TAB in value or _RETURN in value:
        return False
    names = value.count(b'":')
    return names == len(order) or names == _members(order)


def _members(value: object) -> int:
    """How many members all objects in it hold together."""
    if type(value) is dict:
        return len(value) + sum(_members(member) for member in value.values())
    return sum(_members(member) for member in value) if type(value) is list else 0


# A string takes all it can and gives nothing back: a megabyte of \" without an end was read again from each quote on.
_TOKENS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|[\[{\]}]', re.DOTALL)


def depth(value: bytes, enough: int | None = None) -> int:
    """How deep objects and arrays nest outside of strings; looks no further once it is deeper than ``enough``."""
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
