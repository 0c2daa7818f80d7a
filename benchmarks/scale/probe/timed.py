"""Real transactions, one after another in one thread, and what each of their steps takes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipeline.enrich import enricher
from pipeline.outcome import Status
from pipeline.ports import Rows, Targets
from pipeline.settings import Limits
from pipeline.transact import transact
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka.scan import LogRecord
from protocol.kafka.transaction import KafkaTransaction, TransactionSettings
from protocol.position import Committed, OffsetRange
from scale.numbers import STEPS

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Lap:
    """Seconds of one step: by the clock, of this thread's CPU, of all the process's other threads' CPU."""

    wall_s: float
    python_s: float
    native_s: float


@dataclass(slots=True)
class Laps:
    """Step -> its laps, one of each transaction; a lap runs from the end of the one before."""

    laps: dict[str, list[Lap]] = field(default_factory=lambda: {step: [] for step in STEPS})
    _last: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def start(self) -> None:
        self._last = _clocks()

    def lap(self, step: str) -> None:
        before, self._last = self._last, _clocks()
        wall, thread, process = (now - then for now, then in zip(self._last, before, strict=True))
        self.laps[step].append(Lap(wall, thread, max(0.0, process - thread)))

    def wall_s(self, step: str) -> float:
        """The lower quartile: what others did on the machine meanwhile is left out as far as it can be."""
        return quartile([lap.wall_s for lap in self.laps[step]])

    def mean_s(self, step: str, value: Callable[[Lap], float]) -> float:
        found = self.laps[step]
        return sum(map(value, found)) / len(found)


def quartile(values: Sequence[float]) -> float:
    """The value that a quarter of them do not exceed."""
    return sorted(values)[len(values) // 4]


def _clocks() -> tuple[float, float, float]:
    return time.perf_counter(), time.thread_time(), time.process_time()


class _Timed:
    """The kernel's port around a real transaction; a lap ends with each step."""

    def __init__(self, laps: Laps, settings: TransactionSettings, topic: str) -> None:
        self._laps = laps
        self._kafka = KafkaTransaction(settings, topic, 0)
        self.produce: Callable[..., None] = self._kafka.produce
        laps.lap("open")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kafka, name)

    def mapped(self, step: str) -> contextlib.AbstractContextManager[None]:
        return self._kafka.mapped(step)

    def fence(self, deadline: Deadline) -> None:
        self._kafka.fence(deadline)
        self._laps.lap("fence")

    def locate(self, deadline: Deadline) -> Committed | None:
        found = self._kafka.locate(deadline)
        self._laps.lap("locate")
        return found

    def begin(self) -> None:
        self._kafka.begin()
        self._laps.lap("begin")

    def flush(self, deadline: Deadline) -> None:
        self._laps.lap("produce")
        self._kafka.flush(deadline)
        self._laps.lap("flush")

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        self._kafka.send_offsets(until, metadata, deadline)
        self._laps.lap("send-offsets")

    def commit(self, deadline: Deadline) -> None:
        self._kafka.commit(deadline)
        self._laps.lap("commit")

    def close(self) -> None:
        self._kafka.close()
        self._laps.lap("close")


@dataclass(slots=True)
class Worker:
    """Goes through partition 0 of ``topic``, transaction after transaction, under a group of its own."""

    connection: Connection
    topic: str
    output: str
    group: str
    at: int = 0

    def run(self, records: Sequence[LogRecord], each: int) -> Laps:
        """
        Work ``records`` off, ``each`` in a transaction.

        Raises:
            Refused: a transaction was not committed.
        """
        laps, enrich = Laps(), enricher(Limits())
        settings = TransactionSettings(self.connection, self.group, _TIMEOUT_S)
        targets = Targets(self.output, self.output, 0, 0)
        for start in range(0, len(records) - each + 1, each):
            rows = rows_of(records[start : start + each])
            until = rows.offsets[-1] + 1
            offered = OffsetRange(self.topic, 0, self.at or rows.offsets[0], until)
            laps.start()
            kafka = _Timed(laps, settings, self.topic)
            try:
                deadline = Deadline(_TIMEOUT_S)
                outcome = transact([rows], offered, targets, enrich, kafka, deadline, first_time=not self.at)
            finally:
                kafka.close()
            if outcome.status is not Status.COMMITTED:
                raise Refused(f"a measured transaction ended {outcome.status.value}: {outcome.detail}")
            self.at = until
        return laps


def rows_of(records: Sequence[LogRecord]) -> Rows:
    """The kernel's parallel lists."""
    return Rows(
        [one.offset() for one in records],
        [one.key() for one in records],
        [one.value() for one in records],
        [one.headers() for one in records],
        [one.timestamp()[1] for one in records],
    )
