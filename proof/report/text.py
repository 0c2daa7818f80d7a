"""The summary as JSON and as Markdown; pure."""

from __future__ import annotations

import dataclasses
import html
import math
import re
from collections.abc import Iterable, Sequence

from brew.html import visible
from proof.report.results import TITLES, UNKNOWN, Result, Standing
from proof.report.summary import Cell, Strip, Summary, say_seconds


def document(summary: Summary) -> dict[str, object]:
    """Durations that never came are null; `matrix` holds the cells that were run, `rows` every row of the matrix."""
    return {
        "verdict": summary.verdict.value,
        "headline": summary.headline,
        "cells": _counts(len(summary.cells), summary.cell_standings),
        "runs": _counts(len(summary.results), summary.run_standings),
        "kernel": summary.kernel,
        "outdated": summary.outdated,
        "seeds": summary.seeds,
        "seconds": round(summary.seconds, 3),
        "totals": summary.totals,
        "bars": [dataclasses.asdict(bar) for bar in summary.bars],
        "rows": [{"row": row, "title": title, "run": row in summary.rows_run} for row, title in sorted(TITLES.items())],
        "matrix": [_cell(cell) for cell in summary.cells],
        "recovery_s": [_strip(strip) for strip in summary.recoveries],
        "stall_s": [_strip(strip) for strip in summary.stalls],
        "fired": [dataclasses.asdict(demand) for demand in summary.demands],
        "anomalies": [
            {"name": name, "unexpected": real, "with_controls": every}
            for name, (real, every) in summary.anomalies.items()
        ],
        "campaigns": [dataclasses.asdict(campaign) for campaign in summary.provenance],
    }


def _counts(total: int, standings: dict[Standing, int]) -> dict[str, int]:
    return {"total": total, **{standing.value: count for standing, count in standings.items()}}


def _cell(cell: Cell) -> dict[str, object]:
    runs = [
        {
            "seed": result.seed,
            "standing": result.standing.value,
            "verdict": result.verdict.value,
            "expected": result.expected.value,
            "reasons": result.reasons,
            "began": result.began,
            "commit": result.commit or UNKNOWN,
            "kernel": result.kernel or UNKNOWN,
            "current": result.current,
            "versions": result.versions,
            "anomalies": len(result.anomalies),
            "replay": result.replay,
        }
        for result in cell.results
    ]
    return {"cell": cell.name, "row": cell.row, "standing": cell.standing.value, "runs": runs}


def _strip(strip: Strip) -> dict[str, object]:
    times = strip.times
    return {
        "row": strip.row,
        "path": strip.path,
        "count": times.count,
        "never": times.never,
        "p50": _finite(times.quantile(0.50)),
        "p95": _finite(times.quantile(0.95)),
        "max": _finite(times.longest),
        "bounds_s": list(strip.bounds),
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


_LEGEND = (
    "A sign per seed: ✓ proven, ✗ violated, ? inconclusive, ⊗ a control violated as expected, "
    "◌ held with another kernel than today's, ○ not applicable."
)


def markdown(summary: Summary) -> str:
    """Headline, bars, matrix and times; whatever the results hold stays text."""
    seeds = ", ".join(map(str, summary.seeds)) or "none"
    not_run = ", ".join(summary.rows_not_run) or "none"
    parts = [
        f"**{plain(summary.headline)}**",
        *([plain(summary.outdated)] if summary.outdated else []),
        f"{len(summary.results):,} runs, seeds {seeds}. Rows not run: {not_run}.",
        _table(("runs", "dates", "commit", "kernel", "versions"), _origins(summary)),
        _table(
            ("bar", "wanted", "measured", "result"),
            [(bar.title, bar.wanted, bar.measured, bar.met) for bar in summary.bars],
        ),
        _LEGEND,
        _table(("row", "fault", "cells"), _rows(summary)),
    ]
    if summary.recoveries:
        parts += ["From the heal to the first new commit:", _times(summary.recoveries)]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """The text in one line, with Markdown and HTML characters escaped."""
    line = " ".join(visible(text).split())
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", html.escape(line, quote=False))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *[[plain(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rows(summary: Summary) -> list[tuple[str, str, str]]:
    by_row: dict[str, list[Cell]] = {name: [] for name in TITLES}
    for cell in summary.cells:
        by_row.setdefault(cell.row, []).append(cell)
    return [
        (row, TITLES.get(row, "not in the matrix"), "; ".join(map(_markdown_cell, cells)) or "not run")
        for row, cells in sorted(by_row.items())
    ]


def _origins(summary: Summary) -> list[tuple[str, ...]]:
    """What the runs were made with, a row for each that differs."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for result in summary.results:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items()))
        kernel = f"{result.kernel or UNKNOWN}{'' if result.current else ' (another than today)'}"
        groups.setdefault((result.commit or UNKNOWN, kernel, versions or UNKNOWN), []).append(result.began[:10])
    dates = {origin: sorted({day for day in days if day}) for origin, days in groups.items()}
    spans = {origin: " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "-" for origin, days in dates.items()}
    return [(f"{len(days):,}", spans[origin], *origin) for origin, days in sorted(groups.items())]


def _markdown_cell(cell: Cell) -> str:
    return f"{cell.short_name} {''.join(map(_sign, cell.results))}"


def _sign(result: Result) -> str:
    return "⊗" if result.standing is Standing.CONTROL else result.standing.sign


def _times(strips: Iterable[Strip]) -> str:
    rows = [
        (
            strip.row,
            strip.path,
            f"{strip.times.count:,}",
            say_seconds(strip.times.quantile(0.50)),
            say_seconds(strip.times.quantile(0.95)),
            say_seconds(strip.times.longest),
            " / ".join(f"{bound:g} s" for bound in strip.bounds) or "-",
        )
        for strip in strips
    ]
    return _table(("row", "path", "times", "p50", "p95", "longest", "bound"), rows)
