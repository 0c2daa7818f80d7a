"""The fault matrix: every row, its cells, and a mark per seed."""

from __future__ import annotations

from collections.abc import Iterable

from proof.report.marks import SIGNS, hint, marks, section
from proof.report.results import Standing
from proof.report.rows import MATRIX, TITLES, Row, Section
from proof.report.summary import Cell, Summary
from proof.report.times import Times, say_seconds
from protocol.markup import Markup, tag

_FILTERS = ("all", *Standing, "not-run")
_READERS = (
    "A cell's name ends in its reader, connector or direct, and in -spark behind that where Spark ran it. Without "
    "-spark the pipeline is one process, and the connector's ranges are read without Spark; all share the six steps."
)
_LABELS = {"all": "all", "control": "controls", "not-run": "not run"}


def fault_matrix(summary: Summary, where: dict[tuple[str, str], str]) -> Markup:
    """``where`` holds the address of each cell on the page."""
    by_row: dict[str, list[Cell]] = {}
    for cell in summary.cells:
        by_row.setdefault(cell.row, []).append(cell)
    others = tuple(Row(name, "not in the matrix") for name in sorted(by_row.keys() - TITLES.keys()))
    sections = [*MATRIX, Section("Others", others)] if others else MATRIX
    heads = [tag("th", text, scope="col") for text in ("Row", "Fault and its cells", "Slowest / bound")]
    table = tag(
        "table",
        tag("caption", "Fault matrix", class_="unseen"),
        tag("thead", tag("tr", heads)),
        [_group(one, by_row, where) for one in sections],
        class_="matrix",
    )
    return section("matrix", "Fault matrix", _legend(summary), _filter(), table)


def _legend(summary: Summary) -> Markup:
    signs = [
        (tag("span", SIGNS[standing], class_=f"mark {standing}", aria_hidden="true"), " ", standing.label)
        for standing in Standing
    ]
    seeds = ", ".join(map(str, summary.seeds)) or "none"
    items = [tag("li", sign) for sign in signs]
    direct = any(result.path.startswith(("direct ", "connector ")) for cell in summary.cells for result in cell.results)
    readers = hint(_READERS) if direct else ""
    return Markup(tag("ul", items, class_="legend") + hint(f"One mark per seed, in the order {seeds}.") + readers)


def _filter() -> Markup:
    """Hidden until the script shows it: without the script it would do nothing."""
    choices = [
        tag(
            "label",
            tag("input", type="radio", name="standing", value=value, checked=value == "all"),
            tag("span", _LABELS.get(value, value)),
        )
        for value in _FILTERS
    ]
    legend = tag("legend", "Show", class_="unseen")
    told = tag("output", id="shown", aria_live="polite")
    return tag("form", tag("fieldset", legend, choices), told, id="filter", hidden=True)


def _group(one: Section, by_row: dict[str, list[Cell]], where: dict[tuple[str, str], str]) -> Markup:
    title = tag("tr", tag("th", one.title, colspan=3, scope="rowgroup"), class_="group")
    return tag("tbody", title, [_row(row, by_row.get(row.name, []), where) for row in one.rows])


def _row(row: Row, cells: list[Cell], where: dict[tuple[str, str], str]) -> Markup:
    title = tag("div", row.title, class_="title")
    if not cells:
        idle = tag("div", "not run", class_="idle")
        told = (tag("td", tag("div", title, idle, class_="fault")), tag("td"))
        return tag("tr", tag("th", row.name, scope="row"), told, class_="empty", data_standing="not-run")
    chips = tag("ul", [_chip(cell, where[cell.row, cell.name]) for cell in cells], class_="cells")
    told = (tag("td", tag("div", title, chips, class_="fault")), tag("td", _slowest(cells), class_="slowest"))
    return tag("tr", tag("th", row.name, scope="row"), told)


def _chip(cell: Cell, address: str) -> Markup:
    short = cell.name.removeprefix(f"{cell.row}-") or cell.name
    name = tag("span", short, class_="name")
    link = tag("a", name, marks(cell.results), href=f"#{address}", class_=f"chip {cell.standing}")
    return tag("li", link, data_standing=cell.standing)


def _slowest(cells: Iterable[Cell]) -> list[Markup]:
    """A line per bound of the row."""
    by_bound: dict[float, list[Times]] = {}
    for cell in cells:
        for result in cell.results:
            if result.bound_s is not None:
                by_bound.setdefault(result.bound_s, []).append(Times.recoveries([result]))
    lines = []
    for bound, times in sorted(by_bound.items()):
        measured = [one.longest for one in times if one.count]
        if measured:
            late = "late" if max(measured) > bound else None
            text = f"{say_seconds(max(measured))} / {bound:g} s"
            lines.append(tag("div", text, " (late)" if late else None, class_=late))
    return lines
