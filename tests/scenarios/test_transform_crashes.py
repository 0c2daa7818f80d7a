"""A function that fans out, in pipelines that die: each output comes out once, whatever was open."""

from __future__ import annotations

import re
from pathlib import Path

import orjson
import pytest
from harness.pipeline import READ_UNCOMMITTED, Stage

from brew.names import CrashPoint

FUNCTION = f"{Path(__file__).parents[1]}/unit/clicks_example.py:add_domain"
CLICKS = 60
LEFT = re.compile(r"^💥 crash [a-z ]+: (\d+) records", re.MULTILINE)


def options(stage: Stage) -> list[str]:
    return ["--transform", FUNCTION, "--also-output", f"late.{stage.names.stem}"]


def clicks(stage: Stage) -> None:
    kinds = ("fan-out", "plain", "late", "fan-out", "plain", "drop")
    values = [
        orjson.dumps({"kind": kinds[i % 6], "url": f"http://{i}.example", "topic": f".{stage.names.stem}"})
        for i in range(CLICKS)
    ]
    stage.produce(stage.names.input, *((i % 2, b"k%d" % i, value) for i, value in enumerate(values)))


@pytest.mark.parametrize("point", [CrashPoint.MID_PRODUCE, CrashPoint.AFTER_FLUSH, CrashPoint.COMMIT_IN_FLIGHT])
def test_crashes_amid_fan_out_lose_and_double_nothing(stage: Stage, point: CrashPoint) -> None:
    """On Spark and without, then a run that lives; the crash tells how many records it left in the logs."""
    stage.create(2)
    left = 0
    for master in ("local[2]", "none"):
        clicks(stage)
        crash = ("--crash-prob", "1.0", "--crash-point", point.value, "--master", master)
        ran = stage.pipeline(*options(stage), *crash, seconds=240)
        match = LEFT.search(ran.out)
        assert match is not None, ran.text
        assert (ran.code, int(match[1]) > 0) == (2, True), ran.text
        left += int(match[1])
        stage.no_process_left()
    stage.drain_locally(*options(stage))
    code, report = stage._proof("verify", *stage.options(), *options(stage), "--settled")
    assert code == 0, report
    assert (report["inputs"], report["outputs"]) == (2 * CLICKS, 180)
    assert (report["counts"]["transformed"], report["counts"]["dropped"]) == (100, 20)
    if point is CrashPoint.MID_PRODUCE:
        topics = (stage.names.output, f"late.{stage.names.stem}")
        assert sum(len(stage.records(topic, READ_UNCOMMITTED)) for topic in topics) == 180 + left
