"""Liveness, readiness and start-up of a program, derived from the state of each partition; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from brew.names import quantity
from brew.observability.counters import Ended, Ending, Rate, TopicPartition
from brew.observability.status import (
    UNHEALTHY,
    Answer,
    LastTransaction,
    PartitionState,
    PartitionStatus,
    Phase,
    State,
    Transactions,
)

_NAMED = 3


@dataclass(frozen=True, slots=True)
class Bounds:
    """Seconds before it counts as unhealthy: not polled, no progress with records to read, servers not answering."""

    polling_ttl_s: float
    consuming_ttl_s: float
    unanswered_ttl_s: float


@dataclass(frozen=True, slots=True)
class Program:
    """``beat_at``: last sign of life; ``missing``: deleted output topics, in words; ``fatal``: why no retry helps."""

    phase: Phase
    beat_at: float
    detail: str = ""
    unanswered_reason: str = ""
    fatal: str = ""
    missing: str = ""


def live(program: Program, partitions: Sequence[PartitionStatus], bounds: Bounds, now: float) -> Answer:
    """Answer whether the program is alive: no only if a restart may help, when something is stuck or unrecoverable."""
    if program.fatal:
        return Answer(False, f"unrecoverable: {program.fatal}")
    if program.phase in {Phase.STARTING, Phase.STOPPING, Phase.STOPPED}:
        return Answer(True, _words(program))
    unseen_s = now - program.beat_at
    if unseen_s > bounds.polling_ttl_s:
        return Answer(False, f"nothing was polled for {unseen_s:.0f} s (--polling-ttl {bounds.polling_ttl_s:g})")
    if unhealthy := [partition for partition in partitions if partition.state in UNHEALTHY]:
        named = "; ".join(f"{row.topic}[{row.partition}] is {row.state}: {row.reason}" for row in unhealthy[:_NAMED])
        return Answer(False, named + (f"; and {len(unhealthy) - _NAMED} more" if len(unhealthy) > _NAMED else ""))
    if program.phase is Phase.STANDING_BY:
        return Answer(True, _words(program))
    counts = Counter(partition.state for partition in partitions)
    names = ", ".join(f"{counts[state]} {state}" for state in PartitionState if counts[state])
    return Answer(True, names or "no partition is assigned now")


def ready(program: Program, alive: Answer, waits: str = "") -> Answer:
    """Answer whether it works, or could at once; ``waits``: why each partition waits for a store, if they do."""
    if program.phase not in {Phase.WORKING, Phase.STANDING_BY}:
        return Answer(False, _words(program))
    if program.unanswered_reason:
        return Answer(False, f"the brokers do not answer: {program.unanswered_reason}")
    if program.missing and alive.ok:
        return Answer(False, f"{program.missing}; what is missing is created at the next start")
    if waits and alive.ok:
        return Answer(False, f"every partition waits: {waits}")
    return Answer(alive.ok, alive.reason if not alive.ok else _words(program))


def started(program: Program) -> Answer:
    """Answer whether the checks have passed, and the work or the wait for it has begun."""
    return Answer(program.phase is not Phase.STARTING, _words(program))


def state_of(program: Program, partitions: Sequence[PartitionStatus]) -> State:
    if program.phase is Phase.WORKING:
        return State.IDLE if all(partition.state is PartitionState.IDLE for partition in partitions) else State.WORKING
    return State.IDLE if program.phase is Phase.STANDING_BY else State(program.phase.value)


def _words(program: Program) -> str:
    name = program.phase.value.replace("-", " ")
    return f"{name}: {program.detail}" if program.detail else name


BROKERS = "brokers"
STORE = "store"
"""Servers that may not answer; a partition that waits for both counts as waiting until both answer."""

_BAD = {Ending.ABORTED, Ending.FENCED, Ending.INDEFINITE}


@dataclass(slots=True)
class Partition:
    """
    Times by the recorder's clock; None if the condition does not hold now. ``waiting_since``: there are records to
    read, and the position has not moved. ``blocked_since``: all that is left waits for an open transaction.
    ``unanswered_since``: by server that does not answer. ``failing_since``: start of the failures since the last
    commit. ``begun_at``: start of a transaction whose end was not reported yet. ``oldest_at``: when the oldest
    remaining record was written, approximately: when it was first seen, or when the last record done was written.
    ``fenced``: by a newer holder, nothing committed since. ``last_error``: of an attempt or a server.
    """

    polled_at: float
    rate: Rate
    position: int | None = None
    last_stable: int | None = None
    end: int | None = None
    waiting_since: float | None = None
    blocked_since: float | None = None
    unanswered_since: dict[str, float] = field(default_factory=dict)
    progress_at: float | None = None
    begun_at: float | None = None
    oldest_at: float | None = None
    failing_since: float | None = None
    last_error: str = ""
    fenced: bool = False
    records: int = 0
    last: LastTransaction | None = None
    step: str | None = None
    endings: dict[Ending, int] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        """Number of readable offsets that are not done."""
        if self.last_stable is None or self.position is None:
            return None
        return max(0, self.last_stable - self.position)

    @property
    def held_back(self) -> int:
        """Number of offsets after the last stable offset that are not done."""
        return max(0, (self.end or 0) - max(self.last_stable or 0, self.position or 0))

    def set_end_offsets(self, last_stable: int, end: int, now: float) -> None:
        self.set_answered(BROKERS, now)
        self.last_stable, self.end = last_stable, end
        self.compare(now)

    def set_unanswered(self, server: str, why: str, now: float) -> None:
        self.unanswered_since.setdefault(server, now)
        self.last_error = why
        self.failing_since = now if self.failing_since is None else self.failing_since

    def set_answered(self, server: str, now: float) -> None:
        """Note that a server answers again; the time without it does not count as waiting."""
        if self.unanswered_since.pop(server, None) is not None:
            self.waiting_since, self.last_error = now if self.lag else None, ""

    def moved(self, position: int, now: float, newest_at: float | None = None) -> float | None:
        """Move the position; return the seconds of recovery. ``newest_at``: when the last record done was written."""
        recovered = None if self.failing_since is None else now - self.failing_since
        self.position, self.progress_at = position, now
        self.waiting_since = self.failing_since = None
        self.fenced, self.last_error = False, ""
        self.compare(now)
        self.oldest_at = newest_at
        return recovered

    def ended(self, end: Ended, now: float, newest_at: float | None = None) -> float | None:
        """Note the end of an attempt; return the seconds of a recovery it ended; ``newest_at`` as in `moved`."""
        self.polled_at, self.begun_at = now, None
        self.endings[end.ending] = self.endings.get(end.ending, 0) + 1
        self.step = list(end.steps)[-1] if end.steps else self.step
        until = end.until if end.ending is Ending.COMMITTED else None
        self.last = LastTransaction(
            end.transactional_id, None, None, end.records, round(end.seconds, 6), dict(end.steps), until=until
        )
        self.position = end.start if self.position is None else self.position
        self.last_stable = max(self.last_stable or 0, end.until)  # a planned range is readable
        self.end = max(self.end or 0, self.last_stable)
        if end.ending is Ending.COMMITTED:
            return self.moved(end.until, now, newest_at)
        if end.ending in _BAD:
            self.fenced, self.last_error = end.ending is Ending.FENCED, f"{end.ending}: {end.detail}".rstrip(": ")
            self.failing_since = now if self.failing_since is None else self.failing_since
        self.compare(now)
        return None

    def compare(self, now: float) -> None:
        """Compare position and log: are there records to read, and are they held back?"""
        if self.lag is None:
            return
        if self.lag:
            if self.waiting_since is None:
                self.waiting_since = self.oldest_at = now
        elif not self.unanswered_since:
            self.waiting_since, self.fenced, self.last_error, self.failing_since = None, False, "", None
        blocked = not self.lag and self.held_back > 0
        self.blocked_since = (now if self.blocked_since is None else self.blocked_since) if blocked else None

    def state_and_reason(self, bounds: Bounds, fatal: str, now: float) -> tuple[PartitionState, str]:
        """
        Return the first state whose condition holds; blocked and idle stay healthy however long they last. ``fatal``:
        why no retry can succeed.
        """
        if fatal:
            return PartitionState.UNRECOVERABLE, fatal
        unseen_s = now - self.polled_at
        if unseen_s > bounds.polling_ttl_s:
            reason = f"not polled for {unseen_s:.0f} s (--polling-ttl {bounds.polling_ttl_s:g})"
            return PartitionState.STUCK, reason
        error = f": {self.last_error}" if self.last_error else ""
        if self.unanswered_since:
            unanswered_s, limit_s = now - min(self.unanswered_since.values()), bounds.unanswered_ttl_s
            state = PartitionState.STUCK if unanswered_s > limit_s else PartitionState.BLOCKED
            return state, f"a server has not answered for {unanswered_s:.0f} s (at most {limit_s:g} s){error}"
        if self.blocked_since is not None:
            held_back = f"{quantity(self.held_back, 'offset')} behind an open transaction"
            return PartitionState.BLOCKED, f"{held_back}, for {now - self.blocked_since:.0f} s"
        if self.waiting_since is None:
            return PartitionState.IDLE, "nothing to read"
        still_s = now - self.waiting_since
        left = "an unknown number of offsets" if self.lag is None else quantity(self.lag, "offset")
        if still_s > bounds.consuming_ttl_s:
            limit = f"(--consuming-ttl {bounds.consuming_ttl_s:g})"
            return PartitionState.STUCK, f"{left} to read, no progress for {still_s:.0f} s {limit}{error}"
        if self.fenced:
            return PartitionState.FENCED, f"fenced by a newer producer, nothing committed since{error}"
        return PartitionState.WORKING, f"{left} to read{error}"

    def to_status(self, topic_partition: TopicPartition, bounds: Bounds, fatal: str, now: float) -> PartitionStatus:
        state, reason = self.state_and_reason(bounds, fatal, now)
        return PartitionStatus(
            *topic_partition,
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
            Transactions(**{ending.value: count for ending, count in self.endings.items()}),
            self.last,
            None if self.end is None else self.held_back,
            None if self.begun_at is None else round(now - self.begun_at, 3),
            self._lag_s(now),
        )

    def _lag_s(self, now: float) -> float | None:
        if not self.lag:
            return None if self.lag is None else 0.0
        return None if self.oldest_at is None else round(max(0.0, now - self.oldest_at), 3)
