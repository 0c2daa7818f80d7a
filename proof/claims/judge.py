"""Who owned what, worked out again from the raw log with code of its own; pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import NamedTuple


class Belief(NamedTuple):
    """A member took a partition for its own, on the claim at this offset."""

    client: str
    partition: int
    token: int


class Line(NamedTuple):
    """A record of the claims topic, as it stands there."""

    offset: int
    value: bytes | None


def owners(lines: Iterable[Line]) -> tuple[dict[tuple[int, int], str], dict[int, str | None]]:
    """
    Who was granted what, as (partition, token) -> client, and who owns each partition at the end.

    For logs in which nobody was silent for two intervals: an owner stays one until it releases with its own token.
    """
    granted: dict[tuple[int, int], str] = {}
    now: dict[int, tuple[str, int]] = {}
    last: dict[int, str | None] = {}
    for line in lines:
        said = json.loads(line.value or b"{}")
        partition, client = said.get("partition"), said.get("client_id")
        if said.get("type") == "ClaimingPartition" and partition not in now:
            now[partition] = (client, line.offset)
            granted[partition, line.offset] = client
        elif said.get("type") == "ReleasingPartition" and now.get(partition) == (client, said.get("token")):
            del now[partition]
        if partition is not None:
            last[partition] = now[partition][0] if partition in now else None
    return granted, last


def broken(beliefs: Iterable[Belief], granted: dict[tuple[int, int], str]) -> list[str]:
    """Beliefs that the log does not bear out: somebody else's, nobody's, or held twice."""
    found: list[str] = []
    seen: set[tuple[int, int]] = set()
    for one in beliefs:
        place = (one.partition, one.token)
        if granted.get(place) != one.client:
            found.append(f"{one.client} took partition {one.partition} on offset {one.token} for its own, "
                         f"which belongs to {granted.get(place)}")  # fmt: skip
        if place in seen:
            found.append(f"partition {one.partition} was taken twice on offset {one.token}")
        seen.add(place)
    found += [
        f"partition {partition} was granted to {client} at offset {token}, who does not know"
        for (partition, token), client in granted.items()
        if (partition, token) not in seen
    ]
    return found


def uncovered(beliefs: Iterable[Belief], partitions: int) -> list[str]:
    """Partitions of one round that have no owner, or more than one."""
    count = dict.fromkeys(range(partitions), 0)
    for one in beliefs:
        count[one.partition] += 1
    return [f"partition {partition} has {owners} owners" for partition, owners in count.items() if owners != 1]
