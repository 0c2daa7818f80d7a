"""The tables of figures: bars, times against their bounds, what fired, anomalies, how the campaign was made."""

from __future__ import annotations

from proof.report.bars import Met
from proof.report.marks import hint, section, table
from proof.report.rows import TITLES
from proof.report.strips import Axis, plot
from proof.report.summary import Strip, Summary
from proof.report.times import say_seconds
from protocol.markup import Child, Markup, tag

_MET = {
    Met.YES: ("✓", "proven"),
    Met.NO: ("✗", "violated"),
    Met.SHORT: ("?", "inconclusive"),
    Met.OUTDATED: ("◌", "outdated"),
    Met.UNKNOWN: ("-", "idle"),
}


def bars(summary: Summary) -> Markup:
    rows = [(bar.title, bar.wanted, bar.measured, _met(bar.met)) for bar in summary.bars]
    return section("bars", "Bars", table("Bars", ("What", "Wanted", "Measured", "Result"), rows))


def _met(met: Met) -> Markup:
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
