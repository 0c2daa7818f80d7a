"""The broker's side of the six steps, by librdkafka's transactional producer."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from brew import deadline as retry
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import DeadlineExceeded, Fatal
from brew.kafka.clients import BATCH_BYTES, LOG, ConnectionFailures, mapped, producer
from brew.kafka.committed_offset import locator
from brew.names import TransactionalId
from brew.offsets import Committed

# rdkafka_txnmgr.c, as the brokers answered AddPartitionsToTxn; the partitions beside it were `not attempted`.
_REFUSED = re.compile(r'Failed to add partition "([\w.-]+)" \[\d+\] to transaction: .*[Tt]opic authorization failed')


class AuthorizationFailures:
    """The topics of one transaction; `logger` is for its producer, who tells them once it is polled."""

    def __init__(self) -> None:
        self._topics: set[str] = set()

    def logger(self, above: logging.Logger) -> logging.Logger:
        """A logger that notes what it is told, and hands it to ``above``."""
        topics = self._topics  # no cycle through `self`: one of these is made for each transaction

        def note(record: logging.LogRecord) -> bool:
            found = _REFUSED.search(record.getMessage())
            if found is not None:
                topics.add(found[1])
            return True

        made = logging.Logger(above.name)  # noqa: LOG001 - one of the registry's would stay there for good
        made.parent = above
        made.addFilter(note)
        return made

    def step(self, step: str) -> str:
        """``step`` with the topics that were refused, as in `commit (no Write on topic a, b)`."""
        return f"{step} (no Write on topic {', '.join(sorted(self._topics))})" if self._topics else step


_CONNECT_S = 1.0
_FIRST_S = 0.01
_MOST_S = 3.0
_GROWTH = 1.25
PAUSE_S = 0.001
"""Between two calls of `fencing`."""


def connect_early(client: Producer, topic: str) -> None:
    """
    Have an idempotent producer connect before its first record, which mostly is out after 10 ms then, not 515.

    Where no broker answers it returns after a second; the first record waits then, and tells.
    """
    with contextlib.suppress(KafkaException):
        client.list_topics(topic, timeout=_CONNECT_S)


def fencing(client: Producer) -> Callable[[float], None]:
    """
    `init_transactions` with a time-out in seconds, to be called again and again until it does not raise.

    Where a connection is not up yet, or the transaction before is still being completed, librdkafka looks again after
    500 ms; called again, it looks at once (librdkafka 2.16: rd_kafka_idemp_start).
    """
    attempt_s = _FIRST_S

    def fence(timeout: float) -> None:
        nonlocal attempt_s
        within, attempt_s = min(attempt_s, timeout), min(_MOST_S, attempt_s * _GROWTH)
        client.init_transactions(within)

    return fence


def fenced(client: Producer, deadline: Deadline) -> None:
    """
    `init_transactions` by `fencing`, for a client of one's own.

    Raises:
        DeadlineExceeded: no answer in time.
    """
    attempt = fencing(client)

    def fence() -> None:
        with mapped("fence"):
            attempt(max(0.001, deadline.remaining_s()))

    retry_until(fence, "fence", deadline, PAUSE_S)


# A rejected record keeps its bytes, so the producer's own limit has to be wider than any topic's.
MESSAGE_MAX_BYTES = 100 * 1024 * 1024
_POLL_S = 0.05
_SAYS_NOT_WHY = {KafkaError._FATAL, KafkaError._STATE}  # noqa: SLF001 - the library's public names


@dataclass(frozen=True)
class TransactionSettings:
    """
    The group, and the broker's patience with an open transaction, in seconds.

    ``batch_bytes``: what the topics take at once, at most; brokers refuse larger batches, however small their records.
    """

    connection: Connection
    group: str
    timeout_s: float
    batch_bytes: int = BATCH_BYTES


class KafkaTransaction:
    """
    A producer made for one transaction, and the group's position beside it; who asks for that is kept.

    It may be used by the process that made it and for one transaction only: with one transaction per producer epoch
    a delayed EndTxn finds a newer epoch and is refused (docs/decisions/0002).
    """

    def __init__(self, settings: TransactionSettings, topic: str, partition: int) -> None:
        self._topic, self._partition, self._connection = topic, partition, settings.connection
        self._noes, self._refusals = ConnectionFailures(), AuthorizationFailures()
        txn_id = str(TransactionalId(settings.group, topic, partition))
        self._producer: Producer = producer(
            settings.connection,
            txn_id,
            timeout_s=settings.timeout_s,
            message_max_bytes=MESSAGE_MAX_BYTES,
            **{"batch.size": settings.batch_bytes, "error_cb": self._noes, "logger": self._refusals.logger(LOG)},
        )
        self._outcome_unknown = self._committed = False
        self._locator = locator(settings.connection, settings.group)
        self._located: list[Committed | None] = []
        self.produce: Callable[..., None] = self._producer.produce
        """Queue one record: (topic, value, key, partition, callback, its alias, timestamp_ms, headers)."""

    @contextlib.contextmanager
    def mapped(self, step: str) -> Iterator[None]:
        """Let client errors of `produce` leave as leaves of the error tree."""
        with mapped(step):
            try:
                yield
            except KafkaException as error:
                if error.args[0].code() in _SAYS_NOT_WHY:
                    # `produce` only says that the client has failed, or has to abort; a transactional call says why.
                    with mapped(self._named(step)):
                        self._producer.begin_transaction()
                raise

    def _named(self, step: str) -> str:
        """A step's name in an error, with the topics that the brokers refused; a poll has the client tell them."""
        with contextlib.suppress(KafkaException, SystemError):
            self._producer.poll(0)
        return self._refusals.step(step)

    def fence(self, deadline: Deadline) -> None:
        """
        End any older holder of the transactional id and abort its open transaction.

        Raises:
            Denied: the brokers do not let us in any more; without this look it would be a time-out after all the time.
        """
        attempt = fencing(self._producer)

        def fence(timeout: float) -> None:
            try:
                attempt(timeout)
            except KafkaException:
                self._producer.poll(0)
                self._noes.check(self._connection, "fence")
                raise

        self._call("fence", fence, deadline, PAUSE_S)

    def locate(self, deadline: Deadline) -> Committed | None:
        """The group's stable committed offset; None when there is none."""
        found = self._locator.committed(self._topic, self._partition, deadline)
        self._located = [found]
        return found

    def begin(self) -> None:
        with mapped("begin"):
            self._producer.begin_transaction()

    def make_room(self, deadline: Deadline) -> None:
        """Let the full queue drain a little."""
        deadline.check("produce")
        self._producer.poll(min(_POLL_S, deadline.remaining_s()))

    def settle(self, deadline: Deadline) -> None:
        """Return once what is queued was acknowledged, so that no batch gets ready while another one is on its way."""
        self.flush(deadline)

    def flush(self, deadline: Deadline) -> None:
        """
        Return once no record is queued any more; one that failed for good makes the commit fail (librdkafka manual).

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
        Put the group's next offset into the transaction, and see that it still stands where it was located.

        librdkafka takes only-invalid offsets for success and sends nothing, so they are refused here.

        Raises:
            Abortable: the group stands elsewhere, so what was written may be out already (docs/decisions/0012).
        """
        if until < 0:
            raise Fatal(f"send-offsets: {until} is no offset")
        offsets = [TopicPartition(self._topic, self._partition, until, metadata)]

        def send(timeout: float) -> None:
            group = self._locator.client().consumer_group_metadata()
            self._producer.send_offsets_to_transaction(offsets, group, timeout)

        self._call("send-offsets", send, deadline)
        for found in self._located:
            self._locator.standing.confirm(self._topic, self._partition, found, deadline)

    def commit(self, deadline: Deadline) -> None:
        self._outcome_unknown = True
        self._call("commit", self._producer.commit_transaction, deadline)
        self._outcome_unknown, self._committed = False, True

    def commit_without_waiting(self) -> None:
        """Put the commit on the wire and turn away (the crash point `commit-in-flight`)."""
        self._outcome_unknown = True
        with mapped("commit"):
            self._producer.commit_transaction(0.001)

    def abort(self, deadline: Deadline) -> None:
        """Abort and wait for the broker's answer; records still queued are dropped."""
        self._producer.purge()
        self._outcome_unknown = True
        self._call("abort", self._producer.abort_transaction, deadline)
        self._outcome_unknown = False

    def close(self) -> None:
        """
        Give sockets and threads back; an open transaction is aborted.

        After a commit or an abort without an answer nothing more is sent: the next fence decides.
        Harmless when repeated.
        """
        if self.produce is _closed:
            return
        # What this transaction was about is settled, or the next fence's. A client that has failed for good calls its
        # `error_cb` while its own exception is pending, which Python takes for a fault of the library.
        with contextlib.suppress(KafkaException, SystemError):
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
                with mapped(self._named(step)):
                    raise

        retry.retry_until(once, step, deadline, pause_s)


def _closed(*_args: object) -> None:
    raise Fatal("produce: the transaction's producer is closed")
