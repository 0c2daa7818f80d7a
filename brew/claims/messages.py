"""The messages of the claims topic, their encoding, and which partition coordinates what."""

from __future__ import annotations

import functools
import operator
import uuid
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

import orjson

from brew.errors import Refused, UsageError, encodable
from brew.names import checked_topic

PARTITIONS = 1
CONFIG = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": "604800000",
    "segment.bytes": "67108864",
}
WHOLE_TOPIC = -1
"""In place of a partition number: the topic as a whole."""


@functools.lru_cache(4096)
def coordinating_partition(topic: str, partition: int, of: int) -> int:
    """Return the partition, of ``of``, of the log that has all records about this partition."""
    return zlib.crc32(f"{topic}:{partition}".encode()) % of


VERSION = 2
"""1 had no `topic_id`."""
NOTHING = -1
"""A position or token with no meaning."""
UNKNOWN_ID = "-"
"""In place of a topic id."""
MAX_ID = 255
MAX_PARTITION = 1_000_000
MIN_INTERVAL_MS, MAX_INTERVAL_MS = 50, 600_000


class Heartbeat(NamedTuple):
    """The sender is alive, and its position is ``last_offset``; without a partition: the member itself is alive."""

    client_id: str
    group_id: str
    topic: str
    partition: int | None
    last_offset: int
    token: int
    interval_ms: int
    resume: bool


class ClaimingPartition(NamedTuple):
    """
    Request a partition; if it is granted, the record's offset becomes the fencing token. ``topic_id``: the topic that
    the claimant reads, so that it does not continue at the position in a deleted one.
    """

    client_id: str
    group_id: str
    topic: str
    partition: int
    interval_ms: int
    topic_id: str = UNKNOWN_ID


class ReleasingPartition(NamedTuple):
    """Release the partition at ``last_offset``; without a partition: the member leaves."""

    client_id: str
    group_id: str
    topic: str
    partition: int | None
    last_offset: int
    token: int


class ClaimingMessages(NamedTuple):
    """The sender will work on everything below ``proposed_last_offset``, and no one else ever may."""

    client_id: str
    group_id: str
    topic: str
    partition: int
    proposed_last_offset: int
    token: int


class ReleaseGroup(NamedTuple):
    """All members of the group release and claim nothing before ``msg_expire_time`` (ms of the brokers' clock)."""

    client_id: str
    group_id: str
    msg_expire_time: int


class Snapshot(NamedTuple):
    """What a fold knew before the offset ``until``; the format of ``state`` is defined by `brew.claims.state`."""

    client_id: str
    until: int
    clock: int
    state: dict[str, list[list[Any]]]


Message = Heartbeat | ClaimingPartition | ReleasingPartition | ClaimingMessages | ReleaseGroup | Snapshot
TYPES: dict[str, type[Message]] = {made.__name__: made for made in get_args(Message)}
SNAPSHOT_KEY = Snapshot.__name__.encode()


_INT64 = 2**63 - 1


def _number(low: int, high: int = _INT64) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _id(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= MAX_ID and encodable(value) == value


@functools.lru_cache(1024)
def _topic(value: str) -> bool:
    try:
        return checked_topic(value, "topic") == value
    except UsageError:
        return False


LIMITS: dict[str, Callable[[Any], bool]] = {
    "client_id": _id,
    "group_id": _id,
    "topic": lambda raw: isinstance(raw, str) and _topic(raw),
    "partition": _number(WHOLE_TOPIC, MAX_PARTITION),
    "last_offset": _number(NOTHING),
    "proposed_last_offset": _number(0),
    "token": _number(NOTHING),
    "topic_id": _id,
    "interval_ms": _number(MIN_INTERVAL_MS, MAX_INTERVAL_MS),
    "resume": lambda raw: isinstance(raw, bool),
    "msg_expire_time": _number(0),
    "until": _number(0),
    "clock": _number(0),
    "state": lambda raw: isinstance(raw, dict),
}
_OF_THE_MEMBER = {Heartbeat, ReleasingPartition}


def _within(made: type[Message], field: str) -> Callable[[Any], bool]:
    within = LIMITS[field]
    if field == "partition" and made in _OF_THE_MEMBER:
        return lambda value: value is None or within(value)
    return within


_CHECKS = {made: tuple(_within(made, field) for field in made._fields) for made in TYPES.values()}
# Looked up once: a new member without a snapshot decodes a million of them.
_FIELDS: dict[type[Message], frozenset[str]] = {made: frozenset(made._fields) for made in TYPES.values()}
_VALUES: dict[type[Message], Callable[[dict[str, Any]], tuple[Any, ...]]] = {
    made: operator.itemgetter(*made._fields) for made in TYPES.values()
}


def encode(message: Message) -> tuple[bytes, bytes]:
    """Return a record's key and value; raises `UsageError` if a field is out of its limits."""
    wrong = _invalid_field(type(message), message)
    if wrong is not None:
        raise UsageError(f"{type(message).__name__}: {wrong} is {getattr(message, wrong)!r}; see docs/CLAIMS.md")
    name = type(message).__name__
    key = SNAPSHOT_KEY if isinstance(message, Snapshot) else f"{name}/{uuid.uuid4().hex}".encode()
    return key, orjson.dumps({"v": VERSION, "type": name, **message._asdict()})


def decode(value: bytes | None) -> Message | None:
    """Decode a value; None if it is no message. Raises `Refused` for an unknown version or type: states would vary."""
    try:
        fields = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or type(version := fields.pop("v", None)) is not int or version < 1:
        return None
    name = fields.pop("type", None)
    if not isinstance(name, str):
        return None
    made = TYPES.get(name)
    if version > VERSION or made is None:
        raise Refused(
            f"the claims topic holds a message {name!r} of version {version}, and this program knows versions up to "
            f"{VERSION}; update it, or name another topic (--claims)"
        )
    if version == 1 and made is ClaimingPartition:
        fields.setdefault("topic_id", UNKNOWN_ID)
    if fields.keys() != _FIELDS[made]:
        return None
    values = _VALUES[made](fields)
    return None if _invalid_field(made, values) is not None else made._make(values)


def _invalid_field(made: type[Message], values: Sequence[Any]) -> str | None:
    for index, within in enumerate(_CHECKS[made]):
        if not within(values[index]):
            return made._fields[index]
    return None
