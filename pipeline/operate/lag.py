"""`pipeline lag`: what is left to read, and what each partition is doing."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.operate.judge.lag import Look, State, Told, tell
from pipeline.operate.judge.remain import Remaining
from pipeline.operate.look import Observer
from pipeline.operate.options import (
    advised,
    bootstrap_option,
    connected,
    group_option,
    input_option,
    json_option,
    say_json,
    show,
)
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, KafkaFailure, Refused, UsageError
from protocol.names import ExitCode

_ASK_S = 30.0
_STYLES = {
    State.IDLE: "dim",
    State.WORKING: "green",
    State.BLOCKED: "yellow",
    State.FENCED: "bold red",
    State.STUCK: "bold red",
}


@click.command("lag")
@bootstrap_option
@input_option
@group_option
@click.option(
    "--interval", type=click.FloatRange(0.1, 3600), default=1.0, show_default=True, help="Seconds between two looks."
)
@click.option("--watch", is_flag=True, help="Look again and again until SIGTERM or Ctrl-C; --json: a line per look.")
@click.option(
    "--exact",
    type=click.IntRange(0, 10_000_000),
    default=20_000,
    show_default=True,
    help="Count records in a lag of up to so many offsets; a longer one is told as 'at most'.",
)
@click.option(
    "--fail-on",
    type=click.Choice([one.value for one in State]),
    multiple=True,
    help="Exit 1 where a partition is in this state; repeatable.  [default: none]",
)
@click.option(
    "--fail-older-than",
    type=click.FloatRange(0),
    metavar="SECONDS",
    help="Exit 1 where a record that can be read is older.  [default: never]",
)
@json_option
@advised()
def lag(
    bootstrap: str,
    topic: str,
    group: str,
    *,
    interval: float,
    exact: int,
    watch: bool,
    fail_on: tuple[str, ...],
    fail_older_than: float | None,
    as_json: bool,
) -> ExitCode:
    """
    Tell per partition how many records are left to read, how old the oldest of them is, and what it is doing.

    The lag is counted up to the last stable offset, in records: markers and aborted records are none. States: idle,
    working, blocked (by whose open transaction), fenced (attempts begin and none commits), stuck (nothing moves).

    \b
    Examples:
      python -m pipeline lag
      python -m pipeline lag --group brew-enricher --interval 5 --json
      python -m pipeline lag --watch
      python -m pipeline lag --fail-on stuck --fail-on fenced --interval 30
      python -m pipeline lag --fail-older-than 300

    \b
    Exit codes: 0 told, 1 as a --fail option says, 3 refused or out of reach, 64 wrong usage.
    """  # noqa: D301 - click's own mark
    if watch and (fail_on or fail_older_than is not None):
        raise UsageError("--watch has no end to fail at: say --fail-... without it, and a longer --interval")
    with Observer(connected(bootstrap), topic, group, exact) as observer:
        before = observer.look(Deadline(_ASK_S))
        if not watch:
            document = _next(observer, before, interval)[1]
            say_json(document | {"topic": topic, "group": group}) if as_json else show(table(document, topic, group))
            bad = bool(set(fail_on) & document["states"].keys()) or late(document, fail_older_than)
            return ExitCode.VIOLATION if bad else ExitCode.DONE
        _watch(observer, before, interval, topic, group, as_json=as_json)
    return ExitCode.DONE


def late(document: Mapping[str, Any], limit_s: float | None) -> bool:
    """
    Whether a record that can be read is older.

    Raises:
        Refused: a partition's age is not told, and none that is told is older.
    """
    if limit_s is None or (document["lag_s"] or 0) > limit_s:
        return limit_s is not None
    if untold := [row["partition"] for row in document["partitions"] if row["lag_s"] is None]:
        raise Refused(
            f"--fail-older-than is {limit_s:g} and the age of what waits in partition {untold[0]} is not told "
            f"({document['not_told'] or 'its first record has no timestamp, or lies behind many aborted ones'}); "
            "look with --json, or fail by state (--fail-on)"
        )
    return False


def _watch(observer: Observer, before: list[Look], interval_s: float, topic: str, group: str, *, as_json: bool) -> None:
    """Until a signal ends the program."""
    with contextlib.nullcontext() if as_json else Live(auto_refresh=False) as live:
        while True:
            try:
                before, document = _next(observer, before, interval_s)
            except (DeadlineExceeded, KafkaFailure) as error:  # brokers come back; whoever watches wants to see that
                document = document_of([], [], 0, str(error)) | {"exact": False}
            if live is None:
                say_json(document | {"topic": topic, "group": group}, lines=True)
            else:
                live.update(table(document, topic, group), refresh=True)


def _next(observer: Observer, before: list[Look], interval_s: float) -> tuple[list[Look], dict[str, Any]]:
    threading.Event().wait(interval_s)
    now = observer.look(Deadline(_ASK_S))
    return now, document_of(before, now, int(time.time() * 1000), observer.silent)


def document_of(before: list[Look], now: list[Look], now_ms: int, silent: str | None) -> dict[str, Any]:
    """Two looks as one document; partitions that are new since the first are compared with themselves."""
    known: Mapping[int, Look] = {one.partition: one for one in before}
    told = [(one, tell(known.get(one.partition, one), one, now_ms)) for one in now]
    total = Remaining(sum(one.remaining.records for one in now), all(one.remaining.exact for one in now))
    ages = [age for one in now if (age := one.lag_s(now_ms)) is not None]
    return {
        "remaining": total.records,
        "exact": total.exact,
        "lag_s": round(max(ages), 1) if ages else None,
        "states": Counter(one.state.value for _, one in told),
        "not_told": silent,
        "partitions": [_row(look, one, now_ms) for look, one in told],
    }


def _row(look: Look, told: Told, now_ms: int) -> dict[str, Any]:
    age_s = look.lag_s(now_ms)
    holders = [
        {
            "producer_id": one.producer_id,
            "producer_epoch": one.producer_epoch,
            "transactional_id": one.transactional_id,
            "first_offset": one.first_offset,
            "age_s": None if one.age_s is None else round(one.age_s, 1),
        }
        for one in look.holders
    ]
    return {
        "partition": look.partition,
        "state": told.state.value,
        "why": told.why,
        "committed": None if look.committed is None else look.committed.offset,
        "log_start": look.log.first,
        "last_stable": look.log.last_stable,
        "end": look.log.end,
        "remaining": look.remaining.records,
        "exact": look.remaining.exact,
        "lag_s": None if age_s is None else round(age_s, 1),
        "held_by": holders,
    }


def table(document: Mapping[str, Any], topic: str, group: str) -> Group:
    """The same for people."""
    drawn = Table(title=Text(f"group {group} in {topic}"), title_justify="left", pad_edge=False)
    for name in ("p", "committed", "LSO", "end", "to read", "oldest"):
        drawn.add_column(name, justify="right", no_wrap=True)
    drawn.add_column("state", no_wrap=True)
    drawn.add_column("why", ratio=1, overflow="fold")
    for row in document["partitions"]:
        state = State(row["state"])
        at = "-" if row["committed"] is None else f"{row['committed']:,}"
        left = str(Remaining(row["remaining"], row["exact"])).replace("at most ", "≤ ")
        cells = (str(row["partition"]), at, f"{row['last_stable']:,}", f"{row['end']:,}", left, _age(row["lag_s"]))
        drawn.add_row(*cells, Text(state.value, _STYLES[state]), Text(row["why"]))
    total = str(Remaining(document["remaining"], document["exact"]))
    oldest = f", the oldest is {_age(document['lag_s'])} old" if document["lag_s"] else ""
    lines = [Text(f"{total} records to read{oldest}")]
    if document["not_told"]:
        lines.append(Text(f"not told: {document['not_told']}", "cyan"))
    return Group(drawn, *lines)


def _age(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:,.0f} s"
