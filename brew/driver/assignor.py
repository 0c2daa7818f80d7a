"""Decide which slot holds which partition; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_BETTER = 0.9
"""A partition is moved when the busiest slot's load falls below this share of what it was."""


def loads(lags: Mapping[int, int]) -> dict[int, int]:
    """What each partition weighs: its lag, and a share of the mean lag, so that idle partitions are spread, too."""
    base = 1 + sum(lags.values()) // (4 * max(1, len(lags)))
    return {partition: lag + base for partition, lag in lags.items()}


def assign(lags: Mapping[int, int], held: Mapping[int, int], slots: Iterable[int]) -> dict[int, int]:
    """
    Partition -> slot for all of ``lags`` that nobody holds; the heaviest first, each to the slot with the least load.

    ``held`` (partition -> slot) stays as it is. Without a slot nothing is placed.
    """
    weights = loads(lags)
    carried = _slot_loads(weights, held, slots)
    placed: dict[int, int] = {}
    if not carried:
        return placed
    free = sorted((p for p in lags if p not in held), key=lambda p: (-weights[p], p))
    for partition in free:
        slot = min(carried, key=lambda one: (carried[one], one))
        carried[slot] += weights[partition]
        placed[partition] = slot
    return placed


def partition_to_move(lags: Mapping[int, int], held: Mapping[int, int], slots: Iterable[int]) -> int | None:
    """The partition whose release lets the busiest slot give work to the idlest one; None when all is even enough."""
    weights = loads(lags)
    carried = _slot_loads(weights, held, slots)
    if len(carried) < 2:  # noqa: PLR2004 - two slots at least, or there is nowhere to go
        return None
    busiest = max(carried, key=lambda one: (carried[one], -one))
    idlest = min(carried, key=lambda one: (carried[one], one))
    most, least = carried[busiest], carried[idlest]
    fitting = [p for p, slot in held.items() if slot == busiest and p in weights]
    after = {p: max(most - weights[p], least + weights[p]) for p in fitting}
    best = min(after, key=lambda p: (after[p], p), default=None)
    return best if best is not None and after[best] < most * _BETTER else None


def _slot_loads(weights: Mapping[int, int], held: Mapping[int, int], slots: Iterable[int]) -> dict[int, int]:
    carried = dict.fromkeys(slots, 0)
    for partition, slot in held.items():
        if slot in carried:
            carried[slot] += weights.get(partition, 0)
    return carried
