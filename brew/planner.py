"""Decide from the brokers' answers what to do next; pure: facts in, ranges or a refusal out."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field

from brew.errors import Refused
from brew.offsets import Committed, LogOffsets, OffsetRange

_ID_LABEL = "topic-id="
# A topic id is 16 bytes as base64; librdkafka may hand out a committed text with foreign bytes behind it (issue 4649).
_ID_LENGTH = 22


def position_metadata(topic_id: str) -> str:
    """The text committed beside each offset: the input topic's identity, so that a recreated topic is seen."""
    return f"{_ID_LABEL}{topic_id}"


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """One input partition as the brokers tell it; ``committed`` is a hint, never ahead of the truth."""

    topic: str
    partition: int
    topic_id: str
    committed: Committed | None
    log: LogOffsets

    @property
    def position(self) -> int:
        """The next offset to read: the committed one, or the first there is."""
        return self.committed.offset if self.committed is not None else self.log.first

    @property
    def lag(self) -> int:
        """Offsets a `read_committed` reader can still be given."""
        return max(0, self.log.last_stable - self.position)


@dataclass(frozen=True, slots=True)
class Plan:
    """
    What one cycle does: ranges to transact; partitions held back by an upstream transaction; or nothing left.

    ``elsewhere``: partition -> position of what is left to other drivers.
    """

    ranges: tuple[OffsetRange, ...]
    blocked: tuple[int, ...]
    drained: bool
    elsewhere: Mapping[int, int] = field(default_factory=dict)

    def split(self, ours: Container[int]) -> Plan:
        """The same for a driver that may work on ``ours`` alone."""
        ranges = tuple(one for one in self.ranges if one.partition in ours)
        elsewhere = {one.partition: one.start for one in self.ranges if one.partition not in ours}
        return Plan(ranges, tuple(p for p in self.blocked if p in ours), self.drained, elsewhere)


def check(fact: PartitionFacts, group: str) -> None:
    """
    Raise `Refused` where going on would lose records or write them twice.

    A missing committed offset is not checked here: what the output holds decides (`brew.driver.missing_offsets`).
    """
    if fact.committed is None:
        return
    place = f"group {group!r} in {fact.topic}[{fact.partition}]"
    offset, metadata = fact.committed.offset, fact.committed.metadata
    known_id = metadata.removeprefix(_ID_LABEL)[:_ID_LENGTH] if metadata.startswith(_ID_LABEL) else None
    reset = (
        f"set the position on purpose with kafka-consumer-groups --reset-offsets --group {group} --topic {fact.topic}"
    )
    if known_id is not None and known_id != fact.topic_id:
        raise Refused(
            f"topic-recreated: {place} stands at {offset} of topic id {known_id}, the topic has id {fact.topic_id}: "
            f"it was deleted and made again, so the offset means nothing; {reset}"
        )
    if offset > fact.log.end:
        raise Refused(
            f"offset-ahead: {place} stands at {offset}, the log ends at {fact.log.end}: "
            f"the log was truncated or made again; {reset}"
        )
    if offset < fact.log.first:
        raise Refused(
            f"input-lost: {place} stands at {offset}, retention removed everything below {fact.log.first}: "
            f"offsets [{offset}, {fact.log.first}) are gone; to go on without them, {reset} --to-earliest, "
            f"and raise retention.ms or retention.bytes of {fact.topic}"
        )


def plan_ranges(facts: Iterable[PartitionFacts], cap: int, goals: Mapping[int, int] | None) -> Plan:
    """
    Plan one cycle: per partition the range `[position, LSO)`, at most ``cap`` offsets.

    ``goals`` (partition -> offset) is where a draining run ends; None follows for ever.
    """
    ranges, blocked, drained = [], [], goals is not None
    for fact in facts:
        goal = fact.log.end if goals is None else goals.get(fact.partition, fact.log.first)
        if fact.position >= goal and goals is not None:
            continue
        drained = False
        until = min(fact.log.last_stable, fact.position + cap)
        if until > fact.position:
            ranges.append(OffsetRange(fact.topic, fact.partition, fact.position, until))
        elif fact.log.last_stable < fact.log.end:
            blocked.append(fact.partition)
    return Plan(tuple(ranges), tuple(blocked), drained)
