"""`brew xray`: draw the log on the terminal, as a page, or as a picture."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from brew.acl import advice as denied
from brew.cli import bootstrap_option, plain_option, repeatable
from brew.cluster import OFFSETS_TOPIC
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, KafkaFailure, Refused, UsageError
from brew.journal import journal_entries
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import AdminClient, admin
from brew.kafka.kafka_python import RawLogs, raw_logs
from brew.kafka.offsets import committed_by, log_offsets
from brew.kafka.raw_log import newest_offset_batches, source_positions
from brew.names import READ_UNCOMMITTED, quantity
from brew.offsets import LogOffsets
from operations import options
from operations.xray import render
from operations.xray.model import Run, RunBuilder, Strip
from operations.xray.render import MOST_COLUMNS, document
from operations.xray.timeline import Positions, Xray, assign_write_times, committed_positions, read, timeline

_LAST, _ASK_S = 1_000_000, 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """
    Offsets of each partition: from ``start`` to ``until``, or the ``last`` so many; 0 is all of them.

    `UsageError` if they exclude each other, or select nothing.
    """

    start: int | None = None
    until: int | None = None
    last: int | None = None

    def __post_init__(self) -> None:
        start, until, last = self.start, self.until, self.last
        if last is not None and start is not None:
            raise UsageError(
                f"--last is {last} and --from is {start}: they exclude each other; set one, or --last with --to"
            )
        if start is not None and until is not None and start >= until:
            raise UsageError(f"--from is {start} and --to is {until}: the range is empty; set --to above --from")

    def of(self, log: LogOffsets) -> tuple[int, int]:
        """Return the window, clamped to what the log holds."""
        end = log.end if self.until is None else min(self.until, log.end)
        if self.start is not None:
            return min(max(self.start, log.first), end), end
        last = _LAST if self.last is None else self.last
        return min(max(log.first, end - last) if last else log.first, end), end


@dataclass
class XrayCollector:
    """Takes one X-ray; ``roles``: topic -> role; ``over_time``: also read when each part came about, for the slider."""

    connection: Connection
    report: options.Report
    roles: dict[str, str]
    input: str
    group: str
    window: Window
    journal: Path | None = None
    over_time: bool = True

    def __post_init__(self) -> None:
        self._admin: AdminClient = admin(self.connection)
        self._unavailable: list[str] = []

    def take(self, now_ms: int) -> Xray:
        """Read the logs up to their present ends; `Refused` if no topic exists, or one can't be read."""
        attempts, events = ([], []) if self.journal is None else read(journal_entries(self.journal, "--journal"))
        with raw_logs(self.connection, Deadline(_ASK_S)) as raw:
            strips = list(self._strips())
            self._check_readable(raw, strips)
            for strip in strips:
                strip.runs = self._runs(raw, strip)
                assign_write_times(strip.runs, now_ms, attempts)
            commits = self._commits(raw) if self.over_time else {}
        line = timeline(strips, commits, events if self.over_time else [], self.input, now_ms)
        whose, notes = (self.roles, self.group, self.connection.bootstrap), tuple(self._unavailable)
        return Xray(tuple(strips), line, *whose, now_ms, tuple(events), notes)

    def _strips(self) -> Iterator[Strip]:
        deadline = Deadline(_ASK_S)
        if not (known := topics.describe(self._admin, list(self.roles), deadline)):
            raise Refused(f"no topic {' and no topic '.join(self.roles)} exists; set --input and --output, or --topic")
        self._unavailable += [f"topic {name} does not exist" for name in self.roles if name not in known]
        positions = self._positions(range(known[self.input].partitions)) if self.input in known else {}
        for name in filter(known.__contains__, self.roles):
            leaderless = cluster_admin.leaderless(self._admin, name, deadline)
            self._unavailable += [cluster_admin.no_leader(name, leaderless)] if leaderless else []
            led = [p for p in range(known[name].partitions) if p not in leaderless]
            logs = log_offsets(self._admin, name, led, deadline)
            for partition, log in sorted(logs.items()):
                strip = Strip(name, partition, log, *self.window.of(log))
                strip.group = positions.get(partition) if name == self.input else None
                yield strip

    def _check_readable(self, raw: RawLogs, strips: Sequence[Strip]) -> None:
        """Fetch one batch of each topic: Describe shows a topic that lacks Read, and reading the others takes long."""
        for strip in {strip.topic: strip for strip in strips if strip.start < strip.until}.values():
            try:
                raw.visible(strip.topic, strip.partition, strip.start, 1, Deadline(_ASK_S))
            except KafkaFailure as error:
                lacks = denied(str(error), self.connection.user, {"topic": strip.topic}, self.connection.source)
                if lacks is not None:
                    raise Refused(f"topic {strip.topic} can't be read ({error}); {lacks}") from error

    def _runs(self, raw: RawLogs, strip: Strip) -> list[Run]:
        """Read a strip; where retention has deleted its beginning meanwhile, it begins later."""
        while strip.start < strip.until:
            try:
                return self._read(raw, strip)
            except KafkaFailure:
                log = log_offsets(self._admin, strip.topic, [strip.partition], Deadline(_ASK_S))[strip.partition]
                if log.first <= strip.start:
                    raise
                strip.start, strip.log = min(log.first, strip.until), replace(strip.log, first=log.first)
        return []

    def _read(self, raw: RawLogs, strip: Strip) -> list[Run]:
        name, size = f"{strip.topic}[{strip.partition}]", strip.until - strip.start
        fold = RunBuilder(strip.start, strip.until, max(1, size // MOST_COLUMNS))
        # Past the window's end, read only as far as transactions reach that began inside it.
        for batch, content in raw.batches(strip.topic, strip.partition, strip.start, strip.log.end):
            if batch.base_offset >= strip.until and not fold.undecided:
                break
            fold.add(batch, functools.partial(source_positions, content))
            self.report(name, min(batch.last_offset + 1, strip.until) - strip.start, size)
        return fold.finish()

    def _positions(self, partitions: Sequence[int]) -> dict[int, int]:
        whose = (self.connection, self.group, self.input)
        try:
            committed = committed_by(*whose, partitions, READ_UNCOMMITTED, Deadline(_ASK_S))
        except BrewError as error:
            self._unavailable.append(f"committed offsets of group {self.group}: {error}")
            return {}
        return {partition: position.offset for partition, position in committed.items() if position is not None}

    def _commits(self, raw: RawLogs) -> Positions:
        """Return the group's commits over time, as far as compaction has left them."""
        deadline = Deadline(_ASK_S)
        try:
            if (known := topics.describe(self._admin, [OFFSETS_TOPIC], deadline).get(OFFSETS_TOPIC)) is None:
                return {}
            whose = (self.group, self.input, known.partitions)
            return committed_positions(newest_offset_batches(self._admin, raw, *whose, deadline))
        except BrewError as error:
            self._unavailable.append(f"commit times of group {self.group}: {error}")
            return {}


def _file(_context: click.Context, _parameter: click.Parameter, value: Path | None) -> Path | None:
    """Check the file's name, and that it can be written: reading the logs before may take minutes."""
    if value is None:
        return None
    if value.suffix not in {".html", ".svg"}:
        raise UsageError(
            f"--out is {str(value)!r}: the name has to end in .html (a page with a time slider) or .svg (a picture)"
        )
    place = value if value.exists() else value.parent
    if not os.access(place, os.W_OK) or (place != value and not place.is_dir()):
        raise Refused(f"--out is {str(value)!r}, which can't be written; name a file that this user may write")
    return value


@click.command("xray")
@bootstrap_option
@options.input_option
@options.output_option
@options.group_option
@repeatable("--topic others", "Topic to show instead of input and output; repeatable.", callback=options.checked_topics)
@plain_option("--from start", "First offset of each partition.", "OFFSET", type=click.IntRange(0))
@plain_option("--to until", "End of each partition, exclusive.", "OFFSET", type=click.IntRange(0))
@plain_option(
    "--last",
    f"The last N offsets of each partition; 0: all.  [default: {_LAST:,} without --from]",
    "N",
    type=click.IntRange(0),
)
@plain_option(
    "--out",
    "Write a page with a time slider (FILE.html), or a picture (FILE.svg).  [default: the terminal]",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=_file,
)
@plain_option(
    "--journal",
    "Journal directory of `brew run --journal`; adds its steps.",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@options.json_option
@options.advised()
def xray(
    bootstrap: str, others: tuple[str, ...], out: Path | None, journal: Path | None, *, as_json: bool, **more: Any
) -> None:
    """
    Show the logs offset by offset: committed, aborted and open records, markers, and the group's committed offset.

    Also shows log start, last stable offset and high watermark. Without --out, it draws on the terminal. A page has a
    time slider, and needs no other file. Reads only.

    Examples:
      python -m pipeline xray
      python -m pipeline xray --out xray.html
      python -m pipeline xray --out xray.html --journal journal --last 10000
      python -m pipeline xray --topic brew.orders.dlq --from 100 --to 200
      python -m pipeline xray --json

    Exit codes: 0 shown, 3 refused or brokers unreachable, 64 wrong usage.
    """
    window = Window(more["start"], more["until"], more["last"])
    roles = {more["topic"]: "input", more["output"]: "output"} if not others else {name: name for name in others}
    html = out is not None and out.suffix == ".html"
    with options.progress() as report:
        wanted = (roles, more["topic"], more["group"], window, journal)
        collector = XrayCollector(options.connected(bootstrap), report, *wanted, over_time=html)
        taken = collector.take(int(time.time() * 1000))
    if out is not None:
        out.write_text(render.page(taken) if html else render.svg_document(taken), "utf-8")
    if as_json:
        options.print_json(document(taken))
    elif out is not None:
        click.echo(_summary(taken, out))
    else:
        console = Console(soft_wrap=True)
        for line in render.lines(taken, console.width):
            console.print(line)


def _summary(xray: Xray, out: Path) -> str:
    places = quantity(len(xray.strips), "partition")
    offsets = sum(strip.until - strip.start for strip in xray.strips)
    notes = "".join(f"\nunavailable: {note}" for note in xray.unavailable)
    return f"{out}: {places}, {quantity(offsets, 'offset', ',')}, {out.stat().st_size / 1000:,.0f} kB{notes}"
