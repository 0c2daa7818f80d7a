"""
Requests to the coordinator of a consumer group: describe it, delete it, move its offsets.

All of them are kafka-python's. librdkafka's admin client can end the whole process over a question to a coordinator:
with SIGSEGV when the coordinator has moved, and with SIGABRT when its broker restarts (docs/decisions/0012).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from typing import Any

from brew.cluster import GroupFacts
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.kafka.kafka_python import AdminPartition, KafkaAdminClient, ask, kafka_python_admin, open_admin

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import errors
    from kafka.admin import ACLOperation
    from kafka.errors import GroupIdNotFoundError, IncompatibleBrokerVersion, for_code
    from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
    from kafka.protocol.api_message import ApiMessage
    from kafka.structs import OffsetAndMetadata

_UNTOLD = 31
"""The bit that stands for "not asked for, or too old a broker" in a bit field of operations."""
_MEMBER = [
    {"name": "MemberId", "type": "string", "versions": "0+"},
    {"name": "InstanceId", "type": "string", "versions": "0+", "nullableVersions": "0+", "default": "null"},
    {"name": "RackId", "type": "string", "versions": "0+", "nullableVersions": "0+", "default": "null"},
    {"name": "MemberEpoch", "type": "int32", "versions": "0+"},
    {"name": "ClientId", "type": "string", "versions": "0+"},
    {"name": "ClientHost", "type": "string", "versions": "0+"},
    {"name": "SubscribedTopicNames", "type": "[]string", "versions": "0+"},
    {"name": "SubscribedTopicRegex", "type": "string", "versions": "0+", "nullableVersions": "0+", "default": "null"},
]


def _assignment(name: str) -> dict[str, Any]:
    partitions = [
        {"name": "TopicId", "type": "uuid", "versions": "0+"},
        {"name": "TopicName", "type": "string", "versions": "0+"},
        {"name": "Partitions", "type": "[]int32", "versions": "0+"},
    ]
    topics = {"name": "TopicPartitions", "type": "[]TopicPartitions", "versions": "0+", "fields": partitions}
    return {"name": name, "type": "Assignment", "versions": "0+", "fields": [topics]}


_GROUP = [
    {"name": "ErrorCode", "type": "int16", "versions": "0+"},
    {"name": "ErrorMessage", "type": "string", "versions": "0+", "nullableVersions": "0+", "default": "null"},
    {"name": "GroupId", "type": "string", "versions": "0+"},
    {"name": "GroupState", "type": "string", "versions": "0+"},
    {"name": "GroupEpoch", "type": "int32", "versions": "0+"},
    {"name": "AssignmentEpoch", "type": "int32", "versions": "0+"},
    {"name": "AssignorName", "type": "string", "versions": "0+"},
    {
        "name": "Members",
        "type": "[]Member",
        "versions": "0+",
        "fields": [*_MEMBER, _assignment("Assignment"), _assignment("TargetAssignment")],
    },
    {"name": "AuthorizedOperations", "type": "bitfield", "versions": "0+", "default": "-2147483648"},
]
_KIP_848 = {"apiKey": 69, "validVersions": "0", "flexibleVersions": "0+"}


# kafka-python 3.0 has no schema of this request; a message's class finds its schema by its own name.
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # as above

    class _ConsumerGroups:
        class DescribeGroupsRequest(ApiMessage):  # type: ignore[misc]
            """ConsumerGroupDescribe (KIP-848), version 0."""

            @classmethod
            def json_patch(cls, _json: Any) -> dict[str, Any]:
                fields = [
                    {"name": "GroupIds", "type": "[]string", "versions": "0+"},
                    {"name": "IncludeAuthorizedOperations", "type": "bool", "versions": "0+"},
                ]
                return {**_KIP_848, "type": "request", "name": "ConsumerGroupDescribeRequest", "fields": fields}

        class DescribeGroupsResponse(ApiMessage):  # type: ignore[misc]
            """ConsumerGroupDescribe (KIP-848), version 0."""

            @classmethod
            def json_patch(cls, _json: Any) -> dict[str, Any]:
                fields = [
                    {"name": "ThrottleTimeMs", "type": "int32", "versions": "0+"},
                    {"name": "Groups", "type": "[]DescribedGroup", "versions": "0+", "fields": _GROUP},
                ]
                return {**_KIP_848, "type": "response", "name": "ConsumerGroupDescribeResponse", "fields": fields}


def describe_group(admin: KafkaAdminClient, group: str, deadline: Deadline) -> GroupFacts:
    """
    A group's state, members and what this client may do with it; `dead` where there is none of that name.

    Raises:
        KafkaFailure, DeadlineExceeded: its coordinator did not say.
    """
    facts: GroupFacts = ask(admin, deadline, f"describe group {group}", _described, admin, group)
    return facts


async def _described(admin: KafkaAdminClient, group: str) -> GroupFacts:
    """As members join with the classic protocol, and where there is no such group, with that of KIP-848."""
    found = await _asked(admin, group, DescribeGroupsRequest)
    if found is None or found.group_state == "Dead":
        try:
            newer = await _asked(admin, group, _ConsumerGroups.DescribeGroupsRequest, ids="group_ids")
        except IncompatibleBrokerVersion:
            newer = None  # before Kafka 4.0
        found = newer or found
    return GroupFacts("dead", ()) if found is None else _facts(found)


async def _asked(admin: KafkaAdminClient, group: str, request: Any, ids: str = "groups") -> Any:
    """What its coordinator tells of one group; None where it knows of none of that name and kind."""
    coordinator = await admin._find_coordinator_id(group)  # noqa: SLF001 - as `introspect` does, to bound the call
    asked = request(**{ids: [group]}, include_authorized_operations=True)
    (told,) = (await admin._manager.send(asked, node_id=coordinator)).groups  # noqa: SLF001 - as above
    if told.error_code == GroupIdNotFoundError.errno:
        return None
    if told.error_code:
        raise for_code(told.error_code)(f"group {group}")
    return told


def _facts(told: Any) -> GroupFacts:
    members = tuple(sorted(f"{one.client_id}@{one.client_host.lstrip('/')}" for one in told.members))
    state = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", told.group_state).lower()
    return GroupFacts(state, members, _operations(told.authorized_operations))


def _operations(told: set[int] | None) -> frozenset[str] | None:
    if told is None or _UNTOLD in told:
        return None
    return frozenset(ACLOperation(one).name for one in told if one in set(ACLOperation))


def delete_group(connection: Connection, group: str, deadline: Deadline) -> None:
    """Make the brokers forget a group with its offsets."""
    step = f"delete group {group}"

    async def call(admin: KafkaAdminClient) -> None:
        coordinator = await admin._find_coordinator_id(group)  # noqa: SLF001 - as above
        asked = DeleteGroupsRequest(groups_names=[group])
        (told,) = (await admin._manager.send(asked, node_id=coordinator)).results  # noqa: SLF001 - as above
        if told.error_code:
            raise for_code(told.error_code)(f"group {group}")

    retry_until(lambda: _once(connection, step, call, deadline), step, deadline)


def set_group_offsets(
    connection: Connection, group: str, topic: str, offsets: Mapping[int, int], deadline: Deadline
) -> None:
    """Move a group without members by hand."""
    step = f"set offsets of group {group}"
    wanted = {AdminPartition(topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}

    async def call(admin: KafkaAdminClient) -> None:
        for place, error in (await admin._async_alter_group_offsets(group, wanted)).items():  # noqa: SLF001 - as above
            if error is not errors.NoError:
                raise error(f"{place.topic}[{place.partition}]")

    retry_until(lambda: _once(connection, step, call, deadline), step, deadline)


def _once(connection: Connection, step: str, call: Any, deadline: Deadline) -> None:
    """Through a client of its own: one that was refused still knows the old coordinator."""
    with kafka_python_admin(connection, deadline) as admin:
        ask(admin, deadline, step, call, admin)


__all__ = ["KafkaAdminClient", "delete_group", "describe_group", "open_admin", "set_group_offsets"]
