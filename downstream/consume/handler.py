"""What the consume loop asks of a pattern, and what it hands over."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka.members import LogRecord

__all__ = ["Handler", "Later", "Lease", "LogRecord", "NotOwned", "Seat", "Slice"]


class Later(BrewError):
    """
    The handler can't go on just now (a store is down, a lock is held), and has undone what it had begun.

    The loop pauses the partitions, stays in the group, and after ``delay_s`` asks `Handler.assigned` again.
    """

    def __init__(self, reason: str, delay_s: float = 0.5) -> None:
        super().__init__(reason)
        self.delay_s = delay_s


class NotOwned(BrewError):
    """A partition is not, or no longer surely, ours; the work on it has to be undone."""


@dataclass(frozen=True, slots=True)
class Seat:
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
class Slice:
    """
    What was read of one partition, in order: all visible records of the offsets `[start, until)`.

    ``until`` is the next offset to read; behind the last record it may lie past markers, and ``records`` be empty.
    """

    partition: int
    start: int
    until: int
    records: list[LogRecord]


@dataclass(frozen=True, slots=True)
class Lease:
    """
    What the handler holds for the time of one call: partitions that are ours until the deadline.

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

    def check(self, partition: int) -> None:
        """
        Go on if the partition is surely ours.

        Raises:
            NotOwned: it was revoked, or we have taken so long that it may have been.
        """
        if partition not in self.partitions:
            raise NotOwned(f"partition {partition} is not ours any more")
        if self.deadline.expired():
            raise NotOwned(
                f"partition {partition} may be somebody else's: {self.deadline.budget_s:g} s without a poll; "
                "make batches smaller (--batch) or raise --max-poll-interval-s"
            )


class Handler(Protocol):
    """
    A pattern: where its positions are kept and what happens to records.

    All calls come from the loop's thread. `Later` from `assigned`, `handle` or `tick` pauses and tries again; any
    other error ends the loop. A record is done once the handler has told so by `Lease.report`.
    """

    def assigned(self, seats: Sequence[Seat], deadline: Deadline) -> Mapping[int, int]:
        """Take partitions over (also again, after `Later`); return the offset to read each from."""
        ...

    def handle(self, slices: Sequence[Slice], lease: Lease) -> None:
        """Work off what was read, or begin to; what is durably done is told by `Lease.report`, now or in `tick`."""
        ...

    def tick(self, lease: Lease) -> None:
        """Once per round, with records or without: what is due by time."""
        ...

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Partitions go to somebody else, who waits until this returns; also called at the end."""
        ...

    def lost(self, partitions: Collection[int]) -> None:
        """Partitions are gone already; forget them, write nothing."""
        ...

    def close(self, deadline: Deadline) -> None:
        """Give everything back; called once, at the end, however it came."""
        ...
