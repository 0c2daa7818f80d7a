"""
Demonstrate the sink: one stateful query, written by Spark's own Kafka sink and by ours, killed, and run again.

Both drivers die by SIGKILL. The files are then set to the state after a kill right after the write, a few milliseconds
that no signal hits reliably: the last entry of Spark's commit log is removed, for both alike. Exit code 1 if our sink
duplicated or lost a row, or if Spark's own sink duplicated none, because then the demonstration failed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

import brew
from brew.connection import Connection
from brew.deadline import Deadline
from brew.jvm import dependencies
from brew.kafka import topics
from brew.kafka.clients import admin, producer
from brew.kafka.log_reader import scan
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED
from brew.settings import SparkSettings
from brew.spark import session

INPUT, SPARKS, OURS = "sink-demo.sales", "sink-demo.spark", "sink-demo.brew"
STORES = ("Aarhus", "Berlin", "Cork", "Dublin", "Essen", "Florence")
PARTITIONS, SALES, MOST = 2, 120, 60
STEP_S, QUERY_S = 30.0, 240.0
Rows = Counter[tuple[str, str]]


def revenue(spark: SparkSession, bootstrap: str) -> DataFrame:
    """Return each store's revenue so far: stateful, in update mode one row per store that a batch changes."""
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": INPUT, "maxOffsetsPerTrigger": str(MOST)}
    sales = spark.readStream.format("kafka").options(**options, startingOffsets="earliest").load()
    total = sf.sum(sf.col("value").cast("string").cast("int"))
    return sales.groupBy("key").agg(total.cast("string").alias("value"))


def run_both(bootstrap: str, folder: Path, *, die: bool) -> None:
    """Drain the input through both sinks; with ``die`` the driver and its JVM end by SIGKILL."""
    settings = SparkSettings("local[2]", str(dependencies.home()), {"spark.sql.shuffle.partitions": "2"})
    spark = session.start(settings)
    sink = brew.ExactlyOnceSink(bootstrap, name="sink-demo", topic=OURS)
    native = {"kafka.bootstrap.servers": bootstrap, "topic": SPARKS}
    writers = {
        "spark": revenue(spark, bootstrap).writeStream.format("kafka").options(**native),
        "brew": revenue(spark, bootstrap).writeStream.foreachBatch(sink),
    }
    for name, writer in writers.items():
        query = writer.outputMode("update").option("checkpointLocation", str(folder / name)).trigger(availableNow=True)
        query.start().awaitTermination()
    if die:
        jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()  # noqa: SLF001 - the process to kill
        os.kill(int(jvm), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    session.end(spark.sparkContext)


def prepare(connection: Connection) -> None:
    """Create the topics, and write sales of 1 to 120 over the stores."""
    client = admin(connection)
    names = [INPUT, SPARKS, OURS]
    if left := topics.describe(client, names, Deadline(STEP_S)):
        raise SystemExit(
            f"{connection.bootstrap} has topics of an earlier demo ({', '.join(sorted(left))}), whose sink has a "
            "position: delete them, or use another broker"
        )
    topics.create(client, [topics.TopicSpec(name, PARTITIONS, {}) for name in names], Deadline(STEP_S))
    topics.describe_all(client, names, Deadline(STEP_S))
    writing = producer(connection, None, timeout_s=STEP_S, message_max_bytes=1_000_000)
    for number in range(SALES):
        store = number % len(STORES)
        writing.produce(INPUT, b"%d" % (number + 1), STORES[store].encode(), store % PARTITIONS)
    if writing.flush(STEP_S):
        raise brew.BrewError(f"sales could not be written to {INPUT} within {STEP_S:g} s")


def visible(connection: Connection, topic: str) -> Rows:
    """Return how often a `read_committed` reader sees each row (store and total)."""
    logs = log_offsets(admin(connection), topic, range(PARTITIONS), Deadline(STEP_S))
    ends = {partition: (log.first, log.last_stable) for partition, log in logs.items()}
    found = [record for batch in scan(connection, topic, ends, READ_COMMITTED) for record in batch]
    return Counter(((record.key() or b"").decode(), (record.value() or b"").decode()) for record in found)


def forget_last_commit(checkpoint: Path) -> int:
    """Remove the last entry of a commit log; return its batch, which Spark runs again."""
    commits = checkpoint / "commits"
    last = max(int(commit.name) for commit in commits.iterdir() if commit.name.isdigit())
    for name in (f"{last}", f".{last}.crc"):
        (commits / name).unlink(missing_ok=True)
    return last


def table(spark: Rows, ours: Rows) -> str:
    def line(what: str, left: object, other: object) -> str:
        return f"  {what:<34}{left!s:>16}{other!s:>22}"

    def twice(rows: Rows) -> int:
        return sum(count - 1 for count in rows.values())

    lines = (
        line("", "Spark's own sink", "brew.ExactlyOnceSink"),
        line("rows that a reader sees", spark.total(), ours.total()),
        line("distinct rows", len(spark), len(ours)),
        line("duplicate rows", twice(spark), twice(ours)),
    )
    return "\n".join(lines)


def run_as_a_process(bootstrap: str, folder: Path, *, die: bool) -> None:
    """Run a driver with both queries in its own process, which must end by SIGKILL if ``die``, or else with 0."""
    words = [sys.executable, __file__, "--bootstrap", bootstrap, "--run", str(folder), *(["--die"] if die else [])]
    done = subprocess.run(words, timeout=QUERY_S, check=False, capture_output=True, text=True)
    wanted = -signal.SIGKILL if die else 0
    if done.returncode != wanted:
        raise SystemExit(f"the queries ended with {done.returncode} instead of {wanted}:\n{done.stderr}")


@click.command()
@click.option("--bootstrap", required=True, help="Kafka's bootstrap servers, host:port[,...].")
@click.option("--run", "folder", type=Path, help="Only run both queries, with their checkpoints in this folder.")
@click.option("--die", is_flag=True, help="With --run: kill the driver with SIGKILL at the end.")
def main(bootstrap: str, folder: Path | None, *, die: bool) -> None:
    """Run one query with two sinks, and kill it."""
    if folder is not None:
        run_both(bootstrap, folder, die=die)
        return
    # `subprocess.run` ends the driver on an exception; its JVM ends with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    connection = Connection(bootstrap)
    prepare(connection)
    with tempfile.TemporaryDirectory(prefix="brew-sink-demo-") as home:
        print(f"1. {SALES} sales of {len(STORES)} stores. One query, revenue per store, runs once with each sink;")
        print("   then SIGKILL to the driver and its JVM.")
        run_as_a_process(bootstrap, Path(home), die=True)
        before = visible(connection, SPARKS), visible(connection, OURS)
        print(f"\n{table(*before)}\n")
        last = {name: forget_last_commit(Path(home, name)) for name in ("spark", "brew")}
        print(f"2. Batch {last['spark']} is written, but not in Spark's commit log, as after a kill between")
        print("   the write and the log entry. Both queries restart, and Spark runs the batch again.")
        run_as_a_process(bootstrap, Path(home), die=False)
    spark, ours = visible(connection, SPARKS), visible(connection, OURS)
    print(f"\n{table(spark, ours)}\n")
    if ours != before[1] or set(ours.values()) != {1} or spark.total() == before[0].total():
        raise SystemExit("the demo FAILED: the result differs from docs/guide/sink.md")
    print(f"Spark's own sink wrote batch {last['spark']} twice. brew found it in Kafka and wrote nothing.")


if __name__ == "__main__":
    main()
