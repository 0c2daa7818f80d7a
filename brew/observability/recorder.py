"""State of a running program by partition: any thread records events, probes read it."""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata

from brew.observability.counters import Counts, Ended, Ending, Rate, TopicPartition
from brew.observability.health import BROKERS, STORE, Bounds, Partition, Program, live, ready, started, state_of
from brew.observability.status import Phase, Status, Topics, Totals

_STARTUP_S = 60.0
"""Partitions that come this long after a program's first look belong to its start; later ones were another's before."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The observed program: its name, group and topics; ``reader`` is set for the pipeline."""

    application: str
    group: str | None
    topics: Topics
    bootstrap: str
    reader: str | None = None


class Recorder:
    """Records events and returns a `Status` and `Counts`; no call blocks. ``wall``: seconds since the epoch."""

    def __init__(
        self,
        subject: Subject,
        bounds: Bounds,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.subject, self._bounds, self._clock, self._wall = subject, bounds, clock, wall
        self._lock = threading.Lock()
        self._began, self._began_at = clock(), wall()
        self._work_since, self._looked_at = self._began, float("inf")
        self._program = Program(Phase.STARTING, self._began)
        self._partitions: dict[TopicPartition, Partition] = {}
        self._counts = Counts()
        self._rate = Rate(self._began)
        self._without_leader: int | None = None

    @classmethod
    def unobserved(cls) -> Recorder:
        """Return a recorder without probes, for tests and embedded programs."""
        return cls(Subject("", None, Topics(""), ""), Bounds(1, 1, 1))

    def phase(self, phase: Phase, detail: str = "") -> None:
        """Set the program's phase; setting it again is a sign of life."""
        with self._lock:
            # While it stands by, nothing would notice that brokers answer again, or that a topic exists again.
            was = Program(phase, self._began) if phase is Phase.STANDING_BY else self._program
            fatal = "" if phase is Phase.WORKING else was.fatal
            self._program = replace(was, phase=phase, detail=detail, fatal=fatal, beat_at=self._clock())

    def fatal(self, why: str) -> None:
        """Record that no retry can succeed; the first reason is kept."""
        with self._lock:
            self._program = replace(self._program, fatal=self._program.fatal or why)

    def missing(self, which: str) -> None:
        """Record which topics to write to do not exist any more; nothing: all exist again."""
        with self._lock:
            self._program = replace(self._program, missing=which)

    def leaderless(self, topic_partitions: Collection[TopicPartition]) -> None:
        """Record which partitions have no leader; they are left out, so a restart would not help them."""
        with self._lock:
            self._without_leader = len(topic_partitions)
        if topic_partitions:
            self.released(topic_partitions)

    def unanswered(self, why: str, *, refresh: bool = True) -> None:
        """Record that the brokers did not answer; ``refresh``: the working loop asked, which is a sign of life."""
        with self._lock:
            now, was = self._clock(), self._program
            self._program = replace(was, unanswered_reason=why, beat_at=now if refresh else was.beat_at)
            self._counts.unanswered += 1
            for partition in self._partitions.values():
                partition.polled_at = now if refresh else partition.polled_at
                partition.set_unanswered(BROKERS, why, now)

    def _answered(self, now: float | None = None) -> None:
        beat_at = self._program.beat_at if now is None else now
        self._program = replace(self._program, unanswered_reason="", beat_at=beat_at)

    def polled(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Record that the log's end was checked."""
        with self._lock:
            now = self._clock()
            self._looks(now)
            self._program = replace(self._program, beat_at=now)
            for topic_partition in topic_partitions:
                self._taken(topic_partition, now)

    def surveyed(self, topic_partition: TopicPartition, position: int, last_stable: int, end: int) -> None:
        """Record position and end offsets, as the working loop read them."""
        with self._lock:
            now = self._clock()
            self._looks(now)
            new = topic_partition not in self._partitions
            state = self._taken(topic_partition, now)
            if state.position is not None and position > state.position:
                self._recovered(state.moved(position, now))
            state.position = position
            state.set_end_offsets(last_stable, end, now)
            if not state.lag:
                state.set_answered(STORE, now)  # a partition with lag hears from the store only when it is worked on
            if new and state.lag and state.failing_since is None:
                # A backlog from before counts as recovered at the next commit.
                state.failing_since = self._work_since if now - self._looked_at <= _STARTUP_S else now
            self._answered(now)

    def end_offsets(self, topic_partition: TopicPartition, last_stable: int, end: int) -> None:
        """Record end offsets read by another thread, which are no sign of life of the working loop."""
        with self._lock:
            if topic_partition in self._partitions:
                self._partitions[topic_partition].set_end_offsets(last_stable, end, self._clock())
            self._answered()

    def waits(self, topic_partitions: Iterable[TopicPartition], why: str) -> None:
        """Mark partitions that wait for something other than brokers (a store, a lock); the loop retries."""
        with self._lock:
            now = self._clock()
            self._program = replace(self._program, beat_at=now)
            self._counts.unanswered += 1
            for topic_partition in topic_partitions:
                self._taken(topic_partition, now).set_unanswered(STORE, why, now)

    def read(self, topic_partition: TopicPartition, records: int) -> None:
        with self._lock:
            now = self._clock()
            state = self._taken(topic_partition, now)
            state.set_answered(STORE, now)
            self._read(state, records, now)
            self._counts.records[topic_partition] += records

    def moved(self, topic_partition: TopicPartition, position: int, newest_ms: int | None = None) -> None:
        """Record that all below ``position`` is durable; ``newest_ms`` is the timestamp of the last record there."""
        with self._lock:
            state = self._partitions.get(topic_partition)
            if state is not None and (state.position is None or position > state.position):
                now = self._clock()
                self._recovered(state.moved(position, now, self._written_at(newest_ms, now)))

    def begun(self, topic_partition: TopicPartition) -> None:
        """Record the start of an attempt: its transaction is open until it, or a later one of the partition, ends."""
        with self._lock:
            if topic_partition in self._partitions:
                self._partitions[topic_partition].begun_at = self._clock()

    def skipped(self, records: int) -> None:
        """Count redelivered records that were skipped; 0 makes the counter visible."""
        with self._lock:
            self._counts.duplicates = (self._counts.duplicates or 0) + records

    def rejected(self, reason: str, records: int) -> None:
        """Count records that were rejected outside of a transaction; 0 makes the counter visible."""
        with self._lock:
            self._counts.dead_letters[reason] += records

    def ended(self, end: Ended) -> None:
        with self._lock:
            now = self._clock()
            self._program = replace(self._program, beat_at=now)
            self._counts.ended(end)
            state = self._taken(end.topic_partition, now)
            self._recovered(state.ended(end, now, self._written_at(end.newest_ms, now)))
            if end.ending is Ending.COMMITTED:
                self._read(state, end.records, now)

    def attempted(
        self,
        topic_partition: TopicPartition,
        start: int,
        until: int,
        began_at: float,
        ending: Ending,
        *,
        records: int = 0,
        detail: str = "",
    ) -> None:
        """Record an attempt of a program that does not measure its steps."""
        took = max(0.0, self._wall() - began_at)
        self.ended(Ended(*topic_partition, ending, start, until, records, {}, took, {}, began_at, None, detail))

    def released(self, topic_partitions: Iterable[TopicPartition] | None = None) -> None:
        """Forget partitions that are no longer assigned to this program; None: all of them, as while it stands by."""
        with self._lock:
            if topic_partitions is None:
                self._work_since, self._looked_at, self._without_leader = self._clock(), float("inf"), None
            else:  # the working loop looked
                self._looks(now := self._clock())
                self._program = replace(self._program, beat_at=now)
            for topic_partition in list(self._partitions if topic_partitions is None else topic_partitions):
                self._partitions.pop(topic_partition, None)
            if not self._partitions:  # nothing else would note that brokers answer again
                self._answered()

    def topic_partitions(self) -> list[TopicPartition]:
        with self._lock:
            return sorted(self._partitions)

    def _looks(self, now: float) -> None:
        self._looked_at = min(self._looked_at, now)

    def _taken(self, topic_partition: TopicPartition, now: float) -> Partition:
        state = self._partitions.get(topic_partition)
        if state is None:
            state = self._partitions[topic_partition] = Partition(now, Rate(now))
        state.polled_at = now
        return state

    def _read(self, state: Partition, records: int, now: float) -> None:
        state.records += records
        state.rate.add(records, now)
        self._rate.add(records, now)

    def _written_at(self, time_ms: int | None, now: float) -> float | None:
        """Convert a record's timestamp to the recorder's clock; one in the future counts as now."""
        return None if time_ms is None or time_ms < 0 else now - max(0.0, self._wall() - time_ms / 1000)

    def _recovered(self, seconds: float | None) -> None:
        if seconds is not None:
            self._counts.recovered(seconds)

    def snapshot(self) -> tuple[Status, Counts]:
        """Return status and counts of the same moment."""
        with self._lock:
            return self._status(self._clock()), self._counts.copy()

    def status(self) -> Status:
        with self._lock:
            return self._status(self._clock())

    def _waits(self) -> str:
        """Return the reason if every partition waits for something other than brokers."""
        partitions = list(self._partitions.values())
        if not partitions or any(STORE not in partition.unanswered_since for partition in partitions):
            return ""
        return partitions[0].last_error or "its store does not answer"

    def _status(self, now: float) -> Status:
        subject, program = self.subject, self._program
        partitions = tuple(
            state.to_status(topic_partition, self._bounds, program.fatal, now)
            for topic_partition, state in sorted(self._partitions.items())
        )
        alive = live(program, partitions, self._bounds, now)
        return Status(
            subject.application,
            _version(),
            subject.group,
            subject.topics,
            subject.bootstrap,
            os.getpid(),
            socket.gethostname(),
            _iso(self._began_at),
            _iso(self._wall()),
            state_of(program, partitions),
            subject.reader,
            partitions,
            _totals(self._counts, self._rate.per_s(now), self._without_leader),
            alive,
            ready(program, alive, self._waits()),
            started(program),
        )


def _totals(counts: Counts, rate: float, without_leader: int | None) -> Totals:
    endings = [(ending, count) for (_, ending), count in counts.endings.items()]
    return Totals(
        sum(counts.records.values()),
        round(rate, 3),
        sum(count for ending, count in endings if ending is Ending.COMMITTED),
        sum(counts.dead_letters.values()),
        sum(count for ending, count in endings if ending is Ending.FENCED),
        None if counts.recovery_s is None else round(counts.recovery_s, 3),
        counts.malformed_profiles,
        without_leader,
    )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


@functools.cache
def _version() -> str:
    try:
        return metadata.version("brew")
    except metadata.PackageNotFoundError:  # run from the source, as Spark's executors do
        return "unknown"
