"""The parts of the page that change, as HTML; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from brew.html import Markup, tag
from brew.names import STEPS
from brew.preflight.finding import Finding, Severity
from operations.ui import labels
from operations.ui.model import KEPT, STATES, UNHEALTHY, Row, SourceStatus, Transaction, View
from operations.xray import labels as xray_words
from operations.xray.columns import Column, columns
from operations.xray.model import Strip

TAIL_WIDE, TAIL_HIGH = 480, 16
_MOST_COLUMNS = 120
_LEAST = 1.4
_EDGE = 6
_STEPS_WIDE, _STEPS_HIGH = 120, 9


def tail_drawing(strip: Strip, last: int) -> Markup:
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


def sparkline(values: Sequence[float], most: int, wide: int, high: int, told: str) -> Markup:
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
    told = ", ".join(f"{name} {labels.seconds(known[name])}" for name in STEPS if name in seconds) or "no step told yet"
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


HEADS = (
    ("p", "input partition"),
    ("state", ""),
    ("what it does", "the six steps of the last transaction, as wide as each took, and the last one that was told"),
    ("rate", "per second, over the last ten seconds"),
    ("to read", "records up to the last stable offset, and how old the oldest of them is"),
    ("position", "the group's committed offset, and the log's end"),
    ("last transaction", "as the output's log tells"),
    ("tail of the output", "the last offsets of the output's partition of the same number"),
)
TRANSACTION_HEADS = (
    *("ended", "outcome", "transactional id", "producer", "epoch"),
    *("records", "input offsets", "took", "coordinator", "output"),
)


def cells(row: Row, tail: int) -> dict[str, Markup]:
    """Id -> cell, in the order of `HEADS`."""
    drawn = {
        "p": tag("th", row.partition, scope="row", id=f"r{row.partition}-p"),
        "state": _state(row),
        "does": tag("td", _activity(row), id=f"r{row.partition}-does", class_="does", data_from="flow"),
        "rate": _rate(row),
        "left": tag("td", _left(row), id=f"r{row.partition}-left", data_from="flow"),
        "position": _position(row),
        "last": tag("td", _last(row.last), id=f"r{row.partition}-last", class_="left", data_from="tail"),
        "tail": tag("td", _tail(row, tail), id=f"r{row.partition}-tail", class_="strip", data_from="tail"),
    }
    return {f"r{row.partition}-{name}": cell for name, cell in drawn.items()}


def _state(row: Row) -> Markup:
    told = tag("span", f"{labels.SIGNS[row.state]} {row.state}", class_=f"state {row.state}", title=row.why)
    ill = "ill" if row.state in UNHEALTHY else row.state
    return tag("td", told, id=f"r{row.partition}-state", class_="left", data_state=ill, data_from="flow")


def _activity(row: Row) -> list[Markup | str]:
    """Why it is ill; else its steps, or what Kafka alone can tell of its transaction."""
    if row.state in UNHEALTHY:
        return [tag("span", row.why, class_="why")]
    if row.steps or row.step:
        now = tag("span", row.step or "", class_="step")
        took = tag("span", f" {labels.seconds(sum(row.steps.values()))}", class_="soft") if row.steps else ""
        return [steps(row.steps), now, took]
    if row.open_s is not None:
        return [tag("span", f"transaction open for {labels.seconds(row.open_s)}", class_="soft")]
    return [tag("span", row.why, class_="soft why")]


def _rate(row: Row) -> Markup:
    line = sparkline(row.trace, KEPT, 72, 16, f"offsets per second of partition {row.partition}")
    shown = tag("span", labels.rate(row.rate), title=f"{row.unit} per second")
    return tag("td", line, shown, id=f"r{row.partition}-rate", class_="rate", data_from="flow")


def _left(row: Row) -> list[Markup | str]:
    age = (
        tag("span", f" {labels.seconds(row.lag_s)}", class_="soft", title="how old the oldest is") if row.lag_s else ""
    )
    return [labels.number(row.left, exact=row.exact), age]


def _position(row: Row) -> Markup:
    waits = None
    if row.last_stable is not None and row.end is not None and row.last_stable < row.end:
        told = f"last stable offset {row.last_stable:,}: {row.end - row.last_stable:,} offsets wait"
        waits = tag("span", " ▲", class_="blocked", title=told)
    shown = [labels.number(row.position), tag("span", f" / {labels.number(row.end)}", class_="soft"), waits]
    return tag("td", shown, id=f"r{row.partition}-position", data_from="flow")


def _last(one: Transaction | None) -> Markup | None:
    if one is None:
        return tag("span", labels.NONE, class_="soft")
    took = f" in {labels.seconds(one.seconds)}" if one.seconds is not None else ""
    many = "" if one.records is None else f" {labels.records(one)}"
    who = tag("span", f" {one.producer_id}:{one.epoch}", class_="soft")
    sign = tag("span", labels.OUTCOMES[one.outcome], class_=one.outcome)
    return tag("span", sign, many, took, who, title=labels.transaction(one))


def _tail(row: Row, tail: int) -> Markup:
    if row.strip is None or row.strip.until == row.strip.start:
        return tag("span", "nothing yet" if row.strip is not None else labels.NONE, class_="soft")
    return tail_drawing(row.strip, tail)


def transactions(found: Iterable[Transaction]) -> Markup:
    """The latest of all partitions; open ones first."""
    lines = [tag("tr", *_cells(one), title=labels.transaction(one), class_=one.outcome) for one in found]
    none = tag("tr", tag("td", "none in the tails", colspan=len(TRANSACTION_HEADS), class_="left soft"))
    return tag("tbody", lines or none, id="transactions", data_from="tail")


def _cells(one: Transaction) -> list[Markup]:
    source = labels.NONE
    if one.first is not None and one.last is not None:
        source = f"[{one.source}] {xray_words.span(one.first, one.last + 1).split(' ', 1)[1]}"
    elif one.last is not None:
        source = f"[{one.source}] up to {one.last:,}"
    marker = f"[{one.partition}]" + ("" if one.marker is None else f" marker {one.marker:,}")
    told = tag("span", f"{labels.OUTCOMES[one.outcome]} {one.outcome}", class_=one.outcome)
    return [
        tag("td", labels.clock(one.ended_ms), class_="left"),
        tag("td", told, class_="left"),
        tag("td", one.transactional_id or labels.NONE, class_="left"),
        tag("td", one.producer_id),
        tag("td", one.epoch),
        tag("td", labels.records(one)),
        tag("td", source),
        tag("td", labels.seconds(one.seconds)),
        tag("td", labels.coordinator(one), class_="left"),
        tag("td", marker, class_="left"),
    ]


_MARKS = {Severity.OK: "✓", Severity.UNKNOWN: "?", Severity.WARNING: "!", Severity.UNSAFE: "✗"}
_PROOF_MARKS = {"proven": "✓", "violated": "✗", "inconclusive": "?"}
_NUMBERED = 256
_SHOWN_ILL = 12
_RARE = ("fenced", "indefinite")


def parts(view: View) -> dict[str, Markup]:
    """Id -> element, all of them."""
    found = {"when": tag("span", f"{labels.clock(view.now_ms)[:8]} UTC", id="when")}
    found["badge"] = _badge(view)
    found |= {f"lamp-{name}": _source_status(name, lamp) for name, lamp in view.source_statuses.items()}
    found |= {
        f"mark-{name}": mark(name, view.source_statuses.get(name)) for name in ("flow", "tail", "proof", "preflight")
    }
    found |= dict(_tiles(view))
    found["ill"] = _unhealthy_partitions(view)
    found["notes"] = tag("div", [tag("p", f"Not told: {one}", class_="hint") for one in view.notes], id="notes")
    for row in view.rows:
        found |= cells(row, view.tail)
    found["transactions"] = transactions(view.transactions)
    found["proof"] = _proof(view)
    found["preflight"] = _preflight(view)
    return found


def _badge(view: View) -> Markup:
    """Live only while every source that is asked answers."""
    asked = [one for one in view.source_statuses.values() if not one.off]
    stale = [one.title for one in asked if one.stale]
    if stale:
        return tag("small", f"stale: {', '.join(stale)}", id="badge", class_="stale")
    waiting = any(one.age_s is None for one in asked)
    return tag("small", "asking" if waiting else "live", id="badge")


def _source_status(name: str, lamp: SourceStatus) -> Markup:
    state = "off" if lamp.off else "stale" if lamp.stale else "on" if lamp.age_s is not None else "wait"
    sign = {"off": "○", "stale": "✗", "on": "●", "wait": "…"}[state]
    told = "stale" if lamp.stale else lamp.said
    age = tag("span", labels.ago(lamp.age_s), class_="soft") if lamp.age_s is not None else None
    title = lamp.stale or lamp.said
    shown = [tag("span", sign, class_="sign"), " ", tag("b", lamp.title), " ", told, " ", age]
    return tag("span", *shown, id=f"lamp-{name}", class_=f"lamp {state}", title=title)


def mark(name: str, lamp: SourceStatus | None) -> Markup:
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
    line = sparkline(totals.trace, KEPT, 190, 34, "offsets per second over the last looks")
    yield _tile("rate", f"{totals.unit.capitalize()} per second", _big(labels.rate(totals.rate)), line, source="flow")
    left = _big(labels.number(totals.left, exact=totals.exact))
    soft = [f"the oldest is {labels.seconds(totals.lag_s)} old" if totals.lag_s else "", _eta(view)]
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
    return f"about {labels.seconds(left / rate)} at this rate"


def _counts(view: View) -> Markup:
    counts = view.totals.states
    told = [
        tag("span", f"{labels.SIGNS[one]} {counts[one]} {one}", class_=f"state {one}", title=labels.MEANINGS[one])
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
            ""
            if small
            else row.partition
            if row.state not in UNHEALTHY
            else f"{labels.SIGNS[row.state]}{row.partition}",
            href=f"#p{row.partition}",
            class_=f"square {row.state}",
            title=f"partition {row.partition}: {row.state}, {row.why}",
        )
        for row in view.rows
    ]
    return tag("div", drawn, class_="squares small" if small else "squares")


def _unhealthy_partitions(view: View) -> Markup:
    """The partitions that want somebody to look, and the command that tells more."""
    found = view.ill()
    lines = [tag("li", *_line(row, view), class_=row.state) for row in found[:_SHOWN_ILL]]
    if len(found) > _SHOWN_ILL:
        lines.append(tag("li", f"and {len(found) - _SHOWN_ILL:,} more"))
    return tag("ul", lines, id="ill", class_="ill", data_from="flow", aria_live="polite")


def _line(row: Row, view: View) -> Iterator[Markup | str]:
    yield tag("b", f"{labels.SIGNS[row.state]} partition {row.partition} {row.state}")
    yield f": {row.why} "
    yield tag("code", command(row, view))


def command(row: Row, view: View) -> str:
    """What to ask next; nothing here changes anything."""
    where = f"--bootstrap {view.names.bootstrap}"
    if row.state in {"blocked", "fenced"}:
        return f"pipeline doctor {where}"
    return f"pipeline lag {where} --input {view.names.input} --group {view.names.group}"


def _proof_tile(view: View) -> list[Markup]:
    proof, lamp = view.proof, view.source_statuses["proof"]
    if proof is None:
        return [tag("p", labels.NONE, class_="big"), tag("p", lamp.said, class_="soft")]
    verdict = tag("p", f"{_PROOF_MARKS[proof.mark]} {proof.mark}", class_=f"big {proof.mark}")
    return [verdict, *(tag("p", one, class_="soft") for one in proof.lines[:2])]


def _proof(view: View) -> Markup:
    proof, lamp = view.proof, view.source_statuses["proof"]
    if proof is None:
        how = "python -m proof verify --json > proof.json, then pipeline ui --proof proof.json"
        return tag("div", tag("p", lamp.said), tag("p", how, class_="hint"), id="proof", data_from="proof")
    old = labels.ago(max(0.0, view.now_ms / 1000 - proof.written_s))
    verdict = tag("b", f"{_PROOF_MARKS[proof.mark]} {proof.mark}", class_=proof.mark)
    head = tag("p", verdict, f" by {proof.title}, {old}")
    lines = tag("ul", [tag("li", one) for one in proof.lines])
    wrong = tag("ul", [tag("li", one) for one in proof.wrong], class_="wrong") if proof.wrong else None
    return tag("div", head, lines, wrong, id="proof", data_from="proof")


def _preflight_tile(view: View) -> list[Markup]:
    lamp, findings = view.source_statuses["preflight"], view.findings
    if findings is None:
        return [tag("p", labels.NONE, class_="big"), tag("p", lamp.said, class_="soft")]
    counts = {one: sum(found.severity is one for found in findings) for one in Severity}
    worst = next((one for one in reversed(Severity) if counts[one]), Severity.OK)
    head = tag("p", f"{_MARKS[worst]} {labels.checks(worst, counts[worst])}", class_=f"big {worst.value}")
    goes = "a run refuses" if worst is Severity.UNSAFE else "a run goes on"
    rest = ", ".join(labels.checks(one, counts[one]) for one in Severity if counts[one] and one is not worst)
    return [head, tag("p", f"{rest}; {goes}" if rest else goes, class_="soft")]


def _preflight(view: View) -> Markup:
    """What is not in order first; the rest folded away."""
    if view.findings is None:
        return tag("div", tag("p", view.source_statuses["preflight"].said), id="preflight", data_from="preflight")
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
