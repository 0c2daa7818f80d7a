"""Read ranges with Spark's Kafka source, one task per range, and transact in the task."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from itertools import chain
from typing import cast

import orjson
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from brew.attempt import Job, attempt
from brew.connection import Connection, java_settings
from brew.errors import BrewError, Fatal, Refused
from brew.offsets import OffsetRange
from brew.outcome import GOOD, Outcome, Status
from brew.range_transaction import RecordHeaders, Rows
from brew.readers.direct.messages import reportable
from brew.settings import SparkSettings
from brew.spark import gateway, session
from brew.spark.worker import check_all_rows_came, tune_worker

logger = logging.getLogger(__name__)

_BATCH_SETTINGS = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
SMALL_RECORDS = dict(zip(_BATCH_SETTINGS, ("2000", str(2**31 - 1)), strict=True))
"""
Batches of so few records that their bytes need no limit; 2^31 - 1 means no limit. To enforce one, Spark measures the
batch after each row, which takes more than a quarter of a task's CPU time (decision 0006).
"""
SMALL_RECORD_BYTES = 4096
"""The mean size below which records count as small: 2,000 of them are 8 MiB."""


class RecordSizes:
    """The mean record size of each partition in its last range; thread-safe."""

    def __init__(self, conf: Mapping[str, str]) -> None:
        """``conf``: the caller's Spark settings; batch limits set there are not overridden."""
        self._bounded_by_caller = any(name in conf for name in _BATCH_SETTINGS)
        self._bytes: dict[int, float] = {}
        self._lock = threading.Lock()

    def all_small(self, partitions: Iterable[int]) -> bool:
        """Return whether all of these partitions have been read before, and had small records."""
        with self._lock:
            return not self._bounded_by_caller and all(
                self._bytes.get(partition, SMALL_RECORD_BYTES) < SMALL_RECORD_BYTES for partition in partitions
            )

    def apply_outcome(self, outcomes: Iterable[Outcome]) -> None:
        """Update the sizes; forget them after a failed attempt, which may have run out of memory."""
        with self._lock:
            for outcome in outcomes:
                records = outcome.records
                if outcome.status not in GOOD:
                    self._bytes.pop(outcome.partition, None)
                elif records:
                    self._bytes[outcome.partition] = outcome.read_bytes / records


# A flat column: Spark measures the batch after each row, and traverses nested columns from the start each time (77 % of
# a task's time with a list of structs and 10,000 rows). Null headers, the usual case, cost nothing.
COLUMN = "CAST(CASE WHEN size(headers) > 0 THEN to_json(headers) END AS BINARY) AS headers"


def headers_of(cell: bytes | None) -> RecordHeaders:
    """Parse a cell of the headers column, which Spark's `to_json` wrote: bytes as base64, null values left out."""
    if not cell:
        return None
    pairs = [(header["key"], header.get("value")) for header in orjson.loads(cell)]
    return cast("RecordHeaders", tuple((n, None if value is None else base64.b64decode(value)) for n, value in pairs))


# Settings of the Java client. The back-offs shorten start-up, the sizes raise throughput (benchmarks/RESULTS.md).
_CONSUMER_CONF = {
    "isolation.level": "read_committed",
    "check.crcs": "true",
    "allow.auto.create.topics": "false",
    "retry.backoff.ms": "5",
    "reconnect.backoff.ms": "5",
    # Spark queries both ends of the log after each fetch, and the broker answers a connection in order: after a fetch
    # at the end of the log, these queries wait for this long (default 500, which cost 1 s per task).
    "fetch.max.wait.ms": "5",
    "max.poll.records": "10000",
    "max.partition.fetch.bytes": str(4 * 1024 * 1024),
    "receive.buffer.bytes": "-1",
}


def read_ranges(spark: SparkSession, connection: Connection, group: str, ranges: Sequence[OffsetRange]) -> DataFrame:
    """Return the visible records of ``ranges``; executors cache consumers by ``group``, which nobody joins."""
    topic = ranges[0].topic
    options = {
        **{f"kafka.{name}": value for name, value in _CONSUMER_CONF.items()},
        "kafka.bootstrap.servers": connection.bootstrap,
        # By default each query has its own group: its consumers are not reused, and stay open for minutes.
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
    """Check the plan: a task that sees a part of a range would commit all of it, so anything else is `Fatal`."""
    execution = frame._jdf.queryExecution()  # noqa: SLF001 - pyspark has no public access to the plan
    tasks = execution.toRdd().getNumPartitions()
    if tasks != len(ranges) or "Exchange" in execution.executedPlan().toString():
        raise Fatal(
            f"read: Spark planned {tasks} tasks for {len(ranges)} ranges; "
            "unset minPartitions and maxRecordsPerPartition, and do not shuffle between source and writer"
        )


OUTCOME_SCHEMA = "outcome binary"
_SCHEMA = pa.schema([("outcome", pa.binary())])


def task(job: Job) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`; without visible rows it reports nothing, and the driver advances the range."""

    def run(arrow: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        tune_worker()
        for first in arrow:
            if first.num_rows:
                partition = first.column("partition")[0].as_py()
                offer = job.offers[partition]
                if TaskContext.get().attemptNumber() > 0:  # crash only once, or no run could recover
                    offer = replace(offer, crash=None)
                batches = _MeasuredBatches(chain([first], arrow))
                outcome = replace(attempt(offer, _rows(batches, partition), job), read_bytes=batches.read_bytes)
                document = orjson.dumps(asdict(reportable(outcome)))
                yield pa.record_batch([pa.array([document], pa.binary())], schema=_SCHEMA)
                return

    return run


class _MeasuredBatches:
    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self.read_bytes = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self._batches:
            self.read_bytes += batch.nbytes
            yield batch
        check_all_rows_came()


def _rows(batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[Rows]:
    """Convert Arrow batches to lists; rows of another partition mean that the plan has a shuffle."""
    for batch in batches:
        partitions = batch.column("partition").unique().to_pylist()
        if batch.num_rows and partitions != [partition]:
            raise Fatal(f"read: a task for partition {partition} received rows of {partitions}")
        headers = batch.column("headers")
        plain = headers.null_count == batch.num_rows
        yield Rows(
            batch.column("offset").to_pylist(),
            batch.column("key").to_pylist(),
            batch.column("value").to_pylist(),
            [None] * batch.num_rows if plain else [headers_of(cell) for cell in headers.to_pylist()],
            batch.column("timestamp").to_pylist(),
        )


_END_S = 2.0
_WATCH_S = 1.0


class SparkEngine:
    """Runs attempts as Spark jobs; ends the use of Spark on close."""

    def __init__(self, spark: SparkSession, settings: SparkSettings, *, patience_s: float) -> None:
        """``patience_s``: how long a job may wait while the application has no executor."""
        self.spark, self._patience_s = spark, patience_s
        self._jobs = session.RunJobs(spark.sparkContext)
        self._waiting: dict[int, float] = {}
        self._refused: Refused | None = None
        self._closed = threading.Event()
        self._watch = threading.Thread(target=self._watch_executors, name="executors", daemon=True)
        self._watch.start()
        self._record_sizes = RecordSizes(dict(settings.conf))

    def execute(self, ranges: Sequence[OffsetRange], job: Job) -> Mapping[int, Outcome]:
        """Run one job; if it fails, all of its ranges have failed."""
        outcomes: Mapping[int, Outcome]
        self._waiting[threading.get_ident()] = time.monotonic()
        try:
            self._jobs.tag()
            # Lanes run in parallel, so each size of batches has a session of its own.
            small = self._record_sizes.all_small(range_.partition for range_ in ranges)
            spark = self._small_records_session if small else self.spark
            frame = read_ranges(spark, job.transaction.connection, job.transaction.group, ranges)
            frame = frame.mapInArrow(task(job), OUTCOME_SCHEMA)
            check_one_task_per_range(frame, ranges)
            reported = [orjson.loads(row[0]) for row in frame.collect()]
            outcomes = {o["partition"]: Outcome(**{**o, "status": Status(o["status"])}) for o in reported}
        except BrewError:
            raise
        except Exception as error:  # py4j raises many kinds; Kafka's answer decides
            session.check_alive(self.spark.sparkContext)
            if self._refused is not None:
                raise self._refused from error
            detail = f"Spark: {gateway.cause(error)}"
            outcomes = {
                r.partition: Outcome(r.partition, r.start, r.until, Status.FAILED, detail=detail) for r in ranges
            }
        finally:
            del self._waiting[threading.get_ident()]
        self._record_sizes.apply_outcome(outcomes.values())
        return outcomes

    @cached_property
    def _small_records_session(self) -> SparkSession:
        """A session with small batches on the same context; created on first use, to keep the start short."""
        spark = self.spark.newSession()
        for name, value in SMALL_RECORDS.items():
            spark.conf.set(name, value)
        return spark

    def _watch_executors(self) -> None:
        """Cancel jobs that wait for an executor longer than the patience: Spark lets them wait forever."""
        had_one, warned = 0.0, False
        with contextlib.suppress(Refused):  # a JVM that has ended is reported by the job
            while not self._closed.wait(_WATCH_S):
                try:
                    executors, now = session.executors(self.spark.sparkContext), time.monotonic()
                except Refused as error:
                    session.check_alive(self.spark.sparkContext)
                    if not (warned or self._closed.is_set()):
                        logger.warning("jobs without an executor wait until Spark answers again: %s", error)
                    warned = True
                    continue
                if executors is None:
                    return
                if executors:
                    had_one = now
                waited_s = now - max(had_one, min(list(self._waiting.values()), default=now))
                if waited_s > self._patience_s:
                    self._refused = Refused(
                        f"no Spark task has started for {waited_s:.0f} s (--patience is {self._patience_s:g} s): the "
                        "application has no executor; compare its executors' memory and cores with what the cluster "
                        "has free"
                    )
                    self._jobs.cancel()

    def interrupt(self) -> None:
        self._jobs.cancel()

    def close(self) -> None:
        self._closed.set()
        self._watch.join(_END_S)  # py4j prints a stack trace if the JVM ends during a call
        session.end(self.spark.sparkContext, _END_S)
