"""A snapshot of a topic, and findings; shared by the checks that compare a store with its topic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from brew.cli import printable
from brew.deadline import Deadline
from brew.errors import Denied, KafkaFailure
from brew.kafka import offsets, topics
from brew.kafka.clients import AdminClient, admin, reach
from brew.kafka.log_reader import LogRecord, scan
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import Committed, LogOffsets
from downstream.consume.handler import LoopSettings

_ASK_S = 30.0
_EXAMPLES = 5


@dataclass
class Findings:
    """Findings of a check; no findings means proven."""

    findings: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def found(self, name: str, what: str, count: int = 1) -> None:
        self.findings[name] += count
        if sum(example.startswith(f"{name}: ") for example in self.examples) < _EXAMPLES:
            self.examples.append(f"{name}: {what}")

    def judged(self, **counts: Any) -> dict[str, Any]:
        """Return the verdict, ``counts`` and the findings as one document."""
        verdict = "violated" if self.findings else "proven"
        return {"verdict": verdict, **counts, "findings": dict(self.findings), "examples": self.examples}

    def lines(self, proven: str) -> list[str]:
        """Return counts and examples of the findings, or ``proven`` if there are none."""
        names = ", ".join(f"{count} {name}" for name, count in self.findings.items())
        return [*map(printable, self.examples), names or f"proven: {proven}"]


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """A topic and the group's offsets when the check begins; ``compacted``: records with effects may be gone."""

    settings: LoopSettings
    topic_id: str
    logs: dict[int, LogOffsets]
    committed: dict[int, Committed | None]
    compacted: bool = False

    def records(self, *partitions: int) -> Iterator[LogRecord]:
        """Yield what a `read_committed` reader sees of ``partitions``, or of all partitions if none are given."""
        wanted = partitions or self.logs
        spans = {p: (self.logs[p].first, self.logs[p].last_stable) for p in wanted}
        for batch in scan(self.settings.connection, self.settings.topic, spans, READ_COMMITTED):
            yield from batch

    def removed(self, partition: int) -> Callable[[int], bool]:
        """Return whether compaction removed a record at this offset, where none is visible; ask in ascending order."""
        if not self.compacted:
            return lambda _offset: False
        span = {partition: (self.logs[partition].first, self.logs[partition].last_stable)}
        batches = scan(self.settings.connection, self.settings.topic, span, READ_UNCOMMITTED)
        left = (record.offset() for batch in batches for record in batch)
        reached = -1

        def asked(offset: int) -> bool:
            nonlocal reached
            while reached < offset:
                reached = next(left, self.logs[partition].end)
            return reached != offset

        return asked


def topic_snapshot(settings: LoopSettings) -> TopicSnapshot:
    """Take a snapshot of the topic and the group's offsets; raises `Refused` if there is no topic, or no answer."""
    reach(settings.connection, Deadline(_ASK_S))
    client, deadline = admin(settings.connection), Deadline(_ASK_S)
    topic = topics.describe_one(client, settings.topic, deadline)
    partitions = range(topic.partitions)
    logs = offsets.log_offsets(client, settings.topic, partitions, deadline)
    whose = (settings.connection, settings.group, settings.topic)
    known = offsets.committed_by(*whose, partitions, READ_UNCOMMITTED, deadline)
    return TopicSnapshot(settings, topic.topic_id, logs, known, _compacted(client, settings.topic, deadline))


def _compacted(client: AdminClient, topic: str, deadline: Deadline) -> bool:
    """Return whether the topic is compacted; False without the right to see its settings, which no check needs else."""
    try:
        return "compact" in topics.cleanup_policy(client, topic, deadline)
    except (Denied, KafkaFailure):
        return False
