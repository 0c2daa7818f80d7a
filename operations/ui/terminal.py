"""`top`: the view on a terminal, and its keys."""

from __future__ import annotations

import os
import select
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from brew.cli import option, printable
from brew.deadline import Deadline
from brew.preflight import Severity
from operations import labels
from operations.options import advised, live_options, print_json
from operations.ui.build import document
from operations.ui.model import LOOKING, STATES, UNHEALTHY, Row, SourceStatus, Transaction, View
from operations.ui.poller import LiveSettings, PollGroup
from operations.xray.render import cells

_STYLES = {"working": "green", "blocked": "yellow", **dict.fromkeys(("stuck", "fenced", "unrecoverable"), "bold red")}
_OUTCOMES = {"committed": "green", "aborted": "red", "open": "yellow"}
_PROOFS = {"proven": "green", "violated": "bold red", "inconclusive": "yellow"}
_LEVELS = " ▁▂▃▄▅▆▇█"
_FIXED, _WIDE, _NARROW = 78, 100, 24
_LEAST = 70  # below, a column of each kind would lose its numbers and names
_KEPT = ("p", "state", "to read", "position")
_TRANSACTIONS = 6
_AROUND, _LEAST_ROWS = 3, 3  # lines around the table's rows, and its own least
_SPARK = 16


def screen(view: View, width: int, height: int) -> Group:
    """Return as much as fits: unhealthy partitions first, and the number of those left out."""
    head, console = list(_head(view, width)), Console(width=width)
    room = height - len(head) - _AROUND
    tail: list[Text] = []
    for text in _foot(view, height):
        if (left := room - len(text.wrap(console, width))) < _LEAST_ROWS:
            break
        room = left
        tail.append(text)
    return Group(*head, _table(view, width, max(_LEAST_ROWS, room)), *tail)


def _head(view: View, width: int) -> Iterator[Text]:
    totals, names = view.totals, view.names
    title = Text(f"{names.group} ", "bold").append(f"{names.input} → {names.outputs} · {names.bootstrap}", "dim")
    yield _cut(title, width)
    numbers = Text()
    numbers.append(f"{labels.rate(totals.rate)} ", "bold").append(f"{totals.unit}/s ")
    numbers.append(sparkline(totals.trace, _SPARK), "cyan")
    oldest = f", {labels.at_least(totals.lag_s, exact=totals.lag_exact)} old" if totals.lag_s else ""
    numbers.append(f"  {labels.number(totals.left, exact=totals.exact)} ", "bold").append(f"to read{oldest}  ")
    for state in STATES:
        if totals.states.get(state):
            numbers.append(f"{labels.STATE_SIGNS[state]} {totals.states[state]} {state}  ", _STYLES.get(state, "dim"))
    yield _cut(numbers, width)
    yield _cut(_transactions_line(view), width)
    sources = Text()
    for source in view.source_statuses.values():
        sources.append_text(_source_line(source)).append("  ")
    yield _cut(sources, width)


def _transactions_line(view: View) -> Text:
    line = Text("transactions ")
    for name, count in view.totals.outcomes.items():
        line.append(f"{count:,} {name}  ", _OUTCOMES.get(name, "yellow"))
    line.append(f"({view.totals.counted})  ", "dim")
    proof = view.proof
    said = view.source_statuses["proof"].said
    line.append("proof ").append(proof.mark if proof else said, _PROOFS[proof.mark] if proof else "dim")
    if view.findings is not None:
        wrong = [finding for finding in view.findings if finding.severity in {Severity.UNSAFE, Severity.WARNING}]
        unsafe = any(finding.severity is Severity.UNSAFE for finding in wrong)
        summary = ", ".join(finding.name for finding in wrong) or "in order"
        line.append("  preflight ").append(summary, "bold red" if unsafe else "yellow" if wrong else "green")
    return line


def _source_line(source: SourceStatus) -> Text:
    if source.off:
        return Text(f"○ {source.title}", "dim")
    if source.stale:
        return Text(printable(f"✗ {source.title} stale, {source.stale}"), "bold red")
    sign = Text("● ", "green" if source.age_s is not None else "dim")
    return sign.append(f"{source.title} {labels.ago(source.age_s)}", "")


def _table(view: View, width: int, room: int) -> RenderableType:
    drawn = Table.grid(padding=(0, 1))
    heads = ["p", "state", "what it does", "rate/s", "to read", "position", "last transaction", "tail"]
    wide = width >= _WIDE
    kept = [number for number, name in enumerate(heads if wide else heads[:-1]) if width >= _LEAST or name in _KEPT]
    for number in kept:
        right = heads[number] in {"p", "rate/s", "to read", "position"}
        drawn.add_column(justify="right" if right else "left", no_wrap=True)
    drawn.add_row(*(Text(heads[number], "dim") for number in kept))
    shown = [*view.unhealthy(), *(row for row in view.rows if row.state not in UNHEALTHY)]
    for row in shown[:room]:
        texts = _cells(row, width - _FIXED if wide else 0, width)
        drawn.add_row(*(texts[number] for number in kept if number < len(texts)))
    if len(shown) <= room:
        return drawn
    return Group(drawn, Text(f"and {len(shown) - room:,} more, in no worse state", "dim"))


def _cells(row: Row, tail: int, width: int) -> list[Text]:
    style = _STYLES.get(row.state, "dim")
    does = printable(row.why if row.state in UNHEALTHY else row.step or "")
    if not does and row.open_s is not None:
        does = f"open {labels.seconds(row.open_s)}"
    texts = [
        Text(str(row.partition)),
        Text(f"{labels.STATE_SIGNS[row.state]} {row.state}", style),
        Text(_short(does, _NARROW if width >= _WIDE else 14), style if row.state in UNHEALTHY else ""),
        Text(labels.rate(row.rate)),
        Text(labels.number(row.left, exact=row.exact)),
        Text(labels.number(row.position)),
        _last(row.last),
    ]
    if tail <= 0:
        return texts
    drawn = [Text.assemble(*cells(strip, tail)[-tail:]) for strip in (row.strip, *row.also) if strip is not None]
    return [*texts, Text("\n").join(drawn)]


def _last(transaction: Transaction | None) -> Text:
    if transaction is None:
        return Text(labels.NONE, "dim")
    took = "" if transaction.seconds is None else f" {labels.seconds(transaction.seconds)}"
    text = _outcome(transaction).append(labels.records(transaction) + took)
    return text.append(f" {transaction.producer_id}:{transaction.epoch}", "dim")


def _outcome(transaction: Transaction) -> Text:
    return Text(f"{labels.OUTCOME_SIGNS[transaction.outcome]} ", _OUTCOMES[transaction.outcome])


def _foot(view: View, height: int) -> Iterator[Text]:
    """Yield full sentences for unhealthy partitions; the latest transactions if there is room."""
    for row in view.unhealthy()[:3]:
        sign = labels.STATE_SIGNS[row.state]
        yield Text(printable(f"{sign} partition {row.partition} {row.state}: {row.why}"), _STYLES[row.state])
    if height >= len(view.rows) + _NARROW:
        for transaction in view.transactions[:_TRANSACTIONS]:
            yield _outcome(transaction).append(labels.of_transaction(transaction), "dim")
    for note in view.notes:
        yield Text(printable(f"unavailable: {note}"), "cyan")


def sparkline(values: tuple[float, ...], most: int) -> str:
    """Return the newest values as block characters, scaled to the highest one."""
    shown = values[-most:]
    top = max(shown, default=0.0)
    return "".join(_LEVELS[round(value / top * (len(_LEVELS) - 1))] if top else _LEVELS[1] for value in shown)


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _cut(text: Text, width: int) -> Text:
    text.truncate(width, overflow="ellipsis")
    return text


QUIT = "q"


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Yield a function that waits some seconds for a key, and returns it, or ''; without a terminal it only waits."""

    def only_wait(seconds: float) -> str:
        _pause(seconds)
        return ""

    def pressed(seconds: float) -> str:
        if not select.select([terminal], [], [], seconds)[0]:
            return ""
        return os.read(terminal, 64).decode(errors="replace").lower() or QUIT  # empty: the terminal is gone

    if not sys.stdin.isatty() or _in_background(sys.stdin.fileno()):
        yield only_wait
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)  # keys are read without Enter; Ctrl-C still raises its signal
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _in_background(terminal: int) -> bool:
    """True in the terminal's background, where the kernel stops a process that changes the terminal."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:  # a terminal of another session has no background for us
        return False


_TICK_S, _ONCE_S = 0.05, 12.0


@click.command("top")
@live_options
@option("--once", is_flag=True, help="Observe until rates and states are known, print once, and exit.")
@option("--json", "as_json", is_flag=True, help="Print one JSON document per --interval, one a line; one with --once.")
@advised()
def top(*, once: bool, as_json: bool, **option: Any) -> None:
    """
    Show a group live on the terminal, as `brew ui` does in a browser; ends with q, SIGTERM or Ctrl-C.

    Examples:
      python -m pipeline top
      python -m pipeline top --status-url http://127.0.0.1:3000 --proof proof.json
      python -m pipeline top --once --json

    Exit codes: 0 shown once, or q, 3 refused or brokers unreachable, 64 wrong usage, 143 ended by a signal.
    """
    settings = LiveSettings.of(option)
    console = Console()
    with PollGroup(settings) as poll_group:
        if once or not (as_json or console.is_terminal):
            view = _settled(poll_group)
            tall = len(view.rows) + 60  # room for everything
            print_json(document(view)) if as_json else console.print(screen(view, console.width, tall))
        elif as_json:
            while True:
                _pause(settings.interval_s)
                print_json(document(poll_group.view()), lines=True)
        else:
            _watch(poll_group, console, settings.interval_s)


def _watch(poll_group: PollGroup, console: Console, interval_s: float) -> None:
    with keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(poll_group.view(), console.width, console.height), refresh=True)
            if QUIT in pressed(interval_s):
                return


def _settled(poll_group: PollGroup) -> View:
    """Return the first view in which every source has answered or failed, and no state is still pending."""
    deadline = Deadline(_ONCE_S)
    while True:
        view = poll_group.view()
        sources = [source for source in view.source_statuses.values() if not source.off]
        waiting = any(source.age_s is None and source.stale is None for source in sources)
        looking = LOOKING in view.totals.states or (bool(view.rows) and view.totals.rate is None)
        failed = view.source_statuses["flow"].stale is not None  # no state and no rate will come
        if deadline.expired() or not (waiting or (looking and not failed)):
            return view
        _pause(_TICK_S)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
