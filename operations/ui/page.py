"""The page, the document, and the event stream that keeps the page current."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from brew.html import Markup, tag
from brew.names import STEPS
from operations.ui import fragments
from operations.ui.labels import MEANINGS, SIGNS
from operations.ui.model import Row, SourceStatus, Transaction, View
from operations.xray import html as xray_html
from operations.xray import labels as xray_labels
from operations.xray.columns import ORDER


@dataclass(frozen=True, slots=True)
class StreamPosition:
    """A reader's place: of which start and shape of the page, and up to which change it has seen."""

    boot: str
    change: int

    def __str__(self) -> str:
        return f"{self.boot}.{self.change}"

    @classmethod
    def parse(cls, text: str) -> StreamPosition | None:
        """None where the text is no place that `str()` writes."""
        boot, _, change = text.rpartition(".")
        if not boot or not change.isascii() or not change.isdigit() or len(change) > 15:  # noqa: PLR2004 - any is too long
            return None
        return cls(boot, int(change))


@dataclass(slots=True)
class EventBroadcaster:
    """
    Keeps the newest parts; readers that are slow skip what lies between.

    A page whose parts are not those of now (the program was started again, partitions came) has to load itself anew.
    """

    boot: str = field(default_factory=lambda: secrets.token_hex(4))
    change: int = 0
    closed: bool = False
    _parts: dict[str, tuple[int, Markup]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def stand(self) -> StreamPosition:
        return StreamPosition(self.boot, self.change)

    def publish(self, parts: Mapping[str, Markup]) -> None:
        """Take the parts as they are now, and wake the readers where one has changed."""
        if self._parts and parts.keys() != self._parts.keys():
            self.boot, self._parts = secrets.token_hex(4), {}
        changed = [name for name, one in parts.items() if self._parts.get(name, (0, None))[1] != one]
        if not changed:
            return
        self.change += 1
        self._parts |= {name: (self.change, parts[name]) for name in changed}
        self._wake()

    def parts(self, names: Iterable[str] | None = None) -> dict[str, Markup]:
        """All of them as they are now."""
        return {name: one for name, (_, one) in self._parts.items() if names is None or name in names}

    def since(self, stand: StreamPosition) -> dict[str, Markup] | None:
        """What changed behind this place; None where the page has to be loaded anew."""
        if stand.boot != self.boot or stand.change > self.change:
            return None
        return {name: one for name, (change, one) in self._parts.items() if change > stand.change}

    def close(self) -> None:
        """No more news: every stream ends."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def wait_for_change(self, stand: StreamPosition, patience_s: float) -> None:
        """Return once there is something behind this place, or after so many seconds."""
        if self.closed or stand != self.stand:
            return
        try:
            await asyncio.wait_for(self._news.wait(), patience_s)
        except TimeoutError:
            return


POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_FILES = Markup('<link rel="stylesheet" href="page.css"><link rel="icon" href="icon.svg">')
_RELOAD_S = 5


def page(view: View, parts: Mapping[str, Markup], stand: StreamPosition) -> str:
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
    return xray_html.asset("strips.css") + asset("page.css")


@cache
def asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text("utf-8")


def _defs() -> Markup:
    return tag("svg", xray_html.patterns(), class_="defs", aria_hidden="true", width=0, height=0)


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
    head = _heads(fragments.HEADS, {"state", "what it does", "last transaction", "tail of the output"})
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
    kinds = [tag("span", _swatch(kind.value), f" {kind.words} ", title=xray_labels.MEANINGS[kind]) for kind in ORDER]
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
    head = _heads(tuple((name, "") for name in fragments.TRANSACTION_HEADS), left)
    table = tag("div", tag("table", head, parts["transactions"], class_="ledger"), class_="wide")
    proof = tag("section", tag("h2", "Proof of the last run", " ", parts["mark-proof"]), parts["proof"])
    checks = tag("section", tag("h2", "Preflight", " ", parts["mark-preflight"]), parts["preflight"])
    return Markup(
        tag("section", tag("h2", "Transactions, the latest"), table) + tag("div", proof, checks, class_="two")
    )


def document(view: View) -> dict[str, Any]:
    """All that page and terminal show; null is what nobody told."""
    totals = view.totals
    return {
        "names": asdict(view.names),
        "now_ms": view.now_ms,
        "sources": {name: _source_document(lamp) for name, lamp in view.source_statuses.items()},
        "totals": {
            "rate": _rounded(totals.rate),
            "unit": totals.unit,
            "to_read": totals.left,
            "exact": totals.exact,
            "lag_s": _rounded(totals.lag_s),
            "states": dict(totals.states),
            "transactions": dict(totals.outcomes),
            "counted": totals.counted,
        },
        "partitions": [_row(row) for row in view.rows],
        "transactions": [_transaction(one) for one in view.transactions],
        "proof": None if view.proof is None else asdict(view.proof),
        "preflight": None if view.findings is None else [one.document() for one in view.findings],
        "not_told": list(view.notes),
    }


def _source_document(lamp: SourceStatus) -> dict[str, Any]:
    return {"asked": not lamp.off, "said": lamp.said, "age_s": _rounded(lamp.age_s), "stale": lamp.stale}


def _row(row: Row) -> dict[str, Any]:
    strip = row.strip
    return {
        "partition": row.partition,
        "state": row.state,
        "why": row.why,
        "position": row.position,
        "last_stable": row.last_stable,
        "end": row.end,
        "to_read": row.left,
        "exact": row.exact,
        "lag_s": _rounded(row.lag_s),
        "rate": _rounded(row.rate),
        "unit": row.unit,
        "step": row.step,
        "steps_s": {name: _rounded(seconds) for name, seconds in row.steps.items()},
        "open_s": _rounded(row.open_s),
        "last_transaction": None if row.last is None else _transaction(row.last),
        "tail": None if strip is None else {kind.value: count for kind, count in strip.counts().items() if count},
    }


def _transaction(one: Transaction) -> dict[str, Any]:
    return asdict(one) | {"seconds": _rounded(one.seconds)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
