"""
Orders per second of `downstream ledger`, in batches and with a transaction per row; `make bench-ledger`.

Starts Kafka and PostgreSQL of its own (fsync on), runs the command as users do, checks the ledger after each run, and
writes `benchmarks/ledger.json`. Seconds are the loop's: from reaching the brokers to having left them. CPU is per
order, the program's start included; on a machine that does other things meanwhile it says more than the seconds.
"""

from __future__ import annotations

import json
import os
import statistics
from pathlib import Path
from typing import Any

import click
import orjson
import psutil
from environment import PARTITIONS, ROOT, benchmark_cluster, program, save

from brew import cli
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import topics
from brew.kafka.clients import admin, producer
from brew.names import ExitCode
from brew.offsets import SourcePosition
from brew.orders import DISCOUNTS
from sandbox.kafka import Cluster
from sandbox.store import Postgres

CUSTOMERS = 20_000
BAR = 20_000


def write(bootstrap: str, topic: str, orders: int) -> None:
    """Enriched orders, in transactions of 10,000, spread over customers and tiers."""
    topics.create(admin(Connection(bootstrap)), [topics.TopicSpec(topic, PARTITIONS, {})], Deadline(30))
    topics.describe_all(admin(Connection(bootstrap)), [topic], Deadline(30))
    writer = producer(Connection(bootstrap), topic, timeout_s=60, message_max_bytes=1_000_000)
    writer.init_transactions(30)
    tiers = list(DISCOUNTS)
    for number in range(orders):
        if number % 10_000 == 0:
            if number:
                writer.commit_transaction(60)
            writer.begin_transaction()
        tier = tiers[number * 31 % 4]
        order = {
            "order_id": f"{tier}-{number:06d}",
            "customer_id": f"c-{number * 7919 % CUSTOMERS:05d}",
            "item": "flat white",
            "quantity": 2,
            "total_cents": 250 + number % 4000,
            "store": "store-07",
            "created_at": "2026-01-01T06:00:00Z",
            "loyalty_tier": tier,
            "loyalty_discount": DISCOUNTS[tier],
        }
        headers = SourcePosition("orders", number % PARTITIONS, number // PARTITIONS).headers()
        writer.produce(
            topic, orjson.dumps(order), str(order["order_id"]).encode(), number % PARTITIONS, headers=headers
        )
        writer.poll(0)
    writer.commit_transaction(60)
    writer.close()


def book(kafka: Cluster, postgres: Postgres, topic: str, batch: int, number: int) -> dict[str, Any]:
    """One run of the command into tables of its own, checked afterwards."""
    names = ["--topic", topic, "--group", f"bench-{batch}-{number}", "--schema", f"bench_{batch}_{number}"]
    ledger = ["downstream", "ledger", "--bootstrap", kafka.bootstrap, "--database", postgres.url, *names, "--json"]
    load, server, own = psutil.getloadavg()[0], _server_cpu_s(postgres), _children_cpu_s()
    booked = json.loads(program(*ledger, "--batch", str(batch)))
    server, own, orders = _server_cpu_s(postgres) - server, _children_cpu_s() - own, booked["entries"]
    if json.loads(program(*ledger, "--check"))["verdict"] != "proven":
        raise Refused(f"the ledger of batch {batch} is wrong, so its speed means nothing")
    rate = orders / booked["seconds"]
    cpu = {"ledger_cpu_us": own / orders * 1e6, "postgres_cpu_us": server / orders * 1e6}
    click.echo(
        f"batches of {batch}: {orders} orders in {booked['seconds']:.1f} s, {rate:,.0f} orders/s, load {load:.1f}"
    )
    return {"batch": batch, "orders": orders, "seconds": booked["seconds"], "rate": rate, "load_before": load, **cpu}


def _server_cpu_s(postgres: Postgres) -> float:
    """CPU seconds of the server and of the sessions that it has ended."""
    identity = postgres.state.identity
    process = identity.process() if identity else None
    if process is None:
        raise Refused("PostgreSQL has gone")
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


@click.command()
@click.option("--orders", default=200_000, show_default=True, help="For the batches.")
@click.option("--single", default=4_000, show_default=True, help="For the transaction per row.")
@click.option("--runs", default=3, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "benchmarks/ledger.json", show_default=True)
def main(orders: int, single: int, runs: int, out: Path) -> int:
    """Measure; exit 1 when the median in batches is below 20,000 orders/s."""
    with benchmark_cluster() as place, Postgres.start(place.open_home()) as postgres:
        kafka = place.cluster
        write(kafka.bootstrap, "many", orders)
        write(kafka.bootstrap, "few", single)
        batches = [book(kafka, postgres, "many", 5000, number) for number in range(runs)]
        rows = [book(kafka, postgres, "few", 1, number) for number in range(runs)]
    rate, slow = (statistics.median(run["rate"] for run in some_runs) for some_runs in (batches, rows))
    result = {"batches": rate, "row_per_transaction": slow, "gain": rate / slow, "cpus": os.cpu_count()}
    save(out, result | {"bar": BAR, "runs": [*batches, *rows]})
    click.echo(
        f"median {rate:,.0f} orders/s in batches, {slow:,.0f} with a transaction per row: {rate / slow:.0f} times"
    )
    return ExitCode.DONE if rate >= BAR else ExitCode.VIOLATION


if __name__ == "__main__":
    cli.run(main, "ledger benchmark")
