"""The live view as HTML: the whole page, and its parts that change; pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment

from brew.html import Markup, templates
from brew.names import STEPS
from brew.preflight import Finding, Severity, worst_first
from operations import labels
from operations.ui.model import KEPT, STATES, UNHEALTHY, Row, View
from operations.xray import render
from operations.xray.model import ORDER, Column, Strip, columns

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_CELLS = ("p", "state", "does", "rate", "left", "position", "last", "tail")
_TILES = ("rate", "left", "states", "outcomes", "proof", "preflight")
_MARKED = ("flow", "tail", "proof", "preflight")
_TAIL_WIDE, _TAIL_HIGH, _MOST_COLUMNS = 480, 16, 120
_LEAST_WIDE, _LEAST_SHARE, _EDGE = 1.4, 0.1, 6


def parts(view: View) -> dict[str, Markup]:
    """Return element id -> element, for everything that changes while a page is open."""
    macros = _templates().get_template("parts.html").make_module({"view": view, "totals": view.totals})

    def part(macro: str, *arguments: Any) -> Markup:
        return Markup(getattr(macros, macro)(*arguments))

    return (
        {name: part(name) for name in ("when", "badge")}
        | {f"lamp-{name}": part("lamp", name, source) for name, source in view.source_statuses.items()}
        | {f"mark-{name}": part("mark", name) for name in _MARKED}
        | {f"tile-{name}": part(f"tile_{name}") for name in _TILES}
        | {name: part(name) for name in ("unhealthy", "notes")}
        | {f"r{row.partition}-{name}": part(f"row_{name}", row) for row in view.rows for name in _CELLS}
        | {name: part(name) for name in ("transactions", "proof", "preflight")}
    )


def page(view: View, parts: Mapping[str, Markup], position: str) -> str:
    """Return the whole document; ``position`` is where its event stream begins."""
    return _templates().get_template("page.html").render(view=view, parts=parts, position=position)


@cache
def style() -> str:
    """Return the X-ray's colours and patterns, then the page's own."""
    return str(render.asset("strips.css")) + asset("page.css")  # adding to Markup would escape the quotes


@cache
def asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


@cache
def _templates() -> Environment:
    helpers = (by_severity, command, other_checks, spark_points, step_boxes, steps_title, tail_boxes, worst_severity)
    names: dict[str, Any] = {helper.__name__: helper for helper in helpers}
    names |= {"CELLS": _CELLS, "ORDER": ORDER, "STATES": STATES, "STEPS": STEPS, "UNHEALTHY": UNHEALTHY}
    return templates(__package__, labels=labels, patterns=render.patterns(), **names)


def command(row: Row, view: View) -> str:
    """Return the command to run next; it changes nothing."""
    bootstrap = f"--bootstrap {view.names.bootstrap}"
    if row.state in {"blocked", "fenced"}:
        return f"brew doctor {bootstrap}"
    return f"brew lag {bootstrap} --input {view.names.input} --group {shlex.quote(view.names.group)}"


def spark_points(values: Sequence[float], wide: int, high: int) -> list[str]:
    """Return a line over time, the newest value at the right, zero at the bottom; `KEPT` values fill the width."""
    top = max(values, default=0.0) or 1.0
    step, count = wide / (KEPT - 1), len(values)
    return [
        f"{wide - step * (count - 1 - index):.1f},{high - 1 - (high - 2) * value / top:.1f}"
        for index, value in enumerate(values)
    ]


def step_boxes(seconds: Mapping[str, float], wide: int) -> Iterable[tuple[str, str, str]]:
    """Yield name, left edge and width of each of the six steps; all of equal width if no time is known."""
    known = {name: max(0.0, seconds.get(name, 0.0)) for name in STEPS}
    total, x = sum(known.values()), 0.0
    for name, value in known.items():
        width = wide * value / total if total else wide / len(known)
        yield name, f"{x:.1f}", f"{width:.1f}"
        x += width


def steps_title(seconds: Mapping[str, float]) -> str:
    known = [f"{name} {labels.seconds(max(0.0, seconds[name]))}" for name in STEPS if name in seconds]
    return ", ".join(known) or "no step reported yet"


def tail_boxes(strip: Strip, last: int) -> dict[str, Any]:
    """Return a log's last offsets, right-aligned, at a scale at which ``last`` of them fill the width."""
    unit = _TAIL_WIDE / max(1, last)

    def x(offset: int) -> float:
        return max(0.0, _TAIL_WIDE - unit * (strip.until - offset))

    def boxes(column: Column) -> list[tuple[str, str, str, str, str]]:
        width = unit * (column.end - column.start)
        edge = " edge" if column.run is not None and width > _EDGE else ""
        left, wide = f"{x(column.start):.1f}", f"{max(_LEAST_WIDE, width):.1f}"
        return [
            (f"{piece.kind}{edge}", left, f"{_TAIL_HIGH * above:.1f}", wide, f"{_TAIL_HIGH * share:.1f}")
            for piece, above, share in column.stacked(_LEAST_SHARE)
        ]

    waiting = strip.log.last_stable < strip.log.end
    return {
        "wide": _TAIL_WIDE,
        "high": _TAIL_HIGH,
        "begin": f"{x(strip.start):.1f}",
        "width": f"{_TAIL_WIDE - x(strip.start):.1f}",
        "columns": [(labels.of_column(column), boxes(column)) for column in columns(strip, _MOST_COLUMNS)],
        "stable": f"{x(max(strip.start, strip.log.last_stable)):.1f}" if waiting else None,
    }


def worst_severity(findings: Sequence[Finding]) -> Severity:
    return worst_first(findings)[0].severity if findings else Severity.OK


def other_checks(findings: Sequence[Finding], worst: Severity) -> str:
    counts = {severity: sum(finding.severity is severity for finding in findings) for severity in Severity}
    return ", ".join(labels.checks(severity, n) for severity, n in counts.items() if n and severity is not worst)


def by_severity(findings: Sequence[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Return the passed checks, and the others with the worst first."""
    fine = [finding for finding in findings if finding.severity is Severity.OK]
    return fine, worst_first(finding for finding in findings if finding.severity is not Severity.OK)
