"""
Look behind the log: open transactions, and raw batches with their producer and markers.

confluent-kafka can do neither; kafka-python speaks KIP-664 and hands out record batches undecoded.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from protocol.batches import OpenTransaction, RawBatch
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import BrewError, DeadlineExceeded, Fatal, Refused, Retriable
from protocol.kafka.clients import reach
from protocol.kafka.plain_client import KafkaAdminClient, PlainClient
from protocol.kafka.raw_fetch import fetch
from protocol.kafka.raw_format import parse_batches, parsed
from protocol.retry import again

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition as AdminPartition
    from kafka.errors import KafkaError as PlainKafkaError
    from kafka.errors import (
        KafkaTimeoutError,
        RetriableError,
        TransactionalIdNotFoundError,
        UnsupportedVersionError,
    )

__all__ = [
    "AdminPartition",
    "KafkaAdminClient",
    "NoSuchId",
    "OpenTransaction",
    "RawBatch",
    "RawLogs",
    "Unsupported",
    "ask",
    "open_admin",
    "open_transactions",
    "parse_batches",
    "plain_admin",
    "raw_batches",
    "raw_logs",
]

_FETCH_S = 60.0
_AT_ONCE = 100_000
"""
No limit: a broker answers a connection's requests one by one anyway, and with the library's own, 5, a sixth is refused,
or never answered, instead of waiting (3.0.12: half of the looks of four threads; 500 at once stood still).
"""
# librdkafka's name of a setting -> kafka-python's.
_SECURITY = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}


def open_transactions(
    connection: Connection, topic: str, partitions: Iterable[int], deadline: Deadline
) -> list[OpenTransaction]:
    """
    The transactions that are open in these partitions, by partition and first offset.

    The partition's leader knows producer and offset, the coordinator knows the transactional id and when it began;
    without an answer of the coordinator these two are None.
    """
    with plain_admin(connection, deadline) as admin:
        asked = [AdminPartition(topic, p) for p in partitions]
        states = ask(admin, deadline, "describe producers", admin._async_describe_producers, asked)  # noqa: SLF001
        found = [
            (partition.partition, producer)
            for partition, state in states.items()
            for producer in state.active_producers
            if producer.current_transaction_start_offset >= 0
        ]
        names = _names_and_starts(admin, {producer.producer_id for _, producer in found}, deadline) if found else {}
    nobody = (None, None)
    return sorted(
        (
            OpenTransaction(
                partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.current_transaction_start_offset,
                *names.get(producer.producer_id, nobody),
            )
            for partition, producer in found
        ),
        key=lambda one: (one.partition, one.first_offset),
    )


def _names_and_starts(
    admin: KafkaAdminClient, producer_ids: set[int], deadline: Deadline
) -> dict[int, tuple[str, float | None]]:
    """Producer id -> its transactional id, and the open transaction's age by this machine's clock."""
    listings = ask(
        admin,
        deadline,
        "list transactions",
        admin._async_list_transactions,  # noqa: SLF001
        None,
        sorted(producer_ids),
    )
    names = {one.transactional_id: one.producer_id for some in listings.values() for one in some}
    found = {}
    for name, producer_id in names.items():
        try:
            told = ask(admin, deadline, "describe transactions", admin._async_describe_transactions, [name])[name]  # noqa: SLF001
        except NoSuchId:
            continue
        began_ms = told.transaction_start_time_ms
        found[producer_id] = (name, max(0.0, time.time() - began_ms / 1000) if began_ms > 0 else None)
    return found


def raw_batches(
    connection: Connection, topic: str, partition: int, start: int, until: int, deadline: Deadline
) -> Iterator[RawBatch]:
    """
    Yield the batches that hold offsets of `[start, until)`, markers and open transactions included, in log order.

    Only headers are read: records are neither decompressed nor decoded. The first batch may begin below ``start``.

    Raises:
        Refused: the log begins above ``start``.
        DeadlineExceeded: the log could not be read to ``until`` in time.
    """
    if start >= until:
        return
    with raw_logs(connection, deadline) as logs:
        yield from (batch for batch, _ in logs.batches(topic, partition, start, until, deadline))


class RawLogs:
    """Raw batches of several partitions through one connection; made by `raw_logs`."""

    def __init__(self, admin: KafkaAdminClient) -> None:
        self._admin = admin

    def batches(
        self, topic: str, partition: int, start: int, until: int, deadline: Deadline | None = None
    ) -> Iterator[tuple[RawBatch, memoryview]]:
        """As `raw_batches`, each with its bytes; without a deadline every fetch has one of its own."""
        here = start
        while here < until:
            left = deadline or Deadline(_FETCH_S)
            left.check(f"raw batches of {topic}[{partition}]")
            data = _fetched(self._admin, AdminPartition(topic, partition), here, left)
            before = here
            for batch, content in parsed(data):
                if batch.base_offset >= until:
                    return
                if batch.last_offset >= here:
                    yield batch, content
                    here = batch.last_offset + 1
            if here == before:
                # Compaction may have taken the very last batches: then the log holds nothing up to its end.
                return

    def visible(
        self, topic: str, partition: int, offset: int, most: int, deadline: Deadline
    ) -> tuple[bytes, list[tuple[int, int]]]:
        """
        One fetch below the last stable offset: ``most`` bytes of raw batches, one batch at least; and which of them are
        aborted, as producer ids with the first offset of each transaction.
        """
        step = f"first record of {topic}[{partition}]"
        place = AdminPartition(topic, partition)

        async def call() -> Any:
            return await fetch(self._admin, place, offset, most, committed=True)

        answer = again(lambda: ask(self._admin, deadline, step, call), step, deadline)
        aborted = [(one.producer_id, one.first_offset) for one in answer.aborted_transactions or ()]
        return bytes(answer.records or b""), aborted


@contextmanager
def raw_logs(connection: Connection, deadline: Deadline) -> Iterator[RawLogs]:
    with plain_admin(connection, deadline) as admin:
        yield RawLogs(admin)


def _fetched(admin: KafkaAdminClient, partition: AdminPartition, offset: int, deadline: Deadline) -> bytes:
    step = f"raw batches of {partition.topic}"
    answer = again(lambda: ask(admin, deadline, step, fetch, admin, partition, offset), step, deadline)
    return bytes(answer.records or b"")


class Unsupported(Refused):
    """These brokers are too old for the question."""


class NoSuchId(Fatal):
    """The coordinator doesn't know the transactional id any more."""


def open_admin(connection: Connection, deadline: Deadline, request_s: float | None = None) -> KafkaAdminClient:
    """A client that its user closes; one request of it may take ``request_s``, or what ``deadline`` has left."""
    # librdkafka tells who is there and does not let us in; to kafka-python that, too, is a time that has passed.
    reach(connection, deadline, explain=False)
    left_ms = max(1, int(deadline.remaining_s() * 1000))
    settings = connection.settings()
    security = {theirs: settings[ours] for ours, theirs in _SECURITY.items() if ours in settings}
    with _told(f"connect to {connection.bootstrap}"):
        return PlainClient(
            bootstrap_servers=connection.bootstrap.split(","),
            client_id="brew-introspect",
            request_timeout_ms=left_ms if request_s is None else int(request_s * 1000),
            bootstrap_timeout_ms=left_ms,
            max_in_flight_requests_per_connection=_AT_ONCE,
            **security,
        )


@contextmanager
def plain_admin(connection: Connection, deadline: Deadline) -> Iterator[KafkaAdminClient]:
    admin = open_admin(connection, deadline)
    try:
        yield admin
    finally:
        admin.close()


def ask(admin: KafkaAdminClient, deadline: Deadline, step: str, call: Any, *arguments: Any) -> Any:
    """Run one of the library's coroutines to its end, or to the deadline's."""
    deadline.check(step)
    manager = admin._manager  # noqa: SLF001 - the only way to bound a call that makes several requests

    async def within() -> Any:
        return await manager.wait_for(manager.call_soon(call, *arguments), deadline.remaining_s() * 1000)

    with _told(step):
        return manager.run(within)


@contextmanager
def _told(step: str) -> Iterator[None]:
    """Let an error of kafka-python leave as a leaf of the tree in `protocol.errors`."""
    try:
        yield
    except PlainKafkaError as error:
        raise _as_ours(error, step) from error


def _as_ours(error: PlainKafkaError, step: str) -> BrewError:
    text = f"{step}: {error} ({type(error).__name__})"
    if isinstance(error, KafkaTimeoutError):
        return DeadlineExceeded(text)
    if isinstance(error, TransactionalIdNotFoundError):
        return NoSuchId(text)
    if isinstance(error, UnsupportedVersionError):
        return Unsupported(
            f"{text}: these brokers can't tell; Kafka 3.0 or later can (KIP-664), so ask after an upgrade"
        )
    return Retriable(text) if isinstance(error, RetriableError) else Fatal(text)
