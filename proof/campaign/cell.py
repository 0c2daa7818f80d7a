"""A cell of the fault matrix: what is broken, where and when, and what has to be seen for it to count."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

CONNECTOR, DIRECT, BOTH = "connector", "direct", "both"
"""Readers of the pipeline; `both`: they take turns within one cell."""

Play = Callable[..., None]
"""Breaks things on a `proof.campaign.stage.CellEnvironment`, its last argument, and leaves all healed."""


class Need(enum.StrEnum):
    """What a cell needs of its cluster and machine; without it the cell is inconclusive."""

    SANDBOX = "a sandbox whose brokers may be broken"
    THREE = "three brokers"
    NETWORKS = "a network per broker (root, `ip`)"
    DISK = "a limited disk (root, `mount`)"
    PROXY = "the wire proxy (`python -m proof proxy`)"
    SPARK = "Spark"


@dataclass(frozen=True, slots=True)
class Cell:
    """
    One experiment; ``play`` gets a stage with topics and a reader, breaks things, and leaves all healed.

    ``needed`` is how often each thing has to happen (see `CellEnvironment.fired`), or the cell shows nothing.
    ``bound_s`` bounds the 95th percentile of the recoveries, ``limit_s`` the whole cell. Marks choose cells: `prove`
    for the short round. ``reader`` is handed to the program under test, `both` one after the other, and stands in the
    name (`proof.campaign.matrix`); without one no option is given. With ``properties`` the cell gets one broker of its
    own with these settings, with ``secure`` one that authenticates its clients. Without ``judged`` the play itself
    decides, since the logs can't be compared afterwards. An ``experiment`` (brokers, seed, kills) does without stage
    and play, and returns the whole result. In a control the pipeline has the ``bug`` (`python -m tests.mutants list`),
    and the cell has to show the anomaly ``breaks``: a pipeline that merely gets stuck is inconclusive.
    """

    name: str
    row: str
    fault: str
    target: str
    moment: str
    play: Play
    path: str = "writer"
    reader: str = ""
    needs: frozenset[Need] = frozenset()
    needed: Mapping[str, int] = field(default_factory=dict)
    bound_s: float | None = None
    limit_s: float = 120.0
    expected: str = "proven"
    marks: frozenset[str] = frozenset()
    partitions: int = 4
    properties: Mapping[str, str] | None = None
    secure: bool = False
    judged: bool = True
    not_applicable: str = ""
    experiment: Callable[[str, int, int], Mapping[str, Any]] | None = None
    bug: str = ""
    breaks: str = ""


class CellTable(list[Cell]):
    """
    The cells of one module, in order; called, it is the decorator that adds a cell for a play.

    ``defaults`` are fields that all of them have unless a call says otherwise::

        CELLS = CellTable(path="spark", needs={Need.SPARK}, limit_s=1500.0)

        @CELLS("F06-executor", "SIGKILL", "executor JVM", needed={"kills": 1}, bound_s=30.0)
        def executor_killed(stage: CellEnvironment) -> None: ...
    """

    def __init__(self, **defaults: Any) -> None:
        super().__init__()
        self._defaults = {"moment": "under load", **defaults}

    def __call__(self, name: str, fault: str, target: str, *args: object, **fields: Any) -> Callable[[Play], Play]:
        """
        A decorator that adds the cell ``name``; its row is the name's first word.

        ``args`` come before the stage when the play is called. ``marks`` are words in one string. A cell whose name
        ends in `-control` is expected to be violated, and has no bound.
        """
        if name.endswith("-control"):
            fields = {"expected": "violated", "bound_s": None, **fields}
        known = {"row": name.partition("-")[0], **self._defaults, **fields}
        known |= {"needs": frozenset(known.get("needs", ())), "marks": frozenset(known.get("marks", "").split())}

        def add(play: Play) -> Play:
            bound = partial(play, *args) if args else play
            self.append(Cell(name=name, fault=fault, target=target, play=bound, **known))
            return play

        return add


def nothing(_stage: object) -> None:
    """Play nothing: an experiment needs no play, and neither does a cell that is not applicable."""
