"""What an operator, or a fault, does to a cluster: who leads what, and moving, deleting and forgetting things."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewPartitions

from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Retriable
from protocol.kafka.clients import asking, attempt_s, mapped
from protocol.retry import again

TRANSACTIONS = "__transaction_state"
OFFSETS = "__consumer_offsets"

_INT_BITS, _JAVA_HASH_FACTOR = 32, 31


def home_of(name: str, partitions: int) -> int:
    """The partition of the coordinators' log that keeps ``name``: Java's hash of the text, its sign dropped."""
    data = name.encode("utf-16-be")
    value = 0
    for at in range(0, len(data), 2):
        value = (value * _JAVA_HASH_FACTOR + (data[at] << 8 | data[at + 1])) % 2**_INT_BITS
    signed = value - 2**_INT_BITS if value >= 2 ** (_INT_BITS - 1) else value
    return (0 if signed == -(2 ** (_INT_BITS - 1)) else abs(signed)) % partitions


def leaders(client: AdminClient, topic: str, deadline: Deadline) -> dict[int, int]:
    """The broker that leads each partition, -1 while there is none."""
    return {p: leader for p, (leader, _in_sync, _all) in _replicas(client, topic, deadline).items()}


def coordinator(client: AdminClient, log: str, name: str, deadline: Deadline) -> int:
    """The broker that coordinates ``name``: a transactional id in `TRANSACTIONS`, a group in `OFFSETS`."""
    found = leaders(client, log, deadline)
    return found[home_of(name, len(found))]


def out_of_sync(client: AdminClient, names: Iterable[str], deadline: Deadline) -> list[str]:
    """The partitions without leader or with a replica that is behind, as `topic[partition]`."""
    return [
        f"{name}[{p}]"
        for name in names
        for p, (leader, in_sync, everywhere) in _replicas(client, name, deadline).items()
        if leader < 0 or len(in_sync) < len(everywhere)
    ]


def _replicas(client: AdminClient, topic: str, deadline: Deadline) -> dict[int, tuple[int, list[int], list[int]]]:
    def ask() -> dict[int, tuple[int, list[int], list[int]]]:
        with asking(f"describe topic {topic}"):
            asked = client.describe_topics(TopicCollection([topic]), request_timeout=attempt_s(deadline))
            told = asked[topic].result().partitions
        return {
            one.id: (-1 if one.leader is None else one.leader.id, [n.id for n in one.isr], [n.id for n in one.replicas])
            for one in told
        }

    return again(ask, f"describe topic {topic}", deadline)


def brokers(client: AdminClient, deadline: Deadline) -> list[int]:
    """The numbers of the brokers that are alive."""
    with mapped("list brokers"):
        return sorted(client.list_topics(timeout=_left(deadline)).brokers)


def delete_topics(client: AdminClient, names: list[str], deadline: Deadline) -> None:
    _all(lambda: client.delete_topics(names, operation_timeout=_left(deadline)), "delete topics", deadline)


def delete_group(connection: Connection, group: str, deadline: Deadline) -> None:
    """Make the brokers forget a group with its offsets."""
    from protocol.kafka import group_requests  # noqa: PLC0415 - with it kafka-python is imported, 0.15 s

    group_requests.deleted(connection, group, deadline)


def delete_records(client: AdminClient, topic: str, before: Mapping[int, int], deadline: Deadline) -> None:
    """Move the log starts up to ``before`` (partition -> offset), as retention does."""
    asked = [TopicPartition(topic, p, offset) for p, offset in before.items()]
    _all(lambda: client.delete_records(asked, request_timeout=_left(deadline)), "delete records", deadline)


def set_offsets(connection: Connection, group: str, topic: str, offsets: Mapping[int, int], deadline: Deadline) -> None:
    """Move a group without members by hand."""
    from protocol.kafka import group_requests  # noqa: PLC0415 - as above

    group_requests.moved(connection, group, topic, offsets, deadline)


def add_partitions(client: AdminClient, topic: str, total: int, deadline: Deadline) -> None:
    asked = [NewPartitions(topic, total)]
    _all(lambda: client.create_partitions(asked, operation_timeout=_left(deadline)), "add partitions", deadline)


def set_config(client: AdminClient, topic: str, config: Mapping[str, str], deadline: Deadline) -> None:
    """Change settings of a topic; the others stay."""
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    asked = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)]
    timeout = _left(deadline)
    _all(lambda: client.incremental_alter_configs(asked, request_timeout=timeout), f"configure {topic}", deadline)


def _all(call: Callable[[], Mapping[Any, Any]], step: str, deadline: Deadline) -> None:
    """Make one request and wait for each of its answers; retriable failures are asked again."""

    def ask() -> None:
        with mapped(step):
            for future in call().values():
                future.result()

    again(ask, step, deadline)


def _left(deadline: Deadline) -> float:
    if deadline.expired():
        raise Retriable("no time left")
    return max(0.001, deadline.remaining_s())
