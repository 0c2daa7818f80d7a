"""A cell of the fault matrix: what is broken, where and when, and what has to be seen for it to count."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proof.campaign.stage import CellEnvironment as Stage


class Need(enum.StrEnum):
    """What a cell needs of the ground it stands on; without it the cell is inconclusive."""

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

    ``needed`` is how often each thing has to happen (see `Stage.fired`), or the cell shows nothing. ``bound_s`` bounds
    the 95th percentile of the recoveries, ``limit_s`` the whole cell. Marks choose cells: `prove` for the short round.
    ``reader`` is handed to the program under test, `both` one after the other, and stands in the name
    (`proof.campaign.cells.direct`); empty: none is told. With ``properties`` the cell gets
    one broker of its own with these settings, if ``secure`` one that asks who is there. Not ``judged``: the play itself
    tells, since the logs can't be compared afterwards. An ``experiment`` (brokers, seed, kills) does without stage and
    play, and gives the whole result. In a control the pipeline has the ``bug`` (`python -m tests.mutants list`), and
    it has to show the anomaly ``breaks``: one that merely gets stuck is inconclusive.
    """

    name: str
    row: str
    fault: str
    target: str
    moment: str
    play: Callable[[Stage], None]
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
