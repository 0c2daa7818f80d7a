"""Options that the operator's commands share, and their output functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import orjson
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from brew import names
from brew.cli import (
    REACH_S,
    bootstrap_option,
    checked_group,
    connection,
    flag,
    named_option,
    options,
    plain_option,
    repeatable,
    typed_option,
)
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused, UsageError
from brew.kafka.clients import reach
from brew.names import checked_topic

_EDGE, _LEAST_WRAPPED = 3, 8
"""Columns of a terminal: of a border with its space, and for text that wraps."""


def _topic(_context: click.Context, parameter: click.Parameter, value: str) -> str:
    return checked_topic(value, parameter.opts[0])


def checked_topics(_context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Check a repeatable option's names: for one that is not UTF-8, confluent-kafka ends the process (SIGSEGV)."""
    return tuple(checked_topic(value, parameter.opts[0]) for value in values)


input_option = named_option("--input topic", "INPUT_TOPIC", names.INPUT_TOPIC, "Input topic.", callback=_topic)
output_option = named_option("--output", "OUTPUT_TOPIC", names.OUTPUT_TOPIC, "Output topic.", callback=_topic)
dead_letter_option = named_option(
    "--dead-letter", "DLQ_TOPIC", names.DEAD_LETTER_TOPIC, "Dead-letter topic.", callback=_topic
)
also_output_option = repeatable(
    "--also-output", "Further output topic; repeatable.", "TOPIC", envvar="ALSO_OUTPUT", callback=checked_topics
)
group_option = named_option(
    "--group", "GROUP_ID", names.GROUP_ID, "The pipeline's consumer group.", callback=checked_group
)
json_option = flag("--json as_json", "Print one JSON document instead of text.")

pipeline_options = options(
    bootstrap_option, input_option, output_option, dead_letter_option, group_option, also_output_option
)
"""Options for the cluster, the topics and the group of a pipeline."""
live_options = options(
    pipeline_options,
    repeatable(
        "--status-url statuses",
        "Address of a run's /status, such as http://127.0.0.1:3000; repeatable.  [default: runs on this machine]",
        "URL",
    ),
    plain_option(
        "--proof",
        "Result of `proof verify --json` or `proof campaign`; may be created later.  [default: the last verify]",
        "FILE",
        type=click.Path(path_type=Path, dir_okay=False),
    ),
    typed_option("--interval", click.FloatRange(0.1, 3600), 1.0, "Time between two polls of the brokers."),
    typed_option("--patience", click.FloatRange(0.5, 120), 5.0, "Timeout of one poll."),
    typed_option("--tail", click.IntRange(1, 100_000), 400, "Number of last offsets shown of each output partition."),
)
"""Options of `ui` and `top`."""


@contextlib.contextmanager
def advised() -> Iterator[None]:
    """Turn a broker's error or timeout into an error that says what to do next."""
    try:
        yield
    except (KafkaFailure, DeadlineExceeded) as error:
        raise Refused(advice(error)) from error


def advice(error: BrewError) -> str:
    if not isinstance(error, KafkaFailure | DeadlineExceeded):
        return str(error)
    return (
        f"{error}; check that the brokers are running and that this user has the rights listed in docs/SECURITY.md "
        "(Rights), then try again"
    )


def chosen_partitions(chosen: Sequence[int], topic: str, there: int) -> list[int]:
    """Return ``chosen``, or all ``there`` partitions of ``topic`` if empty; `UsageError` if one does not exist."""
    if wrong := [p for p in chosen if not 0 <= p < there]:
        raise UsageError(f"--partition is {wrong[0]}: {topic} has partitions 0 to {there - 1}; choose one of them")
    return sorted(set(chosen)) or list(range(there))


def connected(bootstrap: str) -> Connection:
    """Return the connection, once a broker has answered."""
    cluster = connection(bootstrap)
    reach(cluster, Deadline(REACH_S))
    return cluster


def show(*parts: RenderableType) -> None:
    """Print at the terminal's width; 80 columns, or `COLUMNS`, if it is not a terminal."""
    console = Console(soft_wrap=False)
    for part in parts:
        console.print(part)


class _WholeTable(Table):
    """A table that becomes a list of its rows where it does not fit: rich would cut off digits of numbers."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if sum(map(_least_width, self.columns)) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        if isinstance(self.title, Text):
            yield self.title
        for cells in zip(*(column.cells for column in self.columns), strict=True):
            for column, cell in zip(self.columns, cells, strict=True):
                if str(cell):
                    head = f"{column.header}: " if self.show_header else ""
                    yield Text.assemble((head, "bold"), cell if isinstance(cell, Text) else str(cell))
            yield Text("")


def _least_width(column: Column) -> int:
    texts = (str(text) for text in (column.header, *column.cells)) if column.no_wrap else ()
    return _EDGE + max((cell_len(line) for text in texts for line in text.splitlines()), default=_LEAST_WRAPPED)


def table(
    heads: Sequence[str],
    rows: Iterable[Sequence[RenderableType]],
    *,
    right: Sequence[str] = (),
    narrow: Sequence[str] = (),
    **more: Any,
) -> Table:
    """Return a table in which text wraps, except in ``right`` and ``narrow`` columns; strings hold no markup."""
    drawn = _WholeTable(pad_edge=False, **more)
    for head in heads:
        kept = head in right or head in narrow
        drawn.add_column(head, justify="right" if head in right else "left", no_wrap=kept, overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return drawn


def plain_table(rows: Iterable[Sequence[RenderableType]], *, right: Sequence[str] = ()) -> Table:
    """Return a table of three columns without headings and lines; the third one wraps. ``right``: "1" or "2"."""
    bare: dict[str, Any] = {"box": None, "show_header": False, "padding": (0, 1), "collapse_padding": True}
    return table(["1", "2", ""], rows, right=right, narrow=["1", "2"], **bare)


Report = Callable[[str, int, int], None]
"""Called while a log is read: its name, offsets read, total offsets."""


@contextlib.contextmanager
def progress() -> Iterator[Report]:
    """Show a progress bar on stderr while logs are read, if it is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def report(name: str, read: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(f"reading {name}", total=total)
            bar.update(tasks[name], completed=read, total=total)

        yield report


def print_json(document: object, *, lines: bool = False) -> None:
    """Print one document; with ``lines``, as one line of a stream."""
    click.echo(orjson.dumps(document, option=0 if lines else orjson.OPT_INDENT_2).decode())
