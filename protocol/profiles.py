"""Customer profiles as all sides know them: the record on the compacted topic, and the header that names it."""

from __future__ import annotations

import enum

import orjson

from protocol.records import DISCOUNTS

PROFILE_OFFSET = "profile.offset"
"""The header behind an output's own: `<partition>/<offset>` of the profile, or that there was none."""
NO_PROFILE = b"none"
"""Begins the header of an output without a profile; behind it how far each partition of the profiles had been read."""

CUSTOMER_FIELD = "customer_id"
PROFILE_TIER_FIELD = "tier"
COMPACT = "compact"


class Tiers(enum.StrEnum):
    """Where a customer's tier comes from."""

    PREFIX = "prefix"
    PROFILES = "profiles"


class MalformedProfileError(ValueError):
    """The record is no profile; the text says why."""


def tier_of(customer: str, value: bytes) -> str:
    """
    The tier that a profile's value names; ``customer`` is the record's key.

    Raises:
        MalformedProfileError: not a JSON object with a known tier, or it speaks of another customer than its key.
    """
    if not customer:
        raise MalformedProfileError("the key is empty, it has to be the customer_id")
    try:
        profile = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise MalformedProfileError(f"the value is not JSON: {error}") from error
    if type(profile) is not dict:
        raise MalformedProfileError(f"the value is a JSON {type(profile).__name__}, an object is needed")
    if profile.get(CUSTOMER_FIELD, customer) != customer:
        raise MalformedProfileError(f"the key is {customer!r}, the value's customer_id another one")
    tier = profile.get(PROFILE_TIER_FIELD)
    if type(tier) is not str or tier not in DISCOUNTS:
        raise MalformedProfileError(f"tier is {str(tier)[:40]!r}, known are {', '.join(DISCOUNTS)}")
    return tier


def profile(customer: str, tier: str) -> bytes:
    """A profile's value."""
    return orjson.dumps({CUSTOMER_FIELD: customer, PROFILE_TIER_FIELD: tier})
