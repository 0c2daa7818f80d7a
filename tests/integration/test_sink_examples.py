"""The sink's examples, run as their first lines say: with spark-submit, the notebook cell by cell; and its demo."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import orjson
import pytest
from harness.pages import ROOT
from harness.pipeline import Stage, environment, quick_jvms
from harness.servers import Broker, make_topics
from nbclient import NotebookClient

from brew.jvm import dependencies
from brew.jvm.dependencies import Part
from brew.kafka.log_reader import LogRecord

SALES = [("Cork", 100), ("Essen", 50), ("Cork", 20), ("Essen", 5)]


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.create(2, output=2)
    return stage


def class_path() -> str:
    """The connector's jars that set-up made, instead of `--packages`."""
    jars = dependencies.jars(Part.SPARK, dependencies.home())
    assert jars
    return ":".join(map(str, jars))


def variables_for(stage: Stage, folder: Path, **variables: str) -> dict[str, str]:
    own = {"BOOTSTRAP": stage.broker.bootstrap, "CHECKPOINT": str(folder / "checkpoint"), "PYTHONPATH": str(ROOT)}
    python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return {**environment(stage.names.stem), **own, **python, **quick_jvms(), **variables}


def submit(stage: Stage, folder: Path, example: str, **variables: str) -> None:
    submitted = Path(sys.executable).with_name("spark-submit")
    words = ["--master", "local[2]", "--driver-class-path", class_path(), "--conf", "spark.sql.shuffle.partitions=2"]
    words += ["--conf", "spark.ui.enabled=false", "--conf", "spark.python.daemon.module=brew.spark.daemon"]
    done = subprocess.run(
        [str(submitted), *words, f"examples/{example}"],
        cwd=ROOT,
        env=variables_for(stage, folder, **variables),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]


def objects(records: list[LogRecord]) -> list[Any]:
    return [(record.key(), orjson.loads(record.value() or b"")) for record in records]


def sell(stage: Stage) -> None:
    rows = [orjson.dumps({"store": store, "cents": cents}) for store, cents in SALES]
    stage.produce(stage.names.input, *((0, b"", row) for row in [*rows, b"no sale"]))


def test_revenue_per_store_goes_on_where_it_was(stage: Stage, tmp_path: Path) -> None:
    """Two runs on one checkpoint: the second begins with the totals of the first."""
    variables = {"SALES": stage.names.input, "REVENUE": stage.names.output}
    sell(stage)
    submit(stage, tmp_path, "revenue.py", **variables)
    stage.produce(stage.names.input, (1, b"", b'{"store": "Cork", "cents": 3}'))
    submit(stage, tmp_path, "revenue.py", **variables)
    outputs = objects(stage.records(stage.names.output))
    assert sorted((row["store"], row["cents"]) for _, row in outputs) == [("Cork", 120), ("Cork", 123), ("Essen", 55)]
    assert all(key == row["store"].encode() for key, row in outputs)
    stage.nothing_open(stage.names.output)


def test_clicks_are_joined_with_their_impressions(stage: Stage, tmp_path: Path) -> None:
    """Of four clicks one is for another ad, one comes too late, and one from another visitor."""
    clicks = stage.names.topic("clicks")
    make_topics(stage.connection, clicks, partitions=2)

    def event(ad: str, time: str) -> bytes:
        return orjson.dumps({"ad": ad, "at": f"2026-11-23T10:{time}Z"})

    stage.produce(stage.names.input, (0, b"v1", event("a1", "00:00")))
    late = (0, b"v1", event("a1", "01:30"))
    stage.produce(clicks, (0, b"v1", event("a1", "00:20")), (0, b"v1", event("a2", "00:20")), late)
    stage.produce(clicks, (1, b"v2", event("a1", "00:20")))
    variables = {"IMPRESSIONS": stage.names.input, "CLICKS": clicks, "PAIRS": stage.names.output}
    submit(stage, tmp_path, "ad_clicks.py", **variables)
    assert objects(stage.records(stage.names.output)) == [(b"v1", {"ad": "a1", "after_s": 20})]
    stage.nothing_open(stage.names.output)


def test_the_notebook_runs_and_a_batch_that_is_repeated_is_there_once(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own assertion compares what readers see before and behind the repetition."""
    sell(stage)
    submit_args = f"--master local[2] --driver-class-path {class_path()} --conf spark.ui.enabled=false pyspark-shell"
    variables = {"SALES": stage.names.input, "REVENUE": stage.names.output, "PYSPARK_SUBMIT_ARGS": submit_args}
    for name, value in variables_for(stage, tmp_path, **variables).items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "examples/sink.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=240, kernel_name="python3", resources=resources).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    texts = [output["data"]["text/plain"] for output in outputs if "data" in output]
    statuses = [text.partition("status=")[2].partition(":")[0] for text in texts if "BatchReport" in text]
    assert statuses == ["<Status.WRITTEN", "<Status.ALREADY_OUT"]
    assert "[('Cork', '120'), ('Essen', '55')]" in texts
    stage.nothing_open(stage.names.output)


def test_the_sinks_demo_prints_what_the_page_shows(broker: Broker) -> None:
    """Its topics have names of their own, so a broker's topics are used only once."""
    block = re.search(r"^```text\n(.*?)^```$", (ROOT / "docs/guide/sink.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    command = [sys.executable, str(ROOT / "scripts/demo_sink.py"), "--bootstrap", broker.bootstrap]
    variables = {**environment("sink-demo"), "PYTHONPATH": str(ROOT), **quick_jvms()}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=220, check=False)
    assert (done.returncode, done.stdout) == (0, block[1]), done.stderr

    again = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=60, check=False)
    assert (again.returncode, again.stdout) == (1, "")
    assert "has topics of an earlier demo (sink-demo.brew, sink-demo.sales, sink-demo.spark)" in again.stderr
