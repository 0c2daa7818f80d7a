"""
The peer: Spark's own Kafka source and at-least-once Kafka sink doing the pipeline's work with SQL functions.

A restartable streaming query with a checkpoint and the trigger `availableNow`: all input is one micro-batch, the best
case for its rate. It starts as our sessions do, with our client settings; the caller chooses the JIT compilers. With
`--sink one` or `tasks` it writes through `brew.ExactlyOnceSink`, without headers of its own.
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession

from brew.cli import flag, option, plain_option, repeatable, run, typed_option
from brew.names import INPUT_TOPIC, OUTPUT_TOPIC
from brew.orders import DISCOUNTS, STANDARD
from brew.readers.connector import _CONSUMER_CONF as READ_CLIENT
from brew.settings import SparkSettings
from brew.sink.sink import ExactlyOnceSink
from brew.spark import session

_ORDER = (
    "order_id STRING, customer_id STRING, item STRING, quantity INT, total_cents BIGINT, "
    "store STRING, created_at STRING"
)
_LOOK_S = 1
_BATCH_S = 600.0  # one micro-batch for all of the input
# As in brew.kafka.clients.producer, with the Java client's names.
_WRITE_CLIENT = {
    "acks": "all",
    "enable.idempotence": "true",
    "linger.ms": "5",
    "batch.size": str(512 * 1024),
    "buffer.memory": str(64 * 1024 * 1024),
    "compression.type": "none",
}


def enriched(source: DataFrame, json: str) -> DataFrame:
    """Return key, enriched value, partition, and the input's headers followed by the source position."""
    known = ", ".join(f"'{tier}'" for tier in DISCOUNTS)
    prefix = "substring_index(string(key), '-', 1)"
    tier = f"IF({prefix} IN ({known}), {prefix}, '{STANDARD}')"
    cases = " ".join(f"WHEN '{name}' THEN {discount}D" for name, discount in DISCOUNTS.items())
    rows = source.selectExpr("*", f"{tier} AS tier").selectExpr("*", f"CASE tier {cases} END AS discount")
    if json == "parse":
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
    return rows.selectExpr("key", f"{value} AS value", "partition", headers)


def copy(
    spark: SparkSession,
    *,
    bootstrap: str,
    topic: str,
    output: str,
    checkpoint: str,
    json: str,
    kind: str,
    most: int | None,
    follow: bool,
    shuffle: bool,
) -> None:
    """Copy what is in ``topic`` now, and return when it is written; with ``follow``, continue with new records."""
    options = {
        **{f"kafka.{name}": value for name, value in READ_CLIENT.items()},
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        **({} if most is None else {"maxOffsetsPerTrigger": str(most)}),
    }
    source = spark.readStream.format("kafka").options(**options).load()
    rows = enriched(source, json)
    if shuffle:
        rows = rows.select("key", "value", "headers").repartition("key")
    writer = rows.writeStream.option("checkpointLocation", checkpoint)
    if kind == "spark":
        writing = {f"kafka.{name}": value for name, value in _WRITE_CLIENT.items()}
        writer = writer.format("kafka").options(**writing, **{"kafka.bootstrap.servers": bootstrap, "topic": output})
    else:
        ours = ExactlyOnceSink(
            bootstrap,
            name=output,
            topic=output,
            writers=1 if kind == "one" else "tasks",
            headers=False,
            transaction_timeout_s=_BATCH_S,
        )
        writer = writer.foreachBatch(ours)
    # No pause between micro-batches: the next one starts when there is something to read.
    query = (writer.trigger(processingTime="0 seconds") if follow else writer.trigger(availableNow=True)).start()
    # An exception raised in a signal handler would leave the gateway in the middle of an answer.
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    while not stopping.is_set() and not query.awaitTermination(_LOOK_S):
        pass
    query.stop()


@click.command()
@plain_option("--bootstrap", "Kafka's bootstrap servers.", required=True)
@option("--input", "topic", default=INPUT_TOPIC, help="Topic to read.")
@option("--output", default=OUTPUT_TOPIC, help="Topic to write.")
@plain_option("--checkpoint", "Directory of the query's checkpoint.", required=True)
@option("--master", default="local[2]", help="Spark master.")
@plain_option("--jvm-dir", "Directory of the jars, where `make setup` put them.", required=True)
@repeatable("--conf", "Spark setting; repeatable.", "NAME=VALUE")
@typed_option(
    "--json",
    click.Choice(["parse", "concat"]),
    "parse",
    "parse: use from_json and to_json, as much work as ours. concat: append text without parsing the input.",
)
@typed_option(
    "--sink kind",
    click.Choice(["spark", "one", "tasks"]),
    "spark",
    "Spark's own sink (spark), or ours with one writer (one) or with writing tasks (tasks).",
)
@plain_option("--most", "Maximum number of offsets per micro-batch  [default: no maximum]", type=int)
@flag("--shuffle", "Shuffle rows by key, and let the key choose the output partition.")
@flag("--follow", "Run until SIGTERM; without it, stop when the input is drained.")
def sink(master: str, jvm_dir: str, conf: tuple[str, ...], **what: Any) -> None:
    """Enrich orders in a Spark query that writes with Spark's own Kafka sink, or with ours."""
    pairs = (pair.partition("=") for pair in conf)
    spark = session.start(SparkSettings(master, jvm_dir, {name: value for name, _, value in pairs}))
    try:
        copy(spark, **what)
    finally:
        session.end(spark.sparkContext)


if __name__ == "__main__":
    run(sink, "benchmarks/spark_sink.py")
