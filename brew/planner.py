"""
Decide the next ranges of the connector reader from the brokers' answers, or refuse; pure.

For the direct reader it only checks positions, and whether a partition is blocked or drained: a lease has no range, and
the lease worker decides each next one itself (`brew.readers.direct.worker`).
"""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from brew.errors import Refused
from brew.offsets import Committed, LogOffsets, OffsetRange

_ID_LABEL = "topic-id="
# A topic id is 16 bytes as base64; librdkafka may return committed metadata with stray bytes appended (issue 4649).
_ID_LENGTH = 22


def position_metadata(topic_id: str) -> str:
    """The metadata committed with each offset: the input topic's id, so that a recreated topic is detected."""
    return f"{_ID_LABEL}{topic_id}"


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One input partition as the brokers report it; ``committed`` may be behind the stable offset, never ahead."""

    topic: str
    partition: int
    topic_id: str
    committed: Committed | None
    log: LogOffsets

    @property
    def position(self) -> int:
        """The next offset to read: the committed one, or the first of the log."""
        return self.committed.offset if self.committed is not None else self.log.first

    @property
    def lag(self) -> int:
        """The number of offsets that a `read_committed` reader can still read."""
        return max(0, self.log.last_stable - self.position)


@dataclass(frozen=True, slots=True)
class Plan:
    """One cycle's work: ranges, what upstream transactions have blocked, what others own (partition -> position)."""

    ranges: tuple[OffsetRange, ...]
    blocked: Mapping[int, int]
    drained: bool
    owned_by_others: Mapping[int, int] = field(default_factory=dict)

    def split(self, ours: Container[int]) -> Plan:
        """The part of the plan for a driver that owns only ``ours``."""
        ranges = tuple(range_ for range_ in self.ranges if range_.partition in ours)
        # A partition that is blocked at every survey may move in between, and its driver progresses.
        positions = {range_.partition: range_.start for range_ in self.ranges} | dict(self.blocked)
        owned_by_others = {p: position for p, position in positions.items() if p not in ours}
        return Plan(ranges, {p: at for p, at in self.blocked.items() if p in ours}, self.drained, owned_by_others)


def check(fact: PartitionFacts, group: str) -> None:
    """
    Raise `Refused` if going on would lose or double records. A missing committed offset is not checked here: that
    depends on the output (`brew.driver.missing_offsets`).
    """
    if fact.committed is None:
        return
    position = f"group {group!r} in {fact.topic}[{fact.partition}]"
    offset, metadata = fact.committed.offset, fact.committed.metadata
    known_id = metadata.removeprefix(_ID_LABEL)[:_ID_LENGTH] if metadata.startswith(_ID_LABEL) else None
    command = f"kafka-consumer-groups --reset-offsets --group {shlex.quote(group)} --topic {fact.topic}"
    reset = f"set the position on purpose with {command}"
    # Without the partition, Kafka's tool resets all of them, and the others would be read twice.
    reset_partition = f"{reset}:{fact.partition}"
    if known_id is not None and known_id != fact.topic_id:
        raise Refused(
            f"topic-recreated: {position} stands at {offset} of topic id {known_id}, the topic has id {fact.topic_id}: "
            f"it was deleted and made again, so the offset means nothing; {reset}"
        )
    if offset > fact.log.end:
        raise Refused(
            f"offset-ahead: {position} stands at {offset}, the log ends at {fact.log.end}: "
            f"the log was truncated or made again; {reset_partition}"
        )
    if offset < fact.log.first:
        raise Refused(
            f"input-lost: {position} stands at {offset}, retention removed everything below {fact.log.first}: "
            f"offsets [{offset}, {fact.log.first}) are gone; to go on without them, {reset_partition} --to-earliest, "
            f"and raise retention.ms or retention.bytes of {fact.topic}"
        )


def plan_ranges(facts: Iterable[PartitionFacts], cap: int, goals: Mapping[int, int] | None) -> Plan:
    """Plan one cycle: `[position, LSO)` of each partition, at most ``cap`` offsets; ``goals``: where a drain ends."""
    ranges, blocked, drained = [], {}, goals is not None
    for fact in facts:
        goal = fact.log.end if goals is None else goals.get(fact.partition, fact.log.first)
        if fact.position >= goal and goals is not None:
            continue
        drained = False
        until = min(fact.log.last_stable, fact.position + cap)
        if until > fact.position:
            ranges.append(OffsetRange(fact.topic, fact.partition, fact.position, until))
        elif fact.log.last_stable < fact.log.end:
            blocked[fact.partition] = fact.position
    return Plan(tuple(ranges), blocked, drained)
