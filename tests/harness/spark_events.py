"""Spark's event log: what its own Kafka source read. Readers with another client leave no trace there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_QUERY = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
_SOURCE = "BatchScan KafkaTable"


def event_log(folder: Path) -> tuple[str, ...]:
    """Return options for a log in ``folder``, which must exist; as plain text, since Spark 4 packs it with zstd."""
    conf = {"enabled": "true", "dir": str(folder), "compress": "false"}
    return tuple(word for name, value in conf.items() for word in ("--conf", f"spark.eventLog.{name}={value}"))


def files(folder: Path) -> list[Path]:
    """Return the files with events."""
    return sorted(folder.rglob("events_*"))


def read_by_spark(folder: Path) -> int | None:
    """
    Return the number of records that Spark's own Kafka source gave to tasks, or None if no query read with it.

    Only tasks whose end was logged count: all of a run that ends cleanly, some or none of one that dies.
    """
    counters: set[int] = set()
    read = 0
    for event in _events(folder):
        if event["Event"] == _QUERY:
            counters |= set(_scans(event["sparkPlanInfo"]))
        elif event["Event"] == "SparkListenerTaskEnd":
            accumulables = event["Task Info"]["Accumulables"]
            read += sum(int(update["Update"]) for update in accumulables if update["ID"] in counters)
    return read if counters else None


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the events in order; the last line of a killed run may be truncated."""
    for file in files(folder):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _scans(plan: dict[str, Any]) -> Iterator[int]:
    """Yield the row counter of each Kafka source in a plan."""
    if plan["nodeName"] == _SOURCE:
        yield from (one["accumulatorId"] for one in plan["metrics"] if "output rows" in one["name"])
    for child in plan["children"]:
        yield from _scans(child)
