from __future__ import annotations

import json
import math
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from proof.provenance import UNKNOWN

PROVEN, VIOLATED, INCONCLUSIVE = "proven", "violated", "inconclusive"

LINES, WHOLE = "results.jsonl", "results.json"
_PERCENTILE = 0.95


@dataclass(frozen=True, slots=True)
class Result:
    """
    One cell with one seed; seconds throughout, ``recovery_s`` from the heal or the kill to the first new commit.

    ``commit``, ``kernel`` and ``versions`` say what it was made with (`proof.provenance`).
    """

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


def p95(values: Sequence[float]) -> float:
    """The 95th percentile, nearest rank."""
    return sorted(values)[math.ceil(_PERCENTILE * len(values)) - 1]


def append(folder: Path, result: Result) -> None:
    """Add one line to the file of finished cells."""
    with (folder / LINES).open("a") as file:
        file.write(json.dumps(asdict(result)) + "\n")


def finished(folder: Path, kernels: Collection[str] | None = None) -> list[Result]:
    """
    The cells that an earlier run of this campaign finished; a line cut off by a kill is left out.

    With ``kernels`` so are results that were made with others.
    """
    path = folder / LINES
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    results = [Result(**json.loads(line)) for line in lines if line.endswith("\n")]
    return [result for result in results if kernels is None or result.kernel in kernels]


def write_whole(folder: Path, campaign: Mapping[str, Any], results: Sequence[Result]) -> Path:
    """Write the campaign with all its cells, in one step."""
    return write_file(folder / WHOLE, campaign, results)


def write_file(path: Path, campaign: Mapping[str, Any], results: Sequence[Result]) -> Path:
    """Write a campaign to a file of any name, in one step."""
    document = {"campaign": dict(campaign), "cells": [asdict(result) for result in results]}
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(document, indent=2) + "\n")
    return fresh.replace(path)


@dataclass(frozen=True, slots=True)
class Names:
    """A cell's topics and group, never used before."""

    stem: str

    @classmethod
    def fresh(cls, cell: str, seed: int) -> Self:
        return cls(f"cell-{cell}-s{seed}-{uuid.uuid4().hex[:6]}")

    @property
    def input(self) -> str:
        return f"{self.stem}.in"

    @property
    def output(self) -> str:
        return f"{self.stem}.out"

    @property
    def dead_letter(self) -> str:
        return f"{self.stem}.dlq"

    @property
    def group(self) -> str:
        return f"{self.stem}.group"

    def topics(self) -> list[str]:
        return [self.input, self.output, self.dead_letter]

    def options(self) -> list[str]:
        """Options that name them, the same for the pipeline and the checker."""
        named = [("--input", self.input), ("--output", self.output), ("--dead-letter", self.dead_letter)]
        return [word for pair in [*named, ("--group", self.group)] for word in pair]
