"""Read ranges with Spark's Kafka source, one task per range, and transact in the task."""

from __future__ import annotations

import base64
import functools
import gc
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from brew.attempt import Job, attempt
from brew.connection import Connection, java_settings
from brew.errors import BrewError, Fatal
from brew.offsets import OffsetRange
from brew.outcome import GOOD, Outcome, Status
from brew.range_transaction import Rows
from brew.settings import SparkSettings
from brew.spark import session

_NAMES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
SMALL_RECORDS = dict(zip(_NAMES, ("2000", str(2**31 - 1)), strict=True))
"""
So few records that their bytes need no bound, and 2^31 - 1 is Spark's word for none: to keep one, it weighs a batch
anew after each row, more than a quarter of a task's CPU time (decision 0006).
"""
SMALL_RECORD_BYTES = 4096
"""Of a record, on average: then 2,000 of them are 8 MiB."""


class RecordSizes:
    """What a record of each partition weighed in its last range; asked and told by several lanes at once."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        """``conf``: Spark settings of the caller's own; who bounds batches there is not overruled."""
        self._asked_for = any(name in conf for name in _NAMES)
        self._bytes: dict[int, float] = {}
        self._lock = threading.Lock()

    def light(self, partitions: Iterable[int]) -> bool:
        """Whether all of these were read before, and had small records when they were."""
        with self._lock:
            return not self._asked_for and all(
                self._bytes.get(one, SMALL_RECORD_BYTES) < SMALL_RECORD_BYTES for one in partitions
            )

    def apply_outcome(self, outcomes: Iterable[Outcome]) -> None:
        """After an attempt that failed nothing is known: it may have been the memory."""
        with self._lock:
            for one in outcomes:
                records = one.records
                if one.status not in GOOD:
                    self._bytes.pop(one.partition, None)
                elif records:
                    self._bytes[one.partition] = one.read_bytes / records


# Flat on purpose: Spark measures the batch after each row, and walks nested columns from their beginning every time
# (77 % of a task's time with a list of structs and 10,000 rows). Null headers, the usual case, cost nothing.
COLUMN = "CAST(CASE WHEN size(headers) > 0 THEN to_json(headers) END AS BINARY) AS headers"


def headers_of(cell: bytes | None) -> list[tuple[str, bytes | None]] | None:
    """Read a cell of the headers column: Spark's `to_json` writes bytes as base64 and leaves null values out."""
    if not cell:
        return None
    return [(header["key"], _decoded(header.get("value"))) for header in orjson.loads(cell)]


def _decoded(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


# Java's own names. The back-offs are for start-up, the sizes for throughput (benchmarks/RESULTS.md).
_CLIENT = {
    "isolation.level": "read_committed",
    "check.crcs": "true",
    "allow.auto.create.topics": "false",
    "retry.backoff.ms": "5",
    "reconnect.backoff.ms": "5",
    # Spark asks for both ends of the log after each fetch, and the broker answers a connection in order: behind a
    # fetch at the end of the log that means waiting this long (default 500, which cost 1 s per task).
    "fetch.max.wait.ms": "5",
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "receive.buffer.bytes": "-1",
}


def read_ranges(spark: SparkSession, connection: Connection, group: str, ranges: Sequence[OffsetRange]) -> DataFrame:
    """
    The visible records of ``ranges``: offset, partition, key, value, headers, timestamp (ms).

    Executors keep their consumers by group and partition; ``group`` is never joined, and nothing is committed.

    Raises:
        Fatal: Spark planned other than one task per range; a task that saw half a range would commit all of it.
    """
    topic = ranges[0].topic
    options = {
        **{f"kafka.{name}": value for name, value in _CLIENT.items()},
        "kafka.bootstrap.servers": connection.bootstrap,
        # By default each query has a group of its own: its consumers serve no other, and live on for minutes.
        "kafka.group.id": group,
        **{f"kafka.{name}": value for name, value in java_settings(connection).items()},
        "assign": json.dumps({topic: [r.partition for r in ranges]}),
        "startingOffsets": json.dumps({topic: {str(r.partition): r.start for r in ranges}}),
        "endingOffsets": json.dumps({topic: {str(r.partition): r.until for r in ranges}}),
        "includeHeaders": "true",
        "failOnDataLoss": "true",
    }
    frame = spark.read.format("kafka").options(**options).load()
    return frame.selectExpr("offset", "partition", "key", "value", COLUMN, "unix_millis(timestamp) AS timestamp")


def check_one_task_per_range(frame: DataFrame, ranges: Sequence[OffsetRange]) -> None:
    """
    Look at the physical plan before it runs.

    Raises:
        Fatal: the plan shuffles, or has another number of tasks than ranges.
    """
    execution = frame._jdf.queryExecution()  # noqa: SLF001 - pyspark has no public door to the plan
    tasks = execution.toRdd().getNumPartitions()
    if tasks != len(ranges) or "Exchange" in execution.executedPlan().toString():
        raise Fatal(
            f"read: Spark planned {tasks} tasks for {len(ranges)} ranges; "
            "unset minPartitions and maxRecordsPerPartition, and put no shuffle between source and writer"
        )


OUTCOME_SCHEMA = "outcome binary"
_SCHEMA = pa.schema([("outcome", pa.binary())])


def task(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; a task without a visible row reports nothing: the driver advances its range."""

    def run(arrow: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tune_worker_gc()
        for first in arrow:
            if first.num_rows:
                partition = first.column("partition")[0].as_py()
                offer = job.offers[partition]
                if TaskContext.get().attemptNumber() > 0:  # a crash on purpose strikes once, or no run could heal
                    offer = replace(offer, crash=None)
                batches = _MeasuredBatches(_chain(first, arrow))
                outcome = replace(attempt(offer, _rows(batches, partition), job), read_bytes=batches.read_bytes)
                yield pa.record_batch([pa.array([orjson.dumps(asdict(outcome))], pa.binary())], schema=_SCHEMA)
                return

    return run


@functools.cache
def tune_worker_gc() -> None:
    """Once in a worker's life: pyspark collects garbage after each task, and would look at every module each time."""
    gc.collect()
    gc.freeze()


class _MeasuredBatches:
    """Batches as they come, and their bytes."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self.read_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.read_bytes += batch.nbytes
            yield batch


def _rows(batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[Rows]:
    """Turn Arrow into lists; a row of another partition means that somebody shuffled the plan."""
    for batch in batches:
        partitions = batch.column("partition").unique().to_pylist()
        if batch.num_rows and partitions != [partition]:
            raise Fatal(f"read: a task for partition {partition} was given rows of {partitions}")
        headers = batch.column("headers")
        plain = headers.null_count == batch.num_rows
        yield Rows(
            batch.column("offset").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            [None] * batch.num_rows if plain else [headers_of(cell) for cell in headers.to_pylist()],
            batch.column("timestamp").to_pylist(),
        )


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def read_outcome(text: bytes) -> Outcome:
    """Read back what a task reported."""
    told = orjson.loads(text)
    return Outcome(**{**told, "status": Status(told["status"])})


_ARCHIVE_S = 60.0
_END_S = 2.0


class SparkEngine:
    """Spark's session, and the jobs on it; it ends Spark unless that is kept by somebody else."""

    def __init__(self, spark: SparkSession, settings: SparkSettings, *, kept: bool = False) -> None:
        self.spark, self._kept = spark, kept
        self._weights = RecordSizes(dict(settings.conf))
        self._end_s = _ARCHIVE_S if settings.make_archive else _END_S

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        """Run one job; a job that fails leaves every one of its ranges failed."""
        told: Mapping[int, Outcome]
        try:
            session.tag_jobs(self.spark.sparkContext)
            frame = read_ranges(self._session(ranges), job.transaction.connection, job.transaction.group, ranges)
            frame = frame.mapInArrow(task(job), OUTCOME_SCHEMA)
            check_one_task_per_range(frame, ranges)
            told = {o.partition: o for o in (read_outcome(bytes(row[0])) for row in frame.collect())}
        except BrewError:
            raise
        except Exception as error:  # noqa: BLE001 - py4j raises many kinds; Kafka's answer decides
            session.check_alive(self.spark.sparkContext)
            detail = f"Spark: {cause(error)}"
            told = {r.partition: Outcome(r.partition, r.start, r.until, Status.FAILED, detail=detail) for r in ranges}
        self._weights.apply_outcome(told.values())
        return told

    def _session(self, ranges: Sequence[OffsetRange]) -> SparkSession:
        """The one whose batches fit these ranges: settings are a session's, and lanes plan side by side."""
        return self._light if self._weights.light(one.partition for one in ranges) else self.spark

    @cached_property
    def _light(self) -> SparkSession:
        """Shares the context; made when it is wanted first, so that a start does not pay for it."""
        spark = self.spark.newSession()
        for name, value in SMALL_RECORDS.items():
            spark.conf.set(name, value)
        return spark

    def interrupt(self) -> None:
        session.cancel_all(self.spark.sparkContext)

    def close(self) -> None:
        if not self._kept:
            session.end(self.spark.sparkContext, self._end_s)


def cause(error: Exception) -> str:
    """The innermost cause that Java names, or the error's first line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    named = [line for line in lines if line.startswith(("Caused by:", ": "))]
    text = named[-1] if named else (lines or [type(error).__name__])[0]
    return text.removeprefix("Caused by:").removeprefix(":").strip()[:400]
