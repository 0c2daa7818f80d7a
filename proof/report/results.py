"""One result of the campaign: a cell of the fault matrix, run with one seed."""

from __future__ import annotations

import enum
import shlex
from dataclasses import dataclass

from proof.findings import Name, Verdict

UNKNOWN = "unknown"


class Standing(enum.StrEnum):
    """What a result shows, seen from what was expected of it."""

    PROVEN = "proven"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"
    CONTROL = "control"
    OUTDATED = "outdated"
    NOT_APPLICABLE = "not-applicable"

    @property
    def label(self) -> str:
        told = {Standing.CONTROL: "violated as expected", Standing.OUTDATED: "of another kernel"}
        return told.get(self, self.value.replace("-", " "))


# The worst first.
_RANK = (
    Standing.VIOLATED,
    Standing.INCONCLUSIVE,
    Standing.OUTDATED,
    Standing.CONTROL,
    Standing.PROVEN,
    Standing.NOT_APPLICABLE,
)


def worst(standings: list[Standing]) -> Standing:
    """The one that decides for all; nothing at all shows nothing."""
    return min(standings, key=_RANK.index, default=Standing.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """
    One finding of the checker; ``evidence`` is text that may hold anything.

    ``topic`` is a file's name, with no partition or -1, where no log is concerned; no number or -1 means unknown.
    """

    name: str
    topic: str
    partition: int | None
    offset: int | None
    producer_id: int | None
    epoch: int | None
    evidence: str

    @property
    def place(self) -> str:
        in_log = self.partition is not None and self.partition >= 0
        where = f"{self.topic}[{self.partition}]" if in_log else self.topic
        if self.offset is None or self.offset < 0:
            return where
        return f"{where} {'offset' if in_log else 'at'} {self.offset}".strip()


@dataclass(frozen=True, slots=True)
class Result:
    """
    What became of one cell with one seed.

    ``recovery_s`` holds the seconds from each heal to the first new commit, ``stall_s`` the seconds for which readers
    were held back, ``bound_s`` the most that a recovery may take (None: no bound). ``said`` is the runner's verdict.
    ``current``: it was made with the kernel that the report is for; ``commit`` and ``kernel`` are empty when not told.
    """

    cell: str
    row: str
    fault: str
    target: str
    moment: str
    path: str
    seed: int
    said: Verdict
    expected: Verdict
    began: str
    seconds: float
    bound_s: float | None
    recovery_s: tuple[float, ...]
    stall_s: tuple[float, ...]
    fired: dict[str, int]
    needed: dict[str, int]
    counts: dict[str, int]
    anomalies: tuple[Anomaly, ...]
    doubts: tuple[str, ...]
    note: str
    commit: str
    kernel: str
    versions: dict[str, str]
    current: bool

    @property
    def is_control(self) -> bool:
        return self.expected is Verdict.VIOLATED

    @property
    def violations(self) -> int:
        """Anomalies that break the promise; a fault that did not fire only leaves the run without a meaning."""
        return sum(anomaly.name != Name.SILENT_FAULT for anomaly in self.anomalies)

    @property
    def short(self) -> list[str]:
        """What fired less often than the cell demands."""
        pairs = [(kind, self.fired.get(kind, 0), wanted) for kind, wanted in self.needed.items()]
        return [f"{kind}: {fired} of {wanted} fired" for kind, fired, wanted in pairs if fired < wanted]

    @property
    def verdict(self) -> Verdict:
        """The runner's verdict, or a worse one: what the result itself holds against it is never talked away."""
        if self.violations or self.said is Verdict.VIOLATED:
            return Verdict.VIOLATED
        return Verdict.INCONCLUSIVE if self.doubts or self.short or self.anomalies else self.said

    @property
    def standing(self) -> Standing:
        if self.expected is Verdict.INCONCLUSIVE and self.verdict is Verdict.INCONCLUSIVE:
            return Standing.NOT_APPLICABLE  # the runner has said why beforehand
        shown = Standing(self.verdict.value)
        if self.is_control:
            shown = Standing.CONTROL if self.verdict is Verdict.VIOLATED else Standing.INCONCLUSIVE
        good = shown in {Standing.CONTROL, Standing.PROVEN}
        return Standing.OUTDATED if good and not self.current else shown  # a violation stays one

    @property
    def origin(self) -> str:
        """What it was made with, in words."""
        return f"commit {self.commit or UNKNOWN}" + ("" if self.current else ": of another kernel")

    @property
    def reasons(self) -> list[str]:
        """Why the result is inconclusive; empty when it is not."""
        if self.standing not in {Standing.INCONCLUSIVE, Standing.NOT_APPLICABLE}:
            return []
        missed = ["the expected violation did not appear, so the experiment shows nothing"] if self.is_control else []
        silent = [f"{one.name}: {one.evidence}" for one in self.anomalies]
        return [*self.doubts, *self.short, *silent, *missed] or ["the runner could not tell and gave no reason"]

    @property
    def replay(self) -> str:
        """The command that runs exactly this again."""
        return f"python -m proof replay {shlex.quote(self.cell)} {self.seed}"

    @property
    def never_recovered(self) -> bool:
        """A fault struck, a new commit was due within the bound, and none came."""
        due = self.bound_s is not None and not self.short and self.standing is not Standing.INCONCLUSIVE
        return due and not self.recovery_s


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a campaign was made, as its runner told."""

    command: str
    began: str
    seconds: float | None
    machine: str
    commit: str
    kernel: str
    versions: dict[str, str]
