"""What a sink needs beside the kernel: source offsets in its transaction, and its batches found in its topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain

from confluent_kafka import TopicPartition

from brew.acl import Denial, denial_in
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Refused
from brew.kafka import topics
from brew.kafka.clients import BATCH_BYTES, admin
from brew.kafka.committed_offset import locator
from brew.kafka.log_reader import Headers, scan_rows
from brew.kafka.offsets import log_offsets
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.names import READ_COMMITTED, SinkTransactionalId

SourceOffsets = Mapping[str, Mapping[int, int]]
"""Topic -> partition -> the offset after the last record that a batch read."""

OLDEST = (3, 6)
_TAIL = 2_000
"""Records at the end of each partition that are searched for evidence."""
_ENDS_S = 60.0


@dataclass(frozen=True, slots=True)
class SharedEpoch:
    """What a task needs to write into the driver's transaction; sent to the executors."""

    connection: Connection
    transactional_id: str
    producer_id: int
    epoch: int
    timeout_s: float


class SinkTransaction(KafkaTransaction):
    """
    A `KafkaTransaction` that also commits a batch's source offsets, under a group that only lag tools read.

    Their metadata is the sink's transactional id, so that such a tool can find out whether a batch is in progress.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        topic: str,
        source_group: str | None = None,
        source_offsets: SourceOffsets | None = None,
    ) -> None:
        super().__init__(settings, topic, 0, SinkTransactionalId(settings.group, topic))
        self._source, self._group, self._source_group = None, settings.group, source_group or ""
        if source_group is not None and source_offsets:
            ours = str(SinkTransactionalId(settings.group, topic))
            offsets = [
                TopicPartition(name, p, at, ours) for name, found in source_offsets.items() for p, at in found.items()
            ]
            self._source = (locator(settings.connection, source_group), offsets)

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        """Send the source's offsets first, because the sink's own are confirmed after them."""
        if self._source is not None:
            group, offsets = self._source
            step = send_offsets_step(self._source_group, *{one.topic for one in offsets})
            self._add_offsets(step, group, offsets, deadline)
        super().send_offsets(until, metadata, deadline)

    def _step_name(self, step: str) -> str:
        name = super()._step_name(step)
        return send_offsets_step(self._group, self._topic) if name == "send-offsets" else name


def send_offsets_step(group: str, *topics: str) -> str:
    """Return the step's name for errors, from which `brew.acl` tells which of the two groups was refused."""
    return f"send-offsets of group {group} in topic {min(topics)}"


def described(connection: Connection, topic: str, deadline: Deadline) -> topics.Topic:
    """
    Return the sink's topic.

    Raises:
        Refused: the topic does not exist.
    """
    found = topics.describe(admin(connection), [topic], deadline)
    if topic not in found:
        raise Refused(
            f"the sink's topic {topic!r} does not exist; create it (kafka-topics --create --topic {topic} "
            "--partitions N), or name another topic"
        )
    return found[topic]


def max_batch_bytes(connection: Connection, topic: str, deadline: Deadline) -> int:
    """Return the size of record batches: the client's, or the topic's limit if that is smaller and may be read."""
    try:
        return min(BATCH_BYTES, topics.max_message_bytes(admin(connection), topic, deadline))
    except BrewError as error:
        if denial_in(str(error)) is Denial.RIGHT:
            return BATCH_BYTES
        raise


def check_brokers(connection: Connection, deadline: Deadline) -> None:
    """
    Raises:
        Refused: the brokers append to a partition without verifying that the transaction includes it.
    """
    from brew.kafka.kafka_python import kafka_python_admin  # noqa: PLC0415 - 0.15 s, which workers do not need

    with kafka_python_admin(connection, deadline) as client:
        version = client._manager.broker_version_data.broker_version  # noqa: SLF001 - as elsewhere
    if version < OLDEST:
        raise Refused(
            f"the brokers at {connection.bootstrap} speak the protocol of Kafka {'.'.join(map(str, version))}; the "
            "sink needs 3.6 or later: before, a record that arrives late can open a transaction that nobody ends "
            "(KIP-890); upgrade them, or accept that with allow_old_brokers=True"
        )


def last_in_topic(connection: Connection, topic: str, group: str, header: str, wanted: tuple[str, bytes]) -> int | None:
    """
    Return the highest number in ``header`` among the topic's last records that have the header ``wanted``, or None.

    Raises:
        DeadlineExceeded: the ends of the partitions could not be read in time.
    """
    deadline = Deadline(_ENDS_S)
    count = described(connection, topic, deadline).partitions
    logs = log_offsets(admin(connection), topic, range(count), deadline)
    ranges = {p: (max(log.first, log.last_stable - _TAIL), log.last_stable) for p, log in logs.items()}
    rows = chain.from_iterable(scan_rows(connection, topic, ranges, READ_COMMITTED, _no_headers, group=group))
    found = (_number(row[4], header, wanted) for row in rows)
    return max((number for number in found if number is not None), default=None)


def _no_headers(_topic: str, _partition: int, _offset: int) -> Headers:
    """Stand for headers that the client library can't read: a sink refuses to write such names."""
    return []


def _number(headers: Headers, header: str, wanted: tuple[str, bytes]) -> int | None:
    found = dict(headers)
    value = found.get(header)
    if found.get(wanted[0]) != wanted[1] or not isinstance(value, bytes) or not value.isdigit():
        return None
    return int(value)
