"""
A query through the sink, or through Spark's own, as a program: the campaign and tests kill it, benchmarks measure it.

It starts as our sessions do. Without `--follow`, its trigger is `availableNow`: it drains the input and ends.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from pyspark import TaskContext
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

import brew
from brew.cli import option, run
from brew.jvm import dependencies
from brew.names import SINK_BATCH, CrashMode, CrashPoint
from brew.orders import DISCOUNTS, STANDARD
from brew.readers.connector import _CONSUMER_CONF as READ_CLIENT
from brew.settings import SparkSettings
from brew.sink.batch import SinkCrash
from brew.spark import session
from brew.transaction import Transaction

_LOOK_S, _HOLD_S = 0.2, 0.01
PARTITIONS = 4
"""Of the output: those of a cell (`proof.campaign.cell`)."""
_POINTS = click.Choice([point.value for point in CrashPoint])
Query = Callable[[DataFrame, Callable[[], DataFrame], Column], DataFrame]
"""(records, another stream of the same input, value to write) -> rows."""
_ORDER = (
    "order_id STRING, customer_id STRING, item STRING, quantity INT, total_cents BIGINT, "
    "store STRING, created_at STRING"
)
# As in brew.kafka.clients.producer, with the Java client's names.
_WRITE_CLIENT = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "5",
    "batch.size": str(512 * 1024),
    "buffer.memory": str(64 * 1024 * 1024),
    "compression.type": "none",
}


@dataclass(frozen=True, slots=True)
class Hold(SinkCrash):
    """Waits instead of crashing: the first task there writes its pid and stage to ``file`` and waits for FILE.go."""

    file: str = ""

    def crash(self, _point: CrashPoint, _transaction: Transaction | None) -> None:
        task, written = TaskContext.get(), Path(f"{self.file}.{os.getpid()}")
        written.write_text(f"{os.getpid()} {-1 if task is None else task.stageId()}")
        try:
            os.link(written, self.file)
        except FileExistsError:
            return
        while not Path(f"{self.file}.go").exists():
            time.sleep(_HOLD_S)


def counted(records: DataFrame, _source: Callable[[], DataFrame], _value: Column) -> DataFrame:
    """Count the records per first part of their key: stateful, in update mode."""
    kind = sf.substring_index(sf.col("key").cast("string"), "-", 1).alias("key")
    return records.groupBy(kind).count().select("key", sf.col("count").cast("string").alias("value"))


def keyed(records: DataFrame, _source: Callable[[], DataFrame], value: Column) -> DataFrame:
    """Write each record once, with its source position as key, which decides its output partition."""
    return records.select(*_row(value))


def copied(records: DataFrame, _source: Callable[[], DataFrame], value: Column) -> DataFrame:
    """Write each record once, as a narrow query: each record keeps its partition."""
    return records.select(*_row(value), "partition")


def scattered(records: DataFrame, _source: Callable[[], DataFrame], value: Column) -> DataFrame:
    """
    Write each record to a random partition: a retry's rows go elsewhere than those of the attempt before.

    Shuffled, or writing tasks would meet in one partition, and only a retry would reach the later crash points.
    """
    return records.repartition(PARTITIONS).select(*_row(value), (sf.rand() * PARTITIONS).cast("int").alias("partition"))


def joined(records: DataFrame, source: Callable[[], DataFrame], value: Column) -> DataFrame:
    """Join the input, read as two streams, on each record's position: each appears once, after both have read it."""
    there = source().select(sf.col("partition").alias("p"), sf.col("offset").alias("o"))
    same = (sf.col("partition") == sf.col("p")) & (sf.col("offset") == sf.col("o"))
    return records.join(there, same).select(*_row(value))


def _row(value: Column) -> tuple[Column, Column]:
    place = sf.concat_ws("-", sf.col("partition").cast("string"), sf.col("offset").cast("string"))
    return place.alias("key"), value.alias("value")


def plain(records: DataFrame, _source: Callable[[], DataFrame], _value: Column) -> DataFrame:
    return records.select("key", "value")


def enriched(
    records: DataFrame, _source: Callable[[], DataFrame], _value: Column, *, parse: bool = True, shuffle: bool = False
) -> DataFrame:
    """
    Do the pipeline's work with SQL functions: key, enriched value, partition, headers with the source position.

    Without ``parse`` the new fields are appended as text, and the input is trusted. With ``shuffle`` the rows are
    shuffled by key, which then decides the output partition.
    """
    known = ", ".join(f"'{tier}'" for tier in DISCOUNTS)
    prefix = "substring_index(string(key), '-', 1)"
    tier = f"IF({prefix} IN ({known}), {prefix}, '{STANDARD}')"
    cases = " ".join(f"WHEN '{name}' THEN {discount}D" for name, discount in DISCOUNTS.items())
    rows = records.selectExpr("*", f"{tier} AS tier").selectExpr("*", f"CASE tier {cases} END AS discount")
    if parse:
        rows = rows.selectExpr("*", f"from_json(string(value), '{_ORDER}') AS o")
        value = "to_json(struct(o.*, tier AS loyalty_tier, discount AS loyalty_discount))"
    else:
        opened = "substring(string(value), 1, length(string(value)) - 1)"
        value = f"concat({opened}, ',\"loyalty_tier\":\"', tier, '\",\"loyalty_discount\":', discount, '}}')"
    own = ", ".join(
        f"named_struct('key', 'source.{name}', 'value', binary(string({name})))"
        for name in ("topic", "partition", "offset")
    )
    headers = f"concat(coalesce(headers, array()), array({own})) AS headers"
    rows = rows.selectExpr("key", f"{value} AS value", "partition", headers)
    return rows.drop("partition").repartition("key") if shuffle else rows


ENRICH: dict[str, Query] = {
    "enrich": enriched,
    "enrich-concat": partial(enriched, parse=False),
    "enrich-shuffled": partial(enriched, shuffle=True),
}
"""The queries of the benchmarks, with the clients' settings of our own pipeline."""
QUERIES: dict[str, Query] = {
    "count": counted,
    "plain": plain,
    "copy": copied,
    "keyed": keyed,
    "rand": scattered,
    "join": joined,
    **ENRICH,
}


def sparks_in_batches(bootstrap: str, output: str) -> Callable[[DataFrame, int], None]:
    """Return Spark's own sink with our batch header: without transactions, so readers see partial batches."""

    def write(frame: DataFrame, batch_id: int) -> None:
        name, number = sf.lit(SINK_BATCH).alias("key"), sf.lit(str(batch_id)).cast("binary").alias("value")
        rows = frame.withColumn("headers", sf.array(sf.struct(name, number)))
        options = {"kafka.bootstrap.servers": bootstrap, "topic": output, "kafka.linger.ms": "0"}
        rows.write.format("kafka").options(**options).mode("append").save()

    return write


def stream(spark: SparkSession, told: dict[str, Any]) -> DataFrame:
    options = {"kafka.bootstrap.servers": told["bootstrap"], "subscribe": told["topic"], "startingOffsets": "earliest"}
    if told["most"]:
        options["maxOffsetsPerTrigger"] = str(told["most"])
    if told["query"] in ENRICH:
        options |= {f"kafka.{name}": value for name, value in READ_CLIENT.items()} | {"includeHeaders": "true"}

    def source() -> DataFrame:
        return spark.readStream.format("kafka").options(**options).load()

    value = sf.lit("1")
    if told["slow_ms"]:  # row by row, in the JVM: Python receives rows in batches
        value = sf.concat_ws("", value, sf.expr(f"reflect('java.lang.Thread', 'sleep', {told['slow_ms']}L)"))
    return QUERIES[told["query"]](source(), source, sf.rpad(value, told["width"], " "))


@click.command()
@click.option("--bootstrap", required=True, help="Kafka's bootstrap servers.")
@click.option("--input", "topic", required=True, help="Topic to read.")
@click.option("--output", required=True, help="Topic to write.")
@click.option("--name", required=True, help="Name of the sink.")
@click.option("--checkpoint", required=True, help="Directory of the query's checkpoint.")
@option("--query", type=click.Choice(list(QUERIES)), default="count", help="Query to run.")
@option(
    "--writers",
    type=click.Choice(["1", "tasks", "spark", "spark-in-batches"]),
    default="1",
    help="Our sink with one writer (1) or with writing tasks (tasks); Spark's own sink (spark), with the batch number "
    "in a header (spark-in-batches).",
)
@option("--most", default=100, help="Maximum offsets per batch; 0: no maximum.")
@option("--width", default=1, help="Length of a value in characters.")
@option("--slow-ms", default=0, help="Milliseconds to spend on each row.")
@option("--master", default="local[2]", help="Spark master.")
@option("--transaction-timeout", "timeout_s", default=60.0, help="Transaction timeout in seconds.")
@click.option("--crash-point", type=_POINTS, help="Step of the transaction to crash at  [default: no crash]")
@option("--crash-batch", default=0, help="Batch in which to crash.")
@option(
    "--crash-mode",
    type=click.Choice([mode.value for mode in CrashMode]),
    default=CrashMode.PIPELINE.value,
    help="Kill the process at the crash point (worker) or the whole query (pipeline).",
)
@click.option("--hold-file", help="File to create at the crash point; then wait for FILE.go instead of crashing.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Spark setting; repeatable.")
@click.option("--follow", is_flag=True, help="Run until SIGTERM; without it, stop when the input is drained.")
def query(follow: bool, conf: tuple[str, ...], **options: Any) -> None:
    """Run a query until its input is drained."""
    batches, times = logging.getLogger("brew.sink"), logging.StreamHandler()
    times.setFormatter(logging.Formatter("%(created)f %(message)s"))
    batches.addHandler(times)
    batches.propagate = False
    settings = {"spark.sql.shuffle.partitions": "2", **{k: v for k, _, v in (pair.partition("=") for pair in conf)}}
    spark = session.start(SparkSettings(options["master"], str(dependencies.home()), settings))
    try:
        mode = "update" if options["query"] == "count" else "append"
        writer = stream(spark, options).writeStream.outputMode(mode).option("checkpointLocation", options["checkpoint"])
        if options["writers"] == "spark":
            client = {f"kafka.{k}": v for k, v in _WRITE_CLIENT.items()} if options["query"] in ENRICH else {}
            place = {"kafka.bootstrap.servers": options["bootstrap"], "topic": options["output"]}
            writer = writer.format("kafka").options(**client, **place)
        elif options["writers"] == "spark-in-batches":
            writer = writer.foreachBatch(sparks_in_batches(options["bootstrap"], options["output"]))
        else:
            writer = writer.foreachBatch(sink_of(options))
        running = (writer.trigger(processingTime="0 seconds") if follow else writer.trigger(availableNow=True)).start()
        # An exception raised in a signal handler would leave the gateway in the middle of an answer.
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        while not stopping.is_set() and not running.awaitTermination(_LOOK_S):
            pass
        running.stop()
    finally:
        session.end(spark.sparkContext)


def sink_of(options: dict[str, Any]) -> brew.ExactlyOnceSink:
    crash: SinkCrash | None = None
    if options["crash_point"]:
        place = CrashPoint(options["crash_point"]), options["crash_batch"], CrashMode(options["crash_mode"])
        crash = Hold(*place, file=options["hold_file"]) if options["hold_file"] else SinkCrash(*place)
    return brew.ExactlyOnceSink(
        options["bootstrap"],
        name=options["name"],
        topic=options["output"],
        writers=1 if options["writers"] == "1" else "tasks",
        headers=options["query"] not in ENRICH,
        transaction_timeout_s=options["timeout_s"],
        _crash=crash,
    )


if __name__ == "__main__":
    run(query, "scripts/sink_query.py")
