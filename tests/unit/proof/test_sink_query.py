"""What shows that a fault struck the sink: its query's log, and Spark's event log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from proof.campaign.sink_query import SparkEvents, attempts

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
