"""Fakes around the lease coordinator: brokers, workers and their sessions; the state of a run, settings of a worker."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from brew.claims.heartbeater import ALL_PARTITIONS
from brew.connection import Connection
from brew.driver import work_planner
from brew.driver.lease_coordinator import LeaseCoordinator
from brew.driver.partitions import PartitionSurvey
from brew.driver.run_context import PreflightResult, ProgressView, RunContext, RunProgress
from brew.errors import BrewError, KafkaFailure, Refused
from brew.kafka.topics import Topic
from brew.kafka.transaction import TransactionSettings
from brew.offsets import Committed, LogOffsets
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.range_transaction import Targets
from brew.readers.direct.lease_server import ReceivedMessage, WorkerSession
from brew.readers.direct.messages import WorkerSettings, outcome_message, parse_grant, released_message
from brew.settings import CrashSettings, DirectSettings, Limits, PipelineSettings
from pipeline.transformation import OrderEnrichment

Message = dict[str, Any]


class FakeCluster:
    """Four partitions of 100 offsets, and the group's committed offset for each."""

    def __init__(self, *committed: int | None) -> None:
        self.committed = dict(enumerate(committed or (0, 0, 0, 0)))
        self.last_positions: dict[int, int] = {}
        self._may_start: set[int] = set()
        self.stable = 100
        self.complete = True
        self.withheld: set[int] = set()
        self.down: KafkaFailure | None = None
        self.surveys, self.closed = list[float](), False
        self.blocked: object = ()
        self.owned: Container[int] = ALL_PARTITIONS
        self.output_partition = -1

    def renew_clients(self) -> None: ...

    def read(self, _mine: Callable[..., Any]) -> tuple[list[PartitionFacts], bool]:
        self.surveys.append(time.monotonic())
        if self.down is not None:
            raise self.down
        log = LogOffsets(0, self.stable, 100)
        positions = {p: None if offset is None else Committed(offset, "") for p, offset in self.committed.items()}
        facts = [
            PartitionFacts("in", p, "id", offset, log) for p, offset in positions.items() if p not in self.withheld
        ]
        return facts, self.complete

    apply_outcome, _shared = PartitionSurvey.apply_outcome, SimpleNamespace(view=ProgressView())

    def first_attempt(self, fact: PartitionFacts) -> bool:
        if fact.committed is None:
            self.last_positions.pop(fact.partition, None)
        return fact.committed is None

    def targets(self, _fact: PartitionFacts) -> Targets:
        return Targets("out", "dead", self.output_partition, -1)

    def missing_outputs(self) -> list[str]:
        return []

    def report_blocking_transactions(self, partitions: object) -> None:
        self.blocked = partitions

    def close(self) -> None:
        self.closed = True


class FakeConnection:
    """The driver's end of a connection; the test reads what was sent on it."""

    def __init__(self) -> None:
        self.sent: queue.Queue[Message] = queue.Queue()
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def send(self, message: Message) -> bool:
        self.sent.put(message)
        return True


class FakeWorkers:
    """Two slots, on which only the test works."""

    def __init__(self) -> None:
        self.server: Any = self
        self.received: queue.Queue[ReceivedMessage] = queue.Queue()
        self.closed = False
        self.opened = 0
        self.broken: Refused | None = None
        self.failure: str | None = None
        self.most_slots, self.restarts_stopped = 2, False
        self.worked_slots: list[int] = []

    def slots(self) -> int:
        return self.most_slots

    def open(self, count: int) -> None:
        self.opened = max(self.opened, count)

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def worked(self, slot: int) -> None:
        self.worked_slots.append(slot)

    def last_failure(self) -> str | None:
        return self.failure

    def stop_restarts(self) -> None:
        self.restarts_stopped = True

    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class FakeOwnership:
    """Claims of the driver under test; records the partitions reported to it as idle."""

    def __init__(self, *partitions: int) -> None:
        self.partitions = set(partitions)
        self.idle: dict[int, bool] = {}

    def refresh(self, idle: Callable[[int], bool]) -> Container[int]:
        self.idle = {p: idle(p) for p in range(4)}
        return frozenset(self.partitions)


def run_context(
    settings: PipelineSettings,
    stop: threading.Event | None = None,
    *,
    topics: Mapping[str, Topic] | None = None,
    view: ProgressView | None = None,
    goals: Mapping[int, int] | None = None,
    **more: Any,
) -> RunContext:
    """Return the state of a run with these settings."""
    transaction = TransactionSettings(settings.connection, settings.group, 60.0)
    preflight = PreflightResult(topics or {}, goals, settings, 1_000_000, transaction, 0)
    return RunContext(preflight, stop or threading.Event(), RunProgress(), view or ProgressView(), **more)


def worker_settings(port: int = 0, **more: Any) -> WorkerSettings:
    """Return a lease worker's settings; ``more``: other fields."""
    transaction = TransactionSettings(Connection("127.0.0.1:1"), "group", 60.0)
    made, direct, crash = OrderEnrichment(Limits()), DirectSettings(), CrashSettings()
    defaults = WorkerSettings("127.0.0.1", port, "token", "orders", transaction, made, direct, crash, 1000)
    return replace(defaults, **more)


class LeaseRun:
    """One lease coordinator in a thread, and workers whose messages the test determines."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cluster: FakeCluster | None = None,
        *,
        goals: dict[int, int] | None = None,
        follow: bool = False,
        ownership: Any = None,
        **settings: Any,
    ) -> None:
        self.cluster, self.workers, self.stop = cluster or FakeCluster(), FakeWorkers(), threading.Event()
        monkeypatch.setattr(work_planner, "PartitionSurvey", lambda _shared: self.cluster)
        plain = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
        given = replace(plain, **settings)
        ends = None if follow else goals or dict.fromkeys(range(4), 100)
        self.shared = run_context(given, self.stop, goals=ends)
        self.shared.ownership = ownership or self.shared.ownership
        self.errors: list[Exception] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            LeaseCoordinator(self.shared, self.workers).run()
        except BrewError as error:
            self.errors.append(error)

    def worker(self, slot: int) -> WorkerSession:
        connection: Any = FakeConnection()
        session = WorkerSession(slot, connection)
        self.send(session, {"hello": {}})
        return session

    def send(self, session: WorkerSession, message: Message | None) -> None:
        self.workers.received.put(ReceivedMessage(session, message))

    def finish(self, session: WorkerSession, partition: int) -> None:
        self.cluster.committed[partition] = 100
        self.send(session, outcome_message(Outcome(partition, 0, 100, Status.COMMITTED, 0, 100, 0, 0.1)))
        self.send(session, released_message(partition, 100))

    def ended(self) -> bool:
        self.thread.join(10)
        return not self.thread.is_alive()


def next_message(session: WorkerSession, name: str, seconds: float = 5.0) -> Message:
    """Return the next message that contains this word."""
    connection: Any = session.connection
    while True:
        message: Message = connection.sent.get(timeout=seconds)
        if name in message:
            return message


def grants(session: WorkerSession, count: int) -> dict[int, Any]:
    received = [parse_grant(next_message(session, "grant")) for _ in range(count)]
    return {grant.partition: grant for grant in received if grant is not None}


def two_workers(play: LeaseRun) -> tuple[WorkerSession, WorkerSession]:
    return play.worker(0), play.worker(1)


def workers_with_grants(play: LeaseRun) -> tuple[WorkerSession, WorkerSession, dict[int, Any], dict[int, Any]]:
    """Return two workers and the grants of two partitions that each has got."""
    one, other = two_workers(play)
    return one, other, grants(one, 2), grants(other, 2)
