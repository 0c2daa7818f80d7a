"""The world of claims as tables for people and as JSON for programs."""

from __future__ import annotations

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from downstream.claims.admin import Row, View
from protocol.claims.layout import WHOLE_TOPIC
from protocol.claims.table import Status

_COLOURS = {str(Status.FRESH): "green", str(Status.UNKNOWN): "yellow", str(Status.STALE): "red", "free": "dim"}


def document(view: View) -> dict[str, object]:
    """One JSON object."""
    return {
        "partitions": [row._asdict() for row in view.rows],
        "members": [one._asdict() for one in view.members],
        "pauses": [one._asdict() for one in view.pauses],
    }


def tables(view: View, title: str) -> Group:
    """Partitions, and below them members and pauses where there are any."""
    shown = Table(title=escape(title), title_justify="left")
    for name in ("group", "topic", "partition", "owner", "state"):
        shown.add_column(name)
    for name in ("heard ago", "position", "token"):
        shown.add_column(name, justify="right")
    for row in view.rows:
        shown.add_row(*_cells(row))
    lines = [
        f"{one.group}: paused by {one.by}, for another {one.ends_in_s:.0f} s; `downstream claims release --end` ends it"
        for one in view.pauses
    ]
    owners = {(row.group, row.topic, row.owner) for row in view.rows if row.state != "free"}
    idle = [one.client for one in view.members if (one.group, one.topic, one.client) not in owners]
    if idle:
        lines.append(f"standing by: {', '.join(idle)}")
    return Group(shown, *(escape(line) for line in lines))


def _cells(row: Row) -> list[str]:
    colour = _COLOURS[row.state]
    return [
        escape(row.group),
        escape(row.topic),
        "whole" if row.partition == WHOLE_TOPIC else str(row.partition),
        escape(row.owner or "-"),
        f"[{colour}]{row.state}[/]",
        f"{row.heard_s_ago:.1f} s",
        "-" if row.position < 0 else str(row.position),
        str(row.token),
    ]
