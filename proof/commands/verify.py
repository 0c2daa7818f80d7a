"""The command that proves, or says why not."""

from __future__ import annotations

import dataclasses
import time

import click

from proof.commands.options import (
    bootstrap_option,
    connected,
    dead_letter_option,
    group_option,
    input_option,
    json_option,
    output_option,
    say_json,
)
from proof.findings import Report
from proof.verify import Claim
from proof.verify import verify as judge
from protocol.deadline import Deadline

_ASK_S = 60.0


@click.command()
@bootstrap_option
@input_option
@output_option
@dead_letter_option
@group_option
@json_option
def verify(bootstrap: str, as_json: bool, **names: str) -> int:
    """
    Prove that every visible order came out exactly once, enriched, or on the dead-letter topic.

    Compares input, output and dead letters record by record below the group's committed offset, and works the
    enrichment out again. Exit codes: 0 proven, 1 violated, 3 could not tell.

    \b
    Examples:
      python -m proof verify
      python -m proof verify --input my.orders --output my.enriched --dead-letter my.dlq --group my-group --json
    """  # noqa: D301 - click's own mark
    began = time.monotonic()
    report = judge(connected(bootstrap), Claim(**names), Deadline(_ASK_S))
    if as_json:
        say_json(_document(report))
    else:
        click.echo("\n".join(_lines(report, time.monotonic() - began)))
    return report.verdict.exit_code


def _document(report: Report) -> dict[str, object]:
    return {"verdict": report.verdict.value, **dataclasses.asdict(report)}


def _lines(report: Report, seconds: float) -> list[str]:
    balance = "=" if report.inputs == report.outputs + report.dead_letters else "≠"
    lines = [f"{report.inputs} inputs {balance} {report.outputs} outputs + {report.dead_letters} dead letters"]
    lines += [str(finding) for finding in report.findings]
    shown, total = len(report.findings), sum(report.totals.values())
    if shown < total:
        lines.append(f"... and {total - shown} more")
    lines += [f"{name}: {count} in all" for name, count in report.totals.items()]
    lines += [f"could not tell: {doubt}" for doubt in report.doubts]
    rate = (report.inputs + report.outputs + report.dead_letters) / seconds if seconds else 0.0
    lines.append(f"{report.verdict} ({seconds:.1f} s, {rate:,.0f} records/s)")
    return lines
