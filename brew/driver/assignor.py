"""Assign partitions to slots, and rebalance them; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

_BETTER = 0.9
"""A partition is moved only if the busiest slot's load then falls below this fraction of its current load."""


def loads(lags: Mapping[int, int]) -> dict[int, int]:
    """Return each partition's load: its lag and a fraction of the mean lag, so that idle partitions are spread, too."""
    base = 1 + sum(lags.values()) // (4 * max(1, len(lags)))
    return {partition: lag + base for partition, lag in lags.items()}


def assign(lags: Mapping[int, int], held: Mapping[int, int], slots: Iterable[int]) -> dict[int, int]:
    """Assign each partition of ``lags`` that is not ``held``, heaviest first, to the slot with the least load."""
    weights = loads(lags)
    slot_loads = _slot_loads(weights, held, slots)
    assigned: dict[int, int] = {}
    if not slot_loads:
        return assigned
    free = sorted((p for p in lags if p not in held), key=lambda p: (-weights[p], p))
    for partition in free:
        slot = min(slot_loads, key=lambda candidate: (slot_loads[candidate], candidate))
        slot_loads[slot] += weights[partition]
        assigned[partition] = slot
    return assigned


def partition_to_move(lags: Mapping[int, int], held: Mapping[int, int], slots: Iterable[int]) -> int | None:
    """Return the partition to move from the busiest slot to the idlest one, or None if the load is balanced."""
    weights = loads(lags)
    slot_loads = _slot_loads(weights, held, slots)
    if len(slot_loads) < 2:  # noqa: PLR2004 - a move needs two slots
        return None
    busiest = max(slot_loads, key=lambda candidate: (slot_loads[candidate], -candidate))
    idlest = min(slot_loads, key=lambda candidate: (slot_loads[candidate], candidate))
    max_load, min_load = slot_loads[busiest], slot_loads[idlest]
    movable = [p for p, slot in held.items() if slot == busiest and p in weights]
    after = {p: max(max_load - weights[p], min_load + weights[p]) for p in movable}
    best = min(after, key=lambda p: (after[p], p), default=None)
    return best if best is not None and after[best] < max_load * _BETTER else None


def _slot_loads(weights: Mapping[int, int], held: Mapping[int, int], slots: Iterable[int]) -> dict[int, int]:
    slot_loads = dict.fromkeys(slots, 0)
    for partition, slot in held.items():
        if slot in slot_loads:
            slot_loads[slot] += weights.get(partition, 0)
    return slot_loads
