"""The options of a run, and how they become settings."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from brew import names
from brew.claims.member import INTERVAL_S
from brew.cli import bootstrap_option, connection, named_option, names_by_output, options
from brew.errors import UsageError
from brew.jvm import dependencies
from brew.names import CrashMode, CrashPoint
from brew.orders import Tiers
from brew.preflight import allowed
from brew.settings import (
    ClaimsSettings,
    CrashSettings,
    DirectSettings,
    Limits,
    OnError,
    OnMissingPosition,
    PipelineSettings,
    ProfilesSettings,
    Reader,
    SparkSettings,
)


def _number(flag: str, kind: type, default: float | str | None, text: str) -> Callable[[Any], Any]:
    return click.option(flag, type=kind, default=default, show_default=default is not None, help=text)


def _choice(flag: str, default: enum.StrEnum, text: str, env: str | None = None) -> Callable[[Any], Any]:
    values = click.Choice([choice.value for choice in type(default)])
    return click.option(flag, envvar=env, type=values, default=default.value, show_default=True, help=text)


def _flag(flag: str, env: str, text: str) -> Callable[[Any], Any]:
    return click.option(flag, envvar=env, is_flag=True, help=text)


def _several(flag: str, metavar: str, text: str, env: str | None = None) -> Callable[[Any], Any]:
    return click.option(flag, envvar=env, multiple=True, metavar=metavar, help=text)


run_options = options(
    bootstrap_option,
    named_option("--input", "INPUT_TOPIC", names.INPUT_TOPIC, "Topic to read."),
    named_option("--output", "OUTPUT_TOPIC", names.OUTPUT_TOPIC, "Topic to write; created if missing."),
    named_option(
        "--dead-letter",
        "DLQ_TOPIC",
        names.DEAD_LETTER_TOPIC,
        "Topic for rejected records; created if missing; with --transform OUTPUT.dlq unless it is given.",
    ),
    named_option(
        "--group", "GROUP_ID", names.GROUP_ID, "Consumer group; with --transform brew-OUTPUT unless it is given."
    ),
    click.option(
        "--transform",
        envvar="TRANSFORM",
        metavar="MODULE:FUNCTION",
        help="file.py:function or module:function; called for each record.  [default: orders]",
    ),
    _choice(
        "--on-error",
        OnError.END,
        "If the transformation raises: end the run, or send the record to the dead-letter topic.",
    ),
    _several(
        "--also-output",
        "TOPIC",
        "Further output topic, for `record.to(topic)`; created if missing; repeatable.",
        "ALSO_OUTPUT",
    ),
    _several("--py-files", "FILE", "Module, archive or wheel that contains the transformation; repeatable."),
    _choice("--tiers", Tiers.PREFIX, "Source of a customer's tier: prefix of the key, or profiles.", "TIERS"),
    named_option("--profiles-topic", "PROFILES_TOPIC", names.CUSTOMERS_TOPIC, "Topic of customer profiles."),
    _number("--profiles-timeout", float, 120.0, "Maximum time in which a worker reads all profiles."),
    named_option("--master", "MASTER", "local[*]", "spark://, yarn, k8s://, none; none runs without Spark."),
    _choice(
        "--reader",
        Reader.DIRECT,
        "direct or connector; connector is Spark's Kafka source, which is slower.",
        "READER",
    ),
    _number("--lease", float, 10.0, "Time that a task works without a renewal from the driver."),
    _number("--transaction-bytes", int, 16 * 1024**2, "Maximum input of one transaction, in bytes."),
    _number("--read-ahead-bytes", int, 48 * 1024**2, "Maximum data that one task fetches ahead, in bytes."),
    _flag("--follow", "FOLLOW", "Run until SIGTERM; without it, stop at the topic's current end."),
    _flag("--stand-by", "STAND_BY", "One of several drivers works, the others wait."),
    _flag("--share", "SHARE", "Several drivers share the partitions."),
    _number("--claim-interval", float, INTERVAL_S, "Time between heartbeats; others take over after two intervals."),
    click.option("--client-id", default="", metavar="NAME", help="This driver's name.  [default: host-pid]"),
    _number("--claims", str, names.CLAIMS_TOPIC, "Claims topic; created if missing."),
    _number("--lanes", int, 2, "Number of concurrent cycles, over disjoint partitions."),
    _number("--max-records-per-transaction", int, 250_000, "Maximum offsets of one transaction."),
    _number("--transaction-timeout", float, 60.0, "Time after which brokers abort an open transaction."),
    _number("--poll-interval", float, 0.1, "Time between polls when there is nothing to do."),
    _number("--patience", float, 120.0, "Time without progress before giving up."),
    _number("--blocked-patience", float, 1200.0, "Time to wait for an open transaction of the input's producers."),
    _number(
        "--max-record-bytes",
        int,
        1_000_000,
        "Maximum size of an order, or of an output of a function, in bytes; larger ones are rejected.",
    ),
    _number("--max-record-depth", int, 100, "Maximum depth of an order's JSON; deeper orders are rejected."),
    click.option(
        "--max-rejected",
        type=float,
        help="Maximum rejected share; above it, of a partition's last 1000 records, the run stops; 1: never.  "
        "[default: all of first 100]",
    ),
    _choice(
        "--on-missing-position", OnMissingPosition.REFUSE, "What to do if there is output, but no committed offset."
    ),
    _number("--crash-prob", float, 0.0, "Probability that a transaction crashes, 0 to 1."),
    _choice("--crash-point", CrashPoint.AFTER_FLUSH, "Step at which it crashes."),
    _choice(
        "--crash-mode",
        CrashMode.PIPELINE,
        "What crashes: the pipeline (exit code 2), or one worker (the run recovers).",
    ),
    _number("--crash-seed", int, None, "Seed of the random crashes."),
    _several("--allow", "CHECK", "Run even if this check fails; repeatable."),
    _several("--conf", "NAME=VALUE", "Spark setting; repeatable."),
    click.option(
        "--journal", envvar="JOURNAL", metavar="DIR", help="Directory to record every step in; `proof verify` reads it."
    ),
    click.option(
        "--jvm-dir", envvar="BREW_JVM_DIR", default=None, help="Directory of the jars that `brew setup` fetched."
    ),
    click.option("--verbose", is_flag=True, help="Show Spark's log."),
    names_by_output,
)
"""Every option of a run."""


def settings_of(
    option: dict[str, Any], transform: str | None = None, packages: tuple[str, ...] = ("brew",)
) -> PipelineSettings:
    """Build the settings from parsed options; ``transform`` is the program's own, contained in ``packages``."""
    return PipelineSettings(
        connection(option["bootstrap"]),
        option["input"],
        option["output"],
        option["dead_letter"],
        option["group"],
        replace(_spark(option), packages=packages, py_files=option["py_files"]),
        CrashSettings(
            option["crash_prob"],
            CrashPoint(option["crash_point"]),
            CrashMode(option["crash_mode"]),
            option["crash_seed"],
        ),
        Limits(option["max_record_bytes"], option["max_record_depth"]),
        Reader(option["reader"]),
        DirectSettings(option["lease"], option["transaction_bytes"], option["read_ahead_bytes"]),
        follow=option["follow"],
        lanes=option["lanes"],
        max_records_per_transaction=option["max_records_per_transaction"],
        transaction_timeout_s=option["transaction_timeout"],
        poll_interval_s=option["poll_interval"],
        patience_s=option["patience"],
        blocked_patience_s=option["blocked_patience"],
        on_missing_position=OnMissingPosition(option["on_missing_position"]),
        journal=option["journal"],
        max_rejected=option["max_rejected"],
        stand_by=_claims(option) if option["stand_by"] else None,
        share=_claims(option) if option["share"] else None,
        allow=allowed(option["allow"]),
        profiles=ProfilesSettings(option["profiles_topic"], option["profiles_timeout"])
        if option["tiers"] == Tiers.PROFILES
        else None,
        transform=option["transform"] or transform,
        on_error=OnError(option["on_error"]),
        also_output=option["also_output"],
    )


def _claims(option: dict[str, Any]) -> ClaimsSettings:
    return ClaimsSettings(option["claim_interval"], option["client_id"], option["claims"])


def _spark(option: dict[str, Any]) -> SparkSettings:
    conf = {}
    for pair in option["conf"]:
        name, equals, value = pair.partition("=")
        if not equals or not name.startswith("spark."):
            raise UsageError(f"--conf is {pair!r}: write spark.some.name=value")
        conf[name] = value
    jvm_dir = str(dependencies.home(option["jvm_dir"]))
    return SparkSettings(option["master"], jvm_dir, conf, verbose=option["verbose"])
