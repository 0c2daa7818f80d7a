"""Read whole topics: from the start to a known end (`FullTopicReader`), or from given offsets forever (`follow`)."""

from __future__ import annotations

import functools
import threading
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from typing import cast

from confluent_kafka import KafkaError, Message, TopicPartition

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from brew.kafka import topics
from brew.kafka.clients import admin, consumer, is_cut_off, mapped
from brew.kafka.cluster_admin import last_stable
from brew.kafka.log_reader import READ_HEADERS, Headers, LogRecord, ends_partition
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED

_BATCH = 10_000
_POLL_S = 0.1


def headers_of(record: LogRecord) -> Headers | None:
    """Return a record's headers; None if the client library can't read them, because a name is not UTF-8."""
    try:
        return READ_HEADERS(record) or []
    except (SystemError, UnicodeDecodeError):
        return None


def readable_headers(record: LogRecord) -> Headers:
    """Return a record's headers; raises `Refused` if a name is not UTF-8, since all that depends on them is unknown."""
    headers = headers_of(record)
    if headers is None:
        raise Refused(
            f"the record at partition {record.partition()}, offset {record.offset()} has a header whose name is not "
            "UTF-8, so the client library can't read its headers; `brew show` shows the rest of it"
        )
    return headers


class FullTopicReader:
    """
    The visible records of one topic, each returned once. For one thread at a time, in the process that made it. Nothing
    is ever committed under ``group``. ``positions``: the next offset to return, by partition. Raises `Refused`: the
    topic does not exist.
    """

    def __init__(self, connection: Connection, topic: str, group: str, deadline: Deadline) -> None:
        self.topic, self._connection = topic, connection
        options: dict[str, str | int | bool] = {"queued.max.messages.kbytes": 32_768, "fetch.wait.max.ms": 100}
        self._made = functools.partial(consumer, connection, group, READ_COMMITTED, **options)
        self._admin = admin(connection)
        self._described = topics.describe_one(self._admin, topic, deadline)
        logs = log_offsets(self._admin, topic, range(self._described.partitions), deadline)
        self.positions = {partition: log.first for partition, log in logs.items()}
        self._open()

    def _open(self) -> None:
        self._consumer = self._made()
        with mapped(f"read of {self.topic}"):
            self._consumer.assign([TopicPartition(self.topic, p, offset) for p, offset in self.positions.items()])

    def replace_if_cut_off(self) -> None:
        """Replace clients that have lost the brokers for good; call it after a time-out. Positions stay."""
        if any(is_cut_off(client, self._connection, self.topic) for client in (self._admin, self._consumer)):
            self._consumer.close()
            self._admin = admin(self._connection)
            self._open()

    def is_stale(self, deadline: Deadline) -> bool:
        """Return whether the topic was recreated or has new partitions, which are not read; `Refused` if it is gone."""
        found, known = topics.describe_one(self._admin, self.topic, deadline), self._described
        return (found.topic_id, found.partitions) != (known.topic_id, known.partitions)

    def ends(self, deadline: Deadline) -> dict[int, int]:
        """Return the current last stable offset of each partition."""
        return last_stable(self._admin, self.topic, self.positions, deadline)

    def read(self, until: Mapping[int, int], deadline: Deadline, stop: threading.Event) -> Iterator[list[LogRecord]]:
        """
        Yield the next records until all positions have reached ``until``; records beyond it may be included.

        Raises:
            DeadlineExceeded: it took too long, or ``stop`` was set; the next call continues from there.
            KafkaFailure: the topic can't be read.
        """
        while any(self.positions[partition] < end for partition, end in until.items()):
            if stop.is_set():
                raise DeadlineExceeded(f"read of {self.topic}: interrupted because the run stops")
            deadline.check(f"read of {self.topic}")
            with mapped(f"read of {self.topic}"):
                first = self._consumer.poll(min(_POLL_S, deadline.remaining_s()))
                rest = [] if first is None else self._consumer.consume(_BATCH, 0)
            batch: list[LogRecord] = []
            for message in cast("list[LogRecord]", [] if first is None else [first, *rest]):
                error = message.error()
                if error is None:
                    batch.append(message)
                    self.positions[message.partition()] = message.offset() + 1
                else:
                    partition = message.partition()
                    with mapped(f"read of {self.topic}[{partition}]"):
                        if ends_partition(error):  # past markers, which are not records
                            self.positions[partition] = max(self.positions[partition], message.offset())
            if batch:
                yield batch

    def close(self) -> None:
        self._consumer.close()


_FOLLOW_BATCH = 1000
_FOLLOW_POLL_S = 0.02
_GROUP = "brew-follow"


def follow(
    connection: Connection, starts: Mapping[str, Mapping[int, int]], isolation: str
) -> Generator[tuple[str, list[LogRecord]], None, None]:
    """Yield (topic, records) from ``starts`` on, for ever, whatever the client library recovers from by itself."""
    options: dict[str, str | int | bool] = {"fetch.wait.max.ms": 20, "enable.partition.eof": False}
    with closing(consumer(connection, _GROUP, isolation, **options)) as reader:
        reader.assign([TopicPartition(t, p, start) for t, offsets in starts.items() for p, start in offsets.items()])
        while True:
            with mapped("follow"):
                messages = [
                    message
                    for message in reader.consume(_FOLLOW_BATCH, timeout=_FOLLOW_POLL_S)
                    if _is_data_record(message)
                ]
            for topic, records in groupby(messages, key=lambda record: str(record.topic())):
                yield topic, cast("list[LogRecord]", list(records))


def _is_data_record(message: Message) -> bool:
    error = message.error()
    if error is not None:
        ends_partition(error, {KafkaError.UNKNOWN_TOPIC_OR_PART})
    return error is None
