"""`pipeline doctor`: hanging and lingering transactions, whose they are, who waits, and how they end."""

from __future__ import annotations

import sys
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from pipeline.operate.judge.cases import (
    SICK,
    Case,
    Kind,
    Waiting,
    chosen,
    ends_by_fence,
    own_command,
    read_again,
    unmatched,
    waiting,
)
from pipeline.operate.options import advised, bootstrap_option, connected, json_option, say_json, show
from pipeline.operate.ward import Ward, end, examine
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Refused, UsageError
from protocol.names import ExitCode

_ASK_S = 60.0
_END_S = 30.0
_STYLES = {Kind.HANGING: "bold red", Kind.LINGERING: "yellow", Kind.UNKNOWN: "cyan", Kind.OPEN: "green"}


@click.command("doctor")
@bootstrap_option
@click.option("--topic", "topics", multiple=True, help="Look at this topic only; repeatable.  [default: all]")
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    help="Seconds; a transaction open for longer is lingering, although its own time-out is longer.",
)
@click.option("--groups", type=click.IntRange(1), default=500, show_default=True, help="Ask of so many, at most.")
@click.option("--abort", "abort", is_flag=True, help="End the named ones, or all sick ones.")
@click.option("--transaction", "names", multiple=True, metavar="ID", help="Its id, or TOPIC/PARTITION/PRODUCER.")
@click.option("--all", "everything", is_flag=True, help="All that are hanging or lingering.")
@click.option("--yes", is_flag=True, help="Ask nothing.")
@json_option
@advised()
def doctor(
    bootstrap: str, topics: tuple[str, ...], *, names: tuple[str, ...], as_json: bool, **option: Any
) -> ExitCode:
    """
    Find hanging and lingering transactions, say whose they are and who waits behind them; end them with --abort.

    Hanging: a partition holds a transaction open that its coordinator does not know of; nobody will end it.
    Lingering: open for longer than its time-out, or than --older-than. Reads only, unless --abort is given.

    \b
    Examples:
      python -m pipeline doctor
      python -m pipeline doctor --older-than 10 --topic brew.orders.enriched --json
      python -m pipeline doctor --abort --transaction brew-enricher:brew.orders.v1:2
      python -m pipeline doctor --abort --all --yes

    \b
    Exit codes: 0 nothing sick (any more), 1 sick transactions found, 3 refused or out of reach, 64 wrong usage.
    """  # noqa: D301 - click's own mark
    _check_usage(names, as_json=as_json, **option)
    connection, look = connected(bootstrap), (topics, option["older_than"], option["groups"])
    ward = examine(connection, *look, Deadline(_ASK_S))
    ended: list[Case] = []
    if not as_json:
        show(*drawn(ward, bootstrap))
    if option["abort"]:
        picked = _picked(ward, names, everything=option["everything"])
        for case in picked:
            if option["yes"] or click.confirm(f"end {_name(case)}? {_price(case, ward)}"):
                end(connection, case, Deadline(_END_S))
                ended.append(case)
                if not as_json:
                    show(Text(f"ended {_name(case)}; {_price(case, ward)}"))
    sick = [one for one in ward.cases if one.kind in SICK and one not in ended]
    if as_json:
        say_json(_document(ward, ended, connection))
    elif not option["abort"]:
        _advise(sick)
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


def _picked(ward: Ward, names: tuple[str, ...], *, everything: bool) -> list[Case]:
    if unknown := unmatched(ward.cases, names):
        raise Refused(f"no open transaction is named {unknown[0]!r}; `pipeline doctor` lists those that are there")
    return chosen(ward.cases, names, everything=everything)


def _name(case: Case) -> str:
    return case.names[0]


def _price(case: Case, ward: Ward) -> str:
    return f"read again: {read_again(case, ward.groups)}"


def _advise(sick: list[Case]) -> None:
    if not sick:
        click.echo("nothing is hanging or lingering")
        return
    lines = (
        f"{len(sick)} to end: if its owner is gone, `pipeline doctor --abort --transaction {_name(sick[0])}`, "
        "or --abort --all; an owner that is still alive is fenced by that"
    )
    show(Text(lines))


def _document(ward: Ward, ended: list[Case], connection: Connection) -> dict[str, Any]:
    return {
        "sick": sum(one.kind in SICK and one not in ended for one in ward.cases),
        "ended": [_name(one) for one in ended],
        "not_told": ward.not_told,
        "transactions": [_row(one, ward, connection.bootstrap) for one in ward.cases],
    }


def _row(case: Case, ward: Ward, bootstrap: str) -> dict[str, Any]:
    known, owner = case.known, case.owner
    return {
        "kind": case.kind.value,
        "why": case.why,
        "transactional_id": case.transactional_id,
        "producer_id": case.producer_id,
        "producer_epoch": case.producer_epoch,
        "state": None if known is None else known.state,
        "age_s": None if case.age_s is None else round(case.age_s, 1),
        "timeout_s": None if known is None else known.timeout_ms / 1000,
        "pipeline": None
        if owner is None
        else {"group": owner.group, "input": owner.topic, "partition": owner.partition},
        "holds": [_wait(one) for one in waiting(case, ward.bounds, ward.groups)],
        "read_again": read_again(case, ward.groups),
        "ends_by": "fence" if ends_by_fence(case) else "marker",
        "commands": [] if ends_by_fence(case) else [own_command(bootstrap, one) for one in case.holds],
    }


def _wait(one: Waiting) -> dict[str, Any]:
    return {
        "topic": one.held.topic,
        "partition": one.held.partition,
        "from_offset": one.held.first_offset,
        "offsets_waiting": one.offsets,
        "groups_at_it": list(one.at_it),
        "groups_on_the_way": list(one.on_the_way),
    }


def drawn(ward: Ward, bootstrap: str) -> list[RenderableType]:
    """A panel per transaction; none is a good sign."""
    parts: list[RenderableType] = [_panel(one, ward, bootstrap) for one in ward.cases]
    parts += [Text(f"not told: {one}", "cyan") for one in ward.not_told]
    return parts or [Text("no transaction is open")]


def _panel(case: Case, ward: Ward, bootstrap: str) -> Panel:
    row = _row(case, ward, bootstrap)
    age = "" if case.age_s is None else f", open for {case.age_s:.0f} s of {row['timeout_s']:g} s"
    lines = [Text(case.why), Text(f"producer {case.producer_id}, epoch {case.producer_epoch}{age}")]
    if case.owner is not None:
        lines.append(Text(f"pipeline of group {case.owner.group}, input {case.owner.topic}[{case.owner.partition}]"))
    for one in row["holds"]:
        place = f"{one['topic']}[{one['partition']}] from offset {one['from_offset']}"
        groups = [f"{name} waits" for name in one["groups_at_it"]]
        groups += [f"{name} is on its way" for name in one["groups_on_the_way"]]
        told = "; ".join(groups) or "no group has a position there"
        lines.append(Text(f"holds back {place}: {one['offsets_waiting']:,} offsets wait; {told}"))
    if not row["holds"]:
        lines.append(Text("holds no partition back yet"))
    if case.kind is Kind.HANGING:
        lines += [Text(f"Kafka's own command: {command}") for command in row["commands"]]
    lines.append(Text(f"read again after an abort: {row['read_again']}"))
    style = _STYLES[case.kind]
    return Panel(Group(*lines), title=Text(f"{case.kind.value}: {_name(case)}", style), title_align="left")
