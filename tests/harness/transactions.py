"""A transaction like the pipeline's on real brokers, up to the point that a test examines."""

from __future__ import annotations

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.kafka.transaction import KafkaTransaction, TransactionSettings

from .names import Names

STEP_S = 20.0


def topics_made(connection: Connection, names: Names, partitions: int = 1) -> None:
    """Create input and output, and wait until every broker knows them."""
    wanted = [topics.TopicSpec(name, partitions, {}) for name in (names.input, names.output)]
    topics.create(admin(connection), wanted, Deadline(STEP_S))
    topics.describe_all(admin(connection), [names.input, names.output], Deadline(STEP_S))


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
