"""What the checker says: findings with their place and evidence, and a verdict."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass, field

from protocol.names import ExitCode

_KEPT = 20


class Name(enum.StrEnum):
    """All that can be violated."""

    LOST = "lost-output"
    DUPLICATE = "duplicate-output"
    PHANTOM = "phantom-output"
    CORRUPT = "corrupt-output"
    NONMONOTONIC = "nonmonotonic-output"
    OFFSET_BEHIND = "offset-behind"
    OFFSET_AHEAD = "offset-ahead"


class Verdict(enum.StrEnum):
    """What was shown."""

    PROVEN = "proven"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        return {"proven": ExitCode.DONE, "violated": ExitCode.VIOLATION, "inconclusive": ExitCode.REFUSED}[self.value]


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation: where the record stands (or the input that should have come out), and what is wrong there."""

    name: Name
    topic: str
    partition: int
    offset: int
    evidence: str

    def __str__(self) -> str:
        return f"{self.name}: {self.topic}[{self.partition}] offset {self.offset}: {self.evidence}"


@dataclass(slots=True)
class Findings:
    """All findings counted, the first twenty of each name kept."""

    totals: Counter[Name] = field(default_factory=Counter)
    _first: dict[Name, list[Finding]] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        self.totals[finding.name] += 1
        kept = self._first.setdefault(finding.name, [])
        if len(kept) < _KEPT:
            kept.append(finding)

    def first(self) -> list[Finding]:
        """At most twenty, every name among them."""
        share = max(1, _KEPT // max(1, len(self._first)))
        return [finding for kept in self._first.values() for finding in kept[:share]]


@dataclass(frozen=True, slots=True)
class Report:
    """
    What was read and what was found.

    ``inputs`` are the visible records below the committed offset, ``backlog`` those above it. ``doubts`` are the
    reasons why the rest could not be told, each with what to do.
    """

    inputs: int
    outputs: int
    dead_letters: int
    backlog: int
    unverifiable: int
    totals: dict[str, int]
    findings: list[Finding]
    doubts: list[str]

    @property
    def verdict(self) -> Verdict:
        if self.totals:
            return Verdict.VIOLATED
        return Verdict.INCONCLUSIVE if self.doubts else Verdict.PROVEN
