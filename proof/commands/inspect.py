"""Commands that describe groups and logs, read topics, and verify a pipeline."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import click
from rich.markup import escape
from rich.table import Table

from brew import names
from brew.cli import bootstrap_option, flag, names_by_output, plain_option, repeatable, typed_option
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import UsageError
from brew.journal import Journal, Phase, Step, require_journals, runs
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.topic_reader import follow
from brew.names import READ_COMMITTED, checked_topic, quantity
from brew.observability.local import remember_verdict
from brew.offsets import SourcePosition
from brew.orders import Tiers
from brew.signals import Stopped
from proof import log_summary
from proof.commands import (
    connected,
    group_option,
    json_option,
    print_json,
    print_result,
    show,
    topic_option,
    topic_options,
)
from proof.findings import Report
from proof.verify import PipelineUnderTest, VerifyOptions
from proof.verify import verify as judge

_JOURNAL_S, _ASK_S, _READ_S = 60.0, 30.0, 3600.0
_ISOLATION = [names.READ_COMMITTED, names.READ_UNCOMMITTED]
_FOLDER = click.Path(path_type=Path, file_okay=False)
_THERE = click.Path(path_type=Path, exists=True)
_FOLDER_THERE = click.Path(path_type=Path, file_okay=False, exists=True)
_VERIFY_ASK_S = 60.0
_SPAN_S, _TIME_S = click.FloatRange(0), click.FloatRange(0, 253_402_300_799)  # up to the year 9999


def journal_records(
    connection: Connection, names: Sequence[str], isolation: str, folder: Path, *, following: bool
) -> int:
    """Journal the topics' records up to their present ends, or, ``following``, without end; return their number."""
    client, deadline = admin(connection), Deadline(_JOURNAL_S)
    logs = {name: log_summary.topic_offsets(client, name, deadline) for name in names}
    count = 0
    with closing(Journal(folder, "reader")) as journal:
        # Pids are reused, and in containers they are the same: the checker begins a new reader at this line.
        journal.write(Step.READ, Phase.INTENT)
        if following:
            starts = {name: {p: log.first for p, log in by_partition.items()} for name, by_partition in logs.items()}
            for name, batch in follow(connection, starts, isolation):
                count += _journal_batch(journal, name, isolation, batch)
            return count
        for name, by_partition in logs.items():
            ends = {p: log.last_stable if isolation == READ_COMMITTED else log.end for p, log in by_partition.items()}
            ranges = {p: (log.first, ends[p]) for p, log in by_partition.items()}
            for batch in scan(connection, name, ranges, isolation):
                count += _journal_batch(journal, name, isolation, batch)
            about = {"topic": name, "partition": -1, "isolation": isolation, "ends": list(ends.items())}
            journal.write(Step.READ, Phase.DONE, runs=[], **about)
        # The checker relies on this: everything visible on all these topics has been read.
        journal.write(Step.READ, Phase.DONE, final=True)
    return count


def _journal_batch(journal: Journal, topic: str, isolation: str, batch: Iterable[LogRecord]) -> int:
    """Write a journal line per partition of the batch, in reading order; return the number of records."""
    count = 0
    for partition, of_partition in groupby(batch, key=lambda record: record.partition()):
        records = list(of_partition)
        places = [list(run) for run in runs(_offsets_of(record) for record in records)]
        journal.write(Step.READ, Phase.DONE, topic=topic, partition=partition, isolation=isolation, runs=places)
        count += len(records)
    return count


def _offsets_of(record: LogRecord) -> tuple[int, int, int]:
    source = SourcePosition.of(record.headers())
    return (record.offset(), -1, -1) if source is None else (record.offset(), source.partition, source.offset)


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
    Show the group's committed offset, last stable offset (LSO), log end and lag per partition.

    The lag is the LSO minus the committed offset. Offsets from the LSO to the log end ("behind LSO") wait for open
    transactions, which are listed.

    Example:
      python -m proof group-describe --group brew-enricher --topic brew.orders.v1
    """
    found = log_summary.describe_group(connected(bootstrap), group, topic, Deadline(_ASK_S))
    blockers = found["open_transactions"]
    if as_json:
        print_json(found | {"open_transactions": list(map(asdict, blockers))})
        return
    title = f"group {group} in {topic}: {found['state']}, {quantity(found['members'], 'member')}"
    table = _table(title, ["partition"], ["committed", "LSO", "log end", "lag", "behind LSO"])
    for row in found["partitions"]:
        cells = (row[name] for name in ("partition", "committed", "last_stable", "end", "lag", "behind_stable"))
        table.add_row(*("-" if cell is None else str(cell) for cell in cells))
    table.add_section()
    table.add_row("all", "", "", "", str(found["lag"]), str(found["behind_stable"]))
    show(table)
    for blocker in blockers:
        click.echo(f"open transaction in {blocker}")


@click.command("end-offsets")
@bootstrap_option
@repeatable("--topic wanted", "Topic to read; repeatable  [default: all but Kafka's own]", "TOPIC")
@json_option
def end_offsets(bootstrap: str, wanted: tuple[str, ...], as_json: bool) -> None:
    """
    Count the records of every partition: visible, waiting, aborted, open and control records.

    A read_committed consumer gets visible records only. Waiting records are committed but above the last stable offset
    (LSO); open records belong to transactions that have not ended.

    Examples:
      python -m proof end-offsets
      python -m proof end-offsets --topic brew.orders.v1 --topic brew.orders.enriched --json
    """
    asked = [checked_topic(name, "--topic") for name in wanted]
    logs = log_summary.end_offsets(connected(bootstrap), asked, Deadline(_READ_S))
    if as_json:
        print_json(logs)
        return
    numbers = ["partition", "first", "LSO", "end", "visible", "waiting", "aborted", "open", "control"]
    table = _table("", ["topic"], numbers)
    for topic, of_topic in groupby(logs, itemgetter("topic")):
        for number, (_, *cells) in enumerate(log.values() for log in of_topic):
            table.add_row("" if number else topic, *map(str, cells))
        table.add_section()
    show(table)


@click.command("read")
@bootstrap_option
@repeatable("--topic topics", "Topic to read; repeatable.", "TOPIC", default=[names.OUTPUT_TOPIC], show_default=True)
@typed_option("--isolation", click.Choice(_ISOLATION), names.READ_COMMITTED, "Isolation level of the reader.")
@plain_option("--journal", "Directory for the journal.", type=_FOLDER, required=True)
@flag("--follow", "Read until SIGTERM; without it, up to the topics' current end.")
def read(bootstrap: str, topics: tuple[str, ...], isolation: str, journal: Path, *, follow: bool) -> None:
    """
    Read topics, and journal which records were received in which order, for `python -m proof verify --journals`.

    Examples:
      python -m proof read --journal journals
      python -m proof read --journal journals --follow --topic my.enriched --topic my.dlq
    """
    asked = [checked_topic(name, "--topic") for name in topics]
    try:
        count = journal_records(connected(bootstrap), asked, isolation, journal, following=follow)
    except Stopped:
        if not follow:
            raise
        return
    click.echo(f"{quantity(count, 'record')} read from {', '.join(asked)}")


def _counts(_context: click.Context, parameter: click.Parameter, given: Iterable[str]) -> dict[str, int]:
    counts = {}
    for pair in given:
        name, _, number = pair.partition("=")
        if not name or not number.isdecimal():
            raise UsageError(f"{parameter.opts[0]} is {pair!r}; write a count as NAME=N")
        counts[name] = int(number)
    return counts


def _with_journals(_context: click.Context, parameter: click.Parameter, folder: Path | None) -> Path | None:
    if folder is not None:
        require_journals(folder, parameter.opts[0])
    return folder


_count_option = partial(repeatable, metavar="NAME=N", callback=_counts)


@click.command()
@bootstrap_option
@topic_options
@group_option
@typed_option(
    "--tiers", click.Choice([tiers.value for tiers in Tiers]), Tiers.PREFIX.value, "Source of the tiers, as in the run."
)
@topic_option("--profiles-topic", names.CUSTOMERS_TOPIC, "Topic of customer profiles, with --tiers profiles.")
@plain_option(
    "--transform", "Function of the run, which is called again for each input  [default: orders]", "MODULE:FUNCTION"
)
@repeatable("--also-output", "Further output topic of the --transform function; repeatable.", "TOPIC")
@repeatable("--py-files", "Module, archive or wheel with the --transform function; repeatable.", "FILE")
@plain_option(
    "--journals",
    "Directory of the journals that runs and readers wrote (--journal).",
    "DIR",
    type=_FOLDER_THERE,
    callback=_with_journals,
)
@flag("--settled", "The run has ended: count each transaction still open as a violation.")
@plain_option(
    "--strict/--no-strict", "Require one transaction per producer epoch, as the pipeline guarantees.", default=True
)
@repeatable("--healed-at", "Time when a fault ended, in seconds since the epoch; repeatable.", "SECONDS", type=_TIME_S)
@plain_option(
    "--bound-s", "Maximum time from each --healed-at to the next commit.", "SECONDS", type=click.FloatRange(0)
)
@_count_option("--need needed", "Minimum of a count, below which the verdict is inconclusive; repeatable.")
@_count_option("--fired", "Count that the caller observed, to be compared with --need; repeatable.")
@repeatable(
    *("--canary canaries", "Secret that must not appear in --artefact and --journals files; repeatable.", "TEXT"),
    envvar="BREW_CANARY",
)
@repeatable("--artefact artefacts", "File or directory to search for the --canary secrets; repeatable.", type=_THERE)
@json_option
@names_by_output
def verify(bootstrap: str, as_json: bool, **options: Any) -> int:
    """
    Verify that every visible record came out exactly once, transformed, or on the dead-letter topic.

    Compares input, output and dead letters record by record below the group's committed offset: it calls the
    --transform function again, or recomputes the enrichment of orders. It also checks every transaction in the raw
    logs. docs/PROTOCOL.md lists the possible findings.

    Exit codes: 0 proven, 1 violated, 3 inconclusive.

    Examples:
      python -m proof verify
      python -m proof verify --input my.orders --output my.enriched --dead-letter my.dlq --group my-group --json
      python -m proof verify --transform clicks:add_domain --input clicks --output clicks.enriched
      python -m proof verify --tiers profiles --profiles-topic my.customers
      python -m proof verify --settled --journals journals/ --need aborted_records=1 --fired kills=10 --need kills=10
    """
    of_pipeline = ("input", "output", "dead_letter", "group", "also_output")
    claim = PipelineUnderTest(**{name: options.pop(name) for name in of_pipeline})
    for name in claim.also_output:
        checked_topic(name, "--also-output")
    by_profile, profiles = options.pop("tiers") == Tiers.PROFILES, options.pop("profiles_topic")
    if options["transform"] is not None and by_profile:
        raise UsageError("--transform and --tiers profiles are both set: only orders have tiers; unset one of them")
    if options["bound_s"] is not None and not options["healed_at"]:
        raise UsageError("--bound-s is set without --healed-at, so no commit would be timed; say when the fault ended")
    if options["artefacts"] and not options["canaries"]:
        raise UsageError("--artefact is set without --canary (BREW_CANARY), so no secret is searched for; name one")
    asked = VerifyOptions(profiles=profiles if by_profile else None, **options)
    began = time.monotonic()
    connection = connected(bootstrap)
    # Before the verdict, which brokers that go away afterwards must not hide; `judge` refuses a missing topic.
    found = topics.describe(admin(connection), [claim.output], Deadline(_VERIFY_ASK_S)).get(claim.output)
    output_id = None if found is None else found.topic_id
    report = judge(connection, claim, Deadline(_VERIFY_ASK_S), asked)
    document = report.document()
    about = (claim.input, claim.output, claim.dead_letter)
    remember_verdict(bootstrap, claim.group, about, document | {"output_id": output_id})
    print_result(document, "\n".join(_lines(report, time.monotonic() - began)), as_json=as_json)
    return report.verdict.exit_code


def _lines(report: Report, seconds: float) -> list[str]:
    counts = report.counts
    if "transformed" in counts:
        balanced = report.inputs == counts["transformed"] + report.dead_letters + counts["dropped"]
        outputs = f"{counts['transformed']} transformed (into {quantity(report.outputs, 'output')})"
        dropped = f" + {counts['dropped']} dropped"
    else:
        balanced = report.inputs == report.outputs + report.dead_letters
        outputs, dropped = quantity(report.outputs, "output"), ""
    letters = quantity(report.dead_letters, "dead letter")
    lines = [f"{quantity(report.inputs, 'input')} {'=' if balanced else '≠'} {outputs} + {letters}{dropped}"]
    lines += [str(finding) for finding in report.findings]
    shown, total = len(report.findings), sum(report.totals.values())
    if shown < total:
        lines.append(f"... and {total - shown} more")
    lines += [f"{name}: {count} in all" for name, count in report.totals.items()]
    lines += [f"could not tell: {doubt}" for doubt in report.doubts]
    lines += [f"note: {note}" for note in report.notes]
    aborted = f"{counts['aborted_transactions']} aborted ({counts['aborted_records']} records)"
    ended = f"{counts['committed_transactions']} transactions committed, {aborted}"
    lines.append(f"{ended}, {counts['fences']} fenced or timed out")
    rate = (report.inputs + report.outputs + report.dead_letters) / seconds if seconds else 0.0
    lines.append(f"{report.verdict} ({seconds:.1f} s, {rate:,.0f} records/s)")
    return lines
