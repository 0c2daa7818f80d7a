"""How a newcomer gets the world: the newest snapshot, and what follows it."""

from __future__ import annotations

from protocol.claims.log import Entry, Log
from protocol.claims.messages import SNAPSHOT_KEY, Snapshot, decode
from protocol.claims.snapshots import restored
from protocol.claims.table import SNAPSHOT_RECORDS, Table
from protocol.claims.world import World
from protocol.deadline import Deadline

WINDOW = 2 * SNAPSHOT_RECORDS
"""So many records before the end are searched for a snapshot; one is due in half of them."""


def arrive(log: Log, deadline: Deadline) -> World:
    """
    The world as it stands at the log's end; the log's `read` goes on from there.

    Raises:
        DeadlineExceeded: it took too long.
        Refused: a version that this program does not know.
    """
    bounds = log.bounds(deadline)
    near = {p: (max(first, end - WINDOW), end) for p, (first, end) in bounds.items()}
    read: dict[int, list[Entry]] = {p: [] for p in bounds}
    for entry in log.history(near, deadline):
        read[entry.partition].append(entry)
    tables: dict[int, Table] = {}
    missing: dict[int, tuple[int, int]] = {}
    for partition, entries in read.items():
        snapshot = newest(entries)
        tables[partition] = Table(bounds[partition][0]) if snapshot is None else restored(snapshot)
        missing[partition] = (tables[partition].next, near[partition][0])
    before: dict[int, list[Entry]] = {p: [] for p in bounds}
    for entry in log.history({p: (start, until) for p, (start, until) in missing.items() if start < until}, deadline):
        before[entry.partition].append(entry)
    world = World([tables[p] for p in sorted(tables)])
    for partition, table in tables.items():
        start = table.next
        for entry in before[partition] + read[partition]:
            if entry.offset >= start:
                world.apply(entry)
        table.next = max(table.next, bounds[partition][1])
    log.tail(world.ends())
    return world


def newest(entries: list[Entry]) -> Snapshot | None:
    """The last snapshot among the records, if there is one."""
    for entry in reversed(entries):
        if entry.key == SNAPSHOT_KEY:
            found = decode(entry.value)
            if isinstance(found, Snapshot) and found.until <= entry.offset:
                return found
    return None
