"""The campaign's results as values, parsed with type checks, and the rows of the fault matrix; pure."""

from __future__ import annotations

import enum
import json
import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
        "F27": "Transactional id or group used by another program",
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
CLAIMS_RACES, STORE_KILLS = "claims races", "store kills"
"""Paths of results written by commands other than the campaign."""
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
    """One finding of the checker; outside of logs, ``topic`` is a file's name. None or -1: unknown."""

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
    The result of one cell with one seed; ``said``: the runner's verdict; ``current``: made with the report's kernel.

    ``recovery_s``: from each heal to the first new commit. ``stall_s``: for which readers were held back. ``bound_s``:
    limit of a recovery, None without one. ``commit`` and ``kernel`` are empty if unknown.
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
        """The command that runs this cell again, with the same seed if it has one."""
        if self.path == STORE_KILLS:
            return f"make kills STORES={shlex.quote(self.target)}"
        if self.path == CLAIMS_RACES:
            return f"python -m proof claims-races --seed {self.seed}"
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


def _is_number(value: object) -> bool:
    # Python's JSON accepts NaN and Infinity, which are not durations.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf")


def _is_tally(value: object) -> bool:
    return isinstance(value, dict) and all(n is None or (type(n) is int and n >= 0) for n in value.values())


class Kind(NamedTuple):
    """What a field must be: in words, as a test, and the value if it is missing."""

    need: str
    fits: Callable[[Any], bool]
    default: Any = None


_TEXT = Kind("a text", lambda value: isinstance(value, str), "")
_INTEGER = Kind("an integer", lambda value: type(value) is int)
_NUMBER = Kind("a number of 0 or more", _is_number)
_LIST = Kind("a list", lambda value: isinstance(value, list), ())
_NUMBERS = Kind("a list of numbers of 0 or more", lambda value: _LIST.fits(value) and all(map(_is_number, value)), ())
_OBJECT = Kind("an object", lambda value: isinstance(value, dict), {})
_COUNTS = Kind("an object of counts", _is_tally, {})
_VERDICT = Kind(f"one of {', '.join(Verdict)}", lambda value: value in tuple(Verdict), Verdict.PROVEN)


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object and its location in the file."""

    values: dict[str, Any]
    location: str

    @classmethod
    def of(cls, value: object, location: str) -> Fields:
        if not isinstance(value, dict):
            raise Refused(f"{location} is not a JSON object; {_REPAIR}")
        return cls(value, location)

    def get(self, name: str, kind: Kind, *, required: bool = False) -> Any:
        """Return a value of this kind, or the kind's default if it is missing and not required."""
        if (value := self.values.get(name)) is None and not required:
            return kind.default
        if not kind.fits(value) or (required and value == ""):
            problem = f"is {value!r:.80}" if name in self.values else "is missing"
            raise Refused(f"{self.location}: {name!r} {problem}, it must be {kind.need}; {_REPAIR}")
        return value


def read(text: str, name: str, kernels: Collection[str] = ("",)) -> tuple[list[Provenance], list[Result]]:
    """Parse a campaign, or a result per line; those of ``kernels`` are current. `Refused` names file, line, field."""
    try:
        whole = json.loads(text)
    except ValueError:
        return [], _lines(text, name, kernels)
    if isinstance(whole, dict) and "cells" in whole:
        document = Fields(whole, name)
        numbered = enumerate(document.get("cells", _LIST), 1)
        results = [_result(Fields.of(value, f"{name} cell {number}"), kernels) for number, value in numbered]
        of = Fields(document.get("campaign", _OBJECT), f"{name} campaign")
        texts = {field: of.get(field, _TEXT) for field in ("command", "began", "machine", "commit", "kernel")}
        about = Provenance(**texts, seconds=of.get("seconds", _NUMBER), versions=_versions(of))
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


def _versions(of: Fields) -> dict[str, str]:
    return {str(part): str(version) for part, version in of.get("versions", _OBJECT).items()}


def _result(of: Fields, kernels: Collection[str]) -> Result:
    texts = ("fault", "target", "moment", "path", "began", "note", "commit", "kernel")
    known: dict[str, Any] = {name: of.get(name, _TEXT) for name in texts}
    known |= {name: of.get(name, _TEXT, required=True) for name in ("cell", "row")}
    known |= {name: tuple(map(float, of.get(name, _NUMBERS))) for name in ("recovery_s", "stall_s")}
    for name in ("fired", "needed", "counts"):
        known[name] = {kind: count for kind, count in of.get(name, _COUNTS).items() if count is not None}
    return Result(
        **known,
        seed=of.get("seed", _INTEGER, required=True),
        said=Verdict(of.get("verdict", _VERDICT, required=True)),
        expected=Verdict(of.get("expected", _VERDICT)),
        seconds=of.get("seconds", _NUMBER) or 0.0,
        bound_s=of.get("bound_s", _NUMBER),
        anomalies=tuple(_anomaly(Fields.of(value, f"{of.location} anomaly")) for value in of.get("anomalies", _LIST)),
        doubts=tuple(map(str, of.get("doubts", _LIST))),
        versions=_versions(of),
        current=known["kernel"] in kernels,
    )


def _anomaly(of: Fields) -> Anomaly:
    evidence = of.values.get("evidence", "")
    return Anomaly(
        name=of.get("name", _TEXT, required=True),
        topic=of.get("topic", _TEXT),
        **{name: of.get(name, _INTEGER) for name in ("partition", "offset", "producer_id", "epoch")},
        evidence=evidence if isinstance(evidence, str) else json.dumps(evidence, indent=2, ensure_ascii=False),
    )
