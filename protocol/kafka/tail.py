"""Read one partition on and on: whatever is there now, and where it ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from confluent_kafka import Consumer, KafkaError, TopicPartition

from protocol.errors import classify
from protocol.kafka.clients import FULL_MS, ONE_TRANSACTION, READ_COMMITTED, Connection, consumer, mapped
from protocol.kafka.scan import TRANSIENT, LogRecord

_FIRST_GUESS_BYTES = 4096
_RECORD_OVERHEAD = 64
_LEAST_FETCH = 1024 * 1024
IDLE_MS = 100


class Taken(NamedTuple):
    """
    The visible records of `[start, until)`, in order, and about how many bytes these are.

    ``until`` is one past the last record, or the end of the partition where that was reached: markers and aborted
    records at the end count as read.
    """

    records: Sequence[LogRecord]
    until: int
    size: int


class Tail:
    """
    The visible records of one partition from ``start`` on, each given out once.

    Used by one thread, in the process that made it. ``ahead_bytes`` bounds what is fetched before it is asked for.
    ``idle_ms``: a broker keeps a fetch that finds nothing for so long, and until it answers no end is told.
    ``full_ms``: where as much as that is there, the client looks after so long whether there is room.
    Nothing is ever committed under ``group``.
    """

    def __init__(
        self,
        connection: Connection,
        group: str,
        topic: str,
        partition: int,
        start: int,
        ahead_bytes: int,
        idle_ms: int = IDLE_MS,
        full_ms: int = FULL_MS,
    ) -> None:
        self._place = f"{topic}[{partition}]"
        ahead: dict[str, str | int | bool] = {
            "queued.max.messages.kbytes": max(1, ahead_bytes // 1024),
            "queued.min.messages": 1_000_000,  # the bytes above are the bound
            "fetch.message.max.bytes": min(ahead_bytes, _LEAST_FETCH),
            "fetch.wait.max.ms": idle_ms,
            "fetch.queue.backoff.ms": full_ms,
            **ONE_TRANSACTION,
        }
        self._consumer: Consumer = consumer(connection, group, READ_COMMITTED, **ahead)
        self._mean_bytes = float(_FIRST_GUESS_BYTES)
        self._next = start
        with mapped("read"):
            self._consumer.assign([TopicPartition(topic, partition, start)])

    def take(self, most: int, most_bytes: int, wait_s: float) -> Taken | None:
        """
        What is there now: at most ``most`` records of about ``most_bytes`` together; None after ``wait_s`` of nothing.

        Raises:
            Fatal: the position is not in the log any more, or may not be read.
        """
        with mapped("read"):
            first = self._consumer.poll(wait_s)
            if first is None:
                return None
            more = min(most, int(most_bytes / self._mean_bytes)) - 1
            rest = self._consumer.consume(more, 0) if more > 0 else []
        records: list[LogRecord] = []
        end = self._next
        for message in cast("list[LogRecord]", [first, *rest]):
            error = message.error()
            if error is None:
                records.append(message)
            else:
                end = max(end, self._end(error, message.offset()))
        size = 0.0
        if records:
            end = max(end, records[-1].offset() + 1)
            size = self._weighed(records)
        if end == self._next:
            return None
        self._next = end
        return Taken(records, end, int(size))

    def _weighed(self, records: Sequence[LogRecord]) -> float:
        """
        What these weigh, by a sample. A batch is bounded by bytes, but the client counts records: the next take asks
        for what their mean allows, which falls by half at a time, since heavy ones may come back.
        """
        sample = records[:: max(1, len(records) // 16)]
        size = sum(len(one.value() or b"") + len(one.key() or b"") for one in sample) / len(sample) + _RECORD_OVERHEAD
        self._mean_bytes = max(size, (self._mean_bytes + size) / 2)
        return size * len(records)

    def _end(self, error: KafkaError, offset: int) -> int:
        """Where the partition ends, if that is what the event says; what the client repairs itself is passed over."""
        if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's public name
            return offset
        if error.retriable() or error.code() in TRANSIENT:
            return -1
        raise classify(error, f"read of {self._place}")

    def close(self) -> None:
        self._consumer.close()
