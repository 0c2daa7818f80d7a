"""A run inside of a process that has a Spark session already: it works on that one, and leaves it as it was."""

from __future__ import annotations

import sys

import pytest
from harness.pipeline import Ran, Stage

_PROGRAM = """
import os, signal, sys, threading
os.environ["PYSPARK_PYTHON"] = sys.executable  # as in an activated environment
from pyspark.sql import SparkSession
from pipeline.__main__ import run_command
from pipeline.__main__ import settings_of
from brew.driver.run_context import ProgressView, RunProgress
from brew.driver.run import run
from brew.cli import exit_code_of
from brew.jvm import dependencies as parts
from brew.jvm.dependencies import Part

connector, words = sys.argv[1] == "connector", sys.argv[2:]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config("spark.sql.shuffle.partitions", "3")
if connector:
    jars = ":".join(str(jar) for jar in parts.jars(Part.SPARK, parts.home(None)))
    builder = builder.config("spark.driver.extraClassPath", jars)
spark = builder.getOrCreate()

def state():
    conf = {name: spark.conf.get(name) for name in ("spark.sql.adaptive.enabled", "spark.sql.shuffle.partitions",
            "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.sources.useV1SourceList")}
    return conf, signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)

before = state()
progress = RunProgress()
settings = settings_of(run_command.make_context("run", list(words)).params)
print("run", int(run(settings, threading.Event(), progress, ProgressView())), progress.totals.enriched)
print("command", exit_code_of(run_command, "run", [*words, "--progress", "none"]))
if not connector:
    words += ["--reader", "connector", "--progress", "none", "--patience", "5"]
    for more in ([], ["--stand-by"]):
        print("connector", exit_code_of(run_command, "run", [*words, *more]))
assert state() == before
assert SparkSession.getActiveSession() is spark
print("theirs", spark.range(10).count())
"""


def _inside(stage: Stage, reader: str) -> Ran:
    ran = stage.run([sys.executable, "-c", _PROGRAM, reader, *stage.options(), "--reader", reader])
    assert ran.code == 0, ran.text
    assert "Traceback" not in ran.text
    return ran


@pytest.mark.usefixtures("quick_jvms")
@pytest.mark.parametrize("reader", ["direct", "connector"])
def test_a_run_works_on_the_session_that_is_there_and_leaves_it_as_it_was(stage: Stage, reader: str) -> None:
    """
    It said `Spark did not start`: a process has room for one context. Handlers, settings and jobs stay theirs.

    A session without the connector is refused for the reader that needs it, with the package to add.
    """
    stage.create(2, orders=40)
    ran = _inside(stage, reader)
    lines = ran.out.splitlines()
    assert lines[0] == "run 0 40"
    assert lines[1].startswith("0 records: ")
    refused = ["connector 3"] * 2 if reader == "direct" else []
    assert lines[2:] == ["command 0", *refused, "theirs 10"]
    if refused:
        assert ran.err.count("the Spark session of this process has no Kafka source on its class path") == 2
        assert '"org.apache.spark:spark-sql-kafka-0-10_2.13:' in ran.err
    stage.proven(inputs=40)


_PIPELINES = """
import sys, threading
import brew

bootstrap, input, output = sys.argv[1:]

def pipeline(name, **more):
    more = {"bootstrap": bootstrap, "master": "local[2]", "transform": lambda record: record, **more}
    return brew.Pipeline(input=input, output=f"{output}.{name}", **more)

try:
    pipeline("wrong", conf={"spark.driver.maxResultSize": "wrong"}).run()
except brew.BrewError as error:
    print("refused", "maxResultSize" in str(error))
for reader in ("direct", "connector"):
    print(reader, pipeline(reader, reader=reader).run().records)

first = pipeline("first").start()
while first.status.result.records < 40 and first.status.state != "failed":
    threading.Event().wait(0.1)
second = pipeline("second", reader="connector").start()
while second.status.state == "starting":
    threading.Event().wait(0.1)
print("first", first.stop().records)
while second.status.result.records < 40 and second.status.state != "failed":
    threading.Event().wait(0.1)
print("second", second.stop().records)
"""


@pytest.mark.usefixtures("quick_jvms")
def test_pipelines_of_one_process_start_spark_again_and_share_it_while_they_overlap(stage: Stage) -> None:
    """After a run, or a start that failed, the next one called a JVM that had ended, or one with the old settings."""
    stage.create(1, orders=40)
    names = stage.names
    ran = stage.run([sys.executable, "-c", _PIPELINES, stage.broker.bootstrap, names.input, names.output])
    assert ran.code == 0, ran.text
    assert ran.out.splitlines() == ["refused True", "direct 40", "connector 40", "first 40", "second 40"]
