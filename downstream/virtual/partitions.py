"""Virtual partitions on the consume loop: records in, finished positions out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brew.deadline import Deadline
from brew.errors import BrewError, UsageError
from brew.kafka.log_reader import LogRecord
from brew.names import quantity
from downstream.consume.handler import AssignedPartition, Handler, HandlerContext, PartitionBatch, RetryLater, start
from downstream.virtual.scheduling import OffsetTracker, OnFailure, Retries, Workers

_LOOK_S = 0.01
_STORE_EVERY_S = 0.5
_ROOM_S = 1.0


class HandlerFailedError(BrewError):
    """A record exhausted its attempts and is not dead-lettered: the program stops before it."""


class NonRetriableError(BrewError):
    """Raised by a handler for a record that can never succeed: it is not retried."""


class Effect(Protocol):
    """A record's effect, and what to do without one, both by worker threads; `give_up` may raise `RetryLater`."""

    def handle(self, record: LogRecord) -> None: ...
    def give_up(self, record: LogRecord, error: Exception, attempts: int) -> None: ...


@dataclass(frozen=True, slots=True)
class VirtualSettings:
    """
    ``count`` workers (virtual partitions) shared by all partitions. ``most_uncovered``: maximum number of records of
    one partition above its position. It bounds memory, and how many records a crash can repeat there. Up to ``batch``
    records are added at a time.
    """

    count: int = 1
    most_uncovered: int = 1000
    retries: Retries = field(default_factory=Retries)
    on_failure: OnFailure = OnFailure.DEAD_LETTER

    @property
    def batch(self) -> int:
        return max(1, self.most_uncovered // 2)

    def __post_init__(self) -> None:
        if self.count < 1:
            raise UsageError(
                f"--virtual-partitions is {self.count}: at least one worker is needed; set it to 1 or more"
            )
        if self.most_uncovered < self.count:
            raise UsageError(
                f"--most-uncovered is {self.most_uncovered}, below --virtual-partitions {self.count}: "
                "some workers would never have a record; raise the first or lower the second"
            )


@dataclass
class WorkerResult:
    effects: int = 0
    retries: int = 0
    given_up: int = 0


@dataclass(eq=False)
class _AssignedPartition:
    """An assigned partition; records of an earlier assignment never touch the tracker of a later one."""

    tracker: OffsetTracker
    goal: int
    """Where a drain ends."""
    begun: int = -1
    """The highest offset that a worker has begun."""
    limit: float = math.inf
    """Nothing above this offset is begun any more: the partition goes to somebody else."""
    stored: int | None = None


@dataclass
class _RecordTask:
    """A record being processed, how often its handler has failed, and the error after which it is given up."""

    held: _AssignedPartition
    record: LogRecord
    failures: int = 0
    error: Exception | None = None


class VirtualPartitions(Handler):
    """
    Distributes records by key over workers; records without a key are not ordered among each other. A partition's
    position is at its oldest record without an effect. Kafka's committed offset is the position, and never passes a
    record without an effect. A commit that is lost, or refused by the coordinator after a rebalance, leads to
    repetition. Only `revoked` and `close` wait for running records; with ``follow`` False, the end of a drain waits for
    the workers, and ``stop`` ends that wait.
    """

    def __init__(
        self,
        settings: VirtualSettings,
        effect: Effect,
        stop: threading.Event,
        *,
        follow: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._effect = settings, effect
        self._stop, self._follow, self._now = stop, follow, now
        self._held: dict[int, _AssignedPartition] = {}
        self._changed = threading.Condition()
        self._report: Callable[[Mapping[int, int]], None] = lambda _positions: None
        self._store_at = 0.0
        self.result = WorkerResult()
        self._workers: Workers[_RecordTask] = Workers(settings.count, self._work)

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:  # noqa: ARG002 - the port's shape
        """Start at the committed or the first offset; partitions already held continue where they were."""
        for assignment in assignments:
            if assignment.partition not in self._held:
                tracker = OffsetTracker(start(assignment))
                self._held[assignment.partition] = _AssignedPartition(tracker, assignment.last_stable)
        return {assignment.partition: self._held[assignment.partition].tracker.next for assignment in assignments}

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        """Give records to the workers, and pause partitions that have enough of them in progress."""
        for batch in batches:
            self._add(batch)
        # Pause only for slow handlers: after a resume the client takes up to a second to fetch again (measured).
        with self._changed:
            self._changed.wait_for(lambda: not self._full(), _ROOM_S)
        if full := self._full():
            context.pause(full)

    def _add(self, batch: PartitionBatch) -> None:
        held = self._held[batch.partition]
        pieces: list[tuple[Hashable, _RecordTask]] = []
        for record in batch.records:
            offset, key = record.offset(), record.key()
            pieces.append(((held, offset if key is None else key, key is None), _RecordTask(held, record)))
        with self._changed:
            for record in batch.records:
                held.tracker.take(record.offset())
            held.tracker.passed(batch.until)
        self._workers.put(pieces)

    def _full(self) -> list[int]:
        """Return the partitions for which one more batch could be too much; they are read on once they advance."""
        most = self._settings.most_uncovered - self._settings.batch
        with self._changed:
            return [p for p, held in self._held.items() if held.tracker.span > most]

    def tick(self, context: HandlerContext) -> None:
        """
        Store positions, resume partitions with room, and let the end of a drain wait for the workers. Raises
        `HandlerFailedError` once a record has exhausted its attempts.
        """
        self._report = context.report
        full = self._full()
        context.resume([p for p in self._held if p not in full])
        drained = self._held and all(held.tracker.next >= held.goal for held in self._held.values())
        if drained and not self._follow:
            self._await_workers(context)
            self._store(self._held)
        self._store_if_due()

    def _await_workers(self, context: HandlerContext) -> None:
        while not self.idle() and not self._stop.is_set():
            if context.deadline.expired():
                raise RetryLater("records are still being processed", _LOOK_S)
            self._store_if_due()  # also shows the loop that they make progress
            self._stop.wait(_LOOK_S)

    def idle(self) -> bool:
        """Return True if every record has its effect."""
        self._workers.check()
        with self._changed:
            return all(held.tracker.unfinished == 0 for held in self._held.values())

    def _store_if_due(self) -> None:
        self._workers.check()
        if self._now() >= self._store_at:
            self._store(self._held)

    def _store(self, assigned: Mapping[int, _AssignedPartition]) -> None:
        self._store_at = self._now() + _STORE_EVERY_S
        with self._changed:
            positions = {p: held.tracker.position for p, held in assigned.items()}
        moved = {p: position for p, position in positions.items() if assigned[p].stored != position}
        if moved:
            self._report(moved)
            for p, position in moved.items():
                assigned[p].stored = position

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Finish records below the last one started, as far as time permits, and store the position reached."""
        ours = {p: self._held.pop(p) for p in partitions if p in self._held}
        with self._changed:
            for held in ours.values():
                held.limit = held.begun
        for held in ours.values():
            self._finish_begun(held, deadline)
        self._store(ours)

    def _finish_begun(self, held: _AssignedPartition, deadline: Deadline) -> None:
        if self._workers.failed:  # nothing new is started, so no gap will close
            self._workers.stop(deadline)
            return
        with self._changed:
            self._changed.wait_for(lambda: held.tracker.position > held.begun, deadline.remaining_s())
            held.limit = -1

    def lost(self, partitions: Collection[int]) -> None:
        """Start no more records of partitions that another member already owns, and store nothing."""
        with self._changed:
            for held in [self._held.pop(p) for p in partitions if p in self._held]:
                held.limit = -1

    def close(self, deadline: Deadline) -> None:
        """Start no more records, and wait for running ones."""
        self._workers.stop(deadline)

    def _work(self, piece: _RecordTask) -> float | None:
        held, offset = piece.held, piece.record.offset()
        with self._changed:
            if offset > held.limit:
                return None
            held.begun = max(held.begun, offset)
        again_s = self._try(piece)
        if again_s is None:
            with self._changed:
                before = held.tracker.position
                held.tracker.finish(offset)
                if held.tracker.position != before:
                    self._changed.notify_all()
        return again_s

    def _try(self, piece: _RecordTask) -> float | None:
        record = piece.record
        if piece.error is None:
            try:
                self._effect.handle(record)
            except Exception as error:
                piece.failures += 1
                again_s = self._settings.retries.after(piece.failures)
                if again_s is not None and not isinstance(error, NonRetriableError):
                    with self._changed:
                        self.result.retries += 1
                    return again_s
                if self._settings.on_failure is OnFailure.STOP:
                    raise HandlerFailedError(
                        f"partition {record.partition()}, offset {record.offset()}: "
                        f"failed {quantity(piece.failures, 'time')}; last error: {type(error).__name__}: {error}; "
                        f"fix the cause and restart, and the record is retried "
                        f"(or skip it with --on-failure {OnFailure.DEAD_LETTER})"
                    ) from error
                piece.error = error
            else:
                with self._changed:
                    self.result.effects += 1
                return None
        try:
            self._effect.give_up(record, piece.error, piece.failures)
        except RetryLater as later:
            return later.delay_s
        with self._changed:
            self.result.given_up += 1
        return None
