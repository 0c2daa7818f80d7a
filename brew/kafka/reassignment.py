"""Move replicas and leaders; confluent-kafka can do neither, kafka-python both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Retriable
from brew.kafka import kafka_python
from brew.kafka.kafka_python import kafka_python_admin

_PREFERRED = 0


def reassign(connection: Connection, topic: str, replicas: Mapping[int, list[int]], deadline: Deadline) -> None:
    """
    Give partitions other replicas, or the same in another order, and let the first of each lead if it is in sync.

    Raises:
        Retriable: the controller refused, for one because the last reassignment is still going on.
    """
    with kafka_python_admin(connection, deadline) as client:
        _ask(client, deadline, "reassign", _alter_request(client, topic, replicas, deadline))
        _ask(client, deadline, "elect", _elect_request(topic, list(replicas), deadline))


def _alter_request(client: Any, topic: str, replicas: Mapping[int, list[int]], deadline: Deadline) -> Any:
    from kafka.protocol.admin import AlterPartitionReassignmentsRequest as Request  # noqa: PLC0415

    asked = {kafka_python.AdminPartition(topic, p): brokers for p, brokers in replicas.items()}
    topics = client._process_alter_partition_reassignments_input(asked)  # noqa: SLF001 - its own call has no deadline
    return Request(timeout_ms=int(deadline.remaining_s() * 1000), topics=topics)


def _elect_request(topic: str, partitions: list[int], deadline: Deadline) -> Any:
    from kafka.protocol.admin import ElectLeadersRequest as Request  # noqa: PLC0415

    places = [Request.TopicPartitions(topic=topic, partitions=partitions)]
    timeout = int(deadline.remaining_s() * 1000)
    return Request(election_type=_PREFERRED, topic_partitions=places, timeout_ms=timeout)


def _ask(client: Any, deadline: Deadline, step: str, request: Any) -> None:
    answer = kafka_python.ask(client, deadline, step, client._send_request_to_controller, request)  # noqa: SLF001
    if answer.error_code:
        raise Retriable(f"{step}: the controller answered with error {answer.error_code}")
