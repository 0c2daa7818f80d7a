"""
A hand-written peer: consume, enrich, produce, one transaction every 100 ms, until SIGTERM.

One consumer and one transactional producer, whose stable id fences what a dead run left open; a static member
(`--instance`) gets its partitions back at once. A transaction begins with its first record.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

import click
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from shared import CONSUMER, PRODUCER, enrich

from brew.kafka.log_reader import LogRecord
from brew.names import ExitCode
from brew.offsets import HEADER_OFFSET, HEADER_PARTITION, HEADER_TOPIC
from brew.records import ERROR_REASON

_POLL_S, _PATIENCE_S, _ROOM_S = 0.1, 30.0, 0.005


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the loop; ``commit_s`` is the length of a transaction."""

    bootstrap: str
    input: str
    output: str
    dead_letter: str
    group: str
    instance: str
    commit_s: float
    batch: int


class _Source(dict[int, list[tuple[str, bytes | None]]]):
    """Partition -> the two source headers shared by all its records; created on first access."""

    def __init__(self, topic: str) -> None:
        super().__init__()
        self._topic = topic

    def __missing__(self, partition: int) -> list[tuple[str, bytes | None]]:
        self[partition] = [(HEADER_TOPIC, self._topic.encode()), (HEADER_PARTITION, b"%d" % partition)]
        return self[partition]


class Loop:
    """Consumer, producer, and the state of the open transaction."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._producer = Producer(producer_settings(options))
        self._producer.init_transactions(_PATIENCE_S)  # settles pending offsets before the first fetch of offsets
        self._consumer = Consumer(consumer_settings(options))
        self._consumer.subscribe([options.input], on_revoke=self._revoked, on_lost=self._revoked)
        self._begun: float | None = None
        self._positions: dict[int, int] = {}
        self._source = _Source(options.input)
        self.stopping = False

    def run(self) -> None:
        while not self.stopping:
            left = _POLL_S if self._begun is None else self._begun + self._options.commit_s - time.monotonic()
            if left > 0:
                # `consume` waits for a full batch; in an idle loop the first record should not wait.
                wait = 0.005 if self._begun is None else 0.02
                got = self._consumer.consume(self._options.batch, timeout=min(left, wait))
                self._take(cast("list[LogRecord]", got))
            else:
                self._commit()
        if self._begun is not None:
            self._commit()
        self._consumer.close()

    def _take(self, messages: Sequence[LogRecord]) -> None:
        """Enrich and produce; every record passes through this loop, so its names are local."""
        positions, produce, output = self._positions, self._producer.produce, self._options.output
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal() or not error.retriable():
                    raise KafkaException(error)
                continue
            if self._begun is None:
                self._producer.begin_transaction()
                self._begun = time.monotonic()
            partition, offset, key = message.partition(), message.offset(), message.key()
            made = enrich(key, message.value())
            headers: Any = message.headers() or []
            value: bytes | None
            if type(made) is bytes:
                target, value = output, made
            else:
                headers.append((ERROR_REASON, str(made).encode()))
                target, value = self._options.dead_letter, message.value()
            headers += self._source[partition]
            headers.append((HEADER_OFFSET, b"%d" % offset))
            stamp = message.timestamp()[1]
            while True:
                try:
                    produce(target, value, key, partition, timestamp=stamp, headers=headers)
                    break
                except BufferError:
                    self._producer.poll(_ROOM_S)
            positions[partition] = offset + 1
        self._producer.poll(0)

    def _commit(self) -> None:
        """Commit records and positions together; abort and read again whatever cannot be committed."""
        positions = [TopicPartition(self._options.input, p, offset) for p, offset in self._positions.items()]
        try:
            self._producer.send_offsets_to_transaction(positions, self._consumer.consumer_group_metadata(), _PATIENCE_S)
            self._again(self._producer.commit_transaction)
        except KafkaException as failure:
            error = failure.args[0]
            if not isinstance(error, KafkaError) or not error.txn_requires_abort():
                raise
            self._abort(rewind=True)
        self._begun = None
        self._positions.clear()

    def _abort(self, *, rewind: bool) -> None:
        self._again(self._producer.abort_transaction)
        if rewind:
            for position in self._consumer.committed(self._consumer.assignment(), _PATIENCE_S):
                # Without a position, the partition is read from the start, as configured in the consumer.
                self._consumer.seek(TopicPartition(position.topic, position.partition, max(position.offset, -2)))
        self._begun = None
        self._positions.clear()

    @staticmethod
    def _again(call: Callable[[float], None]) -> None:
        """Repeat the call while it fails with a retriable error."""
        end = time.monotonic() + _PATIENCE_S
        while True:
            try:
                call(max(0.001, end - time.monotonic()))
            except KafkaException as failure:
                error = failure.args[0]
                if not isinstance(error, KafkaError) or not error.retriable() or time.monotonic() >= end:
                    raise
            else:
                return

    def _revoked(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        """Abort the open transaction with the revoked partitions; the next owner reads from the committed offsets."""
        if self._begun is not None:
            self._abort(rewind=False)


def producer_settings(options: Options) -> dict[str, object]:
    """Return the producer's settings; the transactional id is the group."""
    asked = {"bootstrap.servers": options.bootstrap, "logger": _quiet(), "transactional.id": options.group}
    return {**PRODUCER, **asked}


def consumer_settings(options: Options) -> dict[str, object]:
    """Return the consumer's settings; positions are committed by the transactions."""
    static = {"group.instance.id": options.instance} if options.instance else {}
    return {
        **CONSUMER,
        "bootstrap.servers": options.bootstrap,
        "logger": _quiet(),
        "group.id": options.group,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        **static,
    }


def _quiet() -> logging.Logger:
    return logging.getLogger("loop")


@click.command()
@click.option("--bootstrap", required=True, help="Kafka's bootstrap servers.")
@click.option("--input", required=True, help="Topic to read.")
@click.option("--output", required=True, help="Topic to write.")
@click.option("--dead-letter", required=True, help="Topic for rejected records.")
@click.option("--group", required=True, help="Consumer group, which is also the transactional id.")
@click.option("--instance", default="", help="Id of a static member of the group  [default: a dynamic member]")
@click.option("--commit-s", default=0.1, show_default=True, help="Length of a transaction, in seconds.")
@click.option("--batch", default=2_000, show_default=True, help="Maximum number of records per `consume` call.")
def main(**given: object) -> None:
    """Enrich orders in a hand-written transactional loop, for comparison."""
    loop = Loop(Options(**given))  # type: ignore[arg-type]

    def stop(_signal: int, _frame: FrameType | None) -> None:
        loop.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    loop.run()


if __name__ == "__main__":
    main()
    sys.exit(ExitCode.DONE)
