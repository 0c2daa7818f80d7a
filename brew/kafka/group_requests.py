"""
Requests to a consumer group's coordinator: describe it, delete it, set its offsets, fetch its offsets.

All requests go through kafka-python. librdkafka's admin client can crash the process on them: with SIGSEGV when the
coordinator has moved, and with SIGABRT when its broker restarts (its issue 5040, docs/decisions/0012). Its consumer
does not report that another offset is pending, which `OffsetFetchClient` needs to know.
"""

from __future__ import annotations

import re
import threading
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from brew.cluster import GroupFacts, Place
from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import Retriable
from brew.kafka.kafka_python import AdminPartition, KafkaAdminClient, ask, kafka_python_admin, open_admin

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function on import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import errors
    from kafka.admin import ACLOperation
    from kafka.errors import GroupIdNotFoundError, IncompatibleBrokerVersion, KafkaError, RetriableError, for_code
    from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest
    from kafka.protocol.api_message import ApiMessage
    from kafka.protocol.consumer import OffsetFetchRequest
    from kafka.structs import OffsetAndMetadata

_OPERATIONS_UNKNOWN = 31
"""The bit of an operations bit field that means "not requested, or the broker is too old"."""
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


# kafka-python 3.0 has no schema for this request; a message class finds its schema by its own name.
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
    Return a group's state, its members and this client's operations on it; state `dead` if there is no such group.

    Raises:
        KafkaFailure, DeadlineExceeded: its coordinator did not answer.
    """
    facts: GroupFacts = ask(admin, deadline, f"describe group {group}", _describe_group, admin, group)
    return facts


async def _describe_group(admin: KafkaAdminClient, group: str) -> GroupFacts:
    """Describe the group by the classic protocol, or by that of KIP-848 if it is not a classic group."""
    description = await _describe(admin, group, DescribeGroupsRequest)
    if description is None or description.group_state == "Dead":
        try:
            newer = await _describe(admin, group, _ConsumerGroups.DescribeGroupsRequest, ids="group_ids")
        except IncompatibleBrokerVersion:
            newer = None  # before Kafka 4.0
        description = newer or description
    return GroupFacts("dead", ()) if description is None else _group_facts(description)


async def _describe(admin: KafkaAdminClient, group: str, request: Any, ids: str = "groups") -> Any:
    """Return the coordinator's description of a group, or None if it knows no group of that name and kind."""
    coordinator = await admin._find_coordinator_id(group)  # noqa: SLF001 - as `introspect` does, to bound the call
    message = request(**{ids: [group]}, include_authorized_operations=True)
    (description,) = (await admin._manager.send(message, node_id=coordinator)).groups  # noqa: SLF001 - as above
    if description.error_code == GroupIdNotFoundError.errno:
        return None
    if description.error_code:
        raise for_code(description.error_code)(f"group {group}")
    return description


def _group_facts(description: Any) -> GroupFacts:
    members = tuple(sorted(f"{member.client_id}@{member.client_host.lstrip('/')}" for member in description.members))
    state = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", description.group_state).lower()
    return GroupFacts(state, members, _operations(description.authorized_operations))


def _operations(codes: set[int] | None) -> frozenset[str] | None:
    if codes is None or _OPERATIONS_UNKNOWN in codes:
        return None
    return frozenset(ACLOperation(code).name for code in codes if code in set(ACLOperation))


def delete_group(connection: Connection, group: str, deadline: Deadline) -> None:
    """Delete a group and its offsets."""
    step = f"delete group {group}"

    async def call(admin: KafkaAdminClient) -> None:
        coordinator = await admin._find_coordinator_id(group)  # noqa: SLF001 - as above
        request = DeleteGroupsRequest(groups_names=[group])
        (result,) = (await admin._manager.send(request, node_id=coordinator)).results  # noqa: SLF001 - as above
        if result.error_code:
            raise for_code(result.error_code)(f"group {group}")

    retry_until(lambda: _run_with_new_client(connection, step, call, deadline), step, deadline)


def set_group_offsets(
    connection: Connection, group: str, topic: str, offsets: Mapping[int, int], deadline: Deadline
) -> None:
    """Set the committed offsets of a group without members."""
    step = f"set offsets of group {group}"
    wanted = {AdminPartition(topic, p): OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()}

    async def call(admin: KafkaAdminClient) -> None:
        for partition, error in (await admin._async_alter_group_offsets(group, wanted)).items():  # noqa: SLF001 - as above
            if error is not errors.NoError:
                raise error(f"{partition.topic}[{partition.partition}]")

    retry_until(lambda: _run_with_new_client(connection, step, call, deadline), step, deadline)


def _run_with_new_client(connection: Connection, step: str, call: Any, deadline: Deadline) -> None:
    """Run with a new client: one that got an error still has the old coordinator cached."""
    with kafka_python_admin(connection, deadline) as admin:
        ask(admin, deadline, step, call, admin)


_MULTI_GROUP_VERSION = 8
"""Since this version (Kafka 3.0) a request may name several groups; stable offsets came with 7 (Kafka 2.5)."""
_MAX_VERSION = 9  # since 10, topics are named by id
_Group = OffsetFetchRequest.OffsetFetchRequestGroup
_UNSTABLE = 88


class FetchedOffset(NamedTuple):
    """``offset``: None if none is committed. ``unstable``: a stable offset was required, and another is pending."""

    offset: int | None
    unstable: bool


async def group_offsets(
    admin: KafkaAdminClient, group: str, places: Iterable[Place], *stable: bool
) -> list[Mapping[Place, FetchedOffset]]:
    """
    Return the group's offsets in these (topic, partition) pairs: one answer per element of ``stable``, in order, all
    from the same broker. Run it with `brew.kafka.kafka_python.ask`.

    Raises:
        kafka.errors.KafkaError: the broker did not answer; it may no longer be the coordinator.
    """
    partitions = defaultdict(list)
    for topic, partition in places:
        partitions[topic].append(partition)
    coordinator = await admin._find_coordinator_id(group)  # noqa: SLF001 - as `introspect` does, to bound the call
    multi_group = admin._manager.broker_version_data.api_version(OffsetFetchRequest) >= _MULTI_GROUP_VERSION  # noqa: SLF001
    # A broker processes the requests of a connection in order.
    requests = [
        admin._manager.send(_request(group, partitions, require_stable, multi_group=multi_group), node_id=coordinator)  # noqa: SLF001
        for require_stable in stable
    ]
    return [_parsed_response(await answer, multi_group=multi_group) for answer in requests]


async def offsets_of_groups(
    admin: KafkaAdminClient, groups: Iterable[str], places: Iterable[Place], deadline: Deadline
) -> tuple[dict[str, dict[Place, int]], dict[str, str]]:
    """
    Return the committed offsets of the groups that have any in these partitions, and the errors of groups whose
    coordinator did not answer. All groups are asked in parallel; one that this client may not describe is in neither.
    """
    manager, requested = admin._manager, list(places)  # noqa: SLF001 - as above
    answers = {group: manager.call_soon(group_offsets, admin, group, requested, False) for group in groups}
    offsets_by_group, unanswered = dict[str, dict[Place, int]](), dict[str, str]()
    for group, answer in answers.items():
        try:
            (offsets_,) = await manager.wait_for(answer, deadline.remaining_s() * 1000)
        except RetriableError as error:
            unanswered[group] = f"{error} ({type(error).__name__})"
        except KafkaError:
            continue
        else:
            if offsets := {place: entry.offset for place, entry in offsets_.items() if entry.offset is not None}:
                offsets_by_group[group] = offsets
    return offsets_by_group, unanswered


def _request(group: str, partitions: Mapping[str, list[int]], stable: bool, *, multi_group: bool) -> Any:
    if multi_group:
        topics = [_Group.OffsetFetchRequestTopics(name=name, partition_indexes=ps) for name, ps in partitions.items()]
        groups = [_Group(group_id=group, topics=topics)]
        return OffsetFetchRequest(
            groups=groups, require_stable=stable, min_version=_MULTI_GROUP_VERSION, max_version=_MAX_VERSION
        )
    topics = [
        OffsetFetchRequest.OffsetFetchRequestTopic(name=name, partition_indexes=ps) for name, ps in partitions.items()
    ]
    return OffsetFetchRequest(
        group_id=group, topics=topics, require_stable=stable, min_version=7 if stable else 1, max_version=7
    )


def _parsed_response(response: Any, *, multi_group: bool) -> Mapping[Place, FetchedOffset]:
    answer = response.groups[0] if multi_group else response
    offsets, codes = {}, [answer.error_code]
    for topic in answer.topics or ():
        for partition in topic.partitions:
            offset = partition.committed_offset if partition.committed_offset >= 0 else None
            offsets[topic.name, partition.partition_index] = FetchedOffset(offset, partition.error_code == _UNSTABLE)
            codes.append(partition.error_code)
    for code in codes:
        if code not in {0, _UNSTABLE}:
            raise for_code(code)("offsets of a group")
    return offsets


_CLOSE_S = 1.0


class CoordinatorAnswer(NamedTuple):
    """``offset``: the committed offset, None if there is none. ``aware``: the coordinator knows a pending offset."""

    offset: int | None
    aware: bool


class OffsetFetchClient:
    """
    A connection to the group's coordinator. Thread-safe.

    Its background thread looks for brokers forever, so close it explicitly with `end`: the traceback of a failure keeps
    a reference, and the garbage collector is too late (22 threads per second while answers are lost).
    """

    def __init__(self, connection: Connection, group: str, deadline: Deadline, request_s: float) -> None:
        self._group = group
        self._admin = open_admin(connection, deadline, request_s)
        self._lock, self._in_use, self._ended = threading.Lock(), 0, False
        # Also closes the connection when the client of a group that is no longer used is collected.
        self._close = weakref.finalize(self, end, self._admin)
        self._close.atexit = False  # a program does not wait for it at exit

    def fetch(self, step: str, place: Place, deadline: Deadline) -> CoordinatorAnswer:
        """
        Return the group's committed offset, and whether another one is pending, both from the same broker.

        A request for stable offsets fails with UNSTABLE_OFFSET_COMMIT while one is pending (KIP-447). It is sent first:
        a coordinator that knows the pending offset has seen everything committed before it, and returns that next.

        Raises:
            Retriable: no answer yet, or another thread ended this client.
            DeadlineExceeded: no answer in time.
        """
        admin = self._admin
        with self._in_use_by(step):
            stable, now = ask(admin, deadline, step, group_offsets, admin, self._group, [place], True, False)
        return CoordinatorAnswer(now[place].offset, stable[place].unstable)

    def ask(self, step: str, call: Callable[[KafkaAdminClient], Any], deadline: Deadline) -> Any:
        """
        Run ``call``, a coroutine of kafka-python's client, for requests that only that client supports.

        Raises:
            KafkaFailure, DeadlineExceeded: no answer, or another thread ended this client.
        """
        with self._in_use_by(step):
            return ask(self._admin, deadline, step, call, self._admin)

    def end(self) -> None:
        """Close the connection as soon as no other thread has a request in progress. Idempotent."""
        with self._lock:
            self._ended, unused = True, not self._in_use
        if unused:
            self._close()

    @contextmanager
    def _in_use_by(self, step: str) -> Iterator[None]:
        with self._lock:
            if self._ended:
                raise Retriable(f"{step}: another transaction has closed this connection")
            self._in_use += 1
        try:
            yield
        finally:
            with self._lock:
                self._in_use -= 1
                last = self._ended and not self._in_use
            if last:
                self._close()


def end(admin: KafkaAdminClient) -> None:
    """Close a client within a second: its thread may be resolving a name, or be the caller itself."""
    closing = threading.Thread(target=admin.close, name="close-admin-client", daemon=True)
    closing.start()
    if not threading.current_thread().name.startswith("kafka-io"):
        closing.join(_CLOSE_S)
