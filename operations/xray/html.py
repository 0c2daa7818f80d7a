"""The X-ray as SVG and as an HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import orjson

from brew.html import Markup, document, tag
from operations.xray import labels as xray_labels
from operations.xray.columns import ORDER, Column, columns
from operations.xray.model import Kind, Strip
from operations.xray.timeline import TimelineEvent, Xray

WIDTH = 1000
LEFT = 128
PLOT = 762
MOST_COLUMNS = PLOT // 2
HIGH = 18
_ABOVE, _BELOW, _GAP = 15, 15, 10
_THIN = 7
_TOP = 62
_LEAST = 1.5
_GLYPH = 9
_LONGEST = 16


@dataclass(frozen=True, slots=True)
class Row:
    """Where a strip is drawn: its top, and how wide an offset is."""

    strip: Strip
    top: float
    unit: float

    def x(self, offset: int) -> float:
        """Clamped to the window."""
        return LEFT + self.unit * (min(max(offset, self.strip.start), self.strip.until) - self.strip.start)


@dataclass(frozen=True, slots=True)
class Layout:
    """All rows by the strips' order, the partitions' headings, and the height of it all."""

    rows: tuple[Row, ...]
    heads: tuple[tuple[int, float], ...]
    height: float


def layout(xray: Xray) -> Layout:
    """Strips of a topic share one scale; those of a partition stand above each other."""
    widest: dict[str, int] = {}
    for strip in xray.strips:
        widest[strip.topic] = max(1, strip.until - strip.start, widest.get(strip.topic, 0))
    rows: dict[int, Row] = {}
    heads, top = [], float(_TOP)
    for partition, indices in xray.by_partition().items():
        heads.append((partition, top + 12))
        top += 16
        for at in indices:
            strip = xray.strips[at]
            rows[at] = Row(strip, top + _ABOVE, PLOT / widest[strip.topic])
            top += _ABOVE + HIGH + _BELOW + (0 if strip.group is None else _THIN + 2)
        top += _GAP
    return Layout(tuple(rows[at] for at in range(len(xray.strips))), tuple(heads), top)


def svg_document(xray: Xray) -> str:
    """A file of its own; nothing is fetched."""
    style = tag("style", asset("strips.css"))
    return f"{drawing(xray, style, moving=False)}\n"


def drawing(xray: Xray, *first: Markup, moving: bool) -> Markup:
    """The picture; ``moving`` adds to each piece from when it lies there and from when its fate is known."""
    plan = layout(xray)
    strips = [
        tag("g", _strip(xray, at, row, moving=moving), role="img", aria_label=xray_labels.of_strip(row.strip))
        for at, row in enumerate(plan.rows)
    ]
    heads = [tag("text", f"partition {partition}", x=12, y=f"{y:g}", class_="head") for partition, y in plan.heads]
    paper = tag("rect", class_="paper", width=WIDTH, height=f"{plan.height:g}", rx=6)
    size = {"viewBox": f"0 0 {WIDTH} {plan.height:g}", "xmlns": "http://www.w3.org/2000/svg"}
    title = tag("title", f"X-ray of {', '.join(xray.roles)}, {xray_labels.date(xray.taken_ms)}")
    return tag("svg", title, first, patterns(), paper, _legend(xray), heads, strips, class_="xray", **size)


@cache
def asset(name: str) -> Markup:
    """A file of this package; it is ours, so it is markup."""
    return Markup(files(__package__).joinpath(name).read_text("utf-8"))


def patterns() -> Markup:
    """Shapes tell the kinds apart where colours do not."""

    def pattern(kind: Kind, *shapes: Markup) -> Markup:
        under = tag("rect", width=6, height=6, class_=f"under on-{kind}")
        return tag("pattern", under, shapes, id=kind, width=6, height=6, patternUnits="userSpaceOnUse")

    lines = tag("path", d="M0 1.5H6M0 4.5H6", class_="draw on-plain")
    hatch = tag("path", d="M-1 1L1 -1M-1 7L7 -1M5 7L7 5", class_="draw on-aborted")
    dots = [tag("circle", cx=x, cy=x, r="1.1", class_="dot") for x in ("1.5", "4.5")]
    drawn = [pattern(Kind.PLAIN, lines), pattern(Kind.ABORTED, hatch), pattern(Kind.OPEN, *dots)]
    return tag("defs", drawn)


def _legend(xray: Xray) -> Markup:
    at, found = 12.0, []
    for kind in ORDER:
        swatch = tag("rect", x=f"{at:g}", y=10, width=14, height=14, class_=f"{kind} edge")
        glyph = _glyph(kind, at + 7, 17) if kind.marker else None
        label = tag("text", kind.words, x=f"{at + 20:g}", y=21)
        found.append(tag("g", tag("title", xray_labels.MEANINGS[kind]), swatch, glyph, label))
        at += 46 + 6.6 * len(kind.words)
    topics = ", ".join(f"{role} {topic}" if role != topic else topic for topic, role in xray.roles.items())
    bounds = "LSO: last stable offset, read_committed stops there · HW: high watermark"
    lines = [
        f"{bounds} · ▬ committed by {xray.group}, ▲ its position",
        f"{topics} · {xray_labels.date(xray.taken_ms)}",
    ]
    told = [tag("text", text, x=12, y=38 + 14 * n, class_="small soft") for n, text in enumerate(lines)]
    return tag("g", found, told)


def _strip(xray: Xray, at: int, row: Row, *, moving: bool) -> list[Markup | None]:
    strip, role = row.strip, xray.role(row.strip)
    name = role if len(role) <= _LONGEST else f"{role[: _LONGEST - 1]}…"
    begins = f"log start {strip.log.first:,}"
    if strip.start > strip.log.first:
        begins = f"from {strip.start:,}; {begins}"
    middle = row.top + HIGH / 2 + 4
    width = row.x(strip.until) - LEFT
    bed = tag("rect", x=LEFT, y=f"{row.top:g}", width=f"{width:.1f}", height=HIGH, class_="bed")
    drawn = [_column(one, row, moving=moving) for one in columns(strip, MOST_COLUMNS, xray.line)]
    return [
        tag("text", name, tag("title", strip.topic), x=12, y=f"{middle:g}"),
        tag("text", begins, x=12, y=f"{row.top + HIGH + 11:g}", class_="small soft"),
        bed,
        tag("g", drawn),
        _end(row, at),
        _stable(row, at),
        _committed(xray, at, row, moving=moving),
        _group(row, at),
    ]


def _column(column: Column, row: Row, *, moving: bool) -> Markup:
    x, width = row.x(column.start), row.unit * (column.end - column.start)
    wide = max(_LEAST, width)
    edge = " edge" if column.run is not None and width > 4 * _LEAST else ""
    shapes = [
        tag(
            "rect",
            x=f"{x:.1f}",
            y=f"{y:g}",
            width=f"{wide:.1f}",
            height=f"{high:g}",
            class_=f"{kind}{edge}",
            data_t=f"{written} {ended}" if moving else None,
        )
        for kind, written, ended, y, high in _stacked(column, row.top)
    ]
    kind = column.pieces[0].kind
    if column.run is not None and kind.marker and width >= _GLYPH:
        told = f"{column.pieces[0].written} {column.pieces[0].ended}" if moving else None
        shapes.append(_glyph(kind, x + width / 2, row.top + HIGH / 2, told))
    return tag("g", tag("title", xray_labels.of_column(column)), shapes)


def _stacked(column: Column, top: float) -> Iterator[tuple[Kind, int, int, float, float]]:
    """Kind, moments, top and height of each piece: by share, and none too low to be seen."""
    shares = [max(piece.offsets, _LEAST / HIGH * (column.end - column.start)) for piece in column.pieces]
    whole, y = max(sum(shares), column.end - column.start), top
    for piece, share in zip(column.pieces, shares, strict=True):
        high = round(HIGH * share / whole, 2)
        yield piece.kind, piece.written, piece.ended, round(y, 2), high
        y += high


def _glyph(kind: Kind, x: float, y: float, told: str | None = None) -> Markup:
    """A tick or a cross."""
    shape = "m-3 0 2.2 2.6 3.8-5" if kind is Kind.COMMIT_MARKER else "m-2.5-2.5 5 5m0-5-5 5"
    return tag("path", d=f"M{x:.1f} {y:.1f}{shape}", class_="glyph", data_t=told)


def _upright(row: Row) -> Markup:
    return tag("line", y1=f"{row.top - 4:g}", y2=f"{row.top + HIGH + 4:g}")


def _moved(row: Row, at: int, name: str, offset: int, shapes: Iterable[Markup]) -> Markup:
    return tag("g", shapes, class_=name, id=f"{name}-{at}", transform=f"translate({row.x(offset):.1f})")


def _end(row: Row, at: int) -> Markup:
    label = tag("text", f"HW {row.strip.log.end:,}", x=6, y=f"{row.top + HIGH / 2 + 4:g}", class_="small")
    return _moved(row, at, "hw", row.strip.log.end, [_upright(row), label])


def _stable(row: Row, at: int) -> Markup:
    offset = row.strip.log.last_stable
    label = tag("text", f"LSO {offset:,}", y=f"{row.top - 6:g}", text_anchor="middle", class_="small")
    return _moved(row, at, "lso", offset, [_upright(row), label])


def _committed(xray: Xray, at: int, row: Row, *, moving: bool) -> Markup | None:
    """What the group has committed, a thin strip between input and output: a piece for each moment that moved it."""
    if row.strip.group is None:
        return None
    here, found = row.strip.start, []
    for moment, bounds in enumerate(xray.line.bounds[at]):
        if bounds.group is not None and bounds.group > here:
            left, right = row.x(here), row.x(bounds.group)
            shape = tag(
                "rect",
                x=f"{left:.1f}",
                y=f"{row.top + HIGH + 2:g}",
                width=f"{max(_LEAST, right - left):.1f}",
                height=_THIN,
                class_="position",
                data_t=f"{moment} {moment}" if moving else None,
            )
            told = xray_labels.of_position(xray.group, here, bounds.group, xray.line.moments[moment])
            found.append(tag("g", tag("title", told), shape))
        here = here if bounds.group is None else bounds.group
    return tag("g", found)


def _group(row: Row, at: int) -> Markup | None:
    """A triangle below what the group has committed."""
    offset, top = row.strip.group, row.top + HIGH + _THIN + 2
    if offset is None:
        return None
    label = tag("text", f"group {offset:,}", x=7, y=f"{top + 11:g}", class_="small")
    return _moved(row, at, "group", offset, [tag("path", d=f"M0 {top + 1:g}l-4.5 8h9z"), label])


MOST_STEPS = 400
_HINT = (
    "Each partition is a strip in offset order, the input above what came of it. Point at a piece, or touch it, to "
    "read who wrote it and from where. Times are the brokers', of markers and group commits; a batch carries its "
    "producer's time, which is moved between the markers around it."
)


def page(xray: Xray) -> str:
    """The whole document."""
    topics = ", ".join(xray.roles)
    main = tag(
        "main",
        tag("h1", f"X-ray of {topics}"),
        tag("p", f"{xray.bootstrap} · group {xray.group} · {xray_labels.date(xray.taken_ms)}", class_="hint"),
        tag("p", _HINT, class_="hint"),
        [tag("p", f"Not told: {one}", class_="hint") for one in xray.not_told],
        _slider(xray),
        tag("div", drawing(xray, moving=True), class_="wide", role="region", aria_label="strips", tabindex=0),
        tag("p", "", id="readout", aria_live="polite"),
        _numbers(xray),
        _steps(xray.told),
    )
    told = tag("script", _timeline_json(xray), id="told", type="application/json")
    style = Markup(asset("strips.css") + asset("page.css"))
    return document(f"X-ray of {topics}", style, asset("page.js"), main, told)


def _timeline_json(xray: Xray) -> Markup:
    """What the script reads; `<` is spelt out, so that no name can end the element."""
    rows = layout(xray).rows
    strips = [
        {
            "start": row.strip.start,
            "until": row.strip.until,
            "unit": round(row.unit, 9),
            "bounds": [(one.stable, one.end, one.group) for one in bounds],
        }
        for row, bounds in zip(rows, xray.line.bounds, strict=True)
    ]
    moments = xray.line.moments
    document = {"left": LEFT, "moments": moments, "labels": [xray_labels.clock(at) for at in moments], "strips": strips}
    return Markup(orjson.dumps(document).decode().replace("<", "\\u003c"))


def _slider(xray: Xray) -> Markup:
    last = len(xray.line.moments) - 1
    return tag(
        "form",
        tag("button", "play", type="button", name="play"),
        tag(
            "input",
            type="range",
            id="moment-slider",
            name="moment",
            min=0,
            max=last,
            value=last,
            step=1,
            aria_label="moment",
        ),
        tag("output", "", id="when"),
        tag("output", "", id="step"),
        id="time",
        hidden=True,
    )


def _numbers(xray: Xray) -> Markup:
    """The strips as a table."""
    head = ["partition", "topic", *(kind.words for kind in ORDER), "log start", "LSO", "HW", "group"]
    rows = []
    for indices in xray.by_partition().values():
        for strip in (xray.strips[at] for at in indices):
            counts, log = strip.counts(), strip.log
            cells = [f"{counts[kind]:,}" for kind in ORDER] + [f"{log.first:,}", f"{log.last_stable:,}", f"{log.end:,}"]
            told = [tag("td", cell) for cell in cells]
            group = tag("td", "" if strip.group is None else f"{strip.group:,}")
            first = tag("th", strip.partition, scope="row")
            rows.append(tag("tr", first, tag("td", strip.topic, class_="left"), told, group))
    heads = [tag("th", cell, scope="col", class_="left" if cell == "topic" else None) for cell in head]
    table = tag("table", tag("thead", tag("tr", heads)), tag("tbody", rows))
    return tag("section", tag("h2", "In numbers"), tag("div", table, class_="wide"))


def _steps(told: tuple[TimelineEvent, ...]) -> Markup | None:
    """The journal's steps; the slider dims those that have not happened yet."""
    if not told:
        return None
    shown = told[-MOST_STEPS:]
    rows = [
        tag(
            "tr",
            tag("td", xray_labels.clock(one.at_ms)),
            tag("td", one.name, class_="left"),
            [tag("td", cell) for cell in (one.partition, xray_labels.span(one.start, one.until), one.pid)],
            class_="crash" if one.crash else None,
            data_ms=one.at_ms,
            data_told=f"{one.name}: input partition {one.partition}, {xray_labels.span(one.start, one.until)}",
        )
        for one in shown
    ]
    heads = ["time", "step", "input partition", "range", "process"]
    head = [tag("th", cell, scope="col", class_="left" if cell == "step" else None) for cell in heads]
    cut = f", the last {MOST_STEPS} of {len(told):,}" if len(told) > MOST_STEPS else ""
    title = tag("h2", f"Steps of the journal{cut}")
    table = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows))
    return tag("section", title, tag("div", table, class_="wide"))
