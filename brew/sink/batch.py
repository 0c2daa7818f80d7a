"""Write one batch in one transaction: by one task (`write_alone`), or by all of them (`brew.sink.shared`)."""

from __future__ import annotations

import contextlib
import enum
import functools
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Self

import orjson

from brew.acl import Denial, denial_in
from brew.attempt import TimedTransaction
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Refused, Unreachable, UsageError
from brew.kafka.clients import BATCH_BYTES
from brew.kafka.sink_transaction import SinkTransaction, SourceOffsets, described, last_in_topic
from brew.kafka.transaction import TransactionSettings
from brew.names import SINK_BATCH, SINK_NAME, CrashMode, CrashPoint
from brew.offsets import Committed
from brew.sink.position import Batch, PositionBehind, is_new
from brew.sink.rows import Headers, check_destinations, rows_of
from brew.transaction import Transaction, Write, queue, transact
from brew.watchdog import MAX_TIMEOUTS, watched

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_SCHEMA = "result binary"
FENCE_S = 60.0
"""For fence and locate: a transaction of an earlier attempt may still be ending."""
_DESCRIBE_S = 30.0


_FINAL = {
    ("(MSG_SIZE_TOO_LARGE)", "(MessageSizeTooLargeError)"): (
        "a record, or where rows name their topics a record batch of up to 1 MB, is larger than max.message.bytes of "
        "its topic: raise that"
    ),
    ("(INVALID_RECORD)", "(InvalidRecordError)"): "a topic with cleanup.policy=compact takes no row without a key",
    ("(INVALID_TRANSACTION_TIMEOUT)", ": InvalidTransactionTimeoutError "): (
        "transaction_timeout_s is larger than the brokers' transaction.max.timeout.ms: lower it"
    ),
    ("(OFFSET_METADATA_TOO_LARGE)", ": OffsetMetadataTooLargeError "): (
        "the brokers' offset.metadata.max.bytes is smaller than what a sink stores with its offsets, up to 510 bytes: "
        "raise that"
    ),
}
"""
The brokers' refusals that each attempt would get again, by librdkafka's name and the Python clients', and why.

With the marks around them, which no topic's name has: a topic may be called InvalidRecords.
"""


class Status(enum.StrEnum):
    """The result of one attempt at a batch."""

    WRITTEN = "written"
    ALREADY_OUT = "already-out"
    FAILED = "failed"
    REFUSED = "refused"
    BEHIND = "position-behind"


@dataclass(frozen=True, slots=True)
class Result:
    """
    The outcome of an attempt, or of one task's share of it.

    ``partitions``: which output partitions the task wrote to, as `topic/partition`; ``stage``: Spark's id of its stage.
    ``steps``: seconds of each of the six steps that was begun, in the process that ends the transaction.
    """

    status: Status
    rows: int = 0
    detail: str = ""
    partitions: list[str] = field(default_factory=list)
    stage: int = -1
    steps: dict[str, float] = field(default_factory=dict)

    def encoded(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def decoded(cls, encoded: bytes) -> Self:
        fields = orjson.loads(encoded)
        return cls(Status(fields.pop("status")), **fields)

    @classmethod
    def of(cls, error: BrewError, steps: dict[str, float] | None = None) -> Self:
        """Classify an error: one that each attempt would repeat ends the query; otherwise the next attempt decides."""
        text = str(error)
        why = next((why for found, why in _FINAL.items() if any(name in text for name in found)), "")
        advice = f"; {why}" if why and why not in text else ""  # a task's error has it already
        refused = isinstance(error, Refused | UsageError) and not isinstance(error, Unreachable)  # brokers come back
        final = refused or denial_in(text) is Denial.RIGHT or why
        status, detail = Status.REFUSED if final else Status.FAILED, f"{type(error).__name__}: {text}{advice}"
        return cls(Status.BEHIND if isinstance(error, PositionBehind) else status, detail=detail, steps=steps or {})


@dataclass(frozen=True, slots=True)
class SinkCrash:
    """
    Die by SIGKILL at a point of one batch, for the campaign.

    ``mode``: the whole application with its JVM (``processes``, filled in by the sink), or the process at that point.
    """

    point: CrashPoint
    batch_id: int
    mode: CrashMode = CrashMode.PIPELINE
    processes: tuple[int, ...] = ()

    def at(self, point: CrashPoint, batch_id: int, transaction: Transaction | None = None) -> None:
        if (point, batch_id) == (self.point, self.batch_id) and not _is_repeated():
            self.crash(point, transaction)

    def crash(self, point: CrashPoint, transaction: Transaction | None) -> None:
        """Crash; the campaign's programs override this."""
        if point is CrashPoint.COMMIT_IN_FLIGHT and transaction is not None:
            with contextlib.suppress(BrewError):  # no answer in time is the purpose of this crash point
                transaction.commit_without_waiting()
        # This process last; Python's driver before the JVM, since it would report that the JVM is gone.
        for process in (*(pid for pid in self.processes if pid != os.getpid()), os.getpid()):
            os.kill(process, signal.SIGKILL)


def _is_repeated() -> bool:
    """Return whether Spark repeats this task; a crash happens only once."""
    from pyspark import TaskContext  # noqa: PLC0415 - only for intentional crashes

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


@dataclass(frozen=True, slots=True)
class BatchJob:
    """
    Everything that the tasks of one batch need; it holds only values because it is sent to the executors.

    ``counts``: the number of partitions of topics that were described when the batch began.
    """

    batch: Batch
    connection: Connection
    timeout_s: float
    topic: str | None
    headers: bool
    batch_bytes: int = BATCH_BYTES
    source_group: str | None = None
    source_offsets: SourceOffsets = field(default_factory=dict)
    crash: SinkCrash | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def settings(self) -> TransactionSettings:
        return TransactionSettings(self.connection, self.batch.sink, self.timeout_s, self.batch_bytes)

    @property
    def sink_headers(self) -> Headers:
        """The headers that follow each record's own headers."""
        if not self.headers:
            return []
        return [(SINK_NAME, self.batch.sink.encode()), (SINK_BATCH, b"%d" % self.batch.batch_id)]

    def may_crash(self, transaction: Transaction | None = None) -> Callable[[CrashPoint], None]:
        """Return the kernel's `may_crash` for this batch."""
        crash, batch_id = self.crash, self.batch.batch_id
        return lambda point: crash.at(point, batch_id, transaction) if crash is not None else None

    def is_new(self, committed: Committed | None, kafka: Transaction) -> bool:
        """
        Call `brew.sink.position.is_new`, with the last records of the topic that rows go to as evidence.

        ``kafka``: the transaction that located ``committed``, and locates it again if the topic contradicts it.
        """
        batch, topic = self.batch, self.topic or self.batch.topic

        def evidence() -> int | None:
            wanted = (SINK_NAME, batch.sink.encode())
            return last_in_topic(self.connection, topic, batch.sink, SINK_BATCH, wanted)

        return is_new(batch, committed, evidence, lambda: kafka.locate(Deadline(FENCE_S)))

    def partitions(self, topic: str) -> int:
        """
        Return a topic's number of partitions, requested if it is not known.

        Raises:
            Refused: the topic does not exist.
        """
        known = self.counts.get(topic)
        return known or described(self.connection, topic, Deadline(_DESCRIBE_S)).partitions

    def first_attempt(self) -> BatchJob:
        """Return the job without an intentional crash, which happens once per batch."""
        return replace(self, crash=None)


def write_alone(job: BatchJob, batches: Iterator[pa.RecordBatch]) -> Result:
    """
    Write all rows in this task's transaction; safe when Spark repeats the task, since each attempt fences.

    The rows of a batch that is already written are read and dropped, because its plan must run for its state stores.
    """
    # Get the first rows before the fence: computing them may take long.
    first = next(batches, None)
    kafka = SinkTransaction(job.settings, job.batch.topic, job.source_group, job.source_offsets)
    timed, count = TimedTransaction(kafka), 0

    def produce(deadline: Deadline) -> None:
        nonlocal count
        count = _produce(job, kafka, first, batches, deadline)

    def decide(committed: Committed | None) -> Write | None:
        if not job.is_new(committed, kafka):
            return None
        until = job.batch.batch_id + 1
        return Write(produce, lambda: until, str(job.batch.metadata), Deadline(job.timeout_s))

    try:
        with watched(f"batch {job.batch.batch_id} of sink {job.batch.sink}", FENCE_S + MAX_TIMEOUTS * job.timeout_s):
            written = transact(timed, decide, Deadline(FENCE_S), job.may_crash(kafka))
    except BrewError as error:
        return Result.of(error, timed.steps)
    finally:
        kafka.close()
    if not written:
        return Result(Status.ALREADY_OUT, sum(batch.num_rows for batch in batches), steps=timed.steps)
    job.may_crash()(CrashPoint.BEFORE_REPORT)
    return Result(Status.WRITTEN, count, steps=timed.steps)


def _produce(
    job: BatchJob,
    kafka: SinkTransaction,
    first: pa.RecordBatch | None,
    batches: Iterator[pa.RecordBatch],
    deadline: Deadline,
) -> int:
    """Step 4: queue all rows and return their number."""
    count, ours = 0, job.sink_headers
    produce, partitions = kafka.produce, functools.cache(job.partitions)
    batch = first
    while batch is not None:
        check_destinations(batch, job.topic, partitions)
        with kafka.mapped("produce"):
            for value, key, topic, partition, headers in rows_of(batch, job.topic):
                carried = ours if not headers else [*headers, *ours]
                number = -1 if partition is None else partition
                try:
                    produce(topic, value, key, number, None, None, 0, carried)
                except BufferError:
                    queue(kafka, deadline, topic, value, key, number, 0, carried)
        if not count and job.crash is not None and job.crash.point is CrashPoint.MID_PRODUCE:
            kafka.flush(deadline)
            job.may_crash(kafka)(CrashPoint.MID_PRODUCE)
        count += batch.num_rows
        deadline.check("produce")
        batch = next(batches, None)
    from brew.spark.worker import check_all_rows_came  # noqa: PLC0415 - pyspark, which `import brew` does without

    check_all_rows_came()
    return count
