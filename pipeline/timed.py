"""A transaction that measures its steps: a clock's reading before and after each, none for a record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from pipeline.ports import Transaction
from protocol.deadline import Deadline
from protocol.position import Committed

FENCE, LOCATE, BEGIN, PRODUCE, SEND_OFFSETS, COMMIT, ABORT = (
    "fence",
    "locate",
    "begin",
    "produce",
    "send-offsets",
    "commit",
    "abort",
)


class Timed:
    """The kernel's port; ``steps`` is step -> seconds in the order of the steps, the one that failed last."""

    def __init__(self, kafka: Transaction, clock: Callable[[], float] = time.perf_counter) -> None:
        self._kafka, self._clock = kafka, clock
        self._producing_since: float | None = None
        self.steps: dict[str, float] = {}
        self.produce: Callable[..., None] = kafka.produce

    @contextmanager
    def _step(self, step: str) -> Iterator[None]:
        began = self._clock()
        try:
            yield
        finally:
            self.steps[step] = round(self._clock() - began, 6)

    def _produced(self) -> None:
        if self._producing_since is not None:
            self.steps[PRODUCE] = round(self._clock() - self._producing_since, 6)

    def mapped(self, step: str) -> AbstractContextManager[None]:
        return self._kafka.mapped(step)

    def fence(self, deadline: Deadline) -> None:
        with self._step(FENCE):
            self._kafka.fence(deadline)

    def locate(self, deadline: Deadline) -> Committed | None:
        with self._step(LOCATE):
            return self._kafka.locate(deadline)

    def begin(self) -> None:
        with self._step(BEGIN):
            self._kafka.begin()
        self._producing_since = self._clock()

    def make_room(self, deadline: Deadline) -> None:
        self._kafka.make_room(deadline)

    def settle(self, deadline: Deadline) -> None:
        self._kafka.settle(deadline)

    def flush(self, deadline: Deadline) -> None:
        try:
            self._kafka.flush(deadline)
        finally:
            self._produced()

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        with self._step(SEND_OFFSETS):
            self._kafka.send_offsets(until, metadata, deadline)

    def commit(self, deadline: Deadline) -> None:
        with self._step(COMMIT):
            self._kafka.commit(deadline)

    def commit_without_waiting(self) -> None:
        with self._step(COMMIT):
            self._kafka.commit_without_waiting()

    def abort(self, deadline: Deadline) -> None:
        if PRODUCE not in self.steps:  # it failed before its flush
            self._produced()
        with self._step(ABORT):
            self._kafka.abort(deadline)
