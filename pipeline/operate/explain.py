"""`pipeline explain`: where one order is, and why it came twice."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from pipeline.operate import trace
from pipeline.operate.judge.fate import Fate
from pipeline.operate.judge.story import BROKEN, Copy, Story, answer
from pipeline.operate.options import (
    advised,
    bootstrap_option,
    connected,
    dead_letter_option,
    group_option,
    input_option,
    json_option,
    output_option,
    say_json,
    show,
)
from pipeline.operate.trace import Places, Tracer
from protocol.deadline import Deadline
from protocol.errors import UsageError
from protocol.kafka.transactions import transactions
from protocol.names import ExitCode
from protocol.position import SourcePosition

_PLACE = re.compile(r"([a-zA-Z0-9._-]{1,249})/(\d{1,9})/(\d{1,18})")
_SPAN = re.compile(r"(\d{1,6})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ALL_S = 3600.0
_STYLES = {Fate.COMMITTED: "green", Fate.PLAIN: "green", Fate.ABORTED: "dim", Fate.OPEN: "yellow"}


@click.command("explain")
@click.argument("what", metavar="KEY|TOPIC/PARTITION/OFFSET")
@bootstrap_option
@input_option
@output_option
@dead_letter_option
@group_option
@click.option("--key", "is_key", is_flag=True, help="It is a key, although it looks like a place.")
@click.option("--since", metavar="TIME", help="Of a key: input from then on: 90s, 15m, 2h, 7d, 2026-11-21T08:00.")
@click.option("--limit", type=click.IntRange(1, 1000), default=5, show_default=True, help="Of a key: the last so many.")
@json_option
@advised()
def explain(what: str, bootstrap: str, *, limit: int, is_key: bool, as_json: bool, **more: Any) -> ExitCode:
    """
    Tell an order's way: where it is, which copies of it lie in the logs, who sees them, and by which rule.

    Takes a key, or a place on the input, output or dead-letter topic. Reads the logs, which takes a while where they
    are long; a key is searched from --since on.

    \b
    Examples:
      python -m pipeline explain gold-000017
      python -m pipeline explain brew.orders.v1/2/10441
      python -m pipeline explain brew.orders.enriched/2/20893 --json
      python -m pipeline explain gold-000017 --since 2h --limit 1

    \b
    Exit codes: 0 told, 1 it breaks the promise (twice, lost, ghost), 3 refused or out of reach, 64 wrong usage.
    """  # noqa: D301 - click's own mark
    places = Places(more["topic"], more["output"], more["dead_letter"], more["group"])
    since_ms = None if more["since"] is None else since(more["since"], time.time())
    place = None if is_key else _PLACE.fullmatch(what)
    if place is not None and place[1] not in places.topics:
        raise UsageError(
            f"{what!r} is a place on none of {', '.join(places.topics)}; name those topics, or say --key if it is a key"
        )
    connection = connected(bootstrap)
    with transactions(connection, Deadline(_ALL_S)) as told, _progress() as progress:
        tracer = Tracer(connection, places, told, progress)
        asked, count = _asked(tracer, what, place, since_ms, limit)
        stories = tracer.stories(asked)
    answers = [answer(story)[0] for story in stories]
    if as_json:
        documents = [document(story) for story in stories]
        say_json({"what": what, "found": count, "not_told": tracer.not_told, "orders": documents})
    else:
        show(*(drawn(document(story)) for story in stories))
        show(*(Text(f"not told: {one}", "cyan") for one in tracer.not_told))
        if not stories:
            click.echo(
                f"no record of {places.input} has the key {what!r}; look further back with --since, or name a place"
            )
        elif count > len(stories):
            click.echo(f"{count} records have that key, these are the last {len(stories)}; --limit {count} tells all")
    return ExitCode.VIOLATION if BROKEN & set(answers) else ExitCode.DONE


def _asked(
    tracer: Tracer, what: str, place: re.Match[str] | None, since_ms: int | None, limit: int
) -> tuple[list[SourcePosition], int]:
    if place is None:
        return tracer.by_key(what.encode(), since_ms, limit)
    return [tracer.origin(place[1], int(place[2]), int(place[3]))], 1


def since(text: str, now_s: float) -> int:
    """
    `2h` or a date, as milliseconds since the epoch; a date without a zone is UTC.

    Raises:
        UsageError: it is neither.
    """
    if span := _SPAN.fullmatch(text):
        return int((now_s - int(span[1]) * _SECONDS[span[2]]) * 1000)
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise UsageError(f"--since is {text!r}: write 90s, 15m, 2h, 7d, or 2026-11-21T08:00") from error
    return int((when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() * 1000)


@contextlib.contextmanager
def _progress() -> Iterator[trace.Progress]:
    """A bar on stderr while a log is read, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def tell(topic: str, read: int, total: int) -> None:
            if topic not in tasks:
                tasks[topic] = bar.add_task(f"reading {topic}", total=total)
            bar.update(tasks[topic], completed=read, total=total)

        yield tell


def document(story: Story) -> dict[str, Any]:
    """One order as JSON."""
    verdict, why = answer(story)
    return {
        "order": f"{story.at.topic}/{story.at.partition}/{story.at.offset}",
        "answer": verdict.value,
        "why": why,
        "group": {"committed": story.position, "view": story.group_view()},
        "input": None if story.source is None else _copy(story.source),
        "copies": [_copy(one) for one in story.copies],
    }


def _copy(one: Copy) -> dict[str, Any]:
    written = one.written
    return {
        "role": one.role,
        "at": f"{one.topic}/{one.partition}/{one.offset}",
        "fate": written.fate.value,
        "producer_id": written.producer_id,
        "producer_epoch": written.producer_epoch,
        "transactional_id": one.transactional_id,
        "committed_until": one.until,
        "marker": written.marker_offset,
        "marker_epoch": written.marker_epoch,
        "visible": one.view.visible,
        "rule": one.view.rule,
    }


def drawn(told: dict[str, Any]) -> Group:
    """One order for people."""
    table = Table(pad_edge=False, show_lines=False)
    table.add_column("where", overflow="fold")
    table.add_column("fate", no_wrap=True)
    table.add_column("transaction", overflow="fold")
    table.add_column("read_committed sees it?", ratio=1, overflow="fold")
    rows = [told["input"]] if told["input"] is not None else []
    for row in [*rows, *told["copies"]]:
        fate = Fate(row["fate"])
        seen = Text("yes: " if row["visible"] else "no: ", "green" if row["visible"] else "yellow")
        table.add_row(
            f"{row['role']}\n{row['at']}",
            Text(row["fate"], _STYLES.get(fate, "red")),
            _transaction(row),
            seen.append(row["rule"], "default"),
        )
    style = "bold red" if told["answer"] in {one.value for one in BROKEN} else "bold"
    head = Text(f"{told['order']}: ").append(told["answer"], style).append(f": {told['why']}")
    return Group(head, table, Text(f"group: {told['group']['view']}"))


def _transaction(row: dict[str, Any]) -> str:
    if row["fate"] in {Fate.PLAIN, Fate.UNKNOWN}:
        return "none" if row["fate"] == Fate.PLAIN else "-"
    lines = [row["transactional_id"] or "", f"producer {row['producer_id']}, epoch {row['producer_epoch']}"]
    if row["committed_until"] is not None:
        lines.append(f"input range up to {row['committed_until']}")
    return "\n".join(line for line in lines if line)
