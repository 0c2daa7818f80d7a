"""Write orders to the input topic, plain or in transactions, and make sure that every one arrived."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from proof.seeding import Chunk, Record, Seeding, chunks, ghost_records
from protocol.deadline import Deadline
from protocol.errors import Fatal, Refused
from protocol.kafka import offsets, topics
from protocol.kafka.clients import Connection, KafkaError, KafkaException, Message, Producer, admin, mapped, producer
from protocol.kafka.prompt import connected, fenced
from protocol.retry import again

_MESSAGE_BYTES = 1_000_000
_POLL_S = 0.02
_GOODBYE_S = 3.0


@dataclass(frozen=True, slots=True)
class Seeded:
    """What a seeder did; ``open_id`` is the transactional id that it left open on purpose."""

    topic: str
    partitions: int
    first: int
    visible: int
    aborted: int
    seconds: float
    open_id: str | None

    def __str__(self) -> str:
        rate = self.visible / self.seconds if self.seconds else 0.0
        text = f"{self.visible} orders on {self.topic} ({self.partitions} partitions)"
        if self.visible:
            text += f", numbers {self.first} to {self.first + self.visible - 1}, {rate:,.0f} records/s"
        if self.aborted:
            text += f"; {self.aborted} more in aborted transactions"
        if self.open_id is not None:
            text += (
                f"; transaction left open by {self.open_id} (end it: python -m proof resolve --transactional-id ...)"
            )
        return text


class Writer:
    """A producer that counts what could not be delivered; reports of success cost nothing."""

    def __init__(self, connection: Connection, topic: str, transactional_id: str | None, timeout_s: float) -> None:
        self._topic = topic
        self._timeout_s = timeout_s
        self._transactional = transactional_id is not None
        self._failed: KafkaError | None = None
        self._client: Producer = producer(
            connection,
            transactional_id,
            timeout_s=timeout_s,
            message_max_bytes=_MESSAGE_BYTES,
            **{"delivery.report.only.error": True, "on_delivery": self._undelivered},
        )
        if transactional_id is not None:
            fenced(self._client, Deadline(timeout_s))
        else:
            connected(self._client, topic)

    def _undelivered(self, error: KafkaError, _message: Message) -> None:
        self._failed = self._failed or error

    def _step(self, name: str, call: Callable[[float], None]) -> None:
        deadline = Deadline(self._timeout_s)

        def ask() -> None:
            with mapped(name):
                call(max(0.001, deadline.remaining_s()))

        again(ask, name, deadline)

    def write(self, records: list[Record]) -> None:
        """Queue records, as fast as the brokers take them; `produce_batch` knows one partition per call."""
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
        if not isinstance(error, KafkaError) or error.code() != KafkaError._QUEUE_FULL:  # noqa: SLF001 - a public name
            raise Fatal(f"produce: {error}")
        return message

    def flush(self) -> None:
        """Return once everything queued is in the log; in slices, so that a signal is heard."""
        deadline = Deadline(self._timeout_s)
        while self._client.flush(min(0.5, deadline.remaining_s())):
            self._check()
            deadline.check(f"flush to {self._topic}")
        self._check()

    def _check(self) -> None:
        if self._failed is not None:
            raise Refused(
                f"an order could not be delivered to topic {self._topic!r}: {self._failed.str()}; "
                "look at the brokers' state, then seed again with another --start"
            )

    def begin(self) -> None:
        with mapped("begin"):
            self._client.begin_transaction()

    def commit(self) -> None:
        self.flush()
        self._step("commit", self._client.commit_transaction)

    def abandon(self) -> None:
        """Drop what is queued, and leave no transaction open if the brokers still answer."""
        self._client.purge()
        if self._transactional:
            with suppress(KafkaException):
                self._client.abort_transaction(_GOODBYE_S)

    def abort(self) -> None:
        # The flush puts the records into the log, where readers have to step over them.
        self.flush()
        self._step("abort", self._client.abort_transaction)


def seed(
    connection: Connection,
    plan: Seeding,
    *,
    deadline: Deadline,
    advance: Callable[[int], None] = lambda _count: None,
    transaction_timeout_s: float = 60.0,
) -> Seeded:
    """Carry the plan out; calls ``advance`` with the number of visible orders written since the last call."""
    partitions = topics.existing(admin(connection), plan.topic, deadline).partitions
    writer = Writer(connection, plan.topic, f"seed:{plan.topic}" if plan.transactional else None, transaction_timeout_s)
    began = time.monotonic()
    visible = aborted = 0
    try:
        for chunk in chunks(plan, partitions):
            if plan.transactional:
                _transaction(writer, chunk)
            else:
                writer.write(chunk.records)
            if chunk.aborted:
                aborted += len(chunk.records)
            else:
                visible += len(chunk.records)
                advance(len(chunk.records))
        writer.flush()
    except BaseException:
        writer.abandon()
        raise
    seconds = time.monotonic() - began
    open_id = _leave_open(connection, plan, partitions, transaction_timeout_s) if plan.leave_open else None
    return Seeded(plan.topic, partitions, plan.start, visible, aborted, seconds, open_id)


def _transaction(writer: Writer, chunk: Chunk) -> None:
    writer.begin()
    writer.write(chunk.records)
    if chunk.aborted:
        writer.abort()
    else:
        writer.commit()


def _leave_open(connection: Connection, plan: Seeding, partitions: int, timeout_s: float) -> str:
    """One record per partition in a transaction that nobody ends; the brokers abort it after ``timeout_s``."""
    name = f"seed:{plan.topic}:open"
    writer = Writer(connection, plan.topic, name, timeout_s)
    writer.begin()
    writer.write(list(islice(ghost_records(plan, "open", partitions), partitions)))
    writer.flush()
    return name


def next_number(connection: Connection, topic: str, deadline: Deadline) -> int:
    """A number above all that this topic's orders carry: every order has an offset, so their sum is enough."""
    client = admin(connection)
    partitions = topics.existing(client, topic, deadline).partitions
    return sum(log.end for log in offsets.log_offsets(client, topic, range(partitions), deadline).values())


def resolve(connection: Connection, transactional_id: str, deadline: Deadline) -> None:
    """Fence the id; the coordinator aborts what its last holder left open."""
    Writer(connection, "", transactional_id, deadline.remaining_s())
