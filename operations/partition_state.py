"""State of a group's partition: lag and remaining records; pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from dataclasses import dataclass

from brew.cluster import ENDING, ONGOING, CoordinatorTransaction, OpenTransaction, RawBatch
from brew.names import quantity
from brew.offsets import Committed, LogOffsets


@dataclass(frozen=True, slots=True)
class Remaining:
    """Number of records left to read; an upper bound unless ``exact``."""

    records: int
    exact: bool = True

    def __str__(self) -> str:
        return f"{self.records:,}" if self.exact else f"at most {self.records:,}"


class RemainingRecordsCounter:
    """Counts the visible records of `[start, until)` from raw batches in log order; markers may lie above ``until``."""

    def __init__(self, start: int, until: int) -> None:
        self._start, self._until = start, until
        self._visible = 0
        self._pending: defaultdict[int, int] = defaultdict(int)
        self._sparse = False
        self._reached = start

    def add(self, batch: RawBatch) -> None:
        self._reached = batch.last_offset + 1
        if batch.control:
            count = self._pending.pop(batch.producer_id, 0)
            if batch.marker == "commit":
                self._visible += count
        elif count := self._inside(batch):
            if batch.transactional:
                self._pending[batch.producer_id] += count
            else:
                self._visible += count

    def _inside(self, batch: RawBatch) -> int:
        width = batch.last_offset - batch.base_offset + 1
        inside = min(batch.last_offset, self._until - 1) - max(batch.base_offset, self._start) + 1
        if inside <= 0:
            return 0
        if inside == width:
            return batch.records
        self._sparse |= batch.records != width  # compacted: the header does not say which records are left
        return min(inside, batch.records)

    @property
    def settled(self) -> bool:
        """True once no later batch can change the count."""
        return self._reached >= self._until and not self._pending

    def remaining(self) -> Remaining:
        """Return the count so far; records without a marker, or not yet read, count as visible."""
        unseen = max(0, self._until - max(self._reached, self._start))
        count = self._visible + sum(self._pending.values()) + unseen
        return Remaining(count, self.settled and not self._sparse)


class State(enum.StrEnum):
    """State of a partition; `stuck` and `fenced` need attention."""

    IDLE = "idle"
    WORKING = "working"
    BLOCKED = "blocked"
    FENCED = "fenced"
    STUCK = "stuck"


@dataclass(frozen=True, slots=True)
class PartitionSnapshot:
    """One partition at one moment; ``holders`` hold back its last stable offset; ``own``: the group's transaction."""

    partition: int
    log: LogOffsets
    committed: Committed | None
    remaining: Remaining
    holders: tuple[OpenTransaction, ...] = ()
    own: CoordinatorTransaction | None = None
    oldest_ms: int | None = None

    def lag_s(self, now_ms: int) -> float | None:
        """Age of the oldest remaining record in seconds, by this machine's clock; 0 if none, None if unknown."""
        if self.remaining.records == 0:
            return 0.0
        return None if self.oldest_ms is None else max(0.0, (now_ms - self.oldest_ms) / 1000)

    @property
    def position(self) -> int:
        """The next offset to read: the committed one, or else the log start."""
        return self.log.first if self.committed is None else self.committed.offset

    @property
    def outside(self) -> bool:
        """True if the committed offset is not in the log: retention has passed it, or the topic is another one."""
        return self.committed is not None and not self.log.first <= self.committed.offset <= self.log.end


@dataclass(frozen=True, slots=True)
class StateReason:
    state: State
    why: str


def classify(before: PartitionSnapshot, now: PartitionSnapshot, now_ms: int) -> StateReason:
    """Return the state by the first rule that matches."""
    if outside := _outside(now):
        return StateReason(State.STUCK, outside)
    if now.committed is not None and now.position != before.position:
        return StateReason(State.WORKING, f"the position moved by {now.position - before.position:+,}")
    if now.remaining.records == 0:
        if now.log.last_stable < now.log.end:
            waiting = quantity(now.log.end - now.log.last_stable, "offset", ",")
            return StateReason(State.BLOCKED, f"{waiting} behind {_describe_holders(now)}")
        if tail := now.log.end - now.position:
            left = quantity(tail, "offset", ",")
            return StateReason(State.IDLE, f"only markers and aborted records are left ({left})")
        return StateReason(State.IDLE, "at the end of the log")
    return _behind(before, now, now_ms)


def _outside(now: PartitionSnapshot) -> str | None:
    if now.committed is None or not now.outside:
        return None
    kind = "input-lost" if now.committed.offset < now.log.first else "offset-ahead"
    return f"{kind}: the committed offset {now.committed.offset} is outside the log [{now.log.first}, {now.log.end}]"


def _describe_holders(now: PartitionSnapshot) -> str:
    if not now.holders:
        return "an open transaction; the brokers did not report its producer"
    first = now.holders[0]
    age = "" if first.age_s is None else f", open for {first.age_s:.0f} s"
    more = f" and {len(now.holders) - 1} more" if len(now.holders) > 1 else ""
    name = repr(first.transactional_id) if first.transactional_id else "an unknown transactional id"
    return f"{name} (producer {first.producer_id}, epoch {first.producer_epoch}{age}){more}"


def _behind(before: PartitionSnapshot, now: PartitionSnapshot, now_ms: int) -> StateReason:
    """Classify a partition with remaining records whose position did not move."""
    own = now.own
    if before.log.last_stable <= now.position and (own is None or not own.open):
        # A record is there for a moment before its transaction begins: nothing has waited for the whole time.
        return StateReason(State.WORKING, "all that is left has become readable since the last snapshot")
    if own is None:
        if now.committed is None:
            why = "no committed offset, and no transaction of the pipeline is known: is it running under this group?"
            return StateReason(State.STUCK, why)
        return StateReason(State.STUCK, "no progress, and no transaction of the pipeline is known: is it running?")
    age_s = own.age_s(now_ms)
    if own.state in ENDING:
        return StateReason(State.WORKING, "its transaction is ending")
    if own.state == ONGOING and age_s is not None and age_s * 1000 <= own.timeout_ms:
        return StateReason(State.WORKING, f"a transaction has been open for {age_s:.1f} s")
    if own.state == ONGOING:
        since = "" if age_s is None else f" for {age_s:.0f} s"
        why = f"its own transaction has been open{since}, longer than its timeout: run `brew doctor`"
        return StateReason(State.STUCK, why)
    was = before.own
    if was is not None and (was.producer_id, was.producer_epoch) != (own.producer_id, own.producer_epoch):
        why = f"attempts begin (epoch {was.producer_epoch} to {own.producer_epoch}), but none commits"
        return StateReason(State.FENCED, f"{why}: two runs fence each other, or every attempt fails")
    return StateReason(State.STUCK, "no progress, and no transaction is open: is the pipeline running?")
