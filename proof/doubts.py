"""Reasons why the promise can't be judged, each with what to do; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.position import LogOffsets


@dataclass(frozen=True, slots=True)
class Tally:
    """Inputs below and above the committed offset, and outputs whose source is gone."""

    inputs: int
    backlog: int
    unverifiable: int


def own_doubts(
    topic: str, logs: Mapping[int, LogOffsets], committed: Mapping[int, int | None], tally: Tally
) -> list[str]:
    """What stands between the input and a verdict."""
    doubts = []
    if not tally.inputs and not tally.backlog:
        doubts.append(f"{topic} holds no visible record, so there is nothing to prove; seed some orders")
    if tally.backlog:
        doubts.append(f"{tally.backlog} visible inputs are not processed yet; run the pipeline until its lag is 0")
    if tally.unverifiable:
        doubts.append(
            f"the sources of {tally.unverifiable} outputs are below the input's log start (retention) and can't be "
            "compared; verify earlier, or keep the input longer"
        )
    for partition, log in sorted(logs.items()):
        here = committed.get(partition)
        if here is not None and here < log.first:
            doubts.append(
                f"{topic}[{partition}] begins at {log.first}, above the committed offset {here}: what lay between is "
                "gone; reset the group on purpose, and keep the input longer"
            )
        if log.last_stable < log.end:
            doubts.append(
                f"{topic}[{partition}] has offsets {log.last_stable} to {log.end - 1} behind an open transaction; "
                "wait for its end, or see `group-describe` for who holds it"
            )
    return doubts
