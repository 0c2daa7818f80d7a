"""The verdict of a cell: the checker's, unless the demanded faults did not happen or commits took too long."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from brew.deadline import Deadline
from brew.errors import BrewError
from brew.journal import Entry, Phase, Step
from brew.names import ExitCode
from proof import log_summary
from proof.campaign.cell import Cell
from proof.campaign.journals import is_commit
from proof.campaign.programs import ProgramFailedError
from proof.campaign.result import INCONCLUSIVE, PROVEN, VIOLATED, p95
from proof.campaign.stage import CellEnvironment

_READ_S = 120.0
_TOLD = (ExitCode.DONE, ExitCode.VIOLATION, ExitCode.REFUSED)


@dataclass
class Judgement:
    """What is known of a cell so far; anomalies outweigh doubts."""

    anomalies: list[Mapping[str, Any]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return VIOLATED if self.anomalies else INCONCLUSIVE if self.doubts else PROVEN

    def stalled(self, evidence: str) -> None:
        """Something that had to go on did not, or too late."""
        self.anomalies.append({"name": "stall", "evidence": evidence})


def check(stage: CellEnvironment, judged: Judgement, *, settled: bool) -> None:
    """
    Let `proof verify` compare the cell's logs and journals, and add what it says.

    ``settled``: all writers ended in good order, so that a transaction that is still open is a violation.
    """
    stage.journals.look()
    words = ["verify", "--bootstrap", stage.cluster.bootstrap, *stage.names.options(), "--json"]
    words += ["--journals", str(stage.journals.folder), *(["--settled"] if settled else [])]
    program = stage.programs.python("verify", "proof", *words)
    code = program.wait(Deadline(_READ_S))
    if code not in _TOLD:
        raise ProgramFailedError(f"the checker ended with {code}: {program.last_words()}")
    try:
        told = json.loads(program.printed())
    except ValueError as error:
        raise ProgramFailedError(f"the checker said nothing: {program.last_words()}") from error
    judged.anomalies += told["findings"]
    judged.doubts += told["doubts"]
    if told["verdict"] == INCONCLUSIVE and not told["doubts"]:
        judged.doubts.append("the checker could not tell, and not why")
    numbers = {name: value for name, value in told.items() if isinstance(value, int)}
    judged.counts |= {name: numbers[name] for name in ("inputs", "outputs", "dead_letters") if name in numbers}
    judged.counts |= {name: value for name, value in told.get("counts", {}).items() if isinstance(value, int)}


def count(stage: CellEnvironment, judged: Judgement) -> None:
    """What the journals and the logs' markers tell; `fired` gets what happened without anybody's hand."""
    seen = Counter(kind for entry in stage.journals for kind in kinds(entry))
    aborted = 0
    try:
        topics = [stage.names.output, stage.names.dead_letter]
        logged = log_summary.end_offsets(stage.cluster.connection, topics, Deadline(_READ_S))
        aborted = sum(one.counts.aborted for one in logged)
    except BrewError as error:
        judged.doubts.append(f"aborted records could not be counted: {error}")
    # Begun and neither committed nor known: their own writer aborted them, or a fence did.
    ended = max(0, seen["begun"] - seen["committed"])
    done = {"committed_transactions": seen["committed"], "aborted_transactions": ended, "aborted_records": aborted}
    judged.counts |= done
    stage.fired["fences"] += seen["fenced"]
    stage.fired["aborted_records"] += aborted


def guard(stage: CellEnvironment, judged: Judgement) -> None:
    """A cell whose fault did not happen shows nothing; one that recovered too late shows a stall."""
    for what, needed in needed_of(stage).items():
        if stage.fired[what] < needed:
            judged.doubts.append(f"silent-fault: {what} {stage.fired[what]} of {needed} needed; the cell shows nothing")
    bound = stage.bound_s
    if bound is not None and stage.recovery_s and (took := p95(stage.recovery_s)) > bound:
        judged.stalled(f"95 % of the recoveries took up to {took:.2f} s, the bound is {bound:g} s")


def as_a_control(cell: Cell, judged: Judgement) -> None:
    """A control shows something only by the anomaly that its bug stands for."""
    if cell.breaks and cell.breaks not in {one["name"] for one in judged.anomalies}:
        told = ", ".join(sorted({str(one["name"]) for one in judged.anomalies})) or "nothing"
        judged.doubts.append(f"the control had to show {cell.breaks}, and showed {told}")
        judged.anomalies.clear()


def needed_of(stage: CellEnvironment) -> dict[str, int]:
    """The cell's demands; `kills` of 0 stands for as many as were asked for."""
    return {what: number or stage.kills for what, number in stage.cell.needed.items()}


def kinds(entry: Entry) -> Iterator[str]:
    """What a journal's line counts as."""
    if is_commit(entry):
        yield "committed"
    if entry.step is Step.BEGIN and entry.phase is Phase.DONE:
        yield "begun"
    if entry.phase is Phase.FAILED and str(entry.fields.get("detail", "")).startswith("Fenced"):
        yield "fenced"
