"""One attempt: whatever goes wrong becomes an outcome, its transaction is closed, and a call that hangs is ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.fakes import Broker, FakeTransaction

from brew import attempt as attempts
from brew.attempt import AttemptSpec, Job, attempt
from brew.connection import Connection
from brew.errors import Abortable, DeadlineExceeded, Fatal, Fenced, KafkaFailure, Refused
from brew.fault_injection import PlannedCrash
from brew.journal import Step, entries
from brew.kafka.transaction import TransactionSettings
from brew.names import CrashMode, CrashPoint
from brew.offsets import Committed, OffsetRange
from brew.outcome import Status
from brew.range_transaction import Rows, Targets
from brew.settings import Limits, ProfilesSettings
from pipeline import profiles
from pipeline.enrichment import OrderEnrichment

OFFERED = OffsetRange("in", 0, 5, 8)
JOB = Job({}, TransactionSettings(Connection("nowhere:1"), "group", 30.0), OrderEnrichment(Limits()))
OFFER = AttemptSpec(OFFERED, Targets("out", "dead", 0, 0), first_time=True)
ROWS = Rows([5, 6], [b"gold-1", None], [b'{"customer_id":"c"}', b"bad"], [None, None], [1, 2])


class Kafka(FakeTransaction):
    """A transaction on the broker in memory; it has to be closed."""

    def __init__(self, broker: Broker, *arguments: Any) -> None:
        super().__init__(broker, *arguments)
        self.closed = False

    def close(self) -> None:
        self.closed = True


class World:
    """A broker, the transactions that were made on it, and what the watchdog watched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker, self.made = Broker(), list[Kafka]()
        self.fail: tuple[str, Exception] | None = None
        self.watched, self.inside = list[tuple[str, float]](), False
        monkeypatch.setattr(attempts, "KafkaTransaction", self._make)
        monkeypatch.setattr(attempts, "watched", self._watched)

    def _make(self, settings: TransactionSettings, topic: str, partition: int) -> Kafka:
        assert (settings, topic, partition, self.inside) == (JOB.transaction, "in", 0, True)
        self.made.append(Kafka(self.broker, self.fail))
        return self.made[-1]

    @contextmanager
    def _watched(self, what: str, limit_s: float) -> Iterator[None]:
        self.watched.append((what, limit_s))
        self.inside = True
        yield
        self.inside = False


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_range_is_written_and_its_transaction_closed(world: World) -> None:
    outcome = attempt(OFFER, [ROWS], JOB)
    assert (outcome.status, outcome.start, outcome.until, outcome.enriched, outcome.rejected) == (
        Status.COMMITTED,
        5,
        8,
        1,
        1,
    )
    assert ([one.key for one in world.broker.visible()], world.made[0].closed) == ([b"gold-1", None], True)
    assert {"fence", "locate", "commit"} <= outcome.steps.keys()
    assert outcome.began_at > 0


def test_the_whole_attempt_is_watched_for_twice_the_transactions_time_out(world: World) -> None:
    """All its waits end within the first."""
    attempt(OFFER, [ROWS], JOB)
    assert world.watched == [(str(OFFERED), 60.0)]


def _fails(error: KafkaFailure) -> tuple[KafkaFailure, Status, str]:
    fenced = isinstance(error, Fenced)
    status = Status.FENCED if fenced else Status.FAILED
    return error, status, str(error) if fenced else f"{type(error).__name__}: {error}"


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [_fails(error) for error in (Fenced("by 7"), Abortable("no room"), Fatal("gone"))]
    + [(DeadlineExceeded("produce: 30 s are over"), Status.FAILED, "DeadlineExceeded: produce: 30 s are over")],
)
@pytest.mark.parametrize("step", ["fence", "locate", "begin", "produce", "flush", "send-offsets", "commit"])
def test_whatever_a_step_raises_becomes_an_outcome_and_nothing_is_visible(
    world: World, step: str, error: Exception, status: Status, detail: str
) -> None:
    """The driver plans again from Kafka's answer; what a rival did is told apart from what went wrong."""
    world.fail = (step, error)
    outcome = attempt(OFFER, [ROWS], JOB)
    assert (outcome.status, outcome.detail) == (status, detail)
    assert (outcome.partition, outcome.start, outcome.until) == (0, 5, 8)
    assert (world.broker.visible(), world.made[0].closed) == ([], True)


def test_a_bug_fails_one_range_with_its_place(world: World) -> None:
    """The other partitions of the process go on."""

    def batches() -> Iterator[Rows]:
        yield ROWS
        raise RuntimeError("a reader's bug")

    outcome = attempt(OFFER, batches(), JOB)
    assert outcome.status is Status.FAILED
    assert outcome.detail.startswith("Traceback")
    assert "a reader's bug" in outcome.detail
    assert (world.broker.visible(), world.made[0].closed) == ([], True)


@pytest.mark.parametrize("first_time", [True, False])
def test_without_a_position_only_a_first_time_writes(world: World, first_time: bool) -> None:
    outcome = attempt(replace(OFFER, first_time=first_time), [ROWS], JOB)
    assert outcome.status is (Status.COMMITTED if first_time else Status.OFFSET_GAP)
    assert len(world.broker.log) == (2 if first_time else 0)


def test_a_range_that_is_still_read_is_committed_as_far_as_it_was_read(world: World) -> None:
    """The default reader's: the offered end is that of its first records."""
    entered = list[bool]()

    def aside() -> Any:
        entered.append(True)
        return nullcontext()

    offer = replace(OFFER, offered=OffsetRange("in", 0, 5, 6), reached=lambda: 9, aside=aside)
    outcome = attempt(offer, [ROWS], JOB)
    assert (outcome.until, world.broker.committed) == (9, Committed(9, ""))
    assert entered, "it went aside while it waited for acknowledgements"


@pytest.mark.parametrize("point", CrashPoint)
def test_a_crash_on_purpose_leaves_its_transaction_open_and_tells_what_it_left(world: World, point: CrashPoint) -> None:
    """As after a kill; behind the report it is closed, as it is when a process dies after its commit."""
    outcome = attempt(replace(OFFER, crash=PlannedCrash(point, CrashMode.PIPELINE)), [ROWS], JOB)
    assert outcome.status is Status.CRASHED
    assert world.made[0].closed is (point is CrashPoint.BEFORE_REPORT)
    assert outcome.enriched + outcome.rejected == {CrashPoint.AFTER_FENCE: 0, CrashPoint.MID_PRODUCE: 1}.get(point, 2)


def test_a_crash_before_the_report_strikes_only_what_was_committed(world: World) -> None:
    """A range that somebody else did has nothing to report."""
    world.broker.committed = Committed(8, "")
    crash = PlannedCrash(CrashPoint.BEFORE_REPORT, CrashMode.PIPELINE)
    assert attempt(replace(OFFER, crash=crash), [ROWS], JOB).status is Status.ALREADY_DONE


@pytest.mark.parametrize(
    ("error", "begins", "ends"),
    [(Refused("no topic"), "Refused: no topic", "no topic"), (KeyError(7), "Traceback", "KeyError: 7")],
)
def test_profiles_that_cant_be_read_fail_the_range_before_it_begins(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, begins: str, ends: str
) -> None:
    """Nothing was fenced; the journal tells the outcome all the same."""

    def ready(*_: object) -> None:
        raise error

    monkeypatch.setattr(profiles, "ready", ready)
    outcome = attempt(
        OFFER, [ROWS], replace(JOB, transformation=OrderEnrichment(Limits(), ProfilesSettings()), journal=str(tmp_path))
    )
    assert outcome.status is Status.FAILED
    assert outcome.detail.startswith(begins)
    assert outcome.detail.rstrip().endswith(ends)
    assert world.made == []
    assert [one.step for one in entries(tmp_path)] == [Step.OUTCOME]
