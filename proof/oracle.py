"""
Compute what the pipeline should have written, from input and profiles alone; pure.

It shares the tables of `brew.orders`, but no code. Numbers are compared as exact decimals, because a float can't
represent `0.1000000000000000055`. If compaction has removed the profile that an output names, its tier can't be
checked.
"""

from __future__ import annotations

import json
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import orjson

from brew.names import quantity
from brew.offsets import LogOffsets
from brew.orders import (
    CUSTOMER_FIELD,
    DISCOUNT_FIELD,
    DISCOUNTS,
    NO_PROFILE,
    PROFILE_OFFSET,
    PROFILE_TIER_FIELD,
    STANDARD,
    TIER_FIELD,
    Reason,
)

_ORACLE_TIERS = {tier.encode(): tier for tier in DISCOUNTS}
# What replaces the input's last brace when the two fields are simply appended.
_TAILS = {
    tier: f',"{TIER_FIELD}":"{tier}","{DISCOUNT_FIELD}":{discount}}}'.encode() for tier, discount in DISCOUNTS.items()
}

_MISSING_IDS = (None, "")

_QUOTE, _BACKSLASH = b'"\\'
_OPENING, _CLOSING = b"[{", b"]}"


@dataclass(frozen=True, slots=True)
class _Number:
    """A number, compared by value; it equals no string, boolean or null."""

    value: Decimal | str


class _Unreadable(Exception):
    """Not JSON, or nested too deeply to parse."""


def wrong_enrichment(key: bytes | None, value: bytes | None, out: bytes | None) -> str | None:
    return wrong_with_tier(_tier(key), value, out)


def wrong_with_tier(tier: str, value: bytes | None, out: bytes | None) -> str | None:
    """Return what is wrong with a value enriched with ``tier``, or None."""
    if value is not None and out is not None and _only_appended(value, out, tier):
        return None
    if value is None or out is None:
        return f"the {'input' if value is None else 'output'} has no value, so it can't be an enriched order"
    try:
        order = _exact(value)
    except _Unreadable as error:
        return f"the input can't be parsed ({error}) and belongs on the dead-letter topic"
    if not isinstance(order, dict) or order.get("customer_id") in _MISSING_IDS:
        return "the input is not an order with a customer_id and belongs on the dead-letter topic"
    try:
        made = _exact(out)
    except _Unreadable as error:
        return f"the output can't be parsed as JSON: {error}"
    return _difference({**order, TIER_FIELD: tier, DISCOUNT_FIELD: _Number(Decimal(str(DISCOUNTS[tier])))}, made)


def appended(key: bytes | None, value: bytes, out: bytes) -> bool:
    """Return True if the output is the input with the two fields appended; False means not decided."""
    return _only_appended(value, out, _tier(key))


def _tier(key: bytes | None) -> str:
    return STANDARD if key is None else _ORACLE_TIERS.get(key.partition(b"-")[0], STANDARD)


def _only_appended(value: bytes, out: bytes, tier: str) -> bool:
    """Return whether the text is the input's with the two fields appended, and the input an order without them."""
    if value[-1:] != b"}" or out != value[:-1] + _TAILS[tier]:
        return False
    try:
        order = orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(order, dict) or order.get("customer_id") in _MISSING_IDS:
        return False
    return TIER_FIELD not in order and DISCOUNT_FIELD not in order


def _difference(expected: dict[str, Any], made: object) -> str | None:
    if not isinstance(made, dict):
        return "the output is not a JSON object"
    for name in sorted(expected.keys() | made.keys()):
        if name not in made:
            return f"field {name!r} is missing"
        if name not in expected:
            return f"field {name!r} was added"
        if expected[name] != made[name]:
            return f"field {name!r} is {_shortened(made[name])}, should be {_shortened(expected[name])}"
    return None


def _shortened(value: object) -> str:
    text = str(value.value) if isinstance(value, _Number) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."  # noqa: PLR2004 - a line's worth


def _exact(text: bytes) -> Any:
    try:
        if b"\\u" in text:
            # Reject lone surrogates, also in a member that a later duplicate replaces.
            every = json.loads(text.decode(), parse_int=float, object_pairs_hook=list)
            json.dumps(every, ensure_ascii=False).encode()
        return json.loads(text.decode(), parse_float=_number, parse_int=_number, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise _Unreadable(str(error)) from error


def _number(text: str) -> _Number:
    try:
        return _Number(Decimal(text))
    except InvalidOperation:
        return _Number(text)  # the exponent is out of range: compare the text


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def unjustified(reason: Reason, value: bytes | None) -> str | None:
    """Return why a rejection is wrong; None if it is justified, or depends on limits of the pipeline."""
    if value is None:
        return None if reason is Reason.NO_VALUE else f"rejected as {reason}, but the input has no value"
    if reason in {Reason.TOO_LARGE, Reason.TOO_DEEP}:
        return None
    if reason is Reason.NO_VALUE:
        return "rejected as no-value, but the input has a value"
    try:
        order = _exact(value)
    except _Unreadable:
        return None if reason is Reason.NOT_JSON else f"rejected as {reason}, but the input is not JSON"
    if reason is Reason.NOT_JSON:
        return "rejected as not-json, but the input is JSON"
    if reason is Reason.NOT_AN_OBJECT:
        return "rejected as not-an-object, but the input is an object" if isinstance(order, dict) else None
    if not isinstance(order, dict):
        return "rejected as no-customer-id, but the input is not an object"
    nobody = order.get("customer_id") in _MISSING_IDS
    return None if nobody else "rejected as no-customer-id, but the input has one"


def beyond(value: bytes, max_bytes: int, max_depth: int) -> Reason | None:
    """Return the limit that a value exceeds, or None: its length first, then its bracket nesting outside strings."""
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


_M, _SEED, _32_BITS, _31_BITS = 0x5BD1E995, 0x9747B28C, 0xFFFFFFFF, 0x7FFFFFFF


def key_hash(key: bytes) -> int:
    """Return the key's murmur2 hash; modulo the number of partitions, it is the partition, as in Java's client."""
    whole = len(key) & ~3
    found = _SEED ^ len(key)
    for (word,) in struct.iter_unpack("<I", key[:whole]):
        mixed = word * _M & _32_BITS
        mixed = (mixed ^ mixed >> 24) * _M & _32_BITS
        found = found * _M & _32_BITS ^ mixed
    if rest := key[whole:]:
        found = (found ^ int.from_bytes(rest, "little")) * _M & _32_BITS
    found = (found ^ found >> 13) * _M & _32_BITS
    return (found ^ found >> 15) & _31_BITS


_TIERS = tuple(DISCOUNTS)
_REMOVED = len(_TIERS)
_KINDS = _REMOVED + 1
_LONGEST_NUMBER = 19

Row = tuple[int, int, bytes | None, bytes | None, object, int | None]
"""Partition, offset, key, value, headers, timestamp."""


class TierCheck(NamedTuple):
    """An output's tier by the profiles' log, or what is wrong with it; ``gone``: compaction removed the record."""

    tier: str | None = None
    wrong: str | None = None
    gone: bool = False


class Profiles:
    """
    All visible records of the profiles' topic, by customer and partition: their offsets and tiers.

    ``untold`` counts outputs whose profile is gone, ``malformed`` records that are not a profile, ``before_growth``
    outputs without a profile that name fewer partitions than the topic has now.
    """

    def __init__(self, topic: str, logs: Mapping[int, LogOffsets]) -> None:
        self._topic, self._logs = topic, logs
        self._offsets = {partition: array("q") for partition in logs}
        self._history: dict[bytes, tuple[int, ...] | int] = {}
        self._count = len(logs)
        self.untold = self.malformed = self.profiled = self.unprofiled = self.before_growth = 0
        self._first_untold = ""

    def take(self, rows: Iterable[Row]) -> None:
        """Take visible records, in offset order per partition."""
        for partition, offset, key, value, _headers, _created in rows:
            self._offsets[partition].append(offset)
            kind = self._kind(key, value)
            if key is None:
                continue
            packed = (offset * _KINDS + kind) * self._count + partition
            before = self._history.get(key)
            # Most customers have one profile: a plain number saves the tuple.
            if before is None:
                self._history[key] = packed
            else:
                self._history[key] = (*(before if isinstance(before, tuple) else (before,)), packed)

    def _kind(self, key: bytes | None, value: bytes | None) -> int:
        if value is None:
            return _REMOVED
        try:
            found = orjson.loads(value)
            if key and isinstance(found, dict) and found.get(CUSTOMER_FIELD, key.decode()) == key.decode():
                return _TIERS.index(found.get(PROFILE_TIER_FIELD))
        except ValueError:
            pass
        self.malformed += 1
        return _REMOVED

    def _of(self, customer: object) -> Mapping[int, tuple[tuple[int, int], ...]]:
        """Return this customer's records by partition, as (offset, kind) in order."""
        found = self._history.get(customer.encode()) if isinstance(customer, str) else None
        if found is None:
            return {}
        history: dict[int, tuple[tuple[int, int], ...]] = {}
        for packed in found if isinstance(found, tuple) else (found,):
            rest, partition = divmod(packed, self._count)
            history[partition] = (*history.get(partition, ()), divmod(rest, _KINDS))
        return history

    def wrong(self, value: bytes | None, out: bytes | None, header: tuple[str, bytes | None] | None) -> str | None:
        """Return what is wrong with an enriched value, given the profile that its header names, or None."""
        if header is None or header[0] != PROFILE_OFFSET or header[1] is None:
            return f"not enriched with a profile: no {PROFILE_OFFSET} header after the input's headers"
        if value is None or out is None:
            return wrong_with_tier(STANDARD, value, out)
        customer = _field(value, CUSTOMER_FIELD)
        found = self._none(customer, header[1]) if header[1].startswith(NO_PROFILE) else self._at(customer, header[1])
        if found.wrong is not None:
            return found.wrong
        if found.gone:
            self.untold += 1
            self._first_untold = self._first_untold or f"customer {customer!r}, {PROFILE_OFFSET} {header[1].decode()}"
        tier = found.tier or str(_field(out, TIER_FIELD))
        return wrong_with_tier(tier, value, out) if tier in DISCOUNTS else f"tier {tier!r} does not exist"

    def _at(self, customer: object, text: bytes) -> TierCheck:
        """Check the profile at `<partition>/<offset>`."""
        self.profiled += 1
        partition, offset = _numbers(text.split(b"/"), 2)
        if partition not in self._logs:
            return TierCheck(wrong=f"{PROFILE_OFFSET} is {text!r}, which is not a position in {self._topic}")
        place = f"{self._topic}[{partition}] offset {offset}"
        if offset >= self._logs[partition].last_stable:
            return TierCheck(wrong=f"its profile {place} is not visible (LSO {self._logs[partition].last_stable})")
        for at, kind in self._of(customer).get(partition, ()):
            if at == offset:
                if kind == _REMOVED:
                    return TierCheck(wrong=f"its profile {place} is a tombstone or malformed")
                return TierCheck(_TIERS[kind])
        if self._visible(partition, offset):
            return TierCheck(wrong=f"its profile {place} is another customer's, not {customer!r}'s")
        return TierCheck(gone=True)

    def _none(self, customer: object, text: bytes) -> TierCheck:
        """Check that there was no profile when the partitions had been read up to `none <offset>,<offset>,...`."""
        self.unprofiled += 1
        words = text.removeprefix(NO_PROFILE).strip().split(b",")
        read = _numbers(words, min(len(words), self._count))
        if -1 in read:
            return TierCheck(
                wrong=f"{PROFILE_OFFSET} is {text!r}, but needs {quantity(self._count, 'offset')}, one per partition"
            )
        if len(read) < self._count:
            self.before_growth += 1
            read += [0] * (self._count - len(read))
        history = self._of(customer)
        before = {p: [one for one in some if one[0] < read[p]] for p, some in history.items()}
        last = {p: some[-1] for p, some in before.items() if some}
        if last and all(kind != _REMOVED for _, kind in last.values()):
            where = ", ".join(f"{p}/{at}" for p, (at, _) in last.items())
            return TierCheck(wrong=f"enriched without a profile, but customer {customer!r} had one at {where}")
        # All records left are newer; an older one is ruled out only if nothing was removed.
        return TierCheck(STANDARD, gone=bool(history) and not last and not self._whole(read))

    def _visible(self, partition: int, offset: int) -> bool:
        offsets = self._offsets[partition]
        place = bisect_left(offsets, offset)
        return place < len(offsets) and offsets[place] == offset

    def _whole(self, read: list[int]) -> bool:
        """Return whether nothing can have been removed below these offsets."""
        return all(bisect_left(self._offsets[partition], end) == end for partition, end in enumerate(read))

    @property
    def doubts(self) -> list[str]:
        gone = (
            f"compaction removed the profiles of {quantity(self.untold, 'output')} from {self._topic}, the first of "
            f"{self._first_untold}; verify earlier, or raise min.compaction.lag.ms"
        )
        return [gone] if self.untold else []

    @property
    def notes(self) -> list[str]:
        notes = []
        if self.malformed:
            unread = quantity(self.malformed, "record")
            notes.append(f"{unread} of {self._topic} can't be parsed as a profile; their customers have none")
        if self.before_growth:
            outputs = quantity(self.before_growth, "output")
            notes.append(f"{outputs} without a profile: made with fewer partitions than {self._topic} has now")
        return notes

    @property
    def counts(self) -> dict[str, int]:
        return {"profiled": self.profiled, "unprofiled": self.unprofiled}


def _field(text: bytes, name: str) -> object:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found.get(name) if isinstance(found, dict) else None


def _numbers(words: list[bytes], count: int) -> list[int]:
    """Parse ``count`` decimal numbers; return ``count`` times -1 if the words are anything else."""
    if len(words) == count and all(word.isdigit() and len(word) <= _LONGEST_NUMBER for word in words):
        return [int(word) for word in words]
    return [-1] * count
