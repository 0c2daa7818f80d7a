"""The connector reader: ranges of offsets -> a DataFrame with one task per range."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from pipeline.headers import COLUMN
from protocol.connection import Connection
from protocol.errors import Fatal
from protocol.java_client import java_settings
from protocol.position import OffsetRange

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


def read(spark: SparkSession, connection: Connection, group: str, ranges: Sequence[OffsetRange]) -> DataFrame:
    """
    The visible records of ``ranges``: offset, partition, key, value, headers (`pipeline.headers`), timestamp (ms).

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
