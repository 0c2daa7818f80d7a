"""What lies in a log below the records: batches with their producers, and transactions that are still open."""

from __future__ import annotations

from dataclasses import dataclass

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
