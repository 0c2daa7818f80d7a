r"""
Split orders into their lines, and send each line to the topic of its kind.

    brew run --transform examples/routing.py:lines --input orders \
        --output lines.other --also-output lines.food --also-output lines.books

All lines of an order, on all three topics, become visible in one transaction, together with the input's position.
"""

from __future__ import annotations

from typing import Any

import brew
from brew import formats

TOPICS = {"food": "lines.food", "book": "lines.books"}


@formats.json()
def lines(order: Any) -> list[formats.Output]:
    """Return one output per line, keyed by the item; kinds without a topic of their own go to the run's output."""
    try:
        number, found = order["order_id"], order["lines"]
        return [
            formats.Output({"order_id": number, "line": place, **line}, TOPICS.get(line["kind"]), line["item"].encode())
            for place, line in enumerate(found, start=1)
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise brew.Reject(
            "not-an-order", f"an order has an order_id and lines with kind and item: {error!r}"
        ) from error
