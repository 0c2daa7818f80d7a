"""What a run tells its watchers: each outcome in the words of all programs, and only what is its own."""

from __future__ import annotations

import ast
import subprocess
import sys
import time

import pytest
from harness.pages import ROOT

from brew.connection import Connection
from brew.driver.telemetry import ObservedProgress, ended_attempt, recorder_of
from brew.observability.counters import Ending
from brew.observability.settings import ProbeSettings
from brew.observability.status import PartitionState, Phase
from brew.offsets import Committed, LogOffsets
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.settings import PipelineSettings


@pytest.fixture
def progress() -> ObservedProgress:
    settings = PipelineSettings(Connection("localhost:1"), "in", "out", "dlq", "g")
    made = ObservedProgress(recorder_of(settings, ProbeSettings()), settings)
    made.phase(Phase.WORKING)
    return made


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
    told = ended_attempt(Outcome(3, 0, 10, status, steps=dict.fromkeys(steps, 0.1)), "in", "g")
    assert (told.ending, told.transactional_id) == (ending, "g:in:3")


def test_the_age_of_what_is_left_is_known_from_what_was_committed(progress: ObservedProgress) -> None:
    """The task tells the timestamp of its last record."""
    progress.survey([fact(0)])
    an_hour_ago = int(time.time() * 1000) - 3_600_000
    progress.outcome(Outcome(0, 0, 5, Status.COMMITTED, enriched=5, newest_ms=an_hour_ago))
    assert progress.recorder.status().partitions[0].lag_s == pytest.approx(3600, abs=60)


def test_no_status_is_without_an_ending() -> None:
    """A new one must not fall out of the metrics."""
    assert {ended_attempt(Outcome(0, 0, 1, status), "in", "g").ending for status in Status} <= set(Ending)


def test_the_boards_own_counters_go_on(progress: ObservedProgress) -> None:
    """The table on the terminal is the same with probes and without."""
    progress.survey([fact(0)])
    progress.outcome(Outcome(0, 0, 10, Status.COMMITTED, enriched=8, rejected=2, reasons={"not-json": 2}))
    assert (progress.totals.enriched, progress.totals.rejected, progress.partitions[0].position) == (8, 2, 10)
    status = progress.recorder.status()
    assert (status.totals.records, status.totals.dead_letters) == (10, 2)


def test_partitions_of_other_drivers_are_not_told(progress: ObservedProgress) -> None:
    """With --share each driver tells of its own, so that sums over all of them are right."""
    progress.survey([fact(n) for n in range(4)], {0, 1})
    assert [one.partition for one in progress.recorder.status().partitions] == [0, 1]
    progress.survey([fact(n) for n in range(4)], {1, 2})
    assert [one.partition for one in progress.recorder.status().partitions] == [1, 2]


def test_a_driver_that_stands_by_has_no_partitions_and_is_ready(progress: ObservedProgress) -> None:
    progress.survey([fact(0)])
    progress.phase(Phase.STANDING_BY, "other works")
    status = progress.recorder.status()
    assert (status.partitions, status.live.ok, status.ready.reason) == ((), True, "standing by: other works")


def test_a_partition_behind_an_open_transaction_is_blocked(progress: ObservedProgress) -> None:
    progress.survey([fact(0, 10, 10, 15), fact(1, None, 0, 0)])
    states = [one.state for one in progress.recorder.status().partitions]
    assert states == [PartitionState.BLOCKED, PartitionState.IDLE]


def test_a_run_that_nobody_watches_imports_nothing_of_the_watching() -> None:
    """It took a tenth of a second of each start."""
    told = "import sys, pipeline.__main__; print(sorted(n for n in sys.modules if n.startswith('brew.observability.')))"
    ran = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    assert ast.literal_eval(ran.stdout) == ["brew.observability.settings", "brew.observability.status"]
