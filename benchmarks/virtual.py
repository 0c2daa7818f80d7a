"""
What virtual partitions gain: one partition, a handler that takes 5 ms, N = 1, 4, 16, 64 workers.

    python benchmarks/virtual.py [--records 3200] [--handler-ms 5] [--json FILE]

A broker of its own, the real consume loop from Kafka to the stored offset, two records of each key. Exit 1 when N = 16
gains less than 10 times.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path

from environment import save

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.clients import admin, consumer, producer
from brew.kafka.log_reader import LogRecord
from brew.kafka.offsets import committed
from brew.names import READ_COMMITTED
from downstream.consume.handler import LoopSettings
from downstream.consume.loop import Loop
from downstream.virtual.partitions import VirtualPartitions, VirtualPartitionsHandler, VirtualSettings
from sandbox.kafka import Cluster

WANTED = 10.0
COUNTS = (1, 4, 16, 64)
TOPIC = "bench.virtual"


class SlowHandler:
    """A handler that waits, as for an answer from far away."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.first = 0.0
        self.last = 0.0

    def handle(self, _record: LogRecord) -> None:
        self.first = self.first or time.monotonic()
        time.sleep(self._seconds)
        self.last = time.monotonic()

    def give_up(self, record: LogRecord, error: Exception, attempts: int) -> None:
        raise AssertionError(record.offset(), error, attempts)


def fill(connection: Connection, records: int) -> None:
    client = admin(connection)
    topics.create(client, [topics.TopicSpec(TOPIC, 1, {})], Deadline(30))
    topics.describe_all(client, [TOPIC], Deadline(30))
    writer = producer(connection, None, timeout_s=30, message_max_bytes=1_000_000)
    for n in range(records):
        writer.produce(TOPIC, b"%d" % n, b"key-%d" % (n // 2), 0)
    if writer.flush(30):
        raise SystemExit("the input could not be written")


def measure(connection: Connection, count: int, records: int, handler_s: float) -> dict[str, float]:
    """Drain the topic with ``count`` workers under a group of its own."""
    effect, stop, group = SlowHandler(handler_s), threading.Event(), f"bench-{count}"
    settings = VirtualSettings(count)
    virtual = VirtualPartitions(settings, effect)
    began, cpu = time.monotonic(), time.process_time()
    loop = LoopSettings(connection, group, TOPIC, (0,), batch=settings.batch)
    Loop(loop, VirtualPartitionsHandler(virtual, stop, follow=False), stop).run()
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    reader = consumer(connection, group, READ_COMMITTED)
    position = committed(reader, TOPIC, [0], Deadline(20))[0]
    reader.close()
    if position is None or position.offset != records or virtual.result.effects != records:
        raise SystemExit(f"N={count}: stands at {position}, {virtual.result.effects} effects, wanted {records}")
    working = effect.last - effect.first
    return {
        "workers": count,
        "records_per_s": records / working,
        "seconds": working,
        "wall_seconds": wall,
        "cpu_us_per_record": cpu / records * 1e6,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=3200)
    parser.add_argument("--handler-ms", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="brew-bench-virtual-") as home, Cluster.start(Path(home)) as cluster:
        connection = Connection(cluster.bootstrap)
        fill(connection, asked.records)
        runs = [measure(connection, count, asked.records, asked.handler_ms / 1000) for count in COUNTS]
    alone = runs[0]["records_per_s"]
    for run in runs:
        run["gain"] = run["records_per_s"] / alone
        print(
            f"N={run['workers']:>3} {run['records_per_s']:>7.0f} records/s {run['gain']:>5.1f} times, "
            f"{run['cpu_us_per_record']:.0f} us of CPU per record, whole run {run['wall_seconds']:.2f} s"
        )
    gain = next(run["gain"] for run in runs if run["workers"] == 16)
    if asked.json:
        save(asked.json, {"handler_ms": asked.handler_ms, "records": asked.records, "runs": runs})
    return 0 if gain >= WANTED else 1


if __name__ == "__main__":
    raise SystemExit(main())
