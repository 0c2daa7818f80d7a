"""What a run tells its watchers: outcomes in the words of all programs, and spans with measured times."""

from __future__ import annotations

import subprocess
import sys
import threading
import time

import pytest
from harness.pages import ROOT
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from brew.connection import Connection
from brew.driver.telemetry import ObservedProgress, ended_attempt, recorder_of
from brew.errors import UsageError
from brew.names import STEPS
from brew.observability.counters import Ended, Ending
from brew.observability.metrics import text
from brew.observability.recorder import Subject
from brew.observability.settings import ProbeSettings
from brew.observability.status import PartitionState, Phase, Topics
from brew.observability.tracing import Spans, provider
from brew.offsets import Committed, LogOffsets
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.settings import PipelineSettings


@pytest.fixture
def progress() -> ObservedProgress:
    settings = PipelineSettings(Connection("localhost:1"), "in", "out", "dlq", "g")
    observed = ObservedProgress(recorder_of(settings, ProbeSettings()), settings)
    observed.phase(Phase.WORKING)
    return observed


def fact(partition: int, committed: int | None = 0, stable: int = 10, end: int = 10) -> PartitionFacts:
    position = None if committed is None else Committed(committed, "")
    return PartitionFacts("in", partition, "id", position, LogOffsets(0, stable, end))


@pytest.mark.parametrize(
    ("status", "steps", "ending"),
    [
        (Status.COMMITTED, ("fence", "commit"), Ending.COMMITTED),
        (Status.FENCED, ("fence",), Ending.FENCED),
        (Status.FAILED, ("fence", "abort"), Ending.ABORTED),
        (Status.FAILED, (), Ending.ABORTED),
        (Status.FAILED, ("fence", "commit"), Ending.INDEFINITE),
        (Status.CRASHED, ("fence",), Ending.INDEFINITE),
        (Status.ALREADY_DONE, ("fence", "locate"), Ending.REFUSED),
        (Status.AHEAD, ("fence", "locate"), Ending.REFUSED),
        (Status.OFFSET_GAP, ("fence", "locate"), Ending.REFUSED),
    ],
)
def test_each_status_has_its_ending(status: Status, steps: tuple[str, ...], ending: Ending) -> None:
    """A commit that failed may have been applied: only the next attempt's locate tells."""
    event = ended_attempt(Outcome(3, 0, 10, status, steps=dict.fromkeys(steps, 0.1)), "in", "g")
    assert (event.ending, event.transactional_id) == (ending, "g:in:3")


def test_no_status_is_without_an_ending() -> None:
    assert {ended_attempt(Outcome(0, 0, 1, status), "in", "g").ending for status in Status} <= set(Ending)


def test_an_outcome_counts_on_the_terminal_and_for_the_watchers(progress: ObservedProgress) -> None:
    """The table is the same with probes and without; the task tells the timestamp of its last record."""
    progress.survey([fact(0, end=15, stable=15)])
    an_hour_ago = int(time.time() * 1000) - 3_600_000
    counts = {"enriched": 8, "rejected": 2, "reasons": {"not-json": 2}, "newest_ms": an_hour_ago}
    progress.outcome(Outcome(0, 0, 10, Status.COMMITTED, **counts))
    assert (progress.totals.enriched, progress.totals.rejected, progress.partitions[0].position) == (8, 2, 10)
    status = progress.recorder.status()
    assert (status.totals.records, status.totals.dead_letters) == (10, 2)
    assert status.partitions[0].lag_s == pytest.approx(3600, abs=60)


def test_partitions_of_other_drivers_are_not_told(progress: ObservedProgress) -> None:
    """With --share each driver tells of its own, so that sums over all are right; one that stands by has none."""
    for own in ({0, 1}, {1, 2}):
        progress.survey([fact(n) for n in range(4)], own)
        assert {one.partition for one in progress.recorder.status().partitions} == own
    progress.phase(Phase.STANDING_BY, "other works")
    status = progress.recorder.status()
    assert (status.partitions, status.live.ok, status.ready.reason) == ((), True, "standing by: other works")


@pytest.mark.parametrize(("seconds", "live"), [(160.0, True), (160.1, False)])
def test_a_run_without_brokers_is_live_until_its_patience_has_ended_it(
    monkeypatch: pytest.MonkeyPatch, seconds: float, live: bool
) -> None:
    """A restart brings no broker back; only one that hangs beyond --patience, and what its end takes, is restarted."""
    settings, now = PipelineSettings(Connection("localhost:1"), "in", "out", "dlq", "g", patience_s=100.0), [1000.0]
    observed = ObservedProgress(recorder_of(settings, ProbeSettings()), settings)
    monkeypatch.setattr(observed.recorder, "_clock", lambda: now[0])
    observed.phase(Phase.WORKING)
    observed.survey([fact(0)])
    observed.unanswered("timed out")
    now[0] += seconds
    assert observed.recorder.status().live.ok is live


def test_a_look_without_leaderless_partitions_is_no_answer_of_the_brokers(progress: ObservedProgress) -> None:
    """It comes before the offsets are asked for, in each survey of a following run."""
    progress.unanswered("timed out")
    progress.leaderless([], [0])
    assert "timed out" in progress.recorder.status().ready.reason


def test_partitions_without_a_leader_are_counted_where_their_lag_is_missing(progress: ObservedProgress) -> None:
    """Their series vanished, and no other one rose: an alert on lag or states was quiet while their records waited."""

    def seen() -> tuple[int | None, list[int], bool]:
        status, counts = progress.recorder.snapshot()
        line = f"\nbrew_partitions_without_leader {status.totals.without_leader}.0\n".encode()
        return status.totals.without_leader, [row.partition for row in status.partitions], line in text(status, counts)

    progress.survey([fact(0), fact(1)])
    assert seen() == (None, [0, 1], False), "nobody has looked yet"
    progress.leaderless([1], [1, 3])
    assert seen() == (1, [0], True)
    progress.leaderless([2], [0, 2])
    assert seen() == (2, [0], True), "another lane looks at other partitions"
    progress.leaderless([], [1, 3])
    assert seen() == (1, [0], True), "it is led again, whether it may be read or not"
    progress.phase(Phase.STANDING_BY)
    assert seen() == (None, [], False), "another driver looks now"


def test_a_partition_behind_an_open_transaction_is_blocked(progress: ObservedProgress) -> None:
    progress.survey([fact(0, 10, 10, 15), fact(1, None, 0, 0)])
    states = [one.state for one in progress.recorder.status().partitions]
    assert states == [PartitionState.BLOCKED, PartitionState.IDLE]


IMPORTED = """
import sys, pipeline.__main__
print(*sorted(name for name in sys.modules if name.startswith("brew.observability.")))
import downstream.ledger.command
print(*sys.modules.keys() & {"opentelemetry", "prometheus_client"})
"""


def test_a_run_that_nobody_watches_imports_nothing_of_the_watching() -> None:
    """It took a tenth of a second of each start; spans and metrics are no dependency either that has to be there."""
    completed = subprocess.run([sys.executable, "-c", IMPORTED], cwd=ROOT, capture_output=True, text=True, check=True)
    assert completed.stdout == "brew.observability.settings brew.observability.status\n\n"


SUBJECT = Subject("pipeline", "g", Topics("orders", "out", "dlq"), "localhost:1", "direct")


def attempt(status: Status = Status.COMMITTED, **more: object) -> Ended:
    outcome = Outcome(3, 100, 150, status, 100, 40, 10, 0.6, steps=dict.fromkeys(STEPS, 0.1), began_at=1000.5, **more)
    return ended_attempt(outcome, "orders", "g")


def spans_of(*attempts: Ended) -> list[ReadableSpan]:
    exporter, sending = InMemorySpanExporter(), TracerProvider()
    sending.add_span_processor(SimpleSpanProcessor(exporter))
    spans = Spans(sending, SUBJECT)
    for one in attempts:
        spans.ended(one)
    spans.close()
    return list(exporter.get_finished_spans())


def test_a_transaction_is_a_span_and_its_steps_lie_within_it_one_after_another() -> None:
    """The times are the attempt's own, not those of the report; attributes are those of the conventions, and ours."""
    *steps, transaction = spans_of(attempt())
    assert [one.name for one in steps] == list(STEPS)
    assert transaction.name == "transact orders"
    assert (transaction.start_time, transaction.end_time) == (1_000_500_000_000, 1_001_100_000_000)
    assert {one.parent.span_id for one in steps} == {transaction.context.span_id}
    assert [one.start_time for one in steps] == [transaction.start_time, *(one.end_time for one in steps[:-1])]
    assert steps[-1].end_time == transaction.end_time
    assert dict(transaction.attributes or {}) == {
        "messaging.system": "kafka",
        "messaging.operation.name": "transact",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "3",
        "messaging.consumer.group.name": "g",
        "messaging.batch.message_count": 50,
        "messaging.kafka.offset": 100,
        "brew.txn.outcome": "committed",
        "brew.txn.start": 100,
        "brew.txn.until": 150,
        "brew.txn.id": "g:orders:3",
    }
    assert (transaction.status.status_code, transaction.links) == (StatusCode.UNSET, ())


def parent(number: int) -> str:
    return f"00-{number:032x}-{number:016x}-01"


def test_a_span_links_to_what_wrote_its_records() -> None:
    transaction = spans_of(attempt(traces=[parent(7), parent(9), parent(0), "00-nonsense-1-01"]))[-1]
    assert [(one.context.trace_id, one.context.span_id) for one in transaction.links] == [(7, 7), (9, 9)]
    assert all(one.context.is_remote for one in transaction.links)
    assert transaction.parent is None


@pytest.mark.parametrize(
    ("status", "kind"), [(Status.FENCED, "fenced"), (Status.FAILED, "indefinite"), (Status.OFFSET_GAP, None)]
)
def test_what_failed_is_an_error_and_what_was_refused_is_none(status: Status, kind: str | None) -> None:
    """A range that somebody else has done is nobody's fault. Nobody measured an attempt whose task Spark lost."""
    transaction = spans_of(attempt(status, detail="why"))[-1]
    assert (transaction.attributes or {}).get("error.type") == kind
    assert transaction.status.status_code is (StatusCode.UNSET if kind is None else StatusCode.ERROR)
    assert spans_of(ended_attempt(Outcome(3, 0, 10, Status.FAILED), "orders", "g")) == []


def test_a_collector_that_does_not_answer_does_not_delay_the_end_of_a_run() -> None:
    answered, exporter, sending = threading.Event(), InMemorySpanExporter(), TracerProvider()
    exporter.export = lambda _spans: answered.wait(9)
    sending.add_span_processor(BatchSpanProcessor(exporter))
    spans, began = Spans(sending, SUBJECT), time.monotonic()
    spans.ended(attempt())
    spans.close()
    answered.set()
    assert time.monotonic() - began < 6


@pytest.mark.parametrize(
    ("variables", "service"),
    [
        ({}, "brew-pipeline"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=clicks"}, "clicks"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=clicks", "OTEL_SERVICE_NAME": "orders"}, "orders"),
    ],
)
def test_the_environment_names_the_service(
    variables: dict[str, str], service: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    sending = provider("console")
    sending.shutdown()
    assert sending.resource.attributes["service.name"] == service


def test_an_exporter_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UsageError, match=r"--spans is 'otlp'.*brew\[otel\]"):
        provider("otlp")
