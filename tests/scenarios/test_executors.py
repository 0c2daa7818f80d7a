"""Executors in JVMs of their own: one is killed in mid run, speculation is on, the package gets there by itself."""

from __future__ import annotations

import re
import shlex
import zipfile
from operator import attrgetter

import pytest
from harness.pipeline import Stage, quick_executors, until

from brew.names import ExitCode

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.interval": "10ms",
    "spark.speculation.minTaskRuntime": "1ms",
}
EXECUTOR = "CoarseGrainedExecutorBackend"


@pytest.mark.usefixtures("quick_jvms")
def test_a_killed_executor_and_speculation_change_nothing(stage: Stage) -> None:
    """Spark repeats what the executor was doing; fence and locate make that harmless, also for speculative copies."""
    stage.create()
    stage.seed(8_000)  # seconds of work after the first cycle
    conf = [word for name, value in SPECULATION.items() for word in ("--conf", f"{name}={value}")]
    options = ["--master", "local-cluster[2,1,1024]", "--max-records-per-transaction", "200", *conf, *quick_executors()]
    with stage.follow(*options) as program:
        program.await_cycle(seconds=180)
        until(lambda: len(program.processes_with(EXECUTOR)) == 2, "both executors")
        program.processes_with(EXECUTOR)[0].kill()
        ran = program.wait(180)
    assert ran.code == 0, ran.text
    assert "Traceback" not in ran.text
    stage.proven(inputs=8_000, outputs=8_000)


@pytest.mark.parametrize("reader", ["connector", "direct"])
@pytest.mark.usefixtures("quick_jvms")
def test_a_cluster_without_room_for_an_executor_ends_the_run_when_patience_does(stage: Stage, reader: str) -> None:
    """Spark waits for one without limit, and says nothing at our log level."""
    stage.create(orders=10)
    options = ["--reader", reader, "--master", "local-cluster[1,1,1024]", "--conf", "spark.executor.cores=2"]
    options += quick_executors()
    ran = stage.pipeline(*options, "--patience", "3", seconds=90)
    assert ran.code == ExitCode.REFUSED, ran.text
    assert re.search(r"no Spark task has (started|reported)", ran.err), ran.text
    assert "--patience is 3 s" in ran.err


def test_submit_prints_a_line_that_gives_the_same_run(stage: Stage) -> None:
    """Topics, group and limits are all on it, quoted for a shell, and the package's zip holds what it names."""
    options = [*stage.options(), "--master", "spark://m1:7077,m2:7077", "--follow", "--conf", "spark.executor.cores=2",
               "--max-records-per-transaction", "777"]  # fmt: skip
    with stage.python("pipeline", "submit", "--dry-run", *options) as program:
        ran = program.wait(30)
    assert ran.code == 0, ran.text
    words = shlex.split(ran.out)
    assert words[0] == "spark-submit"
    assert words[words.index("--master") + 1] == "spark://m1:7077,m2:7077"
    assert "spark.executor.cores=2" in words
    with zipfile.ZipFile(words[words.index("--py-files") + 1]) as archive:
        assert {"brew/readers/connector.py", "brew/kafka/transaction.py"} <= set(archive.namelist())
    index = words.index("run")
    assert words[index - 1].endswith("submit_main.py")
    original = stage.settings(*options)
    assert words[index + 1 : index + 3] == ["--config", "/dev/null"], "no file of the cluster's changes the run"
    submitted = stage.settings(*words[index + 3 :])
    same = attrgetter("input", "output", "dead_letter", "group", "spark.master")
    assert same(submitted) == same(original)
    assert (submitted.follow, submitted.max_records_per_transaction) == (True, 777)
