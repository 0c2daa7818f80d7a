"""`pipeline xray`: the log as people should see it, on the terminal, as a page, or as a picture."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from brew.errors import UsageError
from brew.names import ExitCode, checked_topic
from operations.options import (
    bootstrap_option,
    connected,
    group_option,
    input_option,
    json_option,
    output_option,
    say_json,
)
from operations.xray import collect, text
from operations.xray import html as xray_html
from operations.xray.collect import Window, XrayCollector, XrayRequest
from operations.xray.text import document
from operations.xray.timeline import Xray

_LAST = 1_000_000


def _topics(_context: click.Context, _parameter: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(checked_topic(one, "--topic") for one in value)


def _file(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    if value is not None and value.suffix not in {".html", ".svg"}:
        raise UsageError(f"--out is {str(value)!r}: its name has to end in .html (a page with a slider) or .svg")
    return value


@click.command("xray")
@bootstrap_option
@input_option
@output_option
@group_option
@click.option("--topic", "others", multiple=True, callback=_topics, help="This one instead of both; repeatable.")
@click.option("--from", "start", type=click.IntRange(0), metavar="OFFSET", help="Of each partition, from there on.")
@click.option("--to", "until", type=click.IntRange(0), metavar="OFFSET", help="Of each partition, up to there.")
@click.option(
    "--last", type=click.IntRange(0), metavar="N", help=f"Of each partition, the last N offsets  [{_LAST:,}]; 0: all."
)
@click.option("--out", type=click.Path(path_type=Path, dir_okay=False), callback=_file, help="FILE.html or FILE.svg.")
@click.option(
    "--journal",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Of `pipeline run --journal DIR`: its steps, for the slider.",
)
@json_option
def xray(
    bootstrap: str,
    others: tuple[str, ...],
    start: int | None,
    until: int | None,
    last: int | None,
    out: Path | None,
    journal: Path | None,
    *,
    as_json: bool,
    **more: str,
) -> ExitCode:
    """
    Show what lies in the logs: committed, aborted and open records and both kinds of markers, in offset order, with
    log start, last stable offset, high watermark and the group's position. Reads only.

    Without --out it draws on the terminal. A page has a slider over time, and needs nothing but itself.

    \b
    Examples:
      python -m pipeline xray
      python -m pipeline xray --out xray.html
      python -m pipeline xray --out xray.html --journal journal --last 10000
      python -m pipeline xray --topic brew.orders.dlq --from 100 --to 200
      python -m pipeline xray --json

    \b
    Exit codes: 0 shown, 3 refused or out of reach, 64 wrong usage.
    """  # noqa: D301 - click's own mark
    window = window_of(start, until, last)
    roles = {more["topic"]: "input", more["output"]: "output"} if not others else {name: name for name in others}
    html = out is not None and out.suffix == ".html"
    wanted = XrayRequest(roles, more["topic"], more["group"], window, journal, over_time=html)
    with _progress() as progress:
        found = XrayCollector(connected(bootstrap), wanted, progress).take(int(time.time() * 1000))
    if out is not None:
        out.write_text(xray_html.page(found) if html else xray_html.svg_document(found), "utf-8")
    if as_json:
        say_json(document(found))
    elif out is not None:
        click.echo(_summary(found, out))
    else:
        console = Console(soft_wrap=True)
        for line in text.lines(found, console.width):
            console.print(line)
    return ExitCode.DONE


def window_of(start: int | None, until: int | None, last: int | None) -> Window:
    """
    The offsets that were asked for.

    Raises:
        UsageError: they exclude each other, or nothing lies between.
    """
    if last is not None and start is not None:
        raise UsageError(f"--last is {last} and --from is {start}: choose one, or --last with --to")
    if start is not None and until is not None and start >= until:
        raise UsageError(f"--from is {start} and --to is {until}: nothing lies between; set --to above --from")
    return Window(start, until, last if last is not None else 0 if start is not None else _LAST)


def _summary(found: Xray, out: Path) -> str:
    offsets = sum(strip.until - strip.start for strip in found.strips)
    notes = "".join(f"\nnot told: {one}" for one in found.not_told)
    return f"{out}: {len(found.strips)} partitions, {offsets:,} offsets, {out.stat().st_size / 1000:,.0f} kB{notes}"


@contextlib.contextmanager
def _progress() -> Iterator[collect.Progress]:
    """A bar on stderr while a log is read, where that is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def tell(name: str, read: int, total: int) -> None:
            if not console.is_terminal:
                return
            if name not in tasks:
                tasks[name] = bar.add_task(f"reading {name}", total=total)
            bar.update(tasks[name], completed=read, total=total)

        yield tell
