"""
How long the totals' state takes to come back: 1,000,000 keys of the changelog into RocksDB and into memory.

    python benchmarks/restore.py [--keys 1000000] [--json FILE]

A broker of its own, four partitions, each with its keys in one transaction as the program writes them. Then the program
itself starts with one new delta per partition: it fences, restores, counts. The time is from its start to the end of
the last partition's restore. Exit 1 when that takes 60 s or more.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from environment import PARTITIONS, save

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import topics as topic_admin
from brew.kafka.clients import admin, producer
from brew.kafka.topics import Topic, TopicSpec
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.transaction import queue
from downstream.totals.run import Run, RunResult
from downstream.totals.state_store import CHECKPOINT_KEY, MemoryStore, RocksStore, Store, checkpoint_value
from downstream.totals.topics import Position, Topics, TotalsSettings, ensured
from downstream.totals.total import Total
from sandbox.kafka import Cluster

LIMIT_S = 60.0
PATIENCE_S = 300.0
ONE_MORE = Total(orders=1).encode()


def fill(settings: TotalsSettings, keys: int) -> Topics:
    """The changelog of ``keys`` totals, the group's offsets beside it, and one delta for each partition."""
    client = admin(settings.connection)
    topic_admin.create(client, [TopicSpec(settings.input, PARTITIONS, {})], Deadline(30))
    topic_admin.describe_all(client, [settings.input], Deadline(30))
    made = ensured(client, settings, Deadline(60))
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


def add_deltas(settings: TotalsSettings, number: int) -> None:
    """Something to do in every partition: without it nobody restores anything."""
    writer = producer(settings.connection, None, timeout_s=30, message_max_bytes=1_000_000)
    for partition in range(PARTITIONS):
        writer.produce(settings.deltas, ONE_MORE, b"customer/new-%d-%d" % (number, partition), partition)
    if writer.flush(30):
        raise SystemExit("the deltas could not be written")


def measure(
    settings: TotalsSettings, keys: int, name: str, store_of: Callable[[int, Topic], Store]
) -> dict[str, object]:
    """One start of the program, and whether all came back as it was written."""
    stores: dict[int, Store] = {}
    checked: list[int] = []
    ends: list[float] = []

    def kept(partition: int, changelog: Topic) -> Store:
        stores[partition] = store_of(partition, changelog)
        return stores[partition]

    run = Run(settings, kept, threading.Event(), lambda _text: ends.append(time.monotonic()))
    close = run.close_stores

    def check_and_close() -> None:
        for partition, store in stores.items():
            sample = list(range(partition, keys, PARTITIONS * 997))
            if store.get([key_of(n) for n in sample]) != [value_of(n) for n in sample]:
                raise SystemExit(f"{name}: partition {partition} holds other values than were written")
            checked.append(0 if store.checkpoint is None else store.checkpoint.keys)
        close()

    run.close_stores = check_and_close  # type: ignore[method-assign]
    began = time.monotonic()
    result: RunResult = run.run(follow=False)
    whole = time.monotonic() - began
    if sum(checked) < keys or result.deltas != PARTITIONS:
        raise SystemExit(f"{name}: {sum(checked)} keys came back, wanted {keys}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    seconds = max(ends) - began if ends else 0.0
    return {
        "store": name,
        "keys": sum(checked),
        "restored": result.restored,
        "restore_s": seconds,
        "run_s": whole,
        "peak_mib": peak,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="brew-bench-restore-") as home, Cluster.start(Path(home) / "k") as cluster:
        settings = TotalsSettings(Connection(cluster.bootstrap), "bench", "bench.in", "bench.totals")
        began = time.monotonic()
        fill(settings, asked.keys)
        print(f"{asked.keys} keys written in {time.monotonic() - began:.1f} s")
        runs = []
        for number, name in enumerate(("rocksdb, nothing there", "rocksdb, closed in good order", "memory")):

            def store_of(partition: int, changelog: Topic, name: str = name) -> Store:
                if name == "memory":
                    return MemoryStore()
                return RocksStore(Path(home) / "state" / str(partition), changelog.topic_id)

            add_deltas(settings, number)
            runs.append(measured := measure(settings, asked.keys, name, store_of))
            print(
                f"{name}: {measured['restored']} records in {measured['restore_s']:.1f} s, "
                f"whole run {measured['run_s']:.1f} s, peak {measured['peak_mib']:.0f} MiB"
            )
    if asked.json:
        save(asked.json, {"keys": asked.keys, "runs": runs})
    return 0 if all(float(str(run["restore_s"])) < LIMIT_S for run in runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
