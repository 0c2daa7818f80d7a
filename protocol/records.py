"""What records carry: the loyalty tables, the reasons for a rejection, the headers of dead letters and replays."""

from __future__ import annotations

import enum
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record for the dead-letter topic: the reason's code, and a sentence with value and limit."""

    reason: Reason
    message: str


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
