"""Create librdkafka clients that log nothing to stderr, create no topics and verify checksums."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from brew.acl import advice
from brew.connection import Connection
from brew.deadline import Deadline, delivery_ms
from brew.errors import BrewError, Denied, Refused, Retriable, Unreachable, classify
from brew.kafka.oauth import client_settings
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.signals import interruptible

__all__ = [
    "BATCH_BYTES",
    "FULL_MS",
    "LOG",
    "READ_COMMITTED",
    "READ_UNCOMMITTED",
    "AdminClient",
    "Connection",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "TopicPartition",
    "admin",
    "attempt_s",
    "consumer",
    "mapped",
    "mapped_query",
    "producer",
    "reach",
]

# Without a logger, librdkafka prints a line to stderr every 50 ms while a broker is down.
LOG = logging.getLogger("brew.librdkafka")
LOG.addHandler(logging.NullHandler())
LOG.propagate = os.environ.get("BREW_CLIENT_LOG") == "1"

# Measured: these four reduce a new producer's init_transactions from 55 ms to 2 ms (docs/DESIGN.md).
_QUICK = {
    "enable.sparse.connections": False,
    "retry.backoff.ms": 2,
    "retry.backoff.max.ms": 20,
    "reconnect.backoff.ms": 5,
    "reconnect.backoff.max.ms": 1000,  # the default of 10 s is longer than a fail-over
}
# While a batch waits to be sent, librdkafka's thread spins (8 million polls for 2.4 million records with half of this).
# A topic accepts 1,048,588 bytes by default. `flush` sends what is queued, whatever the linger.
BATCH_BYTES = 1_000_000
FULL_MS = 10
"""How often a consumer with a full queue checks for room; the default of 1000 halves the speed of a Python loop."""
# With re-bootstrapping, a lost connection could make send_offsets_to_transaction wait forever, past its time-out (seen
# with librdkafka 2.16, docs/decisions/0007). Clients made for one transaction do not need it, and the cached one
# (`locator`) is discarded when it fails.
ONE_TRANSACTION = {"metadata.recovery.strategy": "none"}


# librdkafka sends nothing to a partition's new leader while the old one may come back (measured: 30 s of 30).
_ATTEMPT_S = 3.0
_FIRST_TIMEOUT_S = 0.25
"""`reach` checks for a refused login after this time, then after twice as long: the client itself keeps waiting."""
_NO_ANSWER = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}  # noqa: SLF001 - public names
_TLS_REFUSAL = re.compile("certificate|alert|wrong version", re.IGNORECASE)
_PAUSE_S = 0.05
_ACCESS_ERRORS = {KafkaError._AUTHENTICATION, KafkaError._SSL}  # noqa: SLF001 - public names


def _base(connection: Connection) -> dict[str, object]:
    return {"bootstrap.servers": connection.bootstrap, "logger": LOG, **_QUICK, **client_settings(connection)}


def producer(
    connection: Connection,
    transactional_id: str | None,
    *,
    timeout_s: float,
    message_max_bytes: int,
    **more: object,
) -> Producer:
    """
    Create a producer for one transaction, or an idempotent one if ``transactional_id`` is None.

    ``timeout_s`` is the transaction time-out, with the delivery time-out below it; without a transactional id it is the
    delivery time-out.
    """
    settings = {
        **_base(connection),
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 100,
        "batch.size": BATCH_BYTES,
        "queue.buffering.max.messages": 200_000,
        "queue.buffering.max.kbytes": 64 * 1024,
        "message.max.bytes": message_max_bytes,
        "message.timeout.ms": int(timeout_s * 1000),
        "partitioner": "murmur2_random",  # Java's partitioner, so that keys go where other producers put them
        "allow.auto.create.topics": False,
        "compression.type": "none",
        **more,
    }
    if transactional_id is not None:
        settings |= {"transactional.id": transactional_id, "transaction.timeout.ms": int(timeout_s * 1000)}
        settings |= {"message.timeout.ms": delivery_ms(timeout_s)}
        settings |= ONE_TRANSACTION
    return Producer(settings)


def consumer(connection: Connection, group: str, isolation: str, **more: object) -> Consumer:
    """Create a consumer that never commits on its own and raises an error, not a reset, when an offset is gone."""
    return Consumer({
        **_base(connection),
        "group.id": group,
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "check.crcs": True,
        "allow.auto.create.topics": False,
        "enable.partition.eof": True,
        "fetch.queue.backoff.ms": FULL_MS,
        **more,
    })  # fmt: skip


def admin(connection: Connection, **more: object) -> AdminClient:
    settings = {**_base(connection), **more}
    # Without it, the client keeps asking a dead controller for half a minute (measured).
    settings.setdefault("topic.metadata.refresh.interval.ms", 1000)
    return AdminClient(settings)  # type: ignore[arg-type]  # its stub has no logger


@interruptible()
def reach(connection: Connection, deadline: Deadline, *, explain: bool = True) -> None:
    """
    Return once a broker answers. Without ``explain``, a failure is not diagnosed.

    Raises:
        Unreachable: no broker answered within the deadline.
        Denied: a broker refused the login, or its certificate is not trusted.
    """
    failures, timeout_s = ConnectionFailures(), _FIRST_TIMEOUT_S
    try:
        client = admin(connection, error_cb=failures)
    except KafkaException as error:
        if "No provider for SASL mechanism" not in str(error):
            raise
        raise Refused(
            f"this confluent-kafka was built without {connection.properties.get('sasl.mechanism')}: Kerberos takes one "
            "that is built where librdkafka has libsasl2 (pip install --no-binary confluent-kafka confluent-kafka)"
        ) from error
    try:
        while True:
            try:
                client.list_topics(timeout=min(timeout_s, attempt_s(deadline)))
            except KafkaException:
                timeout_s *= 2
                client.poll(0)  # the callback gets connection errors only from here
                failures.check(connection, f"connect to {connection.bootstrap}")
                if deadline.expired():
                    raise
                time.sleep(min(_PAUSE_S, deadline.remaining_s()))
            else:
                return
    except KafkaException as error:
        text = f"no Kafka broker answered at {connection.bootstrap!r} within {deadline.budget_s:g} s"
        if not explain:
            raise Unreachable(text) from error
        from brew.kafka.connection_diagnosis import cause  # noqa: PLC0415 - imports Python's TLS, only on a failure

        diagnosis = cause(connection)
        raise Unreachable(f"{text}: {diagnosis.found}; {diagnosis.next}") from error


SILENT_S = 5.0
"""A client that has been silent for this long is checked for whether it still reaches a broker."""
_CUT_OFF_S = 1.0


def is_cut_off(client: Consumer | AdminClient | Producer, connection: Connection, topic: str) -> bool:
    """
    Return whether a client has lost the brokers for good: it gets no answer, but a new client does.

    A broker that is shutting down may answer that there are no brokers. librdkafka then forgets the only one it knows
    and reports nothing any more (its issue 5301, open with 2.16). Takes up to two seconds if nobody answers.
    """
    try:
        client.list_topics(topic, timeout=_CUT_OFF_S)
    except KafkaException:
        try:
            reach(connection, Deadline(_CUT_OFF_S), explain=False)
        except BrewError:
            return False
        return True
    return False


class ConnectionFailures:
    """
    An `error_cb` that keeps the last login or TLS error: librdkafka treats a wrong password or an untrusted certificate
    as temporary, and retries until time runs out.
    """

    def __init__(self) -> None:
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # A broker that is killed during the handshake also gives a TLS error, but a temporary one.
        tls = error.code() == KafkaError._SSL  # noqa: SLF001 - the library's public name
        if error.code() in _ACCESS_ERRORS and not (tls and not _TLS_REFUSAL.search(error.str())):
            self._last = error

    def check(self, connection: Connection, step: str) -> None:
        """
        Raises:
            Denied: a login or a TLS handshake was refused; the text has the library's message and what to check.
        """
        if self._last is not None:
            from brew.kafka.connection_diagnosis import tls_failure  # noqa: PLC0415 - as in `reach`

            reason = tls_failure(connection) if self._last.code() == KafkaError._SSL else None  # noqa: SLF001 - as above
            text = f"{step}: {self._last.str()} ({self._last.name()}{f'; {reason}' if reason else ''})"
            raise Denied(f"{text}; {advice(text, connection.user, {}, connection.source)}")


@contextmanager
def mapped(step: str) -> Iterator[None]:
    """Raise a client error of this step as one of `brew.errors`."""
    try:
        yield
    except (KafkaException, SystemError) as error:
        # No local variable may hold the exception: its traceback keeps the callers' frames, and so a producer, alive.
        cause = _cause(error)
        if cause is None:
            # A signal handler raised inside the client's call: report its exception.
            if isinstance(error, SystemError) and error.__cause__ is not None:
                raise error.__cause__ from error
            raise
        raise classify(cause, step) from error


def _cause(error: KafkaException | SystemError) -> KafkaError | None:
    """Return the client library's error, or None if the exception came from elsewhere."""
    # The library runs callbacks (our logger) with its own exception pending, which Python then sets as the cause.
    client_error = error if isinstance(error, KafkaException) else error.__cause__
    if not isinstance(client_error, KafkaException):
        return None
    cause = client_error.args[0]
    # `_FAIL` is the library's name for "local failure".
    return cause if isinstance(cause, KafkaError) else KafkaError(KafkaError._FAIL, str(cause), True)  # noqa: SLF001


def attempt_s(deadline: Deadline) -> float:
    """Return the time-out of one admin request; if its broker is gone, the client waits it out despite a new leader."""
    return min(_ATTEMPT_S, max(0.001, deadline.remaining_s()))


@contextmanager
def mapped_query(step: str) -> Iterator[None]:
    """Like `mapped`, for a query that is repeated: no answer within one attempt is retriable."""
    with mapped(step):
        try:
            yield
        except KafkaException as error:
            cause = error.args[0]
            if isinstance(cause, KafkaError) and cause.code() in _NO_ANSWER:
                raise Retriable(f"{step}: {cause.str()}") from error
            raise
