"""
Write one batch by several tasks in one transaction: the driver begins and ends it, each partition has one writer.

One attempt of a task per epoch: an attempt that Spark repeats (retry, speculation, a lost executor, a repeated stage)
does not write but ends the batch, which begins again with a new epoch. Brokers drop a repeated sequence number as a
duplicate whatever it holds, so a repeated attempt would lose rows without a word.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import functions as sf

from brew.attempt import TimedTransaction
from brew.deadline import Deadline
from brew.errors import Abortable, BrewError, Refused
from brew.kafka.shared_transaction import SharedTransaction
from brew.kafka.sink_transaction import SharedEpoch, described
from brew.names import CrashPoint
from brew.offsets import Committed
from brew.sink.batch import FENCE_S, RESULT_SCHEMA, BatchJob, Result, Status
from brew.sink.query import is_narrow, tasks_of, was_repeated
from brew.sink.rows import partitions_of, rows_of
from brew.transaction import Write, transact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from brew.kafka.shared_writer import Record

_LONGEST_S = 24 * 3600.0
"""For a batch's Spark job, which has no limit of its own; from the first row on the transaction's time-out counts."""
_DESCRIBE_S = 30.0
_SPECULATION = "spark.speculation"
_OUT_OF_ORDER = "OutOfOrderSequenceNumber"
"""Two writers of one partition count its sequence numbers apart; brokers refuse the one that is not the next."""


class Overlap(Abortable):
    """Two tasks wrote to one partition: the rows have to be shuffled."""


class SharedWriter:
    """One sink's batches, written by tasks; the connection of the driver is kept from batch to batch."""

    def __init__(self, job: BatchJob) -> None:
        self._kafka = SharedTransaction(job.settings, job.batch.topic)
        self._always_shuffle = False

    def write(self, frame: DataFrame, job: BatchJob) -> Result:
        """Attempt a batch once; one that is out already runs its plan and drops its rows, for its state stores."""
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
            return Write(produce, lambda: until, str(job.batch.mark), Deadline(_LONGEST_S))

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
        Step 4: all rows, written and acknowledged; returns how many.

        Raises:
            Abortable: not by exactly one attempt of each task, or not each partition by one task.
        """
        placed = _placed(frame, job, epoch, always_shuffle=self._always_shuffle)
        speculation = frame.sparkSession.sparkContext.getConf().get(_SPECULATION, "false") == "true"

        def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            result = _write_share(job, epoch, batches, speculation=speculation)
            yield pa.RecordBatch.from_pydict({"result": pa.array([result.encoded()], pa.binary())})

        told = placed.mapInArrow(task, RESULT_SCHEMA).collect()
        shares = [Result.decoded(bytes(one.result)) for one in told]
        checked(shares)
        for stage in {one.stage for one in shares}:
            if was_repeated(frame, stage):
                raise Abortable(f"produce: Spark repeated stage {stage}; a repeated task must not write in one epoch")
        return sum(one.rows for one in shares)


def checked(shares: list[Result]) -> None:
    """
    Raises:
        Refused: a task found rows that can't be written.
        Overlap: two tasks wrote to one partition, as they or the brokers say.
        Abortable: a task failed, or was repeated.
    """
    for share in shares:
        if share.status is Status.REFUSED:
            raise Refused(share.detail.partition(": ")[2])
    failed = [one.detail for one in shares if one.status is not Status.WRITTEN]
    if failed:
        overlap = any(_OUT_OF_ORDER in detail for detail in failed)
        raise (Overlap if overlap else Abortable)(f"{failed[0]} ({len(failed)} of {len(shares)} tasks)")
    seen = set[str]()
    for share in shares:
        twice = seen & set(share.places)
        if twice:
            raise Overlap(f"produce: two tasks wrote to {min(twice)}; each output partition needs one writer")
        seen |= set(share.places)


def _placed(frame: DataFrame, job: BatchJob, epoch: SharedEpoch, *, always_shuffle: bool) -> DataFrame:
    """
    The frame with each row's output partition, shuffled so that each partition is in one task.

    The shuffle is left out for one task, and where rows that were never shuffled name their partitions themselves: a
    copy keeps the source's. `checked` notices where that was wrong.
    """
    names = frame.columns
    # Asked for each batch: a topic may have been given partitions.
    count = 0 if job.topic is None else described(job.connection, job.topic, Deadline(_DESCRIBE_S)).partitions
    placed = frame.withColumn("partition", _partition(frame, job, epoch, count))
    tasks = tasks_of(frame)
    if tasks <= 1 or ("partition" in names and not always_shuffle and is_narrow(frame)):
        return placed
    writers: Column | int = frame.sparkSession.sparkContext.defaultParallelism
    if job.topic is not None:
        writers = min(int(writers), count)
        share = sf.col("partition")
    else:
        share = sf.col("partition") + sf.crc32(sf.col("topic"))
    return placed.repartitionById(writers, sf.pmod(share, sf.lit(writers)).cast("int"))


def _partition(frame: DataFrame, job: BatchJob, epoch: SharedEpoch, count: int) -> Column:
    """Each row's own partition, else its key's among the ``count`` of the sink's topic."""
    fixed, names = job.topic, frame.columns

    @sf.arrow_udf("int")  # type: ignore[untyped-decorator]
    def of_key(keys: pa.Array, topics: pa.Array) -> pa.Array:
        if fixed is not None:
            return pa.array(partitions_of(keys, count))
        found = [0] * len(keys)
        for topic in topics.unique().to_pylist():
            if topic is None:
                continue  # refused where it is written
            mine = [at for at, name in enumerate(topics.to_pylist()) if name == topic]
            places = partitions_of(keys.take(pa.array(mine)), _count(job, topic, epoch)).tolist()
            for at, place in zip(mine, places, strict=True):
                found[at] = place
        return pa.array(found, pa.int32())

    key = sf.col("key") if "key" in names else sf.lit(None).cast("binary")
    topic = sf.lit(fixed) if fixed is not None else sf.col("topic")
    by_key = of_key(key, topic)
    return sf.coalesce(sf.col("partition"), by_key) if "partition" in names else by_key


_counts: dict[tuple[str, str, int, int], int] = {}


def _count(job: BatchJob, topic: str, epoch: SharedEpoch) -> int:
    """How many partitions a topic has, asked once by each process for each epoch."""
    asked = (job.connection.bootstrap, topic, epoch.producer_id, epoch.epoch)
    if asked not in _counts:
        if _counts and next(iter(_counts))[2:] != asked[2:]:
            _counts.clear()
        _counts[asked] = described(job.connection, topic, Deadline(_DESCRIBE_S)).partitions
    return _counts[asked]


def _write_share(job: BatchJob, epoch: SharedEpoch, batches: Iterator[pa.RecordBatch], *, speculation: bool) -> Result:
    """One task's rows; a repeated attempt writes nothing and says so."""
    context = TaskContext.get()
    attempt, stage = (0, -1) if context is None else (context.attemptNumber(), context.stageId())
    if attempt > 0:
        if speculation:
            # Spark ends it as soon as the first attempt is through; only if that does not come the batch has to end.
            threading.Event().wait(job.timeout_s / 2)
        return Result(Status.FAILED, detail=f"produce: Spark started a task again (attempt {attempt})", stage=stage)
    from brew.kafka.shared_writer import write  # noqa: PLC0415 - aiokafka, for those who write

    crash = job.crash is not None and job.crash.point is CrashPoint.MID_PRODUCE
    half_way = (lambda: job.may_crash()(CrashPoint.MID_PRODUCE)) if crash else None
    try:
        written = write(epoch, (_records(job, one) for one in batches), half_way)
    except BrewError as error:
        told = Result.of(error)
        return Result(told.status, detail=told.detail, stage=stage)
    places = sorted(f"{topic}/{partition}" for topic, partition in written.places)
    return Result(Status.WRITTEN, written.records, places=places, stage=stage)


def _records(job: BatchJob, batch: pa.RecordBatch) -> Iterator[Record]:
    ours = job.sink_headers
    for value, key, topic, partition, headers in rows_of(batch, job.topic):
        if partition is None or partition < 0:
            raise Refused(f"the sink got a row with partition {partition}; partitions begin at 0")
        yield topic, partition, key, value, ours if not headers else [*headers, *ours]
