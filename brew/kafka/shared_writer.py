"""
A task's side of a shared transaction: write records under the driver's producer id and epoch, through aiokafka.

It adopts them with a private method of aiokafka (pinned in pyproject.toml; tests/unit/brew/sink/test_shares.py fails
when the method goes away). aiokafka adds partitions to the transaction by itself. Record batches arrive encoded
(`brew.kafka.arrow_batches`).

Sequence numbers start at 0 in each process, and brokers treat a repeated number as a duplicate whatever the batch
holds. So each output partition has exactly one writer per epoch, and no writer is repeated.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiokafka import AIOKafkaProducer
from aiokafka import errors as client_errors
from aiokafka.abc import AbstractTokenProvider
from aiokafka.helpers import create_ssl_context

from brew import sasl
from brew.connection import CA, CERTIFICATE, KEY, KEY_PASSWORD, MECHANISM, PASSWORD, PROTOCOL, USERNAME
from brew.deadline import Deadline, delivery_ms
from brew.errors import Abortable, DeadlineExceeded, Denied, Fenced
from brew.kafka import oauth
from brew.kafka.arrow_batches import batches_of
from brew.kafka.clients import reach
from brew.kafka.sink_transaction import SharedEpoch

if TYPE_CHECKING:
    import pyarrow as pa

# Failures reach the caller as exceptions; the library would log them as well.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())
logging.getLogger("aiokafka").propagate = False

_REQUEST_MS = 10_000
_RETRY_MS = 20
_CLOSE_S = 5.0
_REACH_S = 5.0
_DENIED = (client_errors.TopicAuthorizationFailedError, client_errors.TransactionalIdAuthorizationFailed)
_FENCED = (client_errors.ProducerFenced, client_errors.InvalidProducerEpoch)


class InvalidRecordError(client_errors.BrokerResponseError):  # type: ignore[misc]
    """The library knows no name for this code, and would report an unknown error."""

    errno = 87
    message = "INVALID_RECORD"


client_errors.kafka_errors.setdefault(InvalidRecordError.errno, InvalidRecordError)


@dataclass(slots=True)
class Written:
    """What one task wrote: the number of acknowledged records, and their partitions."""

    records: int = 0
    destinations: set[tuple[str, int]] = field(default_factory=set)


def write(epoch: SharedEpoch, chunks: Iterator[pa.RecordBatch], half_way: Callable[[], None] | None = None) -> Written:
    """
    Write all records of ``chunks`` (of `arrow_batches.SCHEMA`), and return once all are acknowledged.

    ``half_way`` is called after each chunk that has been sent.

    Raises:
        Fenced: a newer attempt has the transactional id.
        DeadlineExceeded: the first record is older than the transaction time-out allows.
        Abortable: a record was not accepted.
        Denied: a right is missing, or the login is refused.
        Unreachable: no broker answers.
    """
    try:
        return asyncio.run(_write(epoch, chunks, half_way))
    except TimeoutError as error:
        raise DeadlineExceeded(f"produce: records undelivered after {epoch.timeout_s:g} s") from error
    except _FENCED as error:
        raise Fenced(
            f"produce: {type(error).__name__}: a newer attempt has transactional id {epoch.transactional_id}, or the "
            "batch outlived its transaction time-out"
        ) from error
    except _DENIED as error:
        raise Denied(f"produce: {error} ({type(error).__name__})") from error
    except client_errors.KafkaConnectionError as error:
        reach(epoch.connection, Deadline(_REACH_S))  # aiokafka does not tell a refused login from a silent broker
        raise Abortable(f"produce: {error} ({type(error).__name__})") from error
    except (client_errors.KafkaError, AssertionError) as error:
        # aiokafka asserts that it is in a transaction, which no longer holds after a refusal.
        raise Abortable(f"produce: {error} ({type(error).__name__})") from error


async def _write(epoch: SharedEpoch, chunks: Iterator[pa.RecordBatch], half_way: Callable[[], None] | None) -> Written:
    # In a thread, so that the sender continues while rows are computed.
    chunk = await asyncio.to_thread(next, chunks, None)
    if chunk is None:
        return Written()
    producer = adopted(epoch)
    async with asyncio.timeout(delivery_ms(epoch.timeout_s) / 1000):
        try:
            await producer.start()
            await producer.begin_transaction()
            sender = _Sender(producer)
            while chunk is not None:
                await sender.queue(chunk)
                if half_way is not None:
                    await sender.finish()
                    half_way()
                chunk = await asyncio.to_thread(next, chunks, None)
            return await sender.finish()
        finally:
            await _closed(producer)


def adopted(epoch: SharedEpoch) -> AIOKafkaProducer:
    """Create a producer that writes under the driver's producer id and epoch, and never requests its own."""
    producer = AIOKafkaProducer(
        # librdkafka and kafka-python take PLAINTEXT://host:port, too.
        bootstrap_servers=[server.rpartition("://")[2] for server in epoch.connection.bootstrap.split(",")],
        client_id=epoch.connection.properties.get("client.id"),
        transactional_id=epoch.transactional_id,
        transaction_timeout_ms=int(epoch.timeout_s * 1000),
        request_timeout_ms=_REQUEST_MS,
        retry_backoff_ms=_RETRY_MS,
        **_security(epoch),
    )
    producer._txn_manager.set_pid_and_epoch(epoch.producer_id, epoch.epoch)  # noqa: SLF001 - see the module's docstring
    return producer


class _Sender:
    """Sends batches and counts the acknowledged records."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        self._sent: list[tuple[asyncio.Future[Any], int]] = []
        self._destinations = set[tuple[str, int]]()

    async def queue(self, chunk: pa.RecordBatch) -> None:
        for batch in batches_of(chunk, int(time.time() * 1000)):
            future = await self._producer.send_batch(batch, batch.topic, partition=batch.partition)
            self._sent.append((future, batch.count))
            self._destinations.add((batch.topic, batch.partition))

    async def finish(self) -> Written:
        """Wait for every acknowledgement."""
        await asyncio.gather(*(future for future, _ in self._sent))
        return Written(sum(count for _, count in self._sent), self._destinations)


async def _closed(producer: AIOKafkaProducer) -> None:
    """Stop the producer, ignoring its errors: a sender that was refused only raises the known error again."""
    try:
        await asyncio.wait_for(producer.stop(), _CLOSE_S)
    except (client_errors.KafkaError, TimeoutError):
        return


class _Tokens(AbstractTokenProvider):  # type: ignore[misc]
    """The process's token (`brew.kafka.oauth`), for aiokafka."""

    def __init__(self, settings: dict[str, str]) -> None:
        self._settings = settings

    async def token(self) -> str:
        return (await asyncio.to_thread(oauth.token, self._settings)).text

    def extensions(self) -> dict[str, str]:
        return sasl.extensions(self._settings)


def _security(epoch: SharedEpoch) -> dict[str, Any]:
    """Return the connection's settings by aiokafka's names."""
    settings = {name: str(value) for name, value in epoch.connection.settings().items()}
    protocol = settings.get(PROTOCOL, "PLAINTEXT")
    found: dict[str, Any] = {"security_protocol": protocol}
    if protocol.endswith("SSL"):
        found["ssl_context"] = create_ssl_context(
            cafile=settings.get(CA),
            certfile=settings.get(CERTIFICATE),
            keyfile=settings.get(KEY),
            password=settings.get(KEY_PASSWORD),
        )
    if protocol.startswith("SASL"):
        found["sasl_mechanism"] = settings.get(MECHANISM) or settings.get("sasl.mechanisms")
        found["sasl_plain_username"] = settings.get(USERNAME)
        found["sasl_plain_password"] = settings.get(PASSWORD)
    if oauth.uses_tokens(settings):
        oauth.token(settings)  # reports a refusal; aiokafka would treat it as an unavailable broker
        found["sasl_oauth_token_provider"] = _Tokens(settings)
    return found
