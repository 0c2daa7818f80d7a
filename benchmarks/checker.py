"""
Records per second, CPU and peak memory of `proof verify`, over logs of two sizes; `make bench-checker`.

    python benchmarks/checker.py [--orders 500000,2000000] [--runs 3] [--out FILE]

On a broker of its own with four partitions, orders are seeded (one in fifty is rejected) and drained by the pipeline;
then the command runs as users run it. A record is one input, output or dead letter; seconds cover the whole process,
including its start. Compared with the smaller log, peak memory shows what grows with the log. Exit 1 below the bar.
"""

from __future__ import annotations

import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import click
from environment import ROOT, machine, program, save

from brew import cli
from brew.cli import option
from brew.errors import Refused, UsageError
from brew.names import ExitCode
from sandbox.kafka import Cluster

BAR = 200_000
_RUN_S = 900


def write(bootstrap: str, orders: int, *seeded: str) -> list[str]:
    """Seed ``orders`` orders and run the pipeline on them; return the options that select this log."""
    stem = f"bench.{orders}"
    names = ["--input", f"{stem}.in", "--output", f"{stem}.out", "--dead-letter", f"{stem}.dlq"]
    program("proof", "topics", "--bootstrap", bootstrap, *names)
    seeding = ("--topic", f"{stem}.in", "--count", str(orders), *seeded)
    program("proof", "seed", "--bootstrap", bootstrap, *seeding, records=orders)
    named = ["--bootstrap", bootstrap, *names, "--group", stem]
    program("pipeline", "run", *named, "--master", "none", "--reader", "direct", records=orders)
    return named


def check(named: list[str], orders: int) -> dict[str, Any]:
    """Run the checker once, which must find no violation; return records, seconds, CPU seconds and peak memory."""
    load, began = os.getloadavg()[0], time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "proof", "verify", *named, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    watch = threading.Timer(_RUN_S, process.kill)
    watch.start()
    try:
        output = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
    finally:
        watch.cancel()
    seconds, process.returncode = time.monotonic() - began, os.waitstatus_to_exitcode(status)
    if process.returncode != ExitCode.DONE:
        raise Refused(f"the checker exited with {process.returncode} instead of 0: {output[-300:]}")
    report = json.loads(output)
    records, cpu_s = sum(report[name] for name in ("inputs", "outputs", "dead_letters")), used.ru_utime + used.ru_stime
    if report["inputs"] != orders:
        raise Refused(f"the checker saw {report['inputs']} inputs of {orders}; run the benchmark again")
    click.echo(
        f"{records:,} records in {seconds:.1f} s, {records / seconds:,.0f} records/s, {cpu_s:.1f} CPU s, "
        f"peak {used.ru_maxrss / 1024:.0f} MiB, load {load:.1f}"
    )
    return {
        "orders": orders,
        "records": records,
        "seconds": seconds,
        "records_per_s": records / seconds,
        "cpu_s": cpu_s,
        "cpu_us_per_record": cpu_s / records * 1e6,
        "peak_mib": used.ru_maxrss / 1024,
        "load_before": load,
    }


def summed(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians over the largest log, and how much more memory it took than the smallest; pure."""
    sizes = sorted({run["orders"] for run in runs})
    small, large = ([run for run in runs if run["orders"] == size] for size in (sizes[0], sizes[-1]))

    def median(runs_of_size: list[dict[str, Any]], name: str) -> float:
        return float(statistics.median(run[name] for run in runs_of_size))

    return {
        "records": large[0]["records"],
        **{name: median(large, name) for name in ("records_per_s", "cpu_s", "cpu_us_per_record", "peak_mib")},
        "times_the_records": large[0]["records"] / small[0]["records"],
        "times_the_memory": median(large, "peak_mib") / median(small, "peak_mib"),
    }


def sizes_of(text: str) -> list[int]:
    """Parse sizes such as `500000,2000000`."""
    try:
        sizes = [int(size) for size in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--orders is {text!r}; give numbers separated by commas, as in 500000,2000000") from error
    if min(sizes) < 1 or len(set(sizes)) < len(sizes):
        raise UsageError(f"--orders is {text!r}; give each size once, and at least 1")
    return sizes


@click.command()
@option("--orders", default="500000,2000000", help="Sizes of the logs in orders, separated by commas.")
@option("--runs", type=click.IntRange(1), default=3, help="Number of runs for each size.")
@option(
    "--out",
    type=click.Path(path_type=Path),
    default=ROOT / "benchmarks/checker.json",
    show_default="benchmarks/checker.json",
    help="File for the results, as JSON.",
)
def main(orders: str, runs: int, out: Path) -> int:
    """
    Measure the rate, CPU time and peak memory of `proof verify` over logs of several sizes.

    Exits with 1 if the median rate over the largest log is below 200,000 records/s.
    """
    sizes, about = sizes_of(orders), machine()
    with tempfile.TemporaryDirectory(prefix="brew-bench-checker-") as home, Cluster.start(Path(home)) as kafka:
        logs = {size: write(kafka.bootstrap, size, "--bad-every", "50") for size in sizes}
        measured = [check(logs[size], size) for _ in range(runs) for size in sizes]
    sums = summed(measured)
    command_line = shlex.join(["python", "benchmarks/checker.py", *sys.argv[1:]])
    save(out, {"machine": about, "command": command_line, "bar_records_per_s": BAR, **sums, "runs": measured})
    click.echo(
        f"median {sums['records_per_s']:,.0f} records/s over {sums['records']:,} records; "
        f"{sums['times_the_memory']:.2f} times the memory for {sums['times_the_records']:.2f} times the records"
    )
    return ExitCode.DONE if sums["records_per_s"] >= BAR else ExitCode.VIOLATION


if __name__ == "__main__":
    cli.run(main, "benchmarks/checker.py")
