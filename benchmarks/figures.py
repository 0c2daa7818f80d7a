"""What the benchmark computes from what it measured; pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some rounds, with the lowest and the highest."""

    middle: float
    low: float
    high: float
    rounds: int

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """None of no values."""
        found = list(values)
        return cls(median(found), min(found), max(found), len(found)) if found else None

    def text(self, form: str) -> str:
        """`1.62 (1.55-1.71)`, or the one value alone."""
        middle = format(self.middle, form)
        if self.rounds == 1:
            return middle
        return f"{middle} ({format(self.low, form)}-{format(self.high, form)})"


def rounds(names: Sequence[str], repeat: int, *, paired: bool) -> list[tuple[int, list[str]]]:
    """
    (number, who runs in which order) of every round.

    All run in each round, and the order turns round with each, so that nobody is always first. ``paired``: the first
    name runs right beside each of the others in rounds of two, which keeps what drifts out of the ratio.
    """
    groups = [[names[0], other] for other in names[1:]] if paired else [list(names)]
    found: list[tuple[int, list[str]]] = []
    for number in range(repeat):
        for group in groups:
            found.append((len(found) + 1, group if number % 2 == 0 else group[::-1]))
    return found


def ratio(mine: Mapping[int, float], others: Mapping[int, float]) -> Spread | None:
    """Mine over the other's, round by round (round -> value) where both ran; a peer's 0 has no ratio."""
    return Spread.of(mine[number] / others[number] for number in sorted(mine.keys() & others.keys()) if others[number])


def marginal(small: tuple[int, float], large: tuple[int, float]) -> float:
    """
    What one more record costs, of two (records, cost): the start, the same in both, falls out.

    Raises:
        ValueError: the second is not larger.
    """
    if large[0] <= small[0]:
        raise ValueError(f"a difference needs more records than {small[0]}, got {large[0]}")
    return (large[1] - small[1]) / (large[0] - small[0])


def percentile(values: Sequence[float], share: float) -> float:
    """
    The smallest value that at least ``share`` (above 0, at most 1) of the values don't exceed: nearest rank.

    Raises:
        ValueError: there are no values, or no such share.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"a percentile needs values and a share above 0 up to 1, got {len(values)} and {share}")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def delays_ms(sent: Mapping[bytes, float], received: Mapping[bytes, float], since: float) -> list[float]:
    """
    Milliseconds between sending and receiving, of what was sent at ``since`` (monotonic seconds) or later.

    Raises:
        ValueError: something that was sent was not received; leaving it out would flatter.
    """
    lost = sent.keys() - received.keys()
    if lost:
        raise ValueError(f"{len(lost)} of {len(sent)} records were sent and not received")
    return [1000 * (received[key] - at) for key, at in sent.items() if at >= since]
