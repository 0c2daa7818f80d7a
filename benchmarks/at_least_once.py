"""
Our pipeline without its transactions: `pipeline run`'s command line, with offsets committed after the output's flush.

It delivers at least once as long as no record fails permanently; the difference in time is the cost of exactly-once.
Spark's workers take the transaction out, too, when they unpickle the run's settings.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any

import brew.attempt
import brew.driver.run
from brew.deadline import Deadline
from brew.kafka.clients import Consumer, Producer, consumer, mapped, producer
from brew.kafka.offsets import committed
from brew.kafka.transaction import MESSAGE_MAX_BYTES, KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED
from brew.offsets import Committed
from pipeline.__main__ import main


class OutputThenOffsets(KafkaTransaction):
    """The same port without transactions; a partition's two clients serve all ranges."""

    _kept: dict[tuple[str, int], tuple[Producer, Consumer]] = {}  # noqa: RUF012 - shared by all ranges on purpose

    def __init__(self, settings: TransactionSettings, topic: str, partition: int) -> None:
        place = self._topic, self._partition = topic, partition
        if place not in self._kept:
            made = producer(
                settings.connection,
                None,
                timeout_s=settings.timeout_s,
                message_max_bytes=MESSAGE_MAX_BYTES,
                **{"batch.size": settings.batch_bytes},
            )
            self._kept[place] = made, consumer(settings.connection, settings.group, READ_COMMITTED)
        self._producer, self._positions = self._kept[place]
        self.produce: Callable[..., None] = self._producer.produce

    @contextmanager
    def mapped(self, step: str) -> Iterator[None]:
        with mapped(step):
            yield

    def fence(self, deadline: Deadline) -> None:
        deadline.check("fence")

    def locate(self, deadline: Deadline) -> Committed | None:
        return committed(self._positions, self._topic, [self._partition], deadline)[self._partition]

    def begin(self) -> None:
        self._producer.poll(0)

    def send_offsets(self, until: int, metadata: str, _deadline: Deadline) -> None:
        from brew.kafka.clients import TopicPartition  # noqa: PLC0415 - as a global it would be pickled by value

        with mapped("send-offsets"):
            self._positions.commit(
                offsets=[TopicPartition(self._topic, self._partition, until, metadata)], asynchronous=False
            )

    def commit(self, deadline: Deadline) -> None:
        deadline.check("commit")

    def commit_without_waiting(self) -> None:
        raise NotImplementedError("only commits that are waited for are supported")

    def abort(self, _deadline: Deadline) -> None:
        self._producer.purge()

    def close(self) -> None:
        """Do nothing; the clients are reused."""


def without_transactions(*values: Any) -> TransactionSettings:
    """Take the transactions out in this process, and return its settings."""
    brew.attempt.KafkaTransaction = OutputThenOffsets  # type: ignore[attr-defined,assignment]
    return TransactionSettings(*values)


class _Settings(TransactionSettings):
    def __reduce__(self) -> tuple[Callable[..., TransactionSettings], tuple[Any, ...]]:
        return without_transactions, tuple(getattr(self, field.name) for field in fields(self))


if __name__ == "__main__":
    brew.attempt.KafkaTransaction = OutputThenOffsets  # type: ignore[attr-defined,assignment]
    brew.driver.run.TransactionSettings = _Settings  # type: ignore[attr-defined]
    sys.argv[1:1] = ["run"]
    main()
