"""The offsets of all logs and the group's position, taken while nothing moved."""

from __future__ import annotations

import time
from dataclasses import dataclass

from protocol.batches import OFFSETS_TOPIC
from protocol.deadline import Deadline
from protocol.errors import BrewError, DeadlineExceeded, Refused
from protocol.kafka import offsets, topics
from protocol.kafka.clients import READ_COMMITTED, READ_UNCOMMITTED, AdminClient, Connection, admin
from protocol.kafka.offset_log import offsets_partition
from protocol.position import LogOffsets

_SETTLE_S = 5.0
_COMMITTED_S = 10.0
_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """What is to be proven: this group brought this input to this output."""

    input: str
    output: str
    dead_letter: str
    group: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``offset_log`` is the partition of Kafka's offset log that holds the group, where it can be read."""

    input: dict[int, LogOffsets]
    output: dict[int, LogOffsets]
    dead_letter: dict[int, LogOffsets]
    committed: dict[int, int | None]
    offset_log: tuple[int, LogOffsets] | None

    def gaps(self, claim: Claim) -> list[str]:
        """Reasons why records downstream can't be seen."""
        return [*_gaps(claim.output, self.output), *_gaps(claim.dead_letter, self.dead_letter)]


def snapshot(connection: Connection, claim: Claim, deadline: Deadline, *, settled: bool) -> Snapshot:
    """
    Offsets of all logs between two equal answers about the group's position.

    ``settled``: a position that is still pending after some seconds will stay so; the one before it is taken.

    Raises:
        Refused: a topic is missing, the group moves, or its position is pending.
    """
    client = admin(connection)
    sizes = {n: topics.existing(client, n, deadline).partitions for n in (claim.input, claim.output, claim.dead_letter)}

    def logs(name: str) -> dict[int, LogOffsets]:
        return offsets.log_offsets(client, name, range(sizes[name]), deadline)

    patience = Deadline(_SETTLE_S)
    while True:
        before = _committed(connection, claim, range(sizes[claim.input]), settled=settled)
        found = Snapshot(
            logs(claim.input),
            logs(claim.output),
            logs(claim.dead_letter),
            before,
            _offset_log(client, claim.group, deadline),
        )
        moved = before != _committed(connection, claim, range(sizes[claim.input]), settled=settled)
        # A commit's markers reach the partitions a moment after the group's position is known.
        pending = any(log.last_stable < log.end for some in (found.output, found.dead_letter) for log in some.values())
        if not moved and (not pending or patience.expired()):
            return found
        if moved and patience.expired():
            raise Refused(
                f"group {claim.group!r} moved on while its position was read, for {_SETTLE_S:g} s; "
                "stop the pipeline, then verify again"
            )
        time.sleep(min(_PAUSE_S, patience.remaining_s()))


def _offset_log(client: AdminClient, group: str, deadline: Deadline) -> tuple[int, LogOffsets] | None:
    """None where we may not look, or where no group has committed yet."""
    try:
        partition = offsets_partition(group, topics.existing(client, OFFSETS_TOPIC, deadline).partitions)
        return partition, offsets.log_offsets(client, OFFSETS_TOPIC, [partition], deadline)[partition]
    except BrewError:
        return None


def _committed(connection: Connection, claim: Claim, partitions: range, *, settled: bool) -> dict[int, int | None]:
    """The group's position as a `read_committed` reader sees it."""
    try:
        return _asked(connection, claim, partitions, READ_COMMITTED)
    except DeadlineExceeded as error:
        if settled:
            return _asked(connection, claim, partitions, READ_UNCOMMITTED)
        raise Refused(
            f"the committed offset of group {claim.group!r} is part of a transaction that has not ended; "
            "run the pipeline again, which ends it, or wait for its time-out"
        ) from error


def _asked(connection: Connection, claim: Claim, partitions: range, isolation: str) -> dict[int, int | None]:
    deadline = Deadline(_COMMITTED_S)
    found = offsets.committed_by(connection, claim.group, claim.input, partitions, isolation, deadline)
    return {p: None if one is None else one.offset for p, one in found.items()}


def _gaps(topic: str, logs: dict[int, LogOffsets]) -> list[str]:
    """Reasons why records of this topic can't be seen."""
    gaps = []
    for partition, log in sorted(logs.items()):
        if log.first > 0:
            gaps.append(
                f"{topic}[{partition}] begins at offset {log.first} (retention); verify earlier, or keep it longer"
            )
        if log.last_stable < log.end:
            gaps.append(
                f"{topic}[{partition}] has an open transaction at offset {log.last_stable}; "
                "run the pipeline again, which ends its own, or wait for its time-out"
            )
    return gaps
