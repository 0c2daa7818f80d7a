"""What the topics of orders contain, for the application, its consumers and the checker, which don't share code."""

from __future__ import annotations

import enum

import orjson

from brew import record

TIER_FIELD = "loyalty_tier"
DISCOUNT_FIELD = "loyalty_discount"
STANDARD = "standard"
DISCOUNTS = {"gold": 0.15, "silver": 0.10, "bronze": 0.05, STANDARD: 0.0}

ORDER_FIELDS = ("order_id", "customer_id", "item", "quantity", "total_cents", "store", "created_at")


_TIERS = {tier.encode(): tier for tier in DISCOUNTS}


def tier_of_key(key: bytes | None) -> str:
    """Return the tier named by the key's prefix before the first `-`; for any other key, `standard`."""
    return _TIERS.get(key.partition(b"-")[0], STANDARD) if key is not None else STANDARD


class Reason(enum.StrEnum):
    """Why an order goes to the dead-letter topic."""

    NO_VALUE = record.NO_VALUE
    NOT_JSON = record.NOT_JSON
    NOT_AN_OBJECT = "not-an-object"
    NO_CUSTOMER_ID = "no-customer-id"
    TOO_LARGE = record.TOO_LARGE
    TOO_DEEP = "too-deep"


PROFILE_OFFSET = "profile.offset"
"""The header after an output's own: `<partition>/<offset>` of the profile, or `NO_PROFILE` first if there was none."""
NO_PROFILE = b"none"
"""Start of the header of an output without a profile; then how far each partition of the profiles had been read."""

CUSTOMER_FIELD = "customer_id"
PROFILE_TIER_FIELD = "tier"
COMPACT = "compact"


class Tiers(enum.StrEnum):
    """Where a customer's tier comes from."""

    PREFIX = "prefix"
    PROFILES = "profiles"


def profile(customer: str, tier: str) -> bytes:
    return orjson.dumps({CUSTOMER_FIELD: customer, PROFILE_TIER_FIELD: tier})
