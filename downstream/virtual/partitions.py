"""Virtual partitions on the consume loop: records in, finished positions out."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brew.deadline import Deadline
from brew.errors import BrewError, UsageError
from brew.kafka.log_reader import LogRecord
from brew.names import quantity
from downstream.consume.handler import AssignedPartition, Handler, HandlerContext, PartitionBatch, RetryLater, start
from downstream.virtual.scheduling import OffsetTracker, OnFailure, Retries, Workers


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
    begun: int = -1
    """The highest offset that a worker has begun."""
    limit: float = math.inf
    """Nothing above this offset is begun any more: the partition goes to somebody else."""


@dataclass
class _RecordTask:
    """A record being processed, how often its handler has failed, and the error after which it is given up."""

    held: _AssignedPartition
    record: LogRecord
    failures: int = 0
    error: Exception | None = None


class VirtualPartitions:
    """
    Distributes records by key over workers; a partition's position is at its oldest record without an effect. All
    methods must be called by the polling thread. Only `revoked` and `close` wait for handlers.
    """

    def __init__(self, settings: VirtualSettings, effect: Effect) -> None:
        self._settings, self._effect = settings, effect
        self._held: dict[int, _AssignedPartition] = {}
        self._changed = threading.Condition()
        self.result = WorkerResult()
        self._workers: Workers[_RecordTask] = Workers(settings.count, self._work)

    def assigned(self, partition: int, start: int) -> None:
        """Start tracking an assigned partition, read from offset ``start`` on."""
        self._held[partition] = _AssignedPartition(OffsetTracker(start))

    def add(self, partition: int, records: Iterable[LogRecord], until: int = 0) -> None:
        """
        Give records to the workers, in offset order; records without a key are not ordered among each other. The log
        was read to ``until``: markers below it need no effect.
        """
        held = self._held[partition]
        pieces: list[tuple[Hashable, _RecordTask]] = []
        for record in records:
            offset, key = record.offset(), record.key()
            pieces.append(((held, offset if key is None else key, key is None), _RecordTask(held, record)))
        with self._changed:
            for piece in pieces:
                held.tracker.take(piece[1].record.offset())
            held.tracker.passed(until)
        self._workers.put(pieces)

    def full(self, partition: int) -> bool:
        """Return True if one more batch could be too much: stop reading this partition until its position advances."""
        with self._changed:
            return self._is_full(self._held[partition])

    def _is_full(self, held: _AssignedPartition) -> bool:
        return held.tracker.span > self._settings.most_uncovered - self._settings.batch

    def await_room(self, timeout_s: float) -> bool:
        """Wait for the workers while a partition is full; return False if one still is."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(map(self._is_full, self._held.values())), timeout_s)

    def positions(self) -> Mapping[int, int]:
        """Return the positions to store now; raises `HandlerFailedError` once a record has exhausted its attempts."""
        self._workers.check()
        return self._now()

    def _now(self) -> Mapping[int, int]:
        with self._changed:
            return {p: held.tracker.position for p, held in self._held.items()}

    def idle(self) -> bool:
        """Return True if every record has its effect."""
        self._workers.check()
        with self._changed:
            return all(held.tracker.unfinished == 0 for held in self._held.values())

    def hold(self, partitions: Iterable[int]) -> None:
        """Start no more records of these partitions, because they are about to be revoked."""
        with self._changed:
            for partition in partitions:
                self._held[partition].limit = self._held[partition].begun

    def revoked(self, partition: int, deadline: Deadline) -> int:
        """Finish what is below the last record started, before the deadline; return the last position to store."""
        held = self._held.pop(partition)
        if self._workers.failed:  # nothing new is started, so no gap will close
            self._workers.stop(deadline)
        with self._changed:
            held.limit = held.begun
            if self._workers.failed:
                return held.tracker.position
            self._changed.wait_for(lambda: held.tracker.position > held.begun, deadline.remaining_s())
            held.limit = -1
            return held.tracker.position

    def lost(self, partition: int) -> None:
        """Forget a partition that another member already owns: start no more of its records, store nothing."""
        held = self._held.pop(partition)
        with self._changed:
            held.limit = -1

    def close(self, deadline: Deadline) -> Mapping[int, int]:
        """Start no more records, wait for running ones, and return the last positions that can be stored."""
        self._workers.stop(deadline)
        return self._now()

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


_LOOK_S = 0.01
_STORE_EVERY_S = 0.5
_ROOM_S = 1.0


class VirtualPartitionsHandler(Handler):
    """
    The loop's handler. Kafka's committed offset is the position, and never passes a record without an effect. A commit
    that is lost, or refused by the coordinator after a rebalance, leads to repetition. With ``follow`` False, the end
    of a drain waits for the workers; ``stop`` ends that wait.
    """

    def __init__(
        self,
        virtual: VirtualPartitions,
        stop: threading.Event,
        *,
        follow: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._virtual, self._stop, self._follow, self._now = virtual, stop, follow, now
        self._read: dict[int, int] = {}
        self._goals: dict[int, int] = {}
        self._report: Callable[[Mapping[int, int]], None] = lambda _positions: None
        self._stored: dict[int, int] = {}
        self._store_at = 0.0

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:  # noqa: ARG002 - the port's shape
        """Start at the committed or the first offset; partitions already held continue where they were."""
        for assignment in assignments:
            partition = assignment.partition
            if partition not in self._read:
                self._read[partition] = start(assignment)
                self._goals[partition] = assignment.last_stable
                self._virtual.assigned(partition, self._read[partition])
        return {assignment.partition: self._read[assignment.partition] for assignment in assignments}

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        """Give records to the workers, and pause partitions that have enough of them in progress."""
        for batch in batches:
            self._virtual.add(batch.partition, batch.records, batch.until)
            self._read[batch.partition] = batch.until
        # Pause only for slow handlers: after a resume the client takes up to a second to fetch again (measured).
        if not self._virtual.await_room(_ROOM_S):
            context.pause([p for p in self._read if self._virtual.full(p)])

    def tick(self, context: HandlerContext) -> None:
        """Store positions, resume partitions with room, and let the end of a drain wait for the workers."""
        self._report = context.report
        context.resume([p for p in self._read if not self._virtual.full(p)])
        if not self._follow and self._read and all(position >= self._goals[p] for p, position in self._read.items()):
            self._await_workers(context)
            self._store(self._virtual.positions())
        self._store_if_due()

    def _await_workers(self, context: HandlerContext) -> None:
        while not self._virtual.idle() and not self._stop.is_set():
            if context.deadline.expired():
                raise RetryLater("records are still being processed", _LOOK_S)
            self._store_if_due()  # also shows the loop that they make progress
            self._stop.wait(_LOOK_S)

    def _store_if_due(self) -> None:
        if self._now() >= self._store_at:
            self._store(self._virtual.positions())

    def _store(self, positions: Mapping[int, int]) -> None:
        self._store_at = self._now() + _STORE_EVERY_S
        moved = {p: position for p, position in positions.items() if self._stored.get(p) != position}
        if moved:
            self._report(moved)
            self._stored |= moved

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Finish records below the last one started, as far as time permits, and store the position reached."""
        ours = self._forget(partitions)
        self._virtual.hold(ours)
        self._store({p: self._virtual.revoked(p, deadline) for p in ours})
        for partition in partitions:
            self._stored.pop(partition, None)

    def lost(self, partitions: Collection[int]) -> None:
        for partition in self._forget(partitions):
            self._virtual.lost(partition)
        for partition in partitions:
            self._stored.pop(partition, None)

    def _forget(self, partitions: Collection[int]) -> list[int]:
        """Stop reading; return those of the partitions that were being read."""
        ours = [p for p in partitions if p in self._read]
        for partition in ours:
            del self._read[partition], self._goals[partition]
        return ours

    def close(self, deadline: Deadline) -> None:
        self._virtual.close(deadline)
