"""Commands that show what the brokers hold."""

from __future__ import annotations

import dataclasses
import sys

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from proof import logs
from proof.commands.options import connected, group_option, json_option, say_json, topic_option
from protocol import names
from protocol.client_option import bootstrap_option
from protocol.deadline import Deadline
from protocol.names import checked_topic

_ASK_S = 30.0
_READ_S = 3600.0
_WIDE = 160


def show(table: Table) -> None:
    """On a terminal as wide as that; elsewhere wide enough to cut nothing off."""
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)


def _table(title: str, texts: list[str], numbers: list[str]) -> Table:
    table = Table(title=escape(title), title_justify="left")
    for text in texts:
        table.add_column(text, no_wrap=True)
    for number in numbers:
        table.add_column(number, justify="right", no_wrap=True)
    return table


@click.command("group-describe")
@bootstrap_option
@group_option
@topic_option("--topic", names.INPUT_TOPIC, "The topic that the group reads.")
@json_option
def group_describe(bootstrap: str, group: str, topic: str, as_json: bool) -> None:
    """
    Show where the group stands: committed offset, last stable offset (LSO), log end and lag per partition.

    The lag is LSO minus committed. Offsets behind the LSO wait for an open transaction, which is named.

    \b
    Example:
      python -m proof group-describe --group brew-enricher --topic brew.orders.v1
    """  # noqa: D301 - click's own mark
    found = logs.group_position(connected(bootstrap), group, topic, Deadline(_ASK_S))
    if as_json:
        say_json(_group_document(found))
        return
    title = f"group {group} in {topic}: {found.state}, {found.members} members"
    table = _table(title, ["partition"], ["committed", "LSO", "log end", "lag", "behind LSO"])
    for one in found.partitions:
        at = "-" if one.committed is None else str(one.committed)
        log = one.offsets
        cells = (one.partition, at, log.last_stable, log.end, one.lag, one.behind_stable)
        table.add_row(*map(str, cells))
    totals = (sum(p.lag for p in found.partitions), sum(p.behind_stable for p in found.partitions))
    table.add_section()
    table.add_row("all", "", "", "", *map(str, totals))
    show(table)
    for blocker in found.blockers:
        click.echo(f"open transaction in {blocker}")


def _group_document(found: logs.GroupPosition) -> dict[str, object]:
    return {
        "group": found.group,
        "topic": found.topic,
        "state": found.state,
        "members": found.members,
        "partitions": [
            {
                "partition": one.partition,
                "committed": one.committed,
                "first": one.offsets.first,
                "last_stable": one.offsets.last_stable,
                "end": one.offsets.end,
                "lag": one.lag,
                "behind_stable": one.behind_stable,
            }
            for one in found.partitions
        ],
        "lag": sum(one.lag for one in found.partitions),
        "behind_stable": sum(one.behind_stable for one in found.partitions),
        "open_transactions": [dataclasses.asdict(blocker) for blocker in found.blockers],
    }


@click.command("end-offsets")
@bootstrap_option
@click.option("--topic", "wanted", multiple=True, metavar="TOPIC", help="May be given again  [default: all topics]")
@json_option
def end_offsets(bootstrap: str, wanted: tuple[str, ...], as_json: bool) -> None:
    """
    Show what lies in every partition: visible, waiting, aborted, open and control records.

    Waiting records stand behind the last stable offset (LSO); open ones belong to transactions that have not ended.

    \b
    Examples:
      python -m proof end-offsets
      python -m proof end-offsets --topic brew.orders.v1 --topic brew.orders.enriched --json
    """  # noqa: D301 - click's own mark
    asked = [checked_topic(name, "--topic") for name in wanted]
    found = logs.end_offsets(connected(bootstrap), asked, Deadline(_READ_S))
    if as_json:
        say_json([_log_document(log) for log in found])
        return
    numbers = ["partition", "first", "LSO", "end", "visible", "waiting", "aborted", "open", "control"]
    table = _table("", ["topic"], numbers)
    last = None
    for log in found:
        if last not in {None, log.topic}:
            table.add_section()
        cells = (log.partition, *dataclasses.astuple(log.offsets), *dataclasses.astuple(log.counts))
        table.add_row(log.topic if log.topic != last else "", *map(str, cells))
        last = log.topic
    show(table)


def _log_document(log: logs.PartitionLog) -> dict[str, object]:
    place = {"topic": log.topic, "partition": log.partition}
    return {**place, **dataclasses.asdict(log.offsets), **dataclasses.asdict(log.counts)}
