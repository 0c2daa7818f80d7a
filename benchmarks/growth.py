"""
Measure how the pipeline scales: ten times the records, 64 partitions, large orders, more slots, 1 GiB per partition.

Also measure the effect of a lease of 1 s, and the longest time that a process spends between two transactions.

    python benchmarks/growth.py [--orders 1000000] [--rounds 3] [--only NAME ...] [--json FILE]

Starts its own broker and warms it up with 1,280 transactions. Drains use the direct reader. Each is compared with a
drain of the base case (--orders orders of about 160 bytes in four partitions) that runs right before it. Each case has
--rounds such pairs, and the median of their ratios counts. Every output is verified, then deleted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from environment import BenchmarkCluster, benchmark_cluster, machine, make_topics, program, save, touch, transacting_s
from watch import MemoryWatch, Tree

from brew.connection import Connection
from brew.deadline import Deadline
from brew.journal import Entry, Phase, Step, entries
from proof.seed import Order, Writer, orders

_RUN_S, _CHUNK, _GIB, _WARMING = 600.0, 10_000, 2**30, 20


@dataclass(frozen=True)
class GrowthCase:
    """
    One case; ``value_bytes``: size of an order, 0 for the seeder's (about 160). ``master``: none, or Spark's.
    ``lease_s``: how long a task works without contact to the driver, which renews the lease every third of that.
    """

    name: str
    records: int
    partitions: int = 4
    value_bytes: int = 0
    master: str = "none"
    lease_s: float = 10.0

    @property
    def topic(self) -> str:
        return f"growth.{self.records}.{self.partitions}.{self.value_bytes}"


def cases(count: int) -> list[GrowthCase]:
    """Return the cases, each with about as many bytes as the base, except those that are larger on purpose."""
    return [
        GrowthCase("base", count),
        GrowthCase("10 times the records", 10 * count),
        GrowthCase("64 partitions", count, 64),
        GrowthCase("64 partitions with 4 times the records", 4 * count, 64),
        GrowthCase("orders of 1 KiB", count // 5, value_bytes=1024),
        GrowthCase("orders of 10 KiB", count // 50, value_bytes=10 * 1024),
        GrowthCase("1 GiB in each of 4 partitions", 4 * _GIB // (10 * 1024), value_bytes=10 * 1024),
        *(GrowthCase(f"{slots} slots in Spark", count, master=f"local[{slots}]") for slots in (1, 2, 4)),
        GrowthCase("lease of 1 s", count, lease_s=1.0),
        GrowthCase("lease of 1 s, 2 slots in Spark", count, master="local[2]", lease_s=1.0),
    ]


@dataclass(frozen=True)
class GrowthResult:
    """One run: rates from the first fence to the last commit, and the pause between two transactions of one process."""

    name: str
    records: int
    partitions: int
    value_bytes: int
    master: str
    records_per_s: float
    mb_per_s: float
    cpu_us_per_record: float
    peak_mib: float
    process_s: float
    longest_pause_ms: float


def seed(connection: Connection, case: GrowthCase) -> None:
    make_topics(connection, [case.topic], case.partitions)
    order = orders(1)

    def made(number: int) -> tuple[int, Order]:
        key, value = order(number)
        assert value is not None
        if case.value_bytes:
            value = value[:-1] + b',"note":"' + b"x" * (case.value_bytes - len(value) - 10) + b'"}'
        return number % case.partitions, (key, value)

    with Writer(connection, case.topic, None, _RUN_S) as out:
        for start in range(0, case.records, _CHUNK):
            out.write(map(made, range(start, min(start + _CHUNK, case.records))))
        out.flush()


def run(cluster: BenchmarkCluster, case: GrowthCase, number: int) -> GrowthResult:
    """Run one drain in a process tree of its own, and verify it."""
    name, home = f"{case.topic}.out{number}", cluster.home
    where = ["--bootstrap", cluster.connection.bootstrap, "--input", case.topic]
    where += ["--output", name, "--dead-letter", f"{name}.dlq", "--group", name]
    how = ["--master", case.master, "--reader", "direct", "--progress", "none", "--journal", str(home / name)]
    how += ["--lease", str(case.lease_s)]
    command = [sys.executable, "-m", "pipeline", "run", *where, *how]
    touch()
    with Tree(command, home / f"{name}.tree") as tree, MemoryWatch(tree) as memory:
        usage = tree.wait(Deadline(_RUN_S))
    lines = list(entries(home / name))
    outputs = json.loads(program("proof", "verify", *where, "--json", records=2 * case.records))["outputs"]
    if outputs != case.records:
        raise SystemExit(f"{case.name}: {outputs} outputs for {case.records} orders")
    cluster.drop_topics([name, f"{name}.dlq"])
    size = case.value_bytes or 160
    rate = outputs / transacting_s(lines)
    cpu = max(usage.cpu_s, memory.cpu_s) / outputs * 1e6
    facts = (case.name, case.records, case.partitions, size, case.master, rate, rate * size / 1e6, cpu)
    return GrowthResult(*facts, memory.peak.total() / 2**20, usage.wall_s, 1000 * longest_pause_s(lines))


def longest_pause_s(lines: Iterable[Entry]) -> float:
    """Return the longest time in seconds without a transaction in any one process, between its first and its last."""
    longest = 0.0
    running: dict[int, int] = {}
    idle_since: dict[int, float] = {}
    for line in sorted(lines, key=lambda entry: entry.at):
        if line.step is Step.FENCE and line.phase is Phase.INTENT:
            if not running.get(line.pid):
                longest = max(longest, line.at - idle_since.get(line.pid, line.at))
            running[line.pid] = running.get(line.pid, 0) + 1
        elif line.step is Step.OUTCOME:
            running[line.pid] = max(0, running.get(line.pid, 0) - 1)  # an attempt may end before its fence
            idle_since[line.pid] = line.at
    return longest


def warm(cluster: BenchmarkCluster) -> None:
    """Warm up the broker: a new one takes 60 ms of CPU per transaction, mostly for its JIT; 17 after a thousand."""
    case = GrowthCase("warming", 6_400, 64)
    seed(cluster.connection, case)
    for number in range(_WARMING):
        run(cluster, case, number)


def measured(count: int, rounds: int, only: set[str]) -> list[dict[str, object]]:
    results: list[dict[str, object]] = []
    base, *others = cases(count)
    with benchmark_cluster() as cluster:
        numbers = itertools.count()
        warm(cluster)
        seeded: set[str] = set()
        for case in [base, *(other for other in others if not only or other.name in only)]:
            for needed in (base, case):
                if needed.topic not in seeded:
                    seed(cluster.connection, needed)
                    seeded.add(needed.topic)
            pairs = []
            for _ in range(rounds):
                beside, grown = run(cluster, base, next(numbers)), run(cluster, case, next(numbers))
                pairs.append({"case": asdict(grown), "base": asdict(beside), "load": psutil.getloadavg()[0]})
                _tell(grown, beside)
            results.append({"name": case.name, "pairs": pairs})
            ratio = median_ratio(pairs)
            print(f"{case.name:38} {ratio:5.2f} of the base's bytes per second, median of {rounds}\n", flush=True)
    return results


def median_ratio(pairs: Sequence[dict[str, Any]]) -> float:
    return float(statistics.median(pair["case"]["mb_per_s"] / pair["base"]["mb_per_s"] for pair in pairs))


def _tell(grown: GrowthResult, base: GrowthResult) -> None:
    print(
        f"{grown.name:38} {grown.records_per_s:9,.0f} records/s {grown.mb_per_s:6.1f} MB/s  "
        f"{grown.records_per_s / base.records_per_s:5.2f} of the base's records, "
        f"{grown.mb_per_s / base.mb_per_s:5.2f} of its bytes  {grown.cpu_us_per_record:6.1f} us  "
        f"{grown.peak_mib:5.0f} MiB (base {base.peak_mib:.0f})  "
        f"pause {grown.longest_pause_ms:.0f} ms",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--orders", type=int, default=1_000_000, help="number of orders in the base case (default: 1000000)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of pairs of each case (default: 3)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases to run (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to, as JSON")
    asked = parser.parse_args()
    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    only = set(asked.only)
    if unknown := only - {case.name for case in cases(asked.orders)}:
        parser.error(f"unknown case: {', '.join(sorted(unknown))}; give some of {[c.name for c in cases(1)]}")
    if asked.rounds < 1:
        parser.error(f"--rounds is {asked.rounds}; give at least 1")
    runs = measured(asked.orders, asked.rounds, only)
    if asked.json:
        save(asked.json, {"began": began, "machine": machine(), "command": " ".join(sys.argv), "runs": runs})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
