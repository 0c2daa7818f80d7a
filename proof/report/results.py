"""The campaign's results as values, parsed with type checks, and the rows of the fault matrix; pure."""

from __future__ import annotations

import enum
import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from brew.errors import Refused
from proof.findings import Name, Verdict

MATRIX: dict[str, dict[str, str]] = {
    "Writer": {
        "F01": "Killed before the commit",
        "F02": "Killed while the commit is under way",
        "F03": "Killed after the commit",
        "F04": "Paused until another takes over, then woken",
        "F05": "Paused for longer than the transaction timeout",
    },
    "Spark": {
        "F06": "Executor or driver killed in mid batch",
        "F07": "Orphan worker outlives its killed executor",
        "F08": "Two drivers, one group",
        "F09": "Speculation, repartition, split ranges",
        "F10": "Position restored, deleted, or ahead of the group",
    },
    "Wire": {
        "F11": "Commit held and let go inside the next transaction",
        "F12": "Offset commit or records held and let go late",
        "F13": "Reply lost: fence, add offsets, commit",
    },
    "Brokers": {
        "F14": "Leader or coordinator killed",
        "F15": "Leader or coordinator paused for 20\u00a0s",
        "F16": "All three killed at once",
        "F17": "Rolling restart, clean and by kill",
        "F18": "Storm of elections and reassignments",
    },
    "Network and disk": {
        "F19": "Network partition",
        "F20": "Slow, lossy, reordering network",
        "F21": "One broker's disk full",
        "F22": "Two of three brokers down",
        "F37": "No space, or read-only, under Spark",
    },
    "Kafka's state": {
        "F23": "Committed offsets deleted or expired",
        "F24": "Retention passes the committed offset",
        "F25": "Input topic deleted and made again",
        "F26": "Partitions added under load",
        "F27": "Transactional id or group taken by a stranger",
        "F28": "Epoch overflow on one transactional id",
    },
    "Stores and claims": {
        "F29": "PostgreSQL killed around its commit",
        "F30": "Ledger's consumer paused with the row locked",
        "F31": "PostgreSQL restored to an older dump",
        "F32": "Redis killed, flushed, failed over, expired",
        "F33": "Aggregator killed around the changelog's commit",
        "F34": "Eight coordinators race for claims",
    },
    "The sink of Structured Streaming": {
        "F39": "Driver killed at each step of a batch",
        "F40": "Task, stage, executor, speculation under a batch",
        "F41": "Driver frozen past its time-out, or replaced",
        "F42": "Brokers killed or cut off under a batch",
        "F43": "Checkpoint deleted or old, two queries with one name",
    },
    "Input, access, everything": {
        "F35": "Poisoned input",
        "F36": "Access revoked, wrong password, expired certificate",
        "F38": "Random mixture of all faults",
    },
}
"""Titles of the rows (kinds of faults), by the part they affect; a row's cells differ in target and moment."""
TITLES = {row: title for rows in MATRIX.values() for row, title in rows.items()}
UNKNOWN = "unknown"
# Worst first.
_RANK = ("violated", "inconclusive", "outdated", "control", "proven", "not-applicable")
_REPAIR = "run the cell again, or remove it from the file"


class Standing(enum.StrEnum):
    """The state of a result, given what was expected."""

    PROVEN = "proven"
    VIOLATED = "violated"
    INCONCLUSIVE = "inconclusive"
    CONTROL = "control"
    OUTDATED = "outdated"
    NOT_APPLICABLE = "not-applicable"

    @property
    def label(self) -> str:
        special = {Standing.CONTROL: "violated as expected", Standing.OUTDATED: "of another kernel"}
        return special.get(self, self.value.replace("-", " "))

    @property
    def sign(self) -> str:
        """A sign that can be read without its colour."""
        return {"proven": "✓", "violated": "✗", "inconclusive": "?", "control": "✗", "outdated": "◌"}.get(self, "○")


def worst(standings: list[Standing]) -> Standing:
    """Return the worst standing, which decides for all; inconclusive if there is none."""
    return min(standings, key=_RANK.index, default=Standing.INCONCLUSIVE)


@dataclass(frozen=True, slots=True)
class Anomaly:
    """
    One finding of the checker; ``evidence`` may be any text.

    For findings outside a log, ``topic`` is a file's name and ``partition`` None or -1. Numbers: None or -1 is unknown.
    """

    name: str
    topic: str
    partition: int | None
    offset: int | None
    producer_id: int | None
    epoch: int | None
    evidence: str

    @property
    def location(self) -> str:
        in_log = self.partition is not None and self.partition >= 0
        where = f"{self.topic}[{self.partition}]" if in_log else self.topic
        if self.offset is None or self.offset < 0:
            return where
        return f"{where} {'offset' if in_log else 'at'} {self.offset}".strip()

    @property
    def producer(self) -> str:
        if self.producer_id is None or self.producer_id < 0:
            return "-"
        return f"{self.producer_id}" if self.epoch is None else f"{self.producer_id}, epoch {self.epoch}"


@dataclass(frozen=True, slots=True)
class Result:
    """
    The result of one cell with one seed.

    ``recovery_s``: seconds from each heal to the first new commit. ``stall_s``: seconds for which readers were held
    back. ``bound_s``: limit of a recovery (None: no limit). ``said``: the runner's verdict. ``current``: made with the
    kernel that the report is for. ``commit`` and ``kernel`` are empty if unknown.
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
        """The number of anomalies that break the promise; a fault that did not fire only makes the run meaningless."""
        return sum(anomaly.name != Name.SILENT_FAULT for anomaly in self.anomalies)

    @property
    def short(self) -> list[str]:
        """The faults that fired less often than the cell demands."""
        pairs = [(kind, self.fired.get(kind, 0), wanted) for kind, wanted in self.needed.items()]
        return [f"{kind}: {fired} of {wanted} fired" for kind, fired, wanted in pairs if fired < wanted]

    @property
    def verdict(self) -> Verdict:
        """The runner's verdict, or a worse one if the result's own anomalies or doubts say so."""
        if self.violations or self.said is Verdict.VIOLATED:
            return Verdict.VIOLATED
        return Verdict.INCONCLUSIVE if self.doubts or self.short or self.anomalies else self.said

    @property
    def standing(self) -> Standing:
        if self.expected is Verdict.INCONCLUSIVE and self.verdict is Verdict.INCONCLUSIVE:
            return Standing.NOT_APPLICABLE  # expected, for the reason that the cell gives
        shown = Standing(self.verdict.value)
        if self.is_control:
            shown = Standing.CONTROL if self.verdict is Verdict.VIOLATED else Standing.INCONCLUSIVE
        good = shown in {Standing.CONTROL, Standing.PROVEN}
        return Standing.OUTDATED if good and not self.current else shown  # a violation stays one

    @property
    def origin(self) -> str:
        """The commit, and whether the kernel is another one, in words."""
        return f"commit {self.commit or UNKNOWN}" + ("" if self.current else ": of another kernel")

    @property
    def reasons(self) -> list[str]:
        """The reasons why the result is inconclusive or not applicable; empty otherwise."""
        if self.standing not in {Standing.INCONCLUSIVE, Standing.NOT_APPLICABLE}:
            return []
        missed = ["the expected violation did not appear, so the experiment proves nothing"] if self.is_control else []
        silent = [f"{anomaly.name}: {anomaly.evidence}" for anomaly in self.anomalies]
        return [*self.doubts, *self.short, *silent, *missed] or ["no reason was recorded"]

    @property
    def replay(self) -> str:
        """The command that runs this cell again with the same seed."""
        return f"python -m proof replay {shlex.quote(self.cell)} {self.seed}"

    @property
    def never_recovered(self) -> bool:
        """Whether a new commit was due within the bound after a fault, and none came."""
        due = self.bound_s is not None and not self.short and self.standing is not Standing.INCONCLUSIVE
        return due and not self.recovery_s


@dataclass(frozen=True, slots=True)
class Provenance:
    """How a campaign was made, as reported by its runner."""

    command: str
    began: str
    seconds: float | None
    machine: str
    commit: str
    kernel: str
    versions: dict[str, str]


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and its location in the file; each getter checks the value's type."""

    values: dict[str, Any]
    location: str

    @classmethod
    def of(cls, value: object, location: str) -> Fields:
        if not isinstance(value, dict):
            raise Refused(f"{location} is not a JSON object; {_REPAIR}")
        return cls(value, location)

    def _wrong(self, name: str, need: str) -> Refused:
        problem = f"is {self.values[name]!r:.80}" if name in self.values else "is missing"
        return Refused(f"{self.location}: {name!r} {problem}, it must be {need}; {_REPAIR}")

    def _get(self, name: str, need: str, kind: type, *, required: bool = False) -> Any:
        """Return a value of type ``kind``, or None if it is missing and not required."""
        value = self.values.get(name)
        missing = required and value in (None, "")
        if missing or (value is not None and (isinstance(value, bool) or not isinstance(value, kind))):
            raise self._wrong(name, need)
        return value

    def text(self, name: str, *, required: bool = False) -> str:
        return self._get(name, "a text", str, required=required) or ""

    def number(self, name: str) -> float | None:
        value = self.values.get(name)
        if value is not None and not _is_number(value):
            raise self._wrong(name, "a number of 0 or more")
        return value

    def integer(self, name: str, *, required: bool = False) -> int | None:
        value: int | None = self._get(name, "an integer", int, required=required)
        return value

    def verdict(self, name: str, default: Verdict | None = None) -> Verdict:
        value = self.values.get(name, default)
        if value not in tuple(Verdict):
            raise self._wrong(name, f"one of {', '.join(Verdict)}")
        return Verdict(value)

    def items(self, name: str) -> list[Any]:
        return self._get(name, "a list", list) or []

    def numbers(self, name: str) -> tuple[float, ...]:
        if not all(map(_is_number, self.items(name))):
            raise self._wrong(name, "a list of numbers of 0 or more")
        return tuple(map(float, self.items(name)))

    def table(self, name: str) -> dict[str, Any]:
        return self._get(name, "an object", dict) or {}

    def tally(self, name: str) -> dict[str, int]:
        counts = {kind: count for kind, count in self.table(name).items() if count is not None}
        if not all(type(count) is int and count >= 0 for count in counts.values()):
            raise self._wrong(name, "an object of counts")
        return counts


def _is_number(value: object) -> bool:
    # Python's JSON accepts NaN and Infinity, which are not durations.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def read(text: str, name: str, kernels: Collection[str] = ("",)) -> tuple[list[Provenance], list[Result]]:
    """
    Parse one file of results: a whole campaign (`results.json`), or one result per line (`results.jsonl`).

    ``kernels`` are today's (`proof.provenance`): only results made with one of them are current.

    Raises:
        Refused: the file is neither; the message names file, line and field.
    """
    try:
        whole = json.loads(text)
    except ValueError:
        return [], _lines(text, name, kernels)
    if isinstance(whole, dict) and "cells" in whole:
        document = Fields(whole, name)
        numbered = enumerate(document.items("cells"), 1)
        results = [_result(Fields.of(value, f"{name} cell {number}"), kernels) for number, value in numbered]
        about = _provenance(Fields(document.table("campaign"), f"{name} campaign"))
        return [about], [result if result.versions else replace(result, versions=about.versions) for result in results]
    return [], [_result(Fields.of(whole, f"{name} line 1"), kernels)]


def _lines(text: str, name: str, kernels: Collection[str]) -> list[Result]:
    results = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        location = f"{name} line {number}"
        try:
            value = json.loads(line)
        except ValueError as error:
            raise Refused(f"{location} is not JSON ({error}); {_REPAIR}") from error
        results.append(_result(Fields.of(value, location), kernels))
    return results


def _provenance(of: Fields) -> Provenance:
    facts = of.text("command"), of.text("began"), of.number("seconds"), of.text("machine")
    return Provenance(*facts, of.text("commit"), of.text("kernel"), _versions(of))


def _versions(of: Fields) -> dict[str, str]:
    return {str(part): str(version) for part, version in of.table("versions").items()}


def _result(of: Fields, kernels: Collection[str]) -> Result:
    texts = ("cell", "row", "fault", "target", "moment", "path", "began", "note", "commit", "kernel")
    known: dict[str, Any] = {name: of.text(name, required=name in {"cell", "row"}) for name in texts}
    known |= {name: of.tally(name) for name in ("fired", "needed", "counts")}
    return Result(
        **known,
        seed=of.integer("seed", required=True) or 0,
        said=of.verdict("verdict"),
        expected=of.verdict("expected", Verdict.PROVEN),
        seconds=of.number("seconds") or 0.0,
        bound_s=of.number("bound_s"),
        recovery_s=of.numbers("recovery_s"),
        stall_s=of.numbers("stall_s"),
        anomalies=tuple(_anomaly(Fields.of(value, f"{of.location} anomaly")) for value in of.items("anomalies")),
        doubts=tuple(str(doubt) for doubt in of.items("doubts")),
        versions=_versions(of),
        current=of.text("kernel") in kernels,
    )


def _anomaly(of: Fields) -> Anomaly:
    evidence = of.values.get("evidence", "")
    numbers: dict[str, Any] = {name: of.integer(name) for name in ("partition", "offset", "producer_id", "epoch")}
    return Anomaly(
        name=of.text("name", required=True),
        topic=of.text("topic"),
        **numbers,
        evidence=evidence if isinstance(evidence, str) else json.dumps(evidence, indent=2, ensure_ascii=False),
    )
