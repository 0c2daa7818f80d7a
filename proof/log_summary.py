"""Count the records in partition logs and describe groups, for display."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from brew.cluster import RawBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import cluster, offsets, topics
from brew.kafka.clients import AdminClient, admin
from brew.kafka.kafka_python import open_transactions, raw_logs
from brew.names import READ_UNCOMMITTED
from brew.offsets import LogOffsets


@dataclass(frozen=True, slots=True)
class LogCounts:
    """Records of a partition, each counted once; ``waiting``: held back by the LSO; ``open``: without a marker yet."""

    visible: int = 0
    waiting: int = 0
    aborted: int = 0
    open: int = 0
    control: int = 0


def fold(batches: Iterable[RawBatch], log: LogOffsets) -> LogCounts:
    """Count the records of `[log.first, log.end)`; a marker decides those that its producer wrote since the last."""
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
    return max(0, min(batch.records, min(batch.last_offset + 1, log.end) - max(batch.base_offset, log.first)))


def topic_offsets(client: AdminClient, topic: str, deadline: Deadline) -> dict[int, LogOffsets]:
    partitions = range(topics.describe_one(client, topic, deadline).partitions)
    return offsets.log_offsets(client, topic, partitions, deadline)


def end_offsets(connection: Connection, names: list[str], deadline: Deadline) -> list[dict[str, Any]]:
    """Read ``names`` (none: all topics but Kafka's own), and count; return rows of `LogOffsets` and `LogCounts`."""
    client = admin(connection)
    rows = []
    with raw_logs(connection, deadline) as logs:
        for name in names or topics.names(client, deadline):
            for partition, log in sorted(topic_offsets(client, name, deadline).items()):
                batches = (batch for batch, _ in logs.batches(name, partition, log.first, log.end, deadline))
                rows.append({"topic": name, "partition": partition, **asdict(log), **asdict(fold(batches, log))})
    return rows


def describe_group(connection: Connection, group: str, topic: str, deadline: Deadline) -> dict[str, Any]:
    """Return the group's position in a topic; ``behind_stable`` offsets wait for the ``open_transactions``."""
    client = admin(connection)
    partitions = range(topics.describe_one(client, topic, deadline).partitions)
    known = offsets.committed_by(connection, group, topic, partitions, READ_UNCOMMITTED, deadline)
    logs = offsets.log_offsets(client, topic, partitions, deadline)
    state, members = cluster.group_state(connection, group, deadline)
    rows: list[dict[str, Any]] = []
    for partition, log in logs.items():
        committed = None if (position := known[partition]) is None else position.offset
        lag = max(0, log.last_stable - (log.first if committed is None else committed))
        row = {"partition": partition, "committed": committed, **asdict(log), "lag": lag}
        rows.append({**row, "behind_stable": log.end - log.last_stable})
    blocked = [row["partition"] for row in rows if row["behind_stable"]]
    return {
        "group": group,
        "topic": topic,
        "state": state,
        "members": members,
        "partitions": rows,
        **{name: sum(row[name] for row in rows) for name in ("lag", "behind_stable")},
        "open_transactions": open_transactions(connection, topic, blocked, deadline) if blocked else [],
    }
