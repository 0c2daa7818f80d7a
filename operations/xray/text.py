"""The X-ray as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from operations import labels
from operations.xray.html import MOST_COLUMNS
from operations.xray.model import ORDER, Column, Kind, Run, Strip, binned, columns
from operations.xray.timeline import Xray

_SIGNS = {
    Kind.PLAIN: ("▒", "blue"),
    Kind.COMMITTED: ("█", "green"),
    Kind.ABORTED: ("░", "red"),
    Kind.OPEN: ("?", "yellow"),
    Kind.COMMIT_MARKER: ("│", "bold"),
    Kind.ABORT_MARKER: ("┆", "bold red"),
}
_NOTHING = ("·", "dim")
_LABEL = 12
_LEAST = 20
_WIDEST_OFFSET = 3


def lines(xray: Xray, width: int) -> Iterator[Text]:
    """A strip and a line of numbers for each partition of each topic, and what the signs mean."""
    room = max(_LEAST, width - _LABEL - 1)
    for partition, indices in xray.by_partition().items():
        yield Text(f"partition {partition}", "bold")
        for strip in (xray.strips[index] for index in indices):
            drawn = Text(f"{xray.role(strip)[: _LABEL - 1]:<{_LABEL}}")
            for sign, style in cells(strip, room):
                drawn.append(sign, style)
            yield drawn
            yield Text(f"{'':<{_LABEL}}{_numbers(strip)}", "dim")
    legend = Text()
    for kind in ORDER:
        sign, style = _SIGNS[kind]
        legend.append(sign, style).append(f" {kind.words}  ")
    yield legend
    for note in xray.unavailable:
        yield Text(f"unavailable: {note}", "cyan")


def cells(strip: Strip, room: int) -> list[tuple[str, str]]:
    """
    A sign and its style for each cell, ``room`` at most.

    Where several offsets share a cell, an open one counts before all others, then whatever has the most offsets.
    """
    span = strip.until - strip.start
    if not span:
        return []
    count = min(span, room)
    each = min(_WIDEST_OFFSET, room // span) if span <= room else 1
    size = -(-span // count)
    signs = [_NOTHING] * -(-span // size)
    for column in binned(strip, count):
        signs[(column.start - strip.start) // size] = _SIGNS[_foremost(column)]
    return [sign for sign in signs for _ in range(each)]


def _foremost(column: Column) -> Kind:
    counts = column.offsets
    if counts[Kind.OPEN]:
        return Kind.OPEN
    return max(counts, key=lambda kind: (counts[kind], -ORDER.index(kind)))


def _numbers(strip: Strip) -> str:
    counts, log = strip.counts(), strip.log
    parts = [f"{counts[kind]:,} {kind.words}" for kind in ORDER if counts[kind] and not kind.marker]
    if (strip.start, strip.until) != (log.first, log.end):
        parts.append(f"of {labels.span(strip.start, strip.until)}")
    parts += [f"log start {log.first:,}", f"LSO {log.last_stable:,}", f"HW {log.end:,}"]
    return " · ".join(parts if strip.group is None else [*parts, f"group {strip.group:,}"])


def document(xray: Xray) -> dict[str, Any]:
    """Strips with their counts, and their runs; bins instead where a strip has more runs than a picture shows."""
    return {
        "taken": labels.date(xray.taken_ms),
        "group": xray.group,
        "strips": [{"role": xray.role(strip), **_strip(strip)} for strip in xray.strips],
        "steps": [{"at_ms": event.at_ms, "step": event.name, "partition": event.partition} for event in xray.events],
        "unavailable": list(xray.unavailable),
    }


def _strip(strip: Strip) -> dict[str, Any]:
    log, drawn = strip.log, columns(strip, MOST_COLUMNS)
    exact = all(column.run is not None for column in drawn)
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
        "runs" if exact else "bins": [_bin(column) if column.run is None else _run(column.run) for column in drawn],
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
        "source": writers.source and [_place(end) for end in writers.source],
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
        "sink": run.sink and {"name": run.sink.name, "batch": run.sink.number},
    }


def _place(source: Any) -> str:
    return f"{source.topic}/{source.partition}/{source.offset}"
