"""Read logs and groups from the brokers, for people to look at."""

from __future__ import annotations

from dataclasses import dataclass

from proof.log_fold import LogCounts, fold
from protocol.batches import OpenTransaction
from protocol.deadline import Deadline
from protocol.kafka import groups, offsets, topics
from protocol.kafka.clients import READ_UNCOMMITTED, Connection, admin
from protocol.kafka.introspect import open_transactions, raw_batches
from protocol.position import Committed, LogOffsets


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """One partition's offsets, and what lies between them."""

    topic: str
    partition: int
    offsets: LogOffsets
    counts: LogCounts


@dataclass(frozen=True, slots=True)
class PartitionPosition:
    """Where a group stands in one partition; ``lag`` is what a `read_committed` reader could still read."""

    partition: int
    committed: int | None
    offsets: LogOffsets

    @property
    def lag(self) -> int:
        """Offsets between the committed one (the log's beginning, without one) and the last stable one."""
        here = self.offsets.first if self.committed is None else self.committed
        return max(0, self.offsets.last_stable - here)

    @property
    def behind_stable(self) -> int:
        """Offsets that wait behind the last stable one for a transaction to end."""
        return self.offsets.end - self.offsets.last_stable


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """A group in one topic, and who holds back the last stable offsets."""

    group: str
    topic: str
    state: str
    members: int
    partitions: list[PartitionPosition]
    blockers: list[OpenTransaction]


def end_offsets(connection: Connection, names: list[str], deadline: Deadline) -> list[PartitionLog]:
    """Every partition of ``names`` (of all topics but Kafka's own, when empty), read through once."""
    client = admin(connection)
    found = []
    for name in names or topics.names(client, deadline):
        partitions = range(topics.existing(client, name, deadline).partitions)
        for partition, log in sorted(offsets.log_offsets(client, name, partitions, deadline).items()):
            batches = raw_batches(connection, name, partition, log.first, log.end, deadline)
            found.append(PartitionLog(name, partition, log, fold(batches, log)))
    return found


def group_position(connection: Connection, group: str, topic: str, deadline: Deadline) -> GroupPosition:
    """The group's offsets as they are now: one that is part of an open transaction does not count yet."""
    client = admin(connection)
    partitions = range(topics.existing(client, topic, deadline).partitions)
    known = committed_now(connection, group, topic, partitions, deadline)
    logs = offsets.log_offsets(client, topic, partitions, deadline)
    blocked = [p for p, log in logs.items() if log.last_stable < log.end]
    state, members = groups.state(connection, group, deadline)
    return GroupPosition(
        group,
        topic,
        state,
        members,
        [PartitionPosition(p, None if (at := known[p]) is None else at.offset, logs[p]) for p in partitions],
        open_transactions(connection, topic, blocked, deadline) if blocked else [],
    )


def committed_now(
    connection: Connection, group: str, topic: str, partitions: range, deadline: Deadline
) -> dict[int, Committed | None]:
    return offsets.committed_by(connection, group, topic, partitions, READ_UNCOMMITTED, deadline)
