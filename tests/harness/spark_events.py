"""Spark's event log: what its own Kafka source read. Whoever reads with another client leaves nothing of it there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_QUERY = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
_SOURCE = "BatchScan KafkaTable"


def event_log(folder: Path) -> tuple[str, ...]:
    """A run's options for a log in ``folder``, which has to exist; as plain text, since Spark 4 packs it with zstd."""
    conf = {"enabled": "true", "dir": str(folder), "compress": "false"}
    return tuple(word for name, value in conf.items() for word in ("--conf", f"spark.eventLog.{name}={value}"))


def files(folder: Path) -> list[Path]:
    """Those with events in them."""
    return sorted(folder.rglob("events_*"))


def read_by_spark(folder: Path) -> int | None:
    """
    How many records Spark's own Kafka source gave to tasks; None where no query read with it.

    Counts are those of tasks whose end was written: all of a run that ends in order, some or none of one that dies.
    """
    counters: set[int] = set()
    read = 0
    for event in _events(folder):
        if event["Event"] == _QUERY:
            counters |= set(_scans(event["sparkPlanInfo"]))
        elif event["Event"] == "SparkListenerTaskEnd":
            told = event["Task Info"]["Accumulables"]
            read += sum(int(one["Update"]) for one in told if one["ID"] in counters)
    return read if counters else None


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """In order; the last line of a run that was killed may be torn."""
    for file in files(folder):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _scans(plan: dict[str, Any]) -> Iterator[int]:
    """The counter of rows of each Kafka source in a plan."""
    if plan["nodeName"] == _SOURCE:
        yield from (one["accumulatorId"] for one in plan["metrics"] if "output rows" in one["name"])
    for child in plan["children"]:
        yield from _scans(child)
