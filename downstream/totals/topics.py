"""The topics of one group's totals, and the metadata of its committed offsets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import topics
from brew.kafka.clients import AdminClient
from brew.kafka.topics import Topic, TopicSpec
from brew.offsets import Committed, LogOffsets

_COMPACTED = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class TotalsSettings:
    """
    Settings of one group's totals. ``timeout_s``: the transaction time-out; ``restore_s``: the time allowed for an
    attempt's restore. ``max_offsets``: the maximum number of offsets per transaction.
    """

    connection: Connection
    group: str
    input: str
    output: str
    timeout_s: float = 30.0
    restore_s: float = 600.0
    max_offsets: int = 20_000

    @property
    def deltas(self) -> str:
        """The repartition topic: sums of a few orders, by customer and by tier."""
        return f"{self.group}.deltas"

    @property
    def changelog(self) -> str:
        """The state's values by key, compacted."""
        return f"{self.group}.changelog"


class Topics(NamedTuple):
    input: Topic
    deltas: Topic
    changelog: Topic
    output: Topic

    @property
    def layout(self) -> str:
        """What a total belongs to; committed with the offsets of the deltas, so that a later start can compare it."""
        return f"input={self.input.topic_id} partitions={self.deltas.partitions} output={self.output.topic_id}"


def found(client: AdminClient, settings: TotalsSettings, deadline: Deadline) -> Topics | None:
    """Describe all topics; None if one of the group's own is missing, which means that nothing was counted yet."""
    source = topics.describe_one(client, settings.input, deadline)
    own = [settings.deltas, settings.changelog, settings.output]
    known = topics.describe(client, own, deadline)
    if len(known) < len(own):
        return None
    return _checked(Topics(source, *(known[name] for name in own)))


def ensured(client: AdminClient, settings: TotalsSettings, deadline: Deadline) -> Topics:
    """Describe all topics, created like the input where missing; raises `Refused` if that is, or partitions differ."""
    source = topics.describe_one(client, settings.input, deadline)
    own = {settings.deltas: {}, settings.changelog: _COMPACTED, settings.output: _COMPACTED}
    known = topics.describe(client, list(own), deadline)
    missing = [TopicSpec(name, source.partitions, config) for name, config in own.items() if name not in known]
    if missing:
        topics.create(client, missing, deadline)
        known = topics.describe_all(client, list(own), deadline)
    return _checked(Topics(source, *(known[name] for name in own)))


def _checked(all_topics: Topics) -> Topics:
    counts = {topic.name: topic.partitions for topic in all_topics[1:]}
    if len(set(counts.values())) > 1:
        counts_text = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise Refused(
            f"partitions-differ: {counts_text}; a key's delta, state and result share one partition number, so the "
            "counts must be equal. Count again with another --group and another --output"
        )
    return all_topics


def recreated(where: str, now: str, counted: str) -> str:
    """Return the refusal of an input, whose id is ``now``, if the orders counted were in a topic with another id."""
    return (
        f"topic-recreated: {where} has the id {now}, but the orders counted were in the topic with the id {counted}; "
        "count again with another --group and another --output"
    )


def require_same_layout(settings: TotalsSettings, now: Topics, committed: Iterable[Committed | None]) -> None:
    """Raise `Refused` unless the offsets of the deltas were committed for these topics and partitions."""
    for known in committed:
        match = None if known is None else _FORM.fullmatch(known.metadata)
        if match is None or match["input"] is None:
            continue
        if match["input"] != now.input.topic_id:
            raise Refused(recreated(settings.input, now.input.topic_id, match["input"]))
        if match["partitions"] != str(now.deltas.partitions):
            raise Refused(partitions_changed(settings.deltas, match["partitions"], now.deltas.partitions))
        if match["output"] != now.output.topic_id:
            raise Refused(
                f"results-elsewhere: the results of group {settings.group!r} are in the topic with the id "
                f"{match['output']}, but {settings.output} has the id {now.output.topic_id}, and would lack all totals "
                "that do not change any more. Name the earlier topic with --output, or count again with another --group"
            )


def require_same_topics(started: Topics, now: Mapping[str, Topic]) -> None:
    """Raise `Refused` if a topic was recreated, or one of the group's own has more partitions, so that keys move."""
    for topic in started:
        found_now = now.get(topic.name, topic)  # a broker that starts may not know it yet
        if found_now.topic_id != topic.topic_id:
            raise Refused(
                f"topic-recreated: {topic.name} had the id {topic.topic_id} at the start, and has {found_now.topic_id} "
                "now, so records are lost. Count again with another --group and another --output"
            )
        if found_now.partitions != topic.partitions and topic is not started.input:
            raise Refused(partitions_changed(topic.name, str(topic.partitions), found_now.partitions))


def partitions_changed(topic: str, counted: str, now: int) -> str:
    return (
        f"partitions-changed: {topic} has {now} partitions, and totals were counted with {counted}: a customer's next "
        "total would be in another partition, without the earlier orders. Count again with another --group and another "
        "--output"
    )


_FORM = re.compile(
    r"topic-id=(?P<id>\S+) began=(?P<began>\d+)"
    r"( input=(?P<input>\S+) partitions=(?P<partitions>\d+) output=(?P<output>\S+))?"
)


@dataclass(frozen=True, slots=True)
class Position:
    """A partition's next offset to read, and the first one that was ever counted."""

    offset: int
    began: int

    def metadata(self, topic_id: str, layout: str = "") -> str:
        """Return the metadata for each later committed offset; ``layout`` for those of the deltas."""
        return f"topic-id={topic_id} began={self.began} {layout}".rstrip()


def position(partition: str, topic_id: str, committed: Committed | None, log: LogOffsets) -> Position:
    """Return where to continue, by default at the log's first offset; raises `Refused` if that would miscount."""
    if committed is None:
        return Position(log.first, log.first)
    match = _FORM.fullmatch(committed.metadata)
    if match is None:
        raise Refused(
            f"position-moved: the offset {committed.offset} of {partition} was not committed by this program "
            f"(its metadata is {committed.metadata!r}); orders would be counted twice or skipped. "
            "Count again with another --group and another --output"
        )
    if match["id"] != topic_id:
        raise Refused(recreated(partition, topic_id, match["id"]))
    if committed.offset < log.first:
        raise Refused(
            f"range-lost: {partition} begins at {log.first}, but the group is at {committed.offset}; the orders "
            "between were deleted. Count again with another --group and another --output, and give the topic a longer "
            "retention"
        )
    return Position(committed.offset, int(match["began"]))


def require_within(partition: str, offset: int, log: LogOffsets) -> None:
    """Raise `Refused` if the log ends before the group's offset, so that what is written next would be skipped."""
    if offset > log.last_stable:
        raise Refused(
            f"offset-ahead: the group is at {offset} of {partition}, whose last stable offset is {log.last_stable}: "
            "the topic was recreated, or its log was truncated. Count again with another --group and another --output"
        )
