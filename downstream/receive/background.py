"""Work beside the consume loop: a thread with an end, and the clean-up of old claims."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from downstream.consume.handler import Later
from downstream.postgres import Database, DatabaseSettings
from protocol.deadline import Deadline
from protocol.errors import Refused, UsageError

_CHUNK = 5000
_PAUSE_S = 1.0
_SECONDS_A_DAY = 86_400


class Background:
    """A thread that works in rounds until stopped; what it can't get over leaves from `check`."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s = every_s
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def round(self) -> bool:
        """Do some work; True when there is more at once. `Later` is passed over."""
        raise NotImplementedError

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise what has ended the thread, if anything has."""
        if self._error is not None:
            raise self._error

    def stop(self, deadline: Deadline) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(deadline.remaining_s())

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    more = self.round()
                except Later:
                    more = False
                    self._stop.wait(_PAUSE_S)
                if not more:
                    self._stop.wait(self._every_s)
        except Exception as error:  # noqa: BLE001 - carried to the loop's thread
            self._error = error


@dataclass(frozen=True, slots=True)
class Kept:
    """
    How long a topic can hand a record out, by its `retention.ms` (None: for ever) and its `segment.ms`, in seconds.

    Kafka deletes whole segments: a segment's first record stays until the last one, up to `segment.ms` younger, is old.
    """

    retention_s: float | None
    segment_s: float

    @property
    def longest_s(self) -> float | None:
        return None if self.retention_s is None else self.retention_s + self.segment_s

    @property
    def way_out(self) -> str:
        """What to set so that claims outlive records."""
        forever = "give 0 to keep claims for ever"
        if self.longest_s is None:
            return forever
        return f"raise --keep-days above {self.longest_s / _SECONDS_A_DAY:g}, lower segment.ms, or {forever}"

    def __str__(self) -> str:
        if self.longest_s is None or self.retention_s is None:
            return "for ever"
        parts = (("", self.longest_s), ("retention.ms ", self.retention_s), ("segment.ms ", self.segment_s))
        whole, retention, segment = (f"{name}{seconds / _SECONDS_A_DAY:g} days" for name, seconds in parts)
        return f"for up to {whole} ({retention}, {segment})"


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long claims are kept, in seconds; None for ever. ``every_s`` is the time between two clean-ups."""

    keep_s: float | None
    every_s: float = 60.0

    @classmethod
    def longer_than(cls, days: float, kept: Kept, topic: str) -> Keeping:
        """
        ``days``, 0 for ever, if that is longer than the topic keeps its records.

        Raises:
            Refused: a claim would be forgotten while its message can still be delivered again.
        """
        if days < 0:
            raise UsageError(f"--keep-days is {days:g}: give days, or 0 for ever")
        if days == 0:
            return cls(None)
        if kept.longest_s is None or days * _SECONDS_A_DAY <= kept.longest_s:
            raise Refused(
                f"claims would be kept for {days:g} days, and {topic!r} keeps its records {kept}: a message could come "
                f"again when nobody knows it any more; {kept.way_out}"
            )
        return cls(days * _SECONDS_A_DAY)


class CleanUp(Background):
    """
    Deletes a group's old claims and delivered outbox rows, a few thousand per transaction, in a session of its own.

    Other groups of the same tables may read topics that keep their records longer.
    """

    def __init__(self, settings: DatabaseSettings, group: str, keeping: Keeping) -> None:
        super().__init__("clean-up", keeping.every_s)
        self._database, self._group, self._keeping = Database(settings, "brew-clean-up"), group, keeping

    def round(self) -> bool:
        if self._keeping.keep_s is None:
            return False
        removed = 0
        for table, column in (("processed_messages", "processed_at"), ("outbox", "sent_at")):
            chosen = f"consumer_group = %s AND {column} < now() - make_interval(secs => %s)"
            old = f"SELECT ctid FROM {table} WHERE {chosen} LIMIT {_CHUNK}"  # noqa: S608 - names of ours
            statement = f"DELETE FROM {table} WHERE ctid = ANY(ARRAY({old}))"  # noqa: S608 - the same
            with self._database.transaction(self._database.patience()) as connection:
                removed += connection.execute(statement.encode(), [self._group, self._keeping.keep_s]).rowcount
        return removed > 0

    def stop(self, deadline: Deadline) -> None:
        super().stop(deadline)
        self._database.close()
