"""Throughput and latency against partitions as a picture: an SVG that reads on light and dark pages."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from xml.etree import ElementTree as ET

from scale.numbers import Numbers
from scale.scenario import Scenario
from scale.simulate import Report, simulate

PARTITIONS = (4, 16, 64, 256, 1000)
EXECUTORS = (4, 16, 64)
RATE = 100_000
_BROKERS = 6
_WIDTH, _HEIGHT, _PLOT, _TOP, _LEFT, _GAP = 860, 330, 320, 56, 70, 110
_TALL = _HEIGHT - _TOP - 50
_STYLE = """
    .a { stroke: #0969da } .b { stroke: #bc4c00 } .c { stroke: #1a7f37 }
    polyline { fill: none; stroke-width: 2 } circle { fill: #ffffff; stroke-width: 2 }
    .grid { stroke: #d0d7de; stroke-width: 1 }
    text { fill: #1f2328 } .title { font-weight: 600 } .quiet { fill: #6e7781; font-size: 12px }
    @media (prefers-color-scheme: dark) {
      .a { stroke: #4493f8 } .b { stroke: #f0883e } .c { stroke: #3fb950 }
      circle { fill: #0d1117 } .grid { stroke: #3d444d } text { fill: #f0f6fc } .quiet { fill: #9198a1 }
    }
"""


@dataclass(frozen=True, slots=True)
class Curve:
    """(partitions, value) of one line, and what stands at its end."""

    name: str
    points: Sequence[tuple[int, float]]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over partitions, both axes logarithmic."""

    title: str
    note: str
    curves: Sequence[Curve]


def sweep(numbers: Numbers) -> list[Panel]:
    """As fast as it goes with few and many executors, and a steady load's latency."""
    drains = [_scenario(p, e, 0.0) for e in EXECUTORS for p in PARTITIONS]
    steady = [_scenario(p, 16, RATE) for p in PARTITIONS]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        reports = list(pool.map(partial(_simulated, numbers), [*drains, *steady]))
    rates = [
        Curve(
            f"{executors} executors",
            [(one.partitions, report.records_per_s) for one, report in _of(executors, drains, reports)],
        )
        for executors in EXECUTORS
    ]
    waits = list(zip(PARTITIONS, reports[len(drains) :], strict=True))
    latency = [
        Curve("p99", [(p, report.p99_ms) for p, report in waits if report.p99_ms]),
        Curve("p50", [(p, report.p50_ms) for p, report in waits if report.p50_ms]),
    ]
    return [
        Panel("Records/s, as fast as it goes", f"one slot each, {_BROKERS} brokers", rates),
        Panel(f"Latency at {RATE:,} records/s, ms", f"16 executors, {_BROKERS} brokers", latency),
    ]


def _scenario(partitions: int, executors: int, rate: float) -> Scenario:
    """Counted once a process that holds many partitions has opened and filled all of their readers."""
    return Scenario(
        partitions=partitions,
        executors=executors,
        slots_per_executor=1,
        brokers=_BROKERS,
        rate=rate,
        seconds=1.5,
        warm_up_s=1.0 + partitions / executors / 60,
    )


def _simulated(numbers: Numbers, scenario: Scenario) -> Report:
    return simulate(scenario, numbers)


def _of(executors: int, scenarios: Sequence[Scenario], reports: Sequence[Report]) -> list[tuple[Scenario, Report]]:
    return [(one, report) for one, report in zip(scenarios, reports, strict=False) if one.executors == executors]


def draw(panels: Sequence[Panel]) -> str:
    """The SVG document, panels side by side."""
    svg = ET.Element(
        "svg",
        {
            "xmlns": "http://www.w3.org/2000/svg",
            "viewBox": f"0 0 {_WIDTH} {_HEIGHT}",
            "role": "img",
            "font-family": "ui-sans-serif, system-ui, sans-serif",
            "font-size": "14",
        },
    )
    ET.SubElement(svg, "title").text = "Simulated: " + "; ".join(panel.title for panel in panels)
    ET.SubElement(svg, "style").text = _STYLE
    for number, panel in enumerate(panels):
        _draw(svg, panel, _LEFT + number * (_PLOT + _GAP))
    ET.indent(svg)
    return ET.tostring(svg, encoding="unicode") + "\n"


def _draw(svg: ET.Element, panel: Panel, left: int) -> None:
    values = [value for curve in panel.curves for _, value in curve.points]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    high = max(high, low + 1)
    first, last = math.log10(PARTITIONS[0]), math.log10(PARTITIONS[-1])

    def x(partitions: float) -> float:
        return left + (math.log10(partitions) - first) / (last - first) * (_PLOT - 80)

    def y(value: float) -> float:
        return _TOP + _TALL - (math.log10(value) - low) / (high - low) * _TALL

    _text(svg, left, 20, panel.title, "title")
    _text(svg, left, 38, panel.note, "quiet")
    for power in range(low, high + 1):
        _line(svg, left, y(10**power), x(PARTITIONS[-1]), y(10**power))
        _text(svg, left - 8, y(10**power) + 4, _short(10**power), "quiet", anchor="end")
    for partitions in PARTITIONS:
        _text(svg, x(partitions), _TOP + _TALL + 18, f"{partitions:,}", "quiet", anchor="middle")
    _text(svg, (left + x(PARTITIONS[-1])) / 2, _TOP + _TALL + 38, "partitions", "quiet", anchor="middle")
    ends = _apart([y(curve.points[-1][1]) for curve in panel.curves])
    for style, curve, end in zip("abc", panel.curves, ends, strict=False):
        at = [(x(partitions), y(value)) for partitions, value in curve.points]
        ET.SubElement(svg, "polyline", {"class": style, "points": " ".join(f"{a:.1f},{b:.1f}" for a, b in at)})
        for (a, b), (partitions, value) in zip(at, curve.points, strict=True):
            dot = ET.SubElement(svg, "circle", {"class": style, "cx": f"{a:.1f}", "cy": f"{b:.1f}", "r": "3.5"})
            ET.SubElement(dot, "title").text = f"{curve.name}, {partitions:,} partitions: {value:,.0f}"
        _text(svg, at[-1][0] + 10, end + 4, curve.name, "quiet")


def _apart(heights: Sequence[float], room: float = 15.0) -> list[float]:
    """The same heights, moved down where two labels would cover each other."""
    found, last = dict.fromkeys(range(len(heights)), 0.0), -math.inf
    for number in sorted(found, key=lambda one: heights[one]):
        last = found[number] = max(heights[number], last + room)
    return list(found.values())


def _short(value: float) -> str:
    for size, name in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{name}"
    return f"{value:g}"


def _line(svg: ET.Element, *ends: float) -> None:
    names = ("x1", "y1", "x2", "y2")
    ET.SubElement(svg, "line", {"class": "grid", **{n: f"{e:.1f}" for n, e in zip(names, ends, strict=True)}})


def _text(svg: ET.Element, x: float, y: float, text: str, style: str, *, anchor: str = "start") -> None:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "class": style}
    ET.SubElement(svg, "text", place).text = text
