"""The topics of one group's totals: results for everybody, deltas and changelog for itself."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka import topics
from protocol.kafka.clients import AdminClient
from protocol.kafka.topics import Topic, Wanted

_COMPACTED = {"cleanup.policy": "compact"}


@dataclass(frozen=True, slots=True)
class TotalsSettings:
    """
    Who counts what.

    ``timeout_s``: the brokers' patience with one open transaction; ``restore_s``: ours with a restore.
    ``max_offsets``: of one transaction.
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
        """Sums of a few orders, by customer and by tier: the repartition topic."""
        return f"{self.group}.deltas"

    @property
    def changelog(self) -> str:
        """What the state holds, key by key, compacted."""
        return f"{self.group}.changelog"


@dataclass(frozen=True, slots=True)
class Topics:
    """What is there, described."""

    input: Topic
    deltas: Topic
    changelog: Topic
    output: Topic


def found(client: AdminClient, settings: TotalsSettings, deadline: Deadline) -> Topics | None:
    """All topics; None when one of the group's own is missing: then nothing was counted yet."""
    source = topics.existing(client, settings.input, deadline)
    own = [settings.deltas, settings.changelog, settings.output]
    known = topics.describe(client, own, deadline)
    if len(known) < len(own):
        return None
    return _checked(Topics(source, *(known[name] for name in own)))


def ensured(client: AdminClient, settings: TotalsSettings, deadline: Deadline) -> Topics:
    """
    All topics, those that are missing made with the input's number of partitions.

    Raises:
        Refused: the input is missing, or deltas, changelog and results have not equally many partitions.
    """
    source = topics.existing(client, settings.input, deadline)
    own = {settings.deltas: {}, settings.changelog: _COMPACTED, settings.output: _COMPACTED}
    known = topics.describe(client, list(own), deadline)
    missing = [Wanted(name, source.partitions, config) for name, config in own.items() if name not in known]
    if missing:
        topics.create(client, missing, deadline)
        known = topics.describe_all(client, list(own), deadline)
    return _checked(Topics(source, *(known[name] for name in own)))


def _checked(all_topics: Topics) -> Topics:
    counts = {topic.name: topic.partitions for topic in (all_topics.deltas, all_topics.changelog, all_topics.output)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise Refused(
            f"partitions-differ: {told}; a key's delta, state and result share one partition number, so the counts "
            "have to be equal. Count afresh with another --group and another --output"
        )
    return all_topics
