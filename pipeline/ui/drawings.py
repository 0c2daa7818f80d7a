"""Small pictures in the page's rows: a log's tail, a rate over time, the seconds of six steps; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pipeline.ui import words
from pipeline.xray import words as xray_words
from pipeline.xray.columns import Column, columns
from pipeline.xray.model import Strip
from protocol.markup import Markup, tag
from protocol.names import STEPS

TAIL_WIDE, TAIL_HIGH = 480, 16
_MOST_COLUMNS = 120
_LEAST = 1.4
_EDGE = 6
_STEPS_WIDE, _STEPS_HIGH = 120, 9


def tail(strip: Strip, last: int) -> Markup:
    """The log's last offsets, its end at the right; all partitions have the same scale. A line where readers wait."""
    unit = TAIL_WIDE / max(1, last)

    def x(offset: int) -> float:
        return max(0.0, TAIL_WIDE - unit * (strip.until - offset))

    begin = x(strip.start)
    bed = tag("rect", x=f"{begin:.1f}", y=0, width=f"{TAIL_WIDE - begin:.1f}", height=TAIL_HIGH, class_="bed")
    drawn = [_column(one, x(one.start), unit * (one.end - one.start)) for one in columns(strip, _MOST_COLUMNS)]
    stable = None
    if strip.log.last_stable < strip.log.end:
        at = f"{x(max(strip.start, strip.log.last_stable)):.1f}"
        told = f"last stable offset {strip.log.last_stable:,}: read_committed readers wait here"
        stable = tag("g", tag("title", told), tag("path", d=f"M{at} -3v{TAIL_HIGH + 6}"), class_="waits")
    return _svg(TAIL_WIDE, TAIL_HIGH, xray_words.of_strip(strip), bed, drawn, stable, kind="tail")


def _column(column: Column, x: float, width: float) -> Markup:
    title = tag("title", xray_words.of_column(column))
    edge = " edge" if column.run is not None and width > _EDGE else ""
    return tag("g", title, list(_pieces(column, x, max(_LEAST, width), edge)))


def _pieces(column: Column, x: float, width: float, edge: str) -> Iterator[Markup]:
    """By share, from the top; what is open is never too low to be seen."""
    shares = [max(piece.offsets, 0.1 * (column.end - column.start)) for piece in column.pieces]
    whole, y = max(sum(shares), column.end - column.start), 0.0
    for piece, share in zip(column.pieces, shares, strict=True):
        high = TAIL_HIGH * share / whole
        spot = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{high:.1f}"}
        yield tag("rect", **spot, class_=f"{piece.kind}{edge}")
        y += high


def spark(values: Sequence[float], most: int, wide: int, high: int, told: str) -> Markup:
    """A line over time, the newest at the right, with nought at the bottom; ``most`` values fill the width."""
    top = max(values, default=0.0) or 1.0
    step, count = wide / max(1, most - 1), len(values)
    points = [(wide - step * (count - 1 - at), high - 1 - (high - 2) * one / top) for at, one in enumerate(values)]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    if count <= 1:
        return _svg(wide, high, told, kind="spark")
    area = f"{points[0][0]:.1f},{high} {line} {wide},{high}"
    return _svg(wide, high, told, tag("polygon", points=area), tag("polyline", points=line), kind="spark")


def steps(seconds: Mapping[str, float]) -> Markup:
    """The six steps side by side, each as wide as it took."""
    known = {name: max(0.0, seconds.get(name, 0.0)) for name in STEPS}
    whole = sum(known.values())
    told = ", ".join(f"{name} {words.seconds(known[name])}" for name in STEPS if name in seconds) or "no step told yet"
    drawn, x = [], 0.0
    for name, value in known.items():
        width = _STEPS_WIDE * value / whole if whole else _STEPS_WIDE / len(known)
        spot = {"x": f"{x:.1f}", "y": 0, "width": f"{width:.1f}", "height": _STEPS_HIGH}
        drawn.append(tag("rect", **spot, class_=f"step-{name}{'' if whole else ' none'}"))
        x += width
    return _svg(_STEPS_WIDE, _STEPS_HIGH, told, drawn, kind="steps")


def _svg(wide: int, high: int, told: str, *shapes: object, kind: str) -> Markup:
    size = {"viewBox": f"0 0 {wide} {high}", "width": wide, "height": high}
    return tag("svg", tag("title", told), *shapes, class_=kind, role="img", **size)  # type: ignore[arg-type]
