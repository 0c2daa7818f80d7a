"""
Measure many small micro-batches written by `brew.ExactlyOnceSink` and by Spark's own sink: time per batch and memory.

    python benchmarks/micro_batches.py [--batches 500] [--rows 100] [--rounds 3] [--live-heap] [--json FILE]

A narrow query reads a backlog with `--rows` offsets per micro-batch, from a broker with Kafka's defaults. Each run
starts new JVMs, and the contenders take turns. Batches are counted in the query's commit log; the first 50 are not
measured. Memory growth is that of the last fifth of the batches divided by that of the first fifth. Exits with 1 if one
way of writing takes over 150 ms per batch longer than Spark's own sink, or has over 1.1 times its memory growth.

A JVM's memory grows until its heap has its full size, whether objects accumulate or not. `--live-heap` shows which: it
collects garbage before each sample and adds the size of the objects that are left. That takes time, so compare only
that size and the workers' memory, from fifth to fifth.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from contenders import CONTENDERS, MASTER, Contender
from environment import BenchmarkCluster, benchmark_cluster, machine, save
from measure import create_run_topics, stop
from watch import Tree, memory_of

from brew.deadline import Deadline

NAMES = ("spark-sink-tuned", "spark-sink-brew-one", "spark-sink-brew-tasks")
MOST_OVER_MS, MOST_GROWTH, LEAST = 150, 1.1, 100
LIVE, TOTAL = "live heap", "total"
FIELDS = ("batch_ms", "early_mib", "late_mib", "peak_mib")
_WARM_UP, _START_S, _BATCH_S, _LOOK_S = 50, 120.0, 2.0, 0.02
_WEIGH_S = 2.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds per batch, and MiB in each fifth of the batches, of the whole tree and by role."""

    batch_ms: float
    peak_mib: float
    fifths_mib: dict[str, list[float]]

    @property
    def early_mib(self) -> float:
        return self.fifths_mib[TOTAL][0]

    @property
    def late_mib(self) -> float:
        return self.fifths_mib[TOTAL][-1]


def follow(
    cluster: BenchmarkCluster, contender: Contender, batches: int, rows: int, number: int, *, live: bool = False
) -> Measured:
    """Follow a backlog until ``batches`` batches after the warm-up are in the query's commit log."""
    source = cluster.input_of((_WARM_UP + batches) * rows)
    topics = create_run_topics(cluster, contender, source, f"micro.{number}")
    commits, deadline = topics.home / "checkpoint/commits", Deadline(_START_S + _BATCH_S * batches)
    weights, began, next_look = list[tuple[int, Counter[str]]](), 0.0, 0.0
    with Tree([*contender.command(topics, MASTER, True), "--most", str(rows)], topics.home) as tree:
        while (done := committed(commits)) < _WARM_UP + batches:
            if not tree.running() or deadline.expired():
                raise tree.refused(f"{contender.name}: stopped after {done} batches")
            if done >= _WARM_UP and not began:
                began, first = time.monotonic(), done
            if began and time.monotonic() >= next_look:
                weights.append((done, weigh(tree.processes(), live=live)))
                next_look = time.monotonic() + _WEIGH_S
            time.sleep(_LOOK_S)
        took, count = time.monotonic() - began, done - first
        stop(tree)
    return Measured(1000 * took / count, max(parts[TOTAL] for _, parts in weights) / 2**20, fifths(weights, batches))


def weigh(processes: Sequence[psutil.Process], *, live: bool) -> Counter[str]:
    """Return bytes by role, and of all; with ``live`` also those of the JVM's objects after a collection."""
    parts, _ = memory_of(processes)
    parts[TOTAL] = parts.total()
    for process in processes if live else ():
        with contextlib.suppress(psutil.NoSuchProcess):  # idle workers end
            if process.name() == "java":
                command = ["jcmd", str(process.pid), "GC.class_histogram"]
                histogram = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                parts[LIVE] += int(histogram.split()[-1])
    return parts


def fifths(weights: Sequence[tuple[int, Counter[str]]], batches: int) -> dict[str, list[float]]:
    """Return the median MiB in each fifth of the batches, by role."""

    def median(role: str, fifth: int) -> float:
        found = (parts[role] for done, parts in weights if fifth <= 5 * (done - _WARM_UP) / batches <= fifth + 1)
        return round(statistics.median(found) / 2**20, 1)

    return {role: [median(role, fifth) for fifth in range(5)] for role in weights[0][1]}


def committed(commits: Path) -> int:
    """Return the number of batches that were committed; old entries are deleted, so the highest number counts."""
    return max((int(commit.name) + 1 for commit in commits.glob("[0-9]*")), default=0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--batches", type=int, default=500, help=f"number of measured batches, at least {LEAST} (default: 500)"
    )
    parser.add_argument("--rows", type=int, default=100, help="number of offsets per micro-batch (default: 100)")
    parser.add_argument("--rounds", type=int, default=3, help="number of runs of each contender (default: 3)")
    parser.add_argument("--live-heap", action="store_true", help="also measure the live objects of the JVM")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to, as JSON")
    given = parser.parse_args()
    if given.batches < LEAST:
        parser.error(f"--batches is {given.batches}; give at least {LEAST}, so that memory is sampled in each fifth")
    rounds: dict[str, list[Measured]] = {name: [] for name in NAMES}
    facts = machine()
    with benchmark_cluster("default") as cluster:
        for number in range(given.rounds):
            for name in NAMES:
                found = follow(cluster, CONTENDERS[name], given.batches, given.rows, number, live=given.live_heap)
                rounds[name].append(found)
                print(f"round {number + 1}, {name}: {found.batch_ms:.0f} ms per batch, {found.early_mib:.0f} MiB "
                      f"early, {found.late_mib:.0f} late, {found.peak_mib:.0f} at most", flush=True)  # fmt: skip
                print(f"  MiB in each fifth of the batches: {found.fifths_mib}", flush=True)
    medians = {
        name: {field: round(statistics.median(getattr(run, field) for run in found), 1) for field in FIELDS}
        for name, found in rounds.items()
    }
    own, good = medians[NAMES[0]], True
    growths = {name: found["late_mib"] / found["early_mib"] for name, found in medians.items()}
    for name in NAMES[1:]:
        over_ms, growth = medians[name]["batch_ms"] - own["batch_ms"], growths[name] / growths[NAMES[0]]
        print(f"{name}: {over_ms:+.0f} ms per batch compared with Spark's own sink (at most {MOST_OVER_MS}), memory "
              f"growth {growth:.2f} times Spark's (at most {MOST_GROWTH:g})")  # fmt: skip
        good &= over_ms <= MOST_OVER_MS and growth <= MOST_GROWTH
    if given.json:
        asked = {"batches": given.batches, "rows": given.rows, "rounds": given.rounds}
        by_role = {name: [run.fifths_mib for run in found] for name, found in rounds.items()}
        save(given.json, {"machine": facts, **asked, "medians": medians, "fifths": by_role})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
