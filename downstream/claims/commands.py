"""`downstream claims`: show who owns which partition, pause a group, set its position."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from brew import names
from brew.claims.messages import WHOLE_TOPIC
from brew.claims.state import Status
from brew.cli import REACH_S, as_called, bootstrap_option, checked_group, connection, option, options, printable
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import UsageError
from brew.kafka import offsets, topics
from brew.kafka.clients import admin, reach
from brew.kafka.cluster import broker_watch
from brew.kafka.offsets import offsets_at
from brew.names import ExitCode, checked_topic
from downstream.claims.admin import ClaimsSnapshot, Filter, Row, Watcher, administrator, pause, set_position

_COLOURS = {str(Status.FRESH): "green", str(Status.UNKNOWN): "yellow", str(Status.STALE): "red", "free": "dim"}


def document(snapshot: ClaimsSnapshot) -> dict[str, object]:
    return {
        "partitions": [row._asdict() for row in snapshot.rows],
        "members": [member._asdict() for member in snapshot.members],
        "pauses": [pause._asdict() for pause in snapshot.pauses],
    }


def tables(snapshot: ClaimsSnapshot, title: str) -> Group:
    """Return a table of partitions, followed by members and pauses if there are any."""
    shown = Table(title=escape(title), title_justify="left")
    for name in ("group", "topic", "partition", "owner", "state"):
        shown.add_column(name)
    for name in ("heartbeat age", "position", "token"):
        shown.add_column(name, justify="right")
    for row in snapshot.rows:
        shown.add_row(*_cells(row))
    where = "" if title == names.CLAIMS_TOPIC else f" --claims {title}"
    lines = [
        f"{pause.group}: paused by {pause.by}, for another {pause.ends_in_s:.0f} s; "
        f"`downstream claims release{where} --group {shlex.quote(pause.group)} --end` ends it"
        for pause in snapshot.pauses
    ]
    owners = {(row.group, row.topic, row.owner) for row in snapshot.rows if row.state != "free"}
    idle = [member.client for member in snapshot.members if (member.group, member.topic, member.client) not in owners]
    if idle:
        lines.append(f"members without partitions: {', '.join(idle)}")
    return Group(shown, *(escape(printable(as_called(line))) for line in lines))


def _cells(row: Row) -> list[str]:
    colour = _COLOURS[row.state]
    return [
        escape(printable(row.group)),
        escape(row.topic),
        "whole" if row.partition == WHOLE_TOPIC else str(row.partition),
        escape(printable(row.owner or "-")),
        f"[{colour}]{row.state}[/]",
        f"{row.heard_s_ago:.1f} s",
        "-" if row.position < 0 else str(row.position),
        str(row.token),
    ]


_ASK_S = 30.0
_WIDE = 240
_LOOK_S = 0.2
_REFRESH_S = 1.0
_LONGEST_S = 31_536_000  # a year; far longer ones don't fit into the log's format

_claims = options(
    bootstrap_option, option("--claims", default=names.CLAIMS_TOPIC, metavar="TOPIC", help="Claims topic.")
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
_shown = options(
    _claims,
    click.option("--group", callback=checked_group, metavar="GROUP", help="Show only this group."),
    click.option("--topic", metavar="TOPIC", help="Show only partitions of this topic."),
    _json,
)
_wait = option(
    "--wait-s",
    type=click.FloatRange(0, _LONGEST_S, min_open=True),
    default=30.0,
    help="Seconds that the members have to release their partitions.",
)


@click.group("claims")
def claims_group() -> None:
    """
    Show and change which member owns which partition, by claims (docs/CLAIMS.md).

    Examples:
      python -m downstream claims status                          who owns what
      python -m downstream claims watch --group brew-ledger       the same, live
      python -m downstream claims release --group brew-ledger     pause all members

    Exit codes: 0 done, 3 refused, 64 wrong usage.
    """


def _connected(bootstrap: str, claims: str) -> Connection:
    checked_topic(claims, "--claims")
    cluster = connection(bootstrap)
    reach(cluster, Deadline(REACH_S))
    return cluster


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else _WIDE, emoji=False)


@claims_group.command("status")
@_shown
def status_command(bootstrap: str, claims: str, group: str | None, topic: str | None, *, as_json: bool) -> int:
    """
    Show the current claims.

    Nothing is written, so ages are measured with this machine's clock: a wrong clock shows wrong ages.

    Examples:
      python -m downstream claims status
      python -m downstream claims status --group brew-ledger --json
    """
    with closing(Watcher(_connected(bootstrap, claims), claims)) as watcher:
        snapshot = watcher.snapshot(Filter(group, topic))
    if as_json:
        click.echo(json.dumps(document(snapshot), indent=2))
    else:
        _console().print(tables(snapshot, claims))
    return ExitCode.DONE


@claims_group.command("watch")
@_shown
def watch_command(bootstrap: str, claims: str, group: str | None, topic: str | None, *, as_json: bool) -> int:
    """
    Show the claims live until Ctrl-C or SIGTERM; with --json, one line per change.

    An outage of the brokers is reported: meanwhile, nobody is heard, and owners look stale.

    Examples:
      python -m downstream claims watch --group brew-ledger
      python -m downstream claims watch --json
    """
    wanted, cluster = Filter(group, topic), _connected(bootstrap, claims)

    def outages(report: Callable[[str], None]) -> AbstractContextManager[None]:
        return broker_watch(cluster, claims, "nobody is heard, and owners look stale", None, report)

    with closing(Watcher(cluster, claims)) as watcher:
        if as_json:
            with outages(partial(click.echo, err=True)):
                _lines(watcher, wanted)
        else:
            with (
                Live(console=_console(), auto_refresh=False) as live,
                outages(lambda text: live.console.print(Text(text))),
            ):
                while True:
                    live.update(tables(watcher.snapshot(wanted), claims), refresh=True)
                    _pass(watcher, _REFRESH_S)
    return ExitCode.DONE


def _lines(watcher: Watcher, wanted: Filter) -> None:
    shown: object = None
    while True:
        snapshot = watcher.snapshot(wanted)
        owners = [(row.group, row.topic, row.partition, row.owner, row.state, row.token) for row in snapshot.rows]
        if (now := (owners, [pause[:2] for pause in snapshot.pauses])) != shown:
            shown = now
            click.echo(json.dumps(document(snapshot)))
            sys.stdout.flush()
        _pass(watcher, _REFRESH_S)


def _pass(watcher: Watcher, seconds: float) -> None:
    """Wait for new log entries, at most ``seconds``."""
    deadline = Deadline(seconds)
    while not watcher.read_new() and not deadline.expired():
        time.sleep(_LOOK_S)


@claims_group.command("release")
@_claims
@click.option("--group", required=True, callback=checked_group, metavar="GROUP", help="Group to pause.")
@option(
    "--for-s", type=click.FloatRange(0, _LONGEST_S, min_open=True), default=60.0, help="Length of the pause in seconds."
)
@click.option("--end", is_flag=True, help="End the pause now.")
@_wait
def release_command(bootstrap: str, claims: str, group: str, for_s: float, wait_s: float, *, end: bool) -> int:
    """
    Pause a group: each member finishes its current work, releases its partitions, and claims none during the pause.

    Returns once no member owns a partition.

    Examples:
      python -m downstream claims release --group brew-ledger --for-s 600
      python -m downstream claims release --group brew-ledger --end
    """
    with administrator(_connected(bootstrap, claims), claims, group, claims) as member:
        if end:
            member.pause_group(0, Deadline(_ASK_S))
            click.echo(f"{group} is resumed")
        else:
            pause(member, Filter(group), for_s, wait_s)
            click.echo(f"{group} has released all partitions and claims none for {for_s:g} s")
    return ExitCode.DONE


@claims_group.command("set-position")
@_claims
@click.option("--group", required=True, callback=checked_group, metavar="GROUP", help="Group whose positions are set.")
@option("--topic", default=names.OUTPUT_TOPIC, metavar="TOPIC", help="Topic that the group reads.")
@click.option("--partitions", metavar="N,N", help="Partitions to set.  [default: all]")
@click.option(
    "--to",
    type=click.Choice(["earliest", "latest", "timestamp", "offset"]),
    required=True,
    help="Log start, last stable offset, first record at or after --at, or --offset.",
)
@click.option("--at", "moment", metavar="TIME", help="Time for --to timestamp, such as 2026-01-31T06:00:00Z.")
@click.option("--offset", type=click.IntRange(0), help="Offset for --to offset.")
@_wait
@_json
def set_position_command(
    bootstrap: str,
    claims: str,
    group: str,
    topic: str,
    partitions: str | None,
    wait_s: float,
    *,
    as_json: bool,
    **target: Any,
) -> int:
    """
    Set a group's positions: pause it, wait until no member owns a partition, write the positions, resume it.

    Examples:
      python -m downstream claims set-position --group brew-receive --to earliest
      python -m downstream claims set-position --group brew-receive --to timestamp --at 2026-01-31T06:00:00Z
      python -m downstream claims set-position --group brew-receive --to offset --offset 5000 --partitions 0,3
    """
    cluster = _connected(bootstrap, claims)
    client = admin(cluster)
    described = topics.describe_one(client, checked_topic(topic, "--topic"), Deadline(_ASK_S))
    wanted = _partitions(partitions, described.partitions)
    positions = _target(cluster, topic, wanted, **target)
    with administrator(cluster, claims, group, topic, wanted) as member:
        moved = set_position(member, positions, Filter(group, topic), wait_s)
    if as_json:
        click.echo(json.dumps([move._asdict() for move in moved], indent=2))
    else:
        for move in moved:
            click.echo(f"{topic}[{move.partition}]: {'-' if move.before < 0 else move.before} -> {move.after}")
    return ExitCode.DONE


def _partitions(text: str | None, there: int) -> tuple[int, ...]:
    words = list(map(str, range(there))) if text is None else [word.strip() for word in text.split(",")]
    wrong = [word for word in words if not word.isdecimal() or int(word) >= there]
    if wrong:
        raise UsageError(f"--partitions names {wrong}: the topic has partitions 0 to {there - 1}")
    return tuple(sorted({int(word) for word in words}))


def _target(
    connection: Connection, topic: str, partitions: tuple[int, ...], to: str, moment: str | None, offset: int | None
) -> Callable[[], Mapping[int, int]]:
    """Check the usage, then return a function that finds the positions once all members have stopped."""
    if (moment is None) is (to == "timestamp"):
        raise UsageError("--at TIME is required with --to timestamp, and allowed only there")
    if (offset is None) is (to == "offset"):
        raise UsageError("--offset N is required with --to offset, and allowed only there")
    time_ms = 0 if moment is None else _milliseconds(moment)
    client = admin(connection)

    def find() -> dict[int, int]:
        logs = offsets.log_offsets(client, topic, partitions, Deadline(_ASK_S))
        if to == "earliest":
            return {p: log.first for p, log in logs.items()}
        if to == "latest":
            return {p: log.last_stable for p, log in logs.items()}
        if offset is not None:
            return {p: min(max(offset, log.first), log.end) for p, log in logs.items()}
        timed = offsets_at(client, topic, partitions, time_ms, Deadline(_ASK_S))
        return {p: log.last_stable if (timed_offset := timed[p]) is None else timed_offset for p, log in logs.items()}

    return find


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--at is {text!r}: give a time such as 2026-01-31T06:00:00Z") from error
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return max(0, int(aware.timestamp() * 1000))  # brokers take -1 for the log's end
