"""One simulated input partition: what has arrived, been fetched and been committed, and how long records waited."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

_SAMPLES = 8


@dataclass(slots=True)
class Log:
    """
    Records count from 0. ``backlog`` of them are there at the start, then one every ``1 / per_s`` seconds.

    ``phase`` (0 to 1) keeps the partitions' arrivals apart.
    """

    partition: int
    backlog: int
    per_s: float
    phase: float
    committed: int = 0
    commits: list[tuple[float, int]] = field(default_factory=list)
    """(time, records) of each transaction."""
    waits: list[tuple[float, float]] = field(default_factory=list)
    """(seconds from arrival to commit, how many records it stands for), of records that arrived while it ran."""

    def arrived(self, now: float) -> int:
        return self.backlog + (math.floor(now * self.per_s + self.phase) if self.per_s else 0)

    def arrives_at(self, record: int) -> float:
        """When the record with this number is there; infinity when it never is."""
        if record < self.backlog:
            return 0.0
        if not self.per_s:
            return math.inf
        return max(0.0, (record - self.backlog + 1 - self.phase) / self.per_s)

    def commit(self, now: float, until: int) -> None:
        """
        All records below ``until`` are visible.

        Raises:
            AssertionError: that would lose or double records.
        """
        assert self.committed < until <= self.arrived(now), (self.partition, self.committed, until, self.arrived(now))
        count = until - self.committed
        if self.per_s:
            step = max(1, count // _SAMPLES)
            for record in range(self.committed, until, step):
                if record >= self.backlog:
                    self.waits.append((now - self.arrives_at(record), min(step, until - record)))
        self.committed = until
        self.commits.append((now, count))
