"""Make customers' profiles and write them to their compacted topic."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import UsageError
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.records import COMPACT, profile
from proof.seed import Writer

_CHUNK = 10_000
_SHARES = {"gold": 5, "silver": 15, "bronze": 30, "standard": 50}

Profile = tuple[bytes, bytes | None]
"""Customer and value; None removes the customer."""


@dataclass(frozen=True, slots=True)
class Customers:
    """
    ``count`` customers, `c-00001` and so on, as the seeded orders name them; then ``updates`` of some of them, and then
    ``tombstones`` that remove some; who is drawn from ``seed``.
    """

    topic: str
    count: int
    seed: int = 0
    updates: int = 0
    tombstones: int = 0

    def __post_init__(self) -> None:
        if min(self.count, self.updates, self.tombstones) < 0:
            raise UsageError("--customers, --updates and --tombstones can't be negative; give 0 or more")
        if self.tombstones > self.count:
            raise UsageError(
                f"--tombstones is {self.tombstones}, and there are {self.count} customers (--customers) to remove"
            )
        if self.updates and not self.count:
            raise UsageError(f"--updates is {self.updates}, and --customers 0 leaves nobody to update")

    @property
    def records(self) -> int:
        return self.count + self.updates + self.tombstones


def name(number: int) -> bytes:
    """A customer's id, the record's key."""
    return b"c-%05d" % number


def chunks(plan: Customers) -> Iterator[list[Profile]]:
    """Everything to write, in order, a chunk at a time."""
    every = _profiles(plan)
    while some := list(islice(every, _CHUNK)):
        yield some


def _profiles(plan: Customers) -> Iterator[Profile]:
    dice = random.Random(plan.seed)  # noqa: S311 - example data
    tiers = [tier for tier, share in _SHARES.items() for _ in range(share)]

    def of(number: int) -> Profile:
        return name(number), profile(name(number).decode(), dice.choice(tiers))

    made = (of(number) for number in range(1, plan.count + 1))
    updated = (of(dice.randint(1, plan.count)) for _ in range(plan.updates))
    return chain(made, updated, _removed(plan, dice))


def _removed(plan: Customers, dice: random.Random) -> Iterator[Profile]:
    for number in dice.sample(range(1, plan.count + 1), plan.tombstones):
        yield name(number), None


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
        created = topics.create(client, [topics.TopicSpec(plan.topic, partitions, config)], deadline)[plan.topic]
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
