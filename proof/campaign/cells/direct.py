"""
The same over the direct reader: the fault, the moment and the judge of another theme's cell, with `--reader direct`.

The writer of the other cells runs without Spark, range by range, as Spark's Kafka source reads; the six steps are
the same code. What the direct reader has of its own, and what is broken here: holders, leases, turns, transactions that
are read while they are written, and the driver's grants.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from proof.campaign.cell import Cell
from proof.campaign.cells import access, broker, claims, ground, kafka, mixture, payload, spark, takeover, wire, writer
from proof.campaign.cells.spark import STRUCK
from proof.campaign.holders import HOLDERS

SUFFIX = "-direct"
_READER = "direct"

_SOURCES: tuple[Iterable[Cell], ...] = (
    writer.CELLS,
    takeover.CELLS,
    wire.CELLS,
    broker.CELLS,
    ground.CELLS,
    kafka.CELLS,
    payload.CELLS,
    spark.CELLS,
    claims.CELLS,
    access.CELLS,
    mixture.CELLS,
)
LEFT_OUT = {
    "F08-share-spark": "reads directly already",
    "F08-two-writers": "F08-two-writers-short is the same, shorter",
    "F23-offsets-expired": "F23-offsets-deleted is the same for a reader, and takes no two minutes",
    "F28-33000-transactions": "F28-overflow-short crosses the overflow, too",
    "F37-no-local-disk": "it ends before anything is read",
    "soak-F38": "F38-mixture is the same, shorter",
}
_SHORT_ROUND = {"F01-mid-produce-writer", "F08-two-writers-short", "F35-poison-short"}
# Of the processes that the fault strikes, one at least has to hold partitions.
_STRIKE = {"F06-executor", "F06-driver", "F07-orphan"}


def _reads(cell: Cell) -> bool:
    """Whether the cell starts the pipeline, which reads; claimants and experiments do without it."""
    return cell.experiment is None and cell.row != "F34" and not cell.not_applicable


def twin(cell: Cell) -> Cell:
    """The cell over the direct reader; where no holder was seen at work it shows nothing."""
    struck = {STRUCK: 1} if cell.name in _STRIKE else {}
    return replace(
        cell,
        name=cell.name + SUFFIX,
        path=f"{_READER} {cell.path}",
        reader=_READER,
        needed={**cell.needed, HOLDERS: 1, **struck},
        marks=frozenset({_READER, *(("prove",) if cell.name in _SHORT_ROUND else ())}),
    )


CELLS = tuple(twin(cell) for cells in _SOURCES for cell in cells if _reads(cell) and cell.name not in LEFT_OUT)
