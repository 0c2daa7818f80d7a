"""What a cluster says about itself, as frozen values: settings, replicas, a group's members, what we may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TRANSACTIONS_TOPIC = "__transaction_state"


@dataclass(frozen=True, slots=True)
class Unknown:
    """The brokers did not answer that question; ``reason`` in their words."""

    reason: str


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """
    One topic: the least of its partitions' replicas, and of those in sync now.

    ``operations``: what this client may do there, in Kafka's words (`READ`); None where the brokers do not tell.
    """

    name: str
    topic_id: str
    partitions: int
    replicas: int
    in_sync: int
    config: Mapping[str, str] | Unknown
    operations: frozenset[str] | None = None

    def number(self, setting: str) -> int | None:
        """A numeric setting; None where it is not told."""
        return _number(self.config, setting)

    def text(self, setting: str) -> str | None:
        """A setting as text; None where it is not told."""
        return None if isinstance(self.config, Unknown) else self.config.get(setting)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group: its state in the broker's words, and `client-id@host` of each member."""

    state: str
    members: tuple[str, ...]
    operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """
    ``topics``: None where there is no topic of that name.

    ``config``: broker id -> its settings, of all brokers that told.
    """

    brokers: int | Unknown
    config: Mapping[int, Mapping[str, str]] | Unknown
    group: GroupFacts | Unknown
    topics: Mapping[str, TopicFacts | Unknown | None] = field(default_factory=dict)

    def number(self, setting: str) -> int | None:
        """The least that a broker has of a numeric setting; None where it is not told."""
        told = () if isinstance(self.config, Unknown) else self.config.values()
        return min((number for one in told if (number := _number(one, setting)) is not None), default=None)

    def texts(self, setting: str) -> frozenset[str]:
        """What the brokers have of a setting; empty where it is not told."""
        told = () if isinstance(self.config, Unknown) else self.config.values()
        return frozenset(one[setting] for one in told if setting in one)

    def number_of(self, topic: str, setting: str) -> int | None:
        """A topic's numeric setting; None where it, or the topic, is not told."""
        found = self.topics.get(topic)
        return found.number(setting) if isinstance(found, TopicFacts) else None


def _number(config: Mapping[str, str] | Unknown, setting: str) -> int | None:
    value = None if isinstance(config, Unknown) else config.get(setting)
    return int(value) if value is not None and value.removeprefix("-").isdigit() else None
