"""The history of a claims log, and checks that no two members owned a partition at once; pure."""

from __future__ import annotations

import bisect
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class MemberView(NamedTuple):
    """What a member held (partition -> token) after reading all records before the position ``next``."""

    client: str
    next: int
    held: Mapping[int, int]


@dataclass
class _Owner:
    client: str
    token: int
    last_heartbeat_ms: int
    interval_ms: int

    def stale(self, time_ms: int) -> bool:
        return time_ms - self.last_heartbeat_ms > 2 * self.interval_ms


@dataclass
class History:
    """
    A fold over the records of a claims log, in order; for one group, one topic, and a log with one partition.

    ``counts``: `grants`, `held` (claims for an owned partition), `takeovers` (from a stale owner), `late` (writes by a
    replaced owner), `releases`, `snapshots`.
    """

    counts: Counter[str] = field(default_factory=Counter)
    next: int = 0
    granted: dict[tuple[int, int], str] = field(default_factory=dict)
    """(partition, token) -> client, for every granted claim."""
    _clock: int = 0
    _now: dict[int, _Owner] = field(default_factory=dict)
    _changes: dict[int, list[tuple[int, str | None, int]]] = field(default_factory=dict)

    def add(self, offset: int, time_ms: int, value: bytes | None) -> None:
        """Add the record at ``offset``; ``time_ms`` is the brokers' timestamp."""
        self.next = offset + 1
        if time_ms < self._clock:
            for known in self._now.values():
                known.last_heartbeat_ms = min(known.last_heartbeat_ms, time_ms)
        self._clock = time_ms
        message = json.loads(value or b"{}")
        kind, partition = message.get("type"), message.get("partition")
        self.counts["snapshots"] += kind == "Snapshot"
        if partition is None:
            return
        owner = self._now.get(partition)
        if kind == "ClaimingPartition":
            self._claim(partition, owner, message, offset, time_ms)
        elif owner is None or (owner.client, owner.token) != (message["client_id"], message["token"]):
            self.counts["late"] += 1
        elif kind == "ReleasingPartition":
            self.counts["releases"] += 1
            del self._now[partition]
            self._changes[partition].append((offset, None, -1))
        elif kind == "Heartbeat":
            self._beat(partition, owner, message, offset, time_ms)

    def _claim(self, partition: int, owner: _Owner | None, message: dict[str, Any], offset: int, time_ms: int) -> None:
        if owner is not None and not owner.stale(time_ms):
            self.counts["held"] += 1
            return
        self.counts["grants"] += 1
        self.counts["takeovers"] += owner is not None and owner.client != message["client_id"]
        self.granted[partition, offset] = message["client_id"]
        self._now[partition] = _Owner(message["client_id"], offset, time_ms, message["interval_ms"])
        self._changes.setdefault(partition, []).append((offset, message["client_id"], offset))

    def _beat(self, partition: int, owner: _Owner, message: dict[str, Any], offset: int, time_ms: int) -> None:
        if message["resume"]:
            if owner.stale(time_ms):
                self.counts["late"] += 1
                return
            owner.token = offset
            self._changes[partition].append((offset, owner.client, offset))
        owner.last_heartbeat_ms, owner.interval_ms = time_ms, message["interval_ms"]

    def owners(self) -> dict[int, str]:
        """Return the current owner of each partition; stale owners remain until another member claims."""
        return {partition: owner.client for partition, owner in list(self._now.items())}

    def at(self, partition: int, position: int) -> tuple[str | None, int]:
        """Return the owner and the token after all records before ``position``."""
        changes = self._changes.get(partition, [])
        place = bisect.bisect_left(changes, position, key=lambda change: change[0])
        return (None, -1) if place == 0 else changes[place - 1][1:]

    def misled(self, views: Iterable[MemberView]) -> list[str]:
        """Return violations: members that held a partition that was not theirs at the position they had read to."""
        found = []
        for view in views:
            for partition, token in view.held.items():
                owner = self.at(partition, view.next)
                if view.next <= self.next and owner != (view.client, token):
                    holds = f"before position {view.next} {view.client} holds partition {partition} by the claim at "
                    found.append(f"{holds}{token}, and the log gives it to {owner[0]} by the one at {owner[1]}")
        return found


class Belief(NamedTuple):
    """A member considered a partition its own, by the claim at the offset ``token``."""

    client: str
    partition: int
    token: int


def broken(beliefs: Iterable[Belief], granted: dict[tuple[int, int], str]) -> list[str]:
    """Return contradictions between beliefs and log: claims of another member or none, held twice, or by nobody."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    for belief in beliefs:
        place = (belief.partition, belief.token)
        if granted.get(place) != belief.client:
            owned = (
                f"{belief.client} believed that it owned partition {belief.partition} by the claim at {belief.token}"
            )
            found.append(f"{owned}, which was granted to {granted.get(place, 'nobody')}")
        if place in seen:
            found.append(f"partition {belief.partition} was held twice by the claim at {belief.token}")
        seen.add(place)
    found += [
        f"partition {partition} was granted to {client} by the claim at {token}, but {client} did not hold it"
        for (partition, token), client in granted.items()
        if (partition, token) not in seen
    ]
    return found


def uncovered(beliefs: Iterable[Belief], partitions: int) -> list[str]:
    """Return the partitions of one round that have no owner, or more than one."""
    count = dict.fromkeys(range(partitions), 0)
    for belief in beliefs:
        count[belief.partition] += 1
    return [f"partition {partition} has {owners} owners" for partition, owners in count.items() if owners != 1]
