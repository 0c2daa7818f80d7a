"""The summary as Markdown, for a page of the documentation or the summary of a build."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from proof.report.marks import SIGNS
from proof.report.results import UNKNOWN, Standing
from proof.report.rows import TITLES
from proof.report.summary import Cell, Strip, Summary
from proof.report.times import say_seconds
from protocol.markup import visible

_SIGNS = {**SIGNS, Standing.CONTROL: "⊗"}
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
    """The text in one line, with everything that Markdown or HTML would read as a mark taken for itself."""
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
        (row, TITLES.get(row, "not in the matrix"), "; ".join(map(_cell, cells)) or "not run")
        for row, cells in sorted(by_row.items())
    ]


def _origins(summary: Summary) -> list[tuple[str, ...]]:
    """What the runs were made with, a row for each that differs."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for one in summary.results:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(one.versions.items()))
        kernel = f"{one.kernel or UNKNOWN}{'' if one.current else ' (another than today)'}"
        groups.setdefault((one.commit or UNKNOWN, kernel, versions or UNKNOWN), []).append(one.began[:10])
    dates = {origin: sorted({day for day in days if day}) for origin, days in groups.items()}
    told = {origin: " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "-" for origin, days in dates.items()}
    return [(f"{len(days):,}", told[origin], *origin) for origin, days in sorted(groups.items())]


def _cell(cell: Cell) -> str:
    return f"{cell.name.removeprefix(f'{cell.row}-')} {''.join(_SIGNS[one.standing] for one in cell.results)}"


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
