"""The six steps of a transaction with librdkafka's transactional producer."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from brew import deadline as retry
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import BrewError, DeadlineExceeded, Fatal, Fenced
from brew.kafka.clients import BATCH_BYTES, LOG, ConnectionFailures, mapped, producer
from brew.kafka.committed_offset import Locator, locator
from brew.names import SinkTransactionalId, TransactionalId
from brew.offsets import Committed

# rdkafka_txnmgr.c logs this after a refused AddPartitionsToTxn; other partitions are logged as `not attempted`.
_REFUSED = re.compile(r'Failed to add partition "([\w.-]+)" \[\d+\] to transaction: .*[Tt]opic authorization failed')


class AuthorizationFailures:
    """Collects the topics that the brokers refused in one transaction, from the log lines of its producer."""

    def __init__(self) -> None:
        self._topics: set[str] = set()

    def logger(self, parent: logging.Logger) -> logging.Logger:
        """Return a logger for the producer that notes refused topics and passes every line on to ``parent``."""
        topics = self._topics  # avoids a cycle through `self`: each transaction has one of these

        def note(record: logging.LogRecord) -> bool:
            match = _REFUSED.search(record.getMessage())
            if match is not None:
                topics.add(match[1])
            return True

        logger = logging.Logger(parent.name)  # noqa: LOG001 - a registered logger would never be freed
        logger.parent = parent
        logger.addFilter(note)
        return logger

    def step(self, step: str) -> str:
        """Return ``step`` with the topics that were refused, as in `commit (no Write on topic a, b)`."""
        return f"{step} (no Write on topic {', '.join(sorted(self._topics))})" if self._topics else step


_CONNECT_S = 1.0
_FIRST_ATTEMPT_S = 0.01
_MAX_ATTEMPT_S = 3.0
_GROWTH = 1.25
PAUSE_S = 0.001
"""Between two calls of `fencing`."""


def connect_early(client: Producer, topic: str) -> None:
    """
    Connect an idempotent producer before its first record, which then mostly takes 10 ms instead of 515.

    Returns after a second if no broker answers; the first record then reports the failure.
    """
    with contextlib.suppress(KafkaException):
        client.list_topics(topic, timeout=_CONNECT_S)


def fencing(client: Producer) -> Callable[[float], None]:
    """
    Return `init_transactions` with short, growing time-outs, to be repeated until it succeeds.

    While it connects, or while the previous transaction completes, librdkafka retries every 500 ms; a new call retries
    at once (librdkafka 2.16: rd_kafka_idemp_start).
    """
    attempt_s = _FIRST_ATTEMPT_S

    def fence(timeout: float) -> None:
        nonlocal attempt_s
        this_attempt_s, attempt_s = min(attempt_s, timeout), min(_MAX_ATTEMPT_S, attempt_s * _GROWTH)
        client.init_transactions(this_attempt_s)

    return fence


def fenced(client: Producer, deadline: Deadline) -> None:
    """
    Repeat `fencing` until `init_transactions` succeeds.

    Raises:
        DeadlineExceeded: no answer in time.
    """
    attempt = fencing(client)

    def fence() -> None:
        with mapped("fence"):
            attempt(max(0.001, deadline.remaining_s()))

    retry_until(fence, "fence", deadline, PAUSE_S)


# A rejected record keeps its bytes, so the producer's limit must be above that of any topic.
MESSAGE_MAX_BYTES = 100 * 1024 * 1024
_POLL_S = 0.05
_CLOSE_S = 5.0
_SEND_OFFSETS_S, _RETURN_S = 20.0, 1.0
"""The longest single call of `send_offsets_to_transaction`, and how long past its time-out it may return."""
_WITHOUT_REASON = {KafkaError._FATAL, KafkaError._STATE}  # noqa: SLF001 - the library's public names


@dataclass(frozen=True)
class TransactionSettings:
    """
    The group, and the transaction time-out in seconds.

    ``batch_bytes``: the largest batch that all topics accept; brokers refuse larger ones, however small the records.
    """

    connection: Connection
    group: str
    timeout_s: float
    batch_bytes: int = BATCH_BYTES


class KafkaTransaction:
    """
    One transaction with its own producer, and the group's position from the process's cached `Locator`.

    For one transaction only, in the process that made it: with one transaction per producer epoch, a delayed EndTxn
    meets a newer epoch and is refused (docs/decisions/0002).
    """

    def __init__(
        self,
        settings: TransactionSettings,
        topic: str,
        partition: int,
        transactional_id: SinkTransactionalId | None = None,
    ) -> None:
        self._topic, self._partition, self._connection = topic, partition, settings.connection
        self._connection_failures, self._refusals = ConnectionFailures(), AuthorizationFailures()
        txn_id = str(transactional_id or TransactionalId(settings.group, topic, partition))
        self._producer: Producer = producer(
            settings.connection,
            txn_id,
            timeout_s=settings.timeout_s,
            message_max_bytes=MESSAGE_MAX_BYTES,
            **{
                "batch.size": settings.batch_bytes,
                "error_cb": self._connection_failures,
                "logger": self._refusals.logger(LOG),
            },
        )
        self._open = self._outcome_unknown = self._committed = self._hangs = False
        self._locator = locator(settings.connection, settings.group)
        self._located: list[Committed | None] = []
        self.produce: Callable[..., None] = self._producer.produce
        """Queue one record: (topic, value, key, partition, callback, its alias, timestamp_ms, headers)."""

    @contextlib.contextmanager
    def mapped(self, step: str) -> Iterator[None]:
        """Raise client errors of `produce` as errors of `brew.errors`."""
        with mapped(step):
            try:
                yield
            except KafkaException as error:
                if error.args[0].code() in _WITHOUT_REASON:
                    # `produce` reports only that the producer failed or must abort; a transactional call says why.
                    with mapped(self._step_name(step)):
                        self._producer.begin_transaction()
                raise

    def _step_name(self, step: str) -> str:
        """Return the step's name for an error, with the refused topics; the poll makes the client log them."""
        with contextlib.suppress(KafkaException, SystemError):
            self._producer.poll(0)
        return self._refusals.step(step)

    def fence(self, deadline: Deadline) -> None:
        """
        Fence any older producer of the transactional id and abort its open transaction.

        Raises:
            Denied: the brokers refuse the login; without this check the call would only time out.
        """
        attempt = fencing(self._producer)

        def fence(timeout: float) -> None:
            try:
                attempt(timeout)
            except KafkaException:
                self._producer.poll(0)
                self._connection_failures.check(self._connection, "fence")
                raise

        with self._noting_fatal():
            self._call("fence", fence, deadline, PAUSE_S)

    def locate(self, deadline: Deadline) -> Committed | None:
        """Return the group's stable committed offset, or None if there is none."""
        committed = self._locator.committed(self._topic, self._partition, deadline)
        self._located = [committed]
        return committed

    def begin(self) -> None:
        with self._noting_fatal(), mapped("begin"):
            self._producer.begin_transaction()
        self._open = True

    @contextlib.contextmanager
    def _noting_fatal(self) -> Iterator[None]:
        """Send nothing more after a fatal error: the library's `close` would warn that its own abort failed."""
        try:
            yield
        except (Fatal, Fenced):
            self._outcome_unknown = True
            raise

    def make_room(self, deadline: Deadline) -> None:
        """Wait a moment for room in a full queue."""
        deadline.check("produce")
        self._producer.poll(min(_POLL_S, deadline.remaining_s()))

    def await_acks(self, deadline: Deadline) -> None:
        """Return once the queued records are acknowledged, so that no batch fills while another one is in flight."""
        self.flush(deadline)

    def flush(self, deadline: Deadline) -> None:
        """
        Return once no record is queued; a permanently failed record makes the commit fail (librdkafka manual).

        Raises:
            DeadlineExceeded: records are still queued.
        """
        with mapped("produce"):
            while self._producer.flush(min(1.0, deadline.remaining_s())) > 0:
                if deadline.expired():
                    raise DeadlineExceeded(
                        f"produce: {len(self._producer)} records undelivered after {deadline.budget_s:g} s"
                    )

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        """
        Add the group's next offset to the transaction, and confirm that the committed offset is still the located one.

        A negative ``until`` is refused, because librdkafka reports success for an invalid offset and sends nothing.

        Raises:
            Abortable: the committed offset changed, so the records may be visible already (docs/decisions/0012).
        """
        if until < 0:
            raise Fatal(f"send-offsets: {until} is not an offset")
        self._add_offsets(
            "send-offsets", self._locator, [TopicPartition(self._topic, self._partition, until, metadata)], deadline
        )
        for committed in self._located:
            self._locator.confirmation.confirm(self._topic, self._partition, committed, deadline)

    def _add_offsets(self, step: str, group: Locator, offsets: list[TopicPartition], deadline: Deadline) -> None:
        """
        Add offsets of a group to the transaction, in a thread: the call may outlive its time-out.

        It does while the group's coordinator is down (librdkafka issues 5456, 5511). Then this producer is given up:
        the next fence raises the epoch, and brokers refuse what this one still sends.

        Raises:
            DeadlineExceeded: the call did not return; the transaction can only be closed.
        """

        def send(timeout: float) -> None:
            limit_s = min(timeout, _SEND_OFFSETS_S)
            facts, add = group.client().consumer_group_metadata(), self._producer.send_offsets_to_transaction
            returned, failed = threading.Event(), list[BaseException]()

            def add_offsets() -> None:
                try:
                    add(offsets, facts, limit_s)
                except BaseException as error:  # noqa: BLE001 - raised by the caller
                    failed.append(error)
                finally:
                    returned.set()

            threading.Thread(target=add_offsets, name=step, daemon=True).start()
            if not returned.wait(limit_s + _RETURN_S):
                self._hangs = self._outcome_unknown = True
                raise DeadlineExceeded(
                    f"{step}: the client did not return within its time-out of {limit_s:g} s (the group's coordinator "
                    "may be down); the next attempt fences this producer"
                )
            if failed:
                raise failed.pop()  # not from a variable, which would keep the producer alive

        self._call(step, send, deadline)

    def commit(self, deadline: Deadline) -> None:
        self._outcome_unknown = True
        self._call("commit", self._producer.commit_transaction, deadline)
        self._open, self._outcome_unknown, self._committed = False, False, True

    def commit_without_waiting(self) -> None:
        """Send the commit without waiting for its answer (the crash point `commit-in-flight`)."""
        self._outcome_unknown = True
        with mapped("commit"):
            self._producer.commit_transaction(0.001)

    def abort(self, deadline: Deadline) -> None:
        """
        Drop queued records, abort, and wait for the broker's answer.

        Raises:
            DeadlineExceeded: at once if a call of the producer has not returned.
        """
        if self._hangs:
            raise DeadlineExceeded("abort: the producer has not returned from its last call; the next fence aborts")
        self._producer.purge()
        self._outcome_unknown = True
        self._call("abort", self._producer.abort_transaction, deadline)
        self._open = self._outcome_unknown = False

    def close(self) -> None:
        """
        Close the producer; an open transaction is aborted if a broker answers within 5 s. Idempotent.

        After an unanswered commit or abort, or a fatal error, nothing more is sent: the next fence decides the outcome.
        """
        if self.produce is _closed:
            return
        # The transaction has ended, or the next fence ends it. A producer with a fatal error calls its `error_cb` with
        # its own exception pending, which Python raises as SystemError.
        with contextlib.suppress(KafkaException, SystemError, BrewError):
            if self._open and not self._outcome_unknown:
                # The library's `close` would wait for the abort's answer without a limit.
                self.abort(Deadline(_CLOSE_S))
            if not self._outcome_unknown:
                self._producer.close()
        if self._located and not self._committed:
            self._locator.invalidate()
        self.produce = _closed
        del self._producer

    def _call(
        self, step: str, call: Callable[[float], None], deadline: Deadline, pause_s: float = retry.PAUSE_S
    ) -> None:
        def once() -> None:
            try:
                call(max(0.001, deadline.remaining_s()))
            except (KafkaException, SystemError):
                with mapped(self._step_name(step)):
                    raise

        retry.retry_until(once, step, deadline, pause_s)


def _closed(*_args: object) -> None:
    raise Fatal("produce: the transaction's producer is closed")
