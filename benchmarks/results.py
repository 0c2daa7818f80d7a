"""
What a benchmark leaves behind: tables on the terminal, RESULTS.md, the same numbers as JSON, and a chart.

    python benchmarks/results.py rates.json latency.json --out benchmarks/RESULTS.md
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import click
from chart import draw
from rich.table import Table
from runs import Latency, Restart, Results, Run, load, save

from brew.cli import run as run_command


@dataclass(frozen=True, slots=True)
class Row:
    """A measure: how to get it from a run, and how to write it."""

    name: str
    value: Callable[[Run], float]
    form: str


ROWS = (
    Row("records/s, first to last visible", lambda r: r.records_per_s, ",.0f"),
    Row("records/s, from process start", lambda r: r.overall_records_per_s, ",.0f"),
    Row("first visible record, s", lambda r: r.first_visible_s, ".1f"),
    Row("last visible record, s", lambda r: r.last_visible_s, ".1f"),
    Row("process start to exit, s", lambda r: r.wall_s, ".1f"),
    Row("CPU of the whole process tree, s", lambda r: r.cpu_s, ".1f"),
    Row("CPU of the broker, s", lambda r: r.broker_cpu_s, ".1f"),
    Row("CPU tree per record, µs", lambda r: 1e6 * r.cpu_s / r.records, ".1f"),
    Row("CPU tree + broker per record, µs", lambda r: 1e6 * (r.cpu_s + r.broker_cpu_s) / r.records, ".1f"),
    Row("CPU of anything else on the machine, s", lambda r: r.foreign_cpu_s, ".1f"),
    Row("peak memory (sum of PSS), MiB", lambda r: r.memory_mib, ",.0f"),
    Row("... of it the first process, MiB", lambda r: r.memory_parts_mib["driver"], ",.0f"),
    Row("... of it the JVM, MiB", lambda r: r.memory_parts_mib["jvm"], ",.0f"),
    Row("... of it Python workers, MiB", lambda r: r.memory_parts_mib["workers"], ",.0f"),
)
_RESTARTS = (
    "contender",
    "orders",
    "visible at the kill",
    "in open transactions",
    "first new record, s",
    "twice",
    "output",
)
_LATENCIES = ("contender", "records/s", "p50, ms", "p99, ms", "max, ms", "start to first commit, s", "cores", "output")


def lines(results: Results, records: int) -> list[list[str]]:
    """A table: measure, each contender's median, and the first contender divided by each other, round by round."""
    names = results.names(records)
    mine, others = names[0], names[1:]
    found = [["measure", *names, *(f"{mine} / {name}" for name in others)]]
    for row in ROWS:
        spreads = [results.spread(name, records, row.value) for name in names]
        ratios = [results.ratio(mine, name, records, row.value) for name in others]
        found.append([
            row.name,
            *("-" if one is None else format(one.middle, row.form) for one in spreads),
            *("-" if one is None else one.text(".2f") for one in ratios),
        ])  # fmt: skip
    return found


def restart_lines(restarts: Sequence[Restart]) -> list[list[str]]:
    """One line for each kill."""
    rows = [
        [
            r.contender,
            f"{r.records:,}",
            f"{r.visible_at_kill:,}",
            f"{r.uncommitted_at_kill:,}",
            f"{r.first_record_s:.2f}",
            f"{r.duplicates:,}",
            r.verified,
        ]
        for r in restarts
    ]
    return [list(_RESTARTS), *rows]


def latency_lines(latencies: Sequence[Latency]) -> list[list[str]]:
    """One line for each contender: medians of its rounds."""
    rows = []
    for name in dict.fromkeys(one.contender for one in latencies):
        some = [one for one in latencies if one.contender == name]

        def middle(value: Callable[[Latency], float], form: str, some: Sequence[Latency] = some) -> str:
            return format(median(map(value, some)), form)

        rows.append([
            name,
            middle(lambda one: one.records_per_s, ",.0f"),
            middle(lambda one: one.p50_ms, ",.0f"),
            middle(lambda one: one.p99_ms, ",.0f"),
            middle(lambda one: one.max_ms, ",.0f"),
            middle(lambda one: one.first_commit_s, ".2f"),
            middle(lambda one: one.cores, ".2f"),
            ", ".join(sorted({one.verified for one in some})),
        ])  # fmt: skip
    return [list(_LATENCIES), *rows]


def cpu_lines(results: Results) -> list[list[str]]:
    """What one more record costs, where a contender ran over two sizes."""
    found = {name: results.cpu_us(name) for name in results.contenders}
    rows = [[name, f"{cost:.1f}"] for name, cost in found.items() if cost is not None]
    return [["contender", "CPU of the tree per record, µs"], *rows]


def sections(results: Results) -> list[tuple[str, list[list[str]]]]:
    """(title, table with its head) of all that was measured."""
    found = [(f"{n:,} orders, {_rounds(results, n)}", lines(results, n)) for n in results.counts()]
    if results.latencies:
        found.append((f"Latency at {results.latencies[0].wanted_per_s:,} records/s", latency_lines(results.latencies)))
    if results.restarts:
        found.append(("Restart after `kill -9`", restart_lines(results.restarts)))
    if len(cpu := cpu_lines(results)) > 1:
        found.append(("CPU without the start: the largest backlog less the smallest", cpu))
    return found


def tables(results: Results) -> list[Table]:
    """The same for the terminal."""
    shown = []
    for title, (header, *rows) in sections(results):
        table = Table(title=title)
        for number, name in enumerate(header):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        shown.append(table)
    return shown


def _rounds(results: Results, records: int) -> str:
    most = max(len(results.by_round(name, records, lambda _run: 0.0)) for name in results.names(records))
    return f"median of {most} rounds" if most > 1 else "1 round"


def write(results: Results, path: Path) -> None:
    """RESULTS.md, results.json beside it, and results.svg."""
    path.write_text(_markdown(results))
    stem = path.stem.lower()
    save(results, path.with_name(f"{stem}.json"))
    path.with_name(f"{stem}.svg").write_text(draw(results))


def _markdown(results: Results) -> str:
    commands = [f"    {command}" for command in results.command.splitlines()]
    text = ["# Measured", "", "Written by the benchmark; measure again with", "", *commands, ""]
    text += _table(["machine", ""], [[name, value] for name, value in results.machine.items()])
    for title, (header, *rows) in sections(results):
        text += ["", f"## {title}", "", *_table(header, rows)]
    text += ["", "## Who runs", "", *(f"- `{name}`: {what}." for name, what in results.contenders.items())]
    return "\n".join([*text, "", *_HOW_TO_READ.splitlines(), ""])


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (header, rule, *rows)]


_HOW_TO_READ = (Path(__file__).with_name("how_to_read.md")).read_text()


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="With JSON and SVG twins.")
def together(files: tuple[Path, ...], out: Path) -> None:
    """
    Write one page of the results of several runs of the benchmark; the machine is the first one's.

    \b
    Example:
      python benchmarks/run.py --orders 4000000 --repeat 3 --restarts 0 --latencies 0 --out /tmp/rates.md
      python benchmarks/run.py --orders 0 --latencies 3 --latency-s 90 --out /tmp/latency.md
      python benchmarks/results.py /tmp/rates.json /tmp/latency.json --out benchmarks/RESULTS.md
    """  # noqa: D301 - click's own mark
    write(load(files), out)
    click.echo(f"written: {out} and its JSON and SVG twins")


if __name__ == "__main__":
    run_command(together, "results")
