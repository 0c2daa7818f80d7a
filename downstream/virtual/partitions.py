"""The virtual partitions of the partitions that a consumer holds: records in, finished positions out."""

from __future__ import annotations

import math
import threading
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from downstream.virtual.retries import OnFailure, Retries
from downstream.virtual.tracker import OffsetTracker
from downstream.virtual.workers import Workers
from protocol.deadline import Deadline
from protocol.errors import BrewError, UsageError
from protocol.kafka.scan import LogRecord


class Place(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class HandlerFailedError(BrewError):
    """A record's handler failed as often as it may, and the record is no dead letter: the program ends before it."""


class HopelessError(BrewError):
    """A handler's word for a record that will never succeed: it is not tried again."""


class Effect(Protocol):
    """The effect of one record, and what becomes of a record that has none; both are called by worker threads."""

    def handle(self, record: LogRecord) -> None: ...
    def give_up(self, record: LogRecord, error: Exception, attempts: int) -> None: ...


@dataclass(frozen=True, slots=True)
class VirtualSettings:
    """
    ``count`` workers (virtual partitions) for all partitions together.

    ``most_uncovered``: records of one partition that may lie above its position. It bounds memory, and it is the most
    that a crash can repeat there. Whoever reads hands over ``batch`` records at a time.
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
                "some workers would never have a record; raise the one or lower the other"
            )


@dataclass
class Told:
    """What the workers have done so far."""

    effects: int = 0
    retries: int = 0
    given_up: int = 0


@dataclass(eq=False)
class _Held:
    """One partition as long as this consumer holds it; records of an earlier time never touch a later one's tracker."""

    tracker: OffsetTracker
    begun: int = -1
    """The highest offset that a worker has begun."""
    limit: float = math.inf
    """Nothing above this offset is begun any more: the partition goes to somebody else."""


@dataclass
class _Piece:
    """A record in work, and how often its handler has failed."""

    held: _Held
    record: LogRecord
    failures: int = field(default=0)


class VirtualPartitions:
    """
    Spread records by key over workers; a partition's position stands before its oldest record without an effect.

    All methods belong to the thread that polls. None of them waits for a handler but `revoked` and `close`.
    """

    def __init__(self, settings: VirtualSettings, effect: Effect) -> None:
        self._settings, self._effect = settings, effect
        self._held: dict[Place, _Held] = {}
        self._changed = threading.Condition()
        self.told = Told()
        self._workers: Workers[_Piece] = Workers(settings.count, self._work)

    def assigned(self, place: Place, start: int) -> None:
        """From now on this consumer reads the partition, beginning at offset ``start``."""
        self._held[place] = _Held(OffsetTracker(start))

    def add(self, place: Place, records: Iterable[LogRecord]) -> None:
        """Hand records to the workers, in offset order; records without a key have no order among each other."""
        held = self._held[place]
        pieces: list[tuple[Hashable, _Piece]] = []
        for record in records:
            offset, key = record.offset(), record.key()
            pieces.append(((held, offset if key is None else key, key is None), _Piece(held, record)))
        with self._changed:
            for piece in pieces:
                held.tracker.take(piece[1].record.offset())
        self._workers.put(pieces)

    def passed(self, place: Place, until: int) -> None:
        """The end of the log was seen at ``until``: markers below it need no effect."""
        with self._changed:
            self._held[place].tracker.passed(until)

    def full(self, place: Place) -> bool:
        """One more batch could be too much: read no more of this partition until its position moves."""
        with self._changed:
            return self._is_full(self._held[place])

    def _is_full(self, held: _Held) -> bool:
        return held.tracker.span > self._settings.most_uncovered - self._settings.batch

    def await_room(self, timeout_s: float) -> bool:
        """Wait for the workers while a partition is full; False when one still is."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(map(self._is_full, self._held.values())), timeout_s)

    def positions(self) -> Mapping[Place, int]:
        """
        What may be stored now, by partition.

        Raises:
            HandlerFailedError: a record failed as often as it may; nothing behind it is begun any more.
        """
        self._workers.check()
        return self._now()

    def _now(self) -> Mapping[Place, int]:
        with self._changed:
            return {place: held.tracker.position for place, held in self._held.items()}

    def idle(self) -> bool:
        """No record is without its effect."""
        self._workers.check()
        with self._changed:
            return all(held.tracker.unfinished == 0 for held in self._held.values())

    def hold(self, places: Iterable[Place]) -> None:
        """Begin nothing behind what is begun: these are about to be revoked, one after another."""
        with self._changed:
            for place in places:
                self._held[place].limit = self._held[place].begun

    def revoked(self, place: Place, deadline: Deadline) -> int:
        """
        Let a partition go: finish what lies below the last record begun, and tell the last position to store.

        So nothing that is done is done again by the next holder, unless a handler outlasts the deadline: its record
        and all above it are repeated.
        """
        held = self._held.pop(place)
        if self._workers.failed:  # nothing is begun any more, so no hole will close
            self._workers.stop(deadline)
        with self._changed:
            held.limit = held.begun
            if self._workers.failed:
                return held.tracker.position
            self._changed.wait_for(lambda: held.tracker.position > held.begun, deadline.remaining_s())
            held.limit = -1
            return held.tracker.position

    def lost(self, place: Place) -> None:
        """Somebody else has the partition already: begin nothing more there, store nothing."""
        held = self._held.pop(place)
        with self._changed:
            held.limit = -1

    def close(self, deadline: Deadline) -> Mapping[Place, int]:
        """Begin nothing more, wait for what is running, and tell the last positions that could be stored."""
        self._workers.stop(deadline)
        return self._now()

    def _work(self, piece: _Piece) -> float | None:
        """One try at one record, in a worker's thread."""
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

    def _try(self, piece: _Piece) -> float | None:
        record = piece.record
        try:
            self._effect.handle(record)
        except Exception as error:
            piece.failures += 1
            again_s = self._settings.retries.after(piece.failures)
            if again_s is not None and not isinstance(error, HopelessError):
                with self._changed:
                    self.told.retries += 1
                return again_s
            if self._settings.on_failure is OnFailure.STOP:
                raise HandlerFailedError(
                    f"partition {record.partition()}, offset {record.offset()}: failed {piece.failures} times, "
                    f"at last with {type(error).__name__}: {error}; mend the cause and start again, the record will be "
                    f"tried again (or let it go with --on-failure {OnFailure.DEAD_LETTER})"
                ) from error
            self._effect.give_up(record, error, piece.failures)
            with self._changed:
                self.told.given_up += 1
            return None
        with self._changed:
            self.told.effects += 1
        return None
