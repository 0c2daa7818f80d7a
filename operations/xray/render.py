"""The X-ray as SVG and as an HTML page, as text and as JSON; pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import orjson
from jinja2 import Environment
from rich.text import Text

from brew import html
from brew.html import Markup, templates
from operations import labels
from operations.xray.model import ORDER, Bounds, Column, Kind, Run, Sources, Strip, Timeline, binned, columns
from operations.xray.timeline import Xray

WIDTH, LEFT, PLOT = 1000, 128, 762
MOST_COLUMNS = PLOT // 2
HIGH, MOST_STEPS = 18, 400
_ABOVE, _BELOW, _GAP, _THIN = 15, 15, 10, 7
_TOP, _LEAST, _GLYPH = 62, 1.5, 9

_SIGNS = {
    Kind.PLAIN: ("▒", "blue"),
    Kind.COMMITTED: ("█", "green"),
    Kind.ABORTED: ("░", "red"),
    Kind.OPEN: ("?", "yellow"),
    Kind.COMMIT_MARKER: ("│", "bold"),
    Kind.ABORT_MARKER: ("┆", "bold red"),
}
_NOTHING = ("·", "dim")
_LABEL, _LEAST_ROOM, _WIDEST_OFFSET = 12, 20, 3

Box = tuple[str, str, str, str, str, str]
"""Class, x, y, width and height of a rectangle, and the moments at which it appears and its outcome is known."""


@dataclass(frozen=True, slots=True)
class Row:
    """Where a strip is drawn: its top, and the width of an offset."""

    strip: Strip
    top: float
    unit: float

    @property
    def middle(self) -> float:
        return self.top + HIGH / 2 + 4

    def x(self, offset: int) -> float:
        """Return the horizontal position, clamped to the window."""
        return LEFT + self.unit * (min(max(offset, self.strip.start), self.strip.until) - self.strip.start)

    def columns(self, line: Timeline) -> Iterator[tuple[Column, list[Box], float | None]]:
        """Yield each column with its rectangles, and the position of a marker's sign if there is room for one."""
        for column in columns(self.strip, MOST_COLUMNS, line):
            x, width = self.x(column.start), self.unit * (column.end - column.start)
            edge = " edge" if column.run is not None and width > 4 * _LEAST else ""
            boxes = [
                (
                    f"{piece.kind}{edge}",
                    f"{x:.1f}",
                    f"{round(self.top + HIGH * above, 2):g}",
                    f"{max(_LEAST, width):.1f}",
                    f"{round(HIGH * share, 2):g}",
                    f"{piece.written} {piece.ended}",
                )
                for piece, above, share in column.stacked(_LEAST / HIGH)
            ]
            signed = column.run is not None and column.run.kind.marker and width >= _GLYPH
            yield column, boxes, x + width / 2 if signed else None

    def commits(self, bounds: Sequence[Bounds]) -> Iterator[tuple[int, int, int]]:
        """Yield the group's commits: from, to, and the moment, for each moment at which its position moved forward."""
        start = self.strip.start
        for moment, bound in enumerate(bounds):
            if bound.group is not None and bound.group > start:
                yield start, bound.group, moment
            start = start if bound.group is None else bound.group


@dataclass(frozen=True, slots=True)
class Layout:
    """All rows in the order of the strips, the partitions' headings, and the total height."""

    rows: tuple[Row, ...]
    heads: tuple[tuple[int, float], ...]
    height: float


def layout(xray: Xray) -> Layout:
    """Lay out the strips; those of a topic share a scale, those of a partition are stacked."""
    widest: dict[str, int] = {}
    for strip in xray.strips:
        widest[strip.topic] = max(1, strip.until - strip.start, widest.get(strip.topic, 0))
    rows: dict[int, Row] = {}
    heads, top = [], float(_TOP)
    for partition, indices in xray.by_partition().items():
        heads.append((partition, top + 12))
        top += 16
        for index in indices:
            strip = xray.strips[index]
            rows[index] = Row(strip, top + _ABOVE, PLOT / widest[strip.topic])
            top += _ABOVE + HIGH + _BELOW + (0 if strip.group is None else _THIN + 2)
        top += _GAP
    return Layout(tuple(rows[index] for index in range(len(xray.strips))), tuple(heads), top)


def svg_document(xray: Xray) -> str:
    """Return a self-contained file, which loads nothing."""
    return f"{drawing(xray, moving=False, style=asset('strips.css'))}\n"


def drawing(xray: Xray, *, moving: bool, style: Markup | None = None) -> Markup:
    """Return the picture; ``moving`` adds to each piece the moments at which it appears and its outcome is known."""
    return Markup(_macros().drawing(xray, layout(xray), moving, style))


@cache
def patterns() -> Markup:
    """Return the patterns, which distinguish the kinds without relying on colour."""
    return Markup(_macros().patterns())


def _macros() -> Any:
    return _templates().get_template("drawing.html").module


def page(xray: Xray) -> str:
    picture, data = drawing(xray, moving=True), _timeline_json(xray)
    body = _templates().get_template("page.html").render(xray=xray, picture=picture, data=data)
    style = Markup(asset("strips.css") + asset("page.css"))
    return html.document(f"X-ray of {', '.join(xray.roles)}", style, asset("page.js"), Markup(body))


@cache
def asset(name: str) -> Markup:
    """Return a file of this package as markup, which is safe because it is our own."""
    return Markup(files(__package__).joinpath(name).read_text("utf-8"))


@cache
def _templates() -> Environment:
    drawn: dict[str, Any] = {"HIGH": HIGH, "LEAST": _LEAST, "LEFT": LEFT, "THIN": _THIN, "WIDTH": WIDTH}
    drawn |= {"MOST_STEPS": MOST_STEPS, "ORDER": list(ORDER), "labels": labels, "legend": _legend}
    return templates(__package__, f1="{:.1f}".format, g="{:g}".format, **drawn)


def _legend() -> Iterator[tuple[Kind, float]]:
    x = 12.0
    for kind in ORDER:
        yield kind, x
        x += 46 + 6.6 * len(kind.words)


def _timeline_json(xray: Xray) -> Markup:
    """Return the script's data; `<` is escaped, so that no name can end the element."""
    strips = [
        {
            "start": row.strip.start,
            "until": row.strip.until,
            "unit": round(row.unit, 9),
            "bounds": [(bound.stable, bound.end, bound.group) for bound in bounds],
        }
        for row, bounds in zip(layout(xray).rows, xray.line.bounds, strict=True)
    ]
    moments = xray.line.moments
    data = {"left": LEFT, "moments": moments, "labels": [labels.clock(ms) for ms in moments], "strips": strips}
    return Markup(orjson.dumps(data).decode().replace("<", "\\u003c"))


def lines(xray: Xray, width: int) -> Iterator[Text]:
    """Yield a strip and a line of numbers for each partition of each topic, then a legend of the signs."""
    room = max(_LEAST_ROOM, width - _LABEL - 1)
    for partition, indices in xray.by_partition().items():
        yield Text(f"partition {partition}", "bold")
        for strip in (xray.strips[index] for index in indices):
            role = xray.role(strip)
            label = role if len(role) < _LABEL else f"…{role[2 - _LABEL :]}"  # topics' names often begin alike
            yield Text.assemble(f"{label:<{_LABEL}}", *cells(strip, room))
            yield Text(f"{'':<{_LABEL}}{_numbers(strip)}", "dim")
    legend = Text()
    for kind in ORDER:
        legend.append(*_SIGNS[kind]).append(f" {kind.words}  ")
    yield legend
    for note in xray.unavailable:
        yield Text(f"unavailable: {note}", "cyan")


def cells(strip: Strip, room: int) -> list[tuple[str, str]]:
    """Return sign and style of ``room`` cells at most; of several kinds, open comes first, then the most frequent."""
    if not (span := strip.until - strip.start):
        return []
    count = min(span, room)
    each = min(_WIDEST_OFFSET, room // span) if span <= room else 1
    size = -(-span // count)
    signs = [_NOTHING] * -(-span // size)
    for column in binned(strip, count):
        counts = column.offsets
        most = max(counts, key=lambda kind: (kind is Kind.OPEN, counts[kind], -ORDER.index(kind)))
        signs[(column.start - strip.start) // size] = _SIGNS[most]
    return [sign for sign in signs for _ in range(each)]


def _numbers(strip: Strip) -> str:
    counts, log = strip.counts(), strip.log
    parts = [f"{counts[kind]:,} {kind.words}" for kind in ORDER if counts[kind] and not kind.marker]
    if (strip.start, strip.until) != (log.first, log.end):
        parts.append(f"of {labels.span(strip.start, strip.until)}")
    parts += [f"log start {log.first:,}", f"LSO {log.last_stable:,}", f"HW {log.end:,}"]
    return " · ".join(parts if strip.group is None else [*parts, f"group {strip.group:,}"])


def document(xray: Xray) -> dict[str, Any]:
    """Return strips with their counts and runs; with bins instead if a strip has more runs than a picture shows."""
    return {
        "taken": labels.date(xray.taken_ms),
        "group": xray.group,
        "strips": [{"role": xray.role(strip), **_strip(strip)} for strip in xray.strips],
        "steps": [{"at_ms": event.at_ms, "step": event.name, "partition": event.partition} for event in xray.events],
        "unavailable": list(xray.unavailable),
    }


def _strip(strip: Strip) -> dict[str, Any]:
    log, drawn = strip.log, columns(strip, MOST_COLUMNS)
    exact = all(column.run is not None for column in drawn)
    bounds = {"log_start": log.first, "last_stable": log.last_stable, "high_watermark": log.end}
    return {name: getattr(strip, name) for name in ("topic", "partition", "start", "until")} | {
        **bounds,
        "group": strip.group,
        "records": {kind.value: count for kind, count in strip.counts().items()},
        "empty_offsets": strip.gaps(),
        "runs" if exact else "bins": [_bin(column) if column.run is None else _run(column.run) for column in drawn],
    }


def _bin(column: Column) -> dict[str, Any]:
    writers = column.writers
    return {
        "start": column.start,
        "until": column.end,
        "offsets": {kind.value: count for kind, count in column.offsets.items()},
        "runs": column.runs,
        **{name: getattr(writers, name) for name in ("producers", "producer_id", "epochs")},
        "source_partitions": writers.partitions,
        "source": writers.source and _source(writers.source),
    }


def _run(run: Run) -> dict[str, Any]:
    same = ("records", "producer_id", "epoch", "written_ms", "ended_ms", "marker")
    return {
        "start": run.start,
        "until": run.end,
        "kind": run.kind.value,
        **{name: getattr(run, name) for name in same},
        "source": None if run.first is None or run.last is None else _source((run.first, run.last)),
        "sink": run.sink and {"name": run.sink.name, "batch": run.sink.number},
    }


def _source(ends: Sources) -> list[str]:
    return [f"{end.topic}/{end.partition}/{end.offset}" for end in ends]
