"""A partition's row of the page, and the table of transactions; pure."""

from __future__ import annotations

from collections.abc import Iterable

from pipeline.ui import drawings, words
from pipeline.ui.rates import KEPT
from pipeline.ui.transactions import Transaction
from pipeline.ui.view import ILL, Row
from pipeline.xray import words as xray_words
from protocol.markup import Markup, tag

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
        "does": tag("td", _does(row), id=f"r{row.partition}-does", class_="does", data_from="flow"),
        "rate": _rate(row),
        "left": tag("td", _left(row), id=f"r{row.partition}-left", data_from="flow"),
        "position": _position(row),
        "last": tag("td", _last(row.last), id=f"r{row.partition}-last", class_="left", data_from="tail"),
        "tail": tag("td", _tail(row, tail), id=f"r{row.partition}-tail", class_="strip", data_from="tail"),
    }
    return {f"r{row.partition}-{name}": cell for name, cell in drawn.items()}


def _state(row: Row) -> Markup:
    told = tag("span", f"{words.SIGNS[row.state]} {row.state}", class_=f"state {row.state}", title=row.why)
    ill = "ill" if row.state in ILL else row.state
    return tag("td", told, id=f"r{row.partition}-state", class_="left", data_state=ill, data_from="flow")


def _does(row: Row) -> list[Markup | str]:
    """Why it is ill; else its steps, or what Kafka alone can tell of its transaction."""
    if row.state in ILL:
        return [tag("span", row.why, class_="why")]
    if row.steps or row.step:
        now = tag("span", row.step or "", class_="step")
        took = tag("span", f" {words.seconds(sum(row.steps.values()))}", class_="soft") if row.steps else ""
        return [drawings.steps(row.steps), now, took]
    if row.open_s is not None:
        return [tag("span", f"transaction open for {words.seconds(row.open_s)}", class_="soft")]
    return [tag("span", row.why, class_="soft why")]


def _rate(row: Row) -> Markup:
    line = drawings.spark(row.trace, KEPT, 72, 16, f"offsets per second of partition {row.partition}")
    shown = tag("span", words.rate(row.rate), title=f"{row.unit} per second")
    return tag("td", line, shown, id=f"r{row.partition}-rate", class_="rate", data_from="flow")


def _left(row: Row) -> list[Markup | str]:
    age = tag("span", f" {words.seconds(row.lag_s)}", class_="soft", title="how old the oldest is") if row.lag_s else ""
    return [words.number(row.left, exact=row.exact), age]


def _position(row: Row) -> Markup:
    waits = None
    if row.last_stable is not None and row.end is not None and row.last_stable < row.end:
        told = f"last stable offset {row.last_stable:,}: {row.end - row.last_stable:,} offsets wait"
        waits = tag("span", " ▲", class_="blocked", title=told)
    shown = [words.number(row.position), tag("span", f" / {words.number(row.end)}", class_="soft"), waits]
    return tag("td", shown, id=f"r{row.partition}-position", data_from="flow")


def _last(one: Transaction | None) -> Markup | None:
    if one is None:
        return tag("span", words.NONE, class_="soft")
    took = f" in {words.seconds(one.seconds)}" if one.seconds is not None else ""
    many = "" if one.records is None else f" {words.records(one)}"
    who = tag("span", f" {one.producer_id}:{one.epoch}", class_="soft")
    sign = tag("span", words.OUTCOMES[one.outcome], class_=one.outcome)
    return tag("span", sign, many, took, who, title=words.transaction(one))


def _tail(row: Row, tail: int) -> Markup:
    if row.strip is None or row.strip.until == row.strip.start:
        return tag("span", "nothing yet" if row.strip is not None else words.NONE, class_="soft")
    return drawings.tail(row.strip, tail)


def transactions(found: Iterable[Transaction]) -> Markup:
    """The latest of all partitions; open ones first."""
    lines = [tag("tr", *_cells(one), title=words.transaction(one), class_=one.outcome) for one in found]
    none = tag("tr", tag("td", "none in the tails", colspan=len(TRANSACTION_HEADS), class_="left soft"))
    return tag("tbody", lines or none, id="transactions", data_from="tail")


def _cells(one: Transaction) -> list[Markup]:
    source = words.NONE
    if one.first is not None and one.last is not None:
        source = f"[{one.source}] {xray_words.span(one.first, one.last + 1).split(' ', 1)[1]}"
    elif one.last is not None:
        source = f"[{one.source}] up to {one.last:,}"
    marker = f"[{one.partition}]" + ("" if one.marker is None else f" marker {one.marker:,}")
    told = tag("span", f"{words.OUTCOMES[one.outcome]} {one.outcome}", class_=one.outcome)
    return [
        tag("td", words.clock(one.ended_ms), class_="left"),
        tag("td", told, class_="left"),
        tag("td", one.transactional_id or words.NONE, class_="left"),
        tag("td", one.producer_id),
        tag("td", one.epoch),
        tag("td", words.records(one)),
        tag("td", source),
        tag("td", words.seconds(one.seconds)),
        tag("td", words.coordinator(one), class_="left"),
        tag("td", marker, class_="left"),
    ]
