"""A broker in memory with transactions and fences, and the kernel's port to it; records as the client returns them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from brew.deadline import Deadline
from brew.errors import Fatal, Fenced, KafkaFailure
from brew.offsets import Committed, SourcePosition


def log_record(
    offset: int,
    partition: int = 0,
    key: bytes | None = b"k",
    value: bytes | None = None,
    headers: list[tuple[str, bytes | None]] | None = None,
    timestamp: tuple[int, int] = (1, 0),
    error: object = None,
) -> Any:
    """Return a record, or an event, as the client library does: each field is a method."""
    return SimpleNamespace(**{name: lambda given=given: given for name, given in locals().items()})


@dataclass
class Record:
    """One physical record; ``state`` is open, committed or aborted."""

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp: int
    headers: list[tuple[str, bytes | None]]
    state: str = "open"


@dataclass
class Broker:
    """The coordinator of one transactional id, the position of one group, and one log."""

    committed: Committed | None = None
    epoch: int = 0
    log: list[Record] = field(default_factory=list)
    pending_offset: Committed | None = None

    def visible(self) -> list[Record]:
        return [record for record in self.log if record.state == "committed"]

    def sources(self) -> list[int]:
        found = [SourcePosition.of(record.headers) for record in self.visible()]
        return [source.offset for source in found if source is not None]

    def end(self, state: str) -> None:
        for record in self.log:
            if record.state == "open":
                record.state = state
        if state == "committed" and self.pending_offset is not None:
            self.committed = self.pending_offset
        self.pending_offset = None


class FakeTransaction:
    """The kernel's port; ``fail`` names a step and the error it raises there, before or after the broker acted."""

    def __init__(
        self, broker: Broker, fail: tuple[str, KafkaFailure] | None = None, *, applied: bool = False, queue: int = 1000
    ) -> None:
        self.broker, self.steps = broker, []
        self._fail, self._applied, self._queue = fail, applied, queue
        self._epoch = -1
        self._queued: list[Record] = []
        self.waits = 0
        self.settled: list[int] = []

    @contextmanager
    def mapped(self, step: str) -> Iterator[None]:
        yield

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self.steps.append(name)
        failing = self._fail is not None and self._fail[0] == name
        if failing and not self._applied:
            raise self._fail[1]
        if name != "fence" and self._epoch != self.broker.epoch:
            raise Fenced(f"{name}: epoch {self._epoch} is not {self.broker.epoch}")
        yield
        if failing:
            raise self._fail[1]

    def fence(self, deadline: Deadline) -> None:
        with self._step("fence"):
            self.broker.end("aborted")
            self.broker.epoch += 1
            self._epoch = self.broker.epoch

    def locate(self, deadline: Deadline) -> Committed | None:
        with self._step("locate"):
            return self.broker.committed
        raise AssertionError

    def begin(self) -> None:
        with self._step("begin"):
            pass

    def produce(self, topic, value, key, partition, _callback, _alias, timestamp, headers) -> None:
        if len(self._queued) >= self._queue:
            raise BufferError("queue full")
        with self._step("produce"):
            self._queued.append(Record(topic, value, key, partition, timestamp, list(headers or ())))

    def make_room(self, deadline: Deadline) -> None:
        self.waits += 1
        self._send()

    def _send(self) -> None:
        self.broker.log.extend(self._queued)
        self._queued.clear()

    def await_acks(self, deadline: Deadline) -> None:
        self.settled.append(len(self._queued))
        self._send()

    def flush(self, deadline: Deadline) -> None:
        with self._step("flush"):
            self._send()

    def send_offsets(self, until: int, metadata: str, deadline: Deadline) -> None:
        with self._step("send-offsets"):
            self.broker.pending_offset = Committed(until, metadata)

    def commit(self, deadline: Deadline) -> None:
        with self._step("commit"):
            if self._queued:
                raise Fatal("commit: records are still queued")
            self.broker.end("committed")

    def commit_without_waiting(self) -> None:
        self.commit(Deadline(1))

    def abort(self, deadline: Deadline) -> None:
        with self._step("abort"):
            self._queued.clear()
            self.broker.end("aborted")
