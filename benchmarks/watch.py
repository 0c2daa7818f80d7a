"""See from outside when records become visible: the output's last stable offsets, asked for every 20 ms."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beside import ScopedThread
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec

from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import BrewError
from brew.kafka.clients import TopicPartition, admin, consumer, mapped
from brew.names import READ_COMMITTED, READ_UNCOMMITTED

POLL_S = 0.02
_ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class VisibilitySample:
    """At ``at`` (monotonic seconds) so many offsets lay below the partitions' last stable offsets."""

    at: float
    visible: int


class EndOffsets:
    """The ends of a topic's partitions as one kind of reader sees them."""

    def __init__(self, connection: Connection, topic: str, partitions: int) -> None:
        self._client = admin(connection)
        self._wanted = {TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)}

    def ask(self, isolation: str = READ_COMMITTED) -> dict[int, int]:
        """Last stable offset (or log end, for `read_uncommitted`) by partition."""
        level = IsolationLevel.READ_COMMITTED if isolation == READ_COMMITTED else IsolationLevel.READ_UNCOMMITTED

        def once() -> dict[int, int]:
            with mapped("look"):
                answers = self._client.list_offsets(self._wanted, isolation_level=level, request_timeout=_ASK_S)
                return {tp.partition: future.result().offset for tp, future in answers.items()}

        # A topic that was only just made may have no leader yet.
        return retry_until(once, "look", Deadline(_ASK_S))


class VisibilityWatch(ScopedThread):
    """Notes each change of what is visible; each look costs this process and the broker, more with more partitions."""

    def __init__(self, ends: EndOffsets, poll_s: float = POLL_S) -> None:
        super().__init__()
        self._ends, self._poll_s = ends, poll_s
        self.sights: list[VisibilitySample] = []

    def after(self) -> None:
        self._look()

    def work(self) -> None:
        while not self._stop.wait(self._poll_s):
            try:
                self._look()
            except BrewError:
                continue  # a broker under load may answer late; the next look tells

    def _look(self) -> None:
        visible = sum(self._ends.ask().values())
        if visible != (self.sights[-1].visible if self.sights else 0):
            self.sights.append(VisibilitySample(time.monotonic(), visible))


@dataclass(frozen=True, slots=True)
class Throughput:
    """How a run went, as a `read_committed` reader saw it; seconds from process start."""

    first_visible_s: float
    last_visible_s: float
    records_per_s: float
    overall_records_per_s: float


def throughput(sights: Sequence[VisibilitySample], started: float, records: int) -> Throughput | None:
    """
    The pace of a run; None when nothing ever became visible.

    What was visible at the first look took its time before it, so it does not count for the rate. A run that became
    visible all at once has no rate between first and last; its overall rate stands for it.
    """
    if not sights:
        return None
    first, last = sights[0], sights[-1]
    overall = records / (last.at - started)
    later = max(0, records - first.visible)
    rate = later / (last.at - first.at) if last.at > first.at and later else overall
    return Throughput(first.at - started, last.at - started, rate, overall)


def first_record(
    connection: Connection, topic: str, positions: Mapping[int, int], group: str, deadline: Deadline
) -> float:
    """
    The moment at which a `read_committed` consumer, standing at ``positions``, is given a record.

    Only a record tells: fencing moves the last stable offset over aborted records that no reader sees.
    """
    reader = consumer(connection, group, READ_COMMITTED, **{"fetch.wait.max.ms": 20})
    try:
        reader.assign([TopicPartition(topic, p, offset) for p, offset in positions.items()])
        while True:
            message = reader.poll(min(0.1, deadline.remaining_s()))
            if message is not None and message.error() is None:
                return time.monotonic()
            deadline.check("the first record after a restart")
    finally:
        reader.close()


def open_records(ends: EndOffsets) -> int:
    """Offsets that wait behind the last stable ones: more than none while a transaction is open."""
    stable = ends.ask()
    return sum(ends.ask(READ_UNCOMMITTED).values()) - sum(stable.values())
