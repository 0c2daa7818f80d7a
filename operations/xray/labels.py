"""What a run, a column or a strip is called in text; pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from brew.offsets import SourcePosition
from operations.xray.columns import ORDER, Column, Writers
from operations.xray.model import Kind, Run, Strip

MEANINGS = {
    Kind.PLAIN: "plain: written outside of transactions, visible at once",
    Kind.COMMITTED: "committed: visible to read_committed readers",
    Kind.ABORTED: "aborted: in the log, and no read_committed reader sees it",
    Kind.OPEN: "open: its transaction has not ended, read_committed readers wait before it",
    Kind.COMMIT_MARKER: "commit marker: ends a transaction, takes an offset",
    Kind.ABORT_MARKER: "abort marker: ends a transaction, takes an offset",
}


def span(start: int, end: int) -> str:
    """Offsets `[start, end)` for people, who count the last one in."""
    return f"offset {start:,}" if end == start + 1 else f"offsets {start:,} to {end - 1:,}"


def clock(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]


def date(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def of_run(run: Run) -> str:
    """Where, what, by whom, from where, and how it ended."""
    parts = [f"{span(run.start, run.end)}: {run.kind.words}"]
    if not run.kind.marker:
        parts.append(f"{run.records:,} record{'s' * (run.records != 1)}")
    parts.append(f"producer {run.producer_id} epoch {run.epoch}" if run.producer_id >= 0 else "no producer id")
    if run.first is not None and run.last is not None:
        parts.append(_of_source(run.first, run.last))
    if run.earlier.records or not run.earlier.whole:
        parts.append("its transaction begins before this window")
    if run.marker is not None:
        parts.append(f"ended by the marker at {run.marker:,}")
    return "; ".join(parts)


def _of_source(first: SourcePosition, last: SourcePosition) -> str:
    to = f"{last.offset:,}" if (first.topic, first.partition) == (last.topic, last.partition) else str(last)
    return f"source {first.topic}[{first.partition}] {first.offset:,} to {to}"


def of_column(column: Column) -> str:
    if column.run is not None:
        return of_run(column.run)
    counts = column.offsets
    told = ", ".join(f"{counts[kind]:,} {kind.words}" for kind in ORDER if counts[kind])
    return "; ".join([f"{span(column.start, column.end)}: {told}", *_of_writers(column.writers)])


def _of_writers(writers: Writers) -> Iterator[str]:
    """One producer with its epochs and one source partition with its offsets, or how many there are."""
    if writers.producer_id is None or writers.epochs is None:
        yield f"{writers.producers:,} producers" if writers.producers else "no producer id"
    else:
        first, last = writers.epochs
        yield f"producer {writers.producer_id} epoch{f' {first}' if first == last else f's {first} to {last}'}"
    if writers.source is not None:
        yield _of_source(*writers.source)
    elif writers.partitions:
        yield f"from {writers.partitions:,} source partitions"


def of_position(group: str, start: int, end: int, at_ms: int) -> str:
    """That a group's position has moved to ``end``; others may lie between two moments, so "by" it is."""
    return f"{span(start, end)}: committed by {group} by {clock(at_ms)}"


def of_strip(strip: Strip) -> str:
    """A strip in a sentence, for those who don't see it."""
    counts = strip.counts()
    told = ", ".join(f"{counts[kind]:,} {kind.words}" for kind in ORDER if counts[kind]) or "nothing"
    log = strip.log
    ends = f"log start {log.first:,}, last stable offset {log.last_stable:,}, high watermark {log.end:,}"
    group = "" if strip.group is None else f", group at {strip.group:,}"
    return f"{strip.topic} partition {strip.partition}, {span(strip.start, strip.until)}: {told}; {ends}{group}"
