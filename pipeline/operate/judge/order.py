"""What an input record says that it is, and the dead letter that it was written back from; pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import orjson

from protocol.position import Headers, SourcePosition
from protocol.records import REPLAYED_FROM

_MOST_BYTES = 1_000_000  # what a run takes, by default; a larger value is not read for its id


@dataclass(frozen=True, slots=True)
class Order:
    """``order_id`` is None where the value tells none; ``replay_of``: the dead letter that it was."""

    order_id: str | None
    digest: bytes
    replay_of: SourcePosition | None = None

    @classmethod
    def of(cls, value: bytes | None, headers: Headers | None) -> Order:
        """Read it from a record."""
        origin = dict(headers or ()).get(REPLAYED_FROM)
        replay_of = None if origin is None else SourcePosition.parse(origin.decode("utf-8", "replace"))
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
