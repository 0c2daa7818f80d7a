"""Bring a store to where its changelog is: after the fence only, and up to the end of what is decided."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from downstream.totals.store import Changes, Standing, Store
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import DeadlineExceeded, Refused
from protocol.kafka.clients import AdminClient
from protocol.kafka.offsets import log_offsets
from protocol.kafka.ranges import RangeReader
from protocol.position import LogOffsets

STANDING = b"\x00standing"
"""The key of the record that closes a transaction's changes: how far the deltas are, and how many totals there are."""
_PAUSE_S = 0.01
_ASK_S = 15.0
_SETTLE_S = 45.0


def standing_value(until: int, keys: int) -> bytes:
    return f"{until} {keys}".encode()


def parsed_standing(value: bytes) -> tuple[int, int]:
    until, keys = value.split(b" ")
    return int(until), int(keys)


def settled(client: AdminClient, topic: str, partitions: Iterable[int], deadline: Deadline) -> dict[int, LogOffsets]:
    """
    Offsets of partitions in which no transaction is open: each last stable offset is the partition's end.

    A commit is answered before its markers are in all partitions, so that this may take a moment.

    Raises:
        DeadlineExceeded: somebody keeps a transaction open there; after our fence that is nobody of this group.
    """
    while True:
        found = log_offsets(client, topic, partitions, Deadline(_ASK_S))
        waiting = [p for p, log in found.items() if log.last_stable < log.end]
        if not waiting:
            return found
        if deadline.remaining_s() <= _PAUSE_S:
            raise DeadlineExceeded(
                f"{topic}{waiting} has an open transaction from offset {found[waiting[0]].last_stable} on after "
                f"{deadline.budget_s:g} s; nobody but this program's group may write there"
            )
        time.sleep(_PAUSE_S)


def restore(
    connection: Connection,
    group: str,
    client: AdminClient,
    topic: str,
    partition: int,
    store: Store,
    deadline: Deadline,
) -> int:
    """
    Read what the store has not seen of its changelog; the number of records read.

    Only for whoever has fenced the partition's transactional id: nobody else can be writing then. ``group`` is his own,
    since brokers with ACLs want to know one even where nothing is committed.

    Raises:
        Refused: the changelog has lost records; a total built on it would be wrong.
    """
    log = settled(client, topic, [partition], Deadline(min(_SETTLE_S, deadline.budget_s)))[partition]
    standing = store.standing
    if standing is not None and not log.first <= standing.changelog <= log.end:
        store.wipe()
        standing = None
    start = log.first if standing is None else standing.changelog
    until, told_keys, keys = (-1, 0, 0) if standing is None else (standing.until, standing.keys, standing.keys)
    done = 0
    reader = RangeReader(connection, topic, partition, group)
    try:
        for batch in reader.read(start, log.end, deadline, threading.Event()):
            changes: dict[bytes, bytes | None] = {}
            for record in batch:
                key, value = record.key(), record.value()
                if key == STANDING and value is not None:
                    until, told_keys = parsed_standing(value)
                elif key is not None:
                    changes[key] = value
            keys += growth(store, changes)
            done += len(batch)
            store.write(changes, Standing(until, batch[-1].offset() + 1, keys))
    finally:
        reader.close()
    if keys != told_keys:
        store.wipe()
        raise Refused(
            f"changelog-damaged: {topic}[{partition}] gives {keys} totals where its last transaction left {told_keys}; "
            "its cleanup.policy has to be compact, and nobody else may write or delete there. "
            "Count afresh with another --group, or restore the topic"
        )
    return done


def growth(store: Store, changes: Changes) -> int:
    """By how many totals these changes make the store larger."""
    known = store.get(list(changes))
    return sum((new is not None) - (old is not None) for new, old in zip(changes.values(), known, strict=True))
