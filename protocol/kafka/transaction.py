"""One Kafka transaction of one input partition: the broker's side of the six steps, errors mapped, waits bounded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from protocol import retry
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Fatal
from protocol.kafka.clients import (
    BATCH_BYTES,
    LOG,
    Connection,
    Noes,
    mapped,
    producer,
)
from protocol.kafka.locator import locator
from protocol.kafka.offsets import Committed
from protocol.kafka.prompt import PAUSE_S, fencing
from protocol.kafka.refusals import Refusals
from protocol.names import TransactionalId

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
        self._noes, self._refusals = Noes(), Refusals()
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
            self._locator.doubt()
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

        retry.again(once, step, deadline, pause_s)


def _closed(*_args: object) -> None:
    raise Fatal("produce: the transaction's producer is closed")
