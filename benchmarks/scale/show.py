"""A simulated run as tables and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from scale.costs import PORTS, Costs
from scale.scenario import Scenario
from scale.simulate import Report

_WIDTH = 140
SHOWN = ("going", "costs")
"""The two tables, by the names that `--show` knows."""


def document(scenario: Scenario, report: Report, costs: Costs) -> dict[str, Any]:
    return {
        "scenario": asdict(scenario),
        "report": {**asdict(report), "bottleneck": report.bottleneck},
        "costs": asdict(costs),
    }


def tables(runs: Sequence[tuple[str, Scenario, Report, Costs]]) -> list[Table]:
    """A column for each run: how it goes, and what it costs."""
    names = [name for name, *_ in runs]
    going = [(scenario, _going(scenario, report)) for _, scenario, report, _ in runs]
    paying = [_paying(costs) for *_, costs in runs]
    return [
        _table("Simulated", names, [rows for _, rows in going]),
        _table("What it costs (measured numbers times simulated rates)", names, paying),
    ]


def show(found: Iterable[Table]) -> None:
    """On the terminal, or as wide as the page has it."""
    console = Console() if sys.stdout.isatty() else Console(width=_WIDTH)
    for table in found:
        console.print(table)


def _table(title: str, names: Sequence[str], columns: Sequence[dict[str, str]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in names:
        table.add_column(name, justify="right")
    for row in dict.fromkeys(name for column in columns for name in column):
        table.add_row(row, *(column.get(row, "-") for column in columns))
    return table


def _going(scenario: Scenario, report: Report) -> dict[str, str]:
    found = {
        "records/s": f"{report.records_per_s:,.0f}",
        "transactions/s": f"{report.transactions_per_s:,.0f}",
        "records in a transaction": f"{report.records_per_transaction:,.0f}",
        "process start to first commit, s": f"{report.first_commit_s:.1f}",
        "... to a commit in every partition, s": f"{report.all_committed_s:.1f}",
        "seconds between a partition's commits": f"{scenario.partitions / report.transactions_per_s:.2f}",
        "busiest": f"{report.bottleneck}",
        **{f"... {name}, %": f"{100 * share:.0f}" for name, share in report.shares.items()},
    }
    if report.p50_ms is not None and report.p99_ms is not None:
        found["latency p50 / p99, ms"] = f"{report.p50_ms:,.0f} / {report.p99_ms:,.0f}"
    if report.recovered_ms is not None:
        half, last = report.recovered_ms
        found[f"{scenario.lose} executors lost: next commit, median / last, ms"] = f"{half:,.0f} / {last:,.0f}"
    return found


def _paying(costs: Costs) -> dict[str, str]:
    return {
        "connections held by tails": f"{costs.connections_held:,.0f}",
        "... with every turn taken": f"{costs.connections_most:,.0f}",
        "... of them at one broker": f"{costs.connections_per_broker:,.0f}",
        "connections opened, per s": f"{costs.connects_per_s:,.0f}",
        "an executor's ports in TIME_WAIT, at most one broker": f"{costs.ports_in_time_wait:,.0f} of {PORTS:,}",
        "requests of transactions, per s": f"{sum(costs.requests_per_s.values()):,.0f}",
        "... of them Metadata": f"{costs.requests_per_s.get('Metadata', 0.0):,.0f}",
        "transactions/s of one of 50 coordinator partitions": f"{costs.per_coordinator_partition:,.1f}",
        "the group's coordinator is busy, %": f"{100 * costs.group_coordinator_share:.0f}",
        "... and full at transactions/s": f"{costs.group_coordinator_most_per_s:,.0f}",
        "transaction log, MiB/s": f"{costs.transaction_log_mib_per_s:.2f}",
        "... GiB a day before compaction": f"{costs.transaction_log_gib_per_day:,.1f}",
        "offset log, MiB/s": f"{costs.offsets_log_mib_per_s:.2f}",
        "commit markers on the output, per s": f"{costs.markers_per_s:,.0f}",
        "... their share of its bytes, %": f"{100 * costs.marker_share:.3f}",
        "memory of one executor's Python, MiB": f"{costs.executor_mib:,.0f}",
        "... at most": f"{costs.executor_mib_most:,.0f}",
        "client threads of one executor": f"{costs.executor_threads:,.0f}",
    }
