"""An X-ray as JSON; pure."""

from __future__ import annotations

from typing import Any

from pipeline.xray import words
from pipeline.xray.columns import Column, columns
from pipeline.xray.model import Run, Strip
from pipeline.xray.picture import Xray
from pipeline.xray.svg import MOST_COLUMNS


def document(xray: Xray) -> dict[str, Any]:
    """Strips with their counts, and their runs; bins instead where a strip has more runs than a picture shows."""
    return {
        "taken": words.date(xray.taken_ms),
        "group": xray.group,
        "strips": [{"role": xray.role(strip), **_strip(strip)} for strip in xray.strips],
        "steps": [{"at_ms": one.at_ms, "step": one.name, "partition": one.partition} for one in xray.told],
        "not_told": list(xray.not_told),
    }


def _strip(strip: Strip) -> dict[str, Any]:
    log, found = strip.log, columns(strip, MOST_COLUMNS)
    exact = all(one.run is not None for one in found)
    return {
        "topic": strip.topic,
        "partition": strip.partition,
        "start": strip.start,
        "until": strip.until,
        "log_start": log.first,
        "last_stable": log.last_stable,
        "high_watermark": log.end,
        "group": strip.group,
        "records": {kind.value: count for kind, count in strip.counts().items()},
        "empty_offsets": strip.gaps(),
        "runs" if exact else "bins": [_bin(one) if one.run is None else _run(one.run) for one in found],
    }


def _bin(column: Column) -> dict[str, Any]:
    offsets = {kind.value: count for kind, count in column.offsets.items()}
    writers = column.writers
    return {
        "start": column.start,
        "until": column.end,
        "offsets": offsets,
        "runs": column.runs,
        "producers": writers.producers,
        "producer_id": writers.producer_id,
        "epochs": writers.epochs,
        "source_partitions": writers.partitions,
        "source": writers.source and [_place(at) for at in writers.source],
    }


def _run(run: Run) -> dict[str, Any]:
    source = None if run.first is None or run.last is None else [_place(run.first), _place(run.last)]
    return {
        "start": run.start,
        "until": run.end,
        "kind": run.kind.value,
        "records": run.records,
        "producer_id": run.producer_id,
        "epoch": run.epoch,
        "written_ms": run.written_ms,
        "ended_ms": run.ended_ms,
        "marker": run.marker,
        "source": source,
    }


def _place(at: Any) -> str:
    return f"{at.topic}/{at.partition}/{at.offset}"
