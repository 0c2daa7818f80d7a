"""Render the summary as a page (`page.html`), as JSON and as Markdown; pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, ClassVar

import jinja2

from brew import html
from brew.html import visible
from proof.report.results import MATRIX, TITLES, UNKNOWN, Provenance, Result, Standing
from proof.report.summary import Cell, Strip, Summary, Times, seconds_text

_KEPT, _LISTED = 25, 12
_NO_TITLE = "not in the matrix"
_LABELS = {"all": "all", "control": "controls", "not-run": "not run"}
_CONTROLS = "These break the protocol on purpose. They must be caught, or the experiment around them is not believed."
_OUTDATED = "These were proven with another kernel than today's, so they show nothing about today's."
_UNCLEAR = "These have no verdict, for the reasons that each cell gives."
_SENSELESS = "There is nothing to break here, for the reason that each cell gives."
_PARTS = (
    ("violated", "Violated cells", Standing.VIOLATED, "The promise was broken here."),
    ("inconclusive", "Inconclusive cells", Standing.INCONCLUSIVE, _UNCLEAR),
    ("controls", "Positive controls", Standing.CONTROL, _CONTROLS),
    ("outdated", "Cells of another kernel", Standing.OUTDATED, _OUTDATED),
    ("proven", "Proven cells", Standing.PROVEN, "Open a cell for its figures and the command that runs it again."),
    ("senseless", "Not applicable", Standing.NOT_APPLICABLE, _SENSELESS),
)
_LEGEND = (
    "A sign per seed: ✓ proven, ✗ violated, ? inconclusive, ⊗ a control violated as expected, "
    "◌ held with another kernel than today's, ○ not applicable."
)


@dataclass(frozen=True, slots=True)
class Axis:
    """A logarithmic axis from 10^low to 10^high seconds, shared by all strips of a table; positions their parts."""

    low: int
    high: int

    WIDTH: ClassVar[int] = 400
    HEIGHT: ClassVar[int] = 30
    MARGIN: ClassVar[int] = 8
    STEP: ClassVar[int] = 4
    LEVELS: ClassVar[int] = 7

    @classmethod
    def over(cls, strips: Iterable[Strip]) -> Axis:
        """Return an axis for all strips, at least from 0.1 s to 10 s and never below a millisecond."""
        values = [value for strip in strips for value in (*strip.times.seconds, *strip.bounds) if value > 0]
        low = min([-1, *(math.floor(math.log10(max(value, 0.001))) for value in values)])
        return cls(low, max([1, *(math.ceil(math.log10(value)) for value in values)]))

    def x(self, seconds: float) -> float:
        decades = math.log10(max(seconds, 10.0**self.low)) - self.low
        return self.MARGIN + (self.WIDTH - 2 * self.MARGIN) * decades / (self.high - self.low)

    def _decades(self) -> Iterator[tuple[int, float]]:
        return ((power, 10.0**power) for power in range(self.low, self.high + 1))

    def labels(self) -> Iterator[tuple[float, str, str]]:
        """Yield position, anchor and text of the numbers above the strips."""
        for power, decade in self._decades():
            anchor = {self.low: "start", self.high: "end"}.get(power, "middle")
            yield {"start": 0, "end": self.WIDTH}.get(anchor, round(self.x(decade), 1)), anchor, f"{decade:g} s"

    def uprights(self, strip: Strip) -> Iterator[tuple[str, str]]:
        """Yield kind and position of the vertical lines."""
        yield from (("grid", f"{self.x(decade):.1f}") for _, decade in self._decades())
        yield from (("bound", f"{self.x(bound):.1f}") for bound in strip.bounds)
        p95 = strip.times.quantile(0.95)
        if math.isfinite(p95):
            yield "p95", f"{self.x(p95):.1f}"

    def dots(self, strip: Strip) -> Iterator[tuple[int, float, bool]]:
        """Yield each dot's position, and whether it exceeds the bound; similar times are stacked, or share a dot."""
        limit = max(strip.bounds, default=math.inf)
        stacks = Counter((round(self.x(value) / self.STEP), value > limit) for value in strip.times.seconds)
        share = math.ceil(max(stacks.values(), default=0) / self.LEVELS)
        for (slot, late), count in sorted(stacks.items()):
            for level in range(math.ceil(count / share)):
                offset = (level + 1) // 2 * self.STEP * (-1 if level % 2 else 1)
                yield slot * self.STEP, self.HEIGHT / 2 + offset, late

    @staticmethod
    def text(strip: Strip, what: str) -> str:
        times = strip.times
        bound = f", bound {' or '.join(map(seconds_text, strip.bounds))}" if strip.bounds else ""
        p50, p95 = (seconds_text(times.quantile(share)) for share in (0.50, 0.95))
        return f"{what}: {times.count:,} times, p50 {p50}, p95 {p95}, longest {seconds_text(times.longest)}{bound}"


@cache
def _template() -> jinja2.Template:
    environment = html.templates(
        __package__,
        axis_over=Axis.over,
        recoveries=Times.recoveries,
        stalls=Times.stalls,
        fired=_fired,
        counted=_counted,
        facts=_facts,
        titles=TITLES,
        kept=_KEPT,
        listed=_LISTED,
        standings=tuple(Standing),
        filters=[(value, _LABELS.get(value, value)) for value in ("all", *Standing, "not-run")],
    )
    environment.filters |= {
        "seconds": seconds_text,
        "many": lambda number: f"{number:,}",
        "plain": lambda number: f"{number:g}",
        "suffixed": lambda text, suffix: text + suffix,
    }
    return environment.get_template("page.html")


def _file(name: str) -> html.Markup:
    return html.Markup(files(__package__).joinpath(name).read_text("utf-8"))


def page(summary: Summary) -> str:
    lead, _, rest = summary.headline.partition(": ")
    began = min((campaign.began for campaign in summary.provenance if campaign.began), default="")
    counts = summary.cell_standings
    by_standing = {standing: [cell for cell in summary.cells if cell.standing is standing] for standing in Standing}
    unclear = [*by_standing[Standing.VIOLATED], *by_standing[Standing.INCONCLUSIVE]]
    body = _template().render(
        summary=summary,
        where=addresses(summary.cells),
        lead=lead,
        rest=rest[:1].upper() + rest[1:],
        eyebrow=" · ".join(filter(None, ("Proof of exactly once", began[:16].replace("T", " ")))),
        scope=_scope(summary),
        seeds=", ".join(map(str, summary.seeds)) or "none",
        tiles=[
            *((str(standing), standing.label, counts[standing]) for standing in Standing),
            ("idle", "rows not run", len(summary.rows_not_run)),
        ],
        to_look_at=[(cell, _to_look_at(cell)) for cell in unclear],
        over_readers=any(result.path.startswith(("direct ", "connector ")) for result in summary.results),
        matrix=_matrix(summary),
        parts=[(name, title, text, cells) for name, title, of, text in _PARTS if (cells := by_standing[of])],
    )
    title = f"{summary.verdict.capitalize()} - proof of exactly once"
    return html.document(title, _file("page.css"), _file("page.js"), html.Markup(body))


def addresses(cells: Iterable[Cell]) -> dict[tuple[str, str], str]:
    """Return a unique id on the page for each cell, by row and name, derived from the name."""
    taken: dict[str, tuple[str, str]] = {}
    for cell in cells:
        base = "cell-" + (re.sub(r"[^a-zA-Z0-9]+", "-", cell.name).strip("-")[:80] or "unnamed")
        address, number = base, 1
        while address in taken:
            number += 1
            address = f"{base}-{number}"
        taken[address] = (cell.row, cell.name)
    return {cell: address for address, cell in taken.items()}


def _matrix(summary: Summary) -> list[tuple[str, list[tuple[str, str, list[Cell], list[tuple[float, float]]]]]]:
    """Return each section's title and rows: name, title, cells, and the slowest recovery for each bound."""
    by_row = summary.cells_by_row
    others = {row: _NO_TITLE for row in by_row if row not in TITLES}
    sections = MATRIX | ({"Others": others} if others else {})
    return [
        (part, [(row, title, cells := by_row[row], _slowest(cells)) for row, title in rows.items()])
        for part, rows in sections.items()
    ]


def _slowest(cells: Iterable[Cell]) -> list[tuple[float, float]]:
    by_bound: dict[float, list[Times]] = {}
    for cell in cells:
        for result in cell.results:
            if result.bound_s is not None and (times := Times.recoveries([result])).count:
                by_bound.setdefault(result.bound_s, []).append(times)
    return [(max(times.longest for times in measured), bound) for bound, measured in sorted(by_bound.items())]


def _scope(summary: Summary) -> str:
    totals, rows = summary.totals, len(TITLES)
    runs = f"{len(summary.results):,} runs"
    parts = (
        f"{runs} with seeds {', '.join(map(str, summary.seeds))}" if summary.results else runs,
        f"{rows - len(summary.rows_not_run)} of {rows} rows",
        f"{totals.get('inputs', 0):,} records",
        f"{totals.get('committed_transactions', 0):,} transactions committed",
        f"{totals.get('aborted_transactions', 0):,} aborted",
        f"{seconds_text(summary.seconds)} of faults",
    )
    return " · ".join(parts)


def _to_look_at(cell: Cell) -> str:
    """Return the seeds that decided the cell's standing, and their anomalies or first reason."""
    decisive = [result for result in cell.results if result.standing is cell.standing]
    names = dict.fromkeys(anomaly.name for result in decisive for anomaly in result.anomalies)
    reasons = [reason for result in decisive for reason in result.reasons]
    text = ", ".join(names) or (reasons[0] if reasons else "no anomaly was recorded")
    return f"seed {', '.join(str(result.seed) for result in decisive)}: {text}"


def _fired(result: Result) -> str:
    kinds = [*result.needed, *(kind for kind in result.fired if kind not in result.needed)]
    counts = [(f"{result.fired.get(kind, 0):,} {kind}", result.needed.get(kind)) for kind in kinds]
    return ", ".join(text if wanted is None else f"{text} ({wanted:,} needed)" for text, wanted in counts) or "-"


def _counted(result: Result) -> str:
    return ", ".join(f"{count:,} {kind.replace('_', ' ')}" for kind, count in result.counts.items()) or "-"


def _facts(campaign: Provenance) -> list[tuple[str, Any]]:
    """Return a campaign's origin, by name: what is needed to reproduce it."""
    took = "" if campaign.seconds is None else seconds_text(campaign.seconds)
    named = {"Began": campaign.began, "Took": took, "Machine": campaign.machine, "Commit": campaign.commit}
    return [*(named | {"Kernel": campaign.kernel} | campaign.versions).items()]


def document(summary: Summary) -> dict[str, object]:
    """Return the summary as a JSON object; infinite durations are null, `rows` are all rows of the matrix."""
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
    fields = ("seed", "standing", "verdict", "expected", "reasons", "began", "commit", "kernel", "current", "versions")
    runs = [
        {name: getattr(result, name) for name in fields}
        | {"commit": result.commit or UNKNOWN, "kernel": result.kernel or UNKNOWN}
        | {"anomalies": len(result.anomalies), "replay": result.replay}
        for result in cell.results
    ]
    return {"cell": cell.name, "row": cell.row, "standing": cell.standing, "runs": runs}


def _strip(strip: Strip) -> dict[str, object]:
    times = strip.times
    counts = {"row": strip.row, "path": strip.path, "count": times.count, "never": times.never}
    shares = {"p50": times.quantile(0.50), "p95": times.quantile(0.95), "max": times.longest}
    finite = {name: value if math.isfinite(value) else None for name, value in shares.items()}
    return {**counts, **finite, "bounds_s": list(strip.bounds)}


def markdown(summary: Summary) -> str:
    """Return headline, criteria, matrix and times as Markdown; text from the results is escaped."""
    seeds = ", ".join(map(str, summary.seeds)) or "none"
    not_run = ", ".join(summary.rows_not_run) or "none"
    parts = [
        f"**{plain(summary.headline)}**",
        *([plain(summary.outdated)] if summary.outdated else []),
        f"{len(summary.results):,} runs, seeds {seeds}. Rows not run: {not_run}.",
        _table(("runs", "dates", "commit", "kernel", "versions"), _origins(summary)),
        _table(("bar", "wanted", "measured", "result"), map(dataclasses.astuple, summary.bars)),
        _LEGEND,
        _table(("row", "fault", "cells"), _rows(summary)),
    ]
    if summary.recoveries:
        parts += ["From the heal to the first new commit:", _times(summary.recoveries)]
    return "\n\n".join(parts) + "\n"


def plain(text: str) -> str:
    """Return the text in one line, with Markdown and HTML characters escaped."""
    return re.sub(r"([\\`*_\[\]|~#])", r"\\\1", escape(" ".join(visible(text).split()), quote=False))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *[[plain(cell) for cell in row] for row in rows]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _rows(summary: Summary) -> list[tuple[str, str, str]]:
    def text(cell: Cell) -> str:
        standings = [result.standing for result in cell.results]
        signs = "".join("⊗" if standing is Standing.CONTROL else standing.sign for standing in standings)
        return f"{cell.short_name} {signs}"

    rows = summary.cells_by_row.items()
    return [(row, TITLES.get(row, _NO_TITLE), "; ".join(map(text, cells)) or "not run") for row, cells in rows]


def _origins(summary: Summary) -> list[tuple[str, ...]]:
    """Return a row for each distinct combination of commit, kernel and versions."""
    groups: dict[tuple[str, ...], list[str]] = {}
    for result in summary.results:
        versions = ", ".join(f"{name} {version}" for name, version in sorted(result.versions.items()))
        kernel = f"{result.kernel or UNKNOWN}{'' if result.current else ' (another than today)'}"
        groups.setdefault((result.commit or UNKNOWN, kernel, versions or UNKNOWN), []).append(result.began[:10])
    dates = {origin: sorted({day for day in days if day}) for origin, days in groups.items()}
    spans = {origin: " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "-" for origin, days in dates.items()}
    return [(f"{len(days):,}", spans[origin], *origin) for origin, days in sorted(groups.items())]


def _times(strips: Iterable[Strip]) -> str:
    rows = []
    for strip in strips:
        seconds = [seconds_text(strip.times.quantile(share)) for share in (0.50, 0.95, 1.0)]
        bounds = " / ".join(f"{bound:g} s" for bound in strip.bounds) or "-"
        rows.append((strip.row, strip.path, f"{strip.times.count:,}", *seconds, bounds))
    return _table(("row", "path", "times", "p50", "p95", "longest", "bound"), rows)
