"""A query through the sink, or through Spark's own, as a program: what campaign and tests break."""

from __future__ import annotations

import signal
import threading

import click
from pyspark.sql import functions as sf

import brew
from brew.cli import run
from brew.jvm import dependencies
from brew.names import CrashMode, CrashPoint
from brew.settings import SparkSettings
from brew.sink.batch import SinkCrash
from brew.spark import session

_LOOK_S = 0.2


@click.command()
@click.option("--bootstrap", required=True)
@click.option("--input", "topic", required=True)
@click.option("--output", required=True)
@click.option("--name", required=True)
@click.option("--checkpoint", required=True)
@click.option("--writers", type=click.Choice(["1", "tasks", "spark"]), default="1", help="spark: its own sink.")
@click.option("--most", default=100, show_default=True, help="Offsets in a batch.")
@click.option("--master", default="local[2]", show_default=True)
@click.option("--transaction-timeout", "timeout_s", default=60.0, show_default=True)
@click.option("--crash-point", type=click.Choice([point.value for point in CrashPoint]))
@click.option("--crash-batch", default=0, show_default=True)
@click.option("--crash-mode", type=click.Choice([mode.value for mode in CrashMode]), default=CrashMode.PIPELINE.value)
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting; may be repeated.")
@click.option("--copy", is_flag=True, help="Pass records on as they are instead.")
@click.option("--follow", is_flag=True, help="Go on until SIGTERM.")
def query(
    bootstrap: str,
    topic: str,
    output: str,
    name: str,
    checkpoint: str,
    writers: str,
    most: int,
    master: str,
    timeout_s: float,
    crash_point: str | None,
    crash_batch: int,
    crash_mode: str,
    conf: tuple[str, ...],
    copy: bool,
    follow: bool,
) -> None:
    """Count records by the first part of their key, in update mode."""
    pairs = {key: value for key, _, value in (pair.partition("=") for pair in conf)}
    settings = {"spark.sql.shuffle.partitions": "2", **pairs}
    spark = session.start(SparkSettings(master, str(dependencies.home()), settings))
    try:
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
        records = spark.readStream.format("kafka").options(**options, maxOffsetsPerTrigger=str(most)).load()
        kind = sf.substring_index(sf.col("key").cast("string"), "-", 1).alias("key")
        counted = records.groupBy(kind).count().select("key", sf.col("count").cast("string").alias("value"))
        rows = records.select("key", "value") if copy else counted
        writer = rows.writeStream.outputMode("update").option("checkpointLocation", checkpoint)
        if writers == "spark":
            writer = writer.format("kafka").options(**{"kafka.bootstrap.servers": bootstrap, "topic": output})
        else:
            crash = SinkCrash(CrashPoint(crash_point), crash_batch, CrashMode(crash_mode)) if crash_point else None
            sink = brew.ExactlyOnceSink(
                bootstrap,
                name=name,
                topic=output,
                writers=1 if writers == "1" else "tasks",
                transaction_timeout_s=timeout_s,
                _crash=crash,
            )
            writer = writer.foreachBatch(sink)
        running = (writer.trigger(processingTime="0 seconds") if follow else writer.trigger(availableNow=True)).start()
        # An exception out of a signal's handler would leave the gateway in the middle of an answer.
        stopping = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopping.set())
        while not stopping.is_set() and not running.awaitTermination(_LOOK_S):
            pass
        running.stop()
    finally:
        session.end(spark.sparkContext)


if __name__ == "__main__":
    run(query, "sink_query")
