"""The page: complete at its first paint, and current without its script after a reload; pure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from pipeline.ui import rows
from pipeline.ui.hub import Stand
from pipeline.ui.view import View
from pipeline.ui.words import MEANINGS, SIGNS
from pipeline.xray import svg, words
from pipeline.xray.columns import ORDER
from protocol.markup import Markup, tag
from protocol.names import STEPS

POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_FILES = Markup('<link rel="stylesheet" href="page.css"><link rel="icon" href="icon.svg">')
_RELOAD_S = 5


def page(view: View, parts: Mapping[str, Markup], stand: Stand) -> str:
    """The whole document; `stand` is where its event stream begins."""
    title = f"{view.names.group} live"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", title),
        _FILES,
        tag("noscript", tag("meta", http_equiv="refresh", content=_RELOAD_S)),
        tag("script", src="page.js", defer=True),
    )
    main = tag("main", _top(view, parts), _tiles(parts), parts["ill"], parts["notes"], _flow(view, parts), _more(parts))
    body = tag("body", _defs(), main, data_at=str(stand), data_link="begin")
    return f"<!DOCTYPE html>\n{tag('html', head, body, lang='en')}\n"


@cache
def style() -> str:
    """The X-ray's colours and patterns, then the page's own."""
    return svg.asset("strips.css") + asset("page.css")


@cache
def asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _defs() -> Markup:
    return tag("svg", svg.patterns(), class_="defs", aria_hidden="true", width=0, height=0)


def _top(view: View, parts: Mapping[str, Markup]) -> Markup:
    names = view.names
    where = tag("p", f"{names.input} → {names.output} · {names.bootstrap}", class_="hint")
    lamps = tag("p", [[one, " "] for name, one in parts.items() if name.startswith("lamp-")], class_="lamps")
    lost = tag("p", "no word from this page's own server: what stands here is old", id="lost", role="alert")
    title = tag("h1", names.group, " ", parts["badge"])
    buttons = tag("p", tag("button", "pause", type="button", id="pause"), " ", parts["when"], class_="clock")
    return tag("header", tag("div", title, where), buttons, lamps, lost)


def _tiles(parts: Mapping[str, Markup]) -> Markup:
    return tag("div", [one for name, one in parts.items() if name.startswith("tile-")], class_="tiles")


def _heads(heads: tuple[tuple[str, str], ...], left: set[str]) -> Markup:
    found = [
        tag("th", name, scope="col", title=title or None, class_="left" if name in left else None)
        for name, title in heads
    ]
    return tag("thead", tag("tr", found))


def _flow(view: View, parts: Mapping[str, Markup]) -> Markup:
    head = _heads(rows.HEADS, {"state", "what it does", "last transaction", "tail of the output"})
    lines = [
        tag("tr", [one for name, one in parts.items() if name.startswith(f"r{row.partition}-")], id=f"p{row.partition}")
        for row in view.rows
    ]
    choices = [("all", "all"), ("ill", "wants a look"), ("working", "working"), ("idle", "idle")]
    chips = [
        tag("button", text, type="button", data_only=name, aria_pressed=str(name == "all").lower())
        for name, text in choices
    ]
    title = tag("h2", "Flow", " ", parts["mark-flow"], parts["mark-tail"])
    table = tag("table", head, tag("tbody", lines), id="flow", data_only="all")
    above = tag("div", title, tag("p", chips, id="chips", hidden=True), class_="above")
    return tag("section", above, tag("div", table, class_="wide"), _legend(view))


def _legend(view: View) -> Markup:
    """What signs, steps and patterns mean."""
    states = [tag("span", f"{SIGNS[one]} {one}", class_=f"state {one}", title=MEANINGS[one]) for one in SIGNS]
    steps = [[_swatch(f"step-{one}"), f" {one} "] for one in STEPS]
    kinds = [tag("span", _swatch(kind.value), f" {kind.words} ", title=words.MEANINGS[kind]) for kind in ORDER]
    return tag(
        "div",
        tag("p", "States: ", states),
        tag("p", "Steps: ", steps),
        tag("p", f"Tail, the last {view.tail:,} offsets, newest at the right: ", kinds, "│ last stable offset"),
        class_="legend",
    )


def _swatch(kind: str) -> Markup:
    box = tag("rect", width=12, height=10, class_=kind)
    return tag("svg", box, viewBox="0 0 12 10", width=12, height=10, class_="swatch", aria_hidden="true")


def _more(parts: Mapping[str, Markup]) -> Markup:
    left = {"ended", "outcome", "transactional id", "coordinator", "output"}
    head = _heads(tuple((name, "") for name in rows.TRANSACTION_HEADS), left)
    table = tag("div", tag("table", head, parts["transactions"], class_="ledger"), class_="wide")
    proof = tag("section", tag("h2", "Proof of the last run", " ", parts["mark-proof"]), parts["proof"])
    checks = tag("section", tag("h2", "Preflight", " ", parts["mark-preflight"]), parts["preflight"])
    return Markup(
        tag("section", tag("h2", "Transactions, the latest"), table) + tag("div", proof, checks, class_="two")
    )
