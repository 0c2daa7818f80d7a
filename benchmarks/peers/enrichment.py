"""What the peers in Python do to an order; every one of them imports this."""

from __future__ import annotations

import orjson

from brew.records import DISCOUNT_FIELD, DISCOUNTS, TIER_FIELD, Reason, tier_of_key


def enrich(key: bytes | None, value: bytes | None) -> bytes | Reason:
    """The enriched order's JSON, or why it is rejected."""
    if value is None:
        return Reason.NO_VALUE
    try:
        order = orjson.loads(value)
    except orjson.JSONDecodeError:
        return Reason.NOT_JSON
    if not isinstance(order, dict):
        return Reason.NOT_AN_OBJECT
    customer = order.get("customer_id")
    if customer is None or customer == "":
        return Reason.NO_CUSTOMER_ID
    tier = tier_of_key(key)
    order[TIER_FIELD] = tier
    order[DISCOUNT_FIELD] = DISCOUNTS[tier]
    return orjson.dumps(order)
