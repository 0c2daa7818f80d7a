"""What Spark knows about the query of a batch; the only place that uses more than pyspark's public API."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JError

from brew.errors import Refused, UsageError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

_QUERY_ID = "sql.streaming.queryId"
_CONNECT = "pyspark.sql.connect"


class BatchSource(NamedTuple):
    """
    One batch of a query: the checkpoint's source offsets of this batch and the one before.

    ``query``: its id, which restarts keep; ``run``: the id of this run, which passes each batch once.
    """

    query: str
    run: str
    offsets: str
    previous: str | None
    ends: dict[str, dict[int, int]]


def check_session(df: DataFrame) -> None:
    """
    Raises:
        UsageError: the frame belongs to Spark Connect.
    """
    if type(df).__module__.startswith(_CONNECT):
        raise UsageError(
            "the sink can't work through Spark Connect: a remote client reads neither the query's checkpoint nor the "
            "attempts of its tasks; run the query with a classic session (SparkSession.builder.master(...))"
        )


_woken = set[str]()


def wake_workers() -> threading.Thread | None:
    """
    Start the executors' Python with a small background job, so that it is ready for the first batch.

    Runs once per application, while Spark still plans the query; returns None without a session or after the first run.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - `brew.ExactlyOnceSink` is named without Spark

    try:
        spark = SparkSession.getActiveSession()
        if spark is None or type(spark).__module__.startswith(_CONNECT) or spark.sparkContext.applicationId in _woken:
            return None
        _woken.add(spark.sparkContext.applicationId)
    except (Py4JError, OSError):  # the JVM is gone: the sink is created anyway
        return None

    def run() -> None:
        # The first batch reports any problem better.
        with contextlib.suppress(Exception):
            context = spark.sparkContext
            context.setJobDescription("brew: start Python for the sink")
            slots = max(1, int(context.defaultParallelism))
            spark.range(slots, numPartitions=slots).mapInArrow(_import_writers, "id bigint").collect()

    thread = threading.Thread(target=run, name="brew-sink-wake", daemon=True)
    thread.start()
    return thread


def _import_writers(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Import the modules that write; unpickling this function imports most of what a batch needs."""
    import pyarrow as pa  # noqa: PLC0415 - on the executor

    import brew.kafka.arrow_batches  # noqa: PLC0415 - as above
    import brew.kafka.shared_writer  # noqa: PLC0415 - as above
    import brew.sink.tasks  # noqa: PLC0415, F401 - as above

    pa.scalar(0)  # imports pandas, which takes 0.4 s
    yield from batches


def check_batch_job(df: DataFrame) -> None:
    """
    Raises:
        UsageError: a streaming query is running in this thread.
    """
    context: Any = df.sparkSession.sparkContext
    if context.getLocalProperty(_QUERY_ID) is not None:
        raise UsageError(
            "sink.write was called inside foreachBatch, where it can't compare the batch with the query's checkpoint; "
            "call the sink itself: sink(df, batch_id)"
        )


def batch_source(df: DataFrame, batch_id: int) -> BatchSource:
    """
    Return what the checkpoint says about a batch that `foreachBatch` passes.

    Raises:
        UsageError: no streaming query is running in this thread.
        Refused: this version of Spark keeps its offsets elsewhere.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - `brew.ExactlyOnceSink` is named without Spark

    context: Any = df.sparkSession.sparkContext
    query = context.getLocalProperty(_QUERY_ID)
    if query is None:
        raise UsageError(
            "the sink was called outside of foreachBatch; use sink.write(df, batch_id) for a batch job; threads that "
            "foreachBatch starts have to be pyspark.InheritableThread, or pools whose functions are wrapped by "
            "pyspark.inheritable_thread_target(df.sparkSession)"
        )
    try:
        execution = _execution(df.sparkSession, query)
        log, run = execution.offsetLog(), execution.runId().toString()
        entry = log.get(batch_id)
        before = log.get(batch_id - 1) if batch_id > 0 else None
        previous = before.get().toString() if before is not None and before.isDefined() else None
        return BatchSource(query, run, entry.get().toString(), previous, _ends(entry.get()))
    except (Py4JError, PySparkException, AttributeError, TypeError) as error:
        version = df.sparkSession.version
        raise Refused(
            f"the sink can't read the checkpoint's offsets of batch {batch_id} from Spark {version}: {error}; it was "
            "tested with Spark 4.2"
        ) from error


def _ends(entry: Any) -> dict[str, dict[int, int]]:
    """Return where the batch ends in the topics that it reads; sources other than Kafka are left out."""
    found: dict[str, dict[int, int]] = {}
    # Version 2 of the offset log names its sources, and refuses to give their offsets as a sequence.
    offsets = entry.offsetsMap().values().toSeq() if entry.version() > 1 else entry.offsets()
    for number in range(offsets.size()):
        one = offsets.apply(number)
        if one.isDefined():
            for topic, ends in kafka_offsets(one.get().json()).items():
                known = found.setdefault(topic, {})
                known.update({p: min(at, known.get(p, at)) for p, at in ends.items()})
    return found


def kafka_offsets(text: str) -> dict[str, dict[int, int]]:
    """Parse one source's offsets from JSON into topic -> partition -> offset; empty for a source that is not Kafka."""
    by_topic = json.loads(text)
    if not isinstance(by_topic, dict):
        return {}
    try:
        return {topic: {int(p): int(at) for p, at in ends.items()} for topic, ends in by_topic.items()}
    except (AttributeError, TypeError, ValueError):
        return {}


def tasks_of(df: DataFrame) -> int:
    """
    Return the number of tasks that compute the last stage of this frame.

    An adaptive plan counts as very many: Spark knows their number only once it has run all stages before the last.
    """
    execution = df._jdf.queryExecution()  # noqa: SLF001 - as `brew.readers.connector` does
    adaptive = execution.executedPlan().nodeName() == "AdaptiveSparkPlan"
    return sys.maxsize if adaptive else int(execution.toRdd().getNumPartitions())


_TASKS_PER_SLOT = 4


def in_few_tasks(frame: DataFrame) -> DataFrame:
    """
    Return the same rows in at most as many tasks as the executors' slots can share evenly.

    Spark shuffles into 200 partitions by default. With a task for each of them, 1,000,000 rows took a quarter longer
    (local[2]).
    """
    most = _TASKS_PER_SLOT * int(frame.sparkSession.sparkContext.defaultParallelism)
    return frame.coalesce(most) if tasks_of(frame) > most else frame


def is_narrow(df: DataFrame) -> bool:
    """Return whether nothing was shuffled up to this frame: each task has its source partition's rows."""
    session: Any = df.sparkSession
    query = session.sparkContext.getLocalProperty(_QUERY_ID)
    plans = [df._jdf.queryExecution()]  # noqa: SLF001 - as above
    if query is not None:  # the frame passed by foreachBatch does not show its origin
        plans.append(_execution(session, query).lastExecution())
    return not any("Exchange" in plan.executedPlan().toString() for plan in plans)


def is_stopping(df: DataFrame) -> bool:
    """Return whether `stop` was called on the query of this thread; it waits until foreachBatch returns."""
    session: Any = df.sparkSession
    query = session.sparkContext.getLocalProperty(_QUERY_ID)
    return query is not None and not _execution(session, query).isActive()


def _execution(session: Any, query: str) -> Any:
    """Return the running query; the session of foreachBatch is a clone, whose own list of queries is empty."""
    key = session.sparkContext._jvm.java.util.UUID.fromString(query)  # noqa: SLF001
    return session._jsparkSession.sharedState().activeStreamingQueries().get(key)  # noqa: SLF001


def driver_processes(df: DataFrame) -> tuple[int, int]:
    """Return the pids of the driver's Python and its JVM, for intentional crashes."""
    jvm: Any = df.sparkSession.sparkContext._jvm  # noqa: SLF001
    return os.getpid(), int(jvm.java.lang.ProcessHandle.current().pid())


def was_repeated(df: DataFrame, stage: int) -> bool:
    """Return whether Spark ran this stage more than once, as after lost shuffle files; call it after its job."""
    context: Any = df.sparkSession.sparkContext
    try:
        context._jsc.sc().listenerBus().waitUntilEmpty()  # noqa: SLF001 - it reports attempts
    except Py4JError:
        return True  # more than ten seconds behind: what can't be ruled out counts as seen
    info = context.statusTracker().getStageInfo(stage)
    return info is None or info.currentAttemptId > 0
