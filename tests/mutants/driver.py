"""Mutants in the driver: where a run starts without a committed offset, and how it interprets what it reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from brew.driver import micro_batches, missing_offsets, partitions
from brew.driver.missing_offsets import LastOutput
from brew.driver.partitions import PartitionSurvey
from brew.planner import PartitionFacts
from brew.settings import PipelineSettings
from mutants.mutant import Changes, Method, mutant


@mutant("D7", on="vanished", named="duplicate-output")
def earliest_on_a_vanished_offset(change: Changes) -> None:
    """Without a committed offset, the run begins at the first record, whatever the output contains."""
    change.set(missing_offsets, "resolve", lambda _: lambda _settings, facts, *_: {fact.partition for fact in facts})


@mutant("D7", on="vanished", named="lost-output")
def latest_on_a_vanished_offset(change: Changes) -> None:
    """Without a committed offset, the run begins at the end of the log."""

    def resolve(settings: PipelineSettings, facts: Iterable[PartitionFacts], *_: Any) -> set[int]:
        for fact in facts:
            missing_offsets._fence_and_commit(settings, fact, fact.log.last_stable)
        return set()

    change.set(missing_offsets, "resolve", lambda _: resolve)


@mutant("D7", on="vanished-behind-the-first-commit", named="duplicate-output")
def permission_to_begin_kept(change: Changes) -> None:
    """The permission to begin without a position remains valid after the attempt that it was given for."""
    change.set(PartitionSurvey, "first_attempt", lambda _: lambda _self, fact: fact.committed is None)


@mutant("D7", on="vanished", named="duplicate-output")
def last_trace_that_is_read_wins(change: Changes) -> None:
    """The restored position is the one after the record read last, not after the highest one."""

    def last_outputs(
        old: Method, settings: Any, partitions: Any, logs: missing_offsets.Logs, **how: Any
    ) -> dict[int, LastOutput]:
        restored: dict[int, LastOutput] = {}
        for name, log in logs.items():
            restored |= old(settings, partitions, {name: log}, **how)
        return restored

    change.wrap(missing_offsets, "_last_outputs", last_outputs)


@mutant("D7", on="recreated", named="not refused: topic-recreated")
def topic_id_left_out(change: Changes) -> None:
    """The id of the input topic is not committed with the offset."""
    change.set(partitions, "position_metadata", lambda _: lambda _topic_id: "")


@mutant("D9", on="silent-reader", named="lost-output")
def second_look_skipped(change: Changes) -> None:
    """A range for which the reader returned nothing counts as empty without a check by a second reader."""
    change.set(micro_batches, "scan", lambda _: lambda *_arguments, **_options: iter(()))
