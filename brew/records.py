"""What orders, rejected records and customers' profiles carry: headers, reasons, loyalty tiers."""

from __future__ import annotations

import enum

import orjson

TIER_FIELD = "loyalty_tier"
DISCOUNT_FIELD = "loyalty_discount"
STANDARD = "standard"
DISCOUNTS = {"gold": 0.15, "silver": 0.10, "bronze": 0.05, STANDARD: 0.0}

ORDER_FIELDS = ("order_id", "customer_id", "item", "quantity", "total_cents", "store", "created_at")


_TIERS = {tier.encode(): tier for tier in DISCOUNTS}


def tier_of_key(key: bytes | None) -> str:
    """The tier that a record key's prefix before the first `-` names; anything else is `standard`."""
    return _TIERS.get(key.partition(b"-")[0], STANDARD) if key is not None else STANDARD


class Reason(enum.StrEnum):
    """Why a record goes to the dead-letter topic."""

    NO_VALUE = "no-value"
    NOT_JSON = "not-json"
    NOT_AN_OBJECT = "not-an-object"
    NO_CUSTOMER_ID = "no-customer-id"
    TOO_LARGE = "too-large"
    TOO_DEEP = "too-deep"


# The names follow Kafka's own dead-letter headers (KIP-1034); `reason` is ours.
ERROR_REASON = "__streams.errors.reason"
ERROR_EXCEPTION = "__streams.errors.exception"
ERROR_MESSAGE = "__streams.errors.message"
ERROR_TOPIC = "__streams.errors.topic"
ERROR_PARTITION = "__streams.errors.partition"
ERROR_OFFSET = "__streams.errors.offset"
ERROR_OMITTED = "__streams.errors.omitted-bytes"

# What a record carries that was written back from the dead-letter topic.
REPLAYED_FROM = "replayed.from"
REPLAYED_COUNT = "replayed.count"
REPLAYED_TIMESTAMP = "replayed.timestamp"
REPLAY_GROUP = ".dlq-replay"
"""Behind the pipeline's group: the group whose offsets and transactional ids replays use."""
MARKS_TOPIC = ".replayed"
"""Behind the dead-letter topic's name: the compacted topic that says which dead letters have been written back."""


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
