"""Enriched orders on a topic, as the pipeline writes them, without a pipeline."""

from __future__ import annotations

import random
from collections.abc import Iterator

import orjson

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin, producer
from brew.kafka.offsets import committed_by
from brew.kafka.transaction import connect_early, fenced
from brew.names import READ_COMMITTED
from brew.offsets import SourcePosition
from brew.orders import DISCOUNTS

from .servers import make_topics
from .waiting import markers_written, until

TIERS = list(DISCOUNTS)
SOURCE = "orders"


def orders(count: int, seed: int = 1, customers: int = 200) -> Iterator[tuple[bytes, dict[str, object]]]:
    """Yield key and enriched order, equal for equal seeds."""
    dice = random.Random(seed)
    for number in range(count):
        tier = TIERS[number % 4]
        yield (
            b"%s-%06d" % (tier.encode(), number),
            {
                "order_id": f"{tier}-{number:06d}",
                "customer_id": f"c-{dice.randrange(customers):05d}",
                "quantity": dice.randint(1, 5),
                "total_cents": dice.randrange(250, 5000),
                "loyalty_tier": tier,
                "loyalty_discount": DISCOUNTS[tier],
            },
        )


def make_topic(bootstrap: str, topic: str, partitions: int = 4, **config: str) -> None:
    make_topics(Connection(bootstrap), topic, partitions=partitions, config=config)


def recreate_topic(bootstrap: str, topic: str, *groups: str, partitions: int = 4) -> None:
    """Delete the topic and create it anew, once the brokers have forgotten the groups' offsets in it."""
    connection = Connection(bootstrap)
    client = admin(connection)
    cluster_admin.delete_topics(client, [topic], Deadline(20))
    until(lambda: topic not in topics.describe(client, [topic], Deadline(20)), "the topic's end")

    def forgotten(group: str) -> bool:
        known = committed_by(connection, group, topic, range(partitions), READ_COMMITTED, Deadline(20))
        return set(known.values()) == {None}

    for group in groups:
        until(lambda group=group: forgotten(group), "the end of its offsets")
    make_topic(bootstrap, topic, partitions)


def write(bootstrap: str, topic: str, count: int, *, partitions: int = 4, seed: int = 1, first: int = 0) -> None:
    """
    Append ``count`` committed orders round robin, a third as many aborted ones, and committed poison.

    ``first`` is the first source offset, so that a second call writes different orders.
    """
    writer = producer(Connection(bootstrap), f"{topic}-writer", timeout_s=30, message_max_bytes=2_000_000)
    fenced(writer, Deadline(30))
    for phantom in (True, False):
        writer.begin_transaction()
        for number, (key, order) in enumerate(orders(count // 3 if phantom else count, seed)):
            source = SourcePosition(SOURCE, number % partitions, first + number // partitions)
            value = orjson.dumps(order | {"phantom": True} if phantom else order)
            writer.produce(topic, value, key, number % partitions, headers=source.headers())
            writer.poll(0)
        assert writer.flush(30) == 0
        (writer.abort_transaction if phantom else writer.commit_transaction)(30)
    writer.close()
    markers_written(Connection(bootstrap), topic)  # a drain ends at the last stable offset that it starts with


def write_raw(bootstrap: str, topic: str, *values: bytes | None) -> None:
    """Write records that no pipeline would write, to partition 0, without headers."""
    writer = producer(Connection(bootstrap), None, timeout_s=30, message_max_bytes=2_000_000)
    connect_early(writer, topic)
    for value in values:
        writer.produce(topic, value, b"raw", 0)
    assert writer.flush(30) == 0
