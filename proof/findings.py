"""The checker's report: findings with place and evidence, doubts, and the verdict."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from brew.names import ExitCode

_KEPT = 20


class Name(enum.StrEnum):
    """The kinds of findings; docs/PROTOCOL.md describes each."""

    LOST = "lost-output"
    DUPLICATE = "duplicate-output"
    PHANTOM = "phantom-output"
    CORRUPT = "corrupt-output"
    NONMONOTONIC = "nonmonotonic-output"
    ABORTED_READ = "aborted-read"
    LOST_COMMIT = "lost-commit"
    TORN = "torn-txn"
    OFFSET_AHEAD = "offset-ahead"
    OFFSET_BEHIND = "offset-behind"
    OFFSET_REGRESSION = "offset-regression"
    OFFSET_GAP = "offset-gap"
    EPOCH_REUSE = "epoch-reuse"
    ZOMBIE = "zombie-write"
    POLL_SKIP = "poll-skip"
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    INCONSISTENT = "inconsistent-offset"
    HANGING = "hanging-txn"
    UNSEEN = "unseen"
    STALL = "stall"
    SILENT_FAULT = "silent-fault"
    SECRET = "secret-leak"  # noqa: S105 - a name of a finding

    @property
    def violation(self) -> bool:
        """Whether it breaks the promise; a fault that did not fire only makes the run meaningless."""
        return self is not Name.SILENT_FAULT


class Verdict(enum.StrEnum):
    PROVEN = "proven"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_code(self) -> ExitCode:
        return {"proven": ExitCode.DONE, "violated": ExitCode.VIOLATION, "inconclusive": ExitCode.REFUSED}[self.value]


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong with a record, or with an input without output; outside logs, ``partition`` is -1."""

    name: Name
    topic: str
    partition: int
    offset: int
    evidence: str
    producer_id: int | None = None
    epoch: int | None = None

    def __str__(self) -> str:
        location = f"{self.topic}[{self.partition}] offset {self.offset}" if self.partition >= 0 else self.topic
        producer = "" if self.producer_id is None else f" (producer {self.producer_id}, epoch {self.epoch})"
        return f"{self.name}: {location}{producer}: {self.evidence}"


@dataclass(slots=True)
class Findings:
    """Counts all findings, and keeps the first twenty of each name."""

    totals: Counter[Name] = field(default_factory=Counter)
    _first: dict[Name, list[Finding]] = field(default_factory=dict)

    def add(
        self, name: Name, location: tuple[str, int, int], evidence: str, key: tuple[int, int] | None = None
    ) -> None:
        """Add a finding; ``location`` is (topic, partition, offset), ``key`` (producer id, epoch)."""
        self.totals[name] += 1
        kept = self._first.setdefault(name, [])
        if len(kept) < _KEPT:
            kept.append(Finding(name, *location, evidence, *(key or (None, None))))

    def take(self, other: Findings) -> None:
        self.totals += other.totals
        for name, some in other._first.items():
            self._first[name] = [*self._first.get(name, ()), *some][:_KEPT]

    def first(self) -> list[Finding]:
        """Return twenty findings at most, an equal share for each name; but at least one for each."""
        share = max(1, _KEPT // max(1, len(self._first)))
        return [finding for kept in self._first.values() for finding in kept[:share]]


@dataclass(frozen=True, slots=True)
class Report:
    """
    What was read and what was found.

    ``inputs``: the visible records below the committed offset, ``backlog``: the others. ``doubts``: why there is no
    verdict on the rest, each with what to do. ``counts``: what a campaign compares with its demands.
    """

    inputs: int
    outputs: int
    dead_letters: int
    backlog: int
    unverifiable: int
    totals: dict[str, int]
    findings: list[Finding]
    doubts: list[str]
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    recovery_s: list[float | None] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        if any(Name(name).violation for name in self.totals):
            return Verdict.VIOLATED
        return Verdict.INCONCLUSIVE if self.doubts or self.totals else Verdict.PROVEN

    def document(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "findings"}
        findings = [asdict(finding) | {"name": finding.name.value} for finding in self.findings]
        return {"verdict": self.verdict.value, **fields, "findings": findings}
