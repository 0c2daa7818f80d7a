"""Crashes and rivals met by a drain inside this process: a cycle costs little there, so every case is tried."""

from __future__ import annotations

import threading

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage, Status

from protocol.names import CrashPoint


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    return Stage(broker, names)


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_dead_worker_heals_within_the_run_at_every_crash_point(stage: Stage, point: CrashPoint) -> None:
    """Each range's first attempt dies by SIGKILL; Spark or the next cycle tries again, and locate tells what is out."""
    stage.create()
    stage.seed(40)
    here = stage.drain("--crash-mode", "worker", "--crash-prob", "1.0", "--crash-point", point.value)
    assert here.statuses() & {Status.FAILED, Status.FENCED, Status.ALREADY_DONE}
    stage.proven(inputs=40, outputs=40)
