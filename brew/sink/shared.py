"""
Write one batch by several tasks in one transaction: the driver begins and ends it, each partition has one writer.

A task has one attempt per epoch: an attempt that Spark repeats (retry, speculation, a lost executor, a repeated stage)
writes nothing and ends the batch, which begins again with a new epoch. Brokers drop a repeated sequence number as a
duplicate whatever the batch holds, so a repeated attempt would lose rows silently.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as sf

from brew.attempt import TimedTransaction
from brew.deadline import Deadline
from brew.errors import Abortable, BrewError, Refused
from brew.kafka.shared_transaction import SharedTransaction
from brew.kafka.sink_transaction import SharedEpoch
from brew.names import CrashPoint
from brew.offsets import Committed
from brew.sink.batch import FENCE_S, RESULT_SCHEMA, BatchJob, Result, Status
from brew.sink.query import in_few_tasks, is_narrow, tasks_of, was_repeated
from brew.sink.rows import checked_headers, destinations_of
from brew.spark.worker import tune_worker
from brew.transaction import Write, transact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_LONGEST_S = 24 * 3600.0
"""For a batch's Spark job, which has no limit of its own; the transaction time-out applies from the first row on."""
_ENCODED = "topic string, partition int, count int, records binary"
_BATCH_BYTES = 512 * 1024
"""The target for a record batch; framing may double the size of tiny records, hence half of the topic's limit."""
_CHUNK_BYTES = 256 * 1024 * 1024
"""The maximum to encode at once: Spark's Arrow batches are smaller, unless configured otherwise."""
_SPECULATION = "spark.speculation"
_OUT_OF_ORDER = "OutOfOrderSequenceNumber"
"""Two writers of one partition count its sequence numbers separately; brokers refuse one that is not the next."""


class Overlap(Abortable):
    """Two tasks wrote to one partition: the rows have to be shuffled."""


class SharedWriter:
    """Writes one sink's batches by tasks; the driver's connection is kept from batch to batch."""

    def __init__(self, job: BatchJob) -> None:
        self._kafka = SharedTransaction(job.settings, job.batch.topic)
        self._always_shuffle = False

    def write(self, frame: DataFrame, job: BatchJob) -> Result:
        """Attempt a batch once; one already written runs its plan, for its state stores, and drops its rows."""
        kafka, rows = self._kafka, 0
        timed = TimedTransaction(kafka)
        kafka.source = None if job.source_group is None else (job.source_group, job.source_offsets)

        def produce(_deadline: Deadline) -> None:
            nonlocal rows
            rows = self._run_tasks(frame, job, kafka.epoch)

        def decide(committed: Committed | None) -> Write | None:
            if not job.is_new(committed):
                return None
            until = job.batch.batch_id + 1
            return Write(produce, lambda: until, str(job.batch.metadata), Deadline(_LONGEST_S))

        try:
            written = transact(timed, decide, Deadline(FENCE_S), job.may_crash(kafka))
        except BrewError as error:
            kafka.invalidate()
            self._always_shuffle |= isinstance(error, Overlap)
            return Result.of(error, timed.steps)
        if not written:
            frame.write.format("noop").mode("overwrite").save()
            return Result(Status.ALREADY_OUT, steps=timed.steps)
        job.may_crash()(CrashPoint.BEFORE_REPORT)
        return Result(Status.WRITTEN, rows, steps=timed.steps)

    def _run_tasks(self, frame: DataFrame, job: BatchJob, epoch: SharedEpoch) -> int:
        """
        Step 4: write all rows and wait for their acknowledgement; return their number.

        Raises:
            Abortable: a task did not have exactly one attempt, or a partition did not have exactly one writing task.
        """
        # Requested for each batch: the topic may have gained partitions.
        known = {} if job.topic is None else {job.topic: job.partitions(job.topic)}
        count_of = functools.partial(_count, job, epoch, known)
        encode = functools.partial(_encode, job, count_of)
        speculation = frame.sparkSession.sparkContext.getConf().get(_SPECULATION, "false").lower() == "true"
        shuffled = self._always_shuffle or not _stays(frame)

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            tune_worker()
            result = _write_share(job, epoch, batches if shuffled else encode(batches), speculation=speculation)
            yield pa.RecordBatch.from_pydict({"result": pa.array([result.encoded()], pa.binary())})

        ready = _shuffled(in_few_tasks(frame).mapInArrow(encode, _ENCODED), known) if shuffled else frame
        rows = ready.mapInArrow(task, RESULT_SCHEMA).collect()
        shares = [Result.decoded(bytes(row.result)) for row in rows]
        checked(shares)
        for stage in {share.stage for share in shares}:
            if was_repeated(frame, stage):
                raise Abortable(f"produce: Spark repeated stage {stage}; a repeated task must not write in one epoch")
        return sum(share.rows for share in shares)


def checked(shares: list[Result]) -> None:
    """
    Raises:
        Refused: a task found rows that can't be written.
        Overlap: two tasks wrote to one partition, according to them or to the brokers.
        Abortable: a task failed, or was repeated.
    """
    for share in shares:
        if share.status is Status.REFUSED:
            raise Refused(share.detail.partition(": ")[2])
    failed = [share.detail for share in shares if share.status is not Status.WRITTEN]
    if failed:
        overlap = any(_OUT_OF_ORDER in detail for detail in failed)
        raise (Overlap if overlap else Abortable)(f"{failed[0]} ({len(failed)} of {len(shares)} tasks)")
    seen = set[str]()
    for share in shares:
        twice = seen & set(share.partitions)
        if twice:
            raise Overlap(f"produce: two tasks wrote to {min(twice)}; each output partition needs one writer")
        seen |= set(share.partitions)


def _stays(frame: DataFrame) -> bool:
    """
    Return whether each output partition's rows are in one task already: a single task, or rows that name their own.

    A copy keeps the source's partitions. `checked` notices if that was wrong.
    """
    return ("partition" in frame.columns and is_narrow(frame)) or tasks_of(frame) <= 1


def _shuffled(encoded: DataFrame, known: Mapping[str, int]) -> DataFrame:
    """
    Shuffle record batches so that those of each output partition are in one task.

    They are built before the shuffle, which is cheaper for a few large rows than for all of them.
    """
    writers: Column | int = encoded.sparkSession.sparkContext.defaultParallelism
    share = sf.col("partition")
    if known:
        writers = min(int(writers), *known.values())
    else:
        share += sf.crc32(sf.coalesce("topic", sf.lit("")))
    return encoded.repartitionById(writers, sf.pmod(share, sf.lit(writers)).cast("int"))


_counts: dict[tuple[str, str, int, int], int] = {}


def _count(job: BatchJob, epoch: SharedEpoch, known: Mapping[str, int], topic: str) -> int:
    """Return a topic's number of partitions; for a topic named by rows, requested once per process and epoch."""
    if topic in known:
        return known[topic]
    asked = (job.connection.bootstrap, topic, epoch.producer_id, epoch.epoch)
    if asked not in _counts:
        if _counts and next(iter(_counts))[2:] != asked[2:]:
            _counts.clear()
        _counts[asked] = job.partitions(topic)
    return _counts[asked]


def _encode(
    job: BatchJob, count_of: Callable[[str], int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Encode rows as Kafka's record batches; an error becomes a row without a topic that holds its description."""
    from brew.kafka.arrow_batches import SCHEMA, Records, encoded  # noqa: PLC0415 - aiokafka, only for writers

    tune_worker()
    for batch in batches:
        step = max(1, batch.num_rows * _CHUNK_BYTES // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, step):
            rows = batch.slice(start, step)
            columns = dict(zip(rows.schema.names, rows.columns, strict=True))
            try:
                if "headers" in columns:
                    checked_headers(columns["headers"])
                destinations, names = destinations_of(rows, job.topic, count_of)
                records = Records(columns["value"], columns.get("key"), columns.get("headers"), destinations, names)
                yield encoded(records, job.sink_headers, min(_BATCH_BYTES, job.batch_bytes // 2))
            except BrewError as error:
                refused = {"topic": None, "partition": 0, "count": 0, "records": Result.of(error).encoded()}
                yield pa.RecordBatch.from_pylist([refused], SCHEMA)


def _write_share(job: BatchJob, epoch: SharedEpoch, encoded: Iterator[pa.RecordBatch], *, speculation: bool) -> Result:
    """Write one task's record batches; a repeated attempt writes nothing and reports it."""
    context = TaskContext.get()
    attempt, stage = (0, -1) if context is None else (context.attemptNumber(), context.stageId())
    if attempt > 0:
        if speculation:
            # Spark ends this attempt as soon as the first one succeeds; the batch fails only if that does not happen.
            threading.Event().wait(job.timeout_s / 2)
        return Result(Status.FAILED, detail=f"produce: Spark started a task again (attempt {attempt})", stage=stage)
    from brew.kafka.shared_writer import write  # noqa: PLC0415 - aiokafka, only for writers

    crash = job.crash is not None and job.crash.point is CrashPoint.MID_PRODUCE
    half_way = (lambda: job.may_crash()(CrashPoint.MID_PRODUCE)) if crash else None
    try:
        written = write(epoch, _checked(encoded), half_way)
    except BrewError as error:
        failed = Result.of(error)
        return Result(failed.status, detail=failed.detail, stage=stage)
    partitions = sorted(f"{topic}/{partition}" for topic, partition in written.destinations)
    return Result(Status.WRITTEN, written.records, partitions=partitions, stage=stage)


def _checked(encoded: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """
    Raises:
        Refused, Abortable: what `_encode` found, in this task or in one before the shuffle.
    """
    for batch in encoded:
        wrong = batch.filter(batch.column("topic").is_null())
        if wrong.num_rows:
            found = Result.decoded(wrong.column("records")[0].as_py())
            raise (Refused if found.status is Status.REFUSED else Abortable)(found.detail.partition(": ")[2])
        yield batch
