"""Ask a cluster about itself: brokers, features, transactional ids, clocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    ResourceType,
)

from brew.cluster import ClusterFacts, TopicFacts, Unknown
from brew.deadline import Deadline
from brew.kafka.clients import attempt_s
from brew.kafka.groups import Groups

_T = TypeVar("_T")
_NO_TOPIC = {KafkaError.UNKNOWN_TOPIC_OR_PART}
_LONGEST_REASON = 160


class ClusterQueries:
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
        nodes = _result_of(self._cluster, lambda found: list(found.nodes))
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
                _result_of(self._configs[name], _config),
                _operations(told),
            )

        return _result_of(future, of, dict.fromkeys(_NO_TOPIC))


def broker_settings(client: AdminClient, deadline: Deadline) -> Mapping[str, str] | Unknown:
    """The settings of one broker of the cluster."""
    nodes = _result_of(client.describe_cluster(request_timeout=attempt_s(deadline)), lambda found: list(found.nodes))
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
    told = {broker: _result_of(future, _config) for broker, future in asked.items()}
    found = {broker: config for broker, config in told.items() if not isinstance(config, Unknown)}
    silent = [config for config in told.values() if isinstance(config, Unknown)]
    return found or (silent[0] if silent else Unknown("no broker is known"))


def _result_of(future: Future[Any], of: Callable[[Any], _T], else_: Mapping[int, _T] | None = None) -> _T | Unknown:
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
