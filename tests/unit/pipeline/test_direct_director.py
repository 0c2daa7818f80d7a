"""The director decides with workers that are played: who gets what, what comes back, and when it ends."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from typing import Any

import pytest

from brew.connection import Connection
from brew.driver import leases as directing
from brew.driver import work_planner
from brew.driver.leases import LeaseCoordinator
from brew.driver.ownership import ALL_PARTITIONS
from brew.driver.partitions import PartitionSurvey
from brew.driver.progress import ProgressView, RunProgress
from brew.driver.run_context import RunContext
from brew.errors import KafkaFailure, Refused
from brew.fault_injection import CrashInjector
from brew.kafka.transaction import TransactionSettings
from brew.offsets import Committed, LogOffsets
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.range_transaction import Targets
from brew.readers.direct.messages import outcome_message, parse_grant, released_message
from brew.readers.direct.server import ReceivedMessage, WorkerSession
from brew.settings import DirectSettings, PipelineSettings

Message = dict[str, Any]


class Cluster:
    """Four partitions of 100 offsets, and what the group has committed of each."""

    def __init__(self) -> None:
        self.committed: dict[int, int | None] = dict.fromkeys(range(4), 0)
        self.known: dict[int, int] = {}
        self._may_start: set[int] = set()
        self.stable = 100
        self.complete = True
        self.withheld: set[int] = set()
        self.down: KafkaFailure | None = None
        self.looks, self.closed = list[float](), False
        self.blocked: object = ()
        self.ours: Container[int] = ALL_PARTITIONS

    def renew_clients(self) -> None: ...

    def look(self, _mine: Callable[..., Any]) -> tuple[list[PartitionFacts], bool]:
        self.looks.append(time.monotonic())
        if self.down is not None:
            raise self.down
        log = LogOffsets(0, self.stable, 100)
        found = {p: None if at is None else Committed(at, "") for p, at in self.committed.items()}
        facts = [PartitionFacts("in", p, "id", at, log) for p, at in found.items() if p not in self.withheld]
        return facts, self.complete

    apply_outcome, _gap = PartitionSurvey.apply_outcome, lambda self, partition, *_: self.known.pop(partition, None)

    def first_attempt(self, fact: PartitionFacts) -> bool:
        return fact.committed is None

    def targets(self, _fact: PartitionFacts) -> Targets:
        return Targets("out", "dead", -1, -1)

    def report_blocking_transactions(self, partitions: object) -> None:
        self.blocked = partitions

    def close(self) -> None:
        self.closed = True


class Line:
    """The driver's end of a connection; the test reads what was said on it."""

    def __init__(self) -> None:
        self.heard: queue.Queue[Message] = queue.Queue()

    def send(self, message: Message) -> bool:
        self.heard.put(message)
        return True


class Crew:
    """Two slots, on which nobody works but the test."""

    def __init__(self) -> None:
        self.server: Any = self
        self.received: queue.Queue[ReceivedMessage] = queue.Queue()
        self.closed = False
        self.opened = 0
        self.broken: Refused | None = None
        self.most_slots, self.dismissed = 2, False

    def slots(self) -> int:
        return self.most_slots

    def open(self, count: int) -> None:
        self.opened = max(self.opened, count)

    def check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def stop_restarts(self) -> None:
        self.dismissed = True

    def interrupt(self) -> None: ...
    def close(self) -> None: ...


class Mine:
    """Claims of the driver under test; remembers which partitions it was told are idle."""

    def __init__(self, *partitions: int) -> None:
        self.partitions = set(partitions)
        self.idle: dict[int, bool] = {}

    def turn(self, idle: Callable[[int], bool]) -> Container[int]:
        self.idle = {p: idle(p) for p in range(4)}
        return frozenset(self.partitions)


class Play:
    """One director in a thread, and workers that say what the test has them say."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        cluster: Cluster | None = None,
        *,
        goals: dict[int, int] | None = None,
        follow: bool = False,
        ownership: Any = None,
        **settings: Any,
    ) -> None:
        self.cluster, self.workers, self.stop = cluster or Cluster(), Crew(), threading.Event()
        monkeypatch.setattr(work_planner, "PartitionSurvey", lambda _shared: self.cluster)
        plain = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
        given = replace(plain, **settings)
        transaction = TransactionSettings(given.connection, given.group, 60.0)
        ends = None if follow else goals or dict.fromkeys(range(4), 100)
        self.shared = RunContext(
            given,
            {},
            self.stop,
            RunProgress(),
            ProgressView(),
            ends,
            1_000_000,
            transaction,
            CrashInjector(given.crash),
        )
        self.shared.ownership = ownership or self.shared.ownership
        self.errors: list[Exception] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            LeaseCoordinator(self.shared, self.workers).run()
        except Refused as error:
            self.errors.append(error)

    def worker(self, slot: int) -> WorkerSession:
        connection: Any = Line()
        session = WorkerSession(slot, connection)
        self.says(session, {"hello": {}})
        return session

    def says(self, session: WorkerSession, message: Message | None) -> None:
        self.workers.received.put(ReceivedMessage(session, message))

    def finishes(self, session: WorkerSession, partition: int) -> None:
        self.cluster.committed[partition] = 100
        self.says(session, outcome_message(Outcome(partition, 0, 100, Status.COMMITTED, 0, 100, 0, 0.1)))
        self.says(session, released_message(partition, 100))

    def ended(self) -> bool:
        self.thread.join(10)
        return not self.thread.is_alive()


def heard(session: WorkerSession, name: str, seconds: float = 5.0) -> Message:
    """The next message with this word in it."""
    connection: Any = session.connection
    while True:
        message: Message = connection.heard.get(timeout=seconds)
        if name in message:
            return message


def grants(session: WorkerSession, count: int) -> dict[int, Any]:
    found = [parse_grant(heard(session, "grant")) for _ in range(count)]
    return {one.partition: one for one in found if one is not None}


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    play = Play(monkeypatch)
    yield play
    play.workers.closed = True
    play.stop.set()
    assert play.ended()


def both(play: Play) -> tuple[WorkerSession, WorkerSession]:
    return play.worker(0), play.worker(1)


def test_partitions_are_spread_and_the_run_ends_when_all_have_reached_their_goals(play: Play) -> None:
    one, other = both(play)
    first, second = grants(one, 2), grants(other, 2)
    assert first.keys() | second.keys() == {0, 1, 2, 3}
    assert {grant.goal for grant in (*first.values(), *second.values())} == {100}
    for session, held in ((one, first), (other, second)):
        for partition in held:
            play.finishes(session, partition)
    for session in (one, other):
        heard(session, "end")
        play.says(session, None)
    assert play.ended()
    assert (play.shared.running, play.shared.board.totals.enriched, play.workers.opened) == ({}, 400, 2)


def test_what_a_dead_worker_held_is_granted_to_another_and_exempt_from_crash_once(play: Play) -> None:
    one, other = both(play)
    lost = grants(one, 2)
    grants(other, 2)
    play.cluster.known |= dict.fromkeys(lost, 40)
    play.says(one, None)
    again = grants(other, 2)
    assert again.keys() == lost.keys()
    assert all(grant.exempt_from_crash and grant.start == 40 for grant in again.values())


def test_a_transaction_that_did_not_end_well_is_planned_again_from_kafkas_answer(play: Play) -> None:
    """After a pause, and from where the group stands by then."""
    one, other = both(play)
    partition = next(iter(grants(one, 2)))
    grants(other, 2)
    play.cluster.committed[partition] = 70
    began = time.monotonic()
    play.says(one, outcome_message(Outcome(partition, 0, 50, Status.FENCED, detail="a newer attempt")))
    play.says(one, released_message(partition, 0))
    again = grants(one, 1)[partition]
    assert (again.start, again.exempt_from_crash) == (70, False)
    assert time.monotonic() - began >= 0.05, "at once again would keep two pipelines in step"


@pytest.mark.parametrize("status", [Status.AHEAD, Status.ALREADY_DONE])
def test_where_a_transaction_found_the_group_is_not_forgotten_over_an_older_answer(play: Play, status: Status) -> None:
    """The next grant begins there, whatever the survey says: it may be told by a coordinator that is cut off."""
    one, other = both(play)
    partition = next(iter(grants(one, 2)))
    grants(other, 2)
    play.says(one, outcome_message(Outcome(partition, 0, 50, status, 60)))
    play.says(one, released_message(partition, 0))
    assert grants(one, 1)[partition].start == 60


def test_a_crash_on_purpose_calls_everyone_back_before_it_is_told(play: Play) -> None:
    """What still runs elsewhere counts for the number that the crash announces."""
    one, other = both(play)
    partition = next(iter(grants(one, 2)))
    grants(other, 2)
    play.says(one, outcome_message(Outcome(partition, 0, 50, Status.CRASHED, enriched=50)))
    for session in (one, other):
        heard(session, "end")
    assert play.stop.is_set()
    assert [outcome.enriched for outcome in play.shared.crashed] == [50]
    assert len(play.shared.running) == 3
    for session in (one, other):
        play.says(session, None)
    assert play.ended()
    assert play.shared.running == {}


def test_what_a_crash_leaves_is_told_before_nothing_runs_any_more(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies by itself as soon as nothing is running."""
    told: list[Outcome] = []
    told_at_the_end: dict[int, int] = {}

    class Running(dict[int, Any]):
        def pop(self, partition: int, *_: Any) -> Any:
            told_at_the_end.setdefault(partition, len(told))
            return super().pop(partition, None)

    one, two = both(play)
    crashing, other = grants(one, 2)
    monkeypatch.setattr(play.shared.view, "cycle", lambda _lane, outcomes, _seconds: told.extend(outcomes))
    monkeypatch.setattr(play.shared, "running", Running(play.shared.running))
    play.says(one, outcome_message(Outcome(crashing, 0, 50, Status.CRASHED, enriched=50)))
    play.says(one, outcome_message(Outcome(other, 0, 50, Status.COMMITTED, enriched=50)))
    play.says(one, released_message(other, 50))
    for session in (one, two):
        play.says(session, None)
    assert play.ended()
    assert {partition: told_at_the_end[partition] for partition in (crashing, other)} == {crashing: 1, other: 2}


def test_a_partition_moves_when_one_slot_has_two_and_the_other_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot that came late gets its share."""
    play = Play(monkeypatch, direct=DirectSettings(lease_s=1.0))
    one = play.worker(0)
    held = grants(one, 4)
    other = play.worker(1)
    released = heard(one, "release")["release"]
    assert released in held
    play.says(one, released_message(released, 30))
    play.cluster.committed[released] = play.cluster.known[released] = 30
    assert grants(other, 1)[released].start == 30
    play.stop.set()
    for session in (one, other):
        heard(session, "end")
        play.says(session, None)
    assert play.ended()


def test_a_job_that_can_run_no_worker_ends_the_run_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch)
    play.workers.broken = Refused("Spark's JVM has ended by itself")
    assert play.ended()
    assert [str(error) for error in play.errors] == ["Spark's JVM has ended by itself"]


def test_without_a_task_the_run_gives_up_when_its_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directing, "_SURVEY_INTERVAL_S", 0.05)
    play = Play(monkeypatch, patience_s=1.0)
    assert play.ended()
    assert "no Spark task has reported" in str(play.errors[0])
