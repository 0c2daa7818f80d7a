"""Ask a cluster about itself: brokers, features, transactional ids, clocks."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from brew.acl import No, no
from brew.cluster import ClusterFacts, TopicFacts, Unknown
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError
from brew.kafka.clients import attempt_s
from brew.kafka.groups import Groups
from brew.kafka.kafka_python import NoSuchId, ask, plain_admin

_T = TypeVar("_T")
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART}
_LONGEST_REASON = 160


class Asked:
    """
    Questions on their way to the brokers, until `answers` is called; whoever asked may do something else meanwhile.

    What is not allowed (ACLs) or not supported (older brokers) becomes `Unknown`, never an error.
    """

    def __init__(
        self, client: AdminClient, groups: Groups, topics: Iterable[str], group: str, deadline: Deadline
    ) -> None:
        self._client, self._groups, self._group, self._deadline = client, groups, group, deadline
        names = sorted(set(topics))
        self._timeout = attempt_s(deadline)
        more: dict[str, Any] = {"request_timeout": self._timeout, "include_authorized_operations": True}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        self._cluster = client.describe_cluster(request_timeout=self._timeout)
        self._topics = client.describe_topics(TopicCollection(names), **more)
        told = client.describe_configs(resources, request_timeout=self._timeout)
        self._configs = {resource.name: future for resource, future in told.items()}

    def answers(self) -> ClusterFacts:
        """All that was told by now, or is within the deadline of one request."""
        group = self._groups.now(self._group, self._deadline)  # the others are answered meanwhile
        nodes = _told(self._cluster, lambda found: list(found.nodes))
        settings = nodes if isinstance(nodes, Unknown) else _of_brokers(self._client, nodes, self._deadline)
        return ClusterFacts(
            nodes if isinstance(nodes, Unknown) else len(nodes),
            settings,
            group,
            {name: self._topic(name, future) for name, future in self._topics.items()},
        )

    def _topic(self, name: str, future: Future[Any]) -> TopicFacts | Unknown | None:
        def of(told: Any) -> TopicFacts:
            return TopicFacts(
                name,
                str(told.topic_id),
                len(told.partitions),
                min((len(one.replicas) for one in told.partitions), default=0),
                min((len(one.isr) for one in told.partitions), default=0),
                _told(self._configs[name], _config),
                _operations(told),
            )

        return _told(future, of, dict.fromkeys(_NO_TOPIC))


def broker_settings(client: AdminClient, deadline: Deadline) -> Mapping[str, str] | Unknown:
    """The settings of one broker of the cluster."""
    nodes = _told(client.describe_cluster(request_timeout=attempt_s(deadline)), lambda found: list(found.nodes))
    told = nodes if isinstance(nodes, Unknown) else _of_brokers(client, nodes[:1], deadline)
    return told if isinstance(told, Unknown) else next(iter(told.values()))


def _of_brokers(client: AdminClient, nodes: list[Any], deadline: Deadline) -> Mapping[int, Mapping[str, str]] | Unknown:
    """All at once, each asked for its own: dynamic settings may differ. The reason of the first where none told."""
    resources = {one.id: ConfigResource(ResourceType.BROKER, str(one.id)) for one in nodes}
    within = attempt_s(deadline)
    asked = {
        broker: client.describe_configs([resource], request_timeout=within)[resource]
        for broker, resource in resources.items()
    }
    told = {broker: _told(future, _config) for broker, future in asked.items()}
    found = {broker: config for broker, config in told.items() if not isinstance(config, Unknown)}
    silent = [config for config in told.values() if isinstance(config, Unknown)]
    return found or (silent[0] if silent else Unknown("no broker is known"))


def _told(future: Future[Any], of: Callable[[Any], _T], else_: Mapping[int, _T] | None = None) -> _T | Unknown:
    """What a future brings, ``else_`` for codes that are an answer too, `Unknown` for every other failure."""
    try:
        return of(future.result())
    except KafkaException as error:
        cause = error.args[0]
        if else_ is not None and cause.code() in else_:
            return else_[cause.code()]
        return Unknown(f"{cause.str()} ({cause.name()})"[:_LONGEST_REASON])


def _config(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _operations(told: Any) -> frozenset[str] | None:
    found = told.authorized_operations
    return None if found is None else frozenset(one.name for one in found)


def level(connection: Connection, feature: str, deadline: Deadline) -> int | Unknown:
    """The level of a feature; 0 where the brokers know none of that name."""
    try:
        with plain_admin(connection, deadline) as admin:
            told = ask(admin, deadline, "describe features", admin._async_describe_features)  # noqa: SLF001
    except BrewError as error:
        return Unknown(str(error))
    return int(told.get(feature, {}).get("finalized", (0, 0))[1])


def may_describe(connection: Connection, transactional_id: str, deadline: Deadline) -> bool | Unknown:
    """
    Ask for the id's state (KIP-664), for which Describe is needed; Write brings that with it.

    So a no means that Write is missing. Nobody can ask for Write itself without fencing whoever holds the id.
    """
    try:
        with plain_admin(connection, deadline) as admin:
            call = admin._async_describe_transactions  # noqa: SLF001 - as in brew.kafka.kafka_python
            ask(admin, deadline, "describe transactions", call, [transactional_id])
    except NoSuchId:
        return True
    except BrewError as error:
        return False if no(str(error)) is No.RIGHT else Unknown(str(error))
    return True


with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka.errors import for_code
    from kafka.protocol.admin import DescribeQuorumRequest

_METADATA = "__cluster_metadata"
_now = time.time


def controller_ahead_s(connection: Connection, deadline: Deadline) -> float | Unknown:
    """
    How far the controller's clock is ahead of this machine's, at least; negative where it is behind.

    A leader of the metadata log has just "fetched" from itself when it is asked, and says when. 0 where that lies
    between question and answer.
    """
    try:
        with plain_admin(connection, deadline) as admin:
            before = _now()
            log = ask(admin, deadline, "describe the metadata quorum", _metadata_log, admin)
            after = _now()
    except BrewError as error:
        return Unknown(str(error))
    times = {one.replica_id: one.last_fetch_timestamp or -1 for one in log.current_voters}
    there_ms = times.get(log.leader_id, -1)
    return ahead_s(there_ms, before, after) if there_ms > 0 else Unknown("this controller does not say when it answers")


def ahead_s(there_ms: int, before: float, after: float) -> float:
    """``there_ms`` was the time there at some moment between two times here (seconds since the epoch)."""
    there = there_ms / 1000
    return round(there - after if there > after else min(0.0, there + 0.001 - before), 3)


async def _metadata_log(admin: KafkaAdminClient) -> Any:
    """The library's own call fails over answers of brokers before 3.9, which hold no texts of errors."""
    place = DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(topics=[DescribeQuorumRequest.TopicData(topic_name=_METADATA, partitions=[place])])
    response = await admin._manager.send(request)  # noqa: SLF001
    log = None if response.error_code else response.topics[0].partitions[0]
    if log is None or log.error_code:
        raise for_code(response.error_code if log is None else log.error_code)(f"describe {_METADATA}")
    return log
