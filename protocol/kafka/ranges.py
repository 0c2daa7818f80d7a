"""Read one partition range by range with a consumer that is kept between them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import cast

from confluent_kafka import KafkaError, TopicPartition

from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, classify
from protocol.kafka.clients import READ_COMMITTED, Connection, consumer, mapped
from protocol.kafka.scan import TRANSIENT, LogRecord

_BATCH = 10_000
_POLL_S = 0.05


class RangeReader:
    """
    The visible records of one partition; what was fetched beyond a range waits for the next one.

    Used by one thread at a time, in the process that made it. Nothing is ever committed under ``group``.
    """

    def __init__(self, connection: Connection, topic: str, partition: int, group: str) -> None:
        self._topic, self._partition = topic, partition
        # A range that ends in markers ends with the answer to a fetch that finds nothing more: that must not linger.
        quick: dict[str, str | int | bool] = {"queued.max.messages.kbytes": 32_768, "fetch.wait.max.ms": 20}
        self._consumer = consumer(connection, group, READ_COMMITTED, **quick)
        self._held: list[LogRecord] = []
        self._next = self._end = -1

    def read(self, start: int, until: int, deadline: Deadline, stop: threading.Event) -> Iterator[list[LogRecord]]:
        """
        Yield the visible records of `[start, until)`, in order; ``until`` is at most the last stable offset.

        The end is a record at or past ``until`` or the end-of-partition event there, never a count: markers and
        aborted records leave gaps.

        Raises:
            DeadlineExceeded: the range could not be read in time, or ``stop`` was set.
        """
        if start != self._next:
            self._seek(start)
        self._next = -1  # a reader that is left half way starts with a seek
        at = max(start, self._end)
        while at < until:
            got = self._held or self._poll(start, until, deadline, stop)
            self._held = []
            batch: list[LogRecord] = []
            for place, message in enumerate(got):
                error, offset = message.error(), message.offset()
                if error is not None:
                    self._end = max(self._end, self._after(error, offset))
                    at = max(at, self._end)
                elif offset < until:
                    batch.append(message)
                    at = offset + 1
                else:
                    self._held = got[place:]
                    at = until
                    break
            if batch:
                yield batch
        self._next = until

    def _poll(self, start: int, until: int, deadline: Deadline, stop: threading.Event) -> list[LogRecord]:
        if stop.is_set():
            raise DeadlineExceeded(f"read: {self._topic}[{self._partition}] was left because the run stops")
        deadline.check(f"read of {self._topic}[{self._partition}] offsets {start} to {until}")
        with mapped("read"):
            return cast("list[LogRecord]", self._consumer.consume(_BATCH, timeout=min(_POLL_S, deadline.remaining_s())))

    def _after(self, error: KafkaError, offset: int) -> int:
        """Where the log ends, if that is what the event says; what the client repairs by itself is passed over."""
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's public name
            return offset
        if error.retriable() or error.code() in TRANSIENT:
            return -1
        raise classify(error, f"read of {self._topic}[{self._partition}]")

    def _seek(self, start: int) -> None:
        self._held, self._end = [], -1
        with mapped("read"):
            self._consumer.assign([TopicPartition(self._topic, self._partition, start)])

    def close(self) -> None:
        self._consumer.close()
