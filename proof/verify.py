"""Read input, output and dead letters in step, and let the checker judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proof.checker import Checker, Facts, Record
from proof.findings import Report
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Refused
from protocol.kafka import offsets, topics
from protocol.kafka.clients import READ_COMMITTED, AdminClient, Connection, admin, consumer
from protocol.kafka.scan import LogRecord, scan
from protocol.position import LogOffsets

_CREATE_TIME = 1
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
class _Logs:
    """The three topics' offsets, taken while the group's position stood still."""

    input: dict[int, LogOffsets]
    output: dict[int, LogOffsets]
    dead_letter: dict[int, LogOffsets]


def verify(connection: Connection, claim: Claim, deadline: Deadline) -> Report:
    """
    Check all that is there now.

    Raises:
        Refused: a topic is missing, or the group's position can't be told.
    """
    client = admin(connection)
    logs, committed = _snapshot(connection, client, claim, deadline)
    facts = Facts(
        input=claim.input,
        output=claim.output,
        dead_letter=claim.dead_letter,
        logs=logs.input,
        committed=committed,
        output_partitions=len(logs.output),
        doubts=(*_gaps(claim.output, logs.output), *_gaps(claim.dead_letter, logs.dead_letter)),
    )
    checker = Checker(facts)
    downstream = [
        _Reading(connection, claim.output, logs.output, checker.output),
        _Reading(connection, claim.dead_letter, logs.dead_letter, checker.dead_letters),
    ]
    read_in_step(checker, _Reading(connection, claim.input, logs.input, checker.input), downstream)
    return checker.report()


def read_in_step(checker: Checker, upstream: _Reading, downstream: list[_Reading]) -> None:
    """Always go on with the log that is least far, so that few records wait for their other half."""
    readings = [*downstream, upstream]
    try:
        while unread := [one for one in readings if not one.ended]:
            behind = min(unread, key=lambda one: one.fraction)
            behind.step()
            if behind.ended and behind is upstream:
                checker.input_ended()
            elif behind.ended and all(one.ended for one in downstream):
                checker.downstream_ended()
    finally:
        for one in readings:
            one.close()


class _Reading:
    """A committed scan of one topic that knows how far it is."""

    def __init__(
        self, connection: Connection, topic: str, logs: dict[int, LogOffsets], take: Callable[[Iterator[Record]], None]
    ) -> None:
        self._first = {p: log.first for p, log in logs.items()}
        self._done = dict.fromkeys(logs, 0)
        self._total = max(1, sum(log.last_stable - log.first for log in logs.values()))
        self._batches = scan(
            connection, topic, {p: (log.first, log.last_stable) for p, log in logs.items()}, READ_COMMITTED
        )
        self._take = take
        self.ended = False

    @property
    def fraction(self) -> float:
        return sum(self._done.values()) / self._total

    def step(self) -> None:
        batch = next(self._batches, None)
        if batch is None:
            self.ended = True
            return
        self._take(map(_record, batch))
        for message in batch:
            self._done[message.partition()] = message.offset() + 1 - self._first[message.partition()]

    def close(self) -> None:
        self._batches.close()


def _record(message: LogRecord) -> Record:
    kind, created = message.timestamp()
    return Record(
        message.partition(),
        message.offset(),
        message.key(),
        message.value(),
        message.headers() or [],
        created if kind == _CREATE_TIME else None,
    )


def _snapshot(
    connection: Connection, client: AdminClient, claim: Claim, deadline: Deadline
) -> tuple[_Logs, dict[int, int | None]]:
    """Offsets of all logs between two equal answers about the group's position."""
    sizes = {n: topics.existing(client, n, deadline).partitions for n in (claim.input, claim.output, claim.dead_letter)}

    def logs(name: str) -> dict[int, LogOffsets]:
        return offsets.log_offsets(client, name, range(sizes[name]), deadline)

    settled = Deadline(_SETTLE_S)
    while True:
        before = _committed(connection, claim, range(sizes[claim.input]))
        found = _Logs(logs(claim.input), logs(claim.output), logs(claim.dead_letter))
        moved = before != _committed(connection, claim, range(sizes[claim.input]))
        # A commit's markers reach the partitions a moment after the group's position is known.
        pending = any(log.last_stable < log.end for some in (found.output, found.dead_letter) for log in some.values())
        if not moved and (not pending or settled.expired()):
            return found, before
        if moved and settled.expired():
            raise Refused(
                f"group {claim.group!r} moved on while its position was read, for {_SETTLE_S:g} s; "
                "stop the pipeline, then verify again"
            )
        time.sleep(min(_PAUSE_S, settled.remaining_s()))


def _committed(connection: Connection, claim: Claim, partitions: range) -> dict[int, int | None]:
    """The group's position as a `read_committed` reader sees it."""
    reader = consumer(connection, claim.group, READ_COMMITTED)
    try:
        found = offsets.committed(reader, claim.input, partitions, Deadline(_COMMITTED_S))
    except DeadlineExceeded as error:
        raise Refused(
            f"the committed offset of group {claim.group!r} is part of a transaction that has not ended; "
            "run the pipeline again, which ends it, or wait for its time-out"
        ) from error
    finally:
        reader.close()
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
