"""The view on the terminal, in as many lines as there are; pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pipeline.preflight.finding import Severity
from pipeline.ui import words
from pipeline.ui.transactions import Transaction
from pipeline.ui.view import ILL, STATES, Lamp, Row, View
from pipeline.xray.text import cells

_STYLES = {"working": "green", "blocked": "yellow", **dict.fromkeys(("stuck", "fenced", "unrecoverable"), "bold red")}
_OUTCOMES = {"committed": "green", "aborted": "red", "open": "yellow"}
_PROOFS = {"proven": "green", "violated": "bold red", "inconclusive": "yellow"}
_LEVELS = " ▁▂▃▄▅▆▇█"
_FIXED, _WIDE, _NARROW = 78, 100, 24
_TRANSACTIONS = 6
_SPARK = 16


def screen(view: View, width: int, height: int) -> Group:
    """As much as fits: what is ill comes first, what is left out is counted."""
    head = list(_head(view, width))
    tail = list(_foot(view, height))
    room = max(3, height - len(head) - len(tail) - 3)
    return Group(*head, _table(view, width, room), *tail)


def _head(view: View, width: int) -> Iterator[Text]:
    totals, names = view.totals, view.names
    title = Text(f"{names.group} ", "bold").append(f"{names.input} → {names.output} · {names.bootstrap}", "dim")
    yield _cut(title, width)
    numbers = Text()
    numbers.append(f"{words.rate(totals.rate)} ", "bold").append(f"{totals.unit}/s ")
    numbers.append(spark(totals.trace, _SPARK), "cyan")
    oldest = f", {words.seconds(totals.lag_s)} old" if totals.lag_s else ""
    numbers.append(f"  {words.number(totals.left, exact=totals.exact)} ", "bold").append(f"to read{oldest}  ")
    for state in STATES:
        if totals.states.get(state):
            numbers.append(f"{words.SIGNS[state]} {totals.states[state]} {state}  ", _STYLES.get(state, "dim"))
    yield _cut(numbers, width)
    yield _cut(_transactions_line(view), width)
    lamps = Text()
    for lamp in view.lamps.values():
        lamps.append_text(_lamp(lamp)).append("  ")
    yield _cut(lamps, width)


def _transactions_line(view: View) -> Text:
    line = Text("transactions ")
    for name, count in view.totals.outcomes.items():
        line.append(f"{count:,} {name}  ", _OUTCOMES.get(name, "yellow"))
    line.append(f"({view.totals.counted})  ", "dim")
    proof = view.proof
    said = view.lamps["proof"].said
    line.append("proof ").append(proof.mark if proof else said, _PROOFS[proof.mark] if proof else "dim")
    if view.findings is not None:
        wrong = [one for one in view.findings if one.severity in {Severity.UNSAFE, Severity.WARNING}]
        unsafe = any(one.severity is Severity.UNSAFE for one in wrong)
        told = ", ".join(one.name for one in wrong) or "in order"
        line.append("  preflight ").append(told, "bold red" if unsafe else "yellow" if wrong else "green")
    return line


def _lamp(lamp: Lamp) -> Text:
    if lamp.off:
        return Text(f"○ {lamp.title}", "dim")
    if lamp.stale:
        return Text(f"✗ {lamp.title} stale, {lamp.stale}", "bold red")
    return Text("● ", "green" if lamp.age_s is not None else "dim").append(f"{lamp.title} {words.ago(lamp.age_s)}", "")


def _table(view: View, width: int, room: int) -> RenderableType:
    drawn = Table.grid(padding=(0, 1))
    heads = ["p", "state", "what it does", "rate/s", "to read", "position", "last transaction", "tail"]
    for name in heads:
        drawn.add_column(justify="right" if name in {"p", "rate/s", "to read", "position"} else "left", no_wrap=True)
    wide = width >= _WIDE
    drawn.add_row(*(Text(name, "dim") for name in (heads if wide else heads[:-1])))
    shown = [*view.ill(), *(row for row in view.rows if row.state not in ILL)]
    for row in shown[:room]:
        drawn.add_row(*_cells(row, width - _FIXED if wide else 0, width))
    if len(shown) <= room:
        return drawn
    return Group(drawn, Text(f"and {len(shown) - room:,} more, none of them worse", "dim"))


def _cells(row: Row, tail: int, width: int) -> list[Text]:
    style = _STYLES.get(row.state, "dim")
    does = row.why if row.state in ILL else row.step or ""
    if not does and row.open_s is not None:
        does = f"open {words.seconds(row.open_s)}"
    told = [
        Text(str(row.partition)),
        Text(f"{words.SIGNS[row.state]} {row.state}", style),
        Text(_short(does or "", _NARROW if width >= _WIDE else 14), style if row.state in ILL else ""),
        Text(words.rate(row.rate)),
        Text(words.number(row.left, exact=row.exact)),
        Text(words.number(row.position)),
        _last(row.last),
    ]
    if tail <= 0:
        return told
    strip = Text()
    if row.strip is not None:
        for sign, one in cells(row.strip, tail)[-tail:]:
            strip.append(sign, one)
    return [*told, strip]


def _last(one: Transaction | None) -> Text:
    if one is None:
        return Text(words.NONE, "dim")
    text = Text(f"{words.OUTCOMES[one.outcome]} ", _OUTCOMES[one.outcome]).append(words.records(one))
    if one.seconds is not None:
        text.append(f" {words.seconds(one.seconds)}")
    return text.append(f" {one.producer_id}:{one.epoch}", "dim")


def _foot(view: View, height: int) -> Iterator[Text]:
    """Whole sentences for what is ill; the latest transactions where there is room."""
    for row in view.ill()[:3]:
        yield Text(f"{words.SIGNS[row.state]} partition {row.partition} {row.state}: {row.why}", _STYLES[row.state])
    if height >= len(view.rows) + _NARROW:
        for one in view.transactions[:_TRANSACTIONS]:
            yield Text(f"{words.OUTCOMES[one.outcome]} ", _OUTCOMES[one.outcome]).append(words.transaction(one), "dim")
    for note in view.notes:
        yield Text(f"not told: {note}", "cyan")


def spark(values: tuple[float, ...], most: int) -> str:
    """The newest values as blocks, the highest of them full."""
    shown = values[-most:]
    top = max(shown, default=0.0)
    return "".join(_LEVELS[round(one / top * (len(_LEVELS) - 1))] if top else _LEVELS[1] for one in shown)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text
