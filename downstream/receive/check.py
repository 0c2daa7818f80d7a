"""Compare effects with the topic they came from: exactly one for every message below the group's position."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import redis

from brew.cli import printable
from brew.errors import Refused
from brew.names import quantity
from downstream.check import Findings, topic_snapshot
from downstream.consume.handler import LoopSettings
from downstream.postgres import DatabaseSettings, reading
from downstream.receive.receiver import BAD_QUANTITY, Identify, points_grant
from downstream.receive.redis import Keys, RedisSettings

DUPLICATE, LOST = "receiver-duplicate", "receiver-lost"

_CHUNK = 1000
_REJECTIONS = 5


@dataclass
class CheckResult(Findings):
    """
    Result of the comparison; ``waiting`` messages are above the group's position and may be done or not. ``rejected``
    messages give no points because their quantity is invalid (`rejections` names the first ones). ``duplicates`` are
    effects beyond each message's first, as far as the store still counts them.
    """

    messages: int = 0
    waiting: int = 0
    effects: int = 0
    duplicates: int = 0
    rejected: int = 0
    rejections: list[str] = field(default_factory=list)

    def reject(self, name: str, why: str) -> None:
        """Count a message without an effect; it is reported, but is not a violation."""
        self.rejected += 1
        if len(self.rejections) < _REJECTIONS:
            self.rejections.append(f"{BAD_QUANTITY}: message {name} gives no points: {why}")

    def document(self) -> dict[str, Any]:
        return self.judged(**{name: value for name, value in vars(self).items() if name not in vars(Findings())})

    def text(self) -> str:
        head = f"{quantity(self.messages, 'message')} below the group's position, {self.waiting} waiting, "
        head += f"{quantity(self.effects, 'effect')}, {self.duplicates} of them duplicates"
        if self.rejected:
            head += f"; {self.rejected} rejected, without points"
        return "\n".join([head, *map(printable, self.rejections), *self.lines("one effect for every message")])


def check(settings: LoopSettings, identify: Identify, effects: Effects) -> CheckResult:
    """Compare while no receiver is running; `Refused` without a committed offset and effects: nothing to compare."""
    topic = topic_snapshot(settings)
    positions = {p: topic.logs[p].first if at is None else at.offset for p, at in topic.committed.items()}
    checked = CheckResult()
    below: dict[str, bool] = {}
    gifts: dict[str, tuple[str, int]] = {}
    same = True
    deleted = topic.compacted or any(log.first > 0 for log in topic.logs.values())
    for record in topic.records():
        done = record.offset() < positions[record.partition()]
        name = identify(settings.topic, record)
        customer, points, refused = points_grant(record.value() or b"")
        if refused and name not in below:
            checked.reject(name, refused)
        below[name] = below.get(name, False) or done
        same = gifts.setdefault(name, (customer, points)) == (customer, points) and same
    names = list(below)
    for begin in range(0, len(names), _CHUNK):
        chunk = names[begin : begin + _CHUNK]
        for name, count in zip(chunk, effects.counts(chunk), strict=True):
            _judge(checked, name, count, below=below[name])
    if checked.waiting and not checked.effects and set(topic.committed.values()) == {None}:
        raise Refused(
            f"nothing to compare: group {settings.group!r} has no committed offset in {settings.topic}, and the store "
            "none of its effects; check --group, --topic and --store, or run the receiver first"
        )
    # If records share an id but give different points, the log does not show which one came first.
    if same and not checked.waiting and (balances := effects.points()) is not None:
        _compare_points(checked, gifts.values(), balances, deleted=deleted)
    return checked


def _compare_points(
    checked: CheckResult, gifts: Iterable[tuple[str, int]], points: dict[str, int], *, deleted: bool = False
) -> None:
    """Compare the points, which outlast effects; ``deleted``: messages are gone, so only too few are a finding."""
    expected: Counter[str] = Counter()
    for customer, given in gifts:
        expected[customer] += given
    for customer in sorted(expected.keys() | points.keys()):
        has = points.get(customer, 0)
        if has < expected[customer] or (has > expected[customer] and not deleted):
            name = DUPLICATE if has > expected[customer] else LOST
            checked.found(name, f"customer {customer} has {has} points instead of {expected[customer]}")


def _judge(checked: CheckResult, name: str, count: int, *, below: bool) -> None:
    checked.effects += count
    checked.messages += below
    checked.waiting += not below
    if count > 1:
        checked.duplicates += count - 1
        checked.found(DUPLICATE, f"message {name} had {quantity(count, 'effect')}", count - 1)
    elif below and count == 0:
        checked.found(LOST, f"message {name} had no effect")


class PostgresEffects:
    """Rows of effects, or of the outbox, whose requests give no points."""

    def __init__(self, group: str, settings: DatabaseSettings, *, outbox: bool) -> None:
        self._group, self._settings, self._outbox = group, settings, outbox

    def counts(self, names: Sequence[str]) -> list[int]:
        """Return how often each message id's effect was applied."""
        table = "outbox" if self._outbox else "receiver_effects"
        chosen = "WHERE consumer_group = %s AND message_id = ANY(%s)"
        query = f"SELECT message_id, count(*) FROM {table} {chosen} GROUP BY message_id"  # noqa: S608 - our own names
        effects = self._ask(query, self._group, list(names))
        return [effects.get(name, 0) for name in names]

    def points(self) -> dict[str, int] | None:
        query = "SELECT customer_id, points FROM receiver_points WHERE consumer_group = %s"
        return None if self._outbox else self._ask(query, self._group)

    def _ask(self, query: str, *values: object) -> dict[str, int]:
        with reading(self._settings, "the effects") as session:
            return dict(session.execute(query.encode(), values).fetchall())


class RedisEffects:
    """Counters beside the claims, which expire with them, and the points, which remain."""

    def __init__(self, group: str, settings: RedisSettings) -> None:
        self._client = settings.client()
        self._keys = Keys(group)

    def counts(self, names: Sequence[str]) -> list[int]:
        keys = [self._keys.effect(name) for name in names]
        with self._errors_mapped():
            found = cast("list[bytes | None]", self._client.mget(keys))
        return [_number(count or 0, key) for key, count in zip(keys, found, strict=True)]

    def points(self) -> dict[str, int] | None:
        with self._errors_mapped():
            by_customer = cast("dict[bytes, bytes]", self._client.hgetall(self._keys.points))
        return {
            name: _number(points, f"{self._keys.points}, field {name}")
            for name, points in (
                (customer.decode("utf-8", "backslashreplace"), n) for customer, n in by_customer.items()
            )
        }

    @contextlib.contextmanager
    def _errors_mapped(self) -> Iterator[None]:
        try:
            yield
        except redis.RedisError as error:
            raise Refused(f"the effects can't be read: {error}; check the server and --redis (REDIS_URL)") from error


def _number(value: bytes | int, key: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise Refused(
            f"the effects can't be read: key {printable(key)} holds {value!r}, not a number, so another "
            "program changed it; correct it, then check again"
        ) from error


Effects = PostgresEffects | RedisEffects
