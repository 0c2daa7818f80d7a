"""Run one cell: stage, fault, healing, drain and checker; without its faults and recoveries it is inconclusive."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from brew.deadline import Deadline
from brew.errors import BrewError
from brew.journal import Entry, Phase, Step
from proof import log_summary
from proof.campaign.cell import DIRECT, INCONCLUSIVE, PROVEN, VIOLATED, Cell, Result, p95
from proof.campaign.cluster import ExternalCluster, Sandbox
from proof.campaign.effects import HOLDERS, LeaseObserver
from proof.campaign.journals import is_commit, is_fenced, stalls
from proof.campaign.programs import Programs
from proof.campaign.stage import WRITER, CellEnvironment, StalledError

_WHOLE_S = 90.0
_NOT_APPLICABLE = "not applicable: "
_READ_S = 120.0


@dataclass(frozen=True, slots=True)
class RunSettings:
    """Settings of all cells; ``slack`` multiplies the time bounds, ``kills`` is for loops, ``minutes`` for mixtures."""

    folder: Path
    kills: int = 5
    program: tuple[str, ...] = WRITER
    keep: bool = False
    minutes: float | None = None
    slack: float = 1.0


def run(cell: Cell, seed: int, cluster: ExternalCluster, settings: RunSettings) -> Result:
    """Run a cell; unless it is proven, its artefacts stay in its folder."""
    if cell.experiment is not None:
        return _experiment(cell, cell.experiment, seed, cluster, settings.kills)
    began, clock = datetime.now(UTC), Deadline(cell.limit_s * settings.slack)
    folder = settings.folder / f"{cell.name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Programs(folder) as programs:
        given = {name: getattr(settings, name) for name in ("kills", "program", "minutes", "slack")}
        stage = CellEnvironment(cell, seed, cluster, folder, programs, clock, **given)
        judged = Judgement()
        lacking = [need.value for need in sorted(cell.needs) if cluster.lacks(need)]
        if cell.not_applicable:
            stage.notes.append(_NOT_APPLICABLE + cell.not_applicable)
            judged.doubts.append(_NOT_APPLICABLE + cell.not_applicable)
        elif lacking:
            judged.doubts.append(f"not run here: it needs {', '.join(lacking)}")
        else:
            with _killed_after(cell.limit_s * settings.slack + 2 * _WHOLE_S, programs), _own_cluster(cell, stage):
                _run_phases(stage, judged)
    result = _result(stage, judged, began)
    if result.verdict == PROVEN and not settings.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return result


def _experiment(
    cell: Cell,
    experiment: Callable[[str, int, int], Mapping[str, Any]],
    seed: int,
    cluster: ExternalCluster,
    kills: int,
) -> Result:
    judged, found, began = Judgement(), dict[str, Any](), datetime.now(UTC)
    phase = partial(_run_phase, judged=judged, control=cell.expected == VIOLATED)
    if phase(lambda: cluster.restore(Deadline(_WHOLE_S))):
        began = datetime.now(UTC)
        phase(lambda: found.update(experiment(cluster.bootstrap, seed, kills)))
    found = found or {"verdict": judged.verdict, "anomalies": judged.anomalies, "doubts": judged.doubts}
    return Result(**{**_about(cell, seed, began), "bound_s": cell.bound_s, "expected": cell.expected, **found})


@contextlib.contextmanager
def _killed_after(seconds: float, programs: Programs) -> Iterator[None]:
    """Kill all programs of a cell that is far over its time, so that whatever waits for them continues."""
    timer = threading.Timer(seconds, programs.kill)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def _own_cluster(cell: Cell, stage: CellEnvironment) -> Iterator[None]:
    """Start a separate broker for a cell that needs different settings."""
    if cell.properties is None and not cell.secure:
        yield
        return
    home = Path(tempfile.mkdtemp(prefix="brew-cell-"))
    with Sandbox(home, brokers=1, properties=cell.properties, secure=cell.secure) as own:
        stage.cluster, stage.bootstrap = own, own.bootstrap
        stage.programs.environment |= own.environment
        yield


def _run_phases(stage: CellEnvironment, judged: Judgement) -> None:
    """Run the phases of a cell; later ones run even if earlier ones failed."""
    phase = partial(_run_phase, judged=judged, control=stage.cell.expected == VIOLATED)
    opened = phase(lambda: _open(stage))
    played = opened and phase(lambda: break_it(stage))
    if opened and not played:
        stage.abort_writers()
    whole = phase(lambda: stage.cluster.restore(Deadline(_WHOLE_S), stage.names.topics()))
    closed = played and whole and stage.cell.judged and phase(lambda: _close(stage))
    stage.stop_all()
    if opened and whole and stage.cell.judged:
        # The cell's time is for the program under test; the checker has its own.
        stage.deadline = Deadline(_WHOLE_S)
        phase(stage.read_to_the_end)
        phase(lambda: check(stage, judged, settled=closed))
    if opened and whole:
        phase(lambda: count(stage, judged))
        stage.forget()
    judged.doubts += stage.doubts
    judged.anomalies += [*stage.findings, *({"name": "crash", "evidence": crash} for crash in stage.crashes())]
    judged.counts |= stage.counts
    stage.stall_s += stalls(stage.journals, stage.killed)
    guard(stage, judged)
    as_a_control(stage.cell, judged)


def _open(stage: CellEnvironment) -> None:
    stage.cluster.restore(Deadline(_WHOLE_S))
    stage.make_topics()
    stage.reader()


def break_it(stage: CellEnvironment) -> None:
    """Run the cell's play; with the direct reader, count the writers seen with a lease holder."""
    if stage.cell.reader != DIRECT:
        stage.cell.function(stage)
        return
    observer = LeaseObserver(stage.writers)
    try:
        with observer:
            stage.cell.function(stage)
    finally:
        seen, started = len(observer.seen), len(stage.writers)
        stage.fire(HOLDERS, seen)
        stage.notes.append(f"{seen} of {started} writers were seen with a line from holder to driver")


def _close(stage: CellEnvironment) -> None:
    """Shut the writers down cleanly and let another one drain the input, while the reader keeps reading."""
    stage.stop_writers()
    stage.drain()


def _run_phase(call: Callable[[], None], judged: Judgement, *, control: bool) -> bool:
    """Run one phase; a stall is an anomaly of the program under test, any other error a doubt."""
    try:
        call()
    except StalledError as error:
        if control:  # one that stalls has not shown its violation
            judged.doubts.append(f"the control stalled: {error}")
        else:
            judged.stalled(str(error))
        return False
    except Exception as error:  # noqa: BLE001 - the next cells must run, whatever fails here
        judged.doubts.append(f"{type(error).__name__}: {error}")
        if not isinstance(error, (BrewError, OSError)):
            traceback.print_exc()
        return False
    return True


def _about(cell: Cell, seed: int, began: datetime) -> dict[str, Any]:
    """Return the fields of a result that only depend on the cell and on time."""
    same = {name: getattr(cell, name) for name in ("row", "fault", "target", "moment", "path")}
    seconds = round((datetime.now(UTC) - began).total_seconds(), 2)
    return {"cell": cell.name, **same, "seed": seed, "began": began.isoformat(timespec="seconds"), "seconds": seconds}


def _result(stage: CellEnvironment, judged: Judgement, began: datetime) -> Result:
    cell = stage.cell
    return Result(
        **_about(cell, stage.seed, began),
        verdict=judged.verdict,
        bound_s=stage.bound_s,
        recovery_s=[round(seconds, 3) for seconds in stage.recovery_s],
        stall_s=[round(seconds, 3) for seconds in stage.stall_s],
        fired={what: number for what, number in sorted(stage.fired.items()) if number},
        needed=needed_of(stage),
        counts=judged.counts,
        anomalies=judged.anomalies,
        doubts=judged.doubts,
        note="; ".join(stage.notes),
        expected=INCONCLUSIVE if cell.not_applicable else cell.expected,
    )


@dataclass
class Judgement:
    """Anomalies, doubts and counts of a cell; anomalies outweigh doubts."""

    anomalies: list[Mapping[str, Any]] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        return VIOLATED if self.anomalies else INCONCLUSIVE if self.doubts else PROVEN

    def stalled(self, evidence: str) -> None:
        """Add a stall: something did not continue, or continued too late."""
        self.anomalies.append({"name": "stall", "evidence": evidence})


def check(stage: CellEnvironment, judged: Judgement, *, settled: bool) -> None:
    """Let `proof verify` judge the cell's logs and journals; ``settled``: no transaction may be open any more."""
    report = stage.verified("--journals", str(stage.journals.folder), *(["--settled"] if settled else []))
    judged.anomalies += report["findings"]
    judged.doubts += report["doubts"]
    if report["verdict"] == INCONCLUSIVE and not report["doubts"]:
        judged.doubts.append("the checker was inconclusive and gave no reason")
    known = {name: report.get(name) for name in ("inputs", "outputs", "dead_letters")} | report.get("counts", {})
    judged.counts |= {name: value for name, value in known.items() if isinstance(value, int)}


def count(stage: CellEnvironment, judged: Judgement) -> None:
    """Add counts from journals and logs; `fired` gets fences and aborted records."""
    seen = Counter(kind for entry in stage.journals for kind in kinds(entry))
    aborted = 0
    try:
        topics = [stage.names.output, stage.names.dead_letter]
        logged = log_summary.end_offsets(stage.cluster.connection, topics, Deadline(_READ_S))
        aborted = sum(log["aborted"] for log in logged)
    except BrewError as error:
        judged.doubts.append(f"aborted records could not be counted: {error}")
    # Begun and not committed: aborted by their own writer or by a fence.
    ended = max(0, seen["begun"] - seen["committed"])
    judged.counts |= {"committed_transactions": seen["committed"], "aborted_transactions": ended}
    judged.counts["aborted_records"] = aborted
    stage.fired["fences"] += seen["fenced"]
    stage.fired["aborted_records"] += aborted


def guard(stage: CellEnvironment, judged: Judgement) -> None:
    """Mark a cell as inconclusive without its fault or its recovery, and as stalled if it recovered too late."""
    for what, needed in needed_of(stage).items():
        if stage.fired[what] < needed:
            judged.doubts.append(f"silent-fault: {what} {stage.fired[what]} of {needed} needed; the cell shows nothing")
    if (bound := stage.bound_s) is not None and not stage.recovery_s:
        judged.doubts.append(f"no recovery was measured, so nothing is shown of the bound of {bound:g} s")
    elif bound is not None and (took := p95(stage.recovery_s)) > bound:
        judged.stalled(f"95 % of the recoveries took up to {took:.2f} s, the bound is {bound:g} s")


def as_a_control(cell: Cell, judged: Judgement) -> None:
    """Accept a control only if it shows the anomaly that its bug causes."""
    names = {str(anomaly["name"]) for anomaly in judged.anomalies}
    if cell.expected == VIOLATED and cell.breaks not in names:
        shown = ", ".join(sorted(names)) or "nothing"
        judged.doubts.append(f"the control should have shown {cell.breaks}, but showed {shown}")
        judged.anomalies.clear()


def needed_of(stage: CellEnvironment) -> dict[str, int]:
    """Return the cell's requirements; `kills` of 0 stands for the number asked for."""
    return {what: number or stage.kills for what, number in stage.cell.needed.items()}


def kinds(entry: Entry) -> Iterator[str]:
    """Yield the counters that a journal entry adds to."""
    if is_commit(entry):
        yield "committed"
    if entry.step is Step.BEGIN and entry.phase is Phase.DONE:
        yield "begun"
    if is_fenced(entry):
        yield "fenced"
