"""Who owns what: a pure fold over the claims topic, whose readers all have the same table, and its snapshots."""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from brew.claims.log import Entry
from brew.claims.messages import (
    MAX_INTERVAL_MS,
    NOTHING,
    UNKNOWN_ID,
    ClaimingMessages,
    ClaimingPartition,
    Heartbeat,
    Message,
    ReleaseGroup,
    ReleasingPartition,
    Snapshot,
    coordinating_partition,
    decode,
)
from brew.errors import Refused

SNAPSHOT_RECORDS = 10_000
SNAPSHOT_MS = 3_600_000
PARTIAL_MS = 2 * MAX_INTERVAL_MS
"""How long a fold that began in the middle of a log counts as partial."""


class Status(enum.StrEnum):
    """How old an owner's last heartbeat is, in its own intervals."""

    FRESH = "fresh"
    UNKNOWN = "unknown"
    STALE = "stale"


class RecordEffect(enum.StrEnum):
    GRANTED = "granted"
    HELD = "held"
    PAUSED = "paused"
    REFRESHED = "refreshed"
    RESUMED = "resumed"
    RELEASED = "released"
    ADVANCED = "advanced"
    BEHIND = "behind"
    LATE = "late"
    ADOPTED = "adopted"
    NOTED = "noted"
    UNREADABLE = "unreadable"


def status(last_heartbeat_ms: int, interval_ms: int, now: int) -> Status:
    """Return fresh below one interval, unknown up to two, stale beyond; a heartbeat in the future is fresh."""
    age = now - last_heartbeat_ms
    if age < interval_ms:
        return Status.FRESH
    return Status.UNKNOWN if age <= 2 * interval_ms else Status.STALE


GroupPartition = tuple[str, str, int]
"""An input partition, for one group: group, topic and partition."""


@dataclass(slots=True)
class PartitionOwner:
    """
    The owner of a partition; ``client_id`` is None if it was released. Times in ms of the brokers' clock.
    ``last_heartbeat_ms``: also set by a claim and by a claim of messages. ``topic_id``: of the topic that the position
    belongs to; `UNKNOWN_ID` if nobody said.
    """

    client_id: str | None
    token: int
    last_heartbeat_ms: int
    interval_ms: int
    position: int
    topic_id: str = UNKNOWN_ID

    def status(self, now: int) -> Status:
        return status(self.last_heartbeat_ms, self.interval_ms, now)


@dataclass(slots=True)
class Presence:
    """The last heartbeat of a member itself, in ms of the brokers' clock."""

    last_heartbeat_ms: int
    interval_ms: int

    def status(self, now: int) -> Status:
        return status(self.last_heartbeat_ms, self.interval_ms, now)


@dataclass(slots=True)
class Pause:
    client: str
    until: int


class Table:
    """One claims partition's state up to ``next``, exclusive; without a snapshot, partial if ``begin`` is not 0."""

    def __init__(self, begin: int = 0) -> None:
        self.next = begin
        self.clock = 0
        self.owners: dict[GroupPartition, PartitionOwner] = {}
        self.members: dict[tuple[str, str], dict[str, Presence]] = {}
        self.pauses: dict[str, Pause] = {}
        self.snapshot_until = begin
        self.snapshot_clock = 0
        self._begin = begin
        self._complete_at = 0 if begin == 0 else NOTHING

    @property
    def partial(self) -> bool:
        """Whether claims may be missing, because the log began before what was read."""
        return self._complete_at != 0

    @property
    def snapshot_due(self) -> bool:
        """Whether the next writer should also write a snapshot."""
        since = (self.next - self.snapshot_until, self.clock - self.snapshot_clock)
        return not self.partial and (since[0] >= SNAPSHOT_RECORDS or since[1] >= SNAPSHOT_MS)

    def apply(self, offset: int, time_ms: int, message: Message | None) -> RecordEffect:
        """Apply the record at ``offset``, which the broker appended at ``time_ms``; None if it is not a message."""
        if time_ms < self.clock:
            self._clock_went_back(time_ms)
        if self.clock == 0:
            self.snapshot_clock = time_ms
            self._complete_at = 0 if self._begin == 0 else time_ms + PARTIAL_MS
        self.clock, self.next = time_ms, offset + 1
        if self._complete_at and time_ms >= self._complete_at:
            self._complete_at = 0
        if message is None:
            return RecordEffect.UNREADABLE
        return _RULES[type(message)](self, message, offset, time_ms)

    def _clock_went_back(self, time_ms: int) -> None:
        """Handle a brokers' clock that went back: heartbeats in its future count as sent now."""
        for owner in self.owners.values():
            owner.last_heartbeat_ms = min(owner.last_heartbeat_ms, time_ms)
        for known in self.members.values():
            for claim in known.values():
                claim.last_heartbeat_ms = min(claim.last_heartbeat_ms, time_ms)
        self.snapshot_clock = min(self.snapshot_clock, time_ms)

    def _claiming(self, message: ClaimingPartition, offset: int, time_ms: int) -> RecordEffect:
        key = message.group_id, message.topic, message.partition
        pause = self.pauses.get(message.group_id)
        if pause is not None and time_ms < pause.until and pause.client != message.client_id:
            return RecordEffect.PAUSED
        owner = self.owners.get(key)
        if owner is not None and owner.client_id is not None and owner.status(time_ms) is not Status.STALE:
            return RecordEffect.HELD
        position, topic_id = (NOTHING, UNKNOWN_ID) if owner is None else (owner.position, owner.topic_id)
        if position == NOTHING or topic_id == UNKNOWN_ID:
            topic_id = message.topic_id
        self.owners[key] = PartitionOwner(message.client_id, offset, time_ms, message.interval_ms, position, topic_id)
        return RecordEffect.GRANTED

    def _current_owner(
        self, message: Heartbeat | ReleasingPartition | ClaimingMessages, partition: int
    ) -> PartitionOwner | None:
        """Return the owner entry that this message may change, or None: owner and token must be the current ones."""
        owner = self.owners.get((message.group_id, message.topic, partition))
        if owner is None or owner.token != message.token or owner.client_id != message.client_id:
            return None
        return owner

    def _heartbeat(self, message: Heartbeat, offset: int, time_ms: int) -> RecordEffect:
        if message.partition is None:
            self._present(message, time_ms)
            return RecordEffect.NOTED
        owner = self._current_owner(message, message.partition)
        answer = RecordEffect.REFRESHED
        if owner is None:
            key = message.group_id, message.topic, message.partition
            if not self._adoptable(key, message.token, time_ms):
                return RecordEffect.LATE
            owner = self.owners[key] = PartitionOwner(
                message.client_id, message.token, time_ms, message.interval_ms, NOTHING
            )
            answer = RecordEffect.ADOPTED
        if message.resume:
            if owner.status(time_ms) is Status.STALE:
                return RecordEffect.LATE
            owner.token = offset
            answer = RecordEffect.RESUMED
        owner.last_heartbeat_ms, owner.interval_ms = time_ms, message.interval_ms
        owner.position = max(owner.position, message.last_offset)
        return answer

    def _adoptable(self, key: GroupPartition, token: int, time_ms: int) -> bool:
        """Return whether a partial table accepts a heartbeat in place of the claim that it could not read."""
        if not self.partial or not NOTHING < token < self._begin:
            return False
        owner = self.owners.get(key)
        return owner is None or owner.client_id is None or owner.status(time_ms) is Status.STALE

    def _present(self, message: Heartbeat, time_ms: int) -> None:
        known = self.members.setdefault((message.group_id, message.topic), {})
        if message.client_id not in known:
            for client in [c for c, presence in known.items() if presence.status(time_ms) is Status.STALE]:
                del known[client]
        known[message.client_id] = Presence(time_ms, message.interval_ms)

    def _releasing(self, message: ReleasingPartition, _offset: int, time_ms: int) -> RecordEffect:
        if message.partition is None:
            known = self.members.get((message.group_id, message.topic), {})
            known.pop(message.client_id, None)
            if not known:
                self.members.pop((message.group_id, message.topic), None)
            return RecordEffect.NOTED
        owner = self._current_owner(message, message.partition)
        if owner is None:
            return RecordEffect.LATE
        pause = self.pauses.get(message.group_id)
        administrator = pause is not None and time_ms < pause.until and pause.client == message.client_id
        if administrator and message.last_offset != NOTHING:
            owner.position, owner.topic_id = message.last_offset, UNKNOWN_ID
        owner.position = max(owner.position, message.last_offset)
        owner.client_id, owner.last_heartbeat_ms = None, time_ms
        return RecordEffect.RELEASED

    def _claiming_messages(self, message: ClaimingMessages, _offset: int, time_ms: int) -> RecordEffect:
        owner = self._current_owner(message, message.partition)
        if owner is None:
            return RecordEffect.LATE
        if message.proposed_last_offset <= owner.position:
            return RecordEffect.BEHIND
        owner.position, owner.last_heartbeat_ms = message.proposed_last_offset, time_ms
        return RecordEffect.ADVANCED

    def _release_group(self, message: ReleaseGroup, _offset: int, time_ms: int) -> RecordEffect:
        self.pauses.pop(message.group_id, None)
        if message.msg_expire_time > time_ms:
            self.pauses[message.group_id] = Pause(message.client_id, message.msg_expire_time)
        return RecordEffect.NOTED

    def _snapshot(self, message: Snapshot, offset: int, time_ms: int) -> RecordEffect:
        if message.until > offset:
            return RecordEffect.UNREADABLE
        self.snapshot_until, self.snapshot_clock = message.until, time_ms
        return RecordEffect.NOTED


_RULES: dict[type, Callable[[Table, Any, int, int], RecordEffect]] = {
    Heartbeat: Table._heartbeat,  # noqa: SLF001 - the table's own rules, looked up by type
    ClaimingPartition: Table._claiming,  # noqa: SLF001
    ReleasingPartition: Table._releasing,  # noqa: SLF001
    ClaimingMessages: Table._claiming_messages,  # noqa: SLF001
    ReleaseGroup: Table._release_group,  # noqa: SLF001
    Snapshot: Table._snapshot,  # noqa: SLF001
}


def snapshot_of(table: Table, client_id: str) -> Snapshot:
    return Snapshot(
        client_id,
        table.next,
        table.clock,
        {
            "seats": [[*key, *astuple(owner)] for key, owner in table.owners.items()],
            "members": [
                [group, topic, client, claim.last_heartbeat_ms, claim.interval_ms]
                for (group, topic), known in table.members.items()
                for client, claim in known.items()
            ],
            "pauses": [[group, pause.client, pause.until] for group, pause in table.pauses.items()],
        },
    )


def table_from(snapshot: Snapshot) -> Table:
    """Restore the table from a snapshot, as a complete history; raises `Refused` if the state has an unknown format."""
    table = Table()
    table.next = table.snapshot_until = snapshot.until
    table.clock = table.snapshot_clock = snapshot.clock
    try:
        for group, topic, partition, owner, token, last_heartbeat_ms, interval_ms, *at in snapshot.state["seats"]:
            position, topic_id = at if len(at) > 1 else (*at, UNKNOWN_ID)  # version 1 had no topic id
            table.owners[group, topic, partition] = PartitionOwner(
                owner, token, last_heartbeat_ms, interval_ms, position, topic_id
            )
        for group, topic, client, last_heartbeat_ms, interval_ms in snapshot.state["members"]:
            table.members.setdefault((group, topic), {})[client] = Presence(last_heartbeat_ms, interval_ms)
        for group, client, until in snapshot.state["pauses"]:
            table.pauses[group] = Pause(client, until)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(
            f"a snapshot of {snapshot.client_id!r} in the claims topic can't be read ({error!r}); "
            "name another topic (--claims), or update this program"
        ) from error
    return table


class OwnedPartition(NamedTuple):
    """One partition as the group sees it; ``owner`` is None if there is none."""

    owner: str | None
    token: int
    status: Status
    position: int
    topic_id: str = UNKNOWN_ID

    @property
    def free(self) -> bool:
        return self.owner is None or self.status is Status.STALE


class BrokerClock:
    """Estimates the brokers' clock between records: the newest record's time plus the local time since then."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._newest: dict[int, tuple[int, float]] = {}

    def observe(self, partition: int, time_ms: int) -> None:
        """Record the time of a record that was just read or appended."""
        self._newest[partition] = (time_ms, self._now())

    def now_ms(self, partition: int) -> int:
        time_ms, read_at = self._newest.get(partition, (0, self._now()))
        return time_ms + int((self._now() - read_at) * 1000)


class ClaimsView:
    """The tables of all partitions, updated by ``apply``."""

    def __init__(self, tables: Sequence[Table]) -> None:
        self.tables = list(tables)

    @property
    def partial(self) -> bool:
        return any(table.partial for table in self.tables)

    def apply(self, entry: Entry) -> RecordEffect:
        """Apply a record; raises `Refused` for another version, or a log that has gained partitions."""
        message = decode(entry.value)
        if message is not None:
            self._check_partition(message, entry)
        return self.tables[entry.partition].apply(entry.offset, entry.time_ms, message)

    def _check_partition(self, message: Message, entry: Entry) -> None:
        if isinstance(message, (ReleaseGroup, Snapshot)) or message.partition is None:
            return
        wanted = self.coordinating_partition(message.topic, message.partition)
        if wanted != entry.partition:
            raise Refused(
                f"offset {entry.offset} of partition {entry.partition} of the claims topic concerns "
                f"{message.topic}[{message.partition}], which belongs into partition {wanted} of {len(self.tables)}: "
                "partitions were added to a log that had begun; name a new claims topic (--claims)"
            )

    def coordinating_partition(self, topic: str, partition: int) -> int:
        return coordinating_partition(topic, partition, len(self.tables))

    def owned(self, group: str, topic: str, partitions: Sequence[int], clock: BrokerClock) -> dict[int, OwnedPartition]:
        """Return each of the partitions, including those that were never claimed."""
        claims = {}
        for partition in partitions:
            number = self.coordinating_partition(topic, partition)
            now, owner = clock.now_ms(number), self.tables[number].owners.get((group, topic, partition))
            if owner is None:
                claims[partition] = OwnedPartition(None, -1, Status.STALE, -1)
            else:
                claims[partition] = OwnedPartition(
                    owner.client_id, owner.token, owner.status(now), owner.position, owner.topic_id
                )
        return claims

    def claimed_partitions(self, group: str, topic: str) -> list[int]:
        """Return the partitions that any member of the group ever claimed."""
        return sorted({p for table in self.tables for g, t, p in table.owners if (g, t) == (group, topic)})

    def members(self, group: str, topic: str, clock: BrokerClock) -> list[str]:
        """Return the members that are not stale in every partition of the log, sorted."""
        there: set[str] = set()
        for partition, table in enumerate(self.tables):
            now = clock.now_ms(partition)
            known = table.members.get((group, topic), {})
            there |= {c for c, presence in known.items() if presence.status(now) is not Status.STALE}
        return sorted(there)

    def paused_by(self, group: str, clock: BrokerClock) -> str | None:
        """Return the client that has paused the group in any partition of the log, or None."""
        for partition, table in enumerate(self.tables):
            pause = table.pauses.get(group)
            if pause is not None and clock.now_ms(partition) < pause.until:
                return pause.client
        return None

    def ends(self) -> Mapping[int, int]:
        return {partition: table.next for partition, table in enumerate(self.tables)}
