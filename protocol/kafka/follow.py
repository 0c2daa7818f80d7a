"""Read topics without an end, whatever happens to the brokers meanwhile."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from itertools import groupby
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from protocol.kafka.clients import Connection, consumer, mapped
from protocol.kafka.scan import TRANSIENT, LogRecord

_BATCH = 1000
_POLL_S = 0.02
_GROUP = "brew-follow"


def follow(
    connection: Connection, starts: Mapping[str, Mapping[int, int]], isolation: str
) -> Generator[tuple[str, list[LogRecord]], None, None]:
    """
    Yield (topic, records) in the order of reading, from ``starts`` (topic -> partition -> offset) on, for ever.

    What the client library repairs by itself (brokers gone, leaders moving) is passed over; nothing is committed.
    """
    reader = consumer(connection, _GROUP, isolation, **{"fetch.wait.max.ms": 20, "enable.partition.eof": False})
    try:
        reader.assign([TopicPartition(t, p, start) for t, found in starts.items() for p, start in found.items()])
        while True:
            with mapped("follow"):
                got = [one for one in reader.consume(_BATCH, timeout=_POLL_S) if _is_record(one)]
            for topic, some in groupby(got, key=lambda record: str(record.topic())):
                yield topic, cast("list[LogRecord]", list(some))
    finally:
        reader.close()


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if not error.retriable() and error.code() not in TRANSIENT | {KafkaError.UNKNOWN_TOPIC_OR_PART}:
        raise KafkaException(error)
    return False
