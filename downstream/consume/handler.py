"""The contract between the consume loop and a handler, and where reading continues."""

from __future__ import annotations

import enum
import os
import re
import socket
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from brew.claims.member import INTERVAL_S
from brew.cli import printable
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Refused, UsageError
from brew.kafka.log_reader import LogRecord
from brew.offsets import Committed


class DeliverySemantics(enum.StrEnum):
    """What comes first: processing the messages or claiming them."""

    AT_LEAST_ONCE = "at-least-once"
    AT_MOST_ONCE = "at-most-once"


@dataclass(frozen=True)
class ClaimsSettings:
    """A member's identity. With a stable ``client_id`` a restarted process gets its partitions back at once."""

    topic: str
    client_id: str
    interval_s: float = INTERVAL_S
    flow: DeliverySemantics = DeliverySemantics.AT_LEAST_ONCE


def fresh_client_id() -> str:
    """Return a name that no other process has; it is not stable across restarts."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:6]}"


GRACE_S = 9.0  # after SIGTERM; whatever a handler has not committed by then is read again


@dataclass(frozen=True)
class LoopSettings:
    """
    Settings of one member's consumption.

    ``partitions``: read exactly these, without group assignment; None: read what the group assigns.
    ``follow``: run until stopped; otherwise until the end of the log as of the assignment.
    ``batch``: maximum number of records per `handle`; ``linger_s``: how long to wait for more of them.
    ``patience_s``: how long a partition may wait for an unavailable store or for its offsets from the brokers.
    ``settle_s``: how long a draining member without partitions waits for an assignment.
    ``claims``: take partitions by claim instead of by group assignment (only those in ``partitions``, if given).
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
    """The handler has undone what it began, and can't continue now; it is `assigned` again after ``delay_s``."""

    def __init__(self, reason: str, delay_s: float = 0.5) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class NotOwned(BrewError):
    """We do not own a partition, or can no longer be sure of it; the work on it must be undone."""


_LASTS_S, _TOLD_AGAIN_S = 10.0, 60.0


class LastingFailure:
    """Tells of a failure that lasts for 10 s, and again once a minute; ``reason`` is the last one, or empty."""

    def __init__(self, what: str, tell: Callable[[str], None]) -> None:
        self._what, self._tell, self.reason = what, tell, ""

    def failed(self, reason: str) -> None:
        if not self.reason:
            self._due = Deadline(_LASTS_S)
        elif self._due.expired():
            self._due = Deadline(_TOLD_AGAIN_S)
            self._tell(printable(f"{self._what}: still failing, will be tried again: {reason}"))
        self.reason = reason

    def worked(self) -> None:
        self.reason = ""


@dataclass(frozen=True, slots=True)
class AssignedPartition:
    """
    A partition's state in Kafka when it is assigned.

    ``committed`` is a hint: the group's offset in Kafka, read without waiting for pending transactions, or None; with
    claims (``claimed``) it is their position, which may be ahead of the work. ``reported`` is Kafka's in any case.
    ``first`` and ``last_stable`` are the log's first offset and its last stable offset (LSO); ``end`` is its end, read
    after ``committed``.
    ``committed_topic_id``: the id of the topic for which that offset was committed; None if unknown.
    """

    topic: str
    topic_id: str
    partition: int
    committed: int | None
    first: int
    last_stable: int
    committed_topic_id: str | None = None
    reported: int | None = None
    claimed: bool = False
    end: int | None = None


@dataclass(frozen=True, slots=True)
class PartitionBatch:
    """All visible records of a partition with offsets in `[start, until)`, in order; maybe none, past markers."""

    partition: int
    start: int
    until: int
    records: list[LogRecord]


@dataclass(frozen=True, slots=True)
class HandlerContext:
    """The partitions that are ours until the deadline, before the group may reassign them; valid during one call."""

    deadline: Deadline
    partitions: frozenset[int]
    pause: Callable[[Collection[int]], None]
    """Deliver no records of these partitions until `resume`; for handlers that process in the background."""
    resume: Callable[[Collection[int]], None]
    report: Callable[[Mapping[int, int]], None]
    """
    Report that everything below these positions is done (partition -> next offset).

    Kafka learns of it within a second, and before an orderly revocation. If Kafka holds the handler's only position,
    a crash repeats everything not yet committed; for all other handlers only lag tools use this position.
    """

    def check(self, *partitions: int) -> None:
        """Raise `NotOwned` if a partition was revoked, or may have been because we took too long."""
        for partition in partitions:
            if partition not in self.partitions:
                raise NotOwned(f"partition {partition} is no longer ours")
            if self.deadline.expired():
                raise NotOwned(
                    f"partition {partition} may belong to another member: {self.deadline.budget_s:g} s without a poll; "
                    "make batches smaller (--batch) or raise --max-poll-interval-s"
                )


class Handler:
    """
    The interface that a pattern implements: where positions are kept and how records are processed. Only `assigned` and
    `handle` are needed without state between batches. All calls come from the loop's thread. `RetryLater` from
    `assigned`, `handle` or `tick` pauses and tries again; any other error ends the loop. A record is done once it has
    been reported.
    """

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:
        """Take over partitions (again after `RetryLater`); return the offset at which to start reading each."""
        raise NotImplementedError

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        """Process the batches, or start to; report durable positions by `HandlerContext.report`, now or in `tick`."""
        raise NotImplementedError

    def tick(self, context: HandlerContext) -> None:
        """Do periodic work; called once per round, with or without records."""

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Release partitions to another member, which waits until this returns; also called at the end."""

    def lost(self, partitions: Collection[int]) -> None:
        """Forget partitions that another member already owns; write nothing."""

    def close(self, deadline: Deadline) -> None:
        """Release all resources; called exactly once, at the end, even after an error."""


_FORM = re.compile(r"topic-id=(\S+)")


def metadata(topic_id: str) -> str:
    return f"topic-id={topic_id}"


def topic_id_in(committed: Committed) -> str | None:
    """Return the id of the topic for which the offset was committed; None if the loop did not commit it."""
    match = _FORM.match(committed.metadata)
    return None if match is None else match[1]


def start(assignment: AssignedPartition) -> int:
    """
    Return the group's committed offset, or the log's first offset if there is none. Raises `Refused`: the offset
    belongs to another topic, retention deleted records that were still to be read, or the log ends before the offset.
    """
    if assignment.committed is None:
        return assignment.first
    where = f"{assignment.topic}[{assignment.partition}]"
    place, remedy = "group's offset", f"set the group's offset to {assignment.first}"
    if assignment.claimed:
        place, option = "claimed position", f"--partitions {assignment.partition} --to offset --offset"
        remedy = f"run `brew claims set-position {option} {assignment.first}` with --group and --topic"
    if assignment.committed_topic_id not in {None, assignment.topic_id}:
        raise Refused(
            f"topic-recreated: the {place} {assignment.committed} of {where} belongs to the topic with id "
            f"{assignment.committed_topic_id}, but the topic now has id {assignment.topic_id}; "
            f"read it with another --group, or {remedy}"
        )
    if assignment.committed < assignment.first:
        raise Refused(
            f"input-lost: the {place} of {where} is {assignment.committed}, and retention has deleted the records "
            f"before {assignment.first}; to skip them, {remedy}"
        )
    if assignment.end is not None and assignment.committed > assignment.end:
        raise Refused(
            f"offset-ahead: the {place} of {where} is {assignment.committed}, and its log ends at {assignment.end}: it "
            "was truncated (unclean leader election), or this is another cluster (--bootstrap), and what is written "
            "up to there would be skipped; read it with another --group, or set the position to the first new record"
        )
    return assignment.committed
