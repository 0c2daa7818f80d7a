"""Read one partition's log: from one end to the other, range by range, or on and on."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar, cast

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, KafkaException, TopicPartition

from brew.acl import SCAN_GROUP
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.kafka.clients import FULL_MS, SILENT_S, consumer, is_cut_off, mapped
from brew.names import READ_COMMITTED

_BATCH = 10_000
_IDLE_S = 60.0
_GROUP = SCAN_GROUP
# consume() waits for a full batch or this long: the time that a scan idles at its end.
_PATIENCE_S = 0.01
# A log that ends in a marker ends with the answer to a fetch that finds nothing more, which brokers hold back for so
# long; at their 500 ms a scan of 40 records behind a commit took 556 ms, now 22 ms (600,000 records: the same).
_LINGER_MS = 10
# What librdkafka reports while it connects again by itself.
TRANSIENT = {KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}  # noqa: SLF001 - public names


_T = TypeVar("_T")
Row = tuple[int, int, bytes | None, bytes | None, list[tuple[str, bytes | None]], int | None]
"""Partition, offset, key, value, headers, and the producer's timestamp in ms; None where the broker set it."""


class LogRecord(Protocol):
    """A record as the client library hands it out, with the types that it has when read from a log."""

    def error(self) -> KafkaError | None: ...
    def partition(self) -> int: ...
    def offset(self) -> int: ...
    def key(self) -> bytes | None: ...
    def value(self) -> bytes | None: ...
    def headers(self) -> list[tuple[str, bytes | None]] | None: ...
    def timestamp(self) -> tuple[int, int]: ...


def ends_partition(error: KafkaError, passing: Collection[int] = ()) -> bool:
    """
    The decision table of an event that a consumer hands out in place of a record.

    True: the end of its partition. False: the client library recovers by itself, or the code is one of ``passing``.

    Raises:
        KafkaException: everything else; call it inside of `mapped`.
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

    The end is the end-of-partition event or an offset at or past ``until``, never a count: markers leave gaps.
    Nothing is committed under ``group``; brokers with ACLs want to know it (Describe).
    For `read_committed`, ``until`` is at most the last stable offset when the scan began, or the scan would wait.

    Raises:
        DeadlineExceeded: nothing arrived for ``idle_s`` seconds.
    """
    yield from _scan(connection, topic, ranges, isolation, idle_s, group, _wanted)


def scan_rows(
    connection: Connection, topic: str, ranges: Mapping[int, tuple[int, int]], isolation: str
) -> Generator[list[Row], None, None]:
    """As `scan`, with plain tuples instead of the library's messages: half the price where millions are read."""
    yield from _scan(connection, topic, ranges, isolation, _IDLE_S, _GROUP, _wanted_rows)


def _scan(
    connection: Connection,
    topic: str,
    ranges: Mapping[int, tuple[int, int]],
    isolation: str,
    idle_s: float,
    group: str,
    wanted: Callable[[list[LogRecord], dict[int, int]], list[_T]],
) -> Generator[list[_T], None, None]:
    left = {p: until for p, (start, until) in ranges.items() if start < until}
    if not left:
        return
    reader = consumer(
        connection, group, isolation, **{"queued.max.messages.kbytes": 65_536, "fetch.wait.max.ms": _LINGER_MS}
    )
    try:
        reader.assign([TopicPartition(topic, p, ranges[p][0]) for p in left])
        assigned = set(left)
        patience = Deadline(idle_s)
        while left:
            before = len(left)
            with mapped(f"scan of {topic}" if group == SCAN_GROUP else f"read of {topic} as {group}"):
                got = cast("list[LogRecord]", reader.consume(_BATCH, timeout=min(_PATIENCE_S, patience.remaining_s())))
                batch = wanted(got, left)
            if batch:
                yield batch
            if batch or len(left) < before:
                # The caller's own time does not count, nor do errors or records past the ranges.
                patience = Deadline(idle_s)
            elif patience.expired():
                raise DeadlineExceeded(f"scan of {topic}: no record for {idle_s:g} s, partitions {sorted(left)} left")
            if len(left) < before:
                # A partition that is through is fetched no more, whatever is written to it.
                reader.incremental_unassign(
                    [TopicPartition(topic, p) for p in ranges if p not in left and p in assigned]
                )
                assigned &= left.keys()
    finally:
        reader.close()


def _wanted(got: list[LogRecord], left: dict[int, int]) -> list[LogRecord]:
    """The messages below their partition's end; partitions that are at their end leave ``left``."""
    batch = []
    for message in got:
        error = message.error()
        partition, offset = message.partition(), message.offset()
        if error is None:
            if partition in left and offset < left[partition]:
                batch.append(message)
            if partition in left and offset + 1 >= left[partition]:
                del left[partition]
        elif ends_partition(error) and partition in left and offset >= left[partition]:
            del left[partition]
    return batch


def _wanted_rows(got: list[LogRecord], left: dict[int, int]) -> list[Row]:
    """As `_wanted`; a batch that ends no partition is not looked at record by record."""
    rows = [
        (
            message.partition(),
            message.offset(),
            message.key(),
            message.value(),
            message.headers() or [],
            stamp[1] if (stamp := message.timestamp())[0] == TIMESTAMP_CREATE_TIME else None,
        )
        for message in got
        if message.error() is None
    ]
    limits = dict(left)
    if len(rows) < len(got):
        _wanted([message for message in got if message.error() is not None], left)
    last = {row[0]: row[1] for row in rows}
    if all(partition in limits and offset < limits[partition] for partition, offset in last.items()):
        wanted = rows
    else:
        wanted = [row for row in rows if row[0] in limits and row[1] < limits[row[0]]]
    for partition, offset in last.items():
        if partition in left and offset + 1 >= left[partition]:
            del left[partition]
    return wanted


_FIRST_GUESS_BYTES = 4096
_RECORD_OVERHEAD = 64
_LEAST_FETCH = 1024 * 1024
IDLE_MS = 100


class FetchedRecords(NamedTuple):
    """
    The visible records of `[start, until)`, in order, and about how many bytes these are.

    ``until`` is one past the last record, or the end of the partition where that was reached: markers and aborted
    records at the end count as read.
    """

    records: Sequence[LogRecord]
    until: int
    size: int


_SILENT_S, _ASK_S = 10.0, 1.0
"""After so long without an event a consumer is asked for the log's end, and has so long to answer."""


class TailReader:
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
        self._topic, self._partition = topic, partition
        ahead: dict[str, str | int | bool] = {
            "queued.max.messages.kbytes": max(1, ahead_bytes // 1024),
            "queued.min.messages": 1_000_000,  # the bytes above are the bound
            "fetch.message.max.bytes": min(ahead_bytes, _LEAST_FETCH),
            "fetch.wait.max.ms": idle_ms,
            "fetch.queue.backoff.ms": full_ms,
        }
        self._made = functools.partial(consumer, connection, group, READ_COMMITTED, **ahead)
        self._mean_bytes = float(_FIRST_GUESS_BYTES)
        self._next = start
        self._consumer = self._opened()

    def _opened(self) -> Consumer:
        """A consumer at the next offset."""
        made, self._heard_at = self._made(), time.monotonic()
        with mapped("read"):
            made.assign([TopicPartition(self._topic, self._partition, self._next)])
        return made

    def take(self, most: int, most_bytes: int, wait_s: float) -> FetchedRecords | None:
        """
        What is there now: at most ``most`` records of about ``most_bytes`` together; None after ``wait_s`` of nothing.

        Raises:
            Fatal: the position is not in the log any more, or may not be read.
        """
        with mapped("read"):
            first = self._consumer.poll(wait_s)
            if first is None:
                self._replace_if_cut_off()
                return None
            self._heard_at = time.monotonic()
            more = min(most, int(most_bytes / self._mean_bytes)) - 1
            rest = self._consumer.consume(more, 0) if more > 0 else []
        records: list[LogRecord] = []
        end = self._next
        for message in cast("list[LogRecord]", [first, *rest]):
            error = message.error()
            if error is None:
                records.append(message)
            else:
                with mapped(f"read of {self._place}"):
                    end = max(end, message.offset()) if ends_partition(error) else end
        size = 0.0
        if records:
            end = max(end, records[-1].offset() + 1)
            size = self._weighed(records)
        if end == self._next:
            return None
        self._next = end
        return FetchedRecords(records, end, int(size))

    def _replace_if_cut_off(self) -> None:
        """
        Begin again with a new consumer where a silent one reaches no broker.

        A broker that shuts down may answer that there are no brokers; librdkafka then forgets the only one it knows,
        and says nothing any more, not even that (its issue 5301, open with 2.16).
        """
        if time.monotonic() - self._heard_at < _SILENT_S:
            return
        self._heard_at = time.monotonic()
        try:
            self._consumer.get_watermark_offsets(TopicPartition(self._topic, self._partition), timeout=_ASK_S)
        except KafkaException:
            self._consumer.close()
            self._consumer = self._opened()

    def _weighed(self, records: Sequence[LogRecord]) -> float:
        """
        What these weigh, by a sample. A batch is bounded by bytes, but the client counts records: the next take asks
        for what their mean allows, which falls by half at a time, since heavy ones may come back.
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
    The visible records of one partition; what was fetched beyond a range waits for the next one.

    Used by one thread at a time, in the process that made it. Nothing is ever committed under ``group``.
    """

    def __init__(self, connection: Connection, topic: str, partition: int, group: str) -> None:
        self._topic, self._partition = topic, partition
        # A range that ends in markers ends with the answer to a fetch that finds nothing more: that must not linger.
        quick: dict[str, str | int | bool] = {"queued.max.messages.kbytes": 32_768, "fetch.wait.max.ms": 20}
        self._connection = connection
        self._made = functools.partial(consumer, connection, group, READ_COMMITTED, **quick)
        self._consumer = self._made()
        self._heard_at = 0.0
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
        at, self._heard_at = max(start, self._end), time.monotonic()
        while at < until:
            got = self._held or self._poll(start, until, deadline, stop)
            self._held = []
            if got:
                self._heard_at = time.monotonic()
            else:
                self._replace_if_cut_off(at)
            batch: list[LogRecord] = []
            for place, message in enumerate(got):
                error, offset = message.error(), message.offset()
                if error is not None:
                    with mapped(f"read of {self._topic}[{self._partition}]"):
                        self._end = max(self._end, offset) if ends_partition(error) else self._end
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
            return cast(
                "list[LogRecord]", self._consumer.consume(_RANGES_BATCH, timeout=min(_POLL_S, deadline.remaining_s()))
            )

    def _replace_if_cut_off(self, position: int) -> None:
        """Begin again at ``position`` with a new consumer where a silent one reaches no broker any more."""
        if time.monotonic() - self._heard_at < SILENT_S:
            return
        self._heard_at = time.monotonic()
        if is_cut_off(self._consumer, self._connection, self._topic):
            self._consumer.close()
            self._consumer = self._made()
            self._seek(position)

    def _seek(self, start: int) -> None:
        self._held, self._end = [], -1
        with mapped("read"):
            self._consumer.assign([TopicPartition(self._topic, self._partition, start)])

    def close(self) -> None:
        self._consumer.close()
