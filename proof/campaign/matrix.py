"""
All cells by name, over each reader that makes sense.

A theme is a module with a `CellTable` named `CELLS`; a new one joins `THEMES`. Each cell that starts the pipeline is
run once with `--reader connector` and once with `direct`: the same fault, moment, play and verdict. Its name ends in
the reader, and in `-spark` behind that where Spark runs it. Without `-spark` the pipeline runs in one process
(`--master none`), where the connector's ranges are read without Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatch, fnmatchcase
from types import ModuleType

from brew.errors import UsageError
from proof.campaign.cell import BOTH, CONNECTOR, DIRECT, Cell
from proof.campaign.cells import (
    access,
    broker,
    claims,
    kafka,
    ledger,
    mixture,
    payload,
    receiver,
    sink,
    spark,
    standalone,
    totals,
    wire,
    writer,
)
from proof.campaign.effects import HOLDERS

THEMES: Sequence[ModuleType] = (
    *(writer, wire, broker, kafka, payload, spark, standalone, ledger, receiver, totals, claims, access, sink, mixture),
)
SPARK = "-spark"
ONE_READER = {
    "F36-acl-spark": (CONNECTOR, "it is about Spark's own consumer, in Java, which only the connector has"),
    "F37-no-local-disk": (CONNECTOR, "it ends before anything is read"),
    "F0?-lease-*": (DIRECT, "only the direct reader holds partitions by a lease"),
    "F09-speculation": (CONNECTOR, "each job of the direct reader is of one task, and Spark copies none of those"),
    "soak-F38": (BOTH, "both readers take turns in it"),
}
"""Cells of one reader, by name, and why."""
_OWN_WRITERS = "the writers are the wire's own, which read no input"
_DOWNSTREAM = "the program under test reads the pipeline's output"
NO_READER = {
    **dict.fromkeys(("F09-split-range", "F10-old-checkpoint"), "not applicable to either"),
    **dict.fromkeys(("F11-end-txn-*", "F12-offsets-*", "F12-records-*", "F13-records-*"), _OWN_WRITERS),
    **dict.fromkeys(("F29-*", "F30-*", "F31-*", "F32-*", "F33-*"), _DOWNSTREAM),
    "F34-*": "claimants read no input",
    **dict.fromkeys(("F39-*", "F40-*", "F41-*", "F42-*", "F43-*"), "the program under test is a query of Spark's"),
}
"""Cells that start no reader of the pipeline, and why."""
_SHORT_ROUND = {"F01-mid-produce-writer", "F08-two-writers-short", "F35-poison-short"}


def cells() -> list[Cell]:
    """Every cell there is, in the order of the themes, over each reader that makes sense."""
    return [variant for theme in THEMES for cell in theme.CELLS for variant in _over_readers(cell)]


def chosen(patterns: Iterable[str]) -> list[Cell]:
    """
    The cells that one of ``patterns`` names: a cell's name or row with wildcards, or a mark; all for none.

    Raises:
        UsageError: a pattern fits no cell.
    """
    everything, asked = cells(), list(patterns)
    for pattern in asked:
        if not any(_fits(cell, pattern) for cell in everything):
            raise UsageError(f"--cells {pattern!r} fits no cell; `python -m proof campaign --list` shows them")
    return [cell for cell in everything if not asked or any(_fits(cell, pattern) for pattern in asked)]


def named(name: str) -> Cell:
    """
    The cell of that name.

    Raises:
        UsageError: there is none.
    """
    for cell in cells():
        if cell.name == name:
            return cell
    raise UsageError(f"no cell {name!r}; `python -m proof campaign --list` shows them")


def _fits(cell: Cell, pattern: str) -> bool:
    return fnmatch(cell.name, pattern) or cell.row == pattern or pattern in cell.marks


def _over_readers(cell: Cell) -> list[Cell]:
    if any(fnmatchcase(cell.name, pattern) for pattern in NO_READER):
        return [cell]
    readers = [reader for pattern, (reader, _) in ONE_READER.items() if fnmatchcase(cell.name, pattern)]
    return [over(reader, cell) for reader in readers or (CONNECTOR, DIRECT)]


def over(reader: str, cell: Cell) -> Cell:
    """The cell over one reader; over the direct one it shows nothing where no lease holder was seen at work."""
    marks = cell.marks
    if reader == DIRECT:
        marks = frozenset({"prove"} if cell.name in _SHORT_ROUND else ())
    return replace(
        cell,
        name=f"{cell.name.removesuffix(SPARK)}-{reader}{SPARK if cell.path == SPARK[1:] else ''}",
        path=f"{reader} {cell.path}",
        reader=reader,
        needed={**cell.needed, **({HOLDERS: 1} if reader == DIRECT else {})},
        marks=marks | {reader},
    )
