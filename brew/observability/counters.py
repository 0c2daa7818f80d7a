"""Counters of a program since its start: plain numbers, so that counting costs next to nothing."""

from __future__ import annotations

import bisect
import enum
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from brew.record import OTHER_REASONS

TopicPartition = tuple[str, int]
"""Topic and partition."""

BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
RATE_OVER_S = 10.0
MAX_REASONS = 100
"""The maximum number of reasons that are counted separately; further ones count as `OTHER_REASONS`."""
_GRAIN_S = 0.25
_LEAST_S = 1.0


class Ending(enum.StrEnum):
    """How an attempt ended. `INDEFINITE`: only the next attempt's *locate* finds out; `REFUSED`: nothing written."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    FENCED = "fenced"
    INDEFINITE = "indefinite"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Ended:
    """
    One attempt at ``start`` to ``until``, and how it ended. ``began_at`` is wall-clock seconds, ``steps`` the seconds
    of each step, ``dead_letters`` reason -> records. ``newest_ms``: the timestamp of its last record in ms since the
    epoch, if known. ``traces``: its records' `traceparent` headers, for spans.
    """

    topic: str
    partition: int
    ending: Ending
    start: int
    until: int
    records: int = 0
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    steps: Mapping[str, float] = field(default_factory=dict)
    began_at: float | None = None
    transactional_id: str | None = None
    detail: str = ""
    newest_ms: int | None = None
    traces: Sequence[str] = ()
    malformed_profiles: int | None = None

    @property
    def topic_partition(self) -> TopicPartition:
        return self.topic, self.partition


@dataclass(slots=True)
class Histogram:
    """The number of values in each bucket (the last one has no upper bound), and their sum."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.total += seconds

    def copy(self) -> Histogram:
        return Histogram(list(self.counts), self.total)


@dataclass(slots=True)
class Counts:
    """
    Counters of the whole program; they never decrease, and are kept when a partition is released. ``duplicates``:
    redelivered records that were skipped; None if the program does not detect them. ``malformed_profiles``: of the
    table that the latest attempt used, so it may decrease; None without profiles.
    """

    endings: Counter[tuple[TopicPartition, Ending]] = field(default_factory=Counter)
    records: Counter[TopicPartition] = field(default_factory=Counter)
    dead_letters: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    recoveries: int = 0
    recovery_s: float | None = None
    duplicates: int | None = None
    steps: dict[str, Histogram] = field(default_factory=dict)
    seconds: Histogram = field(default_factory=Histogram)
    malformed_profiles: int | None = None

    def ended(self, end: Ended) -> None:
        self.endings[end.topic_partition, end.ending] += 1
        self.seconds.add(end.seconds)
        if end.malformed_profiles is not None:
            self.malformed_profiles = end.malformed_profiles
        for step, seconds in end.steps.items():
            self.steps.setdefault(step, Histogram()).add(seconds)
        if end.ending is Ending.COMMITTED:
            self.records[end.topic_partition] += end.records
            for reason, records in end.dead_letters.items():
                known = reason in self.dead_letters or len(self.dead_letters) < MAX_REASONS
                self.dead_letters[reason if known else OTHER_REASONS] += records

    def recovered(self, seconds: float) -> None:
        self.recoveries += 1
        self.recovery_s = seconds

    def copy(self) -> Counts:
        return replace(
            self,
            endings=self.endings.copy(),
            records=self.records.copy(),
            dead_letters=self.dead_letters.copy(),
            steps={step: histogram.copy() for step, histogram in self.steps.items()},
            seconds=self.seconds.copy(),
        )


@dataclass(slots=True)
class Rate:
    """Records per second over the last ten seconds; ``since`` is when counting began."""

    since: float
    _grains: deque[tuple[float, int]] = field(default_factory=deque)

    def add(self, records: int, now: float) -> None:
        if self._grains and now - self._grains[-1][0] < _GRAIN_S:
            grain, before = self._grains.pop()
            self._grains.append((grain, before + records))
        else:
            self._grains.append((now, records))
        self._forget(now)

    def per_s(self, now: float) -> float:
        self._forget(now)
        span = min(RATE_OVER_S, max(_LEAST_S, now - self.since))
        return sum(records for _, records in self._grains) / span

    def _forget(self, now: float) -> None:
        while self._grains and now - self._grains[0][0] > RATE_OVER_S:
            self._grains.popleft()
