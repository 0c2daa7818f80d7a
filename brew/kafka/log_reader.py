"""Read partitions of a topic: whole ranges (`scan`), one range after another (`RangeReader`), or the tail."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from operator import methodcaller
from typing import NamedTuple, Protocol, TypeVar, cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException, TopicPartition

from brew.acl import SCAN_GROUP
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from brew.kafka.clients import FULL_MS, SILENT_S, ConnectionFailures, consumer, is_cut_off, mapped
from brew.names import READ_COMMITTED

_BATCH = 10_000
_IDLE_S = 60.0
_GROUP = SCAN_GROUP
# consume() waits for a full batch or for this long, so a scan idles for this long at its end.
_CONSUME_S = 0.01
# If a log ends in a marker, an empty fetch reports its end, and brokers delay it for this long. With the default of 500
# ms, a scan of 40 records before a commit marker took 556 ms, now 22 ms (600,000 records: no difference).
_LINGER_MS = 10
# Errors that librdkafka reports while it reconnects on its own.
TRANSIENT = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}  # noqa: SLF001 - public names


_T = TypeVar("_T")
Headers = list[tuple[str, bytes | None]]
Row = tuple[int, int, bytes | None, bytes | None, Headers, int | None]
"""Partition, offset, key, value, headers, and the producer's timestamp in ms (None if the broker set it)."""

# At a header's name that is not UTF-8, the client library returns a broken list beside its exception, and at the next
# call without one. A plain call may overlook it; the list ends the process (confluent-kafka 2.16.1, Python 3.11).
READ_HEADERS = methodcaller("headers")
HeadersAt = Callable[[str, int, int], Headers]
"""Topic, partition and offset -> the headers of a record whose headers the client library can't read."""


class LogRecord(Protocol):
    """A record as the client library returns it, typed for records that are read from a log."""

    def error(self) -> KafkaError | None: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


def ends_partition(error: KafkaError, passing: Collection[int] = ()) -> bool:
    """
    Classify an event that a consumer returns in place of a record.

    True: the end of its partition. False: the client library recovers on its own, or the code is one of ``passing``.

    Raises:
        KafkaException: everything else; call it inside `mapped`.
    """
    if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library's public name
        return True
    if error.retriable() or error.code() in TRANSIENT or error.code() in passing:
        return False
    raise KafkaException(error)


def scan(
    connection: Connection,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    isolation: str,
    *,
    idle_s: float = _IDLE_S,
    group: str = _GROUP,
) -> Generator[list[LogRecord], None, None]:
    """
    Yield the records of ``ranges`` (partition -> [start, until)) in offset order per partition.

    A range ends at the end-of-partition event or at an offset at or past ``until``, never by a count: markers leave
    gaps. Nothing is committed under ``group``; with ACLs it needs Describe. With `read_committed`, ``until`` must not
    be above the last stable offset at the start, or the scan would wait.

    Raises:
        DeadlineExceeded: nothing arrived for ``idle_s`` seconds.
    """
    yield from _scan(connection, topic, ranges, isolation, idle_s, group, _take_messages)


def unreadable(topic: str, partition: int, offset: int) -> Headers:
    """Raise `Refused`: nothing can be said of a record whose headers can't be read."""
    raise Refused(
        f"the record at {topic}[{partition}] offset {offset} has a header whose name is not UTF-8, so the client "
        "library can't read its headers, and the raw log could not be read either; `brew show` shows the rest of it"
    )


def scan_rows(
    connection: Connection,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    isolation: str,
    headers_at: HeadersAt = unreadable,
    *,
    group: str = _GROUP,
) -> Generator[list[Row], None, None]:
    """Like `scan`, with plain tuples instead of the library's messages: half the CPU time for millions of records."""
    take = functools.partial(_take_rows, topic=topic, headers_at=headers_at)
    yield from _scan(connection, topic, ranges, isolation, _IDLE_S, group, take)


def _scan(
    connection: Connection,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    isolation: str,
    idle_s: float,
    group: str,
    take: Callable[[list[LogRecord], dict[int, int]], list[_T]],
) -> Generator[list[_T], None, None]:
    remaining = {p: until for p, (start, until) in ranges.items() if start < until}
    if not remaining:
        return
    reader = consumer(
        connection, group, isolation, **{"queued.max.messages.kbytes": 65_536, "fetch.wait.max.ms": _LINGER_MS}
    )
    try:
        reader.assign([TopicPartition(topic, p, ranges[p][0]) for p in remaining])
        assigned = set(remaining)
        idle = Deadline(idle_s)
        while remaining:
            remaining_before = len(remaining)
            with mapped(f"scan of {topic}" if group == SCAN_GROUP else f"read of {topic} as {group}"):
                messages = cast("list[LogRecord]", reader.consume(_BATCH, timeout=min(_CONSUME_S, idle.remaining_s())))
                batch = take(messages, remaining)
            if batch:
                yield batch
            if batch or len(remaining) < remaining_before:
                # The caller's own time does not count as idle; errors and records past the ranges do.
                idle = Deadline(idle_s)
            elif idle.expired():
                raise DeadlineExceeded(
                    f"scan of {topic}: no record for {idle_s:g} s, partitions {sorted(remaining)} left"
                )
            if len(remaining) < remaining_before:
                # Stop fetching a finished partition, whatever is written to it.
                reader.incremental_unassign(
                    [TopicPartition(topic, p) for p in ranges if p not in remaining and p in assigned]
                )
                assigned &= remaining.keys()
    finally:
        reader.close()


def _take_messages(messages: list[LogRecord], remaining: dict[int, int]) -> list[LogRecord]:
    """Return the messages below their partition's end, and remove finished partitions from ``remaining``."""
    batch = []
    for message in messages:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is None:
            if partition in remaining and offset < remaining[partition]:
                batch.append(message)
            if partition in remaining and offset + 1 >= remaining[partition]:
                del remaining[partition]
        elif ends_partition(error) and partition in remaining and offset >= remaining[partition]:
            del remaining[partition]
    return batch


def _headers_of(records: list[LogRecord], topic: str, headers_at: HeadersAt) -> list[Headers]:
    headers: list[Headers] = []
    left = iter(records)
    while len(headers) < len(records):
        try:
            for pairs in map(READ_HEADERS, left):
                headers.append(pairs or [])  # noqa: PERF401 - its length tells which record failed
        except (SystemError, UnicodeDecodeError):
            record = records[len(headers)]
            headers.append(headers_at(topic, record.partition(), record.offset()))
    return headers


def _take_rows(
    messages: list[LogRecord],
    remaining: dict[int, int],
    topic: str = "",
    headers_at: HeadersAt = unreadable,
) -> list[Row]:
    """Like `_take_messages`, but check each record only if the batch ends a partition."""
    records = [message for message in messages if message.error() is None]
    rows = [
        (
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            headers,
            stamp[1] if (stamp := message.timestamp())[0] == TIMESTAMP_CREATE_TIME else None,
        )
        for message, headers in zip(records, _headers_of(records, topic, headers_at), strict=True)
    ]
    limits = dict(remaining)
    if len(rows) < len(messages):
        _take_messages([message for message in messages if message.error() is not None], remaining)
    last_offsets = {row[0]: row[1] for row in rows}
    if all(partition in limits and offset < limits[partition] for partition, offset in last_offsets.items()):
        wanted = rows
    else:
        wanted = [row for row in rows if row[0] in limits and row[1] < limits[row[0]]]
    for partition, offset in last_offsets.items():
        if partition in remaining and offset + 1 >= remaining[partition]:
            del remaining[partition]
    return wanted


_FIRST_GUESS_BYTES = 4096
_RECORD_OVERHEAD = 64
_MAX_FETCH = 1024 * 1024
IDLE_MS = 100


class FetchedRecords(NamedTuple):
    """
    The visible records of `[start, until)`, in order, and their approximate size in bytes.

    ``until`` is one past the last record, or the end of the partition if that was reached: markers and aborted records
    at the end count as read.
    """

    records: Sequence[LogRecord]
    until: int
    size: int


_QUIET_S, _ASK_S = 10.0, 1.0
"""After this long without an event, a consumer is asked for the log's end, and has this long to answer."""


class TailReader:
    """
    The visible records of one partition from ``start`` on, each returned once.

    For one thread, in the process that made it. ``ahead_bytes`` limits what is fetched ahead of `take`. ``idle_ms``:
    how long a broker holds an empty fetch; the end of the partition is reported only after that. ``full_ms``: how often
    a client with a full queue checks for room. Nothing is ever committed under ``group``.
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
        self._name = f"{topic}[{partition}]"
        self._topic, self._partition = topic, partition
        ahead: dict[str, str | int | bool] = {
            "queued.max.messages.kbytes": max(1, ahead_bytes // 1024),
            "queued.min.messages": 1_000_000,  # the bytes above are the limit
            "fetch.message.max.bytes": min(ahead_bytes, _MAX_FETCH),
            "fetch.wait.max.ms": idle_ms,
            "fetch.queue.backoff.ms": full_ms,
        }
        self._connection = connection
        self._new_consumer = functools.partial(consumer, connection, group, READ_COMMITTED, **ahead)
        self._mean_bytes = float(_FIRST_GUESS_BYTES)
        self._next = start
        self._consumer = self._open()

    def _open(self) -> Consumer:
        """Open a consumer at the next offset."""
        self._failures = ConnectionFailures()
        made, self._last_event_at = self._new_consumer(error_cb=self._failures), time.monotonic()
        with mapped("read"):
            made.assign([TopicPartition(self._topic, self._partition, self._next)])
        return made

    def take(self, max_records: int, max_bytes: int, wait_s: float) -> FetchedRecords | None:
        """
        Return at most ``max_records`` records of about ``max_bytes`` in total; None if none arrived within ``wait_s``.

        Raises:
            Fatal: the position is no longer in the log, or this client may not read it.
            Denied: the brokers refuse this client's connections.
        """
        with mapped("read"):
            first = self._consumer.poll(wait_s)
            if first is None:
                self._reconnect_if_cut_off()
                return None
            self._last_event_at = time.monotonic()
            more = min(max_records, int(max_bytes / self._mean_bytes)) - 1
            rest = self._consumer.consume(more, 0) if more > 0 else []
        records: list[LogRecord] = []
        end = self._next
        for message in cast("list[LogRecord]", [first, *rest]):
            error = message.error()
            if error is None:
                records.append(message)
            else:
                with mapped(f"read of {self._name}"):
                    end = max(end, message.offset()) if ends_partition(error) else end
        size = 0.0
        if records:
            end = max(end, records[-1].offset() + 1)
            size = self._estimated_bytes(records)
        if end == self._next:
            return None
        self._next = end
        return FetchedRecords(records, end, int(size))

    def _reconnect_if_cut_off(self) -> None:
        """
        Replace a consumer that has long been silent and reaches no broker.

        A broker that is shutting down may answer with an empty broker list; librdkafka then forgets the only broker it
        knows and reports nothing any more (its issue 5301, open with 2.16).
        """
        if time.monotonic() - self._last_event_at < _QUIET_S:
            return
        self._last_event_at = time.monotonic()
        try:
            self._consumer.get_watermark_offsets(TopicPartition(self._topic, self._partition), timeout=_ASK_S)
        except KafkaException:
            # A consumer does not report a wrong password to its reader, which would wait forever.
            self._failures.check(self._connection, f"read of {self._name}")
            self._consumer.close()
            self._consumer = self._open()

    def _estimated_bytes(self, records: Sequence[LogRecord]) -> float:
        """
        Estimate the size of these records from a sample.

        A batch is limited by bytes, but the client counts records, so the next `take` divides by the mean size. The
        mean falls by at most half at a time, since large records may return.
        """
        sample = records[:: max(1, len(records) // 16)]
        size = sum(len(one.value() or b"") + len(one.key() or b"") for one in sample) / len(sample) + _RECORD_OVERHEAD
        self._mean_bytes = max(size, (self._mean_bytes + size) / 2)
        return size * len(records)

    def close(self) -> None:
        self._consumer.close()


_RANGES_BATCH = 10_000
_POLL_S = 0.05


class RangeReader:
    """
    The visible records of one partition, range by range; records fetched beyond a range are kept for the next one.

    For one thread at a time, in the process that made it. Nothing is ever committed under ``group``.
    """

    def __init__(self, connection: Connection, topic: str, partition: int, group: str) -> None:
        self._topic, self._partition = topic, partition
        # If a range ends in markers, an empty fetch reports its end: brokers must not delay it.
        quick: dict[str, str | int | bool] = {"queued.max.messages.kbytes": 32_768, "fetch.wait.max.ms": 20}
        self._connection = connection
        self._made = functools.partial(consumer, connection, group, READ_COMMITTED, **quick)
        self._consumer = self._made()
        self._heard_at = 0.0
        self._held: list[LogRecord] = []
        self._next = self._end_offset = -1

    def read(self, start: int, until: int, deadline: Deadline, stop: threading.Event) -> Iterator[list[LogRecord]]:
        """
        Yield the visible records of `[start, until)`, in order; ``until`` must not be above the last stable offset.

        The range ends at a record at or past ``until`` or at the end-of-partition event, never by a count: markers and
        aborted records leave gaps.

        Raises:
            DeadlineExceeded: the range could not be read in time, or ``stop`` was set.
        """
        if start != self._next:
            self._seek(start)
        self._next = -1  # if the caller stops early, the next read starts with a seek
        position, self._heard_at = max(start, self._end_offset), time.monotonic()
        while position < until:
            messages = self._held or self._poll(start, until, deadline, stop)
            self._held = []
            if messages:
                self._heard_at = time.monotonic()
            else:
                self._replace_if_cut_off(position)
            batch: list[LogRecord] = []
            for index, message in enumerate(messages):
                error, offset = message.error(), message.offset()
                if error is not None:
                    with mapped(f"read of {self._topic}[{self._partition}]"):
                        self._end_offset = max(self._end_offset, offset) if ends_partition(error) else self._end_offset
                    position = max(position, self._end_offset)
                elif offset < until:
                    batch.append(message)
                    position = offset + 1
                else:
                    self._held = messages[index:]
                    position = until
                    break
            if batch:
                yield batch
        self._next = until

    def _poll(self, start: int, until: int, deadline: Deadline, stop: threading.Event) -> list[LogRecord]:
        if stop.is_set():
            raise DeadlineExceeded(f"read: {self._topic}[{self._partition}] was interrupted because the run stops")
        deadline.check(f"read of {self._topic}[{self._partition}] offsets {start} to {until}")
        with mapped("read"):
            return cast(
                "list[LogRecord]", self._consumer.consume(_RANGES_BATCH, timeout=min(_POLL_S, deadline.remaining_s()))
            )

    def _replace_if_cut_off(self, position: int) -> None:
        """Replace a silent consumer that no longer reaches a broker with a new one at ``position``."""
        if time.monotonic() - self._heard_at < SILENT_S:
            return
        self._heard_at = time.monotonic()
        if is_cut_off(self._consumer, self._connection, self._topic):
            self._consumer.close()
            self._consumer = self._made()
            self._seek(position)

    def _seek(self, start: int) -> None:
        self._held, self._end_offset = [], -1
        with mapped("read"):
            self._consumer.assign([TopicPartition(self._topic, self._partition, start)])

    def close(self) -> None:
        self._consumer.close()
