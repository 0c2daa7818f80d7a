"""Count the records in partition logs and describe groups, for display."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from brew.cluster import OpenTransaction, RawBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import cluster, offsets, topics
from brew.kafka.clients import AdminClient, admin
from brew.kafka.kafka_python import open_transactions, raw_batches
from brew.names import READ_UNCOMMITTED
from brew.offsets import LogOffsets


@dataclass(frozen=True, slots=True)
class LogCounts:
    """
    The records of one partition's log, each counted once.

    ``visible``: a `read_committed` reader gets them; ``waiting``: committed or non-transactional, but held back by the
    last stable offset; ``open``: their transaction has no marker yet.
    """

    visible: int = 0
    waiting: int = 0
    aborted: int = 0
    open: int = 0
    control: int = 0


def fold(batches: Iterable[RawBatch], log: LogOffsets) -> LogCounts:
    """
    Count the records of `[log.first, log.end)`; batches come in log order.

    A marker decides all records that its producer wrote since the previous marker. Memory grows with the number of open
    transactions, not with the log.
    """
    visible = waiting = aborted = control = 0
    running: dict[int, list[int]] = {}  # by producer: records since its last marker, below and from the LSO on
    for batch in batches:
        records = _kept(batch, log)
        if batch.control:
            control += records
            ended = running.pop(batch.producer_id, None) if batch.marker else None
            if ended is not None and batch.marker == "commit":
                visible, waiting = visible + ended[0], waiting + ended[1]
            elif ended is not None:
                aborted += sum(ended)
            continue
        stable = batch.base_offset < log.last_stable
        if batch.transactional:
            running.setdefault(batch.producer_id, [0, 0])[not stable] += records
        else:
            visible += records * stable
            waiting += records * (not stable)
    return LogCounts(visible, waiting, aborted, sum(map(sum, running.values())), control)


def _kept(batch: RawBatch, log: LogOffsets) -> int:
    """Return the batch's number of records inside the log: retention cuts batches, compaction removes records."""
    inside = min(batch.last_offset + 1, log.end) - max(batch.base_offset, log.first)
    return max(0, min(batch.records, inside))


@dataclass(frozen=True, slots=True)
class PartitionLog:
    topic: str
    partition: int
    offsets: LogOffsets
    counts: LogCounts


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """A group's position in one partition."""

    partition: int
    committed: int | None
    offsets: LogOffsets

    @property
    def lag(self) -> int:
        """The number of offsets from the committed one (the log's start if there is none) to the last stable one."""
        position = self.offsets.first if self.committed is None else self.committed
        return max(0, self.offsets.last_stable - position)

    @property
    def behind_stable(self) -> int:
        """The number of offsets from the last stable one to the end, which wait for a transaction to end."""
        return self.offsets.end - self.offsets.last_stable


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group's position in one topic, and the transactions that hold back its last stable offsets."""

    group: str
    topic: str
    state: str
    members: int
    partitions: list[PartitionPosition]
    blockers: list[OpenTransaction]

    @property
    def lag(self) -> int:
        return sum(partition.lag for partition in self.partitions)

    @property
    def behind_stable(self) -> int:
        return sum(partition.behind_stable for partition in self.partitions)


def topic_offsets(client: AdminClient, topic: str, deadline: Deadline) -> dict[int, LogOffsets]:
    partitions = range(topics.describe_one(client, topic, deadline).partitions)
    return offsets.log_offsets(client, topic, partitions, deadline)


def end_offsets(connection: Connection, names: list[str], deadline: Deadline) -> list[PartitionLog]:
    """Read every partition of ``names`` once (if empty: of all topics except Kafka's own), and count its records."""
    client = admin(connection)
    partition_logs = []
    for name in names or topics.names(client, deadline):
        for partition, log in sorted(topic_offsets(client, name, deadline).items()):
            batches = raw_batches(connection, name, partition, log.first, log.end, deadline)
            partition_logs.append(PartitionLog(name, partition, log, fold(batches, log)))
    return partition_logs


def group_position(connection: Connection, group: str, topic: str, deadline: Deadline) -> GroupPosition:
    """Return the group's current position; an offset in an open transaction does not count yet."""
    client = admin(connection)
    partitions = range(topics.describe_one(client, topic, deadline).partitions)
    known = offsets.committed_by(connection, group, topic, partitions, READ_UNCOMMITTED, deadline)
    logs = offsets.log_offsets(client, topic, partitions, deadline)
    blocked = [p for p, log in logs.items() if log.last_stable < log.end]
    state, members = cluster.group_state(connection, group, deadline)
    positions = [PartitionPosition(p, None if (at := known[p]) is None else at.offset, logs[p]) for p in partitions]
    blockers = open_transactions(connection, topic, blocked, deadline) if blocked else []
    return GroupPosition(group, topic, state, members, positions, blockers)
