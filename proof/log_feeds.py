"""Feed the checker from the logs, up to a snapshot of their ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from brew.cluster import OFFSETS_TOPIC, OffsetBatch, RawBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, Refused
from brew.kafka import offsets, topics
from brew.kafka.clients import AdminClient, admin
from brew.kafka.cluster_admin import coordinator_partition
from brew.kafka.kafka_python import RawLogs
from brew.kafka.log_reader import scan_rows
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import LogOffsets
from proof.checking.input_partition import Row

# Inputs are read this far ahead, so that an output's input has been read although partitions take turns.
_AHEAD = 50_000
_OFFSET_BATCHES = 200
TakeBatches = Callable[[str, int, Iterable[RawBatch]], None]
_SETTLE_S, _COMMITTED_S, _PAUSE_S = 5.0, 10.0, 0.1


class Records:
    """
    The visible records of one topic: ``step`` passes more of them to the checker; ``fraction``: the part passed so far.

    ``lead`` is called with partition and offset before records up to it are passed on; ``ahead`` reads this log ahead
    of the others.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        logs: dict[int, LogOffsets],
        take: Callable[[Iterable[Row]], None],
        lead: Callable[[int, int], None] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        self._first = {p: log.first for p, log in logs.items()}
        self._ends = {p: log.end for p, log in logs.items()}
        self._done = dict.fromkeys(logs, 0)
        ranges = {p: (log.first, log.last_stable) for p, log in logs.items()}
        self._total = max(1, sum(last - first for first, last in ranges.values()))
        self._batches = scan_rows(connection, topic, ranges, READ_COMMITTED)
        self._take, self._lead = take, lead
        self._ahead = _AHEAD if ahead else 0
        self.ended = False

    @property
    def fraction(self) -> float:
        return (sum(self._done.values()) - self._ahead) / self._total

    def step(self) -> None:
        rows = next(self._batches, None)
        if rows is None:
            self.ended = True
        reached = self._ends if rows is None else {row[0]: row[1] for row in rows}
        if self._lead is not None:
            for partition, offset in reached.items():
                self._lead(partition, offset)
        if rows is not None:
            self._take(rows)
            for partition, offset in reached.items():
                self._done[partition] = offset + 1 - self._first[partition]

    def close(self) -> None:
        self._batches.close()


class Batches:
    """The raw batches of one topic, passed to the checker by partition, as far as they are needed."""

    def __init__(self, raw: RawLogs, topic: str, logs: dict[int, LogOffsets], take: TakeBatches) -> None:
        self._topic, self._take = topic, take
        self._left: dict[int, Iterator[RawBatch]] = {
            p: (batch for batch, _ in raw.batches(topic, p, log.first, log.end)) for p, log in logs.items()
        }
        self._reached = {p: log.first - 1 for p, log in logs.items()}

    def lead(self, partition: int, offset: int) -> None:
        """Pass on all batches up to the one that contains ``offset``."""
        batches = []
        while self._reached[partition] < offset:
            batch = next(self._left[partition], None)
            if batch is None:
                break
            batches.append(batch)
            self._reached[partition] = batch.last_offset
        if batches:
            self._take(self._topic, partition, batches)


class Offsets:
    """The group's partition of `__consumer_offsets`."""

    def __init__(
        self, batches: Iterator[OffsetBatch], log: LogOffsets, take: Callable[[Iterable[OffsetBatch]], None]
    ) -> None:
        self._batches, self._take = batches, take
        self._first, self._total, self._done = log.first, max(1, log.end - log.first), 0
        self.ended = False

    @property
    def fraction(self) -> float:
        return self._done / self._total

    def step(self) -> None:
        batches = list(islice(self._batches, _OFFSET_BATCHES))
        self.ended = len(batches) < _OFFSET_BATCHES
        if batches:
            self._take(batches)
            self._done = batches[-1].raw.last_offset + 1 - self._first

    def close(self) -> None:
        """Do nothing: nothing is open between steps."""


Feed = Records | Offsets


@dataclass(frozen=True, slots=True)
class PipelineUnderTest:
    """The pipeline to check: its input, its outputs and its group."""

    input: str
    output: str
    dead_letter: str
    group: str
    also_output: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output, *self.also_output)

    @property
    def written(self) -> tuple[str, ...]:
        return (*self.outputs, self.dead_letter)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """
    The offsets of all logs at one position of the group.

    ``downstream``: all topics that the pipeline writes. ``offset_log``: the group's partition of `__consumer_offsets`,
    or None if it can't be read.
    """

    input: dict[int, LogOffsets]
    downstream: dict[str, dict[int, LogOffsets]]
    committed: dict[int, int | None]
    offset_log: tuple[int, LogOffsets] | None

    @property
    def gaps(self) -> list[str]:
        """The reasons why downstream records may not be visible."""
        gaps = []
        for topic, logs in self.downstream.items():
            for partition, log in sorted(logs.items()):
                place = f"{topic}[{partition}]"
                if log.first > 0:
                    advice = "verify earlier, or raise the topic's retention"
                    gaps.append(f"{place} begins at offset {log.first} because of retention; {advice}")
                if log.last_stable < log.end:
                    advice = "run the pipeline again, which ends its own transactions, or wait for the time-out"
                    gaps.append(f"{place} has an open transaction at offset {log.last_stable}; {advice}")
        return gaps


def snapshot(connection: Connection, claim: PipelineUnderTest, deadline: Deadline, *, settled: bool) -> Snapshot:
    """
    Read the offsets of all logs, between two equal reads of the group's position.

    ``settled``: a position that is still pending after some seconds will stay pending; use the one before it.

    Raises:
        Refused: a topic is missing, the group moves, or its position is pending.
    """
    client = admin(connection)
    sizes = {n: topics.describe_one(client, n, deadline).partitions for n in (claim.input, *claim.written)}

    def logs(name: str) -> dict[int, LogOffsets]:
        return offsets.log_offsets(client, name, range(sizes[name]), deadline)

    patience = Deadline(_SETTLE_S)
    while True:
        before = _committed(connection, claim, range(sizes[claim.input]), settled=settled)
        source, downstream = logs(claim.input), {name: logs(name) for name in claim.written}
        found = Snapshot(source, downstream, before, _offset_log(client, claim.group, deadline))
        moved = before != _committed(connection, claim, range(sizes[claim.input]), settled=settled)
        # A commit's markers may reach the partitions shortly after the group's position is visible.
        pending = any(log.last_stable < log.end for some in downstream.values() for log in some.values())
        if not moved and (not pending or patience.expired()):
            return found
        if moved and patience.expired():
            moved_on = f"the position of group {claim.group!r} kept changing for {_SETTLE_S:g} s while it was read"
            raise Refused(f"{moved_on}; stop the pipeline, then verify again")
        time.sleep(min(_PAUSE_S, patience.remaining_s()))


def _offset_log(client: AdminClient, group: str, deadline: Deadline) -> tuple[int, LogOffsets] | None:
    """Return the group's partition of `__consumer_offsets`; None without the right to read it, or before any commit."""
    try:
        partition = coordinator_partition(group, topics.describe_one(client, OFFSETS_TOPIC, deadline).partitions)
        return partition, offsets.log_offsets(client, OFFSETS_TOPIC, [partition], deadline)[partition]
    except BrewError:
        return None


def _committed(
    connection: Connection, claim: PipelineUnderTest, partitions: range, *, settled: bool
) -> dict[int, int | None]:
    """Return the group's position as a `read_committed` reader sees it."""
    try:
        return _query_offsets(connection, claim, partitions, READ_COMMITTED)
    except DeadlineExceeded as error:
        if settled:
            return _query_offsets(connection, claim, partitions, READ_UNCOMMITTED)
        raise Refused(
            f"the committed offset of group {claim.group!r} is part of a transaction that has not ended; "
            "run the pipeline again, which ends it, or wait for its time-out"
        ) from error


def _query_offsets(
    connection: Connection, claim: PipelineUnderTest, partitions: range, isolation: str
) -> dict[int, int | None]:
    deadline = Deadline(_COMMITTED_S)
    committed = offsets.committed_by(connection, claim.group, claim.input, partitions, isolation, deadline)
    return {p: None if position is None else position.offset for p, position in committed.items()}
