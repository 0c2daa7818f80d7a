"""Counts, one letter, and a replay's report, as tables for people and documents for JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pipeline.dlq.back import Back, Stays
from pipeline.dlq.letter import Letter, shown
from pipeline.dlq.replay import Report

_MOST_SHOWN = 2000
_PERIODS = {"day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H:00Z", "minute": "%Y-%m-%dT%H:%MZ"}
PERIODS = ("none", *_PERIODS)
_MOST_LINES = 100


@dataclass(slots=True)
class _Count:
    letters: int = 0
    replayed: int = 0
    oldest: int = 0
    newest: int = 0


@dataclass
class Census:
    """Dead letters counted by reason, partition, and period of the input record's timestamp (`none`: all of them)."""

    period: str = "none"
    _counts: dict[tuple[str, int, str], _Count] = field(default_factory=dict)

    def add(self, letter: Letter, *, replayed: bool) -> None:
        form = _PERIODS.get(self.period)
        when = "" if form is None else _time(letter.timestamp).strftime(form)
        at = (letter.reason, letter.partition, when)
        count = self._counts.setdefault(at, _Count(oldest=letter.timestamp, newest=letter.timestamp))
        count.letters += 1
        count.replayed += replayed
        count.oldest, count.newest = min(count.oldest, letter.timestamp), max(count.newest, letter.timestamp)

    def document(self, topic: str) -> dict[str, Any]:
        rows: list[dict[str, Any]] = [
            {"reason": reason, "partition": partition}
            | ({"time": when} if when else {})
            | {"letters": count.letters, "replayed": count.replayed, "waiting": count.letters - count.replayed}
            | {"oldest": _text(count.oldest), "newest": _text(count.newest)}
            for (reason, partition, when), count in sorted(self._counts.items())
        ]
        totals = {name: sum(row[name] for row in rows) for name in ("letters", "replayed", "waiting")}
        return {"topic": topic, **totals, "rows": rows}


def census_table(document: dict[str, Any]) -> Table:
    """The rows of `Census.document`."""
    timed = any("time" in row for row in document["rows"])
    names = ["reason", "partition", *(["time"] if timed else []), "letters", "replayed", "waiting", "oldest", "newest"]
    table = Table(title=Text(document["topic"]), show_footer=True)
    for name in names:
        number = name in {"partition", "letters", "replayed", "waiting"}
        footer = f"{document[name]:,}" if name in document and number else ""
        table.add_column(name, Text(footer), justify="right" if number else "left", overflow="fold")
    for row in document["rows"]:
        table.add_row(*(Text(f"{row[name]:,}" if isinstance(row[name], int) else row[name]) for name in names))
    return table


def letter_document(letter: Letter, *, replayed: bool) -> dict[str, Any]:
    """All of one letter; bytes as `{"text": ...}` or `{"hex": ...}`."""
    source = letter.source
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "source": None if source is None else f"{source.topic}/{source.partition}/{source.offset}",
        "reason": letter.reason,
        "message": letter.message,
        "timestamp": _text(letter.timestamp),
        "replayed": replayed,
        "replays_before": letter.replays,
        "key": shown(letter.key),
        "headers": [[name, shown(content)] for name, content in letter.headers],
        "value_omitted": letter.omitted,
        "value": shown(letter.value),
    }


def letter_table(document: dict[str, Any]) -> Group:
    """The same for a terminal: nothing that it could take for a command, long values cut."""
    table = Table(show_header=False)
    for name, content in document.items():
        if name in {"headers", "value"}:
            continue
        table.add_row(Text(name), _harmless(content) if name == "key" else _plain(content))
    headers = Table("header", "value", title="headers")
    for name, content in document["headers"]:
        headers.add_row(_plain(name), _harmless(content))
    return Group(table, headers, Text("value:"), _harmless(document["value"]))


def report_document(report: Report, dead_letter: str, target: str, *, dry_run: bool) -> dict[str, Any]:
    """What a replay did; with ``dry_run`` what it would do."""
    return {
        "dead_letter": dead_letter,
        "input": target,
        "dry_run": dry_run,
        "replayed": len(report.backs),
        "stays": dict(sorted(Counter(each.why.value for each in report.stays).items())),
        "letters": [
            {"partition": back.letter.partition, "offset": back.letter.offset, "to": back.partition}
            | {"count": back.letter.replays + 1}
            for back in report.backs
        ],
        "stayed": [
            {
                "partition": one.letter.partition,
                "offset": one.letter.offset,
                "why": one.why.value,
                "message": one.message,
            }
            for one in report.stays
        ],
    }


def tell(console: Console, told: Iterable[Back | Stays]) -> None:
    """A line for each letter that stays and was not written back before; the first hundred of a transaction."""
    stays = [one for one in told if isinstance(one, Stays) and one.message]
    for one in stays[:_MOST_LINES]:
        place = f"{one.letter.partition}/{one.letter.offset}"
        console.print(_plain(f"{place} stays, {one.why.value}: {one.message}"), soft_wrap=True)
    if len(stays) > _MOST_LINES:
        console.print(Text(f"... and {len(stays) - _MOST_LINES:,} more; --json names all"))


def summary(document: dict[str, Any]) -> str:
    """One line."""
    verb = "would be written back" if document["dry_run"] else "written back"
    stays = ", ".join(f"{count:,} {why}" for why, count in document["stays"].items())
    left = f"; {sum(document['stays'].values()):,} stay: {stays}" if stays else ""
    return f"{document['replayed']:,} dead letters {verb} to {document['input']}{left}"


def _plain(content: object) -> Text:
    text = str(content)
    return Text("".join(one if one.isprintable() or one in "\n\t" else "\N{REPLACEMENT CHARACTER}" for one in text))


def _harmless(content: dict[str, str] | None) -> Text:
    if content is None:
        return Text("(null)", style="dim")
    [(kind, text)] = content.items()
    cut = text[:_MOST_SHOWN]
    more = f" ... {len(text) - _MOST_SHOWN:,} characters more; --json prints all" if len(text) > _MOST_SHOWN else ""
    return Text(("hex " if kind == "hex" else "") + cut + more)


def _time(timestamp_ms: int) -> datetime:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # any 64-bit number may stand there
        return datetime.fromtimestamp(0, UTC)


def _text(timestamp_ms: int) -> str:
    return _time(timestamp_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z")
