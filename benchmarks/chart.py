"""
The results as a picture: an SVG of horizontal bars that reads on light and dark pages.

    python benchmarks/chart.py benchmarks/results.json --out benchmarks/results.svg
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import click
from figures import Spread
from runs import Latency, Results, load

from brew.cli import run as run_command

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


@dataclass(frozen=True, slots=True)
class Bar:
    """One contender's value; ``high`` is where its thin line ends (the slowest round, or a p99)."""

    name: str
    value: float
    low: float
    high: float
    label: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars of one measure, best first."""

    title: str
    note: str
    bars: Sequence[Bar]


def panels(results: Results) -> list[Panel]:
    """Rates per backlog, CPU per record, latency, start, restart; a measure without numbers is left out."""
    found = []
    for records in reversed(results.counts()):
        rates = {name: results.spread(name, records, lambda run: run.records_per_s) for name in results.names(records)}
        note = "steady rate, first to last visible record; higher is better"
        found.append(Panel(f"{records:,} orders: records/s", note, _bars(rates, ",.0f", best=max)))
    costs = {name: results.cpu_us(name) for name in results.contenders}
    cpu = {name: Spread(cost, cost, cost, 1) for name, cost in costs.items() if cost is not None}
    found.append(
        Panel("CPU per record, µs", "whole process tree, without the start; lower is better", _bars(cpu, ".1f"))
    )
    if results.latencies:
        found.append(_latency(results.latencies))
    starts = _by_name((one.contender, one.first_commit_s) for one in results.latencies)
    note = "process start to the first record for readers; lower is better"
    found.append(Panel("Start to first commit, s", note, _bars(starts, ".1f")))
    restarts = _by_name((one.contender, one.first_record_s) for one in results.restarts)
    note = "new start to the first new record; lower is better"
    found.append(Panel("Restart after kill -9, s", note, _bars(restarts, ".1f")))
    return [panel for panel in found if panel.bars]


def _by_name(some: Iterable[tuple[str, float]]) -> dict[str, Spread | None]:
    values: dict[str, list[float]] = {}
    for name, value in some:
        values.setdefault(name, []).append(value)
    return {name: Spread.of(found) for name, found in values.items()}


def _bars(
    spreads: dict[str, Spread] | dict[str, Spread | None], form: str, *, best: Callable[[float, float], float] = min
) -> list[Bar]:
    bars = [Bar(n, s.middle, s.low, s.high, format(s.middle, form)) for n, s in spreads.items() if s is not None]
    return sorted(bars, key=lambda bar: bar.value, reverse=best is max)


def _latency(latencies: Sequence[Latency]) -> Panel:
    """p50 as the bar, p99 as the end of the thin line."""
    bars = []
    for name in dict.fromkeys(one.contender for one in latencies):
        p50 = Spread.of(one.p50_ms for one in latencies if one.contender == name)
        p99 = Spread.of(one.p99_ms for one in latencies if one.contender == name)
        if p50 is not None and p99 is not None:
            bars.append(Bar(name, p50.middle, p50.middle, p99.middle, f"{p50.middle:,.0f} / {p99.middle:,.0f}"))
    title = f"Latency at {latencies[0].wanted_per_s:,} records/s, ms"
    return Panel(title, "p50, line to p99; lower is better", sorted(bars, key=lambda bar: bar.value))


def draw(results: Results) -> str:
    """The SVG document."""
    shown = panels(results)
    height = 2 * _MARGIN + sum(_TITLE + _ROW * len(panel.bars) + _GAP for panel in shown)
    svg = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {_WIDTH} {height}",
            "role": "img",
            "font-family": "ui-sans-serif, system-ui, sans-serif",
            "font-size": "14",
        },
    )
    ET.SubElement(svg, "title").text = "Measured: " + "; ".join(panel.title for panel in shown)
    ET.SubElement(svg, "style").text = _STYLE
    top = _MARGIN
    for panel in shown:
        top = _draw_panel(svg, panel, top, set(results.ours)) + _GAP
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _draw_panel(svg: ET.Element, panel: Panel, top: int, ours: set[str]) -> int:
    """Draw below ``top``; returns where it ends."""
    _text(svg, _MARGIN, top + 16, panel.title, "title")
    _text(svg, _WIDTH - _MARGIN, top + 16, panel.note, "quiet", anchor="end")
    top += _TITLE
    scale = _PLOT / (max(max(bar.value, bar.high) for bar in panel.bars) or 1)
    left = _MARGIN + _NAMES
    for bar in panel.bars:
        middle = top + _ROW / 2
        _text(svg, left - 8, middle + 5, bar.name, anchor="end")
        size = {"x": left, "y": middle - _BAR / 2, "width": bar.value * scale, "height": _BAR, "rx": 2}
        _shape(svg, "rect", "bar ours" if bar.name in ours else "bar", size)
        if bar.high > bar.low:
            ends = {"x1": left + bar.low * scale, "x2": left + bar.high * scale, "y1": middle, "y2": middle}
            _shape(svg, "line", "whisker", ends)
        _text(svg, left + max(bar.value, bar.high) * scale + 8, middle + 5, bar.label)
        top += _ROW
    return top


def _shape(svg: ET.Element, kind: str, style: str, numbers: dict[str, float]) -> None:
    ET.SubElement(svg, kind, {"class": style, **{name: f"{value:.1f}" for name, value in numbers.items()}})


def _text(svg: ET.Element, x: float, y: float, text: str, style: str = "", *, anchor: str = "start") -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor}
    ET.SubElement(svg, "text", {**place, **({"class": style} if style else {})}).text = text


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False, exists=True))
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), required=True, help="Where the picture goes.")
def chart(files: tuple[Path, ...], out: Path) -> None:
    """
    Draw the results of one or more runs of the benchmark, taken together.

    \b
    Examples:
      python benchmarks/chart.py benchmarks/results.json --out benchmarks/results.svg
      python benchmarks/chart.py one.json two.json --out both.svg
    """  # noqa: D301 - click's own mark
    out.write_text(draw(load(files)))
    click.echo(f"written: {out}")


if __name__ == "__main__":
    run_command(chart, "chart")
