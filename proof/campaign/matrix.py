"""All cells by name; a later theme adds its module to `THEMES`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatch
from types import ModuleType

from brew.errors import UsageError
from proof.campaign.cell import Cell
from proof.campaign.cells import (
    access,
    broker,
    claims,
    ground,
    kafka,
    late,
    leases,
    mixture,
    payload,
    spark,
    stores,
    takeover,
    wire,
    writer,
)
from proof.campaign.cells.direct import over_readers

THEMES: Sequence[ModuleType] = (
    writer,
    takeover,
    wire,
    late,
    broker,
    ground,
    kafka,
    payload,
    spark,
    leases,
    stores,
    claims,
    access,
    mixture,
)


def cells() -> list[Cell]:
    """Every cell there is, in the order of the themes, over each reader that makes sense."""
    return [cell for theme in THEMES for cell in over_readers(theme.CELLS)]


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
    found = next((cell for cell in cells() if cell.name == name), None)
    if found is None:
        raise UsageError(f"no cell {name!r}; `python -m proof campaign --list` shows them")
    return found


def _fits(cell: Cell, pattern: str) -> bool:
    return fnmatch(cell.name, pattern) or cell.row == pattern or pattern in cell.marks
