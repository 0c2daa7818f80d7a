"""The driver of a stateful query, killed with its JVM at each crash point: the next run leaves each batch out once."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage
from harness.sinks import WORDS, SinkStage

from brew.names import CrashMode, CrashPoint
from brew.sink.batch import SinkCrash

TESTS = Path(__file__).parents[1]
PROGRAM = f"import sys; sys.path.insert(1, {str(TESTS)!r}); from harness.sink_program import main; main(sys.argv[1])"
ROWS, MOST, CRASHED = 120, 60, 1  # in each batch 20 offsets of each partition: every word is in it
OPEN = {CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS}


@pytest.fixture
def make(broker: Broker, names: Names, tmp_path: Path) -> Any:
    def made(writers: Any) -> SinkStage:
        stage = SinkStage(Stage(broker, names), tmp_path, writers)
        stage.create()
        stage.feed(ROWS)
        return stage

    return made


def whole(it: SinkStage) -> None:
    """Every batch that is visible holds each word once: no part of one, none twice."""
    found = Counter[tuple[int, bytes | None]]()
    for one in it.stage.records(it.stage.names.output):
        found[int(dict(one.headers() or ())["brew.sink.batch"] or b""), one.key()] += 1
    batches = {batch for batch, _ in found}
    assert found == Counter({(batch, word.encode()): 1 for batch in batches for word in WORDS})


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
    make: Any, writers: Any, point: CrashPoint
) -> None:
    """State and output agree: the totals of each word rise to the number of its records, none is there twice."""
    it = make(writers)
    said = {"bootstrap": it.stage.broker.bootstrap, "stem": it.stage.names.stem, "folder": str(it.folder)}
    said |= {"writers": writers, "point": point, "batch": CRASHED, "most": MOST}
    ran = it.stage.run([sys.executable, "-c", PROGRAM, json.dumps(said)])
    assert ran.code == -signal.SIGKILL, ran.text
    whole(it)
    if point is not CrashPoint.COMMIT_IN_FLIGHT:
        assert set(it.batches()) == ({0, CRASHED} if point is CrashPoint.AFTER_COMMIT else {0})
    if point in OPEN:
        assert it.stage.open_transactions(it.stage.names.output)

    it.run(it.counted(most=MOST), it.sink(), "update")
    whole(it)
    totals = Counter(it.totals())
    assert set(totals.values()) == {1}
    assert {word: max(n for key, n in totals if key == word.encode()) for word in WORDS} == dict.fromkeys(
        WORDS, ROWS // len(WORDS)
    )
    it.stage.nothing_open(it.stage.names.output)


@pytest.mark.parametrize(
    "point", [CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS, CrashPoint.AFTER_COMMIT], ids=str
)
def test_a_killed_writer_is_started_again_by_spark(make: Any, point: CrashPoint) -> None:
    """One writer is safe when Spark repeats its task: each attempt fences, and finds out whether the batch is out."""
    it = make(1)
    it.run(it.counted(), it.sink(_crash=SinkCrash(point, 0, CrashMode.WORKER)), "update")
    whole(it)
    assert Counter(it.totals()) == Counter((word.encode(), ROWS // len(WORDS)) for word in WORDS)


def test_a_killed_task_ends_the_batch_which_begins_again(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A repeated attempt must not write in the same epoch: brokers would take its first records for duplicates."""
    it = make("tasks")
    crash = SinkCrash(CrashPoint.MID_PRODUCE, 0, CrashMode.WORKER)
    with caplog.at_level("INFO", "brew.sink"):
        it.run(it.counted(), it.sink(_crash=crash), "update")
    assert [one.args[2] for one in caplog.records if one.name == "brew.sink"] == ["failed", "written"]  # type: ignore[index]
    assert "Spark started a task again (attempt 1)" in caplog.text
    whole(it)
    assert Counter(it.totals()) == Counter((word.encode(), ROWS // len(WORDS)) for word in WORDS)
