"""Write customers' profiles to their compacted topic, which is made when it is missing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from proof.customers import Customers, chunks
from proof.seed import Writer
from protocol.deadline import Deadline
from protocol.kafka import topics
from protocol.kafka.clients import Connection, admin
from protocol.profiles import COMPACT

_ANY = -1  # the key's murmur2 hash says which partition, as for every producer of Java
_KEPT_MS = 24 * 3600 * 1000


@dataclass(frozen=True, slots=True)
class SeededCustomers:
    """What was written; ``created`` says that this call made the topic."""

    topic: str
    created: bool
    partitions: int
    customers: int
    updates: int
    tombstones: int
    seconds: float

    def __str__(self) -> str:
        made = "made with" if self.created else "which has"
        return (
            f"{self.customers} customers on {self.topic} ({made} {self.partitions} partitions), "
            f"{self.updates} updates, {self.tombstones} removed, {self.seconds:.1f} s"
        )


def seed_customers(
    connection: Connection,
    plan: Customers,
    partitions: int,
    *,
    deadline: Deadline,
    advance: Callable[[int], None] = lambda _count: None,
    timeout_s: float = 60.0,
) -> SeededCustomers:
    """
    Carry the plan out; calls ``advance`` with the number of records written since the last call.

    A topic that is made here keeps what was replaced for a day, so that `verify` finds what an output was made with.

    Raises:
        Refused: the topic can't be made, or a record could not be delivered.
    """
    client = admin(connection)
    config = {topics.CLEANUP_POLICY: COMPACT, "min.compaction.lag.ms": str(_KEPT_MS)}
    created = False
    if not topics.describe(client, [plan.topic], deadline):
        created = topics.create(client, [topics.Wanted(plan.topic, partitions, config)], deadline)[plan.topic]
    there = topics.describe_all(client, [plan.topic], deadline)[plan.topic]
    writer = Writer(connection, plan.topic, None, timeout_s)
    began = time.monotonic()
    try:
        for some in chunks(plan):
            writer.write([(_ANY, one) for one in some])
            advance(len(some))
        writer.flush()
    except BaseException:
        writer.abandon()
        raise
    seconds = time.monotonic() - began
    return SeededCustomers(plan.topic, created, there.partitions, plan.count, plan.updates, plan.tombstones, seconds)
