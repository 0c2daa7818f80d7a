"""Hadoop's own YARN, as processes: client mode with a crash, and cluster mode from an installed wheel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from harness.pipeline import CONNECTOR, DIRECT, Stage
from harness.yarn import YarnCluster

from brew.jvm import dependencies
from sandbox.spark import spark_home

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="module")
def yarn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[YarnCluster]:
    """A resource manager and a node manager of Hadoop's mini cluster."""
    with YarnCluster.start(tmp_path_factory.mktemp("yarn") / "cluster") as found:
        yield found


@pytest.fixture
def options(yarn: YarnCluster, bare_python: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[str]:
    """Of a run on it: two small executors with a Python that has nothing of ours, Spark's jars from this machine."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.site))
    conf = {
        "spark.yarn.jars": f"local:{spark_home()}/jars/*",
        "spark.pyspark.python": str(bare_python),
        "spark.executor.instances": "2",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": _QUICK,
        "spark.yarn.am.memory": "512m",
        "spark.yarn.am.extraJavaOptions": _QUICK,
        "spark.driver.memory": "700m",
    }
    return [
        "--master",
        "yarn",
        "--verbose",
        *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
    ]


def test_the_crash_story_in_client_mode(stage: Stage, options: Sequence[str]) -> None:
    """The driver here, executors in containers of YARN: a crash before the commit, nothing to see, then all of it."""
    stage.crash_and_heal(*options, "--reader", DIRECT, seconds=400)


def test_an_installed_wheel_submits_a_run_in_cluster_mode(
    stage: Stage, options: Sequence[str], installed_wheel: Path
) -> None:
    """The driver runs in a container of YARN, with our packages from --py-files; Spark's own word is the exit code."""
    stage.create(orders=300)
    words = ["env", "-u", "PYTHONPATH", "-C", str(installed_wheel.parent), f"BREW_JVM_DIR={dependencies.home()}"]
    words += [f"HADOOP_CONF_DIR={os.environ['HADOOP_CONF_DIR']}", str(installed_wheel), "submit", *stage.options()]
    words += [*options, "--conf", "spark.submit.deployMode=cluster", "--reader", CONNECTOR]
    ran = stage.run(words, seconds=400)
    assert ran.code == 0, ran.text
    assert "final status: SUCCEEDED" in ran.text
    stage.proven(inputs=300, outputs=300)
