"""What an input record says that it is, and the dead letter that it was written back from; pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import orjson

from protocol.position import Headers
from protocol.records import REPLAYED_FROM

_MOST_BYTES = 1_000_000  # what a run takes, by default; a larger value is not read for its id
_PLACE = re.compile(r"([a-zA-Z0-9._-]{1,249})/(\d{1,9})/(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Place:
    """Topic, partition and offset of one record, as people write them: with slashes between."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Place | None:
        """None where it is no place."""
        found = _PLACE.fullmatch(text)
        return cls(found[1], int(found[2]), int(found[3])) if found else None


@dataclass(frozen=True, slots=True)
class Order:
    """``order_id`` is None where the value tells none; ``replay_of``: the dead letter that it was."""

    order_id: str | None
    digest: bytes
    replay_of: Place | None = None

    @classmethod
    def of(cls, value: bytes | None, headers: Headers | None) -> Order:
        """Read it from a record."""
        origin = dict(headers or ()).get(REPLAYED_FROM)
        replay_of = None if origin is None else Place.parse(origin.decode("utf-8", "replace"))
        return cls(order_id(value), hashlib.sha256(value or b"").digest(), replay_of)

    @property
    def identity(self) -> str | bytes:
        """Equal for one order: its id, and its bytes where they tell none."""
        return self.digest if self.order_id is None else self.order_id


def order_id(value: bytes | None) -> str | None:
    """The order's id as its value tells it; None where it is no such value."""
    if value is None or len(value) > _MOST_BYTES:
        return None
    try:
        told = orjson.loads(value)
    except orjson.JSONDecodeError:
        return None
    found = told.get("order_id") if isinstance(told, dict) else None
    return str(found) if isinstance(found, str | int) and not isinstance(found, bool) else None
