"""Describe topics and their configuration, and create missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewTopic

from brew.deadline import Deadline, retry_until
from brew.errors import KafkaFailure, Refused, Retriable
from brew.kafka.clients import attempt_s, mapped, mapped_query

MAX_MESSAGE_BYTES = "max.message.bytes"
RETENTION_MS = "retention.ms"
CLEANUP_POLICY = "cleanup.policy"
SEGMENT_MS = "segment.ms"


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the brokers describe it; ``topic_id`` changes when a topic is deleted and recreated."""

    name: str
    topic_id: str
    partitions: int
    replicas: int


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic that should exist."""

    name: str
    partitions: int
    config: Mapping[str, str]


def describe(client: AdminClient, names: list[str], deadline: Deadline) -> dict[str, Topic]:
    """Return the topics of ``names`` that exist."""
    return retry_until(lambda: _describe_once(client, names, deadline), "describe topics", deadline)


def _describe_once(client: AdminClient, names: list[str], deadline: Deadline) -> dict[str, Topic]:
    topics = {}
    with mapped("describe topics"):
        futures = client.describe_topics(TopicCollection(names), request_timeout=attempt_s(deadline))
    for name, future in futures.items():
        try:
            with mapped_query(f"describe topic {name}"):
                description = future.result()
        except KafkaFailure as error:
            if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            raise
        topics[name] = Topic(
            name, str(description.topic_id), len(description.partitions), len(description.partitions[0].replicas)
        )
    return topics


def _code(error: KafkaFailure) -> int:
    """Return the broker's code of an error raised by `mapped`."""
    cause = error.__cause__
    return int(cause.args[0].code()) if isinstance(cause, KafkaException) else KafkaError.UNKNOWN


def describe_one(client: AdminClient, name: str, deadline: Deadline) -> Topic:
    """
    Return the topic ``name``.

    Raises:
        Refused: the topic does not exist.
    """
    topics = describe(client, [name], deadline)
    if name not in topics:
        raise Refused(
            f"topic {name!r} does not exist; name another one, or create it (`brew topics` creates those of orders; "
            "`make topic-create-all` in a checkout)"
        )
    return topics[name]


def describe_all(client: AdminClient, names: list[str], deadline: Deadline) -> dict[str, Topic]:
    """
    Return the topics of ``names``, waiting for those that were just created.

    Raises:
        DeadlineExceeded: one of them did not appear.
    """

    def ask() -> dict[str, Topic]:
        topics = describe(client, names, deadline)
        if len(topics) < len(names):
            raise Retriable(f"topics {sorted(set(names) - set(topics))} are not there yet")
        return topics

    return retry_until(ask, "describe topics", deadline)


def names(client: AdminClient, deadline: Deadline) -> list[str]:
    """Return all topics of the cluster except internal ones, sorted."""
    with mapped("list topics"):
        listed = client.list_topics(timeout=max(0.001, deadline.remaining_s())).topics
    return sorted(name for name in listed if not name.startswith("__"))


def brokers(client: AdminClient, deadline: Deadline) -> int:
    """Return the number of live brokers."""
    with mapped("list brokers"):
        return len(client.list_topics(timeout=max(0.001, deadline.remaining_s())).brokers)


def max_message_bytes(client: AdminClient, name: str, deadline: Deadline) -> int:
    """Return the topic's limit on a record batch, in bytes."""
    return int(_setting(client, name, MAX_MESSAGE_BYTES, deadline))


def cleanup_policy(client: AdminClient, name: str, deadline: Deadline) -> str:
    """Return the topic's cleanup policy: `delete`, `compact`, or both separated by a comma."""
    return _setting(client, name, CLEANUP_POLICY, deadline)


def retention_s(client: AdminClient, name: str, deadline: Deadline) -> float | None:
    """Return how long the topic keeps records, in seconds; None means forever."""
    value_ms = int(_setting(client, name, RETENTION_MS, deadline))
    return None if value_ms < 0 else value_ms / 1000


def segment_s(client: AdminClient, name: str, deadline: Deadline) -> float:
    """Return the topic's segment time in seconds; retention deletes whole segments once their last record is old."""
    return int(_setting(client, name, SEGMENT_MS, deadline)) / 1000


def _setting(client: AdminClient, name: str, setting: str, deadline: Deadline) -> str:
    resource = ConfigResource(ResourceType.TOPIC, name)
    step = f"configuration of {name}"

    def ask() -> str:
        with mapped_query(step):
            config = client.describe_configs([resource], request_timeout=attempt_s(deadline))[resource].result()
        return str(config[setting].value)

    return retry_until(ask, step, deadline)


def create(client: AdminClient, wanted: list[TopicSpec], deadline: Deadline) -> dict[str, bool]:
    """
    Create the missing topics with up to three replicas; True for each topic that this call created.

    Raises:
        Refused: the brokers do not allow it.
        DeadlineExceeded: no broker created them in time.
    """
    created: dict[str, bool] = {}
    unanswered: set[str] = set()  # unanswered requests: if such a topic exists later, this call created it

    def ask() -> None:
        if not (replicas := min(3, brokers(client, deadline))):
            raise Retriable("no broker has registered yet")  # one that has just started knows of none for a moment
        new = [NewTopic(t.name, t.partitions, replicas, config=dict(t.config)) for t in wanted if t.name not in created]
        timeout = attempt_s(deadline)
        for name, future in client.create_topics(new, request_timeout=timeout, operation_timeout=timeout).items():
            try:
                with mapped_query("creation"):
                    future.result()
                created[name] = True
            except Retriable:
                unanswered.add(name)
            except KafkaFailure as error:
                if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise _creation_refused(name, error) from error
                created[name] = name in unanswered
        if missing := sorted({t.name for t in wanted} - created.keys()):
            raise Retriable(f"no broker confirmed the creation of {missing}")

    retry_until(ask, "make topics", deadline)
    return created


def _creation_refused(name: str, error: KafkaFailure) -> Refused:
    problem = f"topic {name!r} is missing and could not be made: {error}"
    return Refused(f"{problem}; make it by hand, or allow this client to create topics")
