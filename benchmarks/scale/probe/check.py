"""The runs that the simulator is compared with: the real direct reader without Spark over a backlog."""

from __future__ import annotations

import os
from collections.abc import Sequence
from statistics import median

from ground import program
from rich.console import Console

from protocol.deadline import Deadline
from protocol.kafka.tail import Tail
from scale.compare import Measured
from scale.probe.place import Sandbox
from scale.probe.runs import WITHOUT_SPARK, Names, drain, names, seeded
from scale.probe.speed import speed

_SAMPLE_S = 30.0
_WARM, _FEW = 20_000, 40


def drains(
    console: Console, here: Sandbox, partitions: Sequence[int], orders: int, repeat: int, transaction_s: float
) -> list[Measured]:
    """
    The last output is proven. Rates count from the first grant, start-up is measured apart.

    Raises:
        Refused: a run failed, or its output is not exact.
    """
    found = []
    drain(here, names(here, seeded(here, 4, _WARM), 4), 4, _WARM, WITHOUT_SPARK)
    few = seeded(here, 4, _FEW)
    starts = [drain(here, names(here, few, 4), 4, _FEW, WITHOUT_SPARK) for _ in range(3)]
    start_s = max(0.0, min(one.committed_s[0] for one in starts) - transaction_s)
    start_cpu_s = min(one.cpu_s for one in starts)
    console.print(f"start-up, which does not count: {start_s:.2f} s")
    for count in partitions:
        source = seeded(here, count, orders)
        drain(here, names(here, source, count), count, orders, WITHOUT_SPARK)  # the broker's compilers and caches
        runs, rates, cpu, fast, load = [], [], [], [], os.getloadavg()[0]
        for _ in range(repeat):
            place, before = names(here, source, count), speed()
            broker_s = here.broker_cpu_s()
            runs.append(drain(here, place, count, orders, WITHOUT_SPARK))
            cpu.append(1e6 * (runs[-1].cpu_s - start_cpu_s + here.broker_cpu_s() - broker_s) / orders)
            rates.append(orders / max(0.001, runs[-1].committed_s[1] - start_s))
            fast.append((before + speed()) / 2)
            console.print(f"{count} partitions: {rates[-1]:,.0f} records/s at speed {fast[-1]:,.0f}")
        _prove(here, place, orders)
        cores, size = len(os.sched_getaffinity(0)), _record_bytes(here, source)
        peak = max(run.peak_mib for run in runs)
        found.append(Measured(count, orders, size, cores, start_s, tuple(rates), tuple(fast), median(cpu), peak, load))
    return found


def _record_bytes(here: Sandbox, topic: str) -> int:
    """Key and value of a record of the topic, on average of those at the front of partition 0."""
    tail, deadline = Tail(here.connection, "scale.sample", topic, 0, 0, 1024 * 1024), Deadline(_SAMPLE_S)
    try:
        while (taken := tail.take(1000, 1_000_000, 0.1)) is None:
            deadline.check(f"a look at {topic}")
    finally:
        tail.close()
    return round(sum(len(one.value() or b"") + len(one.key() or b"") for one in taken.records) / len(taken.records))


def _prove(here: Sandbox, place: Names, orders: int) -> None:
    topics = ["--input", place.input, "--output", place.output, "--dead-letter", place.dead_letter]
    rules = ["--group", place.group, "--strict", "--settled", "--need", f"outputs={orders}", "--json"]
    program("proof", "verify", "--bootstrap", here.cluster.bootstrap, *topics, *rules, records=3 * orders)
