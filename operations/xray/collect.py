"""Takes the X-ray: asks the brokers for bounds and positions, and reads raw batches; writes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from brew import journal
from brew.cluster import OFFSETS_TOPIC
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Refused
from brew.kafka import topics
from brew.kafka.clients import AdminClient, admin
from brew.kafka.kafka_python import RawLogs, raw_logs
from brew.kafka.offsets import committed_by, log_offsets
from brew.kafka.raw_log import offset_batches, offsets_partition, source_positions
from brew.names import READ_UNCOMMITTED
from brew.offsets import LogOffsets
from operations.xray import timeline
from operations.xray.html import MOST_COLUMNS
from operations.xray.model import Run, RunBuilder, Strip
from operations.xray.timeline import Xray, effective_commits

_ASK_S = 60.0
_MOST_OFFSET_LOG = 200_000

Progress = Callable[[str, int, int], None]
"""Told while a partition is read: its name, offsets read, offsets in all."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which offsets of each partition: from ``start`` to ``until``, or the ``last`` so many; 0 is all of them."""

    start: int | None = None
    until: int | None = None
    last: int = 0

    def of(self, log: LogOffsets) -> tuple[int, int]:
        """Cut to what the log holds."""
        end = log.end if self.until is None else min(self.until, log.end)
        start = log.first if self.start is None else max(self.start, log.first)
        if self.last:
            start = max(start, end - self.last)
        return min(start, end), end


@dataclass(frozen=True, slots=True)
class XrayRequest:
    """``roles``: topic -> what it is called; ``over_time``: also when it came about, for the slider."""

    roles: dict[str, str]
    input: str
    group: str
    window: Window
    journal: Path | None = None
    over_time: bool = True


class XrayCollector:
    """One look at a cluster through one admin client."""

    def __init__(self, connection: Connection, wanted: XrayRequest, progress: Progress) -> None:
        self._connection, self._wanted, self._progress = connection, wanted, progress
        self._admin: AdminClient = admin(connection)
        self._not_told: list[str] = []

    def take(self, now_ms: int) -> Xray:
        """
        What lies in the logs, up to where they ended when this began.

        Raises:
            Refused: none of the topics is there, or a log holds batches without transactions in their format.
        """
        wanted = self._wanted
        attempts, told = ([], []) if wanted.journal is None else timeline.read(journal.entries(wanted.journal))
        with raw_logs(self._connection, Deadline(_ASK_S)) as raw:
            strips = list(self._strips(raw))
            for strip in strips:
                timeline.assign_write_times(strip.runs, now_ms, attempts)
            positions = self._commits(raw) if wanted.over_time else {}
        line = timeline.timeline(strips, positions, told if wanted.over_time else [], wanted.input, now_ms)
        where, notes = self._connection.bootstrap, tuple(self._not_told)
        return Xray(tuple(strips), line, wanted.roles, wanted.group, where, now_ms, tuple(told), notes)

    def _strips(self, raw: RawLogs) -> Iterator[Strip]:
        deadline = Deadline(_ASK_S)
        known = topics.describe(self._admin, list(self._wanted.roles), deadline)
        if not known:
            raise Refused(f"there is no topic {' and no topic '.join(self._wanted.roles)}; name others with --topic")
        self._not_told += [f"topic {name} does not exist" for name in self._wanted.roles if name not in known]
        positions = self._positions(range(known[self._wanted.input].partitions)) if self._wanted.input in known else {}
        for name in (name for name in self._wanted.roles if name in known):
            logs = log_offsets(self._admin, name, range(known[name].partitions), deadline)
            for partition, log in sorted(logs.items()):
                strip = Strip(name, partition, log, *self._wanted.window.of(log))
                strip.group = positions.get(partition) if name == self._wanted.input else None
                strip.runs = self._runs(raw, strip)
                yield strip

    def _runs(self, raw: RawLogs, strip: Strip) -> list[Run]:
        name = f"{strip.topic}[{strip.partition}]"
        size = strip.until - strip.start
        fold = RunBuilder(strip.start, strip.until, max(1, size // MOST_COLUMNS))
        # Behind the window's end, only as far as transactions reach that began inside.
        for batch, content in raw.batches(strip.topic, strip.partition, strip.start, strip.log.end):
            if batch.base_offset >= strip.until and not fold.undecided:
                break
            fold.add(batch, functools.partial(source_positions, content))
            self._progress(name, min(batch.last_offset + 1, strip.until) - strip.start, size)
        return fold.finish()

    def _positions(self, partitions: Sequence[int]) -> dict[int, int]:
        whose = (self._connection, self._wanted.group, self._wanted.input)
        try:
            told = committed_by(*whose, partitions, READ_UNCOMMITTED, Deadline(_ASK_S))
        except BrewError as error:
            self._not_told.append(f"positions of group {self._wanted.group}: {error}")
            return {}
        return {partition: at.offset for partition, at in told.items() if at is not None}

    def _commits(self, raw: RawLogs) -> dict[int, list[tuple[int, int]]]:
        """The group's commits over time, as far as compaction has left them."""
        group, deadline = self._wanted.group, Deadline(_ASK_S)
        try:
            known = topics.describe(self._admin, [OFFSETS_TOPIC], deadline).get(OFFSETS_TOPIC)
            if known is None:
                return {}
            partition = offsets_partition(group, known.partitions)
            log = log_offsets(self._admin, OFFSETS_TOPIC, [partition], deadline)[partition]
            start = max(log.first, log.end - _MOST_OFFSET_LOG)
            return effective_commits(offset_batches(raw, group, self._wanted.input, partition, start, log.end))
        except BrewError as error:
            self._not_told.append(f"when group {group} committed: {error}")
            return {}
