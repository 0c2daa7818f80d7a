"""Generate and write orders, with or without transactions, and check that each is delivered."""

from __future__ import annotations

import functools
import json
import random
import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import chain, count, islice
from typing import Any, Self

from brew.acl import Denial, denial_in
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import BrewError, Fatal, Refused, UsageError
from brew.kafka import offsets, topics
from brew.kafka.clients import KafkaError, KafkaException, Message, Producer, admin, mapped, producer
from brew.kafka.log_reader import scan
from brew.kafka.transaction import connect_early, fenced
from brew.names import READ_UNCOMMITTED, quantity

TIERS = (b"gold", b"silver", b"bronze", b"standard")
_ITEMS = ("espresso", "flat white", "cortado", "cappuccino", "cold brew", "filter", "mocha", "chai latte")
_VARIANTS = 1024
_OPENING_DAY = datetime(2026, 1, 1, 6, 0, tzinfo=UTC)
Order = tuple[bytes, bytes | None]
_CHUNK, _LAST_ORDERS = 10_000, 200
_KEY = re.compile(rb"(?:gold|silver|bronze|standard)-(?:[a-z]+-)?([0-9]{6,15})")
_MOST_PER_TRANSACTION = 100
Record = tuple[int, Order]
"""Partition and order."""
_MESSAGE_BYTES, _POLL_S, _ABORT_TIMEOUT_S = 1_000_000, 0.02, 3.0


def orders(seed: int, mark: str = "") -> Callable[[int], Order]:
    """
    Return a function from an order's number to its key and value; equal seeds give equal orders.

    Orders repeat after 1024, except for tier and number, so the rest of the JSON is rendered only once. ``mark`` goes
    into the key (`gold-aborted-000017`), to distinguish orders that must never be counted.
    """
    tails = _tails(seed)

    def order(number: int) -> Order:
        # The sum shifts by one each round, so that a round robin brings every tier to every partition.
        name = b"%s-%s%06d" % (TIERS[(number + number // 4) % 4], marked, number)
        return name, b'{"order_id":"%s%s' % (name, tails[number % _VARIANTS])

    marked = f"{mark}-".encode() if mark else b""
    return order


@functools.lru_cache(maxsize=4)
def _tails(seed: int) -> list[bytes]:
    """Return the JSON text after the order's id, for `_VARIANTS` orders."""
    rng = random.Random(seed)  # noqa: S311 - example data
    tails = []
    for second in range(_VARIANTS):
        quantity = rng.randint(1, 5)
        fields = {
            "customer_id": f"c-{rng.randint(1, 20_000):05d}",
            "item": rng.choice(_ITEMS),
            "quantity": quantity,
            "total_cents": quantity * rng.randrange(250, 700, 10),
            "store": f"store-{rng.randint(1, 40):02d}",
            "created_at": (_OPENING_DAY + timedelta(seconds=7 * second)).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        tails.append(b'",' + json.dumps(fields, separators=(",", ":")).encode()[1:])
    return tails


def spoiled(order: Order, kind: int) -> Order:
    """Make an order unreadable, in one of four ways: truncated JSON, not an object, no customer, no value."""
    key, value = order
    text = value or b""
    variants = (text[:-9], b"[" + text + b"]", text.replace(b'"customer_id"', b'"somebody"'), None)
    return key, variants[kind % len(variants)]


@dataclass(frozen=True, slots=True)
class Seeding:
    """What to write; raises `UsageError` if the fields do not fit together."""

    topic: str
    count: int
    start: int
    seed: int = 0
    bad_every: int = 0
    transactional: bool = False
    abort_every: int = 3
    transaction_size: int = 0
    markers_only_partition: int | None = None
    leave_open: bool = False

    def __post_init__(self) -> None:
        if self.count < 0 or self.start < 0 or self.bad_every < 0:
            raise UsageError("--count, --start and --bad-every can't be negative; give 0 or more")
        if self.abort_every == 1 or self.abort_every < 0:
            raise UsageError("--abort-every 1 would abort everything; give 2 or more, or 0 to abort nothing")
        if self.markers_only_partition is not None and not (self.transactional and self.abort_every):
            raise UsageError("--markers-only-partition needs aborted transactions; add --transactional")

    @property
    def per_transaction(self) -> int:
        """Orders per transaction; few if there are few orders, so that some transactions are aborted."""
        return self.transaction_size or max(1, min(_MOST_PER_TRANSACTION, self.count // 6))


@dataclass(frozen=True, slots=True)
class Chunk:
    """Records that are written together, in one transaction if the plan is transactional."""

    records: list[Record]
    aborted: bool = False


def chunks(plan: Seeding, partitions: int) -> Iterator[Chunk]:
    """Yield everything to write, in order, in chunks, with as many visible orders as the plan's count."""
    visible = _visible(plan, _order_partitions(plan, partitions))
    if not plan.transactional:
        while records := list(islice(visible, _CHUNK)):
            yield Chunk(records)
        return
    ghosts = ghost_records(plan, "aborted", partitions)
    size = max(plan.per_transaction, partitions)
    for number in count(1):
        if plan.abort_every and number % plan.abort_every == 0:
            yield Chunk(list(islice(ghosts, size)), aborted=True)
            continue
        if not (records := list(islice(visible, plan.per_transaction))):
            break
        yield Chunk(records)
    if plan.abort_every and (number - 1) % plan.abort_every != 0:
        yield Chunk(list(islice(ghosts, size)), aborted=True)


def ghost_records(plan: Seeding, mark: str, partitions: int) -> Iterator[Record]:
    """Return an endless iterator of orders that never become visible, round robin over all partitions."""
    ghost = orders(plan.seed, mark)
    return ((number % partitions, ghost(number)) for number in count(plan.start))


def _order_partitions(plan: Seeding, partitions: int) -> list[int]:
    only_markers = plan.markers_only_partition
    if only_markers is not None and not (0 <= only_markers < partitions and partitions > 1):
        wrong = f"{only_markers}, but topic {plan.topic!r} has {partitions} partition(s)"
        raise UsageError(f"--markers-only-partition is {wrong}; give a partition of a topic that has at least two")
    return [p for p in range(partitions) if p != only_markers]


def _visible(plan: Seeding, homes: list[int]) -> Iterator[Record]:
    order = orders(plan.seed)
    bad_every = plan.bad_every
    for number in range(plan.start, plan.start + plan.count):
        made = order(number)
        nth = number - plan.start + 1
        if bad_every and nth % bad_every == 0:
            made = spoiled(made, nth // bad_every - 1)
        yield homes[number % len(homes)], made


@dataclass(frozen=True, slots=True)
class Seeded:
    """What was written; ``open_id``: the transactional id whose transaction was left open on purpose."""

    topic: str
    partitions: int
    first: int
    visible: int
    aborted: int
    seconds: float
    open_id: str | None

    def __str__(self) -> str:
        rate = self.visible / self.seconds if self.seconds else 0.0
        text = f"{quantity(self.visible, 'order')} on {self.topic} ({quantity(self.partitions, 'partition')})"
        if self.visible:
            text += f", numbers {self.first} to {self.first + self.visible - 1}, {rate:,.0f} records/s"
        if self.aborted:
            text += f"; {self.aborted} more in aborted transactions"
        if self.open_id is not None:
            command = f"python -m proof resolve --transactional-id {self.open_id}"
            text += f"; {self.open_id} has a transaction open; abort it with `{command}`"
        return text


class Writer:
    """A producer that reports delivery errors only, so that successful deliveries cost no callback."""

    def __init__(
        self, connection: Connection, topic: str, name: str | None, timeout_s: float, most_bytes: int = _MESSAGE_BYTES
    ) -> None:
        """``name``: the transactional id, or None; ``most_bytes``: the largest message."""
        self._topic = topic
        self._timeout_s = timeout_s
        self._transactional = name is not None
        self._failed: KafkaError | None = None
        settings: dict[str, Any] = {"delivery.report.only.error": True, "on_delivery": self._undelivered}
        settings |= {"timeout_s": timeout_s, "message_max_bytes": most_bytes}
        self._client: Producer = producer(connection, name, **settings)
        if name is not None:
            fenced(self._client, Deadline(timeout_s))
        else:
            connect_early(self._client, topic)

    def _undelivered(self, error: KafkaError, _message: Message) -> None:
        self._failed = self._failed or error

    def _step(self, name: str, call: Callable[[float], None]) -> None:
        deadline = Deadline(self._timeout_s)

        def ask() -> None:
            with mapped(name):
                call(max(0.001, deadline.remaining_s()))

        retry_until(ask, name, deadline)

    def write(self, records: Iterable[tuple[int, tuple[bytes | None, bytes | None]]]) -> None:
        """Queue records, waiting for room; `produce_batch` takes one partition per call."""
        by_partition: dict[int, list[dict[str, object]]] = {}
        for partition, (key, value) in records:
            by_partition.setdefault(partition, []).append({"key": key, "value": value})
        for partition, messages in by_partition.items():
            self._queue(partition, messages)

    def _queue(self, partition: int, messages: list[dict[str, object]]) -> None:
        while True:
            with mapped("produce"):
                taken = self._client.produce_batch(self._topic, messages, partition=partition)
            self._client.poll(0)
            self._check()
            if taken == len(messages):
                return
            messages = [self._again(message) for message in messages if "_error" in message]
            self._client.poll(_POLL_S)

    def _again(self, message: dict[str, object]) -> dict[str, object]:
        error = message.pop("_error")
        if not isinstance(error, KafkaError) or error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - a public constant
            raise Fatal(f"produce: {error}")
        return message

    def flush(self) -> None:
        """Wait until everything queued is in the log; in slices, so that signals are handled."""
        deadline = Deadline(self._timeout_s)
        while self._client.flush(min(0.5, deadline.remaining_s())):
            self._check()
            deadline.check(f"flush to {self._topic}")
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise Refused(
                f"a record could not be delivered to topic {self._topic!r}: {self._failed.str()}; "
                "check the brokers, then seed again (orders with another --start)"
            )

    def begin(self) -> None:
        with mapped("begin"):
            self._client.begin_transaction()

    def commit(self) -> None:
        self.flush()
        self._step("commit", self._client.commit_transaction)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """After an error, drop queued records, and abort an open transaction if the brokers answer."""
        if kind is None:
            return
        self._client.purge()
        if self._transactional:
            with suppress(KafkaException):
                self._client.abort_transaction(_ABORT_TIMEOUT_S)

    def abort(self) -> None:
        # Flush, so that the log contains aborted records that readers must skip.
        self.flush()
        self._step("abort", self._client.abort_transaction)


def seed(
    connection: Connection,
    plan: Seeding,
    *,
    deadline: Deadline,
    advance: Callable[[int], None],
    transaction_timeout_s: float,
) -> Seeded:
    """Write the planned orders; call ``advance`` with the number of visible orders written since the last call."""
    partitions = topics.describe_one(admin(connection), plan.topic, deadline).partitions
    name = f"seed:{plan.topic}" if plan.transactional else None
    visible = aborted = 0
    with Writer(connection, plan.topic, name, transaction_timeout_s) as writer:
        began = time.monotonic()
        for chunk in chunks(plan, partitions):
            if plan.transactional:
                writer.begin()
            writer.write(chunk.records)
            if chunk.aborted:
                writer.abort()
                aborted += len(chunk.records)
                continue
            if plan.transactional:
                writer.commit()
            visible += len(chunk.records)
            advance(len(chunk.records))
        writer.flush()
    seconds = time.monotonic() - began
    open_id = _leave_open(connection, plan, partitions, transaction_timeout_s) if plan.leave_open else None
    return Seeded(plan.topic, partitions, plan.start, visible, aborted, seconds, open_id)


def _leave_open(connection: Connection, plan: Seeding, partitions: int, timeout_s: float) -> str:
    """Write a record per partition in a transaction left open; the brokers abort it after ``timeout_s`` seconds."""
    name = f"seed:{plan.topic}:open"
    writer = Writer(connection, plan.topic, name, timeout_s)
    writer.begin()
    writer.write(list(islice(ghost_records(plan, "open", partitions), partitions)))
    writer.flush()
    return name


def next_number(connection: Connection, topic: str, deadline: Deadline) -> int:
    """
    Return a number above those of the topic's orders.

    Each has an offset, so the sum of log ends is enough, unless an earlier seed had a higher start, or was interrupted
    when one partition had later orders than another. So each partition's last orders are read, too.
    """
    client = admin(connection)
    partitions = topics.describe_one(client, topic, deadline).partitions
    logs = offsets.log_offsets(client, topic, range(partitions), deadline)
    last = {p: (max(log.first, log.end - _LAST_ORDERS), log.end) for p, log in logs.items()}
    above = sum(log.end for log in logs.values())
    try:
        for record in chain.from_iterable(scan(connection, topic, last, READ_UNCOMMITTED)):
            if known := _KEY.fullmatch(record.key() or b""):
                above = max(above, int(known[1]) + 1)
    except BrewError as error:
        if denial_in(str(error)) is not Denial.RIGHT:  # who may write need not have the right to read
            raise
    return above


def resolve(connection: Connection, transactional_id: str, deadline: Deadline) -> None:
    """Fence the id, so that the coordinator aborts the transaction that its last holder left open."""
    Writer(connection, "", transactional_id, deadline.remaining_s())
