"""An X-ray as one HTML page that needs nothing but itself, with a slider over time."""

from __future__ import annotations

import orjson

from pipeline.xray import svg, words
from pipeline.xray.columns import ORDER
from pipeline.xray.picture import Xray
from pipeline.xray.steps import Told
from protocol.markup import Markup, document, tag

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
        tag("p", f"{xray.bootstrap} · group {xray.group} · {words.date(xray.taken_ms)}", class_="hint"),
        tag("p", _HINT, class_="hint"),
        [tag("p", f"Not told: {one}", class_="hint") for one in xray.not_told],
        _slider(xray),
        tag("div", svg.drawing(xray, moving=True), class_="wide", role="region", aria_label="strips", tabindex=0),
        tag("p", "", id="readout", aria_live="polite"),
        _numbers(xray),
        _steps(xray.told),
    )
    told = tag("script", _told(xray), id="told", type="application/json")
    style = Markup(svg.asset("strips.css") + svg.asset("page.css"))
    return document(f"X-ray of {topics}", style, svg.asset("page.js"), main, told)


def _told(xray: Xray) -> Markup:
    """What the script reads; `<` is spelt out, so that no name can end the element."""
    rows = svg.layout(xray).rows
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
    document = {"left": svg.LEFT, "moments": moments, "labels": [words.clock(at) for at in moments], "strips": strips}
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


def _steps(told: tuple[Told, ...]) -> Markup | None:
    """The journal's steps; the slider dims those that have not happened yet."""
    if not told:
        return None
    shown = told[-MOST_STEPS:]
    rows = [
        tag(
            "tr",
            tag("td", words.clock(one.at_ms)),
            tag("td", one.name, class_="left"),
            [tag("td", cell) for cell in (one.partition, words.span(one.start, one.until), one.pid)],
            class_="crash" if one.crash else None,
            data_ms=one.at_ms,
            data_told=f"{one.name}: input partition {one.partition}, {words.span(one.start, one.until)}",
        )
        for one in shown
    ]
    heads = ["time", "step", "input partition", "range", "process"]
    head = [tag("th", cell, scope="col", class_="left" if cell == "step" else None) for cell in heads]
    cut = f", the last {MOST_STEPS} of {len(told):,}" if len(told) > MOST_STEPS else ""
    title = tag("h2", f"Steps of the journal{cut}")
    table = tag("table", tag("thead", tag("tr", head)), tag("tbody", rows))
    return tag("section", title, tag("div", table, class_="wide"))
