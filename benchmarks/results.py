"""
The reports of a benchmark: RESULTS.md, the same numbers as JSON, and a chart (SVG).

    python benchmarks/results.py rates.json latency.json --out benchmarks/RESULTS.md
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

import click
from runs import Latency, Restart, Results, Spread, load, save

from brew.cli import run as run_command


class Measure(NamedTuple):
    """A measure's name, how to get it from a result, and how to format it."""

    name: str
    value: Callable[[Any], float]
    form: str


_RUNS = (
    Measure("records/s, first to last visible", lambda r: r.records_per_s, ",.0f"),
    Measure("records/s, from process start", lambda r: r.overall_records_per_s, ",.0f"),
    Measure("first visible record, s", lambda r: r.first_visible_s, ".1f"),
    Measure("last visible record, s", lambda r: r.last_visible_s, ".1f"),
    Measure("process start to exit, s", lambda r: r.wall_s, ".1f"),
    Measure("CPU of the whole process tree, s", lambda r: r.cpu_s, ".1f"),
    Measure("CPU of the broker, s", lambda r: r.broker_cpu_s, ".1f"),
    Measure("CPU tree per record, µs", lambda r: 1e6 * r.cpu_s / r.records, ".1f"),
    Measure("CPU tree + broker per record, µs", lambda r: 1e6 * (r.cpu_s + r.broker_cpu_s) / r.records, ".1f"),
    Measure("CPU of anything else on the machine, s", lambda r: r.foreign_cpu_s, ".1f"),
    Measure("peak memory (sum of PSS), MiB", lambda r: r.memory_mib, ",.0f"),
    Measure("... of it the first process, MiB", lambda r: r.memory_parts_mib["driver"], ",.0f"),
    Measure("... of it the JVM, MiB", lambda r: r.memory_parts_mib["jvm"], ",.0f"),
    Measure("... of it Python workers, MiB", lambda r: r.memory_parts_mib["workers"], ",.0f"),
    Measure("peak memory (sum of resident sizes, as `ps` counts), MiB", lambda r: r.resident_mib, ",.0f"),
)
_RESTARTS = (
    Measure("orders", lambda r: r.records, ","),
    Measure("visible at the kill", lambda r: r.visible_at_kill, ","),
    Measure("in open transactions", lambda r: r.uncommitted_at_kill, ","),
    Measure("first new record, s", lambda r: r.first_record_s, ".2f"),
    Measure("twice", lambda r: r.duplicates, ","),
)
_LATENCIES = (
    Measure("records/s", lambda r: r.records_per_s, ",.0f"),
    Measure("p50, ms", lambda r: r.p50_ms, ",.0f"),
    Measure("p99, ms", lambda r: r.p99_ms, ",.0f"),
    Measure("max, ms", lambda r: r.max_ms, ",.0f"),
    Measure("start to first commit, s", lambda r: r.first_commit_s, ".2f"),
    Measure("cores", lambda r: r.cores, ".2f"),
)


def lines(results: Results, records: int) -> list[list[str]]:
    """Return a table: measure, each contender's median, and the first one's ratio to each other, round by round."""
    names = results.names(records)
    mine, others = names[0], names[1:]
    rows = [["measure", *names, *(f"{mine} / {name}" for name in others)]]
    for measure in _RUNS:
        spreads = [results.spread(name, records, measure.value) for name in names]
        if not any(spread is not None and spread.high for spread in spreads):
            continue  # not measured
        ratios = [results.ratio(mine, name, records, measure.value) for name in others]
        rows.append([
            measure.name,
            *("-" if spread is None else format(spread.middle, measure.form) for spread in spreads),
            *("-" if spread is None else spread.text(".2f") for spread in ratios),
        ])  # fmt: skip
    return rows


def _medians(measures: Sequence[Measure], groups: Iterable[Sequence[Restart | Latency]]) -> list[list[str]]:
    """Return one row per group of a contender's results."""
    rows = [["contender", *(measure.name for measure in measures), "output"]]
    for group in groups:
        middles = [format(median(map(measure.value, group)), measure.form) for measure in measures]
        rows.append([group[0].contender, *middles, ", ".join(sorted({one.verified for one in group}))])
    return rows


def _by_contender(latencies: Sequence[Latency]) -> list[list[Latency]]:
    names = dict.fromkeys(latency.contender for latency in latencies)
    return [[latency for latency in latencies if latency.contender == name] for name in names]


def _cpu_costs(results: Results) -> dict[str, float]:
    """Return the microseconds of one more record, for contenders that ran over two sizes."""
    costs = {name: results.cpu_us(name) for name in results.contenders}
    return {name: cost for name, cost in costs.items() if cost is not None}


def sections(results: Results) -> list[tuple[str, list[list[str]]]]:
    """Return (title, table with header) for everything that was measured."""
    parts = [
        (f"{n:,} orders, {subset.runs[0].broker} broker, {_rounds(subset, n)}", lines(subset, n))
        for subset in results.by_broker()
        for n in subset.counts()
    ]
    if results.latencies:
        title = f"Latency at {results.latencies[0].wanted_per_s:,} records/s"
        parts.append((title, _medians(_LATENCIES, _by_contender(results.latencies))))
    if results.restarts:
        parts.append(("Restart after `kill -9`", _medians(_RESTARTS, [[restart] for restart in results.restarts])))
    for subset in results.by_broker():
        if costs := _cpu_costs(subset):
            title = f"CPU without the start, {subset.runs[0].broker} broker: the largest backlog less the smallest"
            rows = [[name, f"{cost:.1f}"] for name, cost in costs.items()]
            parts.append((title, [["contender", "CPU of the tree per record, µs"], *rows]))
    return parts


def _rounds(results: Results, records: int) -> str:
    most = max(len(results.by_round(name, records, lambda _run: 0.0)) for name in results.names(records))
    return f"median of {most} rounds" if most > 1 else "1 round"


def write(results: Results, path: Path) -> None:
    """Write RESULTS.md, and results.json and results.svg beside it."""
    path.write_text(_markdown(results))
    stem = path.stem.lower()
    save(results, path.with_name(f"{stem}.json"))
    path.with_name(f"{stem}.svg").write_text(draw(results))


def _markdown(results: Results) -> str:
    how_to_read = Path(__file__).with_name("how_to_read.md").read_text()
    commands = [f"    {command}" for command in results.command.splitlines()]
    text = ["# Measured", "", "Written by the benchmark; measure again with", "", *commands, ""]
    text += _table([["machine", ""], *([name, value] for name, value in results.machine.items())])
    for title, rows in sections(results):
        text += ["", f"## {title}", "", *_table(rows)]
    text += ["", "## Who runs", "", *(f"- `{name}`: {what}." for name, what in results.contenders.items())]
    return "\n".join([*text, "", *how_to_read.splitlines(), ""])


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---", *["---:"] * (len(rows[0]) - 1)]
    return [f"| {' | '.join(cells)} |" for cells in (rows[0], rule, *rows[1:])]


_WIDTH, _NAMES, _VALUES = 860, 150, 150
_ROW, _BAR, _TITLE, _GAP, _MARGIN = 26, 16, 30, 18, 10
_PLOT = _WIDTH - _NAMES - _VALUES - 2 * _MARGIN
_STYLE = """
    .bar { fill: #8c959f } .ours { fill: #0969da }
    .whisker { stroke: #1f2328; stroke-width: 1.5 }
    text { fill: #1f2328 } .title { font-weight: 600 } .quiet { fill: #6e7781; font-size: 12px }
    @media (prefers-color-scheme: dark) {
      .bar { fill: #656c76 } .ours { fill: #4493f8 }
      .whisker { stroke: #f0f6fc } text { fill: #f0f6fc } .quiet { fill: #9198a1 }
    }
"""


class Bar(NamedTuple):
    """One contender's value, with a thin line from ``spread``'s low to its high (the slowest round, or p99)."""

    name: str
    spread: Spread
    label: str


class Panel(NamedTuple):
    """Bars of one measure, best first."""

    title: str
    note: str
    bars: Sequence[Bar]


def panels(results: Results) -> list[Panel]:
    """Return rates per backlog, CPU per record, latency, start, restart; measures without numbers are left out."""
    kinds, shown = results.by_broker(), []
    for kind in kinds:
        for records in reversed(kind.counts()):
            rates = {name: kind.spread(name, records, lambda run: run.records_per_s) for name in kind.names(records)}
            title = f"{records:,} orders, {kind.runs[0].broker} broker: records/s"
            note = "steady rate, first to last visible; higher is better"
            shown.append(_panel(title, note, rates, ",.0f", highest_first=True))
    cpu = _by_name(_cpu_costs(kinds[0]).items() if kinds else ())
    shown.append(_panel("CPU per record, µs", "whole process tree, without the start; lower is better", cpu))
    if results.latencies:
        shown.append(_latency(results.latencies))
    starts = _by_name((latency.contender, latency.first_commit_s) for latency in results.latencies)
    note = "process start to the first record for readers; lower is better"
    shown.append(_panel("Start to first commit, s", note, starts))
    restarts = _by_name((restart.contender, restart.first_record_s) for restart in results.restarts)
    shown.append(_panel("Restart after kill -9, s", "new start to the first new record; lower is better", restarts))
    return [panel for panel in shown if panel.bars]


def _by_name(pairs: Iterable[tuple[str, float]]) -> dict[str, Spread | None]:
    values: dict[str, list[float]] = {}
    for name, value in pairs:
        values.setdefault(name, []).append(value)
    return {name: Spread.of(measured) for name, measured in values.items()}


def _panel(
    title: str, note: str, spreads: Mapping[str, Spread | None], form: str = ".1f", *, highest_first: bool = False
) -> Panel:
    bars = [Bar(name, spread, format(spread.middle, form)) for name, spread in spreads.items() if spread]
    return Panel(title, note, sorted(bars, key=lambda bar: bar.spread.middle, reverse=highest_first))


def _latency(latencies: Sequence[Latency]) -> Panel:
    """Return p50 as bars, with p99 as the end of the thin line."""
    bars = []
    for mine in _by_contender(latencies):
        p50, p99 = median(latency.p50_ms for latency in mine), median(latency.p99_ms for latency in mine)
        bars.append(Bar(mine[0].contender, Spread(p50, p50, p99, len(mine)), f"{p50:,.0f} / {p99:,.0f}"))
    title = f"Latency at {latencies[0].wanted_per_s:,} records/s, ms"
    return Panel(title, "p50, line to p99; lower is better", sorted(bars, key=lambda bar: bar.spread.middle))


def draw(results: Results) -> str:
    shown = panels(results)
    height = 2 * _MARGIN + sum(_TITLE + _ROW * len(panel.bars) + _GAP for panel in shown)
    frame = {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {_WIDTH} {height}", "role": "img"}
    svg = ET.Element("svg", frame | {"font-family": "ui-sans-serif, system-ui, sans-serif", "font-size": "14"})
    ET.SubElement(svg, "title").text = "Measured: " + "; ".join(panel.title for panel in shown)
    ET.SubElement(svg, "style").text = _STYLE
    top = _MARGIN
    for panel in shown:
        top = _draw_panel(svg, panel, top, set(results.ours)) + _GAP
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _draw_panel(svg: ET.Element, panel: Panel, top: int, ours: set[str]) -> int:
    """Draw a panel below ``top``; return where it ends."""

    def text(x: float, y: float, words: str, anchor: str = "start", style: str = "") -> None:
        place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
        ET.SubElement(svg, "text", place | ({"class": style} if style else {})).text = words

    def shape(kind: str, style: str, **numbers: float) -> None:
        ET.SubElement(svg, kind, {"class": style, **{name: f"{value:.1f}" for name, value in numbers.items()}})

    text(_MARGIN, top + 16, panel.title, style="title")
    text(_WIDTH - _MARGIN, top + 16, panel.note, "end", "quiet")
    top += _TITLE
    scale = _PLOT / (max(max(bar.spread.middle, bar.spread.high) for bar in panel.bars) or 1)
    left = _MARGIN + _NAMES
    for bar in panel.bars:
        middle, (value, low, high) = top + _ROW / 2, (bar.spread.middle, bar.spread.low, bar.spread.high)
        text(left - 8, middle + 5, bar.name, "end")
        style = "bar ours" if bar.name in ours else "bar"
        shape("rect", style, x=left, y=middle - _BAR / 2, width=value * scale, height=_BAR, rx=2)
        if high > low:
            shape("line", "whisker", x1=left + low * scale, x2=left + high * scale, y1=middle, y2=middle)
        text(left + max(value, high) * scale + 8, middle + 5, bar.label)
        top += _ROW
    return top


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="File for the page.")
def together(files: tuple[Path, ...], out: Path) -> None:
    """
    Write one page of the results of several runs of the benchmark, and JSON and SVG files beside it.

    The page names the machine of the first run only.

    \b
    Example:
      python benchmarks/run.py --orders 4000000 --repeat 3 --restarts 0 --latencies 0 --out /tmp/rates.md
      python benchmarks/run.py --orders 0 --latencies 3 --latency-s 90 --out /tmp/latency.md
      python benchmarks/results.py /tmp/rates.json /tmp/latency.json --out benchmarks/RESULTS.md
    """  # noqa: D301 - click's own mark
    write(load(files), out)
    click.echo(f"wrote {out}, and its JSON and SVG files")


if __name__ == "__main__":
    run_command(together, "results")
