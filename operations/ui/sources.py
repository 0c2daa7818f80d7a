"""Sources of the live view: brokers, `/status`, proofs; each polled at its own interval."""

from __future__ import annotations

import contextlib
import functools
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import urllib3

from brew.cluster import RawBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin, is_cut_off
from brew.kafka.offsets import log_offsets
from brew.kafka.raw_log import BatchFetcher, batch_fetcher, source_positions
from brew.names import quantity
from brew.observability.local import announced_urls
from brew.observability.status import Status, from_json
from brew.offsets import LogOffsets
from brew.settings import PipelineSettings
from operations.lag import Observer
from operations.ui.model import InputSnapshot, OutputTail, Proof
from operations.xray.model import Run, RunBuilder, Strip

_PROVEN, _VIOLATED, _INCONCLUSIVE = "proven", "violated", "inconclusive"
_NOT_PROVEN = (_VIOLATED, _INCONCLUSIVE)
_MARKS = (*_NOT_PROVEN, _PROVEN)
_CONTROL, _NOTHING = "control", "not applicable"
_SHOWN = 8
_CELL = {"cell", "verdict", "seed"}


def read(content: bytes, written_s: float) -> Proof:
    """Read a document, or the lines that a campaign appends; the text of a `ValueError` says what was expected."""
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError:
        document = {"cells": _lines(content)}
    if isinstance(document, dict) and document.get("verdict") in _MARKS and "inputs" in document:
        return _verified(document, written_s)
    cells = document.get("cells") if isinstance(document, dict) else None
    if isinstance(cells, list) and cells and all(isinstance(cell, dict) and cell.keys() >= _CELL for cell in cells):
        return _campaign(cells, written_s)
    raise ValueError("neither a document of `proof verify --json` nor results of `proof campaign`")


def _lines(content: bytes) -> list[Any]:
    """Return the complete lines; the last one may still be being written."""
    try:
        return [orjson.loads(line) for line in content.splitlines(keepends=True) if line.endswith(b"\n")]
    except orjson.JSONDecodeError:
        return []


def _verified(document: Mapping[str, Any], written_s: float) -> Proof:
    names = ("inputs", "outputs", "dead_letters", "backlog")
    inputs, outputs, dead_letters, backlog = (_int(document.get(name)) for name in names)
    balance = "=" if inputs == outputs + dead_letters else "≠"
    came = f"{quantity(outputs, 'output', ',')} + {quantity(dead_letters, 'dead letter', ',')}"
    lines = [f"{quantity(inputs, 'input', ',')} {balance} {came}"]
    if backlog:
        lines.append(f"{quantity(backlog, 'input', ',')} not read yet")
    if counts := _mapping(document.get("counts")):
        ends = ("committed_transactions", "aborted_transactions", "aborted_records")
        committed, aborted, records = (_int(counts.get(name)) for name in ends)
        ended = f"{quantity(committed, 'transaction', ',')} committed, {aborted:,} aborted"
        lines.append(f"{ended} ({quantity(records, 'record', ',')})")
    wrong = [f"{name}: {_int(count):,}" for name, count in _mapping(document.get("totals")).items()]
    doubts = document.get("doubts")
    wrong += [f"inconclusive: {text}" for text in (doubts if isinstance(doubts, list) else ())]
    output_id = document.get("output_id")
    about = output_id if isinstance(output_id, str) else None
    return Proof(str(document["verdict"]), "proof verify", tuple(lines), tuple(wrong[:_SHOWN]), written_s, about)


def _campaign(cells: Sequence[Mapping[str, Any]], written_s: float) -> Proof:
    """Rate a cell by its worst run, and the campaign by its worst cell; a control is meant to be violated."""
    judged = [(f"{cell['cell']}, seed {_int(cell['seed'])}", _judged(cell)) for cell in cells]
    counts = Counter(mark for _, mark in judged)
    mark = next((verdict for verdict in _MARKS if counts[verdict]), _INCONCLUSIVE)
    lines = [
        f"{len(judged):,} runs of {len({str(cell['cell']) for cell in cells}):,} cells",
        ", ".join(f"{counts[verdict]:,} {verdict}" for verdict in (_PROVEN, *_NOT_PROVEN) if counts[verdict]),
    ]
    if counts[_CONTROL]:
        lines.append(f"{counts[_CONTROL]:,} controls failed as intended")
    if counts[_NOTHING]:
        lines.append(f"{counts[_NOTHING]:,} not applicable")
    wrong = [f"{name}: {verdict}" for name, verdict in judged if verdict in _NOT_PROVEN]
    return Proof(mark, "campaign", tuple(filter(None, lines)), tuple(wrong[:_SHOWN]), written_s)


def _judged(cell: Mapping[str, Any]) -> str:
    """Return the verdict, lowered if the cell has anomalies or doubts."""
    verdict, expected = str(cell["verdict"]), str(cell.get("expected", _PROVEN))
    if expected == _VIOLATED:
        return _CONTROL if verdict == _VIOLATED else _INCONCLUSIVE
    if expected == verdict == _INCONCLUSIVE:
        return _NOTHING
    if verdict == _PROVEN and cell.get("anomalies"):
        return _VIOLATED
    if verdict == _PROVEN and cell.get("doubts"):
        return _INCONCLUSIVE
    return verdict if verdict in _MARKS else _INCONCLUSIVE


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


_MOST_BYTES, _MOST_BACK = 16 * 1024 * 1024, 10_000
_EXACT = 200  # counting records means reading batches; an exact count only matters near the end of a log


class InputSource:
    """The group's partitions, through the clients of `brew lag`; ``ages``: read those of the oldest records, too."""

    def __init__(self, run: PipelineSettings, *, ages: bool = True) -> None:
        self._run, self._ages = run, ages
        self._observer: Observer | None = None

    def ask(self, deadline: Deadline) -> InputSnapshot:
        run = self._run
        if self._observer is None:
            self._observer = Observer(run.connection, run.input, run.group, _EXACT, ages=self._ages)
        snapshots, observer = tuple(self._observer.snapshot(deadline)), self._observer
        return InputSnapshot(int(time.time() * 1000), snapshots, observer.unavailable, len(observer.leaderless))

    def close(self) -> None:
        if self._observer is not None:
            self._observer.close()


class OutputTailSource:
    """The last offsets of each partition, read again if changed, and back to the start of their transactions."""

    def __init__(self, connection: Connection, topic: str, last: int) -> None:
        self._connection, self.topic, self._last = connection, topic, last
        self._admin = admin(connection)
        self._strips: dict[int, Strip] = {}
        self._topic_id: str | None = None
        self._read_s: dict[int, float] = {}

    def ask(self, deadline: Deadline) -> OutputTail:
        """Read the changed partitions, those read longest ago first, so that a timeout starves none of them."""
        try:
            return self._ask(deadline)
        except (DeadlineExceeded, KafkaFailure):
            if is_cut_off(self._admin, self._connection, self.topic):
                self._admin = admin(self._connection)
            raise

    def _ask(self, deadline: Deadline) -> OutputTail:
        if (known := topics.describe(self._admin, [self.topic], deadline).get(self.topic)) is None:
            return OutputTail(self.topic, {}, missing=True)
        if known.topic_id != self._topic_id:  # a recreated topic may have as many records
            self._topic_id, self._strips = known.topic_id, {}
        leaderless = cluster_admin.leaderless(self._admin, self.topic, deadline)
        led = [p for p in range(known.partitions) if p not in leaderless]
        logs = log_offsets(self._admin, self.topic, led, deadline)
        changed = [p for p, log in logs.items() if p not in self._strips or self._strips[p].log != log]
        changed.sort(key=lambda p: self._read_s.get(p, 0.0))
        wanted = {p: (max(logs[p].first, logs[p].end - self._last), logs[p].end) for p in changed}
        if wanted:
            with batch_fetcher(self._connection, deadline) as ends:
                self._again(ends, wanted, logs)
        self._strips = {p: strip for p, strip in self._strips.items() if p in logs}
        unread = known.partitions - len(self._strips)
        unavailable = (cluster_admin.no_leader(self.topic, leaderless),) if leaderless else ()
        strips, topic_id = dict(self._strips), known.topic_id
        return OutputTail(self.topic, strips, topic_id=topic_id, unavailable=unavailable, unread=unread)

    def _again(self, ends: BatchFetcher, wanted: dict[int, tuple[int, int]], logs: dict[int, LogOffsets]) -> None:
        read, back = 0, _MOST_BACK
        try:
            for partition, batches in ends.batches(self.topic, wanted):
                strip = Strip(self.topic, partition, logs[partition], *wanted[partition])
                strip.runs = self._folded(strip, batches)
                self._strips[partition], self._read_s[partition] = strip, time.monotonic()
                read += 1
                if (missing := min(_missing(strip, self._last, batches), strip.start - strip.log.first)) and back > 0:
                    start = strip.start - min(missing, back)
                    back -= strip.start - start
                    ((_, before),) = ends.batches(self.topic, {partition: (start, strip.start)})
                    known = {batch.base_offset for batch, _ in before}
                    rest = [batch for batch in batches if batch[0].base_offset not in known]
                    strip.runs = self._folded(strip, [*before, *rest])
        except DeadlineExceeded:
            if not read:
                raise

    def _folded(self, strip: Strip, batches: list[tuple[RawBatch, memoryview]]) -> list[Run]:
        origin = not batches or batches[0][0].base_offset == 0
        fold = RunBuilder(strip.start, strip.until, max(1, self._last // 100), origin=origin)
        for batch, content in batches:
            fold.add(batch, functools.partial(source_positions, content))
        return fold.finish()


class OutputTailsSource:
    """The tails of all output topics; one that the brokers refuse hides no other."""

    def __init__(self, run: PipelineSettings, last: int) -> None:
        self._sources = [OutputTailSource(run.connection, topic, last) for topic in run.outputs]

    def ask(self, deadline: Deadline) -> OutputTail:
        tails: list[OutputTail] = []
        refused: list[str] = []
        for source in self._sources:
            try:
                tails.append(source.ask(deadline))
            except KafkaFailure as error:
                if len(refused) + 1 == len(self._sources):
                    raise
                tails.append(OutputTail(source.topic, {}))
                refused.append(str(error))
        output, *also = tails
        strips = tuple(strip for tail in also for strip in tail.strips.values())
        refused += [reason for tail in tails for reason in tail.unavailable]
        return replace(output, also=strips, unavailable=tuple(refused))


def _missing(strip: Strip, last: int, batches: list[tuple[RawBatch, memoryview]]) -> int:
    """Return how many offsets before the tail may hold the start of its transactions, by their sequence numbers."""
    cut = {run.producer_id for run in strip.runs if not run.earlier.whole}
    first: dict[int, RawBatch] = {}
    for batch, _ in batches:
        if batch.producer_id in cut and batch.transactional:
            first.setdefault(batch.producer_id, batch)
    # A marker alone does not say how much it ends; other writers' records may lie in between.
    return max((last if batch.control else 2 * batch.base_sequence for batch in first.values()), default=0)


class StatusSource:
    """What a running program reports of itself; only the fields of `brew.observability.status` are kept."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = urllib3.PoolManager(num_pools=1, retries=False)

    def ask(self, deadline: Deadline) -> Status:
        try:
            answer = self._pool.request(
                "GET", self._url, redirect=False, preload_content=False, timeout=max(0.001, deadline.remaining_s())
            )
            with answer:
                body = self._read(answer, deadline)
        except urllib3.exceptions.HTTPError as error:
            raise Refused(f"{self._url} does not answer ({type(error).__name__})") from error
        remedy = "set --status-url to the address of a /status"
        if answer.status != 200:  # noqa: PLR2004 - HTTP's OK
            raise Refused(f"{self._url} answers with HTTP {answer.status}; {remedy}")
        try:
            return from_json(body)
        except ValueError as error:
            raise Refused(f"{self._url} does not answer with a status document; {remedy}") from error

    def _read(self, answer: urllib3.BaseHTTPResponse, deadline: Deadline) -> bytes:
        """Read in pieces, so that neither a long nor a slow answer blocks the poller."""
        body = bytearray()
        while piece := answer.read1(64 * 1024):  # what has arrived; `stream` would wait for all of it
            body += piece
            if len(body) > _MOST_BYTES:
                raise Refused(f"{self._url} answers with more than {_MOST_BYTES:,} bytes")
            if deadline.expired():
                raise DeadlineExceeded(f"{self._url}: no complete answer within {deadline.budget_s:g} s")
        return bytes(body)


class LocalStatusSource:
    """
    The status of a run on this machine on the same group, topic and cluster, by announced or default address; of one
    that stands by only if none works.
    """

    def __init__(self, default: str, run: PipelineSettings) -> None:
        self._run, self._default, self.url = run, default, default

    def ask(self, deadline: Deadline) -> Status | None:
        """Return the status; None if no program answers, or only those that work on something else."""
        urls = dict.fromkeys([self.url, *announced_urls(), self._default])
        standing_by: Status | None = None
        for url in urls:
            with contextlib.suppress(BrewError):  # a program that hangs leaves time for the others
                status, run = StatusSource(url).ask(deadline.part(deadline.budget_s / len(urls))), self._run
                ours = _servers(status.bootstrap) & _servers(run.connection.bootstrap)
                if ours and status.group == run.group and status.topics.input == run.input:
                    if status.partitions:
                        self.url = url
                        return status
                    standing_by, self.url = status, url
        return standing_by


def _servers(bootstrap: str) -> set[str]:
    return {server.strip().replace("localhost:", "127.0.0.1:") for server in bootstrap.split(",")}


class ProofSource:
    """A file that `verify --json` or a campaign wrote, read again when it changes; ``optional``: it may be missing."""

    def __init__(self, path: Path, *, optional: bool = False) -> None:
        self._path, self._optional = path, optional
        self._known: tuple[float, int] | None = None
        self._proof: Proof | None = None

    def ask(self, _deadline: Deadline) -> Proof | None:
        if self._optional and not self._path.exists():
            return None
        try:
            now = self._path.stat()
            if self._proof is None or self._known != (now.st_mtime, now.st_size):
                with self._path.open("rb") as file:
                    content = file.read(_MOST_BYTES + 1)
                if len(content) > _MOST_BYTES:
                    raise Refused(f"{self._path.name} has more than {_MOST_BYTES:,} bytes")
                self._proof, self._known = read(content, now.st_mtime), (now.st_mtime, now.st_size)
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            text = f"{self._path.name}: {why}; write it with `python -m proof verify --json > FILE`"
            raise Refused(text) from error
        return self._proof
