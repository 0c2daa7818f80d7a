"""The driver of a stateful query, killed with its JVM at each crash point: the next run leaves each batch out once."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline import Stage
from harness.sinks import WORDS, SinkStage

from brew.names import CrashMode, CrashPoint
from brew.sink.batch import SinkCrash

TESTS = Path(__file__).parents[1]
PROGRAM = f"import sys; sys.path.insert(1, {str(TESTS)!r}); from harness.sinks import main; main(sys.argv[1])"
ROWS, MOST, CRASHED = 120, 60, 1  # in each batch 20 offsets of each partition: every word is in it
OPEN = {CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS}


@pytest.fixture
def make_stage(stage: Stage, tmp_path: Path) -> Any:
    def made(writers: Any) -> SinkStage:
        it = SinkStage(stage, tmp_path, writers)
        it.create()
        it.feed(ROWS)
        return it

    return made


def whole(sinks: SinkStage) -> None:
    """Every batch that is visible holds each word once: no part of one, none twice."""
    counts = Counter[tuple[int, bytes | None]]()
    for record in sinks.stage.records(sinks.stage.names.output):
        counts[int(dict(record.headers() or ())["brew.sink.batch"] or b""), record.key()] += 1
    batches = {batch for batch, _ in counts}
    assert counts == Counter({(batch, word.encode()): 1 for batch in batches for word in WORDS})


# What a reader may see changes with the commit, so these are around it; the campaign has all points of both (F39).
KILLS = [
    ("tasks", CrashPoint.AFTER_FLUSH),
    ("tasks", CrashPoint.COMMIT_IN_FLIGHT),
    ("tasks", CrashPoint.AFTER_COMMIT),
    (1, CrashPoint.AFTER_SEND_OFFSETS),
]


@pytest.mark.usefixtures("quick_jvms")
@pytest.mark.parametrize(("writers", "point"), KILLS, ids=str)
def test_a_driver_killed_at_a_crash_point_leaves_each_batch_whole_or_absent(
    make_stage: Any, writers: Any, point: CrashPoint
) -> None:
    """State and output agree: the totals of each word rise to the number of its records, none is there twice."""
    sinks = make_stage(writers)
    arguments = {"bootstrap": sinks.stage.broker.bootstrap, "stem": sinks.stage.names.stem, "folder": str(sinks.folder)}
    arguments |= {"writers": writers, "point": point, "batch": CRASHED, "most": MOST}
    ran = sinks.stage.run([sys.executable, "-c", PROGRAM, json.dumps(arguments)])
    assert ran.code == -signal.SIGKILL, ran.text
    whole(sinks)
    if point is not CrashPoint.COMMIT_IN_FLIGHT:
        assert set(sinks.batches()) == ({0, CRASHED} if point is CrashPoint.AFTER_COMMIT else {0})
    if point in OPEN:
        assert sinks.stage.open_transactions(sinks.stage.names.output)

    sinks.run(sinks.counted(most=MOST), sinks.sink(), "update")
    whole(sinks)
    totals = Counter(sinks.totals())
    assert set(totals.values()) == {1}
    assert {word: max(n for key, n in totals if key == word.encode()) for word in WORDS} == dict.fromkeys(
        WORDS, ROWS // len(WORDS)
    )
    sinks.stage.nothing_open(sinks.stage.names.output)


@pytest.mark.parametrize(
    "point", [CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS, CrashPoint.AFTER_COMMIT], ids=str
)
def test_a_killed_writer_is_started_again_by_spark(make_stage: Any, point: CrashPoint) -> None:
    """One writer is safe when Spark repeats its task: each attempt fences, and finds out whether the batch is out."""
    sinks = make_stage(1)
    sinks.run(sinks.counted(), sinks.sink(_crash=SinkCrash(point, 0, CrashMode.WORKER)), "update")
    whole(sinks)
    assert Counter(sinks.totals()) == Counter((word.encode(), ROWS // len(WORDS)) for word in WORDS)


def test_a_killed_task_ends_the_batch_which_begins_again(make_stage: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A repeated attempt must not write in the same epoch: brokers would take its first records for duplicates."""
    sinks = make_stage("tasks")
    crash = SinkCrash(CrashPoint.MID_PRODUCE, 0, CrashMode.WORKER)
    with caplog.at_level("INFO", "brew.sink"):
        sinks.run(sinks.counted(), sinks.sink(_crash=crash), "update")
    assert [record.args[2] for record in caplog.records if record.name == "brew.sink"] == ["failed", "written"]  # type: ignore[index]
    assert "Spark started a task again (attempt 1)" in caplog.text
    whole(sinks)
    assert Counter(sinks.totals()) == Counter((word.encode(), ROWS // len(WORDS)) for word in WORDS)
