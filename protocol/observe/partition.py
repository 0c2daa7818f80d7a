"""What is known of one partition since it was taken over; a pure fold, the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.observe.counts import Ended, Ending, Place, Rate
from protocol.observe.liveness import Bounds, Vitals, judge
from protocol.observe.status import LastTransaction, PartitionStatus, Transactions

BROKERS = "brokers"
STORE = "store"
"""Servers that may be away; what is away twice is away until both are back."""

_BAD = {Ending.ABORTED, Ending.FENCED, Ending.INDEFINITE}


@dataclass(slots=True)
class Partition:
    """
    Times by the recorder's clock; ``trouble_since`` is when the row of failures began that a commit will end.

    ``begun_at``: when the transaction began of whose end nobody told yet. ``oldest_at``: when the oldest record was
    written that is left, as near as is known: since it is seen, or as the last one that is done.
    """

    polled_at: float
    rate: Rate
    position: int | None = None
    last_stable: int | None = None
    end: int | None = None
    waiting_since: float | None = None
    blocked_since: float | None = None
    away: dict[str, float] = field(default_factory=dict)
    progress_at: float | None = None
    begun_at: float | None = None
    oldest_at: float | None = None
    trouble_since: float | None = None
    trouble: str = ""
    fenced: bool = False
    records: int = 0
    last: LastTransaction | None = None
    step: str | None = None
    endings: dict[Ending, int] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """Offsets that can be read and are not done."""
        if self.last_stable is None or self.position is None:
            return None
        return max(0, self.last_stable - self.position)

    @property
    def held_back(self) -> int:
        """Offsets behind the last stable one that are not done."""
        return max(0, (self.end or 0) - max(self.last_stable or 0, self.position or 0))

    def stands(self, last_stable: int, end: int, now: float) -> None:
        """The brokers told where the log stands."""
        self.back(BROKERS, now)
        self.last_stable, self.end = last_stable, end
        self.compare(now)

    def gone(self, server: str, why: str, now: float) -> None:
        """A server did not answer."""
        self.away.setdefault(server, now)
        self.trouble = why
        self.trouble_since = now if self.trouble_since is None else self.trouble_since

    def back(self, server: str, now: float) -> None:
        """A server answers again; time without an answer was no time to work."""
        if self.away.pop(server, None) is not None:
            self.waiting_since, self.trouble = now if self.lag else None, ""

    def moved(self, position: int, now: float, newest_at: float | None = None) -> float | None:
        """
        All below is done; the seconds that this took to recover, where there was trouble.

        ``newest_at``: when the last record below was written; what is left is not older, where times rise with offsets.
        """
        recovered = None if self.trouble_since is None else now - self.trouble_since
        self.position, self.progress_at = position, now
        self.waiting_since = self.trouble_since = None
        self.fenced, self.trouble = False, ""
        self.compare(now)
        self.oldest_at = newest_at if self.lag else None
        return recovered

    def ended(self, end: Ended, now: float, newest_at: float | None = None) -> float | None:
        """An attempt ended; the seconds that a recovery took, where it ended one; ``newest_at`` as for `moved`."""
        self.polled_at, self.begun_at = now, None
        self.endings[end.ending] = self.endings.get(end.ending, 0) + 1
        self.step = list(end.steps)[-1] if end.steps else self.step
        self.last = LastTransaction(
            end.transactional_id, None, None, end.records, round(end.seconds, 6), dict(end.steps)
        )
        self.position = end.start if self.position is None else self.position
        self.last_stable = max(self.last_stable or 0, end.until)  # what was planned can be read
        self.end = max(self.end or 0, self.last_stable)
        if end.ending is Ending.COMMITTED:
            return self.moved(end.until, now, newest_at)
        if end.ending in _BAD:
            self.fenced, self.trouble = end.ending is Ending.FENCED, f"{end.ending}: {end.detail}".rstrip(": ")
            self.trouble_since = now if self.trouble_since is None else self.trouble_since
        self.compare(now)
        return None

    def compare(self, now: float) -> None:
        """Position against log: is there something to do, and does somebody hold it back."""
        if self.lag is None:
            return
        if self.lag:
            if self.waiting_since is None:
                self.waiting_since = self.oldest_at = now
        elif not self.away:
            self.waiting_since, self.fenced, self.trouble, self.trouble_since = None, False, "", None
        blocked = not self.lag and self.held_back > 0
        self.blocked_since = (now if self.blocked_since is None else self.blocked_since) if blocked else None

    def told(self, place: Place, bounds: Bounds, fatal: str, now: float) -> PartitionStatus:
        """The partition as the document shows it."""
        since = (self.polled_at, self.waiting_since, self.blocked_since, min(self.away.values(), default=None))
        vitals = Vitals(*since, self.held_back, self.lag, self.fenced, self.trouble, fatal)
        state, reason = judge(vitals, bounds, now)
        count = self.endings.get
        return PartitionStatus(
            *place,
            state,
            reason,
            self.position,
            self.last_stable,
            self.lag,
            self.records,
            round(self.rate.per_s(now), 3),
            self.step,
            round(now - self.polled_at, 3),
            None if self.progress_at is None else round(now - self.progress_at, 3),
            Transactions(
                count(Ending.COMMITTED, 0),
                count(Ending.ABORTED, 0),
                count(Ending.FENCED, 0),
                count(Ending.REFUSED, 0),
                count(Ending.INDEFINITE, 0),
            ),
            self.last,
            None if self.end is None else self.held_back,
            None if self.begun_at is None else round(now - self.begun_at, 3),
            self._lag_s(now),
        )

    def _lag_s(self, now: float) -> float | None:
        if not self.lag:
            return None if self.lag is None else 0.0
        return None if self.oldest_at is None else round(max(0.0, now - self.oldest_at), 3)
