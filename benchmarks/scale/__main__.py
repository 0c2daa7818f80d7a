"""`python -m benchmarks.scale`: simulate a cluster, measure its inputs, check it against real runs."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the benchmarks are programs, no installed package

from rich.console import Console

from protocol.command import run as run_command
from protocol.errors import Refused
from scale.asking import numbers_option, several, simulate_command
from scale.compare import FILE as RUNS
from scale.compare import compare, keep, kept, verdict
from scale.numbers import FILE, Numbers, load, save
from scale.page import busy, commands, measured, refreshed
from scale.picture import draw, sweep
from scale.show import show

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs/SCALE.md"
_LONGEST_S = 600


@click.group()
def cli() -> None:
    """What the pipeline does on clusters that are not here."""


cli.add_command(simulate_command)


@cli.command("numbers")
@numbers_option
def numbers_command(numbers: Path) -> None:
    """Show the measured single numbers."""
    single = load(numbers)
    if note := busy(single):
        click.echo(note)
    show(measured(single))


@cli.command("page")
@click.argument("page", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=_PAGE)
def page_command(page: Path) -> None:
    """Make the tables and the picture of docs/SCALE.md anew, from the numbers that there are now."""
    _refresh(page)


def _refresh(page: Path) -> None:
    words_of = commands(page.read_text())
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        told = dict(zip(words_of, pool.map(_told, words_of), strict=True))
    page.write_text(refreshed(page.read_text(), told))
    picture = page.with_name("scale.svg")
    picture.write_text(draw(sweep(load(FILE))))
    click.echo(f"written: {page}, {picture}")


def _told(words: str) -> str:
    """What one of our commands prints; `compared` may end with 1, or have nothing to compare."""
    command = [sys.executable, "-m", "benchmarks.scale", *words.split()]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    if done.returncode and words == "compared":
        return done.stdout or done.stderr
    if done.returncode:
        raise Refused(f"`{' '.join(command[1:])}` ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


@cli.command("measure")
@numbers_option
@click.option("--quick", is_flag=True, help="Fewer repetitions: to see whether it works, not to keep.")
def measure_command(numbers: Path, *, quick: bool) -> None:
    """
    Measure every single number on sandbox brokers of its own, and write them down; two minutes.

    \b
    Examples:
      python -m benchmarks.scale measure
      python -m benchmarks.scale measure --quick --numbers /tmp/numbers.json
    """  # noqa: D301
    from scale.probe.measure import measure  # noqa: PLC0415 - brings clients and the sandbox

    save(measure(Console(stderr=True), quick=quick), numbers)
    click.echo(f"written: {numbers}")


_runs_option = click.option(
    "--runs",
    type=click.Path(dir_okay=False, path_type=Path),
    default=RUNS,
    show_default="benchmarks/scale/check.json",
    help="Measured runs.",
)
_tolerance_option = click.option("--tolerance", type=click.FloatRange(0, 1), default=0.15, show_default=True)
_orders_option = click.option(
    "--orders", type=click.IntRange(10_000), default=2_000_000, show_default=True, help="Of each run."
)
_repeat_option = click.option(
    "--repeat", type=click.IntRange(1, 20), default=3, show_default=True, help="Runs; the median counts."
)


@cli.command("check")
@numbers_option
@several("--partitions", 4, "Of the runs, e.g. 4,64.")
@_orders_option
@_repeat_option
@_tolerance_option
@_runs_option
def check_command(numbers: Path, partitions: list[int], orders: int, repeat: int, tolerance: float, runs: Path) -> int:
    """
    Run the real direct reader without Spark, and compare its rate with the simulated one; exit 1 when they differ.

    \b
    Examples:
      python -m benchmarks.scale check --partitions 4,64
      python -m benchmarks.scale check --partitions 4 --orders 100000 --repeat 1 --runs /tmp/runs.json
    """  # noqa: D301
    from scale.probe.check import drains  # noqa: PLC0415
    from scale.probe.place import sandbox  # noqa: PLC0415

    single = load(numbers)
    with sandbox(1) as here:
        keep(drains(Console(stderr=True), here, partitions, orders, repeat, single.transaction_s), runs)
    return _compared(single, runs, tolerance)


@cli.command("compared")
@numbers_option
@_runs_option
@_tolerance_option
def compared_command(numbers: Path, runs: Path, tolerance: float) -> int:
    """Show the runs of the last check beside what the simulator says of them; exit 1 when they differ."""
    return _compared(load(numbers), runs, tolerance)


def _compared(single: Numbers, runs: Path, tolerance: float) -> int:
    table, code = verdict(compare(kept(runs), single), tolerance)
    if note := busy(single):
        click.echo(f"The single numbers were {note}")
    show([table])
    return code


@cli.command("bench")
@several("--partitions", 4, "Of the runs, e.g. 4,64.")
@_orders_option
@_repeat_option
@_tolerance_option
def bench_command(partitions: list[int], orders: int, repeat: int, tolerance: float) -> int:
    """
    Measure single numbers and runs on one warm broker, fill docs/SCALE.md, compare; exit 1 when they differ.

    \b
    Examples:
      python -m benchmarks.scale bench --partitions 4,64
    """  # noqa: D301
    from scale.probe.check import drains  # noqa: PLC0415
    from scale.probe.measure import measure  # noqa: PLC0415

    console = Console(stderr=True)
    save(
        measure(
            console,
            quick=False,
            also=lambda here, single: keep(
                drains(console, here, partitions, orders, repeat, single.transaction_s), RUNS
            ),
        ),
        FILE,
    )
    _refresh(_PAGE)
    return _compared(load(FILE), RUNS, tolerance)


if __name__ == "__main__":
    run_command(cli, "scale")
