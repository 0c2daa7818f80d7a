"""The options of a run, and how they become settings."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from brew import names
from brew.claims.member import INTERVAL_S
from brew.cli import (
    bootstrap_option,
    connection,
    flag,
    named_option,
    names_by_output,
    options,
    plain_option,
    repeatable,
    typed_option,
)
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


def _choice(name: str, default: enum.StrEnum, text: str, env: str | None = None) -> Callable[[Any], Any]:
    values = click.Choice([choice.value for choice in type(default)])
    return typed_option(name, values, default.value, text, envvar=env)


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
    plain_option(
        "--transform",
        "file.py:function or module:function; called for each record.  [default: orders]",
        "MODULE:FUNCTION",
        envvar="TRANSFORM",
    ),
    _choice(
        "--on-error",
        OnError.END,
        "If the transformation raises: end the run, or send the record to the dead-letter topic.",
    ),
    repeatable(
        "--also-output",
        "Further output topic, for `record.to(topic)`; created if missing; repeatable.",
        "TOPIC",
        envvar="ALSO_OUTPUT",
    ),
    repeatable("--py-files", "Module, archive or wheel that contains the transformation; repeatable.", "FILE"),
    _choice("--tiers", Tiers.PREFIX, "Source of a customer's tier: prefix of the key, or profiles.", "TIERS"),
    named_option("--profiles-topic", "PROFILES_TOPIC", names.CUSTOMERS_TOPIC, "Topic of customer profiles."),
    typed_option("--profiles-timeout", float, 120.0, "Maximum time in which a worker reads all profiles."),
    named_option("--master", "MASTER", "local[*]", "spark://, yarn, k8s://, none; none runs without Spark."),
    _choice(
        "--reader",
        Reader.DIRECT,
        "direct or connector; connector is Spark's Kafka source, which is slower.",
        "READER",
    ),
    typed_option("--lease", float, 10.0, "Time that a task works without a renewal from the driver."),
    typed_option("--transaction-bytes", int, 16 * 1024**2, "Maximum input of one transaction, in bytes."),
    typed_option("--read-ahead-bytes", int, 48 * 1024**2, "Maximum data that one task fetches ahead, in bytes."),
    flag("--follow", "Run until SIGTERM; without it, stop at the topic's current end.", envvar="FOLLOW"),
    flag("--stand-by", "One of several drivers works, the others wait.", envvar="STAND_BY"),
    flag("--share", "Several drivers share the partitions.", envvar="SHARE"),
    typed_option(
        "--claim-interval", float, INTERVAL_S, "Time between heartbeats; others take over after two intervals."
    ),
    plain_option("--client-id", "This driver's name.  [default: host-pid]", "NAME", default=""),
    typed_option("--claims", str, names.CLAIMS_TOPIC, "Claims topic; created if missing."),
    typed_option("--lanes", int, 2, "Number of concurrent cycles, over disjoint partitions."),
    typed_option("--max-records-per-transaction", int, 250_000, "Maximum offsets of one transaction."),
    typed_option("--transaction-timeout", float, 60.0, "Time after which brokers abort an open transaction."),
    typed_option("--poll-interval", float, 0.1, "Time between polls when there is nothing to do."),
    typed_option("--patience", float, 120.0, "Time without progress before giving up."),
    typed_option("--blocked-patience", float, 1200.0, "Time to wait for an open transaction of the input's producers."),
    typed_option(
        "--max-record-bytes",
        int,
        1_000_000,
        "Maximum size of an order, or of an output of a function, in bytes; larger ones are rejected.",
    ),
    typed_option("--max-record-depth", int, 100, "Maximum depth of an order's JSON; deeper orders are rejected."),
    plain_option(
        "--max-rejected",
        "Maximum rejected share; above it, of a partition's last 1000 records, the run stops; 1: never.  "
        "[default: all of first 100]",
        type=float,
    ),
    _choice(
        "--on-missing-position", OnMissingPosition.REFUSE, "What to do if there is output, but no committed offset."
    ),
    typed_option("--crash-prob", float, 0.0, "Probability that a transaction crashes, 0 to 1."),
    _choice("--crash-point", CrashPoint.AFTER_FLUSH, "Step at which it crashes."),
    _choice(
        "--crash-mode",
        CrashMode.PIPELINE,
        "What crashes: the pipeline (exit code 2), or one worker (the run recovers).",
    ),
    typed_option("--crash-seed", int, None, "Seed of the random crashes."),
    repeatable("--allow", "Run even if this check fails; repeatable.", "CHECK"),
    repeatable("--conf", "Spark setting; repeatable.", "NAME=VALUE"),
    plain_option("--journal", "Directory to record every step in; `proof verify` reads it.", "DIR", envvar="JOURNAL"),
    plain_option("--jvm-dir", "Directory of the jars that `brew setup` fetched.", envvar="BREW_JVM_DIR"),
    flag("--verbose", "Show Spark's log."),
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
