"""Journals of readers that saw what the logs hold."""

from __future__ import annotations

import random

from brew.journal import Entry, Phase, Run, Step, runs
from brew.offsets import SourcePosition
from proof.checking.input_partition import Record


def read_by(dice: random.Random, pid: int, visible: dict[str, list[Record]], *, final: bool = False) -> list[Entry]:
    """A reader's journal: each partition in pieces; one that is not final may have stopped early."""
    lines = []
    for topic, rows in visible.items():
        for partition in sorted({row.partition for row in rows}):
            some = [row for row in rows if row.partition == partition]
            some = some if final else some[: dice.randint(len(some) // 2, len(some))]
            while some:
                piece, some = some[:6], some[6:]
                lines.append(read_line(pid, topic, partition, [_told(row) for row in piece]))
    lines.append(Entry(2.0, "reader", pid, Step.READ, Phase.DONE, {"final": True})) if final else None
    return lines


def read_line(pid: int, topic: str, partition: int, places: list[tuple[int, int, int]]) -> Entry:
    folded: list[Run] = runs(places)
    said = {"topic": topic, "partition": partition, "isolation": "read_committed", "runs": folded}
    return Entry(1.0, "reader", pid, Step.READ, Phase.DONE, said)


def _told(row: Record) -> tuple[int, int, int]:
    source = SourcePosition.of(row.headers)
    return (row.offset, -1, -1) if source is None else (row.offset, source.partition, source.offset)
