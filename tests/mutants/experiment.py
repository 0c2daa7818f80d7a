"""Run a scenario with the unchanged product and with each bug, and run the shipped checks."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from harness.pipeline import Stage

from brew import attempt
from brew.deadline import Deadline
from brew.errors import BrewError
from mutants.mutant import Changes, Mutant
from mutants.scenarios import SCENARIOS
from mutants.scene import Scene
from proof.findings import Verdict
from proof.verify import PipelineUnderTest, VerifyOptions, verify

_VERIFY_S = 60.0
_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Seen:
    """
    The findings of the shipped checks.

    ``named``: the anomalies of `proof verify`, with counts; ``signs``: what the run itself reported: refused, stalled,
    fenced without a rival.
    """

    verdict: str
    named: dict[str, int]
    signs: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def red(self) -> bool:
        """Whether a check reports a failure; an inconclusive verdict is not enough."""
        return self.verdict == Verdict.VIOLATED or bool(self.signs)

    @property
    def proven(self) -> bool:
        return self.verdict == Verdict.PROVEN and not self.signs

    @property
    def by(self) -> str:
        """All checks that named it, in one line."""
        return ", ".join([*self.named, *self.signs]) or "; ".join(self.doubts) or self.verdict


def experiments(
    scenario: str, mutants: Iterable[Mutant], stage_of: Callable[[str], Stage]
) -> tuple[Seen, list[tuple[Mutant, Seen]]]:
    """Return the findings of the control and of each mutant; ``stage_of`` creates separate topics for a name."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        # One after another, because a bug affects the whole process; their proofs overlap.
        control = pool.submit(_judge, *_play(scenario, stage_of(f"{scenario}-control"), None))
        futures = [(one, pool.submit(_judge, *_play(scenario, stage_of(one.name), one))) for one in mutants]
        return control.result(), [(one, seen.result()) for one, seen in futures]


def _play(scenario: str, stage: Stage, mutant: Mutant | None) -> tuple[Scene, float]:
    """Run the scenario; an error of a run is a sign, and the bug is removed before this returns."""
    began = time.monotonic()
    with Changes() as change:
        scene = Scene(stage, change, mutant, Path(tempfile.mkdtemp(prefix="brew-mutant-")))
        try:
            SCENARIOS[scenario](scene)
        except BrewError as error:
            scene.signs.append(str(error))
    attempt._journal(str(scene.journals), os.getpid()).close()
    attempt._journal.cache_clear()
    return scene, time.monotonic() - began


def _judge(scene: Scene, seconds: float) -> Seen:
    """Ask `proof verify`; a scenario without topics has only its signs."""
    signs = tuple(scene.signs)
    silent = not all(scene.fired)
    try:
        if not scene.partitions:
            return Seen(Verdict.INCONCLUSIVE if silent else Verdict.PROVEN, {}, signs, (), seconds)
        names = scene.stage.names
        pipeline = PipelineUnderTest(names.input, names.output, names.dead_letter, names.group)
        options = VerifyOptions(
            settled=True,
            journals=scene.journals,
            needed={"disturbances": len(scene.fired)} if scene.fired else {},
            fired={"disturbances": sum(scene.fired)},
        )
        report = verify(scene.stage.connection, pipeline, Deadline(_VERIFY_S), options)
    except BrewError as error:
        return Seen(Verdict.INCONCLUSIVE, {}, signs, (str(error),), seconds)
    finally:
        shutil.rmtree(scene.journals)
    return Seen(report.verdict, report.totals, signs, tuple(report.doubts), seconds)
