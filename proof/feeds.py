"""Logs that the checker is fed from, each of which knows how far it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from proof.checking.records import Row
from protocol.batches import OffsetBatch, RawBatch
from protocol.kafka.clients import READ_COMMITTED, Connection
from protocol.kafka.introspect import RawLogs
from protocol.kafka.scan import scan_rows
from protocol.position import LogOffsets

# Inputs are read this far ahead: partitions take turns, and an output finds its input there already.
_AHEAD = 50_000
_OFFSET_BATCHES = 200


class Feed(Protocol):
    """``step`` hands the checker some more; ``fraction`` is what part of the log has been handed over."""

    ended: bool

    @property
    def fraction(self) -> float: ...
    def step(self) -> None: ...
    def close(self) -> None: ...


class Records:
    """
    The visible records of one topic.

    ``lead`` is told how far each partition will be read, before it is; ``ahead`` keeps this log before the others.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        logs: dict[int, LogOffsets],
        take: Callable[[Iterable[Row]], None],
        lead: Callable[[int, int], None] | None = None,
        *,
        ahead: bool = False,
    ) -> None:
        self._first = {p: log.first for p, log in logs.items()}
        self._ends = {p: log.end for p, log in logs.items()}
        self._done = dict.fromkeys(logs, 0)
        self._total = max(1, sum(log.last_stable - log.first for log in logs.values()))
        self._batches = scan_rows(
            connection, topic, {p: (log.first, log.last_stable) for p, log in logs.items()}, READ_COMMITTED
        )
        self._take, self._lead = take, lead
        self._ahead = _AHEAD if ahead else 0
        self.ended = False

    @property
    def fraction(self) -> float:
        return (sum(self._done.values()) - self._ahead) / self._total

    def step(self) -> None:
        rows = next(self._batches, None)
        if rows is None:
            self.ended = True
        reached = self._ends if rows is None else {row[0]: row[1] for row in rows}
        if self._lead is not None:
            for partition, offset in reached.items():
                self._lead(partition, offset)
        if rows is not None:
            self._take(rows)
            for partition, offset in reached.items():
                self._done[partition] = offset + 1 - self._first[partition]

    def close(self) -> None:
        self._batches.close()


class Batches:
    """The raw batches of one topic, handed over partition by partition, up to where they are needed."""

    def __init__(
        self,
        raw: RawLogs,
        topic: str,
        logs: dict[int, LogOffsets],
        take: Callable[[str, int, Iterable[RawBatch]], None],
    ) -> None:
        self._topic, self._take = topic, take
        self._left: dict[int, Iterator[RawBatch]] = {
            p: (batch for batch, _ in raw.batches(topic, p, log.first, log.end)) for p, log in logs.items()
        }
        self._reached = {p: log.first - 1 for p, log in logs.items()}

    def lead(self, partition: int, offset: int) -> None:
        """Hand over all batches up to the one that holds ``offset``."""
        found = []
        while self._reached[partition] < offset:
            batch = next(self._left[partition], None)
            if batch is None:
                break
            found.append(batch)
            self._reached[partition] = batch.last_offset
        if found:
            self._take(self._topic, partition, found)


class Offsets:
    """The group's partition of Kafka's offset log."""

    def __init__(
        self, batches: Iterator[OffsetBatch], log: LogOffsets, take: Callable[[Iterable[OffsetBatch]], None]
    ) -> None:
        self._batches, self._take = batches, take
        self._first, self._total, self._done = log.first, max(1, log.end - log.first), 0
        self.ended = False

    @property
    def fraction(self) -> float:
        return self._done / self._total

    def step(self) -> None:
        found = []
        for batch in self._batches:
            found.append(batch)
            if len(found) == _OFFSET_BATCHES:
                break
        else:
            self.ended = True
        if found:
            self._take(found)
            self._done = found[-1].raw.last_offset + 1 - self._first

    def close(self) -> None:
        """Nothing is open between two steps."""
