"""`brew preflight`: run every check, with the value found, the value needed, and the reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from brew.cli import as_called, flag
from brew.cluster import ClusterFacts
from brew.config_file import checked_by
from brew.deadline import Deadline
from brew.driver.partitions import OffsetsClient
from brew.errors import BrewError
from brew.kafka.cluster import ClusterQueries, controller_ahead_s, feature_level, may_describe
from brew.kafka.transaction import MESSAGE_MAX_BYTES
from brew.names import ExitCode, TransactionalId
from brew.options import run_options, settings_of
from brew.preflight import Finding, Severity, checks, refusing, timeouts, worst_first
from brew.preflight.checks import chain_of, positions, run_checks, topics_of
from brew.settings import PipelineSettings
from operations import labels
from operations.options import advised, connected, json_option, plain_table, print_json, show

_ASK_S, _POSITION_S = 30.0, 10.0
_FEATURE = "transaction.version"
_STYLES = {Severity.OK: "green", Severity.UNKNOWN: "cyan", Severity.WARNING: "yellow", Severity.UNSAFE: "bold red"}
_EPILOG = """\b
Examples:
  python -m pipeline preflight                       checks that did not pass
  python -m pipeline preflight --all                 all checks
  python -m pipeline preflight --output orders.enriched --json
  python -m pipeline preflight --explain-timeouts --transaction-timeout 120
  python -m pipeline run --allow output-replication  run despite this check

\b
Exit codes: 0 a run can start, 3 it would refuse, or brokers unreachable,
  64 wrong usage."""


@click.command("preflight", epilog=_EPILOG)
@run_options
@flag(
    "--explain-timeouts explain",
    "Show all timeouts; the value of each, what sets it, and what happens when it expires.",
)
@flag("--all everything", "Show passed checks, too.")
@json_option
@advised()
@checked_by(settings_of)
def preflight(*, explain: bool, everything: bool, as_json: bool, **option: Any) -> ExitCode:
    """
    Check that the cluster meets the needs of a run with these options; writes nothing.

    Shows unsafe settings first, then warnings, then checks that could not be made.
    """
    settings = settings_of(option)
    connected(settings.connection.bootstrap)
    if explain:
        return _explain(settings, as_json=as_json)
    findings = worst_first(all_findings(settings))
    left = refusing(findings, settings.allow)
    if as_json:
        counts = Counter(finding.severity.value for finding in findings)
        document = {"refuses": bool(left), "counts": counts, "allowed": sorted(settings.allow)}
        print_json(document | {"findings": [finding.document() for finding in findings]})
    else:
        shown = findings if everything else [finding for finding in findings if finding.severity is not Severity.OK]
        if shown:
            show(findings_table(shown))
        names = ", ".join(finding.name for finding in left)
        more = " (--all shows every check)" if len(shown) < len(findings) else ""
        verdict = f"a run would refuse to start: {names}" if left else "a run can start"
        click.echo(f"{labels.all_checks(findings)}; {verdict}{more}")
    return ExitCode.REFUSED if left else ExitCode.DONE


def _explain(settings: PipelineSettings, *, as_json: bool) -> ExitCode:
    with closing(OffsetsClient(settings)) as surveyor:
        facts = _facts(surveyor, settings, Deadline(_ASK_S))
    chain = chain_of(settings, facts)
    chain_document = timeouts.explained(settings, chain, facts.number(timeouts.OFFSETS_RETENTION_MIN))
    if as_json:
        print_json(chain_document)
    else:
        click.echo(timeouts.chain_text(chain_document))
        show(_timeouts(chain_document))
    return ExitCode.REFUSED if refusing(timeouts.check_chain(chain), settings.allow) else ExitCode.DONE


def _facts(surveyor: OffsetsClient, settings: PipelineSettings, deadline: Deadline) -> ClusterFacts:
    return ClusterQueries(surveyor.admin, surveyor.groups, topics_of(settings), settings.group, deadline).answers()


def _timeouts(chain: dict[str, Any]) -> Table:
    """Return the chain's timeouts, then the others; each with who sets it, and what happens when it is exceeded."""

    def cells(timeout: dict[str, Any]) -> tuple[Text, str, Text]:
        what = Text(f"set by {timeout['set_by']}. ").append(f"On expiry: {timeout['exceeded']}", "dim")
        return Text(timeout["name"], "bold"), timeouts.duration_text(timeout["ms"]), what

    return plain_table(map(cells, (*chain["chain"], *chain["beside"])), right=["2"])


def all_findings(settings: PipelineSettings) -> list[Finding]:
    """Return all findings, including those about the position."""
    deadline, connection = Deadline(_ASK_S), settings.connection
    with closing(OffsetsClient(settings)) as surveyor:
        # The position first: on a new cluster, reading it creates the group's coordinator.
        findings = list(_position(surveyor, settings, deadline.part(_POSITION_S)))
        # One id is enough: rights on transactional ids are granted by prefix.
        first = str(TransactionalId(settings.group, settings.input, 0))
        findings.append(checks.transactional_id(settings.group, may_describe(connection, first, deadline)))
        findings.append(checks.transaction_version(feature_level(connection, _FEATURE, deadline)))
        findings.append(timeouts.skew(controller_ahead_s(connection, deadline)))
        return [*run_checks(settings, _facts(surveyor, settings, deadline), MESSAGE_MAX_BYTES), *findings]


def _position(surveyor: OffsetsClient, settings: PipelineSettings, deadline: Deadline) -> Iterator[Finding]:
    try:
        source = surveyor.input_topic(deadline)
        facts = surveyor.facts(source, range(source.partitions), deadline, {})
        yield from positions(facts, settings.group)
    except BrewError as error:
        setting = f"leaders of {settings.input}, and Read on group {settings.group}"
        yield Finding("position", "?", "within the log", setting, str(error), Severity.UNKNOWN)


def findings_table(findings: list[Finding]) -> Table:
    """Return a line or two per check; for a failed one the second line is the setting to change."""

    def cells(finding: Finding) -> tuple[Text, Text, Text]:
        mark, style = labels.SEVERITY_SIGNS[finding.severity], _STYLES[finding.severity]
        ok = finding.severity is Severity.OK
        why = Text(f"{finding.value}, needs {finding.need}: ").append(as_called(finding.why), "dim" if ok else "")
        return Text(mark, style), Text(finding.name, style), why if ok else why.append(f"\n→ {finding.setting}", "bold")

    return plain_table(map(cells, findings))
