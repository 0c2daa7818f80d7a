"""The contract between the consume loop and a handler, and where reading continues."""

from __future__ import annotations

import enum
import os
import re
import socket
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from brew.claims.member import INTERVAL_S
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Refused, UsageError
from brew.kafka.log_reader import LogRecord
from brew.offsets import Committed


class DeliverySemantics(enum.StrEnum):
    """Which comes first: the work, or the claim of the messages."""

    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


@dataclass(frozen=True)
class ClaimsSettings:
    """A member's identity. A stable ``client_id`` lets a restarted process take its partitions back at once."""

    topic: str
    client_id: str
    interval_s: float = INTERVAL_S
    flow: DeliverySemantics = DeliverySemantics.AT_LEAST_ONCE


def fresh_client_id() -> str:
    """A name that no other process has; it is not stable."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


GRACE_S = 9.0  # after SIGTERM: what a handler has not committed by then is read again


@dataclass(frozen=True)
class LoopSettings:
    """
    How one member consumes.

    ``partitions``: exactly these, without group assignment; None: what the group assigns.
    ``follow``: until stopped; else until the end of the log as it was when the partitions came.
    ``batch`` records at most go to one `handle`; ``linger_s`` is waited for more of them.
    ``patience_s`` is how long one partition may wait (the store is away, or the brokers do not tell where it stands).
    ``settle_s`` is how long a draining member without partitions waits for some.
    ``claims``: partitions come by claim instead of by group assignment (of ``partitions`` only, where given).
    """

    connection: Connection
    group: str
    topic: str
    partitions: tuple[int, ...] | None = None
    follow: bool = False
    batch: int = 5000
    linger_s: float = 0.05
    max_poll_interval_s: float = 60.0
    session_timeout_s: float = 10.0
    patience_s: float = 60.0
    settle_s: float = 3.0
    claims: ClaimsSettings | None = None

    def __post_init__(self) -> None:
        if self.session_timeout_s >= self.max_poll_interval_s:
            raise UsageError(
                f"the session time-out of {self.session_timeout_s:g} s must be shorter than the poll interval of "
                f"{self.max_poll_interval_s:g} s; set --session-timeout-s or --max-poll-interval-s"
            )


class RetryLater(BrewError):
    """
    The handler can't continue now (a store is down, a lock is held), and has undone what it had begun.

    The loop pauses the partitions, stays in the group, and after ``delay_s`` asks `Handler.assigned` again.
    """

    def __init__(self, reason: str, delay_s: float = 0.5) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class NotOwned(BrewError):
    """A partition is not, or no longer surely, ours; the work on it has to be undone."""


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """
    One partition as Kafka sees it when it is taken over.

    ``committed`` is a hint: the group's offset in Kafka without waiting for pending transactions, None without one.
    ``first`` and ``last_stable`` are the log's first offset and its last stable offset (LSO).
    ``committed_topic_id``: the topic for which that offset was committed, None where nobody has said.
    """

    topic: str
    topic_id: str
    partition: int
    committed: int | None
    first: int
    last_stable: int
    committed_topic_id: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """
    Records of one partition, in order: all visible records of the offsets `[start, until)`.

    ``until`` is the next offset to read; behind the last record it may lie past markers, and ``records`` be empty.
    """

    partition: int
    start: int
    until: int
    records: list[LogRecord]


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """
    Valid during one call of the handler: the partitions that are ours until the deadline.

    Past the deadline (`max.poll.interval.ms` after the last poll, less a margin) the group may have given them away.
    """

    deadline: Deadline
    partitions: frozenset[int]
    pause: Callable[[Collection[int]], None]
    """Hand out nothing of these partitions until `resume`; for handlers that work behind the loop's back."""
    resume: Callable[[Collection[int]], None]
    report: Callable[[Mapping[int, int]], None]
    """
    Tell that all below these positions is done (partition -> next offset).

    Kafka hears of it within a second, and before partitions leave in good order. Who has no other position than
    Kafka's is given again, after a crash, what was not told by then; for all others this is what lag tools see.
    """

    def check(self, *partitions: int) -> None:
        """
        Check that the partitions are still ours.

        Raises:
            NotOwned: one was revoked, or we have taken so long that it may have been.
        """
        for partition in partitions:
            if partition not in self.partitions:
                raise NotOwned(f"partition {partition} is not ours any more")
            if self.deadline.expired():
                raise NotOwned(
                    f"partition {partition} may be somebody else's: {self.deadline.budget_s:g} s without a poll; "
                    "make batches smaller (--batch) or raise --max-poll-interval-s"
                )


class Handler(Protocol):
    """
    What a pattern implements: where its positions are kept and what happens to records.

    All calls come from the loop's thread. `RetryLater` from `assigned`, `handle` or `tick` pauses and tries again; any
    other error ends the loop. A record is done once the handler has told so by `HandlerContext.report`.
    """

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:
        """Take partitions over (also again, after `RetryLater`); return the offset to read each from."""
        ...

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        """Process the batches, or begin to; report durable positions by `HandlerContext.report`, now or in `tick`."""
        ...

    def tick(self, context: HandlerContext) -> None:
        """Once per round, with records or without: what is due by time."""
        ...

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Partitions move to another member, which waits until this returns; also called at the end."""
        ...

    def lost(self, partitions: Collection[int]) -> None:
        """Partitions have already moved to another member: forget them, write nothing."""
        ...

    def close(self, deadline: Deadline) -> None:
        """Give everything back; called once, at the end, however it came."""
        ...


_FORM = re.compile(r"topic-id=(\S+)")


def metadata(topic_id: str) -> str:
    """The text beside an offset that the loop commits."""
    return f"topic-id={topic_id}"


def topic_id_in(committed: Committed) -> str | None:
    """The topic that the offset was committed for; None where others have set it."""
    match = _FORM.match(committed.metadata)
    return None if match is None else match[1]


def start(assignment: AssignedPartition) -> int:
    """
    The group's offset; the log's first one where there is none.

    Raises:
        Refused: the offset is one of another topic, or retention took what was still to be read.
    """
    if assignment.committed is None:
        return assignment.first
    where = f"{assignment.topic}[{assignment.partition}]"
    if assignment.committed_topic_id not in {None, assignment.topic_id}:
        raise Refused(
            f"topic-recreated: the group's offset {assignment.committed} of {where} belongs to the topic with id "
            f"{assignment.committed_topic_id}, and the topic there now is {assignment.topic_id}; "
            f"read it with another --group, or set the group's offset to {assignment.first}"
        )
    if assignment.committed < assignment.first:
        raise Refused(
            f"input-lost: {where} was left at {assignment.committed}, and retention has taken what lies before "
            f"{assignment.first}; if these are to be left out, set the group's offset to {assignment.first}"
        )
    return assignment.committed
