"""
kafka-python's admin client without its leaks, and two requests that need it: raw batches and open transactions.

confluent-kafka supports neither; kafka-python implements KIP-664 and returns record batches undecoded.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from brew.cluster import OpenTransaction, RawBatch
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import BrewError, DeadlineExceeded, Fatal, Refused, Retriable
from brew.kafka.clients import reach
from brew.kafka.oauth import token, uses_tokens
from brew.sasl import extensions

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function on import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka.net.inet import KafkaNetSocket

__all__ = [
    "MAX_FETCH_BYTES",
    "AdminPartition",
    "DefaultRecordBatch",
    "KafkaAdminClient",
    "KafkaPythonAdmin",
    "NoSuchId",
    "OpenTransaction",
    "RawBatch",
    "RawLogs",
    "Unsupported",
    "ask",
    "batches_with_bytes",
    "error_title",
    "fetch",
    "kafka_python_admin",
    "message_class",
    "open_admin",
    "open_transactions",
    "parse_batches",
    "raw_batches",
    "raw_logs",
]

# Failures reach the caller as exceptions; the library would log them as well.
logging.getLogger("kafka").addHandler(logging.NullHandler())
logging.getLogger("kafka").propagate = False

_SCHEME = "closed-on-failure"


class _ClosedOnFailure(KafkaNetSocket):  # type: ignore[misc]
    """
    Direct connections, selected by the scheme of ``proxy_url`` like the library's own proxies.

    A cycle of its exception and a frame keeps a failed connection alive: its socket would stay open until the next
    garbage collection, four of them for each attempt of two seconds.
    """

    SCHEMES = (_SCHEME,)

    async def sock_connect(self, net: Any, sock: Any, sockaddr: Any, timeout_at: float | None = None) -> Any:
        try:
            return await super().sock_connect(net, sock, sockaddr, timeout_at=timeout_at)
        except BaseException:
            sock.close()
            raise


class KafkaPythonAdmin(KafkaAdminClient):  # type: ignore[misc]
    """The library's admin client, which also stops its thread when the constructor fails."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(proxy_url=f"{_SCHEME}://", **settings)
        except BaseException:
            if hasattr(self, "_net"):
                self._closed = False
                self.close()
            raise


with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function on import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as AdminPartition
    from kafka.errors import for_code, kafka_errors
    from kafka.protocol import admin as admin_messages
    from kafka.protocol import metadata as metadata_messages
    from kafka.protocol import producer as producer_messages
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.consumer import FetchRequest


MAX_FETCH_BYTES = 16 * 1024 * 1024
_COMMITTED = 1


async def fetch(
    admin: KafkaAdminClient,
    partition: AdminPartition,
    offset: int,
    max_bytes: int = MAX_FETCH_BYTES,
    *,
    committed: bool = False,
) -> Any:
    """
    Send one fetch request to the leader, outside any fetch session (epoch -1), and return the partition's answer.

    The answer holds up to ``max_bytes`` bytes, but at least one batch. ``committed``: read up to the last stable
    offset, and include the list of aborted transactions.
    """
    leader = next(iter(await admin._async_get_leader_for_partitions([partition])))  # noqa: SLF001
    requested = FetchRequest.FetchTopic.FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=max_bytes
    )
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=_COMMITTED if committed else 0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=partition.topic, partitions=[requested])],
        forgotten_topics_data=[],
        min_version=4,
        max_version=12,  # since 13, topics are named by id
    )
    response = await admin._manager.send(request, node_id=leader)  # noqa: SLF001
    answer = response.responses[0].partitions[0]
    if answer.error_code:
        raise for_code(answer.error_code)(f"fetch of {partition.topic}[{partition.partition}] at offset {offset}")
    return answer


with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function on import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch


_HEADER = DefaultRecordBatch.HEADER_STRUCT
_LENGTH_END = 12
_MAGIC_2 = 2


def parse_batches(data: bytes | memoryview) -> Iterator[RawBatch]:
    """Yield the complete batches of a fetch; an incomplete last one is skipped."""
    return (batch for batch, _ in batches_with_bytes(data))


def batches_with_bytes(data: bytes | memoryview) -> Iterator[tuple[RawBatch, memoryview]]:
    """Like `parse_batches`, each batch with its bytes."""
    view, position = memoryview(data), 0
    while position + _HEADER.size <= len(view):
        fields = _HEADER.unpack_from(view, position)
        end = position + _LENGTH_END + fields[1]
        if fields[3] != _MAGIC_2:
            raise Refused(
                f"the log holds record batches of format {fields[3]}, which has no transactions; "
                "format 2 is needed (brokers write it since Kafka 0.11): copy the topic to a new one"
            )
        if end > len(view):
            return
        control = bool(fields[5] & DefaultRecordBatch.CONTROL_MASK)
        batch = RawBatch(
            base_offset=fields[0],
            last_offset=fields[0] + fields[6],
            records=fields[12],
            producer_id=fields[9],
            producer_epoch=fields[10],
            base_sequence=fields[11],
            transactional=bool(fields[5] & DefaultRecordBatch.TRANSACTIONAL_MASK),
            control=control,
            marker=_marker(view[position:end]) if control else None,
            max_timestamp=fields[8],
        )
        yield batch, view[position:end]
        position = end


def _marker(batch: memoryview) -> str | None:
    for record in DefaultRecordBatch(batch):
        if record.abort:
            return "abort"
        if record.commit:
            return "commit"
    return None


with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function on import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import TopicPartition as AdminPartition
    from kafka.errors import KafkaError as PlainKafkaError
    from kafka.errors import KafkaTimeoutError, RetriableError, TransactionalIdNotFoundError, UnsupportedVersionError
    from kafka.net.sasl.oauth import AbstractTokenProvider


_FETCH_S = 60.0
_MAX_IN_FLIGHT = 100_000
"""
No limit, because a broker answers a connection's requests in order anyway. With the library's default of 5, a sixth
request is refused or never answered (3.0.12: half of the requests of four threads; 500 at once hung).
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
    "sasl.kerberos.service.name": "sasl_kerberos_service_name",
}


def open_transactions(
    connection: Connection, topic: str, partitions: Iterable[int], deadline: Deadline
) -> list[OpenTransaction]:
    """
    Return the transactions that are open in these partitions, by partition and first offset.

    The partition's leader knows producer and offset; the coordinator knows the transactional id and the start time,
    which are None if it does not answer.
    """
    with kafka_python_admin(connection, deadline) as admin:
        requested = [AdminPartition(topic, p) for p in partitions]
        states = ask(admin, deadline, "describe producers", admin._async_describe_producers, requested)  # noqa: SLF001
        open_producers = [
            (partition.partition, producer)
            for partition, state in states.items()
            for producer in state.active_producers
            if producer.current_transaction_start_offset >= 0
        ]
        known = (
            _transactional_ids_and_ages(admin, {producer.producer_id for _, producer in open_producers}, deadline)
            if open_producers
            else {}
        )
    unknown = (None, None)
    return sorted(
        (
            OpenTransaction(
                partition,
                producer.producer_id,
                producer.producer_epoch,
                producer.current_transaction_start_offset,
                *known.get(producer.producer_id, unknown),
            )
            for partition, producer in open_producers
        ),
        key=lambda transaction: (transaction.partition, transaction.first_offset),
    )


def _transactional_ids_and_ages(
    admin: KafkaAdminClient, producer_ids: set[int], deadline: Deadline
) -> dict[int, tuple[str, float | None]]:
    """Map producer ids to the transactional id and the age of its open transaction, by this machine's clock."""
    listings = ask(
        admin,
        deadline,
        "list transactions",
        admin._async_list_transactions,  # noqa: SLF001
        None,
        sorted(producer_ids),
    )
    names = {entry.transactional_id: entry.producer_id for listing in listings.values() for entry in listing}
    known = {}
    for name, producer_id in names.items():
        try:
            call = admin._async_describe_transactions  # noqa: SLF001
            description = ask(admin, deadline, "describe transactions", call, [name])[name]
        except NoSuchId:
            continue
        began_ms = description.transaction_start_time_ms
        known[producer_id] = (name, max(0.0, time.time() - began_ms / 1000) if began_ms > 0 else None)
    return known


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
        """Like `raw_batches`, each batch with its bytes; without a deadline, every fetch gets its own."""
        position = start
        while position < until:
            budget = deadline or Deadline(_FETCH_S)
            budget.check(f"raw batches of {topic}[{partition}]")
            data = _fetch_bytes(self._admin, AdminPartition(topic, partition), position, budget)
            previous = position
            for batch, content in batches_with_bytes(data):
                if batch.base_offset >= until:
                    return
                if batch.last_offset >= position:
                    yield batch, content
                    position = batch.last_offset + 1
            if position == previous:
                # Compaction may have removed the last batches; the log then holds nothing up to its end.
                return

    def visible(
        self, topic: str, partition: int, offset: int, max_bytes: int, deadline: Deadline
    ) -> tuple[bytes, list[tuple[int, int]]]:
        """
        Fetch up to ``max_bytes`` bytes of raw batches below the last stable offset, but at least one batch; return them
        with the aborted transactions among them, as (producer id, first offset).
        """
        step = f"first record of {topic}[{partition}]"
        tp = AdminPartition(topic, partition)

        async def call() -> Any:
            return await fetch(self._admin, tp, offset, max_bytes, committed=True)

        answer = retry_until(lambda: ask(self._admin, deadline, step, call), step, deadline)
        aborted = [
            (aborted_transaction.producer_id, aborted_transaction.first_offset)
            for aborted_transaction in answer.aborted_transactions or ()
        ]
        return bytes(answer.records or b""), aborted


@contextmanager
def raw_logs(connection: Connection, deadline: Deadline) -> Iterator[RawLogs]:
    with kafka_python_admin(connection, deadline) as admin:
        yield RawLogs(admin)


def _fetch_bytes(admin: KafkaAdminClient, partition: AdminPartition, offset: int, deadline: Deadline) -> bytes:
    step = f"raw batches of {partition.topic}"
    answer = retry_until(lambda: ask(admin, deadline, step, fetch, admin, partition, offset), step, deadline)
    return bytes(answer.records or b"")


class Unsupported(Refused):
    """These brokers are too old for the request."""


class NoSuchId(Fatal):
    """The coordinator does not know the transactional id."""


class _TokenProvider(AbstractTokenProvider):  # type: ignore[misc] # the library has no types
    """Tokens for a connection's login; the library asks for one whenever it connects."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self._settings = settings

    def token(self) -> str:
        return token(self._settings).text

    def extensions(self) -> dict[str, str]:
        return extensions(self._settings)


def open_admin(connection: Connection, deadline: Deadline, request_s: float | None = None) -> KafkaAdminClient:
    """Open a client, which the caller closes; each request may take ``request_s``, or the rest of ``deadline``."""
    # librdkafka reports a refused login; kafka-python would report a time-out.
    reach(connection, deadline, explain=False)
    left_ms = max(1, int(deadline.remaining_s() * 1000))
    settings = connection.settings()
    security: dict[str, Any] = {option: settings[name] for name, option in _SECURITY.items() if name in settings}
    if uses_tokens(settings):
        security["sasl_oauth_token_provider"] = _TokenProvider(settings)
    with _mapped_error(f"connect to {connection.bootstrap}"):
        return KafkaPythonAdmin(
            bootstrap_servers=connection.bootstrap.split(","),
            client_id="brew-introspect",
            request_timeout_ms=left_ms if request_s is None else int(request_s * 1000),
            bootstrap_timeout_ms=left_ms,
            max_in_flight_requests_per_connection=_MAX_IN_FLIGHT,
            **security,
        )


@contextmanager
def kafka_python_admin(connection: Connection, deadline: Deadline) -> Iterator[KafkaAdminClient]:
    admin = open_admin(connection, deadline)
    try:
        yield admin
    finally:
        admin.close()


def ask(admin: KafkaAdminClient, deadline: Deadline, step: str, call: Any, *arguments: Any) -> Any:
    """Run one of the library's coroutines within the deadline."""
    deadline.check(step)
    manager = admin._manager  # noqa: SLF001 - the only way to bound a call that makes several requests

    async def within() -> Any:
        return await manager.wait_for(manager.call_soon(call, *arguments), deadline.remaining_s() * 1000)

    with _mapped_error(step):
        return manager.run(within)


@contextmanager
def _mapped_error(step: str) -> Iterator[None]:
    """Raise an error of kafka-python as one of `brew.errors`."""
    try:
        yield
    except PlainKafkaError as error:
        raise _to_brew_error(error, step) from error


def _to_brew_error(error: PlainKafkaError, step: str) -> BrewError:
    text = f"{step}: {error} ({type(error).__name__})"
    if isinstance(error, KafkaTimeoutError):
        return DeadlineExceeded(text)
    if isinstance(error, TransactionalIdNotFoundError):
        return NoSuchId(text)
    if isinstance(error, UnsupportedVersionError):
        return Unsupported(f"{text}: these brokers do not support it; upgrade them to Kafka 3.0 or later (KIP-664)")
    return Retriable(text) if isinstance(error, RetriableError) else Fatal(text)


def _messages_in(module: Any) -> Iterator[Any]:
    return (thing for thing in vars(module).values() if isinstance(thing, type) and issubclass(thing, ApiMessage))


_MESSAGES = {
    (message.API_KEY, message.is_request()): message
    for module in (admin_messages, metadata_messages, producer_messages)
    for message in _messages_in(module)
}


def message_class(api: int, *, request: bool) -> Any:
    """Return the library's class of an administrative, metadata or producer request, or of its response."""
    return _MESSAGES[api, request]


def error_title(code: int) -> str | None:
    """Return the protocol's name of an error code, such as `INVALID_PRODUCER_EPOCH`, or None if it is unknown."""
    known = kafka_errors.get(code)
    return None if known is None else str(known.message)
