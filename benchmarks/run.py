"""`make bench`: drain and follow the same orders with our pipeline and its peers, and compare."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from contenders import CONTENDERS, DEFAULT, MASTER, Contender, require_built
from environment import BROKERS, BenchmarkCluster, benchmark_cluster, machine
from measure import follow, measure, restart
from results import write
from rich.console import Console
from runs import Latency, Restart, Results, Run, rounds

from brew.cli import flag, option, repeatable, typed_option
from brew.cli import run as run_command

_WARM_UP = 20_000


@dataclass(frozen=True, slots=True)
class Plan:
    names: Sequence[str]
    counts: Sequence[int]
    repeat: int
    paired: bool
    restarts: int
    latencies: int
    rate_per_s: int
    latency_s: float


def _numbers(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[int]:
    words = [word for text in given for word in text.replace("_", "").split(",") if word]
    if not all(word.isdecimal() and (int(word) > 0 or words == ["0"]) for word in words):
        raise click.BadParameter(f"{', '.join(given)}: give numbers of orders, as in 1000000,4000000, or 0 for none")
    return sorted({int(word) for word in words if int(word)})


def _of(known: Collection[str], default: Sequence[str] = ()) -> Callable[..., list[str]]:
    """Return a click callback for comma-separated names from ``known``."""

    def chosen(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[str]:
        words = list(dict.fromkeys(word for text in given for word in text.split(",") if word)) or list(default)
        unknown = [word for word in words if word not in known]
        if unknown or not words:
            raise click.BadParameter(f"{', '.join(unknown) or 'nothing'}: give one or more of {', '.join(known)}")
        return words

    return chosen


@click.command()
@option(
    *("--orders", "counts"),
    multiple=True,
    default=["1000000,4000000"],
    callback=_numbers,
    help="Numbers of orders to drain, separated by commas; 0 means none.",
)
@repeatable(
    "--contenders names",
    "Contenders to run, separated by commas; the first is compared with each of the others.  "
    f"[default: {','.join(DEFAULT)}]",
    callback=_of(CONTENDERS, DEFAULT),
)
@typed_option("--repeat", click.IntRange(0, 100), 1, "Rounds per backlog; 0 means none.")
@flag("--paired", "Run rounds of two contenders: the first one and each of the others.")
@typed_option(
    "--restarts", click.IntRange(0, 100), 1, "Number of restarts after kill -9 for each contender; 0 means none."
)
@typed_option("--latencies", click.IntRange(0, 100), 1, "Rounds of the latency measurement; 0 means none.")
@typed_option("--rate", click.IntRange(1, 100_000), 1000, "Records per second in the latency measurement.")
@typed_option(
    "--latency-s",
    click.FloatRange(1),
    20.0,
    "Measured seconds of the latency measurement, after a warm-up half as long.",
)
@option(
    *("--broker", "--brokers", "brokers"),
    multiple=True,
    default=["default"],
    callback=_of(BROKERS),
    help=f"Kinds of broker, measured one after another. {'; '.join(f'{k}: {v}' for k, v in BROKERS.items())}.",
)
@option("--master", default=MASTER, help="Spark master of the contenders that run on Spark.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(__file__).with_name("RESULTS.md"),
    show_default="benchmarks/RESULTS.md",
    help="File for the results; JSON and SVG files are written beside it.",
)
def bench(master: str, out: Path, rate: int, brokers: Sequence[str], **given: object) -> None:
    """
    Measure rate, CPU, memory, latency and restart of our pipeline and its peers, on a broker that it starts.

    \b
    Examples:
      make bench
      .venv/bin/python benchmarks/run.py --orders 1000000 --contenders direct,streams,franz --repeat 3
      .venv/bin/python benchmarks/run.py --orders 1000000,4000000 --contenders direct,franz --paired --repeat 5
      .venv/bin/python benchmarks/run.py --orders 1000000 --brokers default-young,tuned --contenders direct,streams
      .venv/bin/python benchmarks/run.py --orders 0 --restarts 0 --contenders loop --latencies 3 --out /tmp/R.md
    """  # noqa: D301 - click's own mark
    plan = Plan(rate_per_s=rate, **given)  # type: ignore[arg-type]
    if plan.paired and len(plan.names) < 2:
        raise click.UsageError("--paired compares the first contender with others; name at least two (--contenders)")
    require_built(plan.names)
    console, about = Console(), machine()
    command = shlex.join([".venv/bin/python", "benchmarks/run.py", *sys.argv[1:]])
    who = {name: CONTENDERS[name].what for name in plan.names}
    results = Results(command, about, who, [name for name in plan.names if CONTENDERS[name].ours])
    for number, kind in enumerate(brokers):
        # Restarts and latency are measured once, on the first kind of broker.
        once = plan if number == 0 else replace(plan, restarts=0, latencies=0)
        with benchmark_cluster(kind) as cluster:
            load = about["load before the start"]
            console.print(f"broker {kind} at {cluster.cluster.bootstrap} ({BROKERS[kind]}); load {load}")
            results = carry_out(console, cluster, master, once, results)
    write(results, out)
    console.print(f"wrote {out}, and its JSON and SVG files")


def carry_out(console: Console, cluster: BenchmarkCluster, master: str, plan: Plan, results: Results) -> Results:
    """Run everything in the plan, one contender at a time."""
    for name in plan.names:
        console.print(f"{name}: warming up on {_WARM_UP:,} orders")
        measure(cluster, CONTENDERS[name], master, _WARM_UP, 0)
    runs: list[Run] = []
    for records in plan.counts:
        console.print(f"seeding {records:,} orders")
        cluster.input_of(records)
        for number, contender in _turns(plan, plan.repeat, paired=plan.paired):
            runs.append(run := measure(cluster, contender, master, records, number))
            console.print(
                f"{run.contender} round {number}: {run.records_per_s:,.0f} records/s, {run.wall_s:.1f} s, "
                f"{run.cpu_s:.1f} CPU s, {run.memory_mib:,.0f} MiB, {run.verified}"
            )
    restarts: list[Restart] = []
    for number, contender in _turns(plan, plan.restarts if plan.counts else 0):
        restarts.append(killed := restart(cluster, contender, master, max(plan.counts), number))
        first = f"first new record {killed.first_record_s:.2f} s after the restart"
        console.print(f"{killed.contender} killed: {first}, {killed.verified}")
    latencies: list[Latency] = []
    times = {"warm_s": plan.latency_s / 2, "seconds": plan.latency_s}
    for number, contender in _turns(plan, plan.latencies):
        latencies.append(paced := follow(cluster, contender, master, number, per_s=plan.rate_per_s, **times))
        console.print(
            f"{paced.contender} at {paced.records_per_s:,.0f} records/s: "
            f"p50 {paced.p50_ms:.0f} ms, p99 {paced.p99_ms:.0f} ms, "
            f"first commit {paced.first_commit_s:.2f} s after the start, {paced.verified}"
        )
    return replace(
        results,
        runs=[*results.runs, *runs],
        restarts=[*results.restarts, *restarts],
        latencies=[*results.latencies, *latencies],
    )


def _turns(plan: Plan, repeat: int, *, paired: bool = False) -> list[tuple[int, Contender]]:
    """Return (round, contender) in the order in which they run."""
    planned = rounds(plan.names, repeat, paired=paired)
    return [(number, CONTENDERS[name]) for number, names in planned for name in names]


if __name__ == "__main__":
    run_command(bench, "bench")
