"""A cell of the fault matrix, its `Result`, and the files that store the results of a campaign."""

from __future__ import annotations

import enum
import json
import math
import os
import platform
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Self

from brew.names import TransactionalId
from proof.findings import Name as Finding
from proof.provenance import UNKNOWN, MadeWith

CONNECTOR, DIRECT, BOTH = "connector", "direct", "both"
"""Readers of the pipeline; with `both` they alternate within one cell."""
CellFunction = Callable[..., None]
"""Injects faults into a `proof.campaign.stage.CellEnvironment`, its last argument, and heals them all."""
PROVEN, VIOLATED, INCONCLUSIVE = "proven", "violated", "inconclusive"
LINES, WHOLE = "results.jsonl", "results.json"
_PERCENTILE = 0.95


class Need(enum.StrEnum):
    """A requirement on cluster and machine; if it is not met, the cell is inconclusive."""

    SANDBOX = "a sandbox whose brokers may be broken"
    THREE = "three brokers"
    NETWORKS = "a network per broker (root, `ip`)"
    DISK = "a limited disk (root, `mount`)"
    PROXY = "the wire proxy (`python -m proof proxy`)"
    SPARK = "Spark"


@dataclass(frozen=True, slots=True)
class Cell:
    """
    One experiment; ``function`` gets a stage with topics and a reader, injects faults, and heals them all.

    ``needed``: how often each event (see `CellEnvironment.fired`) must occur; otherwise the cell is inconclusive.
    ``bound_s`` bounds the 95th percentile of the recoveries, ``limit_s`` the whole cell. ``marks`` select cells,
    `prove` the short round. ``readers``: those of the pipeline that it is run with (`proof.campaign.campaign`); none if
    it starts no reader, or is not applicable. ``reader`` is the one passed to the program under test (`both`: one after
    the other), and part of the name; if empty, no option is passed. With ``properties`` the cell gets its own broker
    with these settings, with ``secure`` one that authenticates its clients. Without ``judged``, the function itself
    decides, since the logs can't be compared afterwards. An ``experiment`` (brokers, seed, kills) needs no stage or
    function, and returns the whole result. In a control, the pipeline has the ``bug`` (`python -m tests.mutants list`),
    and the cell must show the anomaly ``breaks``: a pipeline that merely stalls is inconclusive.
    """

    name: str
    row: str
    fault: str
    target: str
    moment: str
    function: CellFunction
    path: str = "writer"
    reader: str = ""
    readers: tuple[str, ...] = (CONNECTOR, DIRECT)
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
    The cells of one module, in order; calling it returns the decorator that adds a cell for a function.

    ``defaults`` are fields of all its cells unless a call overrides them::

        CELLS = CellTable(path="spark", needs={Need.SPARK}, limit_s=1500.0)

        @CELLS("F06-executor", "SIGKILL", "executor JVM", needed={"kills": 1}, bound_s=30.0)
        def executor_killed(stage: CellEnvironment) -> None: ...
    """

    def __init__(self, **defaults: Any) -> None:
        super().__init__()
        self._defaults = {"moment": "under load", **defaults}

    def __call__(
        self, name: str, fault: str, target: str, *args: object, **fields: Any
    ) -> Callable[[CellFunction], CellFunction]:
        """
        Return a decorator that adds the cell ``name``, whose row is the first word of the name.

        ``args`` are passed to the function before the stage. ``marks`` are the words of one string. ``needed`` may be a
        tuple of events, each needed once. A cell whose name ends in `-control` is expected to be violated, unbounded.
        """
        if name.endswith("-control"):
            fields = {"expected": "violated", "bound_s": None, **fields}
        known = {"row": name.partition("-")[0], **self._defaults, **fields}
        known |= {"needs": frozenset(known.get("needs", ())), "marks": frozenset(known.get("marks", "").split())}
        if isinstance(events := known.get("needed"), tuple):
            known["needed"] = dict.fromkeys(events, 1)

        def add(function: CellFunction) -> CellFunction:
            bound = partial(function, *args) if args else function
            self.append(Cell(name=name, fault=fault, target=target, function=bound, **known))
            return function

        return add


def nothing(_stage: object) -> None:
    """Do nothing: the function of experiments and of cells that are not applicable."""


@dataclass(frozen=True, slots=True)
class Result:
    """A cell's result with one seed, in seconds; ``commit``, ``kernel`` and ``versions`` identify what was tested."""

    cell: str
    row: str
    fault: str
    target: str
    moment: str
    path: str
    seed: int
    verdict: str
    began: str
    seconds: float
    bound_s: float | None
    recovery_s: Sequence[float] = ()
    stall_s: Sequence[float] = ()
    fired: Mapping[str, int] = field(default_factory=dict)
    needed: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    anomalies: Sequence[Mapping[str, Any]] = ()
    doubts: Sequence[str] = ()
    note: str = ""
    expected: str = PROVEN
    commit: str = UNKNOWN
    kernel: str = UNKNOWN
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def as_expected(self) -> bool:
        return self.verdict == self.expected

    @property
    def evidence(self) -> list[str]:
        """What speaks against it: its first anomalies, as `name: evidence`, and its doubts."""
        anomalies = [f"{anomaly.get('name')}: {anomaly.get('evidence')}" for anomaly in self.anomalies[:5]]
        return [*anomalies, *self.doubts]

    @property
    def only_late(self) -> bool:
        """Whether a slow machine explains it: it was inconclusive, or continued too late and showed nothing else."""
        late = all(anomaly["name"] == Finding.STALL for anomaly in self.anomalies)
        return late and self.verdict not in {self.expected, PROVEN}


def p95(values: Sequence[float]) -> float:
    """Return the 95th percentile by the nearest-rank method."""
    return sorted(values)[math.ceil(_PERCENTILE * len(values)) - 1]


def append_result(folder: Path, result: Result) -> None:
    """Append a line; one that a kill or a full disk truncated is removed, or both would be unreadable."""
    with (folder / LINES).open("ab+") as file:
        file.seek(0)
        file.truncate(file.read().rfind(b"\n") + 1)
        file.write(json.dumps(asdict(result)).encode() + b"\n")


def finished_results(folder: Path, kernels: Collection[str] | None = None) -> list[Result]:
    """Return the last result of each cell and seed, of ``kernels`` if given; a line truncated by a kill is skipped."""
    path = folder / LINES
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    documents = [json.loads(line) for line in lines if line.endswith("\n")]
    # Another version's results may have other fields.
    known = [Result(**one) for one in documents if kernels is None or one.get("kernel") in kernels]
    return list({(result.cell, result.seed): result for result in known}.values())


def write_file(path: Path, campaign: Mapping[str, Any], results: Sequence[Result]) -> Path:
    """Write a campaign with all its cells atomically."""
    document = {"campaign": dict(campaign), "cells": [asdict(result) for result in results]}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(document, indent=2) + "\n")
    return fresh.replace(path)


def campaign_metadata(
    command: str, began: datetime, seconds: float, seeds: Sequence[int], made_with: MadeWith
) -> dict[str, object]:
    """Return the metadata of a results file: command, time, machine, versions."""
    memory_gib = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)
    return {
        "command": command,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": f"{os.cpu_count()} cores, {memory_gib} GiB, {platform.system()} {platform.machine()}",
        **asdict(made_with),
        "seeds": list(seeds),
    }


class Names:
    """Names of a cell's topics and group, never used before."""

    def __init__(self, stem: str) -> None:
        self.stem = stem
        self.input, self.output, self.dead_letter = f"{stem}.in", f"{stem}.out", f"{stem}.dlq"
        self.group = f"{stem}.group"

    @classmethod
    def fresh(cls, cell: str, seed: int) -> Self:
        return cls(f"cell-{cell}-s{seed}-{uuid.uuid4().hex[:6]}")

    def topics(self) -> list[str]:
        return [self.input, self.output, self.dead_letter]

    def transactional_id(self, partition: int) -> str:
        return str(TransactionalId(self.group, self.input, partition))

    def options(self) -> list[str]:
        """Return the options that pass these names, the same for the pipeline and the checker."""
        topics = ["--input", self.input, "--output", self.output, "--dead-letter", self.dead_letter]
        return [*topics, "--group", self.group]
