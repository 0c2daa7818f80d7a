"""A cluster, its transactions and its record batches as values."""

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


Place = tuple[str, int]
"""Topic and partition."""

ENDED = frozenset({"Empty", "CompleteCommit", "CompleteAbort", "Dead"})
ENDING = frozenset({"PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
ONGOING = "Ongoing"


@dataclass(frozen=True, slots=True, order=True)
class PartitionTransaction:
    """
    A transaction that a partition's leader holds open.

    ``last_ms`` is its last record's timestamp, ``coordinator_epoch`` that of the last marker (-1: there was none).
    """

    topic: str
    partition: int
    first_offset: int
    producer_id: int
    producer_epoch: int
    last_ms: int
    coordinator_epoch: int = -1

    @property
    def place(self) -> Place:
        return self.topic, self.partition


@dataclass(frozen=True, slots=True)
class CoordinatorTransaction:
    """A transactional id as its coordinator knows it (KIP-664); ``began_ms`` is None while nothing is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    began_ms: int | None
    places: frozenset[Place]

    @property
    def open(self) -> bool:
        return self.state == ONGOING or self.state in ENDING

    def age_s(self, now_ms: int) -> float | None:
        """How long it has been open, by this machine's clock."""
        return None if self.began_ms is None else max(0.0, (now_ms - self.began_ms) / 1000)


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """A partition whose readers wait: last stable offset and end; equal when nobody waits."""

    last_stable: int
    end: int

    @property
    def held(self) -> bool:
        return self.last_stable < self.end


OFFSETS_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that holds back the last stable offset of a partition."""

    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    transactional_id: str | None
    age_s: float | None

    def __str__(self) -> str:
        who = f"{self.transactional_id!r}" if self.transactional_id else "an unknown transactional id"
        age = f", open for {self.age_s:.0f} s" if self.age_s is not None else ""
        return f"partition {self.partition} from offset {self.first_offset}: {who} (producer {self.producer_id}{age})"


@dataclass(frozen=True, slots=True)
class RawBatch:
    """What the header of one record batch says; ``marker`` is `commit` or `abort` where a transaction ends."""

    base_offset: int
    last_offset: int
    records: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    transactional: bool
    control: bool
    marker: str | None
    max_timestamp: int


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A group's commit for one partition of the topic asked about; ``until`` is None where it was deleted."""

    partition: int
    until: int | None


@dataclass(frozen=True, slots=True)
class OffsetBatch:
    """A batch of Kafka's offset log with the commits of the group and topic asked about."""

    raw: RawBatch
    commits: tuple[OffsetCommit, ...] = ()
