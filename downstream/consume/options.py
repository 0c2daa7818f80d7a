"""Options shared by all consuming commands, and the settings built from them."""

from __future__ import annotations

from typing import Any

import click

from brew import names
from brew.claims.member import INTERVAL_S
from brew.cli import bootstrap_option, connection, option, options
from brew.errors import UsageError
from brew.fault_injection import CrashMoment, CrashSignal, StoreCrash
from brew.names import checked_topic
from brew.observability.settings import PROBE_OPTIONS
from downstream.consume.handler import ClaimsSettings, DeliverySemantics, LoopSettings, fresh_client_id
from downstream.observed import follow_option
from downstream.postgres import DatabaseSettings

# The largest values are those that librdkafka takes.
loop_options = options(
    bootstrap_option,
    option("--topic", default=names.OUTPUT_TOPIC, metavar="TOPIC", help="Topic to read."),
    click.option(
        "--partitions", metavar="N,N", help="Partitions to read, without group assignment.  [default: the group's]"
    ),
    follow_option,
    option(
        "--batch",
        type=click.IntRange(1, 1_000_000),
        default=5000,
        help="Maximum records per batch; a store takes each in one transaction.",
    ),
    option(
        "--max-poll-interval-s",
        type=click.FloatRange(1, 86_400),
        default=60.0,
        help="Maximum seconds between two polls; a member that takes longer loses its partitions.",
    ),
    option(
        "--session-timeout-s",
        type=click.FloatRange(1, 3600),
        default=10.0,
        help="Seconds after which the group reassigns a dead member's partitions.",
    ),
    option(
        "--patience-s",
        type=click.FloatRange(1),
        default=60.0,
        help="Seconds to wait for an unavailable store, or for brokers in a takeover, before giving up.",
    ),
    option(
        "--ownership",
        type=click.Choice(["group", "claims"]),
        default="group",
        help="Who assigns partitions: Kafka's group coordinator, or claims in a topic of their own.",
    ),
    option("--claims", default=names.CLAIMS_TOPIC, metavar="TOPIC", help="Claims topic; created if missing."),
    click.option(
        "--client-id",
        metavar="NAME",
        help="Name of this member; keep it across restarts to reclaim partitions at once.  [default: a new one]",
    ),
    option(
        "--heartbeat-interval-s",
        default=INTERVAL_S,
        help="Claims: seconds between heartbeats; others take over after two without one.",
    ),
    option(
        "--flow",
        type=click.Choice([str(flow) for flow in DeliverySemantics]),
        default=str(DeliverySemantics.AT_LEAST_ONCE),
        help="Claims: whether a crash repeats the work of one interval, or skips the work it interrupted.",
    ),
    *PROBE_OPTIONS,
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text."),
)
database_options = options(
    click.option(
        "--database",
        envvar="DATABASE_URL",
        metavar="URL",
        help="Database: postgresql://user:password@host:port/name; `python -m sandbox stores up postgres` prints one.",
    ),
    option("--lock-timeout-s", default=3.0, help="Maximum seconds to wait for a lock."),
    option("--statement-timeout-s", default=10.0, help="Maximum seconds for one statement."),
    option(
        "--idle-timeout-s",
        default=20.0,
        help="Seconds until PostgreSQL ends an idle transaction and releases its locks.",
    ),
)
crash_options = options(
    click.option(
        "--crash-point",
        type=click.Choice([moment.value for moment in CrashMoment]),
        help="Point at which the process crashes on purpose.",
    ),
    option("--crash-prob", default=1.0, help="Probability of a crash per batch, 0 to 1."),
    option(
        "--crash-how",
        type=click.Choice([how.value for how in CrashSignal]),
        default=CrashSignal.KILL.value,
        help="Signal that the process sends itself: SIGKILL or SIGSTOP.",
    ),
    click.option("--crash-seed", type=int, help="Seed of the random crashes; equal seeds crash at the same batches."),
)


def loop_settings(given: dict[str, Any], group: str) -> LoopSettings:
    by_claim = given["ownership"] == "claims"
    if by_claim and given["partitions"] is not None:  # members divide all partitions, whoever may claim which
        raise UsageError(
            "--partitions names what this member reads, and with --ownership claims the members divide all partitions "
            "among themselves; leave out one of the two"
        )
    return LoopSettings(
        connection(given["bootstrap"]),
        group,
        checked_topic(given["topic"], "--topic"),
        partitions=_partitions(given["partitions"]),
        follow=given["follow"],
        batch=given["batch"],
        max_poll_interval_s=given["max_poll_interval_s"],
        session_timeout_s=given["session_timeout_s"],
        patience_s=given["patience_s"],
        claims=_claims(given) if by_claim else None,
    )


def _claims(given: dict[str, Any]) -> ClaimsSettings:
    return ClaimsSettings(
        checked_topic(given["claims"], "--claims"),
        given["client_id"] or fresh_client_id(),
        given["heartbeat_interval_s"],
        DeliverySemantics(given["flow"]),
    )


def database_settings(given: dict[str, Any]) -> DatabaseSettings:
    """Return the database's settings from a command's parameters; raises `UsageError` if they can't work."""
    if not given["database"]:
        raise UsageError(
            "--database (DATABASE_URL) is missing; `python -m sandbox stores up postgres` starts one and prints its URL"
        )
    settings = DatabaseSettings(
        given["database"],
        given["schema"],
        given["lock_timeout_s"],
        given["statement_timeout_s"],
        given["idle_timeout_s"],
        weaker=(lambda text: click.echo(f"weaker guarantee: {text}", err=True)) if given["accept_weaker"] else None,
    )
    settings.check(given["max_poll_interval_s"])
    return settings


def crash_of(given: dict[str, Any]) -> StoreCrash:
    point = given["crash_point"]
    return StoreCrash(
        None if point is None else CrashMoment(point),
        given["crash_prob"],
        given["crash_seed"],
        CrashSignal(given["crash_how"]),
    )


def _partitions(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() for word in words) or len(set(words)) < len(words):
        raise UsageError(f"--partitions is {text!r}: give different partition numbers, such as 0,2")
    return tuple(int(word) for word in words)
