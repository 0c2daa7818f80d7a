"""Topics: what is there, and making what is missing."""

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
    """A topic as the brokers describe it; ``topic_id`` changes when a topic is deleted and made again."""

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
    """The topics of ``names`` that exist."""
    return retry_until(lambda: _described(client, names, deadline), "describe topics", deadline)


def _described(client: AdminClient, names: list[str], deadline: Deadline) -> dict[str, Topic]:
    found = {}
    with mapped("describe topics"):
        futures = client.describe_topics(TopicCollection(names), request_timeout=attempt_s(deadline))
    for name, future in futures.items():
        try:
            with mapped_query(f"describe topic {name}"):
                told = future.result()
        except KafkaFailure as error:
            if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                continue
            raise
        found[name] = Topic(name, str(told.topic_id), len(told.partitions), len(told.partitions[0].replicas))
    return found


def _code(error: KafkaFailure) -> int:
    """The broker's code behind an error that `mapped` let through."""
    cause = error.__cause__
    return int(cause.args[0].code()) if isinstance(cause, KafkaException) else KafkaError.UNKNOWN


def describe_one(client: AdminClient, name: str, deadline: Deadline) -> Topic:
    """
    The topic of that name.

    Raises:
        Refused: there is none.
    """
    found = describe(client, [name], deadline)
    if name not in found:
        raise Refused(f"topic {name!r} does not exist; make it with `make topic-create-all`, or name another topic")
    return found[name]


def describe_all(client: AdminClient, names: list[str], deadline: Deadline) -> dict[str, Topic]:
    """
    The topics of ``names``, waiting for those that were only just made.

    Raises:
        DeadlineExceeded: one of them did not appear.
    """

    def ask() -> dict[str, Topic]:
        found = describe(client, names, deadline)
        if len(found) < len(names):
            raise Retriable(f"topics {sorted(set(names) - set(found))} are not there yet")
        return found

    return retry_until(ask, "describe topics", deadline)


def names(client: AdminClient, deadline: Deadline) -> list[str]:
    """All topics of the cluster but Kafka's own, sorted."""
    with mapped("list topics"):
        listed = client.list_topics(timeout=max(0.001, deadline.remaining_s())).topics
    return sorted(name for name in listed if not name.startswith("__"))


def brokers(client: AdminClient, deadline: Deadline) -> int:
    """The number of brokers alive."""
    with mapped("list brokers"):
        return len(client.list_topics(timeout=max(0.001, deadline.remaining_s())).brokers)


def max_message_bytes(client: AdminClient, name: str, deadline: Deadline) -> int:
    """The topic's limit on a record batch, in bytes."""
    return int(_setting(client, name, MAX_MESSAGE_BYTES, deadline))


def cleanup_policy(client: AdminClient, name: str, deadline: Deadline) -> str:
    """What becomes of old records: `delete`, `compact`, or both with a comma."""
    return _setting(client, name, CLEANUP_POLICY, deadline)


def retention_s(client: AdminClient, name: str, deadline: Deadline) -> float | None:
    """How long the topic keeps records, in seconds; None when for ever."""
    found = int(_setting(client, name, RETENTION_MS, deadline))
    return None if found < 0 else found / 1000


def segment_s(client: AdminClient, name: str, deadline: Deadline) -> float:
    """How long records go into one segment, in seconds; it is deleted as a whole, when its last record is old."""
    return int(_setting(client, name, SEGMENT_MS, deadline)) / 1000


def _setting(client: AdminClient, name: str, setting: str, deadline: Deadline) -> str:
    resource = ConfigResource(ResourceType.TOPIC, name)
    step = f"configuration of {name}"

    def ask() -> str:
        with mapped_query(step):
            told = client.describe_configs([resource], request_timeout=attempt_s(deadline))[resource].result()
        return str(told[setting].value)

    return retry_until(ask, step, deadline)


def create(client: AdminClient, wanted: list[TopicSpec], deadline: Deadline) -> dict[str, bool]:
    """
    Make the topics that are missing, replicated on up to three brokers; True for each that this call made.

    Raises:
        Refused: the brokers do not let us.
        DeadlineExceeded: no broker that answers could make them in time.
    """
    replicas = min(3, brokers(client, deadline))
    made: dict[str, bool] = {}
    lost: set[str] = set()  # asked for without an answer: such a topic may be there now, and then it is ours

    def ask() -> None:
        new = [NewTopic(t.name, t.partitions, replicas, config=dict(t.config)) for t in wanted if t.name not in made]
        timeout = attempt_s(deadline)
        for name, future in client.create_topics(new, request_timeout=timeout, operation_timeout=timeout).items():
            try:
                with mapped_query("creation"):
                    future.result()
                made[name] = True
            except Retriable:
                lost.add(name)
            except KafkaFailure as error:
                if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise _not_made(name, error) from error
                made[name] = name in lost
        if missing := sorted({t.name for t in wanted} - made.keys()):
            raise Retriable(f"no broker said that it made {missing}")

    retry_until(ask, "make topics", deadline)
    return made


def _not_made(name: str, error: KafkaFailure) -> Refused:
    what = f"topic {name!r} is missing and could not be made: {error}"
    return Refused(f"{what}; make it by hand, or allow this client to create topics")
