"""`pipeline doctor`: hanging and lingering transactions, whose they are, who waits, and how they end."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.text import Text

from pipeline.operate.chart import drawn, row
from pipeline.operate.ending import ENDED, Account, end_each
from pipeline.operate.judge.cases import Case, Kind, chosen, read_again, unmatched
from pipeline.operate.options import advised, bootstrap_option, connected, json_option, say_json, show
from pipeline.operate.ward import Scope, Ward, examine
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Refused, UsageError
from protocol.names import ExitCode

_ASK_S = 60.0
_OLDER_THAN_S = 60.0


@click.command("doctor")
@bootstrap_option
@click.option("--topic", "topics", multiple=True, help="Look at this topic only; repeatable.  [default: all]")
@click.option("--group", help="Look at this pipeline's transactions only.  [default: everybody's]")
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    help="Seconds; a transaction open for longer is lingering, although its own time-out is longer.  [default: 60]",
)
@click.option("--groups", type=click.IntRange(1), default=500, show_default=True, help="Ask of so many, at most.")
@click.option("--abort", "abort", is_flag=True, help="End the named ones, or --all.")
@click.option("--transaction", "names", multiple=True, metavar="ID", help="Its id, or TOPIC/PARTITION/PRODUCER.")
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="All that hang or are past their own time-out; with --older-than, and --topic or --group, all that linger.",
)
@click.option("--yes", is_flag=True, help="Ask nothing.")
@json_option
@advised()
def doctor(bootstrap: str, *, names: tuple[str, ...], as_json: bool, **option: Any) -> ExitCode:
    """
    Find hanging and lingering transactions, say whose they are and who waits behind them; end them with --abort.

    Hanging: a partition holds a transaction open that its coordinator does not know of; nobody will end it.
    Lingering: open for longer than its time-out, or than --older-than. Reads only, unless --abort is given, and asks
    again right before it ends one: what is over by then, or begun anew, is left alone.

    \b
    Examples:
      python -m pipeline doctor
      python -m pipeline doctor --older-than 10 --topic brew.orders.enriched --json
      python -m pipeline doctor --abort --transaction brew-enricher:brew.orders.v1:2
      python -m pipeline doctor --abort --all --yes
      python -m pipeline doctor --abort --all --group brew-enricher --older-than 10

    \b
    Exit codes: 0 nothing sick (any more), 1 sick transactions found, 3 refused, out of reach, or one was not ended,
    64 wrong usage.
    """  # noqa: D301 - click's own mark
    _check_usage(names, as_json=as_json, **option)
    older_than_s = _OLDER_THAN_S if option["older_than"] is None else option["older_than"]
    scope = Scope(option["topics"], option["group"], older_than_s, option["groups"])
    connection = connected(bootstrap)
    ward = examine(connection, scope, Deadline(_ASK_S))
    if not as_json:
        show(*drawn(ward, bootstrap))
    account = _treated(connection, ward, names, as_json=as_json, **option) if option["abort"] else Account()
    sick = account.sick(ward.cases)
    if as_json:
        told = {"sick": len(sick), **account.document(), "not_told": ward.not_told}
        say_json(told | {"transactions": [row(one, ward, bootstrap) for one in ward.cases]})
    elif not option["abort"]:
        _advise(sick)
    if account.failed:
        return ExitCode.REFUSED
    return ExitCode.VIOLATION if sick else ExitCode.DONE


def _check_usage(
    names: tuple[str, ...], *, abort: bool, everything: bool, yes: bool, as_json: bool, **_others: Any
) -> None:
    if abort and not names and not everything:
        raise UsageError("--abort needs to know what: name each with --transaction ID, or say --all")
    if (names or everything or yes) and not abort:
        raise UsageError("--transaction, --all and --yes say what to end: say --abort, too")
    if abort and not yes and (as_json or not sys.stdin.isatty()):
        raise UsageError("--abort asks before it ends anything, and nobody is there to answer; say --yes")


def _treated(
    connection: Connection, ward: Ward, names: tuple[str, ...], *, yes: bool, as_json: bool, **option: Any
) -> Account:
    """End what is meant; without ``as_json`` each is told as soon as it is known."""
    if unknown := unmatched(ward.cases, names):
        raise Refused(f"no open transaction is named {unknown[0]!r}; `pipeline doctor` lists those that are there")
    everything = option["everything"]
    young = option["older_than"] is not None and bool(option["topics"] or option["group"])
    picked = chosen(ward.cases, names, everything=everything, young=young)

    def agreed(case: Case) -> bool:
        return yes or click.confirm(f"end {case.names[0]}? {_price(case, ward)}")

    def told(case: Case, outcome: str) -> None:
        if not as_json:
            price = f"; {_price(case, ward)}" if outcome == ENDED else ""
            show(Text(f"{case.names[0]}: {outcome}{price}"))

    account = end_each(connection, picked, agreed, told)
    spared = [one for one in ward.cases if everything and one.kind is Kind.LINGERING and one not in picked]
    for case in spared:
        told(case, "left alone, it is within its own time-out; --older-than with --topic or --group ends it, too")
    account.left += spared
    return account


def _price(case: Case, ward: Ward) -> str:
    return f"read again: {read_again(case, ward.groups)}"


def _advise(sick: list[Case]) -> None:
    if not sick:
        click.echo("nothing is hanging or lingering")
        return
    lines = (
        f"{len(sick)} to end: if its owner is gone, `pipeline doctor --abort --transaction {sick[0].names[0]}`; "
        "an owner that is still alive is fenced by that. --abort --all ends those that hang or are past their time-out"
    )
    show(Text(lines))
