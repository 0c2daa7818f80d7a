"""
Write one batch by several tasks in one transaction: the driver begins and ends it, each partition has one writer.

A task has one attempt per epoch: an attempt that Spark repeats (retry, speculation, a lost executor, a repeated stage)
writes nothing and ends the batch, which begins again with a new epoch. Brokers drop a repeated sequence number as a
duplicate whatever the batch holds, so a repeated attempt would lose rows silently.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING

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
from brew.sink.tasks import encoded_rows, partition_count, write_share
from brew.transaction import Write, transact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


_LONGEST_S = 24 * 3600.0
"""For a batch's Spark job, which has no limit of its own; the transaction time-out applies from the first row on."""
_ENCODED = "topic string, partition int, count int, size int, records binary"
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
            if not job.is_new(committed, kafka):
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
        encode = functools.partial(encoded_rows, job, functools.partial(partition_count, job, epoch, known))
        speculation = frame.sparkSession.sparkContext.getConf().get(_SPECULATION, "false").lower() == "true"
        frame = _without_null_headers(frame)
        shuffled = self._always_shuffle or not _stays(frame)
        task = functools.partial(write_share, job, epoch, None if shuffled else encode, speculation=speculation)
        ready = frame
        if shuffled:
            encode = functools.partial(encode, compress=True)
            ready = _shuffled(in_few_tasks(frame).mapInArrow(encode, _ENCODED), known)
        rows = ready.mapInArrow(task, RESULT_SCHEMA).collect()
        shares = [Result.decoded(bytes(row.result)) for row in rows]
        checked(shares)
        for stage, reports in Counter(share.stage for share in shares).items():
            if was_repeated(frame, stage):
                raise Abortable(
                    f"produce: Spark repeated stage {stage}, or has forgotten it already (spark.ui.retainedStages, by "
                    "default 1000); a repeated task must not write in one epoch"
                )
            tasks = getattr(frame.sparkSession.sparkContext.statusTracker().getStageInfo(stage), "numTasks", None)
            if reports != tasks:  # a task's failure is in its report only
                raise Abortable(f"produce: {reports} of {tasks} tasks of stage {stage} reported what they wrote")
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


def _without_null_headers(frame: DataFrame) -> DataFrame:
    """
    Give rows without headers an empty list of them, which is the same to Kafka.

    Spark asks for an Arrow batch's size after each row, and Arrow's lists then pass all rows since the last list that
    is not null: without this, a copy of 4,000,000 rows took 2.1 times as much of the processor (local[2]).
    """
    if "headers" not in frame.columns:
        return frame
    return frame.withColumn("headers", sf.coalesce("headers", sf.array()))


def _shuffled(encoded: DataFrame, known: Mapping[str, int]) -> DataFrame:
    """
    Shuffle record batches so that those of each output partition are in one task.

    They are built and compressed before the shuffle, which is cheaper for a few large rows than for all of them.
    """
    writers: Column | int = encoded.sparkSession.sparkContext.defaultParallelism
    share = sf.col("partition")
    if known:
        writers = min(int(writers), *known.values())
    else:
        share += sf.crc32(sf.coalesce("topic", sf.lit("")))
    return encoded.repartitionById(writers, sf.pmod(share, sf.lit(writers)).cast("int"))
