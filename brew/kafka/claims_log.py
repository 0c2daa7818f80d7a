"""The claims topic as a log: append with the brokers' timestamps, read to the end; the rules are in `brew.claims`."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import cast

from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from brew.acl import advice
from brew.claims.log import Appended, Entry, Item
from brew.claims.messages import CONFIG, PARTITIONS
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused, classify
from brew.kafka import topics
from brew.kafka.clients import SILENT_S, admin, consumer, is_cut_off, mapped, producer
from brew.kafka.log_reader import LogRecord, ends_partition, scan
from brew.kafka.offsets import log_offsets
from brew.kafka.topics import TopicSpec
from brew.names import READ_UNCOMMITTED

logger = logging.getLogger(__name__)

_GROUP = "brew-claims"
_OPEN_S = 15.0
_EXISTS_S = 2.0
_BATCH = 10_000
_POLL_S = 0.1
_MESSAGE_BYTES = 16 * 1024 * 1024
_NO_POSITION = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - the library's public name
_FATAL = KafkaError._FATAL  # noqa: SLF001 - as above
_NOT_DELIVERED = {KafkaError._MSG_TIMED_OUT, KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001


@cache
def _warn_once(text: str) -> None:
    """Log a missing right at once: callers try again for a while, also with another `ClaimsLog`."""
    logger.warning("%s", text)


class ClaimsLog:
    """
    One claims topic, as a `brew.claims.log.Log`. For one thread at a time, in the process that opened it. ``create``:
    create the topic if it is missing, and open a producer. Raises `Refused`: the topic is missing, or can't be created;
    later: it was deleted, recreated or emptied.
    """

    def __init__(self, connection: Connection, topic: str, *, create: bool = True) -> None:
        deadline = Deadline(_OPEN_S)
        self._connection, self._topic = connection, topic
        self._admin = admin(connection)
        if create and not topics.describe(self._admin, [topic], deadline):
            topics.create(self._admin, [TopicSpec(topic, PARTITIONS, CONFIG)], deadline)
        # Another program may have just created it through another broker: wait until all brokers know it.
        description = topics.describe_all(self._admin, [topic], deadline)[topic] if create else None
        self.partitions = (description or topics.describe_one(self._admin, topic, deadline)).partitions
        self._producer: Producer | None = None
        if create:
            # A producer needs half a second before its first record (measured); it connects while the log is read.
            self._writer()
        self._reader: Consumer | None = None
        self._failing_since, self._missing = math.inf, False
        self._next: dict[int, int] = {}
        self._waiting: list[Entry] = []
        self._refused: KafkaFailure | None = None  # the client library reports a missing Read once, then is silent

    @property
    def _reading(self) -> str:
        return f"read of topic {self._topic} as {_GROUP}"

    @contextlib.contextmanager
    def _renewing(self) -> Iterator[None]:
        """
        Replace, for the next call, a client that has lost the brokers for good and would fail forever. Only a record
        that was read back shows that all is well: a cut-off reader does not keep appends from succeeding, and a read of
        what there is asks no broker.
        """
        began = time.monotonic()
        try:
            yield
        except (DeadlineExceeded, KafkaFailure) as error:
            lacks = advice(str(error), self._connection.user, {"claims": self._topic}, self._connection.source)
            if lacks is not None:
                _warn_once(f"{error}; {lacks}")
            self._failing_since = min(self._failing_since, began)
            if time.monotonic() - self._failing_since >= SILENT_S:
                self._check_exists()
                self.replace_cut_off()
            raise

    def _check_exists(self) -> None:
        """Refuse to go on if the topic was deleted, which clients take for an outage; once may be a broker's start."""
        with contextlib.suppress(DeadlineExceeded, KafkaFailure):
            missing = self._topic not in topics.describe(self._admin, [self._topic], Deadline(_EXISTS_S))
            if missing and self._missing:
                raise Refused(
                    f"topic {self._topic!r} was deleted, so nobody can own a partition; start again, which creates it"
                )
            self._missing = missing

    def replace_cut_off(self) -> None:
        """Replace the clients that have lost the brokers for good."""
        cut_off = partial(is_cut_off, connection=self._connection, topic=self._topic)
        if cut_off(self._admin):
            self._admin = admin(self._connection)
        if self._producer is not None and cut_off(self._producer):
            self._producer = None
        if self._reader is not None and cut_off(self._reader):
            self._open_reader()

    def append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
        """Append as `brew.claims.log.Log` describes; records not delivered in time are removed from the queue."""
        with self._renewing():
            return self._append(items, deadline)

    def _append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
        reports: dict[int, tuple[KafkaError | None, Message]] = {}

        def queue(writer: Producer, index: int, item: Item) -> None:
            def delivered(error: KafkaError | None, message: Message) -> None:
                reports[index] = error, message

            writer.produce(self._topic, item.value, item.key, item.partition, on_delivery=delivered)

        writer = self._writer()
        with mapped(f"append to topic {self._topic}"):
            for index, item in enumerate(items):
                try:
                    queue(writer, index, item)
                except KafkaException as error:
                    if index or error.args[0].code() != _FATAL:
                        raise
                    # The producer failed before and gives no reason; a new one reports it with its first record.
                    self._producer = None
                    writer = self._writer()
                    queue(writer, index, item)
            writer.flush(deadline.remaining_s())
        if len(reports) < len(items):
            writer.purge()
            writer.flush(0)
            raise DeadlineExceeded(f"append to topic {self._topic}: no answer within {deadline.budget_s:g} s")
        self._raise_first([error for error, _ in reports.values() if error is not None])
        self._missing = False
        messages = [reports[index][1] for index in range(len(items))]
        for message in messages:
            self._check_time(message.timestamp()[0])
        return [
            Appended(cast("int", message.partition()), cast("int", message.offset()), message.timestamp()[1])
            for message in messages
        ]

    def _writer(self) -> Producer:
        if self._producer is None:
            self._producer = producer(
                self._connection,
                None,
                timeout_s=_OPEN_S,
                message_max_bytes=_MESSAGE_BYTES,
                **{"linger.ms": 0, "compression.type": "zstd"},
            )
        return self._producer

    def _raise_first(self, errors: Sequence[KafkaError]) -> None:
        for error in errors:
            if error.code() in _NOT_DELIVERED:
                raise DeadlineExceeded(f"append to topic {self._topic}: {error.str()}")
            # A producer with a fatal error accepts no more records; the next append creates a new one.
            self._producer = None
            raise classify(error, f"append to topic {self._topic}")

    def _check_time(self, kind: int) -> None:
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            raise Refused(
                f"topic {self._topic!r} stores the producers' timestamps, and claims need the brokers'; set "
                "message.timestamp.type=LogAppendTime and start again, or name another claims topic (--claims)"
            )

    def bounds(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
        with self._renewing():
            logs = log_offsets(self._admin, self._topic, range(self.partitions), deadline)
        return {partition: (log.first, log.end) for partition, log in logs.items()}

    def history(self, ranges: Mapping[int, tuple[int, int]], deadline: Deadline) -> list[Entry]:
        entries: list[Entry] = []
        idle_s = max(0.1, deadline.remaining_s())
        for batch in scan(self._connection, self._topic, ranges, READ_UNCOMMITTED, idle_s=idle_s, group=_GROUP):
            entries += [self._entry(record) for record in batch]
            deadline.check("reading the claims topic")
        return entries

    def tail(self, starts: Mapping[int, int]) -> None:
        self._next, self._waiting = dict(starts), []
        self._open_reader()

    def _open_reader(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = consumer(self._connection, _GROUP, READ_UNCOMMITTED, **{"enable.partition.eof": False})
        self._refused = None
        with mapped(self._reading):
            self._reader.assign([TopicPartition(self._topic, p, start) for p, start in self._next.items()])

    def read(self, until: Mapping[int, int], deadline: Deadline) -> list[Entry]:
        with self._renewing():
            return self._read(until, deadline)

    def _read(self, until: Mapping[int, int], deadline: Deadline) -> list[Entry]:
        reader, wait_s = self._reader, 0.0
        if reader is None:
            raise ValueError("call `tail` first: it sets where to read from")
        while True:
            with mapped(self._reading):
                first = reader.poll(wait_s)
                rest = [] if first is None else reader.consume(_BATCH, timeout=0)
            self._keep(cast("list[LogRecord]", [message for message in (first, *rest) if message is not None]))
            if all(self._next[partition] >= end for partition, end in until.items()):
                if until:
                    self._failing_since = math.inf
                entries, self._waiting = self._waiting, []
                return entries
            if deadline.expired():
                if self._refused is not None:
                    raise self._refused
                deadline.check("reading the claims topic")
            wait_s = min(_POLL_S, deadline.remaining_s())

    def _keep(self, events: Sequence[LogRecord]) -> None:
        """Keep all records, then raise for an error among them: the client returns none of these events again."""
        failures: list[BrewError] = []
        for event in events:
            error = event.error()
            if error is None:
                self._refused = None
                self._waiting.append(self._entry(event))
                self._next[event.partition()] = event.offset() + 1
            elif failure := self._failure(error):
                failures.append(failure)
        if failures:
            raise next((one for one in failures if isinstance(one, Refused)), failures[0])

    def _failure(self, error: KafkaError) -> BrewError | None:
        if error.code() == _NO_POSITION:
            return Refused(
                f"topic {self._topic!r} no longer holds the next offset to read ({error.str()}): it was recreated or "
                "emptied; start again"
            )
        try:
            with mapped(self._reading):
                ends_partition(error, {KafkaError.UNKNOWN_TOPIC_OR_PART})
        except KafkaFailure as refused:
            self._refused = refused
            return refused
        return None

    def _entry(self, record: LogRecord) -> Entry:
        kind, time_ms = record.timestamp()
        self._check_time(kind)
        return Entry(record.partition(), record.offset(), time_ms, record.key() or b"", record.value())

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        if self._producer is not None:
            self._producer.purge()
            with contextlib.suppress(KafkaException):
                self._producer.flush(0)
        self._producer = None
