"""`python -m sandbox spark`: a cluster on free ports, broken and mended by its commands."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness.waiting import has_ended

Spark = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def spark(tmp_path: Path) -> Iterator[Spark]:
    def command(*words: str) -> subprocess.CompletedProcess[str]:
        arguments = [sys.executable, "-m", "sandbox", "spark", *words, "--dir", str(tmp_path)]
        return subprocess.run(arguments, capture_output=True, text=True, timeout=150, check=False)

    yield command
    assert command("down", "--wipe").returncode == 0


def test_a_cluster_comes_is_broken_mended_and_goes(spark: Spark, tmp_path: Path) -> None:
    """Whatever is started is told, with its process; a killed worker is missed, and the one that is added is not."""
    assert spark("status").returncode == 3
    up = spark("up", "--port", "0", "--workers", "1", "--cores", "1")
    assert up.returncode == 0, up.stderr
    status = spark("status", "--json")
    report = json.loads(status.stdout)
    assert (status.returncode, report["running"]) == (0, {"master": True, "1": True})
    assert f"make run-pipeline MASTER={report['url']}" in up.stdout
    master, worker = report["processes"]["master"], report["processes"]["1"]

    assert spark("kill", "1").returncode == 0
    assert has_ended(worker)
    assert spark("status").returncode == 3
    assert "worker 1 is not running" in spark("pause", "1").stderr
    assert spark("restart", "1").returncode == 0
    assert "worker 2 is up" in spark("add").stdout
    assert spark("status").returncode == 0
    wrong = spark("kill", "9")
    assert (wrong.returncode, "choose one of: master 1 2" in wrong.stderr) == (64, True)

    assert "Spark is down (3 stopped)" in spark("down", "--wipe").stdout
    assert has_ended(master)
    assert not (tmp_path / "spark").exists()
