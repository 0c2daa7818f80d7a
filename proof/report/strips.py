"""Strip plots: a dot per time on a logarithmic axis, stacked where they are alike, with the bound as a line."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from proof.report.summary import Strip
from proof.report.times import say_seconds
from protocol.markup import Markup, tag

WIDTH = 400
HEIGHT = 30
_MARGIN = 8
_STEP = 4
_LEVELS = 7


@dataclass(frozen=True, slots=True)
class Axis:
    """Decades of seconds from 10^low to 10^high, shared by all strips of a table."""

    low: int
    high: int

    @classmethod
    def over(cls, strips: Iterable[Strip]) -> Axis:
        """At least from 0.1 s to 10 s; nothing below a millisecond."""
        values = [value for strip in strips for value in (*strip.times.seconds, *strip.bounds) if value > 0]
        low = min([-1, *(math.floor(math.log10(max(value, 0.001))) for value in values)])
        return cls(low, max([1, *(math.ceil(math.log10(value)) for value in values)]))

    def x(self, seconds: float) -> float:
        at = math.log10(max(seconds, 10.0**self.low)) - self.low
        return _MARGIN + (WIDTH - 2 * _MARGIN) * at / (self.high - self.low)

    @property
    def decades(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]

    def labels(self) -> Markup:
        """The numbers above the strips."""
        texts = []
        for decade in self.decades:
            anchor = {self.low: "start", self.high: "end"}.get(round(math.log10(decade)), "middle")
            x = {"start": 0, "end": WIDTH}.get(anchor, round(self.x(decade), 1))
            texts.append(tag("text", f"{decade:g} s", x=x, y=11, text_anchor=anchor))
        return tag("svg", texts, class_="strip", viewBox=f"0 0 {WIDTH} 15", aria_hidden="true")


def plot(strip: Strip, axis: Axis, what: str) -> Markup:
    """One strip; what it shows is also told as text, for those who don't see it."""
    limit = max(strip.bounds, default=math.inf)
    lines = [_upright("grid", axis.x(decade)) for decade in axis.decades]
    lines += [_upright("bound", axis.x(bound)) for bound in strip.bounds]
    p95 = strip.times.quantile(0.95)
    if math.isfinite(p95):
        lines.append(_upright("p95", axis.x(p95)))
    dots = _dots(strip.times.seconds, axis, limit)
    return tag(
        "svg",
        tag("title", _told(strip, what)),
        lines,
        dots,
        class_="strip",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
    )


def _upright(kind: str, x: float) -> Markup:
    return tag("line", class_=kind, x1=f"{x:.1f}", x2=f"{x:.1f}", y1=0, y2=HEIGHT)


def _dots(seconds: Iterable[float], axis: Axis, limit: float) -> list[Markup]:
    """Alike times are stacked from the middle outwards; where the highest would not fit, a dot stands for several."""
    stacks = Counter((round(axis.x(value) / _STEP), value > limit) for value in seconds)
    share = math.ceil(max(stacks.values(), default=0) / _LEVELS)
    dots = []
    for (slot, late), count in sorted(stacks.items()):
        for level in range(math.ceil(count / share)):
            x, y = slot * _STEP, HEIGHT / 2 + (level + 1) // 2 * _STEP * (-1 if level % 2 else 1)
            dots.append(_late(x, y) if late else tag("circle", cx=x, cy=f"{y:g}", r="1.8"))
    return dots


def _late(x: float, y: float) -> Markup:
    """Beyond the bound: a cross, so that colour is not all that tells."""
    return tag("path", class_="late", d=f"M{x - 2:g} {y - 2:g}l4 4m0-4l-4 4")


def _told(strip: Strip, what: str) -> str:
    times = strip.times
    bound = f", bound {' or '.join(map(say_seconds, strip.bounds))}" if strip.bounds else ""
    p50, p95 = (say_seconds(times.quantile(share)) for share in (0.50, 0.95))
    return f"{what}: {times.count:,} times, p50 {p50}, p95 {p95}, longest {say_seconds(times.longest)}{bound}"
