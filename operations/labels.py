"""Text for numbers, times, states, transactions and offset ranges in tables, pages and terminals; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime

from brew.cli import printable
from brew.names import quantity
from brew.offsets import SourcePosition
from brew.preflight import Finding, Severity
from operations.ui.model import Transaction
from operations.xray.model import ORDER, Column, Kind, Run, Strip, Writers

NONE = "-"
_NO_TIMESTAMP = -1
_STATES = {
    "working": ("●", "the position moves, or a transaction is open within its timeout"),
    "idle": ("○", "nothing is left to read"),
    "blocked": ("▲", "everything up to the last stable offset is processed; an open transaction holds back the rest"),
    "fenced": ("⊘", "transactions begin, but none commits"),
    "stuck": ("✗", "no progress with records to read, or the committed offset is outside the log"),
    "unrecoverable": ("✗", "no retry can succeed"),
    "looking": ("…", "not observed for long enough yet"),
    "unknown": ("?", "no source reports it"),
}
STATE_SIGNS = {state: sign for state, (sign, _) in _STATES.items()}
STATE_MEANINGS = {state: meaning for state, (_, meaning) in _STATES.items()}
KIND_MEANINGS = {
    Kind.PLAIN: "plain: written outside of transactions, visible at once",
    Kind.COMMITTED: "committed: visible to read_committed readers",
    Kind.ABORTED: "aborted: in the log, but skipped by read_committed readers",
    Kind.OPEN: "open: its transaction has not ended; read_committed readers stop before it",
    Kind.COMMIT_MARKER: "commit marker: ends a transaction, takes an offset",
    Kind.ABORT_MARKER: "abort marker: ends a transaction, takes an offset",
}
OUTCOME_SIGNS = {"committed": "✓", "aborted": "✗", "open": "…"}
PROOF_SIGNS = {"proven": "✓", "violated": "✗", "inconclusive": "?"}
SEVERITY_SIGNS = {Severity.OK: "✓", Severity.UNKNOWN: "?", Severity.WARNING: "!", Severity.UNSAFE: "✗"}
_MINUTE, _HOUR, _DAY, _FEW = 60, 3600, 86_400, 10


def seconds(value: float | None) -> str:
    """Format a duration with two significant digits: `3 ms`, `0.42 s`, `12 s`, `3 min`."""
    if value is None:
        return NONE
    if value < 0.01:  # noqa: PLR2004 - milliseconds are easier to read below that
        return f"{value * 1000:.1f} ms"
    if value < 2 * _MINUTE:
        return f"{value:.{2 if value < 1 else 1 if value < _FEW else 0}f} s"
    if value < 2 * _HOUR:
        return f"{value / _MINUTE:.0f} min"
    return f"{value / _HOUR:.0f} h" if value < 2 * _DAY else f"{value / _DAY:.0f} d"


def at_least(value: float | None, *, exact: bool) -> str:
    """Format a duration that is a lower bound unless ``exact``."""
    return f"{'' if exact else 'at least '}{seconds(value)}"


def ago(value: float | None) -> str:
    return "" if value is None else "now" if value < 1 else f"{seconds(float(int(value)))} ago"


def number(value: int | None, *, exact: bool = True) -> str:
    return NONE if value is None else f"{value:,}" if exact else f"≤ {value:,}"


def rate(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}" if value >= _FEW or value == 0 else f"{value:.1f}"


def clock(ms: int | None) -> str:
    return NONE if ms is None else f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S.%f}"[:-3]


def date(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d %H:%M:%S UTC}"


def utc(ms: int) -> datetime | None:
    """Convert a record's timestamp, which may be any 64-bit integer; None if it is outside the calendar's range."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None


def record_time(ms: int) -> str | None:
    """Format a record's timestamp as ISO 8601; a number outside the calendar's range; None if there is none (-1)."""
    if ms == _NO_TIMESTAMP:
        return None
    moment = utc(ms)
    return str(ms) if moment is None else moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def span(start: int, end: int) -> str:
    """Format the offsets `[start, end)` for display, with an inclusive end."""
    if end <= start:
        return "no offsets"
    return f"offset {start:,}" if end == start + 1 else f"offsets {start:,} to {end - 1:,}"


def checks(severity: Severity, count: int) -> str:
    return quantity(count, "warning") if severity is Severity.WARNING else f"{count} {severity.value}"


def all_checks(findings: Iterable[Finding]) -> str:
    """Format the number of checks of each severity, the worst first."""
    counts = Counter(finding.severity for finding in findings)
    return ", ".join(checks(severity, counts[severity]) for severity in reversed(Severity) if counts[severity])


def records(transaction: Transaction) -> str:
    """Format a transaction's record count for a cell: `750`, or `≥ 400` if its beginning was not read."""
    if transaction.records is None:
        return NONE
    return f"{'' if transaction.exact else '≥ '}{transaction.records:,}"


def coordinator(transaction: Transaction) -> str:
    if transaction.state is None or transaction.timeout_s is None:
        return NONE
    return f"{transaction.state}, {seconds(transaction.seconds)} of {seconds(transaction.timeout_s)}"


def of_transaction(transaction: Transaction) -> str:
    name = f"{transaction.transactional_id}: " if transaction.transactional_id else ""
    held = "records not counted"
    if transaction.records is not None:
        held = f"{'' if transaction.exact else 'at least '}{quantity(transaction.records, 'record', ',')}"
    writer = f"{name}{transaction.outcome}; producer {transaction.producer_id}, epoch {transaction.epoch}"
    parts = [writer, f"{held} in {transaction.topic or 'output'} partition {transaction.partition}"]
    if transaction.last is not None:
        first, last = transaction.first, transaction.last
        offsets = f"up to offset {last:,}" if first is None else span(first, last + 1)
        parts.append(f"input partition {transaction.source}, {offsets}")
    if transaction.marker is not None:
        parts.append(f"marker at {transaction.marker:,}")
    if transaction.state is not None:
        parts.append(f"coordinator: {coordinator(transaction)}")
    return "; ".join(parts)


def of_run(run: Run) -> str:
    parts = [f"{span(run.start, run.end)}: {run.kind.words}"]
    if not run.kind.marker:
        parts.append(quantity(run.records, "record", ","))
    parts.append(f"producer {run.producer_id} epoch {run.epoch}" if run.producer_id >= 0 else "no producer id")
    if run.first is not None and run.last is not None:
        parts.append(_of_source(run.first, run.last))
    if run.sink is not None:
        parts.append(printable(str(run.sink)))
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
    place = f"{span(column.start, column.end)}: {_of_kinds(column.offsets)}"
    return "; ".join([place, *_of_writers(column.writers)])


def _of_kinds(counts: Mapping[Kind, int]) -> str:
    return ", ".join(f"{counts[kind]:,} {kind.words}" for kind in ORDER if counts[kind])


def _of_writers(writers: Writers) -> Iterator[str]:
    """Yield one producer with its epochs and one source partition with its offsets, or their numbers."""
    if writers.producer_id is None or writers.epochs is None:
        yield f"{writers.producers:,} producers" if writers.producers else "no producer id"
    else:
        first, last = writers.epochs
        yield f"producer {writers.producer_id} epoch{f' {first}' if first == last else f's {first} to {last}'}"
    if writers.source is not None:
        yield _of_source(*writers.source)
    elif writers.partitions:
        yield f"from {writers.partitions:,} source partitions"


def of_commit(group: str, start: int, end: int, at_ms: int) -> str:
    """Describe a group's commit; several commits may lie between two snapshots, hence "by"."""
    return f"{span(start, end)}: committed by {group} by {clock(at_ms)}"


def of_strip(strip: Strip) -> str:
    """Describe a strip in one sentence, for screen readers."""
    kinds, log = _of_kinds(strip.counts()) or "nothing", strip.log
    ends = f"log start {log.first:,}, last stable offset {log.last_stable:,}, high watermark {log.end:,}"
    group = "" if strip.group is None else f", group at {strip.group:,}"
    return f"{strip.topic} partition {strip.partition}, {span(strip.start, strip.until)}: {kinds}; {ends}{group}"
