"""Values that describe a cluster, its transactions and its record batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TRANSACTIONS_TOPIC = "__transaction_state"


@dataclass(frozen=True, slots=True)
class Unknown:
    """The brokers did not answer this request; ``reason`` is the error."""

    reason: str


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """
    One topic. Replicas and in-sync replicas are minimums over its partitions.

    ``operations``: this client's authorized operations by Kafka's names (`READ`); None if the brokers report none.
    """

    name: str
    topic_id: str
    partitions: int
    replicas: int
    in_sync: int
    config: Mapping[str, str] | Unknown
    operations: frozenset[str] | None = None

    def number(self, setting: str) -> int | None:
        """Return a numeric setting, or None if it is unknown."""
        return _number(self.config, setting)

    def text(self, setting: str) -> str | None:
        """Return a setting as text, or None if it is unknown."""
        return None if isinstance(self.config, Unknown) else self.config.get(setting)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """A consumer group: its state by the broker's name, and `client-id@host` for each member."""

    state: str
    members: tuple[str, ...]
    operations: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """
    A cluster's brokers, settings, group and topics.

    ``topics``: None for a topic that does not exist. ``config``: broker id -> settings, of each broker that answered.
    """

    brokers: int | Unknown
    config: Mapping[int, Mapping[str, str]] | Unknown
    group: GroupFacts | Unknown
    topics: Mapping[str, TopicFacts | Unknown | None] = field(default_factory=dict)

    def number(self, setting: str) -> int | None:
        """Return the minimum of a numeric setting over all brokers, or None if it is unknown."""
        configs = () if isinstance(self.config, Unknown) else self.config.values()
        return min((number for config in configs if (number := _number(config, setting)) is not None), default=None)

    def texts(self, setting: str) -> frozenset[str]:
        """Return the distinct values of a setting over all brokers; empty if it is unknown."""
        configs = () if isinstance(self.config, Unknown) else self.config.values()
        return frozenset(config[setting] for config in configs if setting in config)

    def number_of(self, topic: str, setting: str) -> int | None:
        """Return a topic's numeric setting, or None if the setting or the topic is unknown."""
        facts = self.topics.get(topic)
        return facts.number(setting) if isinstance(facts, TopicFacts) else None


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
    An open transaction in a partition, as the partition's leader reports it.

    ``last_ms`` is the timestamp of its last record, ``coordinator_epoch`` that of the last marker (-1: no marker yet).
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
    """A transactional id as its coordinator reports it (KIP-664); ``began_ms`` is None if no transaction is open."""

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
        """Return the age of its open transaction, by this machine's clock."""
        return None if self.began_ms is None else max(0.0, (now_ms - self.began_ms) / 1000)


@dataclass(frozen=True, slots=True)
class ReadBounds:
    """A partition's last stable offset and end offset; while they differ, a transaction holds back readers."""

    last_stable: int
    end: int

    @property
    def held(self) -> bool:
        return self.last_stable < self.end


OFFSETS_TOPIC = "__consumer_offsets"


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction that holds back a partition's last stable offset."""

    partition: int
    producer_id: int
    producer_epoch: int
    first_offset: int
    transactional_id: str | None
    age_s: float | None

    def __str__(self) -> str:
        owner = f"{self.transactional_id!r}" if self.transactional_id else "an unknown transactional id"
        age = f", open for {self.age_s:.0f} s" if self.age_s is not None else ""
        return f"partition {self.partition} from offset {self.first_offset}: {owner} (producer {self.producer_id}{age})"


@dataclass(frozen=True, slots=True)
class RawBatch:
    """The header of one record batch; ``marker`` is `commit` or `abort` for a marker that ends a transaction."""

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
    """A group's committed offset ``until`` for one partition of the requested topic; None if it was deleted."""

    partition: int
    until: int | None


@dataclass(frozen=True, slots=True)
class OffsetBatch:
    """A batch of `__consumer_offsets` with the commits of the requested group and topic."""

    raw: RawBatch
    commits: tuple[OffsetCommit, ...] = ()
