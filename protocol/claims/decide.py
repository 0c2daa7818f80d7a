"""What a member does about the world it sees: pure, so that all members with the same world agree on the shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from protocol.claims.world import Owned


class Plan(NamedTuple):
    """Partitions to claim now, and partitions to give back after the work at hand."""

    claims: list[int]
    give_back: list[int]


def plan(owned: Mapping[int, Owned], members: Collection[str], me: str, *, paused: bool, share: bool) -> Plan:
    """
    What ``me`` claims and gives back.

    ``paused``: the group is, by somebody else. ``share``: take a fair part; else all that is free.
    """
    mine = sorted(p for p, one in owned.items() if one.owner == me and not one.free)
    if paused:
        return Plan([], mine)
    free = sorted(p for p, one in owned.items() if one.free)
    if not share:
        return Plan(free, [])
    held = Counter(one.owner for one in owned.values() if not one.free)
    names = sorted({me, *members, *(name for name in held if name is not None)})
    due = targets({name: held[name] for name in names}, len(owned))
    at = 0
    for name in names:
        lacks = max(0, due[name] - held[name])
        if name == me:
            return Plan(free[at : at + lacks], mine[due[me] :] if len(mine) > due[me] else [])
        at += lacks
    raise AssertionError("a member is among the members")


def targets(held: Mapping[str, int], partitions: int) -> dict[str, int]:
    """How many of the partitions each member should hold; what doesn't divide stays with those that hold the most."""
    each, over = divmod(partitions, len(held))
    order = sorted(held, key=lambda name: (-held[name], name))
    return {name: each + (place < over) for place, name in enumerate(order)}
