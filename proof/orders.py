"""Make orders out of their number and a seed; pure, and cheap enough for a hundred million of them."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

TIERS = (b"gold", b"silver", b"bronze", b"standard")

_ITEMS = ("espresso", "flat white", "cortado", "cappuccino", "cold brew", "filter", "mocha", "chai latte")
_VARIANTS = 1024
_OPENING_DAY = datetime(2026, 1, 1, 6, 0, tzinfo=UTC)

Order = tuple[bytes, bytes | None]


def orders(seed: int, mark: str = "") -> Callable[[int], Order]:
    """
    A function from an order's number to its key and value; equal seeds give equal orders.

    Only the number differs from one order to the next 1024: the rest of the JSON text is rendered once. ``mark`` goes
    into the key (`gold-aborted-000017`), to keep orders that must never be counted apart from those that must.
    """
    tails = _tails(seed)

    def order(number: int) -> Order:
        # The sum moves on by one in each round, so every partition of a round robin sees every tier.
        name = b"%s-%s%06d" % (TIERS[(number + number // 4) % 4], marked, number)
        return name, b'{"order_id":"%s%s' % (name, tails[number % _VARIANTS])

    marked = f"{mark}-".encode() if mark else b""
    return order


@functools.lru_cache(maxsize=4)
def _tails(seed: int) -> list[bytes]:
    """What follows the order's id in its JSON text, for `_VARIANTS` orders."""
    dice = random.Random(seed)  # noqa: S311 - example data
    tails = []
    for second in range(_VARIANTS):
        quantity = dice.randint(1, 5)
        fields = {
            "customer_id": f"c-{dice.randint(1, 20_000):05d}",
            "item": dice.choice(_ITEMS),
            "quantity": quantity,
            "total_cents": quantity * dice.randrange(250, 700, 10),
            "store": f"store-{dice.randint(1, 40):02d}",
            "created_at": (_OPENING_DAY + timedelta(seconds=7 * second)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        tails.append(b'",' + json.dumps(fields, separators=(",", ":")).encode()[1:])
    return tails


def spoiled(order: Order, kind: int) -> Order:
    """The same order made unreadable, in one of four ways: cut JSON, not an object, no customer, no value."""
    key, value = order
    text = value or b""
    ways = (text[:-9], b"[" + text + b"]", text.replace(b'"customer_id"', b'"somebody"'), None)
    return key, ways[kind % len(ways)]
