"""Topics, and a transaction like the pipeline's on real brokers, up to the point that a test examines."""

from __future__ import annotations

from collections.abc import Mapping

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.kafka.transaction import KafkaTransaction, TransactionSettings

from .names import Names

STEP_S = 20.0


def make_topics(
    connection: Connection, *names: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create these topics, and wait until every broker knows them."""
    client = admin(connection)
    topics.create(client, [topics.TopicSpec(name, partitions, config or {}) for name in names], Deadline(30))
    topics.describe_all(client, list(names), Deadline(30))


def begun(connection: Connection, names: Names) -> KafkaTransaction:
    """Begin a transaction in partition 0 with one flushed record; the caller must end and close it."""
    kafka = KafkaTransaction(TransactionSettings(connection, names.group, STEP_S), names.input, 0)
    try:
        kafka.fence(Deadline(STEP_S))
        kafka.locate(Deadline(STEP_S))
        kafka.begin()
        kafka.produce(names.output, b"1", None, 0)
        kafka.flush(Deadline(STEP_S))
    except BaseException:
        kafka.close()
        raise
    return kafka
