"""
Measure the cost of customer profiles as the source of tiers, compared with the key's prefix: time, memory and drains.

    python benchmarks/profiles.py [--profiles 1000000] [--orders 400000] [--rounds 3] [--json FILE]

Starts its own broker. Drains run without Spark, with the direct reader, alternately from profiles and prefix, and are
verified. Exits with 1 if a process with all profiles has used more than 600 MB of memory, or if the median ratio of
the rates, with profiles and with the prefix, is below 0.8.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from environment import children_cpu_s, machine, program, save, transacting_s

from brew.journal import entries
from brew.orders import Tiers
from brew.range_transaction import Evidence
from brew.settings import Limits
from pipeline.enrichment import enricher
from pipeline.profiles import Table, lookup
from proof.commands.seed import Customers, chunks
from proof.seed import orders
from sandbox.kafka import Cluster

MOST_MB, LEAST_RATIO = 600, 0.8
INPUT, CUSTOMERS = "bench.orders", "bench.customers"
_PURE, _TURNS = 200_000, 7


def pure() -> dict[str, float]:
    """Measure enrichment and headers as the kernel runs them; return microseconds per record, the best of several."""
    order = orders(1)
    records = [order(number) for number in range(_PURE)]
    table = Table()
    for number, (key, value) in enumerate(profile for chunk in chunks(Customers("t", 20_000, 1)) for profile in chunk):
        table.take("t", number % 4, number // 4, key, value)
    resolve, evidence = lookup(table)
    resolvers: dict[str, tuple[Any, Evidence | None]] = {
        "prefix": (enricher(Limits()), None),
        "profiles": (enricher(Limits(), resolve), evidence),
    }
    best = dict.fromkeys(resolvers, float("inf"))
    gc.disable()
    for _ in range(_TURNS):
        for name, (enrich, evidence_of) in resolvers.items():
            began = time.perf_counter()
            for key, value in records:
                enrich(key, value)
                source: list[tuple[str, bytes | None]]
                source = [("source.topic", b"t"), ("source.partition", b"0"), ("source.offset", b"%d" % 17)]
                if evidence_of is not None:
                    source = [evidence_of(), *source]
            best[name] = min(best[name], (time.perf_counter() - began) / _PURE * 1e6)
    gc.enable()
    return {**{f"{name}_us": least for name, least in best.items()}, "ratio": best["prefix"] / best["profiles"]}


_HOLD = """
import json, psutil, resource, sys, time
from pipeline.profiles import GlobalTable
from brew.settings import ProfilesSettings
from brew.connection import Connection
here = psutil.Process()
before = here.memory_info().rss
began = time.monotonic()
table = GlobalTable(Connection(sys.argv[1]), "bench", ProfilesSettings(sys.argv[2])).ready(60)
seconds = time.monotonic() - began
print(json.dumps({
    "profiles": len(table.entries),
    "seconds": seconds,
    "empty_mb": before / 1e6,
    "held_mb": here.memory_info().rss / 1e6,
    "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
}))
"""


def memory(bootstrap: str) -> dict[str, float]:
    """Load all profiles in one process, as a worker does; return resident memory before, after, and at its peak."""
    done = subprocess.run([sys.executable, "-c", _HOLD, bootstrap, CUSTOMERS], stdout=subprocess.PIPE, check=True)
    held: dict[str, float] = json.loads(done.stdout)
    return held


def drain(bootstrap: str, tiers: Tiers, number: int) -> dict[str, float]:
    """Drain all orders with a group and an output of its own, and verify; return rates from the journal."""
    name = f"bench-{tiers}-{number}"
    where = ["--bootstrap", bootstrap, "--input", INPUT, "--output", name, "--dead-letter", f"{name}.dlq"]
    where += ["--group", name, "--tiers", tiers.value, "--profiles-topic", CUSTOMERS]
    with tempfile.TemporaryDirectory(prefix="brew-bench-profiles-") as journal:
        command = ("pipeline", "run", *where, "--master", "none", "--reader", "direct")
        cpu, began = children_cpu_s(), time.monotonic()
        program(*command, "--journal", journal, "--progress", "none")
        wall, cpu = time.monotonic() - began, children_cpu_s() - cpu
        seconds = transacting_s(entries(Path(journal)))
    report = json.loads(program("proof", "verify", *where, "--json"))
    return {
        "records": report["outputs"],
        "records_per_s": report["outputs"] / seconds,
        "seconds": seconds,
        "wall_seconds": wall,
        "cpu_us_per_record": cpu / report["outputs"] * 1e6,
    }


def real(asked: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="brew-bench-profiles-") as home, Cluster.start(Path(home)) as cluster:
        where = ["--bootstrap", cluster.bootstrap]
        program("proof", "topics", *where, "--input", INPUT, "--customers", CUSTOMERS)
        program("proof", "seed", *where, "--topic", INPUT, "--count", str(asked.orders), records=asked.orders)
        seeding = ("seed-customers", *where, "--topic", CUSTOMERS, "--customers", str(asked.profiles), "--json")
        seeded = json.loads(program("proof", *seeding, records=asked.profiles))
        results: dict[str, Any] = {"seeding_seconds": seeded["seconds"], "memory": memory(cluster.bootstrap)}
        turns = [list(Tiers), list(Tiers)[::-1]]
        runs = [
            {tiers.value: drain(cluster.bootstrap, tiers, number) for tiers in turns[number % 2]}
            for number in range(asked.rounds)
        ]
    ratios = [run["profiles"]["records_per_s"] / run["prefix"]["records_per_s"] for run in runs]
    return {**results, "rounds": runs, "ratios": ratios, "ratio": statistics.median(ratios)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profiles", type=int, default=1_000_000, help="number of profiles (default: 1000000)")
    parser.add_argument("--orders", type=int, default=400_000, help="number of orders in a drain (default: 400000)")
    parser.add_argument("--rounds", type=int, default=3, help="number of drains of each kind (default: 3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the results to, as JSON")
    asked = parser.parse_args()
    results = {"machine": machine(), "pure": pure(), **real(asked)}
    resolver, held = results["pure"], results["memory"]
    print(f"resolver: prefix {resolver['prefix_us']:.2f} us, profiles {resolver['profiles_us']:.2f} us per record")
    print(
        f"memory: {held['profiles']:,} profiles in {held['seconds']:.1f} s, {held['empty_mb']:.0f} MB before, "
        f"{held['held_mb']:.0f} MB after, {held['peak_mb']:.0f} MB at most"
    )
    for drains in results["rounds"]:
        print(", ".join(f"{name} {run['records_per_s']:,.0f} records/s" for name, run in sorted(drains.items())))
    alone = f"resolver alone {resolver['ratio']:.2f}"
    print(f"drains with profiles reach {results['ratio']:.2f} of the prefix's rate, {alone}")
    if asked.json:
        save(asked.json, results)
    return 0 if held["peak_mb"] <= MOST_MB and results["ratio"] >= LEAST_RATIO else 1


if __name__ == "__main__":
    raise SystemExit(main())
