"""Turn one order into an enriched order, or say why it can't be one; pure: values in, values out."""

from __future__ import annotations

import re
from collections.abc import Callable
from hashlib import blake2b

import orjson

from pipeline.settings import Limits
from protocol.records import DISCOUNT_FIELD, DISCOUNTS, STANDARD, TIER_FIELD, Reason, Rejected, tier_of_key

Resolver = Callable[[bytes | None, dict[str, object]], str]
"""(record key, order) -> loyalty tier; the seam for customer profiles."""


def resolve_by_key(key: bytes | None, _order: dict[str, object]) -> str:
    """The default resolver: the record key's prefix before the first `-`."""
    return tier_of_key(key)


def enricher(
    limits: Limits, resolve: Resolver = resolve_by_key
) -> Callable[[bytes | None, bytes | None], bytes | Rejected]:
    """Return enrich(key, value) -> the enriched order's JSON, or `Rejected`."""
    max_bytes, max_depth = limits.max_bytes, limits.max_depth
    short = 2 * max_depth
    loads, dumps = orjson.loads, orjson.dumps
    discount_of, no_discount = DISCOUNTS.get, DISCOUNTS[STANDARD]

    def enrich(key: bytes | None, value: bytes | None) -> bytes | Rejected:
        if value is None:
            return Rejected(Reason.NO_VALUE, "the record has no value (a tombstone)")
        if len(value) > max_bytes:
            return Rejected(Reason.TOO_LARGE, f"{len(value)} bytes, the limit is {max_bytes} (--max-record-bytes)")
        # Too short to nest so deep and close again; then counting openers bounds the depth; only the rest is measured.
        if len(value) > short and value.count(b"{") + value.count(b"[") > max_depth and depth(value) > max_depth:
            return Rejected(Reason.TOO_DEEP, f"nested deeper than {max_depth} (--max-record-depth)")
        shelter = _Shelter(value) if _may_round(value) else None
        try:
            order = loads(value if shelter is None else shelter.text)
        except orjson.JSONDecodeError as error:
            return Rejected(Reason.NOT_JSON, f"not JSON: {error}")
        if type(order) is not dict:
            return Rejected(Reason.NOT_AN_OBJECT, f"a JSON {type(order).__name__}, an object is needed")
        customer = order.get("customer_id")
        if customer is None or customer == "":
            return Rejected(Reason.NO_CUSTOMER_ID, "the order has no customer_id")
        tier = resolve(key, order)
        order[TIER_FIELD] = tier
        order[DISCOUNT_FIELD] = discount_of(tier, no_discount)
        return dumps(order) if shelter is None else shelter.restore(dumps(order))

    return enrich


# A double keeps 15 significant digits; longer runs, and exponents, may change their value in a round trip.
_KINDS = bytes.maketrans(b"0123456789.E", b"00000000000e")
_LONG_RUN = b"0" * 16
_EXPONENT = re.compile(rb"[:,\[]\s*-?[0-9.]+[eE]")
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)', re.DOTALL)


def _may_round(value: bytes) -> bool:
    """True when a number of the text could change its value; a translation and two searches: a regex costs 5 us."""
    kinds = value.translate(_KINDS)
    return _LONG_RUN in kinds or (b"0e" in kinds and _EXPONENT.search(value) is not None)


class _Shelter:
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


def depth(value: bytes) -> int:
    """How deep objects and arrays nest outside of strings."""
    deepest = level = 0
    for token in re.finditer(rb'"(?:[^"\\]|\\.)*"|[\[{\]}]', value, re.DOTALL):
        if token[0] in {b"{", b"["}:
            level += 1
            deepest = max(deepest, level)
        elif token[0] in {b"}", b"]"}:
            level -= 1
    return deepest
