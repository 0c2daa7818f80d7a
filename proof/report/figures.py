"""Tables of figures and strip plots, and the marks that all parts of the page share; pure."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from brew.html import Child, Markup, tag
from proof.report.results import TITLES, Result, Standing
from proof.report.summary import Cell, CriterionResult, Strip, Summary, say_seconds

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


_MET = {
    CriterionResult.YES: ("✓", "proven"),
    CriterionResult.NO: ("✗", "violated"),
    CriterionResult.SHORT: ("?", "inconclusive"),
    CriterionResult.OUTDATED: ("◌", "outdated"),
    CriterionResult.UNKNOWN: ("-", "idle"),
}


def bars(summary: Summary) -> Markup:
    rows = [(bar.title, bar.wanted, bar.measured, _met(bar.met)) for bar in summary.bars]
    return section("bars", "Bars", table("Bars", ("What", "Wanted", "Measured", "Result"), rows))


def _met(met: CriterionResult) -> Markup:
    sign, kind = _MET[met]
    return tag("span", tag("span", sign, class_=f"mark {kind}", aria_hidden="true"), f" {met}", class_="met")


def recoveries(summary: Summary) -> Markup | None:
    text = (
        "Seconds from the heal to the first new commit, on a logarithmic axis. A dot is one recovery, or several where "
        "there are many; a cross came after the bound. The thick line is the bound, the dashed one p95."
    )
    return _times("recovery", "Time to the first commit after the heal", text, summary.recoveries)


def stalls(summary: Summary) -> Markup | None:
    text = "Seconds for which an open transaction held read_committed readers back. The dashed line is p95."
    return _times("stalls", "Readers held back", text, summary.stalls)


def _times(name: str, title: str, text: str, strips: list[Strip]) -> Markup | None:
    if not strips:
        return None
    axis = Axis.over(strips)
    bounded = any(strip.bounds for strip in strips)
    head: list[Child] = ["Row", axis.labels(), "Times", "p50", "p95", "Longest", *(["Bound"] if bounded else [])]
    rows = [_line(strip, axis, bounded=bounded) for strip in strips]
    return section(name, title, hint(text), table(title, head, rows, numbers=range(2, len(head))))


def _line(strip: Strip, axis: Axis, *, bounded: bool) -> list[Child]:
    what = f"{strip.row}, {strip.path} path" if strip.path else strip.row
    title = tag("span", TITLES.get(strip.row, ""), f" · {strip.path}" if strip.path else None, class_="about")
    quantiles = [say_seconds(strip.times.quantile(share)) for share in (0.50, 0.95)]
    bound = [" / ".join(f"{one:g} s" for one in strip.bounds) or "-"] if bounded else []
    late = bool(strip.bounds) and strip.times.longest > max(strip.bounds)
    longest = tag(
        "span", say_seconds(strip.times.longest), " (late)" if late else None, class_="late" if late else None
    )
    return [(strip.row, " ", title), plot(strip, axis, what), f"{strip.times.count:,}", *quantiles, longest, *bound]


def fired(summary: Summary) -> Markup | None:
    if not summary.demands:
        return None
    text = "A run in which less fired than its cell demands is inconclusive, whatever else it shows."
    rows = [(one.kind, f"{one.fired:,}", f"{one.needed:,}", f"{one.short:,}") for one in summary.demands]
    head = ("What", "Fired", "Needed", "Runs that fell short")
    return section("fired", "What fired", hint(text), table("What fired", head, rows, numbers=(1, 2, 3)))


def anomalies(summary: Summary) -> Markup:
    if not summary.anomalies:
        return section("anomalies", "Anomalies", hint("None, in any run."))
    rows = [(name, f"{real:,}", f"{every - real:,}") for name, (real, every) in summary.anomalies.items()]
    head = ("Anomaly", "Unexpected", "In positive controls")
    return section("anomalies", "Anomalies", table("Anomalies", head, rows, numbers=(1, 2)))


def provenance(summary: Summary) -> Markup:
    """Who wants to see the same needs versions, machine and seeds."""
    seeds = ", ".join(map(str, summary.seeds)) or "none"
    again = (
        "Run one cell again with ",
        tag("code", "python -m proof replay CELL SEED"),
        f"; each cell above holds its commands. Seeds: {seeds}.",
    )
    blocks: list[Child] = []
    for one in summary.provenance:
        pairs = {"Command": tag("code", one.command, class_="command") if one.command else "", "Began": one.began}
        pairs |= {"Took": say_seconds(one.seconds) if one.seconds is not None else "", "Machine": one.machine}
        pairs |= {"Commit": one.commit, "Kernel": one.kernel} | one.versions
        blocks.append(tag("dl", [(tag("dt", name), tag("dd", value)) for name, value in pairs.items() if value]))
    told = blocks or hint("The results came without a campaign around them: versions and machine were not told.")
    return section("provenance", "How to see the same", hint(again), told)
