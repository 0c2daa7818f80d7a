"""State of a group's partition: lag and remaining records; pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable
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


def remaining_records(start: int, until: int, batches: Iterable[RawBatch]) -> Remaining:
    """
    Count the visible records of `[start, until)`, from raw batches in log order; markers may lie above ``until``.

    Reads no further than the count may change. Records without a marker, or not read, count as visible.
    """
    visible, reached, sparse = 0, start, False
    pending: defaultdict[int, int] = defaultdict(int)
    for batch in batches:
        reached = batch.last_offset + 1
        width = reached - batch.base_offset
        inside = min(reached, until) - max(batch.base_offset, start)
        if batch.control:
            count = pending.pop(batch.producer_id, 0)
            visible += count if batch.marker == "commit" else 0
        elif inside > 0:
            count = min(inside, batch.records)
            # Compacted: the header does not say which records are left.
            sparse |= inside < width and batch.records != width
            if count and batch.transactional:
                pending[batch.producer_id] += count
            else:
                visible += count
        if reached >= until and not pending:
            break
    unseen = max(0, until - max(reached, start))
    count = visible + sum(pending.values()) + unseen
    return Remaining(count, exact=not (unseen or pending or sparse))


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


def classify(before: PartitionSnapshot, now: PartitionSnapshot, now_ms: int) -> tuple[State, str]:
    """Return the state by the first rule that matches, and the reason."""
    if outside := _outside(now):
        return State.STUCK, outside
    if now.committed is not None and now.position != before.position:
        return State.WORKING, f"the position moved by {now.position - before.position:+,}"
    if now.remaining.records == 0:
        if now.log.last_stable < now.log.end:
            waiting = quantity(now.log.end - now.log.last_stable, "offset", ",")
            return State.BLOCKED, f"{waiting} behind {_describe_holders(now)}"
        if tail := now.log.end - now.position:
            left = quantity(tail, "offset", ",")
            return State.IDLE, f"only markers and aborted records are left ({left})"
        return State.IDLE, "at the end of the log"
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


def _behind(before: PartitionSnapshot, now: PartitionSnapshot, now_ms: int) -> tuple[State, str]:
    """Classify a partition with remaining records whose position did not move."""
    own = now.own
    if before.log.last_stable <= now.position and (own is None or not own.open):
        # A record is there for a moment before its transaction begins: nothing has waited for the whole time.
        return State.WORKING, "all that is left has become readable since the last snapshot"
    if own is None:
        if now.committed is None:
            why = "no committed offset, and no transaction of the pipeline is known: is it running under this group?"
            return State.STUCK, why
        return State.STUCK, "no progress, and no transaction of the pipeline is known: is it running?"
    age_s = own.age_s(now_ms)
    if own.state in ENDING:
        return State.WORKING, "its transaction is ending"
    if own.state == ONGOING and age_s is not None and age_s * 1000 <= own.timeout_ms:
        return State.WORKING, f"a transaction has been open for {age_s:.1f} s"
    if own.state == ONGOING:
        since = "" if age_s is None else f" for {age_s:.0f} s"
        why = f"its own transaction has been open{since}, longer than its timeout: run `brew doctor`"
        return State.STUCK, why
    was = before.own
    if was is not None and (was.producer_id, was.producer_epoch) != (own.producer_id, own.producer_epoch):
        why = f"attempts begin (epoch {was.producer_epoch} to {own.producer_epoch}), but none commits"
        return State.FENCED, f"{why}: two runs fence each other, or every attempt fails"
    return State.STUCK, "no progress, and no transaction is open: is the pipeline running?"
