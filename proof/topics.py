"""The pipeline's topics, made where they are missing, and customers' profiles, written to their compacted topic."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice

from brew.claims import messages
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import UsageError
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.kafka.topics import MAX_MESSAGE_BYTES, TopicSpec
from brew.names import quantity
from brew.orders import COMPACT, profile
from proof.seed import Writer

# What comes out is longer than what went in: two fields and three headers.
ROOM_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class PipelineTopics:
    """The five topics' names, and the partitions of those made now."""

    input: str
    output: str
    dead_letter: str
    customers: str
    claims: str
    partitions: int


@dataclass(frozen=True, slots=True)
class TopicResult:
    """Whether a topic was created, and its size."""

    topic: str
    created: bool
    partitions: int
    replicas: int
    wanted_partitions: int

    def __str__(self) -> str:
        size = f"{quantity(self.partitions, 'partition')}, {quantity(self.replicas, 'replica')}"
        if self.created:
            return f"{self.topic}: created with {size}"
        if self.partitions == self.wanted_partitions:
            return f"{self.topic}: was there with {size}"
        return f"{self.topic}: was there with {size}, and keeps them ({self.wanted_partitions} were asked for)"


def create_topics(connection: Connection, wanted: PipelineTopics, deadline: Deadline) -> list[TopicResult]:
    """Create missing topics; the output accepts any record of the input, plus the fields and headers we add."""
    client = admin(connection)
    made = topics.create(client, [TopicSpec(wanted.input, wanted.partitions, {})], deadline)
    topics.describe_all(client, [wanted.input], deadline)
    room = {MAX_MESSAGE_BYTES: str(topics.max_message_bytes(client, wanted.input, deadline) + ROOM_BYTES)}
    made |= topics.create(
        client,
        [
            TopicSpec(wanted.output, wanted.partitions, room),
            TopicSpec(wanted.dead_letter, wanted.partitions, room),
            TopicSpec(wanted.customers, wanted.partitions, {"cleanup.policy": "compact"}),
            TopicSpec(wanted.claims, messages.PARTITIONS, messages.CONFIG),
        ],
        deadline,
    )
    there = topics.describe_all(client, list(made), deadline)
    asked = {name: messages.PARTITIONS if name == wanted.claims else wanted.partitions for name in made}
    return [TopicResult(n, made[n], there[n].partitions, there[n].replicas, asked[n]) for n in made]


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
    while chunk := list(islice(every, _CHUNK)):
        yield chunk


def _profiles(plan: Customers) -> Iterator[Profile]:
    rng = random.Random(plan.seed)  # noqa: S311 - example data
    tiers = [tier for tier, share in _SHARES.items() for _ in range(share)]

    def of(number: int) -> Profile:
        return name(number), profile(name(number).decode(), rng.choice(tiers))

    made = (of(number) for number in range(1, plan.count + 1))
    updated = (of(rng.randint(1, plan.count)) for _ in range(plan.updates))
    return chain(made, updated, _removed(plan, rng))


def _removed(plan: Customers, rng: random.Random) -> Iterator[Profile]:
    for number in rng.sample(range(1, plan.count + 1), plan.tombstones):
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
        size = quantity(self.partitions, "partition")
        return (
            f"{quantity(self.customers, 'customer')} on {self.topic} ({made} {size}), "
            f"{quantity(self.updates, 'update')}, {self.tombstones} removed, {self.seconds:.1f} s"
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
    Write the profiles of the plan; call ``advance`` with the number of records written since the last call.

    A topic that is made here keeps what was replaced for a day, so that `verify` finds what an output was made with.

    Raises:
        Refused: the topic can't be made, or a record could not be delivered.
    """
    client = admin(connection)
    config = {topics.CLEANUP_POLICY: COMPACT, "min.compaction.lag.ms": str(_KEPT_MS)}
    created = False
    if not topics.describe(client, [plan.topic], deadline):
        created = topics.create(client, [TopicSpec(plan.topic, partitions, config)], deadline)[plan.topic]
    there = topics.describe_all(client, [plan.topic], deadline)[plan.topic]
    writer = Writer(connection, plan.topic, None, timeout_s)
    began = time.monotonic()
    try:
        for chunk in chunks(plan):
            writer.write([(_ANY, profile) for profile in chunk])
            advance(len(chunk))
        writer.flush()
    except BaseException:
        writer.abandon()
        raise
    seconds = time.monotonic() - began
    return SeededCustomers(plan.topic, created, there.partitions, plan.count, plan.updates, plan.tombstones, seconds)
