"""
What tasks do for a batch that several of them write: encode rows as record batches, and write their share of them.

They import this module, and not `brew.sink.shared`, whose client only the driver needs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
from pyspark import TaskContext

from brew.errors import Abortable, BrewError, Refused
from brew.kafka.sink_transaction import SharedEpoch
from brew.names import CrashPoint
from brew.sink.batch import BatchJob, Result, Status
from brew.sink.rows import checked_headers, destinations_of
from brew.spark.worker import tune_worker

_BATCH_BYTES = 512 * 1024
"""The target for a record batch; framing may double the size of tiny records, hence half of the topic's limit."""
_CHUNK_BYTES = 256 * 1024 * 1024
"""The maximum to encode at once: Spark's Arrow batches are smaller, unless configured otherwise."""
Encode = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_counts: dict[tuple[str, str, int, int], int] = {}


def partition_count(job: BatchJob, epoch: SharedEpoch, known: Mapping[str, int], topic: str) -> int:
    """Return a topic's number of partitions; for a topic named by rows, requested once per process and epoch."""
    if topic in known:
        return known[topic]
    asked = (job.connection.bootstrap, topic, epoch.producer_id, epoch.epoch)
    if asked not in _counts:
        if _counts and next(iter(_counts))[2:] != asked[2:]:
            _counts.clear()
        _counts[asked] = job.partitions(topic)
    return _counts[asked]


def encoded_rows(
    job: BatchJob, count_of: Callable[[str], int], batches: Iterator[pa.RecordBatch], *, compress: bool = False
) -> Iterator[pa.RecordBatch]:
    """
    Encode rows as Kafka's record batches; an error becomes a row without a topic that holds its description.

    ``compress``: for a shuffle.
    """
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
                yield encoded(records, job.sink_headers, min(_BATCH_BYTES, job.batch_bytes // 2), compress=compress)
            except BrewError as error:
                refused = {"topic": None, "partition": 0, "count": 0, "size": 0, "records": Result.of(error).encoded()}
                yield pa.RecordBatch.from_pylist([refused], SCHEMA)


def write_share(
    job: BatchJob, epoch: SharedEpoch, encode: Encode | None, batches: Iterator[pa.RecordBatch], *, speculation: bool
) -> Iterator[pa.RecordBatch]:
    """
    Write one task's rows, and return its `Result` as a row.

    ``encode``: what makes record batches of them; None for those that a task before the shuffle has made.
    """
    tune_worker()
    result = _written(job, epoch, batches if encode is None else encode(batches), speculation=speculation)
    yield pa.RecordBatch.from_pydict({"result": pa.array([result.encoded()], pa.binary())})


def _written(job: BatchJob, epoch: SharedEpoch, encoded: Iterator[pa.RecordBatch], *, speculation: bool) -> Result:
    """Write record batches; a repeated attempt writes nothing and reports it."""
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
        Refused, Abortable: what `encoded_rows` found, in this task or in one before the shuffle.
    """
    for batch in encoded:
        wrong = batch.filter(batch.column("topic").is_null())
        if wrong.num_rows:
            found = Result.decoded(wrong.column("records")[0].as_py())
            raise (Refused if found.status is Status.REFUSED else Abortable)(found.detail.partition(": ")[2])
        yield batch
