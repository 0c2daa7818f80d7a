"""An X-ray on the terminal: a coloured strip per partition, as wide as there is room; pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from pipeline.xray import words
from pipeline.xray.columns import ORDER, Column, binned
from pipeline.xray.model import Kind, Strip
from pipeline.xray.picture import Xray

_SIGNS = {
    Kind.PLAIN: ("▒", "blue"),
    Kind.COMMITTED: ("█", "green"),
    Kind.ABORTED: ("░", "red"),
    Kind.OPEN: ("?", "yellow"),
    Kind.COMMIT_MARKER: ("│", "bold"),
    Kind.ABORT_MARKER: ("┆", "bold red"),
}
_NOTHING = ("·", "dim")
_LABEL = 12
_LEAST = 20
_WIDEST_OFFSET = 3


def lines(xray: Xray, width: int) -> Iterator[Text]:
    """A strip and a line of numbers for each partition of each topic, and what the signs mean."""
    room = max(_LEAST, width - _LABEL - 1)
    for partition, indices in xray.by_partition().items():
        yield Text(f"partition {partition}", "bold")
        for strip in (xray.strips[at] for at in indices):
            drawn = Text(f"{xray.role(strip)[: _LABEL - 1]:<{_LABEL}}")
            for sign, style in cells(strip, room):
                drawn.append(sign, style)
            yield drawn
            yield Text(f"{'':<{_LABEL}}{_numbers(strip)}", "dim")
    legend = Text()
    for kind in ORDER:
        sign, style = _SIGNS[kind]
        legend.append(sign, style).append(f" {kind.words}  ")
    yield legend
    for one in xray.not_told:
        yield Text(f"not told: {one}", "cyan")


def cells(strip: Strip, room: int) -> list[tuple[str, str]]:
    """
    A sign and its style for each cell, ``room`` at most.

    Where several offsets share a cell, an open one counts before all others, then whatever has the most offsets.
    """
    span = strip.until - strip.start
    if not span:
        return []
    count = min(span, room)
    each = min(_WIDEST_OFFSET, room // span) if span <= room else 1
    size = -(-span // count)
    found = [_NOTHING] * -(-span // size)
    for column in binned(strip, count):
        found[(column.start - strip.start) // size] = _SIGNS[_foremost(column)]
    return [one for one in found for _ in range(each)]


def _foremost(column: Column) -> Kind:
    counts = column.offsets
    if counts[Kind.OPEN]:
        return Kind.OPEN
    return max(counts, key=lambda kind: (counts[kind], -ORDER.index(kind)))


def _numbers(strip: Strip) -> str:
    counts, log = strip.counts(), strip.log
    parts = [f"{counts[kind]:,} {kind.words}" for kind in ORDER if counts[kind] and not kind.marker]
    if (strip.start, strip.until) != (log.first, log.end):
        parts.append(f"of {words.span(strip.start, strip.until)}")
    parts += [f"log start {log.first:,}", f"LSO {log.last_stable:,}", f"HW {log.end:,}"]
    return " · ".join(parts if strip.group is None else [*parts, f"group {strip.group:,}"])
