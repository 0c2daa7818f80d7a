"""How the live view says numbers, ages and states; pure."""

from __future__ import annotations

from brew.preflight.finding import Severity
from operations.ui.model import Transaction
from operations.xray import labels as xray_labels

SIGNS = {
    "working": "●",
    "idle": "○",
    "blocked": "▲",
    "fenced": "⊘",
    "stuck": "✗",
    "unrecoverable": "✗",
    "looking": "…",
    "unknown": "?",
}
MEANINGS = {
    "working": "the position moves, or a transaction is open within its time-out",
    "idle": "nothing is left to read",
    "blocked": "all up to the last stable offset is read; somebody's open transaction holds it back",
    "fenced": "transactions begin and none commits",
    "stuck": "something is to be read and nothing moves",
    "unrecoverable": "it can't go on by itself",
    "looking": "not looked at for long enough to say",
    "unknown": "no source tells of it",
}
OUTCOMES = {"committed": "✓", "aborted": "✗", "open": "…"}
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_FEW, _MANY = 10, 100
NONE = "-"


def seconds(value: float | None) -> str:
    """Two digits that count: `3 ms`, `0.42 s`, `12 s`, `3 min`."""
    if value is None:
        return NONE
    if value < 0.01:  # noqa: PLR2004 - below that milliseconds read better
        return f"{value * 1000:.1f} ms"
    if value < 1:
        return f"{value:.2f} s"
    if value < _FEW:
        return f"{value:.1f} s"
    if value < 2 * _MINUTE:
        return f"{value:.0f} s"
    if value < 2 * _HOUR:
        return f"{value / _MINUTE:.0f} min"
    return f"{value / _HOUR:.0f} h" if value < 2 * _DAY else f"{value / _DAY:.0f} d"


def ago(value: float | None) -> str:
    return "" if value is None else "now" if value < 1 else f"{seconds(float(int(value)))} ago"


def number(value: int | None, *, exact: bool = True) -> str:
    return NONE if value is None else f"{value:,}" if exact else f"≤ {value:,}"


def records(one: Transaction) -> str:
    """How many a transaction holds, for a cell: `750`, or `≥ 400` where its beginning was not read."""
    return NONE if one.records is None else f"{'' if one.exact else '≥ '}{one.records:,}"


def _held(one: Transaction) -> str:
    if one.records is None:
        return "records not counted"
    least = "" if one.exact else "at least "
    return f"{least}{one.records:,} record{'s' * (one.records != 1)}"


def rate(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}" if value >= _FEW or value == 0 else f"{value:.1f}"


def coordinator(one: Transaction) -> str:
    """What the coordinator says of one that is open: state, and age against its time-out."""
    if one.state is None or one.timeout_s is None:
        return NONE
    return f"{one.state}, {seconds(one.seconds)} of {seconds(one.timeout_s)}"


def transaction(one: Transaction) -> str:
    """One in a sentence."""
    who = f"producer {one.producer_id}, epoch {one.epoch}"
    name = f"{one.transactional_id}: " if one.transactional_id else ""
    parts = [f"{name}{one.outcome}", who, f"{_held(one)} in output partition {one.partition}"]
    if one.first is None and one.last is not None:
        parts.append(f"input partition {one.source}, up to offset {one.last:,}")
    if one.first is not None and one.last is not None:
        parts.append(f"input partition {one.source}, {xray_labels.span(one.first, one.last + 1)}")
    if one.marker is not None:
        parts.append(f"marker at {one.marker:,}")
    if one.state is not None:
        parts.append(f"coordinator: {coordinator(one)}")
    return "; ".join(parts)


def checks(severity: Severity, count: int) -> str:
    """So many checks of that severity."""
    return f"{count} {severity.value}{'s' * (severity is Severity.WARNING and count != 1)}"


def clock(ms: int | None) -> str:
    return NONE if ms is None else xray_labels.clock(ms)
