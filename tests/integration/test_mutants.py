"""Deliberate bugs in the protocol are caught on a real broker, those in the models in all interleavings."""

from __future__ import annotations

import re
import signal
import subprocess

import psutil
import pytest
from harness.pipeline import ROOT, Stage, until
from harness.servers import Broker, Names
from mutants.catalogue import EVERY
from mutants.command import as_it_should
from mutants.experiment import experiments
from mutants.scenarios import SCENARIOS

from brew.names import CrashPoint

COUNT = 20


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_bug_is_seen_where_the_product_is_proven(broker: Broker, scenario: str) -> None:
    """The control runs in the same scenario; docs/proof/mutants.md tells what is wrong, and what names it."""
    bugs = [bug for bug in EVERY.values() if bug.on == scenario]
    control, tried = experiments(scenario, bugs, lambda name: Stage(broker, Names.fresh(name)))
    assert control.proven, control
    assert {bug.name: result for bug, result in tried if not as_it_should(bug, result)} == {}
    assert len(tried) == len(bugs) > 0


@pytest.mark.parametrize(
    ("program", "lost"), [(["pipeline"], 0), (["tests.mutants", "as", "offset-by-plain-consumer-commit"], COUNT)]
)
def test_a_bug_is_seen_in_a_process_that_is_killed_too(stage: Stage, program: list[str], lost: int) -> None:
    """The same command line with a bug and without: SIGKILL behind send-offsets, then the pipeline as it is."""
    stage.create(1, orders=COUNT)
    crash = ["--crash-mode", "worker", "--crash-prob", "1.0", "--crash-point", CrashPoint.AFTER_SEND_OFFSETS.value]
    with stage.python(*program, "run", *stage.options(), "--master", "none", *crash) as dying:
        assert dying.wait(60).code == -signal.SIGKILL
    stage.seed(4)
    stage.drain_locally()
    code, report = stage.verify()
    assert (code, report["totals"].get("lost-output", 0)) == (1 if lost else 0, lost), report


def test_a_process_left_behind_is_seen(stage: Stage) -> None:
    """The check that every scenario ends with goes red while something it started is alive."""
    with stage.start(["sleep", "60"]) as program:
        # Right behind exec, Linux shows an empty environment for a moment.
        until(lambda: bool(psutil.Process(program.pid).environ()), "the mark is there")
        with pytest.raises(AssertionError, match="sleep 60"):
            stage.no_process_left(seconds=0.2)
    stage.no_process_left()


BOUND_S = 300.0


def test_the_models_hold_and_every_broken_variant_is_caught() -> None:
    """Spin searches them to the end; the variants are those that models/README.md names, and no model is skipped."""
    done = subprocess.run(
        [ROOT / "scripts/models.sh"], capture_output=True, text=True, timeout=BOUND_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    results = re.findall(r"^(\w+) +(?:-D(\w+)|as it is) +\S+ states  (\w+)$", done.stdout, re.MULTILINE)
    page = (ROOT / "models/README.md").read_text()
    variants = re.findall(r"^\| `(claims|transaction|sink)` `(\w+)` \|", page, re.MULTILINE)
    assert len(variants) == 17
    models = [(model, "", "holds") for model in ("claims", "transaction", "sink")]
    assert sorted(results) == sorted(models + [(*variant, "caught") for variant in variants])
