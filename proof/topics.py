"""Make the topics of the house where they are missing."""

from __future__ import annotations

from dataclasses import dataclass

from brew.claims import messages
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.kafka.topics import MAX_MESSAGE_BYTES, TopicSpec

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
    """What became of one topic."""

    topic: str
    created: bool
    partitions: int
    replicas: int
    wanted_partitions: int

    def __str__(self) -> str:
        size = f"{self.partitions} partitions, {self.replicas} replica{'s' if self.replicas != 1 else ''}"
        if self.created:
            return f"{self.topic}: created with {size}"
        if self.partitions == self.wanted_partitions:
            return f"{self.topic}: was there with {size}"
        return f"{self.topic}: was there with {size}, and keeps them ({self.wanted_partitions} were asked for)"


def create_topics(connection: Connection, wanted: PipelineTopics, deadline: Deadline) -> list[TopicResult]:
    """Make what is missing; the output takes any record that the input takes, with what we add to it."""
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
