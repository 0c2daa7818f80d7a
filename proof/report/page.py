"""The page: one HTML document that needs nothing but itself."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from proof.report import figures
from proof.report.cells import all_cells
from proof.report.marks import addresses, mark
from proof.report.matrix import fault_matrix
from proof.report.results import Standing
from proof.report.rows import TITLES
from proof.report.summary import Summary
from proof.report.times import say_seconds
from protocol.markup import Child, Markup, document, tag

_LISTED = 12


def page(summary: Summary) -> str:
    """The whole document."""
    where = addresses(summary.cells)
    main = tag(
        "main",
        _headline(summary),
        tag("p", summary.outdated, class_="notice") if summary.outdated else None,
        _to_look_at(summary, where),
        figures.bars(summary),
        fault_matrix(summary, where),
        figures.recoveries(summary),
        figures.stalls(summary),
        tag("div", figures.anomalies(summary), figures.fired(summary), class_="pair"),
        all_cells(summary, where),
        figures.provenance(summary),
    )
    title = f"{summary.verdict.capitalize()} - proof of exactly once"
    return document(title, _asset("page.css"), _asset("page.js"), main)


@cache
def _asset(name: str) -> Markup:
    """A file of this package; it is ours, so it is markup."""
    return Markup(files(__package__).joinpath(name).read_text("utf-8"))


def _headline(summary: Summary) -> Markup:
    lead, _, rest = summary.headline.partition(": ")
    began = min((one.began for one in summary.provenance if one.began), default="")
    eyebrow = " · ".join(filter(None, ("Proof of exactly once", began[:16].replace("T", " "))))
    cells = summary.cell_standings
    tiles = [_tile(str(standing), standing.label, cells[standing]) for standing in Standing]
    tiles.append(_tile("idle", "rows not run", len(summary.rows_not_run)))
    title = tag("h1", tag("b", lead, class_=f"verdict {summary.verdict}"), tag("span", rest[:1].upper() + rest[1:]))
    return tag("header", tag("p", eyebrow, class_="eyebrow"), title, _scope(summary), tag("ul", tiles, class_="tiles"))


def _scope(summary: Summary) -> Markup:
    """How much was done, in one line."""
    totals = summary.totals
    of = len(TITLES)
    parts = [
        f"{len(summary.results):,} runs with seeds {', '.join(map(str, summary.seeds))}"
        if summary.results
        else "0 runs",
        f"{of - len(summary.rows_not_run)} of {of} rows",
        f"{totals.get('inputs', 0):,} records",
        f"{totals.get('committed_transactions', 0):,} transactions committed",
        f"{totals.get('aborted_transactions', 0):,} aborted",
        f"{say_seconds(summary.seconds)} of faults",
    ]
    return tag("p", " · ".join(parts), class_="scope")


def _tile(kind: str, label: str, count: int) -> Markup:
    zero = " zero" if not count else ""
    return tag("li", tag("b", f"{count:,}"), tag("span", label), class_=f"tile {kind}{zero}")


def _to_look_at(summary: Summary, where: dict[tuple[str, str], str]) -> Markup | None:
    """The cells that are not as they should be, each with its first reason."""
    order = (Standing.VIOLATED, Standing.INCONCLUSIVE)
    cells = [cell for standing in order for cell in summary.cells if cell.standing is standing]
    if not cells:
        return None
    items: list[Child] = []
    for cell in cells[:_LISTED]:
        decisive = [result for result in cell.results if result.standing is cell.standing]
        names = dict.fromkeys(one.name for result in decisive for one in result.anomalies)
        reasons = [reason for result in decisive for reason in result.reasons]
        text = ", ".join(names) or (reasons[0] if reasons else "no anomaly was handed on")
        link = tag("a", cell.name, href=f"#{where[cell.row, cell.name]}")
        seeds = ", ".join(str(result.seed) for result in decisive)
        items.append(tag("li", mark(cell.standing, cell.standing.label), link, tag("span", f"seed {seeds}: {text}")))
    if len(cells) > _LISTED:
        items.append(tag("li", f"… and {len(cells) - _LISTED:,} more, in the matrix below"))
    return tag("section", tag("h2", "To look at", id="look-title"), tag("ul", items, class_="look"), id="look")
