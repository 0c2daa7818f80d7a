"""Spark's event log: what its own Kafka source read. Whoever reads with another client leaves nothing of it there."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_QUERY = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionStart"
_SOURCE = re.compile(r"Scan KafkaRelation\(strategy=Assign\[(.+?)-\d+[],]")


def event_log(folder: Path) -> tuple[str, ...]:
    """A run's options for a log in ``folder``, which has to exist; as plain text, since Spark 4 packs it with zstd."""
    conf = {"enabled": "true", "dir": str(folder), "compress": "false"}
    return tuple(word for name, value in conf.items() for word in ("--conf", f"spark.eventLog.{name}={value}"))


def files(folder: Path) -> list[Path]:
    """Those with events in them."""
    return sorted(folder.rglob("events_*"))


def read_by_spark(folder: Path) -> Counter[str]:
    """
    Per topic that queries read with Spark's Kafka source: how many records it gave to tasks.

    Counts are those of tasks whose end was written: all of a run that ends in order, some or none of one that dies.
    """
    topics: dict[int, str] = {}
    read: Counter[str] = Counter()
    for event in _events(folder):
        if event["Event"] == _QUERY:
            topics |= dict(_scans(event["sparkPlanInfo"]))
            read.update(dict.fromkeys(topics.values(), 0))
        elif event["Event"] == "SparkListenerTaskEnd":
            for told in event["Task Info"]["Accumulables"]:
                if told["ID"] in topics:
                    read[topics[told["ID"]]] += int(told["Update"])
    return read


def _events(folder: Path) -> Iterator[dict[str, Any]]:
    """In order; the last line of a run that was killed may be torn."""
    for file in files(folder):
        for line in file.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                yield json.loads(line)


def _scans(plan: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """The counter of rows of each Kafka source in a plan, and its topic."""
    if (found := _SOURCE.match(plan["nodeName"])) is not None:
        yield from ((one["accumulatorId"], found[1]) for one in plan["metrics"] if "output rows" in one["name"])
    for child in plan["children"]:
        yield from _scans(child)
