"""What shows that a fault struck the sink: its query's log, and Spark's event log."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from brew.deadline import Deadline
from brew.errors import BrewError
from proof.campaign import sink_query
from proof.campaign.cell import INCONCLUSIVE, Cell, nothing
from proof.campaign.cluster import ExternalCluster
from proof.campaign.programs import Programs
from proof.campaign.runner import Judgement, _run_phase
from proof.campaign.sink_query import COPY, COUNT, JOIN, SinkExperiment, SparkEvents, attempts
from proof.campaign.stage import CellEnvironment, FaultMissedError, StalledError
from proof.checking.sink_batches import BatchHistory, SeenRow

QUERY_LOG = """\
1732460000.1 sink s-1: batch 3 failed, 0 rows in 0.500 s (attempt 1): Fenced: produce: a newer attempt has the id
Something else that Spark says
1732460001.5 sink s-1: batch 3 written, 12 rows in 1.900 s (attempt 2)
"""


def test_attempts_are_read_from_a_querys_log() -> None:
    failed, written = attempts(QUERY_LOG)
    assert (failed.at, failed.batch, failed.status) == (1732460000.1, 3, "failed")
    assert failed.detail.startswith("Fenced: produce")
    assert (written.batch, written.status, written.detail) == (3, "written", "")


def test_without_the_querys_program_a_cell_shows_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package has none: each cell was violated, since its query ended at once."""
    monkeypatch.setattr(sink_query, "_PROGRAM", str(tmp_path / "scripts/sink_query.py"))
    judged = Judgement()

    def play() -> None:
        with sink_query.sink_on(Mock(), "1"):
            pytest.fail("it ran")

    assert not _run_phase(play, judged=judged, control=False)
    assert (judged.verdict, "in a checkout" in judged.doubts[0]) == (INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("script", "found"), [("kill -KILL $$", None), ("exit 0", FaultMissedError), ("exit 3", StalledError)]
)
def test_a_query_that_never_reached_its_crash_point_shows_nothing(
    tmp_path: Path, script: str, found: type[BrewError] | None
) -> None:
    """It ended as it should without a crash, so it did not stall."""
    with Programs(tmp_path) as programs:
        cell = Cell("F39-test", "F39", "a", "b", "c", nothing)
        stage = CellEnvironment(cell, 1, ExternalCluster("x:1"), tmp_path, programs, Deadline(20))
        experiment = SinkExperiment(stage, Mock(), "1", COUNT)
        program = programs.start("query", "sh", "-c", script)
        with nullcontext() if found is None else pytest.raises(found):
            experiment.crashed(program)


def task(stage: int, attempt: int = 0, *, copy: bool = False) -> dict[str, Any]:
    info = {"Attempt": attempt, "Speculative": copy}
    return {"Event": "SparkListenerTaskStart", "Stage ID": stage, "Task Info": info}


def end(stage: int, reason: str) -> dict[str, Any]:
    return {"Event": "SparkListenerTaskEnd", "Stage ID": stage, "Task End Reason": {"Reason": reason}}


def submitted(stage: int, attempt: int) -> dict[str, Any]:
    return {"Event": "SparkListenerStageSubmitted", "Stage Info": {"Stage ID": stage, "Stage Attempt ID": attempt}}


def test_what_spark_ran_again_is_counted_for_a_stage_or_for_all(tmp_path: Path) -> None:
    """A stage counts as repeated when its own task could not fetch: not the one below it, which runs again for it."""
    events = [
        *(submitted(6, 0), submitted(7, 0), task(7)),
        *(task(7, 1), task(7, 1, copy=True), task(8, 1, copy=True)),
        *(end(7, "ExceptionFailure"), end(7, "FetchFailed"), submitted(6, 1), submitted(7, 1)),
        {"Event": "SparkListenerExecutorRemoved"},
    ]
    known = SparkEvents(tmp_path / "events")
    assert f"spark.eventLog.dir=file://{tmp_path}/events" in known.options
    text = "\n".join(json.dumps(event) for event in events)
    (tmp_path / "events" / "app").write_text(f'{text}\n{{"Event": "SparkLis')
    assert known.count() == {"tasks_repeated": 1, "copies": 2, "stages_repeated": 1, "executors_lost": 1}
    assert known.count(7) == {"tasks_repeated": 1, "copies": 1, "stages_repeated": 1, "executors_lost": 1}
    assert known.count(8) == {"copies": 1, "executors_lost": 1}


@pytest.fixture
def experiment(tmp_path: Path) -> SinkExperiment:
    cell = Cell("T-sink", "T", "nothing", "nobody", "never", nothing)
    stage = CellEnvironment(cell, 1, ExternalCluster("nowhere:1"), tmp_path, Programs(tmp_path), Deadline(20))
    watcher: Any = Mock(batches=lambda: 1)
    return SinkExperiment(stage, watcher, "tasks")


@pytest.mark.parametrize(("word", "count"), [("", 1), ("Fenced", 1), ("Retriable", 0)])
def test_only_failed_attempts_of_that_kind_count(word: str, count: int, experiment: SinkExperiment) -> None:
    program: Any = SimpleNamespace(said=lambda: QUERY_LOG)
    experiment.fire_attempts(program, "attempts_fenced", word)
    assert experiment.stage.fired["attempts_fenced"] == count


@pytest.mark.parametrize(
    ("code", "said", "refused"),
    [(1, "two queries have one name", True), (0, "two queries have one name", False), (1, "OOM", False)],
)
def test_a_query_is_refused_by_its_end_and_for_the_reason(
    code: int, said: str, refused: bool, experiment: SinkExperiment
) -> None:
    program: Any = Mock(wait=lambda _deadline: code, said=lambda: said)
    with nullcontext() if refused else pytest.raises(StalledError):
        experiment.refused(program, "two queries have one name")
    assert experiment.stage.fired["refusals"] == refused


@pytest.mark.parametrize(
    ("query", "rows", "is_open", "found"),
    [
        (COUNT, [SeenRow(0, b"gold", 2)], False, []),
        (COUNT, [SeenRow(0, b"gold", 2)], True, ["hanging-transaction"]),
        (COUNT, [SeenRow(0, b"gold", 1)], False, ["lost-output"]),
        (COPY, [SeenRow(0, b"0-0", 1), SeenRow(0, b"3-7", 1)], False, []),
        (COPY, [SeenRow(0, b"0-0", 1), SeenRow(2, b"3-7", 1)], False, ["lost-output"]),
        (JOIN, [SeenRow(0, b"0-0", 1), SeenRow(2, b"3-7", 1)], False, []),
    ],
)
def test_what_readers_saw_of_the_sink_is_compared_with_its_input(
    query: str,
    rows: list[SeenRow],
    is_open: bool,
    found: list[str],
    experiment: SinkExperiment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """After a drain; only a join may have a batch without rows. Another query's open transaction is not the sink's."""
    history, stage = BatchHistory(), experiment.stage
    history.observe(0, rows)
    experiment.query = query
    monkeypatch.setattr(experiment.watcher, "look", lambda: history)
    for name in ("start", "ended"):
        monkeypatch.setattr(experiment, name, Mock())
    inputs = [(0, 0, b"gold-1", b"{}", [], 1), (3, 7, b"gold-2", b"{}", [], 1)]
    monkeypatch.setattr(stage, "records", lambda _topic: inputs)
    ids = ["another", *([stage.transactional_id] if is_open else [])]
    known = [SimpleNamespace(transactional_id=name) for name in ids]
    monkeypatch.setattr(stage, "open_transactions", lambda: known)
    experiment.check()
    assert [finding["name"] for finding in stage.findings] == found
    assert (experiment.ended.called, stage.counts["inputs"]) == (True, 2)
    monkeypatch.setattr(stage, "open_transactions", list)
    assert not experiment.is_open()
