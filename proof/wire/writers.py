"""Writers of the experiments: two controls as in tutorials, and the product's with a producer per transaction."""

from __future__ import annotations

import contextlib
from typing import ClassVar

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka.clients import KafkaException, TopicPartition, consumer, mapped, producer
from brew.kafka.offsets import committed
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED, TransactionalId

STEP_S, _TIMEOUT_S, _MESSAGE_MAX = 20.0, 60.0, 1_000_000
# librdkafka 2.16 restarts from its bootstrap servers when its only broker connection breaks; a reused producer's next
# send-offsets then hung past its time-out (docs/decisions/0007). It also doubles its reconnect backoff with each of our
# cuts, up to ten seconds.
_STEADY = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 50}


class ReusingWriter:
    """
    The positive control: one producer for all transactions, with a single `init_transactions`.

    Works as in tutorials: commit, abort after an error, and create a new producer only after a fatal error.
    """

    _settings: ClassVar[dict[str, object]] = _STEADY
    _transactional = True

    def __init__(self, connection: Connection, group: str, source: str, output: str) -> None:
        self._name = str(TransactionalId(group, source, 0)) if self._transactional else None
        self._connection, self._group, self._source, self._output = connection, group, source, output
        self._reader = consumer(connection, group, READ_COMMITTED)
        self._open()

    def _open(self) -> None:
        self._producer = producer(
            self._connection, self._name, timeout_s=_TIMEOUT_S, message_max_bytes=_MESSAGE_MAX, **self._settings
        )
        if self._transactional:
            with mapped("fence"):
                self._producer.init_transactions(STEP_S)

    def begin(self) -> None:
        with mapped("begin"):
            self._producer.begin_transaction()

    def write(self, records: list[tuple[str, bytes]]) -> None:
        with mapped("produce"):
            for key, value in records:
                self._producer.produce(self._output, value, key, 0)
            self._producer.flush(STEP_S)

    def send_offsets(self, until: int) -> None:
        offsets = [TopicPartition(self._source, 0, until)]
        with mapped("send-offsets"):
            self._producer.send_offsets_to_transaction(offsets, self._reader.consumer_group_metadata(), STEP_S)

    def commit(self) -> None:
        with mapped("commit"):
            self._producer.commit_transaction(STEP_S)

    def abort(self) -> None:
        with mapped("abort"):
            self._producer.abort_transaction(STEP_S)

    def recover(self) -> None:
        """Replace the producer, as after a fatal error."""
        self._end()
        self._open()

    def close(self) -> None:
        self._end()
        self._reader.close()

    def _end(self) -> None:
        # librdkafka's `close` would wait without limit for the abort of an open transaction.
        with contextlib.suppress(KafkaException):
            self._producer.abort_transaction(STEP_S)
        del self._producer


class PlainWriter(ReusingWriter):
    """
    The positive control for records: no transactions and no sequence numbers.

    A batch that arrives twice is written twice. The consumer commits the position after the records.
    """

    _settings: ClassVar[dict[str, object]] = {"enable.idempotence": False, **_STEADY}
    _transactional = False
    _until = 0

    def begin(self) -> None:
        """Do nothing: there is no transaction."""

    def send_offsets(self, until: int) -> None:
        self._until = until

    def commit(self) -> None:
        with mapped("commit"):
            self._reader.commit(offsets=[TopicPartition(self._source, 0, self._until)], asynchronous=False)

    def abort(self) -> None:
        """Do nothing: written records stay."""


class StrictWriter:
    """The product's transaction, a new object each time: fence, locate, begin, produce, send offsets, commit."""

    def __init__(self, connection: Connection, group: str, source: str, output: str) -> None:
        self._settings = TransactionSettings(connection, group, _TIMEOUT_S)
        self._source, self._output = source, output
        self._now: KafkaTransaction | None = None

    @property
    def _transaction(self) -> KafkaTransaction:
        if self._now is None:
            raise RuntimeError("no transaction is open; call begin() first")
        return self._now

    def begin(self) -> None:
        self._now = KafkaTransaction(self._settings, self._source, 0)
        deadline = Deadline(STEP_S)
        self._now.fence(deadline)
        self._now.locate(deadline)
        self._now.begin()

    def write(self, records: list[tuple[str, bytes]]) -> None:
        with self._transaction.mapped("produce"):
            for key, value in records:
                self._transaction.produce(self._output, value, key, 0, None, None, 0, None)
        self._transaction.flush(Deadline(STEP_S))

    def send_offsets(self, until: int) -> None:
        self._transaction.send_offsets(until, "", Deadline(STEP_S))

    def commit(self) -> None:
        self._transaction.commit(Deadline(STEP_S))
        self.close()

    def abort(self) -> None:
        self._transaction.abort(Deadline(STEP_S))
        self.close()

    def recover(self) -> None:
        """Destroy the producer; the next fence and locate decide."""
        self.close()

    def close(self) -> None:
        if self._now is not None:
            self._now.close()
            self._now = None


class PositionReader:
    """Reads the group's stable committed offset, bypassing the proxy."""

    def __init__(self, connection: Connection, group: str, source: str) -> None:
        self._reader, self._source = consumer(connection, group, READ_COMMITTED), source

    def position(self) -> int | None:
        position = committed(self._reader, self._source, [0], Deadline(STEP_S))[0]
        return None if position is None else position.offset

    def close(self) -> None:
        self._reader.close()


Writer = ReusingWriter | StrictWriter
"""A transaction step by step; a step that fails raises a leaf of `brew.errors`."""
WRITERS: dict[str, type[Writer]] = {"reuse": ReusingWriter, "plain": PlainWriter, "strict": StrictWriter}
