"""Transactions as the cluster tells of them: what a partition's leader holds open, and what the coordinator knows."""

from __future__ import annotations

from dataclasses import dataclass

Place = tuple[str, int]
"""Topic and partition."""

ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
ENDING = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
ONGOING = "Ongoing"


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """
    A transaction that a partition's leader holds open.

    ``last_ms`` is its last record's timestamp, ``coordinator_epoch`` that of the last marker (-1: there was none).
    """

    topic: str
    partition: int
    first_offset: int
    producer_id: int
    producer_epoch: int
    last_ms: int
    coordinator_epoch: int = -1

    @property
    def place(self) -> Place:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class Coordinated:
    """A transactional id as its coordinator knows it (KIP-664); ``began_ms`` is None while nothing is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    began_ms: int | None
    places: frozenset[Place]

    @property
    def open(self) -> bool:
        return self.state == ONGOING or self.state in ENDING

    def age_s(self, now_ms: int) -> float | None:
        """How long it has been open, by this machine's clock."""
        return None if self.began_ms is None else max(0.0, (now_ms - self.began_ms) / 1000)


@dataclass(frozen=True, slots=True)
class Bound:
    """A partition whose readers wait: last stable offset and end; equal when nobody waits."""

    last_stable: int
    end: int

    @property
    def held(self) -> bool:
        return self.last_stable < self.end
