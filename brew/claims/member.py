"""A member of a group that coordinates through the claims topic: joins, claims, heartbeats, releases."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from brew.claims.log import Entry, Item, Log
from brew.claims.messages import (
    MAX_INTERVAL_MS,
    MIN_INTERVAL_MS,
    NOTHING,
    SNAPSHOT_KEY,
    UNKNOWN_ID,
    WHOLE_TOPIC,
    ClaimingMessages,
    ClaimingPartition,
    Heartbeat,
    Message,
    ReleaseGroup,
    ReleasingPartition,
    Snapshot,
    decode,
    encode,
)
from brew.claims.state import (
    SNAPSHOT_RECORDS,
    BrokerClock,
    ClaimsView,
    OwnedPartition,
    PartitionOwner,
    RecordEffect,
    Table,
    snapshot_of,
    table_from,
)
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, KafkaFailure, Refused, UsageError


class Plan(NamedTuple):
    """Partitions to claim now, and partitions to release after the current work."""

    claims: list[int]
    release_partitions: list[int]


def plan_claims(
    owned: Mapping[int, OwnedPartition], members: Collection[str], me: str, *, paused: bool, share: bool
) -> Plan:
    """Plan what ``me`` claims and releases; ``paused``: by another client; ``share``: a fair part, instead of all."""
    mine = sorted(p for p, claim in owned.items() if claim.owner == me and not claim.free)
    if paused:
        return Plan([], mine)
    free = sorted(p for p, claim in owned.items() if claim.free)
    if not share:
        return Plan(free, [])
    held = Counter(claim.owner for claim in owned.values() if not claim.free)
    names = sorted({me, *members, *(name for name in held if name is not None)})
    due = fair_counts({name: held[name] for name in names}, len(owned))
    index = 0
    for name in names:
        lacks = max(0, due[name] - held[name])
        if name == me:
            return Plan(free[index : index + lacks], mine[due[me] :])
        index += lacks
    raise AssertionError("a member is among the members")


def fair_counts(held: Mapping[str, int], partitions: int) -> dict[str, int]:
    """Return how many partitions each member should hold; the remainder stays with those that hold the most."""
    each, over = divmod(partitions, len(held))
    order = sorted(held, key=lambda name: (-held[name], name))
    return {name: each + (rank < over) for rank, name in enumerate(order)}


WINDOW = 2 * SNAPSHOT_RECORDS
"""The number of records before the end to search for a snapshot; one is due in half of them."""


def read_to_end(log: Log, deadline: Deadline) -> ClaimsView:
    """
    Return the state at the log's end; the log's `read` continues from there.

    Raises:
        DeadlineExceeded: it took too long.
        Refused: a version that this program does not know.
    """
    bounds = log.bounds(deadline)
    near = {p: (max(first, end - WINDOW), end) for p, (first, end) in bounds.items()}
    read: dict[int, list[Entry]] = {p: [] for p in bounds}
    for entry in log.history(near, deadline):
        read[entry.partition].append(entry)
    tables: dict[int, Table] = {}
    missing: dict[int, tuple[int, int]] = {}
    for partition, entries in read.items():
        snapshot = newest_snapshot(entries)
        tables[partition] = Table(bounds[partition][0]) if snapshot is None else table_from(snapshot)
        missing[partition] = (tables[partition].next, near[partition][0])
    before: dict[int, list[Entry]] = {p: [] for p in bounds}
    for entry in log.history({p: (start, until) for p, (start, until) in missing.items() if start < until}, deadline):
        before[entry.partition].append(entry)
    view = ClaimsView([tables[p] for p in sorted(tables)])
    for partition, table in tables.items():
        start = table.next
        for entry in before[partition] + read[partition]:
            if entry.offset >= start:
                view.apply(entry)
        table.next = max(table.next, bounds[partition][1])
    log.tail(view.ends())
    return view


def newest_snapshot(entries: list[Entry]) -> Snapshot | None:
    """Return the last snapshot among the records, or None."""
    for entry in reversed(entries):
        if entry.key == SNAPSHOT_KEY:
            snapshot = decode(entry.value)
            if isinstance(snapshot, Snapshot) and snapshot.until <= entry.offset:
                return snapshot
    return None


INTERVAL_S = 3.0
"""The default interval within which an owner sends a heartbeat; others take over after two of them."""
HEARTBEATS_PER_INTERVAL = 2
_KEPT_ALIVE = {RecordEffect.REFRESHED, RecordEffect.RESUMED, RecordEffect.ADOPTED}


@dataclass(frozen=True)
class Membership:
    """
    Who takes part in what. ``partitions``: those that may be claimed; `(WHOLE_TOPIC,)` claims a topic as a whole, and
    is never shared. ``client_id``: keep it across restarts if the process should take its partitions back at once.
    ``works``: False for an administrator, who gets no share. ``topic_id``: if it reads from the log's position.
    ``resumes``: False if what its ``client_id`` owns is another process's, because this one has left before.
    """

    client_id: str
    group_id: str
    topic: str
    partitions: tuple[int, ...]
    interval_s: float = INTERVAL_S
    works: bool = True
    topic_id: str = UNKNOWN_ID
    resumes: bool = True

    def __post_init__(self) -> None:
        if not MIN_INTERVAL_MS <= self.interval_ms <= MAX_INTERVAL_MS:
            raise UsageError(
                f"the heartbeat interval is {self.interval_s:g} s, and may be {MIN_INTERVAL_MS / 1000:g} to "
                f"{MAX_INTERVAL_MS / 1000:g} s; set --heartbeat-interval-s"
            )
        encode(self._presence())

    @property
    def interval_ms(self) -> int:
        return round(self.interval_s * 1000)

    @property
    def share(self) -> bool:
        return self.partitions != (WHOLE_TOPIC,)

    @property
    def sender(self) -> tuple[str, str, str]:
        """The first fields of all messages about partitions: client, group and topic."""
        return self.client_id, self.group_id, self.topic

    def presence(self) -> list[Message]:
        """Return the member's own heartbeat; nothing for one that does not work."""
        return [self._presence()] if self.works else []

    def _presence(self) -> Heartbeat:
        return Heartbeat(*self.sender, None, NOTHING, NOTHING, self.interval_ms, resume=False)


@dataclass(frozen=True, slots=True)
class Holding:
    """
    A partition that this member owns: its fencing token, and the position that the log has or will be sent.
    ``confirmed_until``: monotonic seconds; after that no heartbeat counted for two intervals, and others may own it.
    ``topic_id``: of the topic that the position belongs to; `UNKNOWN_ID` if nobody said.
    """

    token: int
    position: int
    confirmed_until: float
    topic_id: str = UNKNOWN_ID


class Member:
    """Holds partitions by claim; it holds only what it has read back from the log."""

    def __init__(self, log: Log, membership: Membership, now: Callable[[], float] = time.monotonic) -> None:
        self._log, self.membership, self._now = log, membership, now
        self.clock = BrokerClock(now)
        self.holdings: dict[int, Holding] = {}
        self.to_release: frozenset[int] = frozenset()
        self._next_heartbeat_at = self._may_claim_at = -math.inf

    def join(self, deadline: Deadline) -> None:
        """Read to the end, announce this member, and take back what its ``client_id`` still owns, if it `resumes`."""
        self.view = read_to_end(self._log, deadline)
        for partition, table in enumerate(self.view.tables):
            self.clock.observe(partition, table.clock)
        if self.view.partial:
            self._may_claim_at = self._now() + 2 * self.membership.interval_s
        self._write(self.membership.presence(), deadline)
        self._check_division(deadline)
        if not self.membership.resumes:
            return
        me = self.membership.client_id
        mine = {p: owned for p, owned in self.owned().items() if owned.owner == me and not owned.free}
        self._send_heartbeats(
            {p: Holding(owned.token, owned.position, -math.inf) for p, owned in mine.items()}, deadline, resume=True
        )

    def _check_division(self, deadline: Deadline) -> None:
        """Refuse to join if others claim the topic as a whole and this member would share it, or the reverse."""
        membership = self.membership
        partitions = self.view.claimed_partitions(membership.group_id, membership.topic) if membership.works else []
        others = [p for p in partitions if (p == WHOLE_TOPIC) is membership.share]
        for owned in self.view.owned(membership.group_id, membership.topic, others, self.clock).values():
            if not owned.free and owned.owner != membership.client_id:
                self.leave(deadline)
                theirs, ours = ("as a whole", "divided") if membership.share else ("divided", "as a whole")
                raise Refused(
                    f"{owned.owner!r} of group {membership.group_id!r} works on {membership.topic} {theirs}, and "
                    f"{membership.client_id!r} would take it {ours}: choose one way for all, "
                    "stand-by or share, or name another group or claims topic (--claims)"
                )

    def turn(self, deadline: Deadline) -> bool:
        """
        Send due heartbeats, apply new records, claim what is due; updates `holdings` and `to_release`. Returns whether
        heartbeats were due: a turn without them succeeds even if no broker answers.
        """
        due = self._now() >= self._next_heartbeat_at
        if due:
            self._next_heartbeat_at = self._now() + self.membership.interval_s / HEARTBEATS_PER_INTERVAL
            self._send_heartbeats(dict(self.holdings), deadline)  # drops what others took meanwhile
        else:
            self._apply(self._log.read({}, deadline))
        paused_by = self.view.paused_by(self.membership.group_id, self.clock)
        members = self.view.members(self.membership.group_id, self.membership.topic, self.clock)
        plan = plan_claims(
            self.owned(),
            members,
            self.membership.client_id,
            paused=paused_by not in {None, self.membership.client_id},
            share=self.membership.share,
        )
        self.to_release = frozenset(plan.release_partitions) & self.holdings.keys()
        if plan.claims and self._now() >= self._may_claim_at:
            self.claim(plan.claims, deadline)
        return due

    def read_new(self, deadline: Deadline) -> None:
        """Apply new records, and nothing else."""
        self._apply(self._log.read({}, deadline))

    def owned(self) -> dict[int, OwnedPartition]:
        return self.view.owned(self.membership.group_id, self.membership.topic, self.membership.partitions, self.clock)

    def held(self) -> dict[int, Holding]:
        """Return the holdings that are certain now."""
        return {p: holding for p, holding in self.holdings.items() if self._now() < holding.confirmed_until}

    def claim(self, partitions: Sequence[int], deadline: Deadline) -> list[int]:
        """Claim the partitions together, read back, send heartbeats at once; return those that were granted."""
        membership, sent = self.membership, self._now()
        messages = [
            ClaimingPartition(*membership.sender, p, membership.interval_ms, membership.topic_id) for p in partitions
        ]
        written = self._write(messages, deadline)
        gained = {}
        for partition, (answer, offset) in zip(partitions, written, strict=True):
            owner = self._own_entry(partition, offset)
            if answer is RecordEffect.GRANTED and owner is not None:
                gained[partition] = Holding(offset, owner.position, sent + 2 * membership.interval_s, owner.topic_id)
        self.holdings |= gained
        self._send_heartbeats(gained, deadline)
        return [p for p in gained if p in self.holdings]

    def progress(self, done: Mapping[int, Holding]) -> None:
        """Record that these holdings are processed up to their positions; the next heartbeat reports it."""
        for partition, reached in done.items():
            if self._still_holds(partition, reached):
                mine = self.holdings[partition]  # messages that were claimed are never worked on again
                self.holdings[partition] = replace(mine, position=max(mine.position, reached.position))

    def _still_holds(self, partition: int, holding: Holding) -> bool:
        return partition in self.holdings and self.holdings[partition].token == holding.token

    def claim_messages(self, partition: int, holding: Holding, proposed: int, deadline: Deadline) -> bool:
        """Claim everything below ``proposed``, read back, verify, heartbeat; work on it is allowed only after True."""
        if not self._still_holds(partition, holding) or partition not in self.held():
            return False
        message = ClaimingMessages(*self.membership.sender, partition, proposed, holding.token)
        [(answer, _)] = self._write([message], deadline)
        if answer is not RecordEffect.ADVANCED or not self._still_holds(partition, holding):
            return False
        self.progress({partition: replace(holding, position=proposed)})
        self._send_heartbeats({partition: self.holdings[partition]}, deadline)
        return self._still_holds(partition, holding) and partition in self.held()

    def release_partitions(self, done: Mapping[int, Holding], deadline: Deadline) -> None:
        """Release these holdings at their positions, except those lost meanwhile."""
        ours = {p: position for p, position in done.items() if self._still_holds(p, position)}
        for partition in ours:
            del self.holdings[partition]
        self.to_release -= ours.keys()
        sender = self.membership.sender
        releases = [ReleasingPartition(*sender, p, owned.position, owned.token) for p, owned in ours.items()]
        self._write(releases, deadline)

    def leave(self, deadline: Deadline) -> None:
        """Release everything held, and the membership."""
        self.release_partitions(dict(self.holdings), deadline)
        self._write([ReleasingPartition(*self.membership.sender, None, NOTHING, NOTHING)], deadline)

    def pause_group(self, for_s: float, deadline: Deadline) -> None:
        """Pause the whole group for this time, by the brokers' clock; 0 ends a pause."""
        membership = self.membership
        self._write([ReleaseGroup(membership.client_id, membership.group_id, 0)], deadline)
        if for_s > 0:
            latest = max(self.clock.now_ms(p) for p in range(self._log.partitions))
            self._write([ReleaseGroup(membership.client_id, membership.group_id, latest + int(for_s * 1000))], deadline)

    def _send_heartbeats(self, holdings: Mapping[int, Holding], deadline: Deadline, *, resume: bool = False) -> None:
        """Send heartbeats for these holdings and the member; those whose record counted are sure for two intervals."""
        membership, sent = self.membership, self._now()
        heartbeats: list[Message] = [
            Heartbeat(*membership.sender, p, holding.position, holding.token, membership.interval_ms, resume)
            for p, holding in holdings.items()
        ]
        written = self._write([*heartbeats, *membership.presence()], deadline)
        for (partition, holding), (answer, offset) in zip(holdings.items(), written, strict=False):
            token = offset if answer is RecordEffect.RESUMED else holding.token
            owner = self._own_entry(partition, token)
            if answer in _KEPT_ALIVE and owner is not None:
                position = max(owner.position, holding.position)
                self.holdings[partition] = Holding(token, position, sent + 2 * membership.interval_s, owner.topic_id)

    def _write(self, messages: Iterable[Message], deadline: Deadline) -> list[tuple[RecordEffect, int]]:
        """Append, read back, and return each message's effect in the fold and its offset (of the first copy)."""
        items: list[Item] = []
        first = []
        for message in messages:
            first.append(len(items))
            items += [Item(p, *encode(message)) for p in self._coordinating_partitions(message)]
        if not items:
            return []
        appended = self._log.append(items, deadline)
        for entry in appended:
            if entry.offset < self.view.tables[entry.partition].next:
                raise Refused(
                    f"partition {entry.partition} of the claims topic has shrunk to offset {entry.offset}: it was "
                    "recreated or emptied; restart this process"
                )
            self.clock.observe(entry.partition, entry.time_ms)
        until = {entry.partition: entry.offset + 1 for entry in appended}
        answers = self._apply(self._log.read(until, deadline))
        self._snapshot_if_due(deadline)
        return [(answers[appended[index].partition, appended[index].offset], appended[index].offset) for index in first]

    def _coordinating_partitions(self, message: Message) -> Iterable[int]:
        partition = getattr(message, "partition", None)
        if partition is None:
            return range(self._log.partitions)
        return [self.view.coordinating_partition(self.membership.topic, partition)]

    def _apply(self, entries: Sequence[Entry]) -> dict[tuple[int, int], RecordEffect]:
        """Apply the records, and drop what the log now gives to others."""
        answers = {}
        for entry in entries:
            answers[entry.partition, entry.offset] = self.view.apply(entry)
            self.clock.observe(entry.partition, entry.time_ms)
        for partition, holding in list(self.holdings.items()):
            if self._own_entry(partition, holding.token) is None:
                del self.holdings[partition]
        return answers

    def _own_entry(self, partition: int, token: int) -> PartitionOwner | None:
        """Return the partition's entry if this member owns it by this token."""
        me, group, topic = self.membership.sender
        table = self.view.tables[self.view.coordinating_partition(topic, partition)]
        owner = table.owners.get((group, topic, partition))
        return owner if owner is not None and (owner.client_id, owner.token) == (me, token) else None

    def _snapshot_if_due(self, deadline: Deadline) -> None:
        due = [p for p, table in enumerate(self.view.tables) if table.snapshot_due]
        if due:
            taken = [Item(p, *encode(snapshot_of(self.view.tables[p], self.membership.client_id))) for p in due]
            with contextlib.suppress(DeadlineExceeded, KafkaFailure):  # another write will find it due again
                self._log.append(taken, deadline)
