"""One measured drain: a contender works off a backlog, watched from outside."""

from __future__ import annotations

import time

import psutil
from contenders import Contender, Setup
from course import create_run_topics, finish, verified
from ground import PARTITIONS, BenchmarkCluster, step_timeout_s
from memory import touch
from runs import Run
from tree import MemoryWatch, Tree
from watch import EndOffsets, VisibilityWatch, throughput

from brew.errors import Refused


def machine_cpu_s() -> float:
    """CPU seconds that this machine has spent on anything since it was started."""
    times = psutil.cpu_times()
    return float(sum(times) - times.idle - getattr(times, "iowait", 0.0) - getattr(times, "guest", 0.0))


def measure(ground: BenchmarkCluster, contender: Contender, setup: Setup, records: int, number: int) -> Run:
    """Run a contender once over ``records`` orders, then prove its output."""
    place = create_run_topics(ground, contender, ground.input_of(records), f"{records}.{number}")
    ends = EndOffsets(ground.connection, place.output, PARTITIONS)
    touch()
    broker, machine, own = ground.broker_cpu_s(), machine_cpu_s(), time.process_time()
    started = time.monotonic()
    with (
        Tree(contender.command(place, setup, False), place.home) as tree,
        VisibilityWatch(ends) as seen,
        MemoryWatch(tree) as memory,
    ):
        usage = finish(ground, contender, place, tree, step_timeout_s(records))
    broker = ground.broker_cpu_s() - broker
    # Spark's Python daemon forgets its workers' times when it is killed, so the kernel's sum alone is too low.
    cpu = max(usage.cpu_s, memory.cpu_s)
    foreign = machine_cpu_s() - machine - (time.process_time() - own) - broker - cpu
    going = throughput(seen.sights, started, records)
    if going is None:
        raise Refused(f"{contender.name}: it ended, and nothing is visible in {place.output}")
    verdict = verified(ground, contender, place, records)
    ground.drop_topics([place.output, place.dead_letter])
    return Run(
        contender.name,
        records,
        number,
        going.records_per_s,
        going.overall_records_per_s,
        going.first_visible_s,
        going.last_visible_s,
        usage.wall_s,
        cpu,
        broker,
        max(0.0, foreign),
        memory.peak.total / 2**20,
        {name: size / 2**20 for name, size in memory.peak.parts.items()},
        verdict,
    )
