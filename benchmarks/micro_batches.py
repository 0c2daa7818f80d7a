"""
Measure many small micro-batches written by `brew.ExactlyOnceSink` and by Spark's own sink: time per batch and memory.

    python benchmarks/micro_batches.py [--batches 500] [--rows 100] [--rounds 3] [--json FILE]

A narrow query reads a backlog with `--rows` offsets per micro-batch, from a broker with Kafka's defaults. Each run
starts new JVMs, and the contenders take turns. Batches are counted in the query's commit log; the first 50 are not
measured. Memory growth is that of the last fifth of the batches divided by that of the first fifth. Exits with 1 if one
way of writing takes over 150 ms per batch longer than Spark's own sink, or has over 1.1 times its memory growth.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from contenders import CONTENDERS, MASTER, Contender
from environment import BenchmarkCluster, benchmark_cluster, machine, save
from measure import create_run_topics, stop
from watch import Tree, memory_parts

from brew.deadline import Deadline

NAMES = ("spark-sink-tuned", "spark-sink-brew-one", "spark-sink-brew-tasks")
MOST_OVER_MS = 150
MOST_GROWTH = 1.1
LEAST = 100
_WARM_UP = 50
_START_S, _BATCH_S = 120.0, 2.0
_LOOK_S = 0.02
_WEIGH_S = 2.0


@dataclass(frozen=True, slots=True)
class Measured:
    """Milliseconds per batch, and MiB of the whole tree in the first and the last fifth of the batches."""

    batch_ms: float
    early_mib: float
    late_mib: float
    peak_mib: float


def follow(cluster: BenchmarkCluster, contender: Contender, batches: int, rows: int, number: int) -> Measured:
    """Follow a backlog until ``batches`` batches after the warm-up are in the query's commit log."""
    source = cluster.input_of((_WARM_UP + batches) * rows)
    topics = create_run_topics(cluster, contender, source, f"micro.{number}")
    commits, deadline = topics.home / "checkpoint/commits", Deadline(_START_S + _BATCH_S * batches)
    weights, began, next_look = list[tuple[int, float]](), 0.0, 0.0
    with Tree([*contender.command(topics, MASTER, True), "--most", str(rows)], topics.home) as tree:
        while (done := committed(commits)) < _WARM_UP + batches:
            if not tree.running() or deadline.expired():
                raise tree.refused(f"{contender.name}: stopped after {done} batches")
            if done >= _WARM_UP and not began:
                began, first = time.monotonic(), done
            if began and time.monotonic() >= next_look:
                weights.append((done, memory_parts(tree.processes()).total() / 2**20))
                next_look = time.monotonic() + _WEIGH_S
            time.sleep(_LOOK_S)
        took, count = time.monotonic() - began, done - first
        stop(tree)
    fifth = batches / 5
    early = [mib for at, mib in weights if at <= _WARM_UP + fifth]
    late = [mib for at, mib in weights if at >= _WARM_UP + batches - fifth]
    return Measured(1000 * took / count, statistics.median(early), statistics.median(late), max(m for _, m in weights))


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
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to, as JSON")
    given = parser.parse_args()
    if given.batches < LEAST:
        parser.error(f"--batches is {given.batches}; give at least {LEAST}, so that memory is sampled in each fifth")
    rounds: dict[str, list[Measured]] = {name: [] for name in NAMES}
    facts = machine()
    with benchmark_cluster("default") as cluster:
        for number in range(given.rounds):
            for name in NAMES:
                found = follow(cluster, CONTENDERS[name], given.batches, given.rows, number)
                rounds[name].append(found)
                print(f"round {number + 1}, {name}: {found.batch_ms:.0f} ms per batch, {found.early_mib:.0f} MiB "
                      f"early, {found.late_mib:.0f} late, {found.peak_mib:.0f} at most", flush=True)  # fmt: skip
    medians = {
        name: {field: round(statistics.median(getattr(run, field) for run in found), 1) for field in Measured.__slots__}
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
        save(given.json, {"machine": facts, **asked, "medians": medians})
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
