"""The command that proves, or says why not."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from proof.commands.options import (
    connected,
    dead_letter_option,
    group_option,
    input_option,
    json_option,
    output_option,
    profiles_option,
    say_json,
    tiers_option,
)
from proof.findings import Report
from proof.verify import Asked, Claim
from proof.verify import verify as judge
from protocol.client_option import bootstrap_option
from protocol.deadline import Deadline
from protocol.errors import UsageError
from protocol.profiles import Tiers

_ASK_S = 60.0
_folder = click.Path(path_type=Path, file_okay=False, exists=True)
_file = click.Path(path_type=Path, exists=True)


@click.command()
@bootstrap_option
@input_option
@output_option
@dead_letter_option
@group_option
@tiers_option
@profiles_option
@click.option("--journals", type=_folder, metavar="DIR", help="What processes wrote down (--journal of each).")
@click.option("--settled", is_flag=True, help="The run is over: a transaction that is still open is a violation.")
@click.option("--strict/--no-strict", default=True, help="One transaction per producer epoch, as our pipeline does.")
@click.option(
    "--healed-at", type=float, multiple=True, metavar="SECONDS", help="When a fault ended, since 1970; repeatable."
)
@click.option("--bound-s", type=float, metavar="SECONDS", help="A commit has to follow each --healed-at within it.")
@click.option("--need", multiple=True, metavar="NAME=N", help="A count without which nothing is proven; repeatable.")
@click.option("--fired", multiple=True, metavar="NAME=N", help="A count that the caller saw itself; repeatable.")
@click.option("--canary", multiple=True, envvar="BREW_CANARY", metavar="TEXT", help="A secret that must not show up.")
@click.option(
    "--artefact", "artefacts", type=_file, multiple=True, help="File or folder to look for canaries in; repeatable."
)
@json_option
def verify(bootstrap: str, as_json: bool, **options: Any) -> int:
    """
    Prove that every visible order came out exactly once, enriched, or on the dead-letter topic.

    Compares input, output and dead letters record by record below the group's committed offset, works the enrichment
    out again, and follows every transaction through the raw logs. docs/PROTOCOL.md lists what it can find.
    Exit codes: 0 proven, 1 violated, 3 could not tell.

    \b
    Examples:
      python -m proof verify
      python -m proof verify --input my.orders --output my.enriched --dead-letter my.dlq --group my-group --json
      python -m proof verify --tiers profiles --profiles-topic my.customers
      python -m proof verify --settled --journals journals/ --need aborted_records=1 --fired kills=10 --need kills=10
    """  # noqa: D301 - click's own mark
    claim = Claim(*(options[name] for name in ("input", "output", "dead_letter", "group")))
    asked = Asked(
        settled=options["settled"],
        strict=options["strict"],
        journals=options["journals"],
        healed_at=options["healed_at"],
        bound_s=options["bound_s"],
        needed=_counts("--need", options["need"]),
        fired=_counts("--fired", options["fired"]),
        canaries=options["canary"],
        artefacts=options["artefacts"],
        profiles=options["profiles_topic"] if options["tiers"] == Tiers.PROFILES else None,
    )
    began = time.monotonic()
    report = judge(connected(bootstrap), claim, Deadline(_ASK_S), asked)
    if as_json:
        say_json(report.document())
    else:
        click.echo("\n".join(_lines(report, time.monotonic() - began)))
    return report.verdict.exit_code


def _counts(option: str, given: Iterable[str]) -> dict[str, int]:
    """NAME=N, repeated."""
    found = {}
    for one in given:
        name, _, number = one.partition("=")
        if not name or not number.isdigit():
            raise UsageError(f"{option} {one!r}: a count is written NAME=N")
        found[name] = int(number)
    return found


def _lines(report: Report, seconds: float) -> list[str]:
    balance = "=" if report.inputs == report.outputs + report.dead_letters else "≠"
    lines = [f"{report.inputs} inputs {balance} {report.outputs} outputs + {report.dead_letters} dead letters"]
    lines += [str(finding) for finding in report.findings]
    shown, total = len(report.findings), sum(report.totals.values())
    if shown < total:
        lines.append(f"... and {total - shown} more")
    lines += [f"{name}: {count} in all" for name, count in report.totals.items()]
    lines += [f"could not tell: {doubt}" for doubt in report.doubts]
    lines += [f"note: {note}" for note in report.notes]
    lines.append(_transactions(report))
    rate = (report.inputs + report.outputs + report.dead_letters) / seconds if seconds else 0.0
    lines.append(f"{report.verdict} ({seconds:.1f} s, {rate:,.0f} records/s)")
    return lines


def _transactions(report: Report) -> str:
    counts = report.counts
    return (
        f"{counts['committed_transactions']} transactions committed, {counts['aborted_transactions']} aborted "
        f"({counts['aborted_records']} records), {counts['fences']} fenced or timed out"
    )
