"""The late frames try after try, one writer against the other: a control that has to break, and ours that must not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from brew.connection import Connection
from proof.campaign.cell import Cell
from proof.campaign.stage import CellEnvironment
from proof.wire import product as wire

_TRIES_PER_KILL = 10


def _experiment(name: str, bootstrap: str, seed: int, kills: int) -> Mapping[str, Any]:
    return wire.CELLS[name](Connection(bootstrap), seed, _TRIES_PER_KILL * kills)


def _no_play(_stage: CellEnvironment) -> None:
    raise AssertionError("an experiment has no play")


def _cell(name: str) -> Cell:
    row, control = name.split("-", 1)[0], name.endswith("-control")
    return Cell(
        name=name,
        row=row,
        fault=wire.FAULTS[row],
        target=wire.TARGETS[wire.WRITER_OF[name]],
        moment=wire.MOMENTS[row],
        play=_no_play,
        path="proxy",
        limit_s=600.0,
        expected="violated" if control else "proven",
        marks=frozenset({"prove"}) if row == "F11" else frozenset(),
        experiment=lambda bootstrap, seed, kills: _experiment(name, bootstrap, seed, kills),
    )


CELLS = tuple(_cell(name) for name in wire.CELLS)
