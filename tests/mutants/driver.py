"""Mutants in the driver: where a run begins when the group stands nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mutants.mutant import Changes, mutant
from pipeline import missing
from pipeline.plan import Fact
from pipeline.settings import PipelineSettings


@mutant("D7", on="vanished", named="duplicate-output")
def earliest_on_a_vanished_offset(change: Changes) -> None:
    """Without a committed offset the run begins at the first record, whatever the output holds."""
    change.set(missing, "resolve", lambda _: lambda _settings, facts, *_: {fact.partition for fact in facts})


@mutant("D7", on="vanished", named="lost-output")
def latest_on_a_vanished_offset(change: Changes) -> None:
    """Without a committed offset the run begins at the end of the log."""

    def resolve(settings: PipelineSettings, facts: Iterable[Fact], *_: Any) -> set[int]:
        for fact in facts:
            missing._behind_a_fence(settings, fact, fact.log.last_stable)
        return set()

    change.set(missing, "resolve", lambda _: resolve)
