"""`make bench`: drain the same orders with our pipeline and with Spark's own Kafka sink, and compare."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from contenders import CONTENDERS, DEFAULT, PIPELINE, Setup
from ground import Ground, ground
from measure import Restart, Run, measure, restart
from results import Results, machine, table, write
from rich.console import Console

from protocol.command import run as run_command

_WARM_UP = 20_000


def _numbers(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[int]:
    words = [word for text in given for word in text.replace("_", "").split(",") if word]
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise click.BadParameter(f"{', '.join(given)}: write numbers of orders, as in 1000000,4000000")
    return sorted({int(word) for word in words})


def _names(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> list[str]:
    words = [word for text in given for word in text.split(",") if word] or list(DEFAULT)
    unknown = [word for word in words if word not in CONTENDERS]
    if unknown:
        raise click.BadParameter(f"{', '.join(unknown)}: there are {', '.join(CONTENDERS)}")
    return words


@click.command()
@click.option("--count", "--counts", "counts", multiple=True, default=["4000000"], show_default=True, callback=_numbers)
@click.option("--master", default="local[2]", show_default=True)
@click.option("--repeat", type=click.IntRange(1, 100), default=1, show_default=True, help="Rounds per count.")
@click.option("--only", multiple=True, callback=_names, help=f"Contenders [default: {','.join(DEFAULT)}]")
@click.option("--restarts", type=click.IntRange(0, 100), default=1, show_default=True, help="Restarts after kill -9.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark setting for all; may be repeated.")
@click.option("--pipeline-options", default="", metavar="TEXT", help="More options for ours alone, as '--lanes 4'.")
@click.option("--warm-up", type=click.IntRange(0), default=_WARM_UP, show_default=True, help="Orders that don't count.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path(__file__).with_name("RESULTS.md"),
    show_default="benchmarks/RESULTS.md",
    help="Results; a JSON twin is written beside it.",
)
def bench(
    counts: list[int],
    master: str,
    repeat: int,
    only: list[str],
    restarts: int,
    conf: tuple[str, ...],
    pipeline_options: str,
    warm_up: int,
    out: Path,
) -> None:
    """
    Measure rate, start, CPU and memory, on a broker of its own.

    \b
    Examples:
      make bench
      .venv/bin/python benchmarks/run.py --counts 1000000,4000000 --repeat 3
      .venv/bin/python benchmarks/run.py --count 100000 --only pipeline --pipeline-options '--lanes 4' --out /tmp/R.md
    """  # noqa: D301 - click's own mark
    console = Console()
    setup = Setup(master, conf, shlex.split(pipeline_options))
    found = machine()
    command = shlex.join([".venv/bin/python", "benchmarks/run.py", *sys.argv[1:]])
    with ground() as here:
        console.print(f"a broker of our own at {here.cluster.bootstrap}; load {found['load before the start']}")
        runs = _runs(console, here, setup, counts, only, repeat, warm_up)
        again = _restarts(console, here, setup, max(counts), restarts if PIPELINE.name in only else 0)
    results = Results(command, found, runs, again)
    for records in counts:
        console.print(table(results, records))
    for one in again:
        console.print(f"restart after kill -9: first new record after {one.first_record_s:.1f} s, {one.verified}")
    write(results, out)
    console.print(f"written: {out} and its JSON twin")


def _runs(
    console: Console, here: Ground, setup: Setup, counts: Sequence[int], names: Sequence[str], repeat: int, warm_up: int
) -> list[Run]:
    """All rounds of all sizes; the order of contenders turns round with each round."""
    if warm_up:
        for name in names:
            console.print(f"{name}: warming up on {warm_up:,} orders")
            measure(here, CONTENDERS[name], setup, warm_up, 0)
    runs = []
    for records in counts:
        console.print(f"seeding {records:,} orders")
        here.input_of(records)
        for number in range(1, repeat + 1):
            for name in names if number % 2 else reversed(names):
                found = measure(here, CONTENDERS[name], setup, records, number)
                console.print(
                    f"{name} round {number}: {found.records_per_s:,.0f} records/s, {found.wall_s:.1f} s, "
                    f"{found.cpu_s:.1f} CPU s, {found.memory_mib:,.0f} MiB"
                )
                runs.append(found)
    return runs


def _restarts(console: Console, here: Ground, setup: Setup, records: int, rounds: int) -> list[Restart]:
    found = []
    for number in range(1, rounds + 1):
        console.print(f"restart {number}: killing the pipeline in the middle of a transaction")
        found.append(restart(here, PIPELINE, setup, records, number))
    return found


if __name__ == "__main__":
    run_command(bench, "bench")
