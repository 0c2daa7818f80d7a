"""Administer a cluster: leaders, replicas, reassignments, deletions, configurations, ACLs and SCRAM passwords."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any

from confluent_kafka import IsolationLevel, TopicCollection, TopicPartition, TopicPartitionInfo
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from confluent_kafka.cimpl import NewPartitions

from brew.acl import Kind, Right
from brew.connection import Connection, Secret
from brew.deadline import Deadline, retry_until
from brew.errors import KafkaFailure, Refused, Retriable
from brew.kafka import topics
from brew.kafka.clients import attempt_s, mapped, mapped_query

TRANSACTIONS = "__transaction_state"
OFFSETS = "__consumer_offsets"

_INT_BITS, _JAVA_HASH_FACTOR = 32, 31
_ROOM_BYTES, _MOST_BYTES = 65_536, 2**31 - 1


def coordinator_partition(name: str, partitions: int) -> int:
    """Return the partition of the coordinators' topic that holds ``name``: the absolute value of Java's string hash."""
    data = name.encode("utf-16-be")
    value = 0
    for index in range(0, len(data), 2):
        value = (value * _JAVA_HASH_FACTOR + (data[index] << 8 | data[index + 1])) % 2**_INT_BITS
    signed = value - 2**_INT_BITS if value >= 2 ** (_INT_BITS - 1) else value
    return (0 if signed == -(2 ** (_INT_BITS - 1)) else abs(signed)) % partitions


def leaders(client: AdminClient, topic: str, deadline: Deadline) -> dict[int, int]:
    """Return the leader of each partition, -1 if there is none."""
    partitions = _partitions(client, topic, deadline)
    return {partition.id: -1 if partition.leader is None else partition.leader.id for partition in partitions}


def leaderless(client: AdminClient, topic: str, deadline: Deadline) -> list[int]:
    """Return the partitions without a leader; a query of offsets fails as a whole if it includes one of them."""
    return sorted(p for p, leader in leaders(client, topic, deadline).items() if leader < 0)


def last_stable(client: AdminClient, topic: str, partitions: Iterable[int], deadline: Deadline) -> dict[int, int]:
    """Return the last stable offset of each partition, with one request to each leader."""
    step, latest = f"end of {topic}", OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, partition): latest for partition in partitions}
    level = IsolationLevel.READ_COMMITTED

    def ask() -> dict[int, int]:
        with mapped_query(step):
            answers = client.list_offsets(wanted, isolation_level=level, request_timeout=attempt_s(deadline))
            offsets = {tp.partition: future.result().offset for tp, future in answers.items()}
        if any(offset < 0 for offset in offsets.values()):
            raise Retriable(f"{step}: a leader has none yet")
        return offsets

    return retry_until(ask, step, deadline)


def no_leader(topic: str, partitions: Iterable[int]) -> str:
    """Return a sentence on partitions without a leader; empty if there are none."""
    places = ", ".join(f"{topic}[{p}]" for p in partitions)
    return f"no leader for {places}; start a broker that holds them" if places else ""


def roomier_limit(client: AdminClient, topic: str, deadline: Deadline) -> dict[str, str]:
    """Return the setting of a topic whose records are made from those of ``topic``, and are larger by their headers."""
    limit = topics.max_message_bytes(client, topic, deadline) + _ROOM_BYTES
    return {topics.MAX_MESSAGE_BYTES: str(min(limit, _MOST_BYTES))}


def coordinator(client: AdminClient, log: str, name: str, deadline: Deadline) -> int:
    """Return the broker that coordinates ``name``: a transactional id in `TRANSACTIONS`, a group in `OFFSETS`."""
    leader_by_partition = leaders(client, log, deadline)
    return leader_by_partition[coordinator_partition(name, len(leader_by_partition))]


def out_of_sync(client: AdminClient, names: Iterable[str], deadline: Deadline) -> list[str]:
    """Return the partitions without a leader or with a replica out of sync, as `topic[partition]`."""
    return [
        f"{name}[{partition.id}]"
        for name in names
        for partition in _partitions(client, name, deadline)
        if partition.leader is None or len(partition.isr) < len(partition.replicas)
    ]


def _partitions(client: AdminClient, topic: str, deadline: Deadline) -> list[TopicPartitionInfo]:
    def ask() -> list[TopicPartitionInfo]:
        with mapped_query(f"describe topic {topic}"):
            futures = client.describe_topics(TopicCollection([topic]), request_timeout=attempt_s(deadline))
            return list(futures[topic].result().partitions)

    return retry_until(ask, f"describe topic {topic}", deadline)


def brokers(client: AdminClient, deadline: Deadline) -> list[int]:
    with mapped("list brokers"):
        return sorted(client.list_topics(timeout=_remaining_s(deadline)).brokers)


def delete_topics(client: AdminClient, names: list[str], deadline: Deadline) -> None:
    _await_all(lambda: client.delete_topics(names, operation_timeout=_remaining_s(deadline)), "delete topics", deadline)


def delete_group(connection: Connection, group: str, deadline: Deadline) -> None:
    from brew.kafka import group_requests  # noqa: PLC0415 - imports kafka-python, 0.15 s

    group_requests.delete_group(connection, group, deadline)


def delete_records(client: AdminClient, topic: str, before: Mapping[int, int], deadline: Deadline) -> None:
    """Delete the records below ``before`` (partition -> offset), as retention does."""
    requests = [TopicPartition(topic, p, offset) for p, offset in before.items()]
    _await_all(
        lambda: client.delete_records(requests, request_timeout=_remaining_s(deadline)), "delete records", deadline
    )


def set_offsets(connection: Connection, group: str, topic: str, offsets: Mapping[int, int], deadline: Deadline) -> None:
    """Set the committed offsets of a group without members."""
    from brew.kafka import group_requests  # noqa: PLC0415 - as above

    group_requests.set_group_offsets(connection, group, topic, offsets, deadline)


def add_partitions(client: AdminClient, topic: str, total: int, deadline: Deadline) -> None:
    requests = [NewPartitions(topic, total)]
    _await_all(
        lambda: client.create_partitions(requests, operation_timeout=_remaining_s(deadline)), "add partitions", deadline
    )


def set_config(client: AdminClient, topic: str, config: Mapping[str, str], deadline: Deadline) -> None:
    changes = [ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in config.items()]
    resources = [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)]
    timeout = _remaining_s(deadline)
    _await_all(
        lambda: client.incremental_alter_configs(resources, request_timeout=timeout), f"configure {topic}", deadline
    )


def _await_all(call: Callable[[], Mapping[Any, Any]], step: str, deadline: Deadline) -> None:
    """Send one request and wait for all answers; repeat it on retriable failures."""

    def ask() -> None:
        with mapped(step):
            for future in call().values():
                future.result()

    retry_until(ask, step, deadline)


def _remaining_s(deadline: Deadline) -> float:
    if deadline.expired():
        raise Retriable("the deadline has passed")
    return max(0.001, deadline.remaining_s())


_KINDS = {
    Kind.TOPIC: ResourceType.TOPIC,
    Kind.GROUP: ResourceType.GROUP,
    Kind.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    Kind.CLUSTER: ResourceType.BROKER,
}
_MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SCRAM_SHA_256, "SCRAM-SHA-512": ScramMechanism.SCRAM_SHA_512}
_ITERATIONS = 4096  # the minimum that brokers accept; each new connection pays for them


def grant(client: AdminClient, rights: Iterable[Right], principal: str, deadline: Deadline) -> None:
    """
    Grant ``rights`` to ``principal`` (`User:name`).

    Raises, as the functions below do:
        Refused: the brokers have no authorizer, or this client lacks the right.
        DeadlineExceeded: no broker completed the request in time.
    """
    bindings = [_acl(AclBinding, right, principal) for right in rights]
    _answers(partial(client.create_acls, bindings), f"granting rights to {principal}", deadline)


def revoke(client: AdminClient, rights: Iterable[Right], principal: str, deadline: Deadline) -> int:
    """Revoke rights; return the number of ACL entries in the brokers' last answer."""
    filters = [_acl(AclBindingFilter, right, principal) for right in rights]
    answers = _answers(partial(client.delete_acls, filters), f"taking rights from {principal}", deadline)
    return sum(len(entries) for entries in answers)


def set_passwords(
    client: AdminClient, passwords: Mapping[str, Secret], mechanisms: Iterable[str], deadline: Deadline
) -> None:
    for mechanism in mechanisms:  # a request may name a user once
        credentials: list[Any] = [
            UserScramCredentialUpsertion(
                user, ScramCredentialInfo(_MECHANISMS[mechanism], _ITERATIONS), password.reveal().encode()
            )
            for user, password in passwords.items()
        ]
        _answers(partial(client.alter_user_scram_credentials, credentials), "setting SCRAM passwords", deadline)


def set_of_broker(client: AdminClient, broker: int, name: str, value: str | None, deadline: Deadline) -> None:
    """Change a dynamic setting of a broker; None restores the value of the broker's configuration file."""
    kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
    entry = ConfigEntry(name, value, incremental_operation=kind)
    resource = ConfigResource(ResourceType.BROKER, str(broker), incremental_configs=[entry])
    _answers(partial(client.incremental_alter_configs, [resource]), f"setting {name} of broker {broker}", deadline)


def _acl(make: Any, right: Right, principal: str) -> Any:
    cluster = right.kind is Kind.CLUSTER
    pattern = ResourcePatternType.PREFIXED if right.prefix else ResourcePatternType.LITERAL
    name = "kafka-cluster" if cluster else right.name
    operation = AclOperation[right.operation.name]
    return make(_KINDS[right.kind], name, pattern, principal, "*", operation, AclPermissionType.ALLOW)


def _answers(request: Callable[..., Mapping[Any, Future[Any]]], step: str, deadline: Deadline) -> list[Any]:
    """Return all answers; an unanswered request is repeated, which is safe because these requests are idempotent."""

    def attempt() -> list[Any]:
        with mapped_query(step):
            return [future.result() for future in request(request_timeout=attempt_s(deadline)).values()]

    try:
        return retry_until(attempt, step, deadline)
    except KafkaFailure as error:
        raise Refused(f"{error}; ask an administrator of the cluster to do it") from error


_PREFERRED = 0


def reassign(connection: Connection, topic: str, replicas: Mapping[int, list[int]], deadline: Deadline) -> None:
    """
    Assign partitions to other replicas, or reorder them, and elect the first of each as leader if it is in sync. Raises
    `Retriable`: the controller refused, for example because the last reassignment is still in progress.
    """
    from kafka import TopicPartition as AdminPartition  # noqa: PLC0415 - 0.15 s; confluent-kafka can't do this
    from kafka.protocol import admin as protocol  # noqa: PLC0415 - as above

    from brew.kafka.kafka_python import kafka_python_admin  # noqa: PLC0415 - as above

    wanted = {AdminPartition(topic, p): brokers for p, brokers in replicas.items()}
    requested = [protocol.ElectLeadersRequest.TopicPartitions(topic=topic, partitions=list(replicas))]
    with kafka_python_admin(connection, deadline) as client:
        changes = client._process_alter_partition_reassignments_input(wanted)  # noqa: SLF001 - its own call has no deadline
        timeout = {"timeout_ms": int(deadline.remaining_s() * 1000)}
        request = protocol.AlterPartitionReassignmentsRequest(topics=changes, **timeout)
        _send_to_controller(client, deadline, "reassign", request)
        timeout = {"timeout_ms": int(deadline.remaining_s() * 1000)}
        request = protocol.ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=requested, **timeout)
        _send_to_controller(client, deadline, "elect", request)


def _send_to_controller(client: Any, deadline: Deadline, step: str, request: Any) -> None:
    from brew.kafka import kafka_python  # noqa: PLC0415 - as above

    answer = kafka_python.ask(client, deadline, step, client._send_request_to_controller, request)  # noqa: SLF001
    if answer.error_code:
        raise Retriable(f"{step}: the controller answered with error {answer.error_code}")
