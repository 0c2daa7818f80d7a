"""What an attempt tells: its outcome's numbers and times, its journal's lines, and the profiles it was made with."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.fakes import Broker, FakeTransaction

from brew import attempt as attempts
from brew.attempt import AttemptSpec, Job, attempt
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Fatal
from brew.fault_injection import PlannedCrash
from brew.journal import Step, entries
from brew.kafka.transaction import TransactionSettings
from brew.names import CrashMode, CrashPoint
from brew.offsets import Committed, OffsetRange
from brew.orders import PROFILE_OFFSET, profile
from brew.outcome import Outcome, Status
from brew.range_transaction import Rows, Tally, Targets
from brew.settings import Limits, ProfilesSettings
from pipeline import profiles
from pipeline.enrichment import OrderEnrichment
from pipeline.profiles import Table

OFFER = AttemptSpec(OffsetRange("in", 4, 5, 8), Targets("out", "dead", 4, 4), first_time=True)
JOB = Job({}, TransactionSettings(Connection("nowhere:1"), "group", 30.0), OrderEnrichment(Limits()))
TRACE = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
VALUE = b'{"customer_id":"c-1"}'
ROWS = Rows([5, 6], [b"k", b"k"], [VALUE, b"bad"], [[("traceparent", TRACE)], None], [1, 2])


class Kafka(FakeTransaction):
    """The broker in memory; keeps the deadline of its first step, and whether a crash came before it was closed."""

    broker_now: Broker
    fails: tuple[str, Exception] | None = None
    budgets: list[float]

    def __init__(self, *_: object) -> None:
        super().__init__(Kafka.broker_now, Kafka.fails)
        self.closed = 0

    def fence(self, deadline: Deadline) -> None:
        Kafka.budgets.append(deadline.budget_s)
        super().fence(deadline)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    monkeypatch.setattr(Kafka, "broker_now", Broker(), raising=False)
    monkeypatch.setattr(Kafka, "budgets", [], raising=False)
    monkeypatch.setattr(attempts, "KafkaTransaction", Kafka)
    return Kafka.broker_now


def deep(error: Exception, levels: int = 8) -> None:
    """Raise it, so far down."""
    if not levels:
        raise error
    deep(error, levels - 1)


def frames(detail: str) -> list[str]:
    return re.findall(r", in (\w+)\n", detail)


@pytest.mark.usefixtures("broker")
def test_a_bug_is_told_with_the_last_four_frames() -> None:
    def batches() -> Iterator[Rows]:
        yield ROWS
        deep(ZeroDivisionError("a bug"))

    assert frames(attempt(OFFER, batches(), JOB).detail) == ["deep"] * 4


@pytest.mark.usefixtures("broker")
def test_a_crash_before_the_report_is_given_the_closed_transaction_and_what_it_wrote() -> None:
    given: list[tuple[object, ...]] = []

    class Recorded(PlannedCrash):
        def at(self, point: CrashPoint, tally: Tally, transaction: Any) -> None:
            given.append((point, tally.enriched, tally.rejected, getattr(transaction, "closed", None)))

    attempt(replace(OFFER, crash=Recorded(CrashPoint.BEFORE_REPORT, CrashMode.PIPELINE)), [ROWS], JOB)
    assert given[-1] == (CrashPoint.BEFORE_REPORT, 1, 1, 1)


@pytest.mark.usefixtures("broker")
def test_an_outcome_tells_when_the_attempt_began_and_how_long_it_took() -> None:
    """The steps are parts of it; the transaction has its own time-out as deadline."""
    before, began = time.time(), time.monotonic()
    outcome = attempt(OFFER, [ROWS], JOB)
    took = time.monotonic() - began
    assert before <= outcome.began_at <= time.time()
    assert 0 < outcome.seconds <= took
    assert 0 < sum(outcome.steps.values()) <= took
    assert (outcome.partition, outcome.start, outcome.until, outcome.position) == (4, 5, 8, -1)
    assert Kafka.budgets == [30.0]


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize(("traced", "traces"), [(False, []), (True, [TRACE.decode()])])
def test_an_outcome_names_the_traces_of_its_records_where_somebody_asked(traced: bool, traces: list[str]) -> None:
    assert attempt(OFFER, [ROWS], replace(JOB, traced=traced)).traces == traces


def test_a_failed_attempt_tells_its_range_its_times_and_why(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Kafka, "fails", ("flush", Fatal("gone")))
    outcome = attempt(OFFER, [ROWS], JOB)
    assert (outcome.partition, outcome.start, outcome.until) == (4, 5, 8)
    assert (outcome.status, outcome.detail) == (Status.FAILED, "Fatal: gone")
    assert 0 < outcome.seconds < 30
    assert {"fence", "produce", "abort"} <= outcome.steps.keys()
    assert broker.visible() == []


@pytest.mark.usefixtures("broker")
def test_a_producer_that_cannot_be_made_is_an_outcome_without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise Fatal("no such setting")

    monkeypatch.setattr(attempts, "KafkaTransaction", refuse)
    outcome = attempt(OFFER, [ROWS], JOB)
    assert (outcome.status, outcome.detail, outcome.steps, outcome.traces) == (
        Status.FAILED,
        "Fatal: no such setting",
        {},
        [],
    )


@pytest.mark.usefixtures("broker")
def test_a_crash_tells_how_much_was_written_of_each_kind() -> None:
    """Also one behind the commit."""
    for point in (CrashPoint.AFTER_FLUSH, CrashPoint.BEFORE_REPORT):
        Kafka.broker_now.committed = None
        outcome = attempt(replace(OFFER, crash=PlannedCrash(point, CrashMode.PIPELINE)), [ROWS], JOB)
        assert (outcome.status, outcome.enriched, outcome.rejected) == (Status.CRASHED, 1, 1)


def _place(until: int = 8) -> dict[str, object]:
    return {
        "topic": "in",
        "partition": 4,
        "start": 5,
        "until": until,
        "group": "group",
        "transactional_id": "group:in:4",
    }


@pytest.mark.usefixtures("broker")
def test_the_journal_has_every_step_and_the_outcome_with_the_range_and_the_group(tmp_path: Path) -> None:
    attempt(OFFER, [ROWS], replace(JOB, journal=str(tmp_path)))
    lines = list(entries(tmp_path))
    assert [one.step for one in lines][::2] == [
        Step.FENCE,
        Step.LOCATE,
        Step.BEGIN,
        Step.FLUSH,
        Step.SEND_OFFSETS,
        Step.COMMIT,
        Step.OUTCOME,
    ]
    assert all(_place().items() <= one.fields.items() for one in lines)
    told = {"status": "committed", "position": -1, "detail": "", "enriched": 1, "rejected": 1}
    assert lines[-1].fields == _place() | told


@pytest.mark.usefixtures("broker")
@pytest.mark.parametrize("error", [Fatal("no profiles"), KeyError("x")])
def test_an_attempt_that_did_not_begin_tells_its_range_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    def ready(*_: object) -> Table:
        deep(error)
        return Table()

    monkeypatch.setattr(profiles, "ready", ready)
    outcome = attempt(
        OFFER, [ROWS], replace(JOB, transformation=OrderEnrichment(Limits(), ProfilesSettings()), journal=str(tmp_path))
    )
    expected = f"Fatal: {error}" if isinstance(error, Fatal) else outcome.detail
    assert outcome == Outcome(4, 5, 8, Status.FAILED, detail=expected)
    if isinstance(error, KeyError):
        assert outcome.detail.startswith("Traceback")
        assert frames(outcome.detail) == ["deep"] * 4, "the place where it was raised, and what called that"
    (line,) = entries(tmp_path)
    told = {"status": "failed", "position": -1, "detail": expected, "enriched": 0, "rejected": 0}
    assert line.fields == _place() | told


def test_profiles_are_asked_for_this_group_and_each_record_says_which_it_was_made_with(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the transaction's time-out."""
    table = Table()
    table.take("profiles", 0, 7, b"c-1", profile("c-1", "silver"))
    asked: list[tuple[object, ...]] = []
    monkeypatch.setattr(profiles, "ready", lambda *given: asked.append(given) or table)
    settings = ProfilesSettings()
    assert (
        attempt(OFFER, [ROWS], replace(JOB, transformation=OrderEnrichment(Limits(), settings))).status
        is Status.COMMITTED
    )
    assert asked == [(settings, Connection("nowhere:1"), "group", 30.0)]
    good, dead = broker.visible()
    assert b'"loyalty_tier":"silver"' in (good.value or b"")
    assert dict(good.headers)[PROFILE_OFFSET] == b"0/7"
    assert PROFILE_OFFSET not in dict(dead.headers)


def test_a_limit_of_the_job_is_the_one_that_counts(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """With profiles and without."""
    monkeypatch.setattr(profiles, "ready", lambda *_: Table())
    for source in (None, ProfilesSettings()):
        broker.committed = None
        outcome = attempt(OFFER, [ROWS], replace(JOB, transformation=OrderEnrichment(Limits(max_bytes=5), source)))
        assert (outcome.rejected, outcome.reasons) == (2, {"too-large": 1, "not-json": 1})
    assert broker.committed == Committed(8, "")
