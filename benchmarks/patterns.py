"""
What the downstream patterns cost: the ledger, the totals' restore, virtual partitions; each with its own servers.

    python benchmarks/patterns.py ledger|restore|virtual [--help]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import psutil
from checker import write
from environment import PARTITIONS, ROOT, benchmark_cluster, children_cpu_s, make_topics, program, save, server_cpu_s

from brew import cli
from brew.cli import option
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka.clients import admin, consumer
from brew.kafka.log_reader import LogRecord
from brew.kafka.offsets import committed
from brew.kafka.topics import Topic
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED, ExitCode
from brew.transaction import queue
from downstream.consume.handler import LoopSettings
from downstream.consume.loop import Loop
from downstream.totals.run import Run
from downstream.totals.state_store import CHECKPOINT_KEY, MemoryStore, RocksStore, Store, checkpoint_value
from downstream.totals.topics import Position, Topics, TotalsSettings, ensured
from downstream.totals.total import Total
from downstream.virtual.partitions import VirtualPartitions, VirtualSettings
from proof.seed import Writer
from sandbox.kafka import Cluster
from sandbox.store import Postgres

LEAST_ORDERS_PER_S, MOST_RESTORE_S, PATIENCE_S = 20_000, 60.0, 300.0
ONE_MORE = Total(orders=1).encode()
LEAST_GAIN = 10.0
COUNTS = (1, 4, 16, 64)
TOPIC = "bench.virtual"
_ENDED = "PostgreSQL has ended; run the benchmark again"


@click.group()
def bench() -> None:
    """Measure a downstream pattern; exits with 1 if it is too slow."""


def book(kafka: Cluster, postgres: Postgres, count: int, batch: int, number: int) -> dict[str, Any]:
    """Book ``count`` orders once into tables of their own, and check them."""
    names = ["--topic", f"bench.{count}.out", "--group", f"bench-{batch}-{number}"]
    names += ["--schema", f"bench_{batch}_{number}"]
    ledger = ["downstream", "ledger", "--bootstrap", kafka.bootstrap, "--database", postgres.url, *names, "--json"]
    load, server, own = psutil.getloadavg()[0], server_cpu_s(postgres.state.identity, _ENDED), children_cpu_s()
    booked = json.loads(program(*ledger, "--batch", str(batch)))
    server = server_cpu_s(postgres.state.identity, _ENDED) - server
    own, orders = children_cpu_s() - own, booked["entries"]
    if json.loads(program(*ledger, "--check"))["verdict"] != "proven":
        raise Refused(f"the ledger failed its check after batches of {batch}; run the benchmark again")
    rate = orders / booked["seconds"]
    cpu = {"ledger_cpu_us": own / orders * 1e6, "postgres_cpu_us": server / orders * 1e6}
    click.echo(
        f"batches of {batch}: {orders} orders in {booked['seconds']:.1f} s, {rate:,.0f} orders/s, load {load:.1f}"
    )
    return {"batch": batch, "orders": orders, "seconds": booked["seconds"], "rate": rate, "load_before": load, **cpu}


@bench.command()
@option("--orders", default=200_000, help="Number of orders booked in batches.")
@option("--single", default=4_000, help="Number of orders booked with one transaction per row.")
@option("--runs", default=3, help="Number of runs of each kind.")
@option(
    "--out",
    type=click.Path(path_type=Path),
    default=ROOT / "benchmarks/ledger.json",
    show_default="benchmarks/ledger.json",
    help="File for the results, as JSON.",
)
def ledger(orders: int, single: int, runs: int, out: Path) -> int:
    """
    Measure the orders per second of `downstream ledger`, in batches and with one transaction per row.

    Starts its own Kafka and PostgreSQL (fsync on), runs the command as users do, and checks the ledger after each run.
    The seconds are those of the consume loop, from connecting to the brokers until leaving them. The CPU time per order
    includes the program's start; on a busy machine it is more reliable than the seconds. Exits with 1 if the median in
    batches is below 20,000 orders/s.
    """
    with benchmark_cluster() as benchmark, ExitStack() as ending:
        benchmark.home.chmod(0o711)  # PostgreSQL may run as another user
        kafka, postgres = benchmark.cluster, ending.enter_context(Postgres.start(benchmark.home))
        write(kafka.bootstrap, orders)
        write(kafka.bootstrap, single)
        batches = [book(kafka, postgres, orders, 5000, number) for number in range(runs)]
        rows = [book(kafka, postgres, single, 1, number) for number in range(runs)]
    rate, slow = (statistics.median(run["rate"] for run in some_runs) for some_runs in (batches, rows))
    result = {"batches": rate, "row_per_transaction": slow, "gain": rate / slow, "cpus": os.cpu_count()}
    save(out, result | {"bar": LEAST_ORDERS_PER_S, "runs": [*batches, *rows]})
    click.echo(
        f"median {rate:,.0f} orders/s in batches, {slow:,.0f} with a transaction per row: {rate / slow:.0f} times"
    )
    return ExitCode.DONE if rate >= LEAST_ORDERS_PER_S else ExitCode.VIOLATION


def fill_changelog(settings: TotalsSettings, keys: int) -> Topics:
    """Write the changelog of ``keys`` totals, the group's offsets, and one delta per partition."""
    make_topics(settings.connection, [settings.input])
    made = ensured(admin(settings.connection), settings, Deadline(60))
    for partition in range(PARTITIONS):
        kafka = KafkaTransaction(
            TransactionSettings(settings.connection, settings.group, PATIENCE_S), settings.deltas, partition
        )
        deadline = Deadline(PATIENCE_S)
        kafka.fence(deadline)
        kafka.begin()
        mine = range(partition, keys, PARTITIONS)
        for n in mine:
            queue(kafka, deadline, settings.changelog, value_of(n), key_of(n), partition)
        queue(kafka, deadline, settings.changelog, checkpoint_value(0, len(mine)), CHECKPOINT_KEY, partition)
        kafka.flush(deadline)
        kafka.send_offsets(0, Position(0, 0).metadata(made.deltas.topic_id), deadline)
        kafka.commit(deadline)
        kafka.close()
    return made


def key_of(n: int) -> bytes:
    return b"customer/c-%08d" % n


def value_of(n: int) -> bytes:
    return b"%d %d98 %d.7 0" % (n % 90 + 1, n, n * 3)


def restored(
    settings: TotalsSettings, keys: int, name: str, store_of: Callable[[int, Topic], Store]
) -> dict[str, object]:
    """Start the program once, and check that the state was restored as written."""
    stores: dict[int, Store] = {}
    checked: list[int] = []
    ends: list[float] = []

    def kept(partition: int, changelog: Topic) -> Store:
        stores[partition] = store_of(partition, changelog)
        return stores[partition]

    class CheckedRun(Run):
        def close_stores(self) -> None:
            for partition, store in stores.items():
                sample = range(partition, keys, PARTITIONS * 997)
                if store.get(list(map(key_of, sample))) != list(map(value_of, sample)):
                    raise Refused(f"{name}: partition {partition} restored other values than were written")
                checked.append(0 if store.checkpoint is None else store.checkpoint.keys)
            super().close_stores()

    run = CheckedRun(settings, kept, threading.Event(), lambda _text: ends.append(time.monotonic()))
    began = time.monotonic()
    result = run.run(follow=False)
    whole = time.monotonic() - began
    if sum(checked) < keys or result.deltas != PARTITIONS:
        raise Refused(f"{name}: restored {sum(checked)} of {keys} keys, counted {result.deltas} of {PARTITIONS} deltas")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = max(ends) - began if ends else 0.0
    counts: dict[str, object] = {"store": name, "keys": sum(checked), "restored": result.restored}
    return counts | {"restore_s": seconds, "run_s": whole, "peak_mib": peak}


@bench.command()
@option("--keys", default=1_000_000, help="Number of keys in the changelog.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="File to write the results to, as JSON.")
def restore(keys: int, out: Path | None) -> int:
    """
    Measure how long `downstream totals` takes to restore its state from the changelog, into RocksDB and into memory.

    The changelog has four partitions, each written in one transaction. The program starts with one new delta per
    partition: it fences, restores and counts. The time runs from its start to the end of the last partition's restore.
    Exits with 1 if it is 60 s or more.
    """
    with tempfile.TemporaryDirectory(prefix="brew-bench-restore-") as home, Cluster.start(Path(home) / "k") as cluster:
        settings = TotalsSettings(Connection(cluster.bootstrap), "bench", "bench.in", "bench.totals")
        began = time.monotonic()
        fill_changelog(settings, keys)
        click.echo(f"{keys} keys written in {time.monotonic() - began:.1f} s")
        runs = []
        for number, name in enumerate(("rocksdb, nothing there", "rocksdb, closed in good order", "memory")):

            def store_of(partition: int, changelog: Topic, name: str = name) -> Store:
                if name == "memory":
                    return MemoryStore()
                return RocksStore(Path(home) / "state" / str(partition), changelog.topic_id)

            with Writer(settings.connection, settings.deltas, None, 30) as writer:  # else nothing is restored
                writer.write((p, (b"customer/new-%d-%d" % (number, p), ONE_MORE)) for p in range(PARTITIONS))
                writer.flush()
            runs.append(measured := restored(settings, keys, name, store_of))
            click.echo(
                f"{name}: {measured['restored']} records in {measured['restore_s']:.1f} s, "
                f"whole run {measured['run_s']:.1f} s, peak {measured['peak_mib']:.0f} MiB"
            )
    if out:
        save(out, {"keys": keys, "runs": runs})
    quick = all(float(str(run["restore_s"])) < MOST_RESTORE_S for run in runs)
    return ExitCode.DONE if quick else ExitCode.VIOLATION


class SlowHandler:
    """A handler that sleeps, as if waiting for a remote answer."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self.first, self.last = seconds, 0.0, 0.0

    def handle(self, _record: LogRecord) -> None:
        self.first = self.first or time.monotonic()
        time.sleep(self._seconds)
        self.last = time.monotonic()

    def give_up(self, record: LogRecord, error: Exception, attempts: int) -> None:
        raise AssertionError(record.offset(), error, attempts)


def drained(connection: Connection, count: int, records: int, handler_s: float) -> dict[str, float]:
    """Drain the topic with ``count`` workers and a group of its own."""
    effect, stop, group = SlowHandler(handler_s), threading.Event(), f"bench-{count}"
    settings = VirtualSettings(count)
    virtual = VirtualPartitions(settings, effect, stop, follow=False)
    began, cpu = time.monotonic(), time.process_time()
    loop = LoopSettings(connection, group, TOPIC, (0,), batch=settings.batch)
    Loop(loop, virtual, stop).run()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    reader = consumer(connection, group, READ_COMMITTED)
    position = committed(reader, TOPIC, [0], Deadline(20))[0]
    reader.close()
    if position is None or position.offset != records or virtual.result.effects != records:
        raise Refused(f"N={count}: position {position}, {virtual.result.effects} effects, expected {records}")
    working = effect.last - effect.first
    return {
        "workers": count,
        "records_per_s": records / working,
        "seconds": working,
        "wall_seconds": wall,
        "cpu_us_per_record": cpu / records * 1e6,
    }


@bench.command()
@option("--records", default=3200, help="Number of records, two for each key.")
@option("--handler-ms", default=5.0, help="Time that the handler takes for a record, in milliseconds.")
@click.option("--json", "out", type=click.Path(path_type=Path), help="File to write the results to, as JSON.")
def virtual(records: int, handler_ms: float, out: Path | None) -> int:
    """
    Measure the gain of virtual partitions: one partition and a slow handler, with 1, 4, 16 and 64 workers.

    Runs the real consume loop, from Kafka to the stored offset. Exits with 1 if 16 workers are less than 10 times as
    fast as one.
    """
    with tempfile.TemporaryDirectory(prefix="brew-bench-virtual-") as home, Cluster.start(Path(home)) as cluster:
        connection = Connection(cluster.bootstrap)
        make_topics(connection, [TOPIC], 1)
        with Writer(connection, TOPIC, None, 30) as writer:
            writer.write((0, (b"key-%d" % (n // 2), b"%d" % n)) for n in range(records))
            writer.flush()
        runs = [drained(connection, count, records, handler_ms / 1000) for count in COUNTS]
    alone = runs[0]["records_per_s"]
    for run in runs:
        run["gain"] = run["records_per_s"] / alone
        click.echo(
            f"N={run['workers']:>3} {run['records_per_s']:>7.0f} records/s {run['gain']:>5.1f} times, "
            f"{run['cpu_us_per_record']:.0f} us of CPU per record, whole run {run['wall_seconds']:.2f} s"
        )
    gain = next(run["gain"] for run in runs if run["workers"] == 16)
    if out:
        save(out, {"handler_ms": handler_ms, "records": records, "runs": runs})
    return ExitCode.DONE if gain >= LEAST_GAIN else ExitCode.VIOLATION


if __name__ == "__main__":
    cli.run(bench, "benchmarks/patterns.py")
