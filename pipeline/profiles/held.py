"""The table that a process holds: read to the end before its first transaction, and on before each later one."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Mapping

from pipeline.profiles.table import Table
from pipeline.settings import ProfilesSettings
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Fatal, Refused
from protocol.kafka.whole import WholeTopic

_TELL_S = 2.0
_LEAVE_S = 1.0
_ASK_S = 5.0


class Held:
    """One topic's table, shared by all threads of one process."""

    def __init__(self, connection: Connection, group: str, settings: ProfilesSettings) -> None:
        self._connection, self._group, self._settings = connection, group, settings
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._asked_at = float("-inf")
        self._source: WholeTopic | None = None
        self._table = Table()
        self.loaded = False

    def ready(self, timeout_s: float) -> Table:
        """
        The table, with every profile that was visible when this was called; loading it the first time.

        A transaction takes longer than one question about the topic's end, so an order that was written after its
        customer's profile is enriched with that profile, or with a newer one.

        Raises:
            DeadlineExceeded: it could not be read in time; what was read is kept, and the next call goes on.
            Refused, KafkaFailure: the topic is not there, or can't be read.
        """
        arrived = time.monotonic()
        deadline = Deadline(timeout_s if self.loaded else self._settings.load_timeout_s)
        if not self._lock.acquire(timeout=deadline.remaining_s()):
            raise DeadlineExceeded(f"profiles: another thread has been reading them for {deadline.budget_s:g} s")
        try:
            if self._asked_at < arrived:  # else somebody asked for the end while this one waited
                self._read(deadline)
        except (Fatal, Refused):
            self._forget()
            raise
        else:
            return self._table
        finally:
            self._lock.release()

    def _read(self, deadline: Deadline) -> None:
        if self._stop.is_set():
            raise DeadlineExceeded("profiles: left because the run stops")
        began = time.monotonic()
        asking = deadline.part(_ASK_S)  # a stop is not heard meanwhile
        if self._source is None:
            self._source = WholeTopic(self._connection, self._settings.topic, self._group, asking)
        source, table = self._source, self._table
        ends = source.ends(asking)
        if any(end < source.positions[partition] for partition, end in ends.items()):
            raise Fatal(f"profiles: {source.topic} ends before what was read of it: it was made again, or cut off")
        malformed = table.malformed
        progress = _Progress(source.topic, ends, began)
        for batch in source.read(ends, deadline, self._stop):
            for record in batch:
                table.take(source.topic, record.partition(), record.offset(), record.key(), record.value())
            if not self.loaded:
                progress.told(source.positions)
        table.read_to(source.positions)
        if table.malformed > malformed:
            _say(f"profiles: {table.malformed} records are no profiles, their customers have none, first "
                 f"{'; '.join(table.complaints)}")  # fmt: skip
        if not self.loaded:
            progress.ended(len(table.entries))
        self._asked_at, self.loaded = began, True

    def _forget(self) -> None:
        """Begin anew the next time."""
        if self._source is not None:
            self._source.close()
        self._source, self._table, self.loaded = None, Table(), False

    def close(self) -> None:
        """Give a load up that runs, and let the client go."""
        self._stop.set()
        if self._lock.acquire(timeout=_LEAVE_S):
            self._forget()
            self._lock.release()


class _Progress:
    """Says on stderr how far a load is that takes its time."""

    def __init__(self, topic: str, ends: Mapping[int, int], began: float) -> None:
        self._topic, self._ends, self._began = topic, ends, began
        self._next = began + _TELL_S

    def told(self, positions: Mapping[int, int]) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _TELL_S
            done = sum(min(positions[p], end) for p, end in self._ends.items())
            _say(f"profiles: {self._topic} read to {done:,} of {sum(self._ends.values()):,} offsets")

    def ended(self, customers: int) -> None:
        _say(f"profiles: {customers:,} customers of {self._topic} held, {time.monotonic() - self._began:.1f} s")


def _say(text: str) -> None:
    sys.stderr.write(f"pipeline: {text}\n")
    sys.stderr.flush()


_all: dict[tuple[int, str, str], Held] = {}
_guard = threading.Lock()


def ready(settings: ProfilesSettings, connection: Connection, group: str, timeout_s: float) -> Table:
    """The table of this process; as `Held.ready`."""
    # Spark forks its workers, so the process is part of the key.
    key = (os.getpid(), connection.bootstrap, settings.topic)
    with _guard:
        held = _all.get(key)
        if held is None:
            held = _all[key] = Held(connection, group, settings)
    return held.ready(timeout_s)


def let_go(*, loading_only: bool = False) -> None:
    """Close what this process holds; ``loading_only``: give up loads that run, and keep what is loaded."""
    with _guard:
        gone = [key for key, held in _all.items() if not (loading_only and held.loaded)]
        given = [_all.pop(key) for key in gone]
    for held in given:
        held.close()
