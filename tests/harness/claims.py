"""A claims log in memory with a clock that the test sets, and logs made of members' messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from brew.claims.log import Appended, Entry, Item
from brew.claims.member import Member, Membership
from brew.claims.messages import ClaimingPartition, Heartbeat, Message, ReleasingPartition, encode
from brew.claims.state import PartitionOwner, RecordEffect, Table
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Fatal

GROUP, TOPIC, INTERVAL = "g", "orders", 1000
START_MS = 1_000_000


def claim(client: str, partition: int = 0, interval: int = INTERVAL) -> ClaimingPartition:
    return ClaimingPartition(client, GROUP, TOPIC, partition, interval)


def beat(client: str, token: int, position: int = -1, partition: int | None = 0, *, resume: bool = False) -> Heartbeat:
    return Heartbeat(client, GROUP, TOPIC, partition, position, token, INTERVAL, resume)


def release(client: str, token: int, position: int = -1, partition: int | None = 0) -> ReleasingPartition:
    return ReleasingPartition(client, GROUP, TOPIC, partition, position, token)


def fold(table: Table, *records: tuple[int, Message]) -> list[RecordEffect]:
    """Apply pairs of (milliseconds since `START_MS`, message) in order."""
    return [table.apply(table.next, START_MS + ms, message) for ms, message in records]


def owner_of(table: Table, partition: int = 0) -> PartitionOwner:
    return table.owners[GROUP, TOPIC, partition]


@dataclass
class Shared:
    """One log for several `MemoryLog`s; ``now_ms`` is the brokers' clock, ``now()`` the members' own."""

    partitions: int = 1
    now_ms: int = START_MS
    entries: list[list[Entry]] = field(default_factory=list)
    down: bool = False
    denied: bool = False

    def __post_init__(self) -> None:
        self.entries = [[] for _ in range(self.partitions)]

    def now(self) -> float:
        return self.now_ms / 1000

    def write(self, message: Message, partition: int = 0) -> Appended:
        """Append a message as another program would."""
        key, value = encode(message)
        return self.append(Item(partition, key, value))

    def append(self, item: Item) -> Appended:
        log = self.entries[item.partition]
        offset = log[-1].offset + 1 if log else 0
        log.append(Entry(item.partition, offset, self.now_ms, item.key, item.value))
        return Appended(item.partition, offset, self.now_ms)


class MemoryLog:
    """One member's view of a `Shared` log, the minimum that `Log` requires: each call has a deadline to meet."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._next: dict[int, int] = {}

    @property
    def partitions(self) -> int:
        return self._shared.partitions

    def append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
        deadline.check("append")
        if self._shared.down:
            raise DeadlineExceeded(f"append: no answer within {deadline.budget_s} s")
        if self._shared.denied:
            raise Fatal("append to topic claims: Broker: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)")
        return [self._shared.append(item) for item in items]

    def bounds(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
        deadline.check("bounds")
        return {p: (log[0].offset, log[-1].offset + 1) if log else (0, 0) for p, log in enumerate(self._shared.entries)}

    def history(self, ranges: Mapping[int, tuple[int, int]], deadline: Deadline) -> list[Entry]:
        deadline.check("history")
        return [
            entry
            for p, (start, until) in ranges.items()
            for entry in self._shared.entries[p]
            if start <= entry.offset < until
        ]

    def tail(self, starts: Mapping[int, int]) -> None:
        self._next = dict(starts)

    def read(self, until: Mapping[int, int], deadline: Deadline) -> list[Entry]:
        """Read up to ``until`` and no further; read all of a partition that it does not name."""
        deadline.check("read")
        entries = [
            entry
            for p, log in enumerate(self._shared.entries)
            for entry in log
            if self._next[p] <= entry.offset < until.get(p, entry.offset + 1)
        ]
        for entry in entries:
            self._next[entry.partition] = entry.offset + 1
        if any(self._next[p] < end for p, end in until.items()):
            raise DeadlineExceeded(f"read: the log does not reach {until}")
        return entries

    def close(self) -> None: ...


def new_deadline() -> Deadline:
    return Deadline(5)


def member(
    shared: Shared,
    client: str,
    partitions: tuple[int, ...] = tuple(range(8)),
    interval_s: float = 1.0,
    *,
    works: bool = True,
    log: Callable[[Shared], MemoryLog] = MemoryLog,
) -> Member:
    """Return a member that has joined, with the log's clock as its own."""
    joined = Member(log(shared), Membership(client, GROUP, TOPIC, partitions, interval_s, works), shared.now)
    joined.join(new_deadline())
    return joined


def advance(shared: Shared, seconds: float, *turning: Member) -> None:
    """Let time go by; these take their turns, and give back what they are asked for."""
    for _ in range(round(seconds * 10)):
        shared.now_ms += 100
        for one in turning:
            one.turn(new_deadline())
            one.release_partitions({p: one.holdings[p] for p in one.to_release}, new_deadline())
