"""`python -m downstream`: consumers of the output."""

from __future__ import annotations

import json
import sys

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from downstream.count import Count, count, key_of, source_of
from protocol import names
from protocol.client_option import bootstrap_option, connection
from protocol.command import CONTEXT, REACH_S, LazyGroup, run
from protocol.deadline import Deadline
from protocol.kafka.clients import READ_COMMITTED, READ_UNCOMMITTED, reach
from protocol.names import ExitCode, checked_topic

_IDENTITIES = {"key": key_of, "source": source_of}
_PATTERNS = {
    "call": "downstream.virtual.command:call_command",
    "claims": "downstream.claims.commands:claims_group",
    "ledger": "downstream.ledger.command:ledger_command",
    "receive": "downstream.receive.command:receive_command",
    "sink": "downstream.receive.command:sink_command",
    "totals": "downstream.totals.command:totals_command",
}


@click.group(cls=LazyGroup, later=_PATTERNS, context_settings=CONTEXT)
def downstream() -> None:
    """
    Consumers of the output.

    \b
    Examples:
      python -m downstream count                                  what a read_committed reader sees
      python -m downstream ledger --database postgresql://brew@localhost:5432/brew --follow
      python -m downstream receive --store redis-script --redis redis://localhost:6379/0
      python -m downstream totals --recompute                     compare totals with the orders

    Exit codes: 0 done, 1 duplicates found, 3 refused, 64 wrong usage.
    """  # noqa: D301 - click's own mark


@downstream.command("count")
@bootstrap_option
@click.option("--topic", default=names.OUTPUT_TOPIC, show_default=True, metavar="TOPIC", help="What to count.")
@click.option(
    "--isolation",
    type=click.Choice([READ_COMMITTED, READ_UNCOMMITTED]),
    default=READ_COMMITTED,
    show_default=True,
    help="Which kind of reader to be.",
)
@click.option(
    "--unique-by",
    type=click.Choice(list(_IDENTITIES)),
    default="key",
    show_default=True,
    help="What makes two records the same: their key, or the source position in their headers.",
)
@click.option("--progress", is_flag=True, help="Show a bar on stderr.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def count_command(bootstrap: str, topic: str, isolation: str, unique_by: str, progress: bool, as_json: bool) -> int:
    """
    Count records, unique keys and duplicates, as one kind of reader sees them; exit 1 on duplicates.

    A read_uncommitted reader also sees attempts that were aborted, so duplicates are no fault there.

    \b
    Examples:
      python -m downstream count
      python -m downstream count --isolation read_uncommitted
      python -m downstream count --topic brew.orders.enriched --unique-by source --json
    """  # noqa: D301 - click's own mark
    checked_topic(topic, "--topic")
    cluster = connection(bootstrap)
    reach(cluster, Deadline(REACH_S))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
        task = bar.add_task(topic, total=None)
        found = count(
            cluster,
            topic,
            isolation,
            _IDENTITIES[unique_by],
            advance=lambda done, total: bar.update(task, advance=done, total=total),
        )
    click.echo(json.dumps(_document(found, unique_by), indent=2) if as_json else _text(found, unique_by))
    sys.stdout.flush()
    return ExitCode.VIOLATION if found.alarming else ExitCode.DONE


def _text(found: Count, unique_by: str) -> str:
    one = found.distinct
    lines = [
        f"{one.records} records, {one.unique} unique {unique_by}s, {one.duplicates} duplicates ({found.isolation})"
    ]
    if one.unidentified:
        lines.append(f"{one.unidentified} records have no {unique_by}; they count neither as unique nor as duplicates")
    if found.waiting:
        total = sum(found.waiting.values())
        where = f"partition{'s' if len(found.waiting) > 1 else ''} {', '.join(map(str, found.waiting))}"
        verb = "records wait" if total > 1 else "record waits"
        lines.append(f"{total} {verb} behind the last stable offset in {where}")
    if found.alarming:
        lines.append(f"duplicate {unique_by}s, the first of them: {', '.join(found.examples)}")
    elif one.duplicates:
        lines.append("duplicates are no fault here: this reader also sees attempts that were aborted")
    return "\n".join(lines)


def _document(found: Count, unique_by: str) -> dict[str, object]:
    return {
        "topic": found.topic,
        "isolation": found.isolation,
        "unique_by": unique_by,
        "records": found.distinct.records,
        "unique": found.distinct.unique,
        "duplicates": found.distinct.duplicates,
        "unidentified": found.distinct.unidentified,
        "examples": found.examples,
        "waiting": sum(found.waiting.values()),
        "waiting_by_partition": {str(p): records for p, records in found.waiting.items()},
    }


def main() -> None:
    run(downstream, "downstream")


if __name__ == "__main__":
    main()
