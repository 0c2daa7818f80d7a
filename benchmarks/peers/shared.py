"""Shared by the Python peers: how an order is processed, and the sizes and back-offs of the other contenders."""

from __future__ import annotations

import orjson

from brew.orders import DISCOUNT_FIELD, DISCOUNTS, TIER_FIELD, Reason, tier_of_key

_BACK_OFF = {"retry.backoff.ms": 2, "retry.backoff.max.ms": 20}

PRODUCER: dict[str, object] = {
    "transaction.timeout.ms": 60_000,
    "linger.ms": 5,
    "batch.size": 512 * 1024,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 64 * 1024,
    "compression.type": "none",
    **_BACK_OFF,
}

# Prefetch while Python works; `fetch.queue.backoff.ms` keeps a full queue from idling for a second.
CONSUMER: dict[str, object] = {
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": 10,
    "queued.max.messages.kbytes": 64 * 1024,
    **_BACK_OFF,
}


def enrich(key: bytes | None, value: bytes | None) -> bytes | Reason:
    """Return the enriched order as JSON, or the reason why it is rejected."""
    if value is None:
        return Reason.NO_VALUE
    try:
        order = orjson.loads(value)
    except orjson.JSONDecodeError:
        return Reason.NOT_JSON
    if not isinstance(order, dict):
        return Reason.NOT_AN_OBJECT
    if (customer := order.get("customer_id")) is None or customer == "":
        return Reason.NO_CUSTOMER_ID
    tier = tier_of_key(key)
    order[TIER_FIELD] = tier
    order[DISCOUNT_FIELD] = DISCOUNTS[tier]
    return orjson.dumps(order)
