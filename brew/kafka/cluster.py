"""Query brokers, topics, configurations and a group at once."""

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
_MAX_REASON = 160


class ClusterQueries:
    """
    Requests that run in the background until `answers` is called.

    A request that is not authorized (ACLs) or not supported (older brokers) becomes `Unknown`, never an error.
    """

    def __init__(
        self, client: AdminClient, groups: Groups, topics: Iterable[str], group: str, deadline: Deadline
    ) -> None:
        self._client, self._groups, self._group, self._deadline = client, groups, group, deadline
        names = sorted(set(topics))
        self._timeout = attempt_s(deadline)
        options: dict[str, Any] = {"request_timeout": self._timeout, "include_authorized_operations": True}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        self._cluster = client.describe_cluster(request_timeout=self._timeout)
        self._topics = client.describe_topics(TopicCollection(names), **options)
        answers = client.describe_configs(resources, request_timeout=self._timeout)
        self._configs = {resource.name: future for resource, future in answers.items()}

    def answers(self) -> ClusterFacts:
        """All answers, waiting at most one request's time-out."""
        group = self._groups.now(self._group, self._deadline)  # the other requests run meanwhile
        nodes = _result_of(self._cluster, lambda cluster: list(cluster.nodes))
        settings = nodes if isinstance(nodes, Unknown) else _broker_configs(self._client, nodes, self._deadline)
        return ClusterFacts(
            nodes if isinstance(nodes, Unknown) else len(nodes),
            settings,
            group,
            {name: self._topic(name, future) for name, future in self._topics.items()},
        )

    def _topic(self, name: str, future: Future[Any]) -> TopicFacts | Unknown | None:
        def facts(description: Any) -> TopicFacts:
            return TopicFacts(
                name,
                str(description.topic_id),
                len(description.partitions),
                min((len(partition.replicas) for partition in description.partitions), default=0),
                min((len(partition.isr) for partition in description.partitions), default=0),
                _result_of(self._configs[name], _config),
                _operations(description),
            )

        return _result_of(future, facts, dict.fromkeys(_NO_TOPIC))


def broker_settings(client: AdminClient, deadline: Deadline) -> Mapping[str, str] | Unknown:
    """The settings of one broker of the cluster."""
    nodes = _result_of(
        client.describe_cluster(request_timeout=attempt_s(deadline)), lambda cluster: list(cluster.nodes)
    )
    configs = nodes if isinstance(nodes, Unknown) else _broker_configs(client, nodes[:1], deadline)
    return configs if isinstance(configs, Unknown) else next(iter(configs.values()))


def _broker_configs(
    client: AdminClient, nodes: list[Any], deadline: Deadline
) -> Mapping[int, Mapping[str, str]] | Unknown:
    """The settings of each broker, asked in parallel (dynamic settings may differ); `Unknown` if none answered."""
    resources = {node.id: ConfigResource(ResourceType.BROKER, str(node.id)) for node in nodes}
    timeout = attempt_s(deadline)
    futures = {
        broker: client.describe_configs([resource], request_timeout=timeout)[resource]
        for broker, resource in resources.items()
    }
    answers = {broker: _result_of(future, _config) for broker, future in futures.items()}
    configs = {broker: config for broker, config in answers.items() if not isinstance(config, Unknown)}
    unknown = [config for config in answers.values() if isinstance(config, Unknown)]
    return configs or (unknown[0] if unknown else Unknown("no broker is known"))


def _result_of(
    future: Future[Any], convert: Callable[[Any], _T], answers_by_code: Mapping[int, _T] | None = None
) -> _T | Unknown:
    """The converted result; ``answers_by_code`` for error codes that are answers; `Unknown` for every other failure."""
    try:
        return convert(future.result())
    except KafkaException as error:
        cause = error.args[0]
        if answers_by_code is not None and cause.code() in answers_by_code:
            return answers_by_code[cause.code()]
        return Unknown(f"{cause.str()} ({cause.name()})"[:_MAX_REASON])


def _config(entries: Mapping[str, Any]) -> dict[str, str]:
    return {name: entry.value for name, entry in entries.items() if entry.value is not None}


def _operations(description: Any) -> frozenset[str] | None:
    operations = description.authorized_operations
    return None if operations is None else frozenset(operation.name for operation in operations)
