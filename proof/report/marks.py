"""Small pieces that several parts of the page share: marks, addresses of cells, tables, times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from proof.report.results import Result, Standing
from proof.report.summary import Cell
from protocol.markup import Child, Markup, tag

SIGNS = {Standing.PROVEN: "✓", Standing.VIOLATED: "✗", Standing.INCONCLUSIVE: "?", Standing.CONTROL: "✗"}
SIGNS |= {Standing.OUTDATED: "◌", Standing.NOT_APPLICABLE: "○"}


def mark(standing: Standing, text: str) -> Markup:
    """A sign with its meaning as text: shape and words tell, colour only helps."""
    return tag("span", SIGNS[standing], class_=f"mark {standing}", role="img", aria_label=text, title=text)


def marks(results: Iterable[Result]) -> Markup:
    """A mark per seed, in their order."""
    told = [mark(result.standing, f"seed {result.seed}: {result.standing.label}") for result in results]
    return tag("span", told, class_="marks")


def address(cell: Cell, taken: set[str]) -> str:
    """An id for the page that is made of the cell's name and that nothing in ``taken`` has; it is added there."""
    base = "cell-" + (re.sub(r"[^a-zA-Z0-9]+", "-", cell.name).strip("-")[:80] or "unnamed")
    found, number = base, 1
    while found in taken:
        number += 1
        found = f"{base}-{number}"
    taken.add(found)
    return found


def addresses(cells: Sequence[Cell]) -> dict[tuple[str, str], str]:
    """Where each cell stands on the page, by row and name."""
    taken: set[str] = set()
    return {(cell.row, cell.name): address(cell, taken) for cell in cells}


def table(caption: str, head: Sequence[Child], rows: Iterable[Sequence[Child]], numbers: Sequence[int] = ()) -> Markup:
    """A table whose first column names its rows; the columns in ``numbers`` hold numbers. Wide ones scroll sideways."""

    def kind(at: int) -> str | None:
        return "number" if at in numbers else None

    def line(cells: Sequence[Child]) -> Markup:
        first, *rest = cells
        others = [tag("td", cell, class_=kind(at)) for at, cell in enumerate(rest, 1)]
        return tag("tr", tag("th", first, scope="row"), others)

    heads = [tag("th", cell, scope="col", class_=kind(at)) for at, cell in enumerate(head)]
    told = tag("caption", caption, class_="unseen")
    body = tag("table", told, tag("thead", tag("tr", heads)), tag("tbody", [line(row) for row in rows]))
    return tag("div", body, class_="wide", role="region", aria_label=caption, tabindex=0)


def section(name: str, title: str, *children: Child) -> Markup:
    """A part of the page with a heading that it is known by."""
    heading = tag("h2", title, id=f"{name}-title")
    return tag("section", heading, children, id=name, aria_labelledby=f"{name}-title")


def hint(*children: Child) -> Markup:
    """How to read what follows, in a sentence or two."""
    return tag("p", children, class_="hint")
