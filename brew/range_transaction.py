"""One range of an input partition, transformed and written in one Kafka transaction; free of Spark and of readers."""

from __future__ import annotations

import operator
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple, Protocol

from brew.deadline import Deadline
from brew.errors import Fatal
from brew.names import CrashPoint
from brew.offsets import (
    HEADER_INDEX,
    HEADER_OFFSET,
    HEADER_PARTITION,
    HEADER_TOPIC,
    Committed,
    OffsetRange,
    SourcePosition,
)
from brew.outcome import Outcome, Status
from brew.record import OTHER_REASONS, Record, Reject, shortened
from brew.records import (
    ERROR_EXCEPTION,
    ERROR_MESSAGE,
    ERROR_OFFSET,
    ERROR_OMITTED,
    ERROR_OMITTED_HEADERS,
    ERROR_PARTITION,
    ERROR_REASON,
    ERROR_TOPIC,
)
from brew.transaction import Transaction, Write, queue, transact

RecordHeaders = list[tuple[str, bytes | None]] | None
Enrich = Callable[[bytes | None, bytes | None], bytes | Reject]
"""Key and value of a record -> the value of its only output; the fast path if nothing else changes."""
Evidence = Callable[[], tuple[str, bytes | None]]
"""A header that says which data the last record was enriched with."""


class Rows(NamedTuple):
    """A batch of records as parallel lists, in offset order; timestamps in milliseconds since the epoch."""

    offsets: list[int]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[RecordHeaders]
    timestamps: list[int]

    def part(self, start: int, end: int) -> Rows:
        """Return rows ``start`` to ``end`` (exclusive)."""
        offsets, keys, values, headers, timestamps = self
        cut = slice(start, end)
        return Rows(offsets[cut], keys[cut], values[cut], headers[cut], timestamps[cut])


Answer = tuple[Record, ...] | Reject
"""The result of one record: its outputs (none: it was dropped), or why it was rejected."""
Transform = Callable[[str, int, Rows], Sequence[Answer]]
"""Topic, partition and records -> an answer for each record."""


@dataclass(frozen=True, slots=True)
class Targets:
    """
    Where records go; with partition -1 the key's murmur2 hash decides.

    ``also``: further output topics that a record may be routed to, each with its partition.
    """

    output: str
    dead_letter: str
    output_partition: int
    dead_letter_partition: int
    metadata: str = ""
    dead_letter_max_bytes: int = 1_048_588
    also: Mapping[str, int] = field(default_factory=dict)


MAX_REASONS = 50
"""The maximum number of reasons by which a transaction's dead letters are counted; the rest is `OTHER_REASONS`."""


@dataclass(slots=True)
class Tally:
    """
    What the running transaction has queued so far.

    ``enriched``, ``rejected`` and ``dropped`` count input records, ``written`` those of the output topics.
    """

    enriched: int = 0
    rejected: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    examples: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    written: int = 0

    def reject(self, reason: str, offset: int) -> None:
        """Count one dead letter."""
        if reason not in self.reasons and len(self.reasons) >= MAX_REASONS:
            reason = OTHER_REASONS
        self.rejected += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        self.examples.setdefault(reason, offset)


class CrashedOnPurposeError(BaseException):
    """Leaves the kernel past every cleanup handler, as a kill would; carries the tally at that moment."""

    def __init__(self, tally: Tally) -> None:
        super().__init__("crashed on purpose")
        self.tally = tally


class Crash(Protocol):
    """Something that may kill this process, or leave the transaction as a killed process would."""

    def at(self, point: CrashPoint, tally: Tally, transaction: Transaction) -> None: ...
    def interrupting(self, batches: Iterable[Rows], half_done: Callable[[], None]) -> Iterator[Rows]: ...


# The client's batch holds 1,000,000 bytes on the wire, where a record grows by two fields, three headers and framing.
_BYTES, _GROWTH, _ROWS = 640 * 1024, 160, 2500


def produce_chunks(rows: Rows) -> Iterator[Rows]:
    """
    Yield chunks that each fit into one produce request, estimated from the mean size of a value.

    The caller waits for the acknowledgement of each chunk before it queues the next: if a batch is ready while the
    previous one is in flight, librdkafka's thread polls without pause (docs/decisions/0009), and a few such threads
    leave brokers on the same machine no processor time to answer.
    """
    count = len(rows.offsets)
    if not count:
        return
    most = chunk_size(sum(map(len, filter(None, rows.values))) / count)
    if count <= most:
        yield rows
        return
    for start in range(0, count, most):
        yield rows.part(start, start + most)


def chunk_size(mean_bytes: float) -> int:
    """Return the number of records per chunk for this mean size."""
    return max(1, min(_ROWS, int(_BYTES / (mean_bytes + _GROWTH))))


_HEADER_ROOM = 4096
"""Kept in a dead letter for the headers that say why a record was rejected, and where it came from."""
_FRAME_BYTES = 128
"""More than a batch of one record has beside its key, value and headers."""


@dataclass(slots=True)
class _Run:
    """The state of one transaction."""

    offered: OffsetRange
    targets: Targets
    enrich: Enrich | None
    kafka: Transaction
    deadline: Deadline
    crash: Crash | None
    reached: Callable[[], int]
    next_offset: int
    evidence: Evidence | None = None
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext
    transform: Transform | None = None
    tally: Tally = field(default_factory=Tally)
    newest_ms: int | None = None

    def may_crash(self, point: CrashPoint) -> None:
        if self.crash is not None:
            self.crash.at(point, self.tally, self.kafka)

    def crash_half_way(self) -> None:
        self.kafka.flush(self.deadline)
        self.may_crash(CrashPoint.MID_PRODUCE)

    def outcome(self, status: Status, position: int, seconds: float) -> Outcome:
        return Outcome(
            self.offered.partition,
            self.offered.start,
            self.reached() if status is Status.COMMITTED else self.offered.until,
            status,
            position,
            self.tally.enriched,
            self.tally.rejected,
            seconds,
            reasons=self.tally.reasons,
            examples=self.tally.examples,
            newest_ms=self.newest_ms,
            dropped=self.tally.dropped,
            written=self.tally.written,
        )


def transact_range(
    batches: Iterable[Rows],
    offered: OffsetRange,
    targets: Targets,
    enrich: Enrich | None,
    kafka: Transaction,
    deadline: Deadline,
    *,
    transform: Transform | None = None,
    first_time: bool = False,
    crash: Crash | None = None,
    evidence: Evidence | None = None,
    reached: Callable[[], int] | None = None,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Outcome:
    """
    Write one range's records and the offset after them in one Kafka transaction (`brew.transaction.transact`).

    Rows below the committed offset were already written and are skipped. Each record carries its source position in its
    headers. The offset is the range's end, under the pipeline's group.

    ``transform`` is used if given, otherwise ``enrich``.
    ``batches`` must end by themselves: the range counts as read only after natural exhaustion.
    ``first_time``: the driver found no committed offset, and no output from this partition.
    ``reached``: for a range that is still being read, returns how far it has been read, which is past
    ``offered.until``; the latter then only says where the first batch ends.
    ``waiting`` wraps each wait for acknowledgements between two chunks of a batch (`produce_chunks`).
    ``evidence`` gives one more header to each enriched record, before those of its source.

    Raises:
        Fenced: a newer attempt owns this partition.
        Abortable, Fatal, DeadlineExceeded: either nothing or all of this attempt is visible; the next one finds out.
        TransformFailed: the transformation can't continue; nothing is visible.
    """
    began = time.monotonic()
    reached = reached or (lambda: offered.until)
    run = _Run(offered, targets, enrich, kafka, deadline, crash, reached, offered.start, evidence, waiting, transform)
    status, position = Status.COMMITTED, -1

    def decide(committed: Committed | None) -> Write | None:
        nonlocal status, position
        position = committed.offset if committed is not None else -1
        settled = _settled(committed, offered, first_time=first_time)
        if settled is not None:
            status = settled
            return None
        start = max(position, offered.start)
        # Not the last row + 1: markers and aborted records at the end count as read.
        return Write(lambda _deadline: _produce_all(run, batches, start), run.reached, targets.metadata, deadline)

    transact(kafka, decide, deadline, run.may_crash)
    return run.outcome(status, position, time.monotonic() - began)


def _settled(committed: Committed | None, offered: OffsetRange, *, first_time: bool) -> Status | None:
    """Return what *locate* already decides, or None if there is something to write."""
    if committed is None:
        # The group's offset disappeared after the driver planned: writing could duplicate visible records.
        return None if first_time else Status.OFFSET_GAP
    if committed.offset == offered.until:
        return Status.ALREADY_DONE
    if committed.offset > offered.until:
        return Status.AHEAD
    return Status.OFFSET_GAP if committed.offset < offered.start else None


def _produce_all(run: _Run, batches: Iterable[Rows], position: int) -> None:
    """Step 4, batch by batch."""
    kafka, deadline = run.kafka, run.deadline
    if run.crash is not None:
        batches = run.crash.interrupting(batches, run.crash_half_way)
    for rows in batches:
        for piece in produce_chunks(rows):
            _check_order(run, piece.offsets)
            if run.transform is not None:  # outside `mapped`: what it raises is not an error of the client
                _produce_transformed(run, run.transform, piece, position)
            elif run.enrich is not None:
                with kafka.mapped("produce"):
                    _produce_enriched(run, run.enrich, piece, position)
            with run.waiting():
                kafka.await_acks(deadline)
        run.newest_ms = rows.timestamps[-1] if rows.timestamps else run.newest_ms
        deadline.check("produce")


def _produce_enriched(run: _Run, enrich: Enrich, rows: Rows, position: int) -> None:
    """Queue one batch with an output for each record; rows below ``position`` were already written."""
    topic, partition = run.offered.topic, run.offered.partition
    output, target = run.targets.output, run.targets.output_partition
    source_topic: tuple[str, bytes | None] = (HEADER_TOPIC, topic.encode())
    source_partition: tuple[str, bytes | None] = (HEADER_PARTITION, b"%d" % partition)
    produce, evidence = run.kafka.produce, run.evidence
    enriched_count = 0
    for offset, key, value, headers, timestamp in zip(*rows, strict=True):
        if offset < position:
            continue
        enriched = enrich(key, value)
        if isinstance(enriched, Reject):
            _reject(run, enriched, offset, key, value, headers, timestamp)
            continue
        source = [source_topic, source_partition, (HEADER_OFFSET, b"%d" % offset)]
        if evidence is not None:
            source = [evidence(), *source]
        if headers:
            source = [*headers, *source]
        try:
            produce(output, enriched, key, target, None, None, timestamp, source)
        except BufferError:
            queue(run.kafka, run.deadline, output, enriched, key, target, timestamp, source)
        enriched_count += 1
    run.tally.enriched += enriched_count
    run.tally.written += enriched_count


def _produce_transformed(run: _Run, transform: Transform, rows: Rows, position: int) -> None:
    """Queue the results of one batch, whatever they are; rows below ``position`` were already written."""
    rows = rows.part(bisect_left(rows.offsets, position), len(rows.offsets))
    if not rows.offsets:
        return
    run.deadline.check("produce")  # a slow function gets fewer records next time
    topic, partition = run.offered.topic, run.offered.partition
    answers = transform(topic, partition, rows)
    place: list[tuple[str, bytes | None]] = [(HEADER_TOPIC, topic.encode()), (HEADER_PARTITION, b"%d" % partition)]
    tally, routes = run.tally, _routes(run.targets)
    with run.kafka.mapped("produce"):
        for offset, key, value, headers, timestamp, answer in zip(*rows, answers, strict=True):
            if isinstance(answer, Reject):
                _reject(run, answer, offset, key, value, headers, timestamp)
                continue
            if not answer:
                tally.dropped += 1
                continue
            at = (HEADER_OFFSET, b"%d" % offset)
            for index, output in enumerate(answer):
                source = [*output.headers, *place, at]
                if index:
                    source.append((HEADER_INDEX, b"%d" % index))
                to, same = routes[output.destination]
                # A new key determines the partition: equal keys must go to the same one.
                where = same if output.key == key else -1
                queue(
                    run.kafka, run.deadline, to, output.value, output.key, where, output.timestamp or timestamp, source
                )
            tally.enriched += 1
            tally.written += len(answer)


def _routes(targets: Targets) -> dict[str | None, tuple[str, int]]:
    """Map a record's destination to its topic, and the partition for records that keep their key."""
    named = {targets.output: targets.output_partition, **targets.also}
    return {None: (targets.output, targets.output_partition)} | {name: (name, same) for name, same in named.items()}


def _reject(
    run: _Run,
    why: Reject,
    offset: int,
    key: bytes | None,
    value: bytes | None,
    headers: RecordHeaders,
    timestamp: int,
) -> None:
    """
    Queue a rejected record for the dead-letter topic, with its bytes unchanged.

    What does not fit there stays in the input, and headers say so. The message gets the bytes that are left.
    """
    source, limit = SourcePosition(run.offered.topic, run.offered.partition, offset), run.targets.dead_letter_max_bytes
    with_value, with_headers = _what_fits(key, value, headers, limit - _HEADER_ROOM)
    omitted: list[tuple[str, bytes | None]] = []
    if value is not None and not with_value:
        omitted.append((ERROR_OMITTED, b"%d" % len(value)))
        value = None
    if headers and not with_headers:
        omitted.append((ERROR_OMITTED_HEADERS, b"%d" % len(headers)))
        headers = None
    before = [
        *(headers or ()),
        (ERROR_REASON, why.reason.encode()),
        (ERROR_EXCEPTION, type(why if why.__cause__ is None else why.__cause__).__name__.encode()),
    ]
    after = [
        (ERROR_TOPIC, source.topic.encode()),
        (ERROR_PARTITION, b"%d" % source.partition),
        (ERROR_OFFSET, b"%d" % source.offset),
        *omitted,
        *source.headers(),
    ]
    left = limit - _FRAME_BYTES - _bytes_of(key, value, [*before, (ERROR_MESSAGE, b""), *after])
    all_headers = [*before, (ERROR_MESSAGE, shortened(why.message, left).encode()), *after]
    dead_letter = run.targets.dead_letter
    queue(run.kafka, run.deadline, dead_letter, value, key, run.targets.dead_letter_partition, timestamp, all_headers)
    run.tally.reject(str(why.reason), source.offset)


def _what_fits(key: bytes | None, value: bytes | None, headers: RecordHeaders, limit: int) -> tuple[bool, bool]:
    """Return whether a dead letter keeps the record's value and its headers; preferably both, else the headers."""
    for with_value, with_headers in ((True, True), (False, True), (True, False)):
        if _bytes_of(key, value if with_value else None, headers if with_headers else None) <= limit:
            return with_value, with_headers
    return False, False


def _bytes_of(key: bytes | None, value: bytes | None, headers: RecordHeaders) -> int:
    """Return the number of bytes that these take in a batch, without its frame."""
    size = len(key or b"") + len(value or b"")
    for name, text in headers or ():
        long = len(name.encode()), len(text or b"")
        # Before each of the two, its length as a signed varint.
        size += sum(long) + sum(1 + (n >= 1 << 6) + (n >= 1 << 13) + (n >= 1 << 20) + (n >= 1 << 27) for n in long)
    return size


def _check_order(run: _Run, offsets: list[int]) -> None:
    """Raise if the reader returns anything but its range, in order: it has lost or mixed up rows."""
    rising = all(map(operator.lt, offsets, islice(offsets, 1, None)))
    if not rising or offsets[0] < run.next_offset or offsets[-1] >= run.reached():
        raise Fatal(f"produce: the reader left {run.offered}: it gave offsets {offsets[0]} to {offsets[-1]}")
    run.next_offset = offsets[-1] + 1
