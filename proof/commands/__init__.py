"""The commands of `python -m proof`; this module has the options and output functions that they share."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table

from brew import names
from brew.cli import REACH_S, checked_group, connection, flag, option, options, plain_option
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka.clients import reach
from brew.names import checked_topic

_Command = Callable[..., Any]


def _topic(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    return None if value is None else checked_topic(value, parameter.opts[0])


file_option = partial(plain_option, type=click.Path(path_type=Path, dir_okay=False))


def topic_option(name: str, default: str, text: str) -> Callable[[_Command], _Command]:
    return option(name, default=default, callback=_topic, metavar="TOPIC", help=text)


topic_options = options(
    topic_option("--input", names.INPUT_TOPIC, "Input topic."),
    topic_option("--output", names.OUTPUT_TOPIC, "Output topic."),
    topic_option("--dead-letter", names.DEAD_LETTER_TOPIC, "Topic for rejected records."),
)
group_option = option(
    "--group", default=names.GROUP_ID, callback=checked_group, metavar="GROUP", help="The pipeline's consumer group."
)
json_option = flag("--json as_json", "Print one JSON document instead of text.")


def connected(bootstrap: str) -> Connection:
    """Return a connection after a broker has answered."""
    reached = connection(bootstrap)
    reach(reached, Deadline(REACH_S))
    return reached


def print_json(document: object) -> None:
    click.echo(json.dumps(document, indent=2))


def print_result(document: object, text: str, *, as_json: bool) -> None:
    print_json(document) if as_json else click.echo(text)


def show(table: Table, width: int = 160) -> None:
    """Print a table as wide as the terminal, or ``width`` columns wide if there is none."""
    console = Console(width=None if sys.stdout.isatty() else width, emoji=False)
    if all(column.no_wrap for column in table.columns):  # lines that the terminal wraps, instead of digits cut off
        # `Console.measure` takes as long as printing: seconds for a thousand rows.
        widths = [max(cell_len(str(cell)) for cell in (column.header, *column.cells)) for column in table.columns]
        console.width = max(console.width, sum(widths) + 3 * len(widths) + 1)
    console.print(table)
