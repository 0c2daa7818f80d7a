"""
Each cell over both readers: the same fault, moment, play and judge, once with `--reader connector`, once with `direct`.

A cell's name ends in its reader, and in `-spark` behind that where Spark runs it. Without `-spark` the pipeline runs in
one process (`--master none`), where the connector's ranges are read without Spark. What the direct reader has of its
own, and what is broken here: holders, leases, turns, transactions that are read while they are written, and
the driver's grants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase

from proof.campaign.cell import Cell
from proof.campaign.holders import HOLDERS

CONNECTOR, DIRECT, BOTH = "connector", "direct", "both"
SPARK = "-spark"

ONE_READER = {
    "F36-acl-spark": (CONNECTOR, "it is about Spark's own consumer, in Java, which only the connector has"),
    "F37-no-local-disk": (CONNECTOR, "it ends before anything is read"),
    "F0?-lease-*": (DIRECT, "only the direct reader holds partitions by a lease"),
    "F09-speculation": (CONNECTOR, "each job of the direct reader is of one task, and Spark copies none of those"),
    "soak-F38": (BOTH, "both readers take turns in it"),
}
"""Cells of one reader, by name, and why."""
NO_READER = {
    "F09-split-range": "not applicable to either",
    "F10-old-checkpoint": "not applicable to either",
    "F11-end-txn-*": "the writers are the wire's own, which read no input",
    "F12-offsets-*": "the writers are the wire's own, which read no input",
    "F12-records-*": "the writers are the wire's own, which read no input",
    "F13-records-*": "the writers are the wire's own, which read no input",
    "F29-*": "the program under test reads the pipeline's output",
    "F30-*": "the program under test reads the pipeline's output",
    "F31-*": "the program under test reads the pipeline's output",
    "F32-*": "the program under test reads the pipeline's output",
    "F33-*": "the program under test reads the pipeline's output",
    "F34-*": "claimants read no input",
}
"""Cells that no reader of ours is started in, and why."""

_SHORT_ROUND = {"F01-mid-produce-writer", "F08-two-writers-short", "F35-poison-short"}


def over_readers(cells: Iterable[Cell]) -> list[Cell]:
    """The cells as they are run: for each that starts the pipeline one for each reader that makes sense."""
    return [one for cell in cells for one in _over(cell)]


def _over(cell: Cell) -> list[Cell]:
    if any(fnmatchcase(cell.name, pattern) for pattern in NO_READER):
        return [cell]
    readers = [reader for pattern, (reader, _) in ONE_READER.items() if fnmatchcase(cell.name, pattern)]
    return [over(reader, cell) for reader in readers or (CONNECTOR, DIRECT)]


def over(reader: str, cell: Cell) -> Cell:
    """The cell over one reader; over the direct one it shows nothing where no holder was seen at work."""
    marks = cell.marks
    if reader == DIRECT:
        marks = frozenset({"prove"} if cell.name in _SHORT_ROUND else ())
    return replace(
        cell,
        name=named(reader, cell),
        path=f"{reader} {cell.path}",
        reader=reader,
        needed={**cell.needed, **({HOLDERS: 1} if reader == DIRECT else {})},
        marks=marks | {reader},
    )


def named(reader: str, cell: Cell) -> str:
    """The cell's name with its reader, and with `-spark` at its end if Spark runs it."""
    return f"{cell.name.removesuffix(SPARK)}-{reader}{SPARK if cell.path == SPARK[1:] else ''}"
