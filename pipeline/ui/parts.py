"""The view as parts of the page: each an element with its id, so that only what changed has to be sent; pure."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.preflight.finding import Finding, Severity
from pipeline.ui import drawings, rows, words
from pipeline.ui.rates import KEPT
from pipeline.ui.view import ILL, STATES, Lamp, Row, View
from protocol.markup import Markup, tag

_MARKS = {Severity.OK: "✓", Severity.UNKNOWN: "?", Severity.WARNING: "!", Severity.UNSAFE: "✗"}
_PROOF_MARKS = {"proven": "✓", "violated": "✗", "inconclusive": "?"}
_NUMBERED = 256
_SHOWN_ILL = 12
_RARE = ("fenced", "indefinite")


def parts(view: View) -> dict[str, Markup]:
    """Id -> element, all of them."""
    found = {"when": tag("span", f"{words.clock(view.now_ms)[:8]} UTC", id="when")}
    found["badge"] = _badge(view)
    found |= {f"lamp-{name}": _lamp(name, lamp) for name, lamp in view.lamps.items()}
    found |= {f"mark-{name}": mark(name, view.lamps.get(name)) for name in ("flow", "tail", "proof", "preflight")}
    found |= dict(_tiles(view))
    found["ill"] = _ill(view)
    found["notes"] = tag("div", [tag("p", f"Not told: {one}", class_="hint") for one in view.notes], id="notes")
    for row in view.rows:
        found |= rows.cells(row, view.tail)
    found["transactions"] = rows.transactions(view.transactions)
    found["proof"] = _proof(view)
    found["preflight"] = _preflight(view)
    return found


def _badge(view: View) -> Markup:
    """Live only while every source that is asked answers."""
    asked = [one for one in view.lamps.values() if not one.off]
    stale = [one.title for one in asked if one.stale]
    if stale:
        return tag("small", f"stale: {', '.join(stale)}", id="badge", class_="stale")
    waiting = any(one.age_s is None for one in asked)
    return tag("small", "asking" if waiting else "live", id="badge")


def _lamp(name: str, lamp: Lamp) -> Markup:
    state = "off" if lamp.off else "stale" if lamp.stale else "on" if lamp.age_s is not None else "wait"
    sign = {"off": "○", "stale": "✗", "on": "●", "wait": "…"}[state]
    told = "stale" if lamp.stale else lamp.said
    age = tag("span", words.ago(lamp.age_s), class_="soft") if lamp.age_s is not None else None
    title = lamp.stale or lamp.said
    shown = [tag("span", sign, class_="sign"), " ", tag("b", lamp.title), " ", told, " ", age]
    return tag("span", *shown, id=f"lamp-{name}", class_=f"lamp {state}", title=title)


def mark(name: str, lamp: Lamp | None) -> Markup:
    """Beside a heading: that what stands below is old, and why."""
    if lamp is None or not lamp.stale:
        return tag("span", "", id=f"mark-{name}", class_="mark")
    return tag("span", f"✗ stale, {lamp.stale}", id=f"mark-{name}", class_="mark stale", role="status")


def _tile(name: str, title: str, *body: object, source: str, wide: bool = False) -> tuple[str, Markup]:
    shown = (tag("h2", title), *body)
    kind = "tile wide" if wide else "tile"
    return f"tile-{name}", tag("section", *shown, id=f"tile-{name}", class_=kind, data_from=source)  # type: ignore[arg-type]


def _big(text: str) -> Markup:
    return tag("p", text, class_="big")


def _tiles(view: View) -> Iterator[tuple[str, Markup]]:
    totals = view.totals
    line = drawings.spark(totals.trace, KEPT, 190, 34, "offsets per second over the last looks")
    yield _tile("rate", f"{totals.unit.capitalize()} per second", _big(words.rate(totals.rate)), line, source="flow")
    left = _big(words.number(totals.left, exact=totals.exact))
    soft = [f"the oldest is {words.seconds(totals.lag_s)} old" if totals.lag_s else "", _eta(view)]
    yield _tile("left", "Records to read", left, tag("p", "; ".join(filter(None, soft)), class_="soft"), source="flow")
    yield _tile("states", f"Partitions: {len(view.rows):,}", _counts(view), _squares(view), source="flow", wide=True)
    told = [
        tag("li", tag("b", f"{totals.outcomes.get(name, 0):,}"), f" {name}", class_=name)
        for name in ("committed", "aborted", "open", *_RARE)
        if name in totals.outcomes or name not in _RARE
    ]
    counted = tag("p", totals.counted, class_="soft")
    yield _tile("outcomes", "Transactions", tag("ul", told, class_="counts"), counted, source="tail")
    yield _tile("proof", "Proof of the last run", *_proof_tile(view), source="proof")
    yield _tile("preflight", "Preflight", *_preflight_tile(view), source="preflight")


def _eta(view: View) -> str:
    """How long what is left takes at this rate."""
    left, rate = view.totals.left, view.totals.rate
    if not left or not rate:
        return "at the end" if left == 0 else ""
    return f"about {words.seconds(left / rate)} at this rate"


def _counts(view: View) -> Markup:
    counts = view.totals.states
    told = [
        tag("span", f"{words.SIGNS[one]} {counts[one]} {one}", class_=f"state {one}", title=words.MEANINGS[one])
        for one in STATES
        if counts.get(one)
    ]
    return tag("p", told or "none seen yet", class_="states")


def _squares(view: View) -> Markup:
    """All partitions at one glance; each leads to its row."""
    small = len(view.rows) > _NUMBERED
    drawn = [
        tag(
            "a",
            "" if small else row.partition if row.state not in ILL else f"{words.SIGNS[row.state]}{row.partition}",
            href=f"#p{row.partition}",
            class_=f"square {row.state}",
            title=f"partition {row.partition}: {row.state}, {row.why}",
        )
        for row in view.rows
    ]
    return tag("div", drawn, class_="squares small" if small else "squares")


def _ill(view: View) -> Markup:
    """The partitions that want somebody to look, and the command that tells more."""
    found = view.ill()
    lines = [tag("li", *_line(row, view), class_=row.state) for row in found[:_SHOWN_ILL]]
    if len(found) > _SHOWN_ILL:
        lines.append(tag("li", f"and {len(found) - _SHOWN_ILL:,} more"))
    return tag("ul", lines, id="ill", class_="ill", data_from="flow", aria_live="polite")


def _line(row: Row, view: View) -> Iterator[Markup | str]:
    yield tag("b", f"{words.SIGNS[row.state]} partition {row.partition} {row.state}")
    yield f": {row.why} "
    yield tag("code", command(row, view))


def command(row: Row, view: View) -> str:
    """What to ask next; nothing here changes anything."""
    where = f"--bootstrap {view.names.bootstrap}"
    if row.state in {"blocked", "fenced"}:
        return f"pipeline doctor {where}"
    return f"pipeline lag {where} --input {view.names.input} --group {view.names.group}"


def _proof_tile(view: View) -> list[Markup]:
    proof, lamp = view.proof, view.lamps["proof"]
    if proof is None:
        return [tag("p", words.NONE, class_="big"), tag("p", lamp.said, class_="soft")]
    verdict = tag("p", f"{_PROOF_MARKS[proof.mark]} {proof.mark}", class_=f"big {proof.mark}")
    return [verdict, *(tag("p", one, class_="soft") for one in proof.lines[:2])]


def _proof(view: View) -> Markup:
    proof, lamp = view.proof, view.lamps["proof"]
    if proof is None:
        how = "python -m proof verify --json > proof.json, then pipeline ui --proof proof.json"
        return tag("div", tag("p", lamp.said), tag("p", how, class_="hint"), id="proof", data_from="proof")
    old = words.ago(max(0.0, view.now_ms / 1000 - proof.written_s))
    verdict = tag("b", f"{_PROOF_MARKS[proof.mark]} {proof.mark}", class_=proof.mark)
    head = tag("p", verdict, f" by {proof.title}, {old}")
    lines = tag("ul", [tag("li", one) for one in proof.lines])
    wrong = tag("ul", [tag("li", one) for one in proof.wrong], class_="wrong") if proof.wrong else None
    return tag("div", head, lines, wrong, id="proof", data_from="proof")


def _preflight_tile(view: View) -> list[Markup]:
    lamp, findings = view.lamps["preflight"], view.findings
    if findings is None:
        return [tag("p", words.NONE, class_="big"), tag("p", lamp.said, class_="soft")]
    counts = {one: sum(found.severity is one for found in findings) for one in Severity}
    worst = next((one for one in reversed(Severity) if counts[one]), Severity.OK)
    head = tag("p", f"{_MARKS[worst]} {words.checks(worst, counts[worst])}", class_=f"big {worst.value}")
    goes = "a run refuses" if worst is Severity.UNSAFE else "a run goes on"
    rest = ", ".join(words.checks(one, counts[one]) for one in Severity if counts[one] and one is not worst)
    return [head, tag("p", f"{rest}; {goes}" if rest else goes, class_="soft")]


def _preflight(view: View) -> Markup:
    """What is not in order first; the rest folded away."""
    if view.findings is None:
        return tag("div", tag("p", view.lamps["preflight"].said), id="preflight", data_from="preflight")
    order = list(reversed(Severity))
    wrong = sorted(
        (one for one in view.findings if one.severity is not Severity.OK), key=lambda one: order.index(one.severity)
    )
    fine = [one for one in view.findings if one.severity is Severity.OK]
    folded = tag("details", tag("summary", f"{len(fine)} in order"), _findings(fine)) if fine else None
    body = _findings(wrong) if wrong else tag("p", "All that could be checked is in order.")
    return tag("div", body, folded, id="preflight", data_from="preflight")


def _findings(findings: list[Finding]) -> Markup:
    found = [
        tag(
            "li",
            tag("b", f"{_MARKS[one.severity]} {one.name}"),
            f" is {one.value}, needs {one.need}: {one.why} ",
            tag("span", f"→ {one.setting}", class_="soft") if one.severity is not Severity.OK else None,
            class_=one.severity.value,
        )
        for one in findings
    ]
    return tag("ul", found, class_="findings")
