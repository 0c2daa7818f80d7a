"""A standalone cluster: the crash story with both readers, and a run that goes on while its cluster is broken."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from harness.pipeline import DIRECT, READERS, Ran, Stage, until

from brew.jvm import dependencies
from brew.names import READ_UNCOMMITTED
from sandbox.spark import MASTER, SparkCluster

# A frozen executor is lost after 20 s, not two minutes; executors live for seconds and need no second compiler.
_CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}


def options(cluster: SparkCluster, reader: str, *more: str) -> Sequence[str]:
    conf = [word for name, value in _CONF.items() for word in ("--conf", f"{name}={value}")]
    return ["--master", cluster.url, "--reader", reader, *conf, *more]


@pytest.mark.parametrize("reader", READERS)
def test_the_crash_story_on_a_cluster(stage: Stage, cluster: SparkCluster, reader: str) -> None:
    """
    The run dies before its commit, on an executor whose Python has nothing of ours; the next one does it all.

    Our packages get there by themselves: `--py-files` of a submitted run, `addPyFile` of this one.
    """
    stage.create()
    stage.seed(300)
    crashed = stage.pipeline(*options(cluster, reader, "--crash-prob", "1"), seconds=300)
    assert crashed.code == 2, crashed.text
    assert stage.outputs() == 0
    assert stage.records(stage.names.output, READ_UNCOMMITTED), "what the dead attempt wrote is in the log"
    healed = stage.pipeline(*options(cluster, reader), seconds=300)
    assert healed.code == 0, healed.text
    stage.proven(inputs=300, outputs=300)


@pytest.mark.parametrize("reader", READERS)
def test_a_run_goes_on_while_workers_die_freeze_and_come_and_the_master_restarts(
    stage: Stage, cluster: SparkCluster, reader: str
) -> None:
    """Each time orders that come afterwards come out, each once; nothing is left open."""
    stage.create(output=4)
    stage.seed(2000)
    total = 2000

    def more(what: str, seconds: float = 240) -> None:
        nonlocal total
        stage.seed(400, "--seed", str(total))
        total += 400
        until(lambda: stage.outputs() == total, f"{total} orders {what}", seconds)

    small = ("--max-records-per-transaction", "100", "--follow", "--patience", "300")
    with stage.follow(*options(cluster, reader, *small)) as program:
        until(lambda: stage.outputs() > 0, "the first orders", 300)
        first, second, *_ = [name for name in cluster.workers if cluster.alive(name)]
        cluster.kill(first)
        more(f"after worker {first} was killed")
        cluster.restart(MASTER)
        more("after the master came back")
        added = cluster.add_worker()
        more(f"with worker {added}")
        cluster.pause(second)
        try:
            more(f"while worker {second} was frozen")
        finally:
            cluster.resume(second)
        more(f"after worker {second} went on")
        program.terminate()
        ran = program.wait(60)
    assert ran.code == 0, ran.text
    stage.proven(inputs=total, outputs=total)


def test_a_wheel_that_pip_installed_submits_a_run(stage: Stage, cluster: SparkCluster, installed_wheel: Path) -> None:
    """`brew-pipeline submit` becomes `spark-submit` in client mode, with our packages as --py-files."""
    stage.create()
    stage.seed(300)
    ran = submitted(stage, installed_wheel, *options(cluster, DIRECT))
    assert ran.code == 0, ran.text
    stage.proven(inputs=300, outputs=300)


def submitted(stage: Stage, program: Path, *more: str) -> Ran:
    """What the installed `brew-pipeline` made of it, without a trace of the repository in its environment."""
    words = ["env", "-u", "PYTHONPATH", "-C", str(program.parent), f"BREW_JVM_DIR={dependencies.home()}", str(program)]
    words += ["submit", *stage.options(), *more]
    return stage.run(words, seconds=300)
