"""`brew show`: a topic's records as they are in the log, and how each one's transaction ended."""

from __future__ import annotations

import base64
import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from brew.cli import as_bytes, bootstrap_option, flag, plain_option, printable, repeatable, typed_option
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, KafkaFailure, Refused, Unreachable
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin
from brew.kafka.cluster import Outage
from brew.kafka.kafka_python import RawLogs, raw_logs
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.offsets import log_offsets, offsets_at
from brew.kafka.topic_reader import headers_of
from brew.names import READ_COMMITTED, READ_UNCOMMITTED, checked_topic
from brew.offsets import LogOffsets
from brew.signals import Stopped
from operations.explain.command import since
from operations.labels import NONE, record_time
from operations.options import advised, chosen_partitions, connected, print_json, table
from operations.xray.model import Run, RunBuilder

_ASK_S, _POLL_S = 60.0, 0.5
_CHUNK = 2000
"""Offsets of a partition that are held in memory at a time."""
_WIDEST = 300
_MARKER = "-marker"
_KEPT = "\n"
_UNREADABLE = "(unreadable: a name is not UTF-8)"


@dataclass(frozen=True, slots=True)
class RecordQuery:
    """
    Which records: of `partitions` (none: all), from ``start`` (`--offset`) or ``since_ms`` on; the first ``limit`` of
    them, or the last ones if no start is given; ``limit`` 0 is all.
    """

    topic: str
    partitions: tuple[int, ...] = ()
    start: int | None = None
    since_ms: int | None = None
    limit: int = 20
    key: bytes | None = None
    isolation: str = READ_UNCOMMITTED
    markers: bool = False

    @property
    def newest(self) -> bool:
        """True if the newest records are meant, because no start is given."""
        return self.start is None and self.since_ms is None


def content_document(content: bytes | None) -> dict[str, Any]:
    """Return bytes for JSON: `{"text": ...}` if they are UTF-8, else `{"base64": ...}`; `{"null": true}` for None."""
    if content is None:
        return {"null": True}
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


def marker_document(
    topic: str, partition: int, offset: int, timestamp_ms: int, fate: str, producer_id: int = -1, epoch: int = -1
) -> dict[str, Any]:
    """Return a control marker as JSON; these fields are common to markers and records."""
    return {
        "topic": topic,
        "partition": partition,
        "offset": offset,
        "timestamp_ms": timestamp_ms,
        "fate": fate,
        "producer_id": producer_id if producer_id >= 0 else None,
        "producer_epoch": epoch if producer_id >= 0 else None,
    }


def record_document(topic: str, record: LogRecord, run: Run | None) -> dict[str, Any]:
    state = ("unknown",) if run is None else (run.kind.value, run.producer_id, run.epoch)
    headers = headers_of(record)
    return marker_document(topic, record.partition(), record.offset(), record.timestamp()[1], *state) | {
        "key": content_document(record.key()),
        "value": content_document(record.value()),
        "headers": None if headers is None else [[name, content_document(value)] for name, value in headers],
    }


class Reader:
    """Reads one topic's records with their states, through one admin client and one raw connection."""

    def __init__(self, connection: Connection, raw: RawLogs, wanted: RecordQuery) -> None:
        self._connection, self._raw, self.wanted = connection, raw, wanted
        self._admin = admin(connection)
        self.partitions: list[int] = []

    def check(self) -> str:
        """Like `current_id`; raises `Refused` if there is no such topic."""
        return self._take(topics.describe_one(self._admin, self.wanted.topic, Deadline(_ASK_S)))

    def _take(self, topic: topics.Topic) -> str:
        self.partitions = chosen_partitions(self.wanted.partitions, topic.name, topic.partitions)
        return topic.topic_id

    def current_id(self) -> str | None:
        """Return the topic's id now, and read the partitions that it has now; None if there is no such topic."""
        known = topics.describe(self._admin, [self.wanted.topic], Deadline(_ASK_S))
        return self._take(known[self.wanted.topic]) if known else None

    def leave_out_leaderless(self) -> list[int]:
        """Leave out the partitions that have no leader, until they are described again, and return them."""
        found = cluster_admin.leaderless(self._admin, self.wanted.topic, Deadline(_ASK_S))
        left_out = [p for p in self.partitions if p in found]
        self.partitions = [p for p in self.partitions if p not in found]
        return left_out

    def bounds(self) -> dict[int, LogOffsets]:
        return log_offsets(self._admin, self.wanted.topic, self.partitions, Deadline(_ASK_S))

    def until(self, log: LogOffsets) -> int:
        """Return the offset at which readers of this isolation level stop."""
        return log.last_stable if self.wanted.isolation == READ_COMMITTED else log.end

    def starts(self, logs: Mapping[int, LogOffsets]) -> dict[int, int]:
        """Return each partition's start; the log start if the newest records are meant, which are read backwards."""
        wanted = self.wanted
        if wanted.since_ms is not None:
            offsets = offsets_at(self._admin, wanted.topic, logs, wanted.since_ms, Deadline(_ASK_S))
            return {p: log.end if (offset := offsets[p]) is None else offset for p, log in logs.items()}
        if wanted.start is None:
            return {p: log.first for p, log in logs.items()}
        for p, log in logs.items():
            if wanted.start < log.first and len(logs) == 1:
                raise Refused(
                    f"--offset is {wanted.start}, but the log of {wanted.topic}[{p}] begins at {log.first}; set "
                    f"--offset to {log.first} or more"
                )
        return {p: max(log.first, wanted.start) for p, log in logs.items()}

    def span(self, partition: int, start: int, until: int, log: LogOffsets) -> list[dict[str, Any]]:
        """Return the records of `[start, until)` in order, as documents, with markers if they are wanted."""
        wanted, fold = self.wanted, RunBuilder(start, until)
        documents = []
        for batch, _ in self._raw.batches(wanted.topic, partition, start, log.end, Deadline(_ASK_S)):
            if batch.base_offset >= until and not fold.undecided:
                break
            fold.add(batch)
            if wanted.markers and batch.control and start <= batch.base_offset < until:
                fate = f"{batch.marker or 'unknown'}{_MARKER}"
                writer = (batch.producer_id, batch.producer_epoch)
                where = (wanted.topic, partition, batch.base_offset)
                documents.append(marker_document(*where, batch.max_timestamp, fate, *writer))
        runs = fold.finish()
        data = iter([run for run in runs if not run.kind.marker])
        current = next(data, None)
        for chunk in scan(self._connection, wanted.topic, {partition: (start, until)}, wanted.isolation):
            for record in chunk:
                while current is not None and current.end <= record.offset():
                    current = next(data, None)
                if wanted.key is None or record.key() == wanted.key:
                    documents.append(record_document(wanted.topic, record, current))
        return sorted(documents, key=lambda item: item["offset"])

    def newest(self, partition: int, log: LogOffsets) -> list[dict[str, Any]]:
        """Return the last ``limit`` records of a partition, read backwards in chunks."""
        documents: list[dict[str, Any]] = []
        until, limit = self.until(log), self.wanted.limit
        size = max(limit, 20) if self.wanted.key is None and limit else _CHUNK
        while until > log.first and (not limit or len(documents) < limit):
            start = max(log.first, until - size)
            documents = [*self.span(partition, start, until, log), *documents]
            until, size = start, min(_CHUNK, size * 2)
        return documents[-limit:] if limit else documents

    def forward(self, partition: int, start: int, log: LogOffsets) -> Iterator[tuple[int, list[dict[str, Any]]]]:
        """Yield the records from ``start`` on in chunks, each with the offset at which the next one begins."""
        until = self.until(log)
        while start < until:
            begin, start = start, min(until, start + _CHUNK)
            yield start, self.span(partition, begin, start, log)


def collected(reader: Reader, logs: Mapping[int, LogOffsets]) -> list[dict[str, Any]]:
    """Return the records to show without `--follow`: by time, newest last; for a single partition, by offset."""
    wanted = reader.wanted
    starts = reader.starts(logs)
    documents: list[dict[str, Any]] = []
    for partition, log in logs.items():
        if wanted.newest:
            documents += reader.newest(partition, log)
            continue
        chunks = (chunk for _, chunk in reader.forward(partition, starts[partition], log))
        documents += islice(chain.from_iterable(chunks), wanted.limit or None)
    if len(logs) > 1:
        documents = _merged(documents)
    if not wanted.limit:
        return documents
    return documents[-wanted.limit :] if wanted.newest else documents[: wanted.limit]


def _merged(documents: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort by time but keep the order within each partition, whose timestamps may run backwards."""
    latest: dict[int, int] = {}
    keyed = []
    for index, document in enumerate(documents):
        latest[document["partition"]] = max(latest.get(document["partition"], 0), document["timestamp_ms"])
        keyed.append((latest[document["partition"]], index, document))
    return [document for _, _, document in sorted(keyed, key=lambda each: each[:2])]


def follow_log(
    connection: Connection,
    wanted: RecordQuery,
    starts: dict[int, int],
    say: Callable[[list[dict[str, Any]]], None],
    topic_id: str,
) -> None:
    """Print new records until stopped, each once; new clients after an outage, a recreated topic from its start."""
    outage, noted = Outage(connection.bootstrap, "no record is shown", None), list[int]()
    while True:
        try:
            with raw_logs(connection, Deadline(_ASK_S)) as raw:
                reader = Reader(connection, raw, wanted)
                while True:
                    now = reader.current_id()
                    if now is not None and now != topic_id:
                        topic_id = now
                        starts.clear()
                        _report(
                            f"{wanted.topic} was deleted and recreated: showing the new one from its first record on"
                        )
                    if now is not None:  # it may be recreated later, and a broker that starts may not know it yet
                        left_out = reader.leave_out_leaderless()
                        if left_out and left_out != noted:
                            _report(f"{cluster_admin.no_leader(wanted.topic, left_out)}; showing the others")
                        noted = left_out
                        _show_new(reader, starts, say)
                    _report(outage.answered(time.monotonic()))
                    time.sleep(_POLL_S)
        except (DeadlineExceeded, KafkaFailure, Unreachable):
            _report(outage.silent(time.monotonic()))
            time.sleep(_POLL_S)


def _show_new(reader: Reader, starts: dict[int, int], say: Callable[[list[dict[str, Any]]], None]) -> None:
    for partition, log in reader.bounds().items():
        # A partition may be new, and retention may pass a place during an outage.
        start = max(starts.get(partition, log.first), log.first)
        for end, documents in reader.forward(partition, start, log):
            say(documents)
            starts[partition] = end


def _report(text: str | None) -> None:
    if text is not None:
        click.echo(text, err=True)


def lines(documents: Iterable[dict[str, Any]]) -> Table:
    """Return records as a table: without terminal control characters, long values truncated."""
    return table(["place", "time", "state", "key", "value", "headers"], map(_cells, documents))


def _cells(document: Mapping[str, Any]) -> tuple[str | Text, ...]:
    when = record_time(document["timestamp_ms"]) or NONE
    place = f"{document['partition']}/{document['offset']}"
    if document["fate"].endswith(_MARKER):
        known = document["producer_id"] is not None
        by = f"producer {document['producer_id']}, epoch {document['producer_epoch']}" if known else ""
        return place, when, document["fate"], "", Text(by, "dim"), ""
    headers = _UNREADABLE
    if document["headers"] is not None:
        headers = "\n".join(f"{printable(name, _KEPT)}={_shown(value)}" for name, value in document["headers"])
    return place, when, document["fate"], Text(_shown(document["key"])), Text(_shown(document["value"])), Text(headers)


def _shown(content: Mapping[str, Any]) -> str:
    if "null" in content:
        return "(null)"
    [(kind, text)] = content.items()
    cut = f"{text[:_WIDEST]}... {len(text):,} characters, --json shows all" if len(text) > _WIDEST else text
    return f"base64 {cut}" if kind == "base64" else printable(cut, _KEPT)


def _start(text: str | None) -> tuple[int | None, int | None]:
    """Parse `--offset`/`--from`: an offset, or a time as in `explain --since`."""
    if text is None:
        return None, None
    if re.fullmatch(r"\d{1,18}", text):
        return int(text), None
    return None, since(text, time.time(), "--offset", "an offset, ")


@click.command("show")
@click.argument("topic")
@bootstrap_option
@repeatable("--partition partitions", "Show only this partition; repeatable.", type=click.IntRange(0))
@plain_option(
    "--offset --from start",
    "First offset, time or age: 10441, 2026-11-21T08:00, 15m.  [default: the newest records]",
    "OFFSET|TIME",
)
@typed_option("--limit", click.IntRange(0), 20, "Maximum number of records; 0: all.")
@plain_option("--key", "Show only records with this key.", "TEXT")
@typed_option(
    "--isolation",
    click.Choice([READ_UNCOMMITTED, READ_COMMITTED]),
    READ_UNCOMMITTED,
    "read_committed skips aborted records and stops at the last stable offset.",
)
@flag("--markers", "Also show control records, such as the markers that end transactions.")
@flag("--follow", "Keep showing new records until SIGTERM or Ctrl-C.")
@flag("--json as_json", "Print one JSON object per record, one a line, instead of a table.")
@advised()
def show(
    topic: str, bootstrap: str, start: str | None, key: str | None, *, follow: bool, as_json: bool, **more: Any
) -> None:
    """
    Show a topic's records: partition and offset, time, key, value, headers, and how each one's transaction ended.

    Shows the newest records, newest last; with --offset, the first ones from there. A record is committed, aborted,
    open (no marker yet), or plain (written outside of transactions). --json prints one object per line; bytes are
    {"text": ...} if they are UTF-8, else {"base64": ...}, and {"null": true} if there are none.

    Examples:
      python -m pipeline show brew.orders.enriched
      python -m pipeline show brew.orders.v1 --partition 2 --offset 0 --limit 5
      python -m pipeline show brew.orders.enriched --markers --from 15m --json
      python -m pipeline show brew.orders.enriched --follow --isolation read_committed

    Exit codes: 0 shown, or stopped by a signal, 3 refused or brokers unreachable, 64 wrong usage.
    """
    offset, since_ms = _start(start)
    wanted_key = None if key is None else as_bytes(key)
    wanted = RecordQuery(checked_topic(topic, "TOPIC"), start=offset, since_ms=since_ms, key=wanted_key, **more)

    def say(documents: list[dict[str, Any]]) -> None:
        if as_json:
            for document in documents:
                print_json(document, lines=True)
        elif documents:
            Console(soft_wrap=False).print(lines(documents))

    with contextlib.suppress(*([Stopped] if follow else [])):
        connection = connected(bootstrap)
        with raw_logs(connection, Deadline(_ASK_S)) as raw:
            reader = Reader(connection, raw, wanted)
            topic_id = reader.check()
            if problem := cluster_admin.no_leader(topic, reader.leave_out_leaderless()):
                raise Refused(f"{problem}, or name other partitions with --partition")
            logs = reader.bounds()
            documents = collected(reader, logs)
            say(documents)
            begin = reader.starts(logs)
        if follow:
            shown = {document["partition"]: document["offset"] + 1 for document in documents}
            ends = {p: reader.until(log) if wanted.newest else begin[p] for p, log in logs.items()}
            starts = {p: max(ends[p], shown.get(p, 0)) for p in logs}
            follow_log(connection, wanted, starts, say, topic_id)
        elif not documents and not as_json:
            click.echo(f"no record of {topic} matches; check --partition, --offset, --key and --isolation")
