"""What a receiver needs of a record: its id, and what its effect is; pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import orjson

from downstream.consume.handler import LogRecord
from protocol.errors import UsageError
from protocol.position import SourcePosition

SOURCE = "source"
_LONGEST_ID = 256  # a database's index has an end; longer ids are known by their SHA-256
_LONGEST_SHOWN = 40
NOBODY = "-"
BAD_QUANTITY = "bad-quantity"
"""The reason under which refused messages are counted."""


class Message(NamedTuple):
    """
    An id that every redelivery carries too, who gets how many points, and the value for effects elsewhere.

    ``refused`` is why it gives no points: its effect is none, once, and it is counted and told.
    """

    message_id: str
    customer: str
    points: int
    value: bytes
    refused: str = ""


class Gift(NamedTuple):
    """Who gets how many points; ``refused`` is why there are none."""

    customer: str
    points: int
    refused: str = ""


Identify = Callable[[str, LogRecord], str]


def identifier(text: str) -> Identify:
    """
    How ids are made: `source` (the source headers, the default), or `field:NAME` (a field of the JSON value).

    A record without it is known by its own place in the topic, which every redelivery shares; two records that stand
    for the same thing do not share it.

    Raises:
        UsageError: ``text`` is neither.
    """
    if text == SOURCE:
        return _source_id
    kind, _, name = text.partition(":")
    if kind != "field" or not name:
        raise UsageError(f"--message-id is {text!r}: give `source`, or `field:` and the name of a field")
    return lambda topic, record: _field_id(topic, record, name)


def messages(topic: str, records: Iterable[LogRecord], identify: Identify) -> list[Message]:
    """The records as messages; of several with one id the first."""
    found: dict[str, Message] = {}
    for record in records:
        key = identify(topic, record)
        if key not in found:
            value = record.value() or b""
            gift = gift_of(value)
            found[key] = Message(key, gift.customer, gift.points, value, gift.refused)
    return list(found.values())


def _source_id(topic: str, record: LogRecord) -> str:
    at = SourcePosition.of(record.headers())
    return _own_id(topic, record) if at is None else _short(f"{at.topic}/{at.partition}/{at.offset}")


def _field_id(topic: str, record: LogRecord, name: str) -> str:
    found = _order(record.value() or b"").get(name)
    if found is None or found == "":
        return _own_id(topic, record)
    text = found if isinstance(found, str) else orjson.dumps(found, option=orjson.OPT_SORT_KEYS).decode()
    return _short(f"{name}:{text}")


def _short(text: str) -> str:
    """The text, or its digest where a database could not take it."""
    if len(text) <= _LONGEST_ID and "\x00" not in text:
        return text
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _own_id(topic: str, record: LogRecord) -> str:
    return f"@{topic}/{record.partition()}/{record.offset()}"


def gift_of(value: bytes) -> Gift:
    """
    A point per cup for the customer; a record that names none gives nobody one, and one without a quantity is one cup.

    A quantity that is no whole number from 1 to 2147483647 gives none, and says so: a guess would be a wrong balance.
    """
    order = _order(value)
    customer, cups = order.get("customer_id"), order.get("quantity", 1)
    if not isinstance(customer, str) or not 0 < len(customer) <= _LONGEST_ID or "\x00" in customer:
        return Gift(NOBODY, 1)
    if not isinstance(cups, int) or isinstance(cups, bool) or not 0 < cups < 2**31:
        return Gift(
            customer, 0, f"quantity is {str(cups)[:_LONGEST_SHOWN]!r}, a whole number from 1 to {2**31 - 1} is needed"
        )
    return Gift(customer, cups)


def _order(value: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(value)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
