"""One attempt: whatever goes wrong becomes an outcome, and what it reports: numbers, times, journal, profiles."""

from __future__ import annotations

import itertools
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from harness.fakes import Broker, FakeTransaction

from brew import attempt as attempts
from brew.attempt import MAX_LINKS, AttemptSpec, Job, TimedTransaction, TraceLinks, attempt, journal_outcome, journaled
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable, DeadlineExceeded, Fatal, Fenced, KafkaFailure, Refused, TransformFailed
from brew.fault_injection import PlannedCrash
from brew.journal import Phase, Step, entries
from brew.kafka.transaction import TransactionSettings
from brew.names import STEPS, CrashMode, CrashPoint
from brew.offsets import Committed, OffsetRange
from brew.orders import PROFILE_OFFSET, profile
from brew.outcome import Outcome, Status
from brew.range_transaction import Answer, Rows, Tally, Targets, transact_range
from brew.record import Record, Reject
from brew.settings import Limits, ProfilesSettings
from brew.transformation import Prepared
from pipeline import profiles
from pipeline.profiles import Table
from pipeline.transformation import OrderEnrichment

OFFERED = OffsetRange("in", 0, 5, 8)
JOB = Job({}, TransactionSettings(Connection("nowhere:1"), "group", 30.0), OrderEnrichment(Limits()))
OFFER = AttemptSpec(OFFERED, Targets("out", "dead", 0, 0), first_time=True)
ROWS = Rows([5, 6], [b"gold-1", None], [b'{"customer_id":"c"}', b"bad"], [None, None], [1, 2])
TRACED_SPEC = AttemptSpec(OffsetRange("in", 4, 5, 8), Targets("out", "dead", 4, 4), first_time=True)
TRACE = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"
VALUE = b'{"customer_id":"c-1"}'
TRACED_ROWS = Rows([5, 6], [b"k", b"k"], [VALUE, b"bad"], [[("traceparent", TRACE)], None], [1, 2])


class Kafka(FakeTransaction):
    """A transaction on the broker in memory; it has to be closed. Keeps the deadline of its first step."""

    closed, budget_s = 0, 0.0

    def fence(self, deadline: Deadline) -> None:
        self.budget_s = deadline.budget_s
        super().fence(deadline)

    def close(self) -> None:
        self.closed += 1


class Fakes:
    """A broker, the transactions that were made on it, and what the watchdog watched."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker, self.transactions = Broker(), list[Kafka]()
        self.fail: tuple[str, Exception] | None = None
        self.watched, self.inside = list[tuple[str, float]](), False
        monkeypatch.setattr(attempts, "KafkaTransaction", self._make)
        monkeypatch.setattr(attempts, "watched", self._watched)

    def _make(self, settings: TransactionSettings, topic: str, partition: int) -> Kafka:
        assert (settings, topic, partition in {0, 4}, self.inside) == (JOB.transaction, "in", True, True)
        self.transactions.append(Kafka(self.broker, self.fail))
        return self.transactions[-1]

    @contextmanager
    def _watched(self, what: str, limit_s: float) -> Iterator[None]:
        self.watched.append((what, limit_s))
        self.inside = True
        yield
        self.inside = False


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    return Fakes(monkeypatch)


def test_a_range_is_written_and_its_transaction_closed(fakes: Fakes) -> None:
    """The outcome tells when the attempt began and how long it took; the steps are parts of it."""
    before, began = time.time(), time.monotonic()
    outcome = attempt(TRACED_SPEC, [ROWS], JOB)
    took = time.monotonic() - began
    assert (outcome.status, outcome.enriched, outcome.rejected) == (Status.COMMITTED, 1, 1)
    assert (outcome.partition, outcome.start, outcome.until, outcome.position) == (4, 5, 8, -1)
    assert ([one.key for one in fakes.broker.visible()], fakes.transactions[0].closed) == ([b"gold-1", None], True)
    assert before <= outcome.began_at <= time.time()
    assert 0 < outcome.seconds <= took
    assert {"fence", "locate", "commit"} <= outcome.steps.keys()
    assert 0 < sum(outcome.steps.values()) <= took
    # The transaction has its own time-out as deadline; the whole is watched for twice that, as its waits end within it.
    assert [kafka.budget_s for kafka in fakes.transactions] == [30.0]
    assert fakes.watched == [(str(TRACED_SPEC.offered), 60.0)]


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (Fenced("by 7"), Status.FENCED, "by 7"),
        (Abortable("no room"), Status.FAILED, "Abortable: no room"),
        (Fatal("gone"), Status.FAILED, "Fatal: gone"),
        (DeadlineExceeded("produce: 30 s are over"), Status.FAILED, "DeadlineExceeded: produce: 30 s are over"),
    ],
)
@pytest.mark.parametrize("step", ["fence", "locate", "begin", "produce", "flush", "send-offsets", "commit"])
def test_whatever_a_step_raises_becomes_an_outcome_and_nothing_is_visible(
    fakes: Fakes, step: str, error: Exception, status: Status, detail: str
) -> None:
    """The driver plans again from Kafka's answer; what a rival did is told apart from what went wrong."""
    fakes.fail = (step, error)
    outcome = attempt(OFFER, [ROWS], JOB)
    assert (outcome.status, outcome.detail) == (status, detail)
    assert (outcome.partition, outcome.start, outcome.until) == (0, 5, 8)
    assert (fakes.broker.visible(), fakes.transactions[0].closed) == ([], True)


def deep(error: Exception, levels: int = 8) -> None:
    """Raise it, so far down."""
    if not levels:
        raise error
    deep(error, levels - 1)


def frames(detail: str) -> list[str]:
    assert "repeated" not in detail, "more than three alike are told as one"
    return re.findall(r", in (\w+)\n", detail)


def test_a_bug_fails_one_range_with_its_place(fakes: Fakes) -> None:
    """The last four frames; the other partitions of the process go on."""

    def batches() -> Iterator[Rows]:
        yield ROWS
        deep(RuntimeError("a reader's bug"))

    outcome = attempt(OFFER, batches(), JOB)
    assert outcome.status is Status.FAILED
    assert outcome.detail.startswith("Traceback (most recent call last):\n  File ")
    assert outcome.detail.endswith("\nRuntimeError: a reader's bug\n")
    assert frames(outcome.detail) == ["deep"] * 4
    assert (fakes.broker.visible(), fakes.transactions[0].closed) == ([], True)


@pytest.mark.parametrize("first_time", [True, False])
def test_without_a_position_only_a_first_time_writes(fakes: Fakes, first_time: bool) -> None:
    outcome = attempt(replace(OFFER, first_time=first_time), [ROWS], JOB)
    assert outcome.status is (Status.COMMITTED if first_time else Status.OFFSET_GAP)
    assert len(fakes.broker.log) == (2 if first_time else 0)


def test_a_range_that_is_still_read_is_committed_as_far_as_it_was_read(fakes: Fakes) -> None:
    """The default reader's: the offered end is that of its first records."""
    entered = list[bool]()

    def waiting() -> Any:
        entered.append(True)
        return nullcontext()

    offer = replace(OFFER, offered=OffsetRange("in", 0, 5, 6), reached=lambda: 9, waiting=waiting)
    outcome = attempt(offer, [ROWS], JOB)
    assert (outcome.until, fakes.broker.committed) == (9, Committed(9, ""))
    assert entered, "it is entered around each wait for acknowledgements"


@pytest.mark.parametrize("point", CrashPoint)
def test_a_crash_on_purpose_leaves_its_transaction_open_and_tells_what_it_left(fakes: Fakes, point: CrashPoint) -> None:
    """As after a kill; behind the report it is closed, as it is when a process dies after its commit."""
    outcome = attempt(replace(OFFER, crash=PlannedCrash(point, CrashMode.PIPELINE)), [ROWS], JOB)
    assert outcome.status is Status.CRASHED
    assert fakes.transactions[0].closed == (point is CrashPoint.BEFORE_REPORT)
    written = {CrashPoint.AFTER_FENCE: (0, 0), CrashPoint.MID_PRODUCE: (1, 0)}.get(point, (1, 1))
    assert (outcome.enriched, outcome.rejected) == written


def test_a_crash_before_the_report_strikes_only_what_was_committed_and_is_given_what_it_wrote(fakes: Fakes) -> None:
    """With the closed transaction; a range that somebody else did has nothing to report."""
    strikes: list[tuple[object, ...]] = []

    class Recorded(PlannedCrash):
        def at(self, point: CrashPoint, tally: Tally, transaction: Any) -> None:
            strikes.append((point, tally.enriched, tally.rejected, getattr(transaction, "closed", None)))

    attempt(replace(OFFER, crash=Recorded(CrashPoint.BEFORE_REPORT, CrashMode.PIPELINE)), [ROWS], JOB)
    assert strikes[-1] == (CrashPoint.BEFORE_REPORT, 1, 1, 1)
    fakes.broker.committed = Committed(8, "")
    crash = PlannedCrash(CrashPoint.BEFORE_REPORT, CrashMode.PIPELINE)
    assert attempt(replace(OFFER, crash=crash), [ROWS], JOB).status is Status.ALREADY_DONE


@pytest.mark.usefixtures("fakes")
@pytest.mark.parametrize(("traced", "traces"), [(False, []), (True, [TRACE.decode()])])
def test_an_outcome_names_the_traces_of_its_records_where_somebody_asked(traced: bool, traces: list[str]) -> None:
    assert attempt(TRACED_SPEC, [TRACED_ROWS], replace(JOB, traced=traced)).traces == traces


@pytest.mark.usefixtures("fakes")
def test_a_producer_that_cannot_be_made_is_an_outcome_without_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "KafkaTransaction", Mock(side_effect=Fatal("no such setting")))
    outcome = attempt(TRACED_SPEC, [TRACED_ROWS], JOB)
    assert (outcome.status, outcome.detail) == (Status.FAILED, "Fatal: no such setting")
    assert (outcome.steps, outcome.traces) == ({}, [])


PLACE = {"topic": "in", "partition": 4, "start": 5, "until": 8, "group": "group", "transactional_id": "group:in:4"}


@pytest.mark.usefixtures("fakes")
def test_the_journal_has_every_step_and_the_outcome_with_the_range_and_the_group(tmp_path: Path) -> None:
    attempt(TRACED_SPEC, [TRACED_ROWS], replace(JOB, journal=str(tmp_path)))
    lines = list(entries(tmp_path))
    steps = [Step.FENCE, Step.LOCATE, Step.BEGIN, Step.FLUSH, Step.SEND_OFFSETS, Step.COMMIT, Step.OUTCOME]
    assert [one.step for one in lines][::2] == steps
    assert all(PLACE.items() <= one.fields.items() for one in lines)
    located = [one.fields["position"] for one in lines if (one.step, one.phase) == (Step.LOCATE, Phase.DONE)]
    assert located == [-1], "there is no position"
    outcome = {"status": "committed", "position": -1, "detail": "", "enriched": 1, "rejected": 1}
    assert lines[-1].fields == PLACE | outcome


@pytest.mark.parametrize("error", [Fatal("no profiles"), Refused("no topic"), DeadlineExceeded("late"), KeyError("x")])
def test_profiles_that_cant_be_read_fail_the_range_before_it_begins(
    fakes: Fakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    """Nothing was fenced, and other ranges go on; the journal tells the outcome all the same."""

    def ready(*_: object) -> Table:
        deep(error)
        return Table()

    monkeypatch.setattr(profiles, "ready", ready)
    job = with_function(OrderEnrichment(Limits(), ProfilesSettings()), journal=str(tmp_path))
    outcome = attempt(TRACED_SPEC, [TRACED_ROWS], job)
    expected = outcome.detail if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
    assert outcome == Outcome(4, 5, 8, Status.FAILED, detail=expected)
    assert fakes.transactions == []
    if isinstance(error, KeyError):
        assert outcome.detail.startswith("Traceback")
        assert outcome.detail.endswith("KeyError: 'x'\n")
        assert frames(outcome.detail) == ["deep"] * 4, "the place where it was raised, and what called that"
    (line,) = entries(tmp_path)
    assert line.step is Step.OUTCOME
    fields = {"status": "failed", "position": -1, "detail": expected, "enriched": 0, "rejected": 0}
    assert line.fields == PLACE | fields


def test_each_record_says_which_profile_it_was_made_with(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the transaction's time-out."""
    table = Table()
    table.take("profiles", 0, 7, b"c-1", profile("c-1", "silver"))
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(profiles, "ready", lambda *arguments: calls.append(arguments) or table)
    settings = ProfilesSettings()
    outcome = attempt(TRACED_SPEC, [TRACED_ROWS], with_function(OrderEnrichment(Limits(), settings)))
    assert outcome.status is Status.COMMITTED
    assert calls == [(settings, Connection("nowhere:1"), "group", 30.0)]
    good, dead = fakes.broker.visible()
    assert b'"loyalty_tier":"silver"' in (good.value or b"")
    assert dict(good.headers)[PROFILE_OFFSET] == b"0/7"
    assert PROFILE_OFFSET not in dict(dead.headers)


def test_a_limit_of_the_job_is_the_one_that_counts(fakes: Fakes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "ready", lambda *_: Table())
    for source in (None, ProfilesSettings()):
        fakes.broker.committed = None
        outcome = attempt(TRACED_SPEC, [TRACED_ROWS], with_function(OrderEnrichment(Limits(max_bytes=5), source)))
        assert (outcome.rejected, outcome.reasons) == (2, {"too-large": 1, "not-json": 1})
    assert fakes.broker.committed == Committed(8, "")


class Function:
    """A transformation that answers as it was told to: an exception is raised where it is, or where it is asked."""

    whole_input_first, reasons = False, ()

    def __init__(self, *answers: Answer, error: Exception | None = None, at_once: bool = False) -> None:
        self._answers, self._error, self._at_once = answers, error, at_once

    def ready(self, *_: object) -> Prepared:
        if self._error is not None and self._at_once:
            raise self._error
        return Prepared(transform=self._transform, malformed=3)

    def _transform(self, *_: object) -> tuple[Answer, ...]:
        if self._error is not None:
            raise self._error
        return self._answers


def with_function(function: Any, **more: Any) -> Job:
    return replace(JOB, transformation=function, **more)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_transformation_that_cant_go_on_is_an_outcome_of_its_own(fakes: Fakes, tmp_path: Path, at_once: bool) -> None:
    """The run ends with exit 3: no retry changes what the function raised."""
    function = Function(error=TransformFailed("f raised KeyError"), at_once=at_once)
    outcome = attempt(TRACED_SPEC, [TRACED_ROWS], with_function(function, journal=str(tmp_path)))
    visible = "" if at_once else "; nothing of in[4] offsets [5, 8) is visible"
    assert (outcome.status, outcome.detail) == (Status.TRANSFORM_FAILED, f"f raised KeyError{visible}")
    assert (outcome.partition, outcome.start, outcome.until, fakes.broker.visible()) == (4, 5, 8, [])
    assert [*entries(tmp_path)][-1].fields["status"] == "transform-failed"


def test_what_a_function_dropped_and_wrote_is_told_also_by_a_crash(fakes: Fakes) -> None:
    function = Function((Record(value=b"1"), Record(value=b"2")), ())
    outcome = attempt(TRACED_SPEC, [TRACED_ROWS], with_function(function))
    assert (outcome.enriched, outcome.rejected, outcome.dropped, outcome.written) == (1, 0, 1, 2)
    assert (outcome.malformed_profiles, outcome.status) == (3, Status.COMMITTED)
    for point in (CrashPoint.AFTER_FLUSH, CrashPoint.BEFORE_REPORT):
        fakes.broker.committed = None
        crash = PlannedCrash(point, CrashMode.PIPELINE)
        outcome = attempt(replace(TRACED_SPEC, crash=crash), [TRACED_ROWS], with_function(function))
        assert (outcome.status, outcome.enriched, outcome.dropped, outcome.written) == (Status.CRASHED, 1, 1, 2)
    fakes.broker.committed = None
    outcome = attempt(TRACED_SPEC, [TRACED_ROWS], with_function(Function(Reject("no"), Reject("no"))))
    assert (outcome.reasons, outcome.examples) == ({"no": 2}, {"no": 5})


def test_a_failed_attempt_tells_its_times_and_what_its_step_failed_with(fakes: Fakes, tmp_path: Path) -> None:
    """In the line of the step; what follows it is the abort."""
    fakes.fail = ("flush", Fatal("gone"))
    outcome = attempt(TRACED_SPEC, [TRACED_ROWS], replace(JOB, journal=str(tmp_path)))
    assert 0 < outcome.seconds < 30
    assert {"fence", "produce", "abort"} <= outcome.steps.keys()
    lines = [(one.step, one.phase, one.fields.get("detail")) for one in entries(tmp_path)]
    assert lines[-5:] == [
        (Step.FLUSH, Phase.INTENT, None),
        (Step.FLUSH, Phase.FAILED, "Fatal: gone"),
        (Step.ABORT, Phase.INTENT, None),
        (Step.ABORT, Phase.DONE, None),
        (Step.OUTCOME, Phase.DONE, "Fatal: gone"),
    ]


@pytest.mark.parametrize("kind", ["timed", "journaled"])
def test_what_times_or_journals_a_transaction_passes_every_call_on(kind: str, tmp_path: Path) -> None:
    """The deadline, too: without it a step would wait for ever."""
    inner = Mock(locate=Mock(return_value=Committed(3, "")))
    offered, deadline = OffsetRange("in", 4, 5, 8), Deadline(5)
    kafka: Any = TimedTransaction(inner) if kind == "timed" else journaled(inner, str(tmp_path), offered, "group")
    calls = [
        *[("produce", "out"), ("mapped", "produce"), ("fence", deadline), ("locate", deadline), ("begin",)],
        *[("make_room", deadline), ("await_acks", deadline), ("flush", deadline), ("send_offsets", 9, "m", deadline)],
        *[("commit", deadline), ("commit_without_waiting",), ("abort", deadline)],
    ]
    answers = {name: getattr(kafka, name)(*arguments) for name, *arguments in calls}
    assert [(name, *arguments) for name, arguments, _ in inner.mock_calls] == calls
    returned = {name: answer for name, answer in answers.items() if answer is not None}
    assert returned == {name: getattr(inner, name).return_value for name in ("produce", "mapped", "locate")}
    if kind == "timed":
        assert list(kafka.steps) == ["fence", "locate", "begin", "produce", "send-offsets", "commit", "abort"]
        return
    done = [(one.step, one.fields) for one in entries(tmp_path) if one.phase is Phase.DONE]
    assert [step for step, _ in done][-3:] == [Step.COMMIT, Step.COMMIT, Step.ABORT]
    assert [fields.get("position") for _, fields in done] == [None, 3, *[None] * 6]
    sent = next(fields for step, fields in done if step is Step.SEND_OFFSETS)
    assert (sent["offset"], sent["until"]) == (9, 9)
    assert journaled(inner, None, offered, "group") is inner


def test_each_process_writes_a_journal_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Spark forks its workers: two of them on one file would cut each other's lines."""
    offered = OffsetRange("in", 4, 5, 8)
    outcome = Outcome(4, 5, 8, Status.FENCED)
    for pid in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        journal_outcome(str(tmp_path / "outcomes"), offered, "group", outcome)
        journaled(FakeTransaction(Broker()), str(tmp_path / "steps"), offered, "group")
    assert [len(list((tmp_path / folder).iterdir())) for folder in ("outcomes", "steps")] == [2, 2]
    assert [one.phase for one in entries(tmp_path / "outcomes")] == [Phase.DONE] * 2


def test_trace_links_are_distinct_in_order_and_no_more_than_so_many() -> None:
    """A bound, or a span would have 250,000 links. Of each batch before it is passed on; other forms are no trace."""
    traces = [b"00-%032x-%016x-01" % (n, n) for n in range(MAX_LINKS + 1)]
    none = [("traceparent", b"x"), ("traceparent", b"\xff" * 55), ("traceparent", None)]
    headers = [None, [*none, ("other", traces[5]), ("Traceparent", traces[6])], [("traceparent", traces[0])]]
    first = [*headers, [("traceparent", traces[1] + b"-more")], [("traceparent", traces[0])]]
    batches = [TRACED_ROWS._replace(headers=one) for one in (first, [[("traceparent", one)] for one in traces[2:]])]
    links = TraceLinks()
    passed = []
    for rows in links.collecting(batches):
        passed.append(rows)
        assert len(links.found) == (2 if len(passed) == 1 else MAX_LINKS)
    assert passed == batches
    assert list(links.found) == [one.decode() for one in traces[:MAX_LINKS]]
    assert MAX_LINKS == 32


TIMED_RANGE = OffsetRange("in", 0, 0, 3)
TIMED_TARGETS = Targets("out", "dlq", 0, 0)
TIMED_ROWS = Rows([0, 1, 2], [None] * 3, [b"a", b"b", b"c"], [None] * 3, [0] * 3)


def timed_transaction(fake: FakeTransaction) -> TimedTransaction:
    """Each look at the clock is a second later than the one before."""
    ticks = itertools.count()
    return TimedTransaction(fake, lambda: float(next(ticks)))


def transact_timed(kafka: TimedTransaction) -> None:
    transact_range(
        [TIMED_ROWS], TIMED_RANGE, TIMED_TARGETS, lambda _key, value: value, kafka, Deadline(5), first_time=True
    )


def test_the_six_steps_are_measured_in_their_order() -> None:
    kafka = timed_transaction(FakeTransaction(Broker()))
    transact_timed(kafka)
    assert tuple(kafka.steps) == STEPS
    assert kafka.steps == dict.fromkeys(STEPS, 1.0)


@pytest.mark.parametrize(
    ("step", "error", "measured"),
    [
        ("fence", Fenced("x"), ["fence"]),
        ("produce", Abortable("x"), ["fence", "locate", "begin", "produce", "abort"]),
        ("send-offsets", Abortable("x"), ["fence", "locate", "begin", "produce", "send-offsets", "abort"]),
        ("commit", Abortable("x"), [*STEPS]),
    ],
)
def test_a_step_that_fails_is_measured_too(step: str, error: KafkaFailure, measured: list[str]) -> None:
    """What takes long before it fails is what people look for; the last one told is where it ended."""
    kafka = timed_transaction(FakeTransaction(Broker(), (step, error)))
    with pytest.raises(type(error)):
        transact_timed(kafka)
    assert list(kafka.steps) == measured


def test_times_are_told_in_microseconds_and_there_is_none_of_producing_without_a_begin() -> None:
    ticks = (n * 0.12345678 for n in range(20))
    kafka = TimedTransaction(FakeTransaction(Broker()), lambda: next(ticks))
    kafka.fence(Deadline(5))
    kafka.begin()
    kafka.flush(Deadline(5))
    assert kafka.steps == dict.fromkeys(["fence", "begin", "produce"], 0.123457)
    kafka = TimedTransaction(FakeTransaction(Broker()))
    kafka.fence(Deadline(5))
    kafka.abort(Deadline(5))
    assert list(kafka.steps) == ["fence", "abort"]


def test_a_record_goes_by_unseen() -> None:
    """The kernel calls the client's own function: nothing of ours stands in the hot loop."""
    fake = FakeTransaction(Broker())
    assert timed_transaction(fake).produce == fake.produce
