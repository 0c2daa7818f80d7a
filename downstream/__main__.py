"""`python -m downstream`: consumers of the output."""

from __future__ import annotations

import brew.first_imports  # noqa: F401 - before the slow ones

# isort: split

import json
import sys

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from brew import names
from brew.cli import CONTEXT, REACH_S, LazyGroup, bootstrap_option, connection, option, printable, run
from brew.commands import COMMANDS
from brew.deadline import Deadline
from brew.kafka.clients import reach
from brew.names import READ_COMMITTED, READ_UNCOMMITTED, ExitCode, checked_topic, quantity
from downstream.count import KEY, SOURCE, Count, Distinct, count

_CALLED = {KEY: "key", SOURCE: "source position"}
_PATTERNS = {
    name: entry.target for name, entry in COMMANDS.items() if entry.program == "downstream" and name != "count"
}
_PATTERNS["sink"] = "downstream.receive.command:sink_command"


@click.group(cls=LazyGroup, later=_PATTERNS, context_settings=CONTEXT)
def downstream() -> None:
    """
    Consumers of the output topic.

    Examples:
      python -m downstream count                                  what a read_committed reader sees
      python -m downstream ledger --database postgresql://brew@localhost:5432/brew --follow
      python -m downstream receive --store redis-script --redis redis://localhost:6379/0
      python -m downstream totals --recompute                     compare totals with the orders

    Exit codes: 0 done, 1 duplicates found, 3 refused, 64 wrong usage.
    """


@downstream.command("count")
@bootstrap_option
@option("--topic", default=names.OUTPUT_TOPIC, metavar="TOPIC", help="Topic to count.")
@option(
    "--isolation",
    type=click.Choice([READ_COMMITTED, READ_UNCOMMITTED]),
    default=READ_COMMITTED,
    help="Isolation level of the reader.",
)
@option(
    "--unique-by",
    type=click.Choice([SOURCE, KEY]),
    default=SOURCE,
    help="Identity of a record: the source position in its headers (if it has none, its key), or its key.",
)
@click.option("--progress", is_flag=True, help="Show a progress bar on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def count_command(bootstrap: str, topic: str, isolation: str, unique_by: str, progress: bool, as_json: bool) -> int:
    """
    Count the records, unique keys and duplicates that a reader sees; exit 1 on duplicates.

    Keys may repeat, source positions may not: two records with the same source position are duplicates. Records
    without a readable source position are counted by key, and the output says so.

    A read_uncommitted reader also sees aborted records, so duplicates are not an error there.

    Examples:
      python -m downstream count
      python -m downstream count --isolation read_uncommitted
      python -m downstream count --topic clicks --unique-by key --json
    """
    checked_topic(topic, "--topic")
    cluster = connection(bootstrap)
    reach(cluster, Deadline(REACH_S))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task(topic, total=None)
        counted = count(
            cluster,
            topic,
            isolation,
            unique_by,
            advance=lambda done, total: bar.update(task, advance=done, total=total),
        )
    click.echo(json.dumps(_document(counted), indent=2) if as_json else _text(counted))
    sys.stdout.flush()
    return ExitCode.VIOLATION if counted.alarming else ExitCode.DONE


def _text(counted: Count) -> str:
    by = KEY if counted.records and counted.fallen_back == counted.records else counted.by
    counts = f"{quantity(counted.records, 'record')}, {quantity(counted.keys.unique, 'unique key')}"
    lines = [f"{counts}, {quantity(counted.duplicates, 'duplicate')} ({counted.isolation}, by {_CALLED[by]})"]
    if counted.fallen_back:
        who = "no record has" if by == KEY else f"{counted.fallen_back} of the records don't have"
        lines.append(f"{who} a readable source position in the headers: counted by key instead")
    if counted.unidentified:
        lacking = "no key" if counted.by == KEY else "neither source position nor key"
        without = f"{quantity(counted.unidentified, 'record')} with {lacking}"
        lines.append(f"{without}: counted neither as unique nor as duplicates")
    if counted.waiting:
        total = sum(counted.waiting.values())
        where = f"partition{'s' if len(counted.waiting) > 1 else ''} {', '.join(map(str, counted.waiting))}"
        verb = "records are" if total > 1 else "record is"
        lines.append(f"{total} {verb} above the last stable offset in {where}")
    if counted.alarming:
        again = {kind: examples for kind, examples in counted.examples.items() if examples}
        lines += [
            f"duplicate {_CALLED[kind]}s, the first of them: {', '.join(map(printable, examples))}"
            for kind, examples in again.items()
        ]
    elif counted.duplicates:
        lines.append("duplicates are expected here: this reader also sees aborted records")
    return "\n".join(lines)


def _document(counted: Count) -> dict[str, object]:
    return {
        "topic": counted.topic,
        "isolation": counted.isolation,
        "unique_by": counted.by,
        "records": counted.records,
        "unique": counted.unique,
        "duplicates": counted.duplicates,
        "unidentified": counted.unidentified,
        "counted_by_key_instead": counted.fallen_back,
        "by_key": _by(counted.keys, counted.records),
        "by_source": _by(counted.sources, counted.records),
        "examples": [example for examples in counted.examples.values() for example in examples],
        "waiting": sum(counted.waiting.values()),
        "waiting_by_partition": {str(p): records for p, records in counted.waiting.items()},
    }


def _by(distinct: Distinct, records: int) -> dict[str, int]:
    """Return the counts; ``unidentified`` are records without such an identity."""
    identified = distinct.records - distinct.unidentified
    return {"unique": distinct.unique, "duplicates": distinct.duplicates, "unidentified": records - identified}


def main() -> None:
    run(downstream, "downstream")


if __name__ == "__main__":
    main()
