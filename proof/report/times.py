"""Durations of many runs: how many, p50, p95, longest, and how many never came."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from proof.report.results import Result


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds in rising order; ``never`` counts those that were due and did not come, they rank as the longest."""

    seconds: tuple[float, ...]
    never: int = 0

    @classmethod
    def recoveries(cls, results: Iterable[Result]) -> Times:
        chosen = list(results)
        seconds = sorted(value for result in chosen for value in result.recovery_s)
        return cls(tuple(seconds), sum(result.never_recovered for result in chosen))

    @classmethod
    def stalls(cls, results: Iterable[Result]) -> Times:
        return cls(tuple(sorted(value for result in results for value in result.stall_s)))

    @property
    def count(self) -> int:
        return len(self.seconds) + self.never

    @property
    def longest(self) -> float:
        return self.quantile(1.0)

    def quantile(self, share: float) -> float:
        """The value that ``share`` of all do not exceed (nearest rank); infinite where it never came."""
        if not self.count:
            raise ValueError("no quantile of nothing")
        at = max(0, math.ceil(share * self.count) - 1)
        return self.seconds[at] if at < len(self.seconds) else math.inf


def say_seconds(value: float | None) -> str:
    """As people read it: 0.25 s, 12.3 s, 4 min 10 s, never."""
    if value is None:
        return "-"
    if math.isinf(value):
        return "never"
    if value < 119.5:  # noqa: PLR2004 - two minutes, after rounding
        return f"{value:.2f} s" if value < 9.995 else f"{value:.1f} s"  # noqa: PLR2004 - three digits are enough
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
