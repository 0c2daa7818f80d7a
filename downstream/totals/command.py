"""`python -m downstream totals`: its options, one run, or one comparison."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from brew import names
from brew.cli import bootstrap_option, connection
from brew.fault_injection import KillAt
from brew.kafka.topics import Topic
from brew.names import CrashPoint, ExitCode, checked_topic, quantity
from brew.observability.settings import probe_options
from brew.observability.status import Topics
from downstream.observed import ObservedProgram, observed, stop_event, to_stderr
from downstream.totals.recompute import recompute
from downstream.totals.run import Run, RunResult
from downstream.totals.state_store import MemoryStore, RocksStore, Store
from downstream.totals.topics import TotalsSettings

GROUP = "brew-totals"
ROCKSDB, MEMORY = "rocksdb", "memory"
ORDERS, DELTAS = "orders", "deltas"
HOME = Path(".brew-state")


@click.command("totals")
@bootstrap_option
@click.option("--topic", default=names.OUTPUT_TOPIC, show_default=True, metavar="TOPIC", help="Enriched orders.")
@click.option("--output", default=names.TOTALS_TOPIC, show_default=True, metavar="TOPIC", help="Results, compacted.")
@click.option("--group", default=GROUP, show_default=True, help="Also names GROUP.deltas and GROUP.changelog.")
@click.option("--follow", is_flag=True, help="Go on until SIGTERM; else stop at the end that the log has now.")
@click.option(
    "--store",
    type=click.Choice([ROCKSDB, MEMORY]),
    default=ROCKSDB,
    show_default=True,
    help="Where totals are between transactions; both are restored from the changelog.",
)
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=HOME,
    show_default=True,
    help="Where RocksDB keeps its files; may be lost at any time.",
)
@click.option("--max-offsets", type=click.IntRange(1), default=20_000, show_default=True, help="Of one transaction.")
@click.option(
    "--transaction-timeout",
    type=click.FloatRange(1, 900),
    default=30.0,
    show_default=True,
    help="Seconds that the brokers wait for an open transaction.",
)
@click.option("--recompute", "compare", is_flag=True, help="Count nothing; compare and exit 1 where anything differs.")
@click.option("--crash-point", type=click.Choice([str(point) for point in CrashPoint]), help="Die there, by SIGKILL.")
@click.option(
    "--crash-in",
    type=click.Choice([ORDERS, DELTAS]),
    default=DELTAS,
    show_default=True,
    help="In transactions that read orders, or in those that read deltas and write totals.",
)
@click.option("--crash-prob", type=float, default=1.0, show_default=True, help="Per transaction.")
@probe_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
def totals_command(
    bootstrap: str, topic: str, output: str, group: str, *, follow: bool, as_json: bool, **given: Any
) -> int:
    """
    Running totals per customer and per tier: orders, their sum, the discount given; each order counted once.

    State, its changelog, results and offsets move in one Kafka transaction. With --recompute the totals are computed
    again from the orders and compared with changelog, state and results, while no totals program runs.

    \b
    Examples:
      python -m downstream totals
      python -m downstream totals --follow --state-dir /var/lib/brew
      python -m downstream totals --recompute --json
    """  # noqa: D301 - click's own mark
    checked_topic(topic, "--topic")
    checked_topic(output, "--output")
    settings = TotalsSettings(
        connection(bootstrap),
        group,
        topic,
        output,
        timeout_s=given["transaction_timeout"],
        max_offsets=given["max_offsets"],
    )
    home = None if given["store"] == MEMORY else given["state_dir"] / group
    checked_topic(settings.changelog, "--group")
    if given["compare"]:
        compared = recompute(settings, home)
        click.echo(json.dumps(compared.document(), indent=2) if as_json else compared.text())
        return ExitCode.DONE if compared.equal else ExitCode.VIOLATION

    def store_of(partition: int, changelog: Topic) -> Store:
        return MemoryStore() if home is None else RocksStore(home / str(partition), changelog.topic_id)

    stop, crash = stop_event(follow=follow), None
    if given["crash_point"] is not None:
        crashing = topic if given["crash_in"] == ORDERS else settings.deltas
        crash = KillAt(CrashPoint(given["crash_point"]), crashing, given["crash_prob"])
    began = time.monotonic()
    with observed(_watched(settings, follow=follow), given) as recorder:
        result = Run(settings, store_of, stop, to_stderr, crash, recorder).run(follow=follow)
    summary = _document(result, time.monotonic() - began)
    click.echo(json.dumps(summary) if as_json else _text(summary))
    return ExitCode.DONE


def _watched(settings: TotalsSettings, *, follow: bool) -> ObservedProgram:
    """An attempt at a partition may restore its state first."""
    topics = Topics(settings.input, settings.output)
    work_s = settings.timeout_s + settings.restore_s
    return ObservedProgram(
        "downstream totals", settings.group, topics, settings.connection, follow, work_s, Run.patience_s
    )


def _document(result: RunResult, seconds: float) -> dict[str, float]:
    return {
        "orders": result.orders,
        "deltas": result.deltas,
        "transactions": result.transactions,
        "fenced": result.fenced,
        "failed": result.failed,
        "restored": result.restored,
        "restore_s": round(result.restore_s, 3),
        "seconds": round(seconds, 3),
    }


def _text(summary: dict[str, float]) -> str:
    again = summary["fenced"] + summary["failed"]
    return (
        f"{quantity(summary['orders'], 'order')} in {quantity(summary['transactions'], 'transaction')}, "
        f"{again} tried again, "
        f"{quantity(summary['restored'], 'record')} restored, {summary['seconds']:.1f} s"
    )
