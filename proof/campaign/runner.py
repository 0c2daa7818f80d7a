"""Carry one cell out: a stage, the fault, the healing, the drain, the checker; whatever happens, a result."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from brew.deadline import Deadline
from brew.errors import BrewError
from proof.campaign import judge
from proof.campaign.cell import Cell
from proof.campaign.cells.direct import DIRECT
from proof.campaign.cluster import ExternalCluster, Sandbox, SandboxSettings
from proof.campaign.holders import HOLDERS, observe_leases
from proof.campaign.journals import stalls
from proof.campaign.programs import Programs
from proof.campaign.result import INCONCLUSIVE, PROVEN, Result
from proof.campaign.stage import WRITER, CellEnvironment, StalledError

_WHOLE_S = 90.0
_NOT_APPLICABLE = "not applicable: "


@dataclass(frozen=True, slots=True)
class RunSettings:
    """
    What holds for all cells of a campaign.

    ``kills`` is for loops, ``minutes`` for mixtures, ``program`` the writer under test; ``slack`` multiplies the
    bounds on recoveries, for machines that are slower than the one they were set for.
    """

    folder: Path
    kills: int = 5
    program: tuple[str, ...] = WRITER
    keep: bool = False
    minutes: float | None = None
    slack: float = 1.0


def run(cell: Cell, seed: int, cluster: ExternalCluster, terms: RunSettings) -> Result:
    """Run a cell; artefacts stay in the folder of the cell unless it is proven."""
    began, clock = datetime.now(UTC), Deadline(cell.limit_s * terms.slack)
    if cell.experiment is not None:
        cluster.make_whole(Deadline(_WHOLE_S))
        return Result(**{**cell.experiment(cluster.bootstrap, seed, terms.kills), "cell": cell.name})
    folder = terms.folder / f"{cell.name}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with Programs(folder) as programs:
        stage = CellEnvironment(cell, seed, cluster, folder, programs, clock, kills=terms.kills, program=terms.program)
        stage.minutes, stage.slack = terms.minutes, terms.slack
        judged = judge.Judgement()
        lacking = [need.value for need in sorted(cell.needs) if cluster.lacks(need)]
        if cell.not_applicable:
            stage.notes.append(_NOT_APPLICABLE + cell.not_applicable)
            judged.doubts.append(_NOT_APPLICABLE + cell.not_applicable)
        elif lacking:
            judged.doubts.append(f"not run here: it needs {', '.join(lacking)}")
        else:
            with _Watchdog(cell.limit_s * terms.slack + 2 * _WHOLE_S, programs), _own_cluster(cell, stage):
                _play(stage, judged)
    result = _result(stage, judged, began)
    if result.verdict == PROVEN and not terms.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return result


@contextlib.contextmanager
def _own_cluster(cell: Cell, stage: CellEnvironment) -> Iterator[None]:
    """One broker of its own for a cell that needs other settings than the rest."""
    if cell.properties is None and not cell.secure:
        yield
        return
    home = Path(tempfile.mkdtemp(prefix="brew-cell-"))
    try:
        with Sandbox(home, SandboxSettings(brokers=1, properties=cell.properties, secure=cell.secure)) as own:
            stage.cluster, stage.bootstrap = own, own.bootstrap
            stage.programs.environment |= own.environment
            yield
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _play(stage: CellEnvironment, judged: judge.Judgement) -> None:
    """The acts of a cell; each later one is tried whatever became of the earlier ones."""
    opened = _run_phase(lambda: _open(stage), judged)
    played = opened and _run_phase(lambda: break_it(stage), judged)
    if opened and not played:
        stage.abort_writers()
    whole = _run_phase(lambda: stage.cluster.make_whole(Deadline(_WHOLE_S), stage.names.topics()), judged)
    closed = played and whole and stage.cell.judged and _run_phase(lambda: _close(stage), judged)
    stage.stop_all()
    if opened and whole and stage.cell.judged:
        # The cell's time is for the program under test; the checker has its own.
        stage.deadline = Deadline(_WHOLE_S)
        _run_phase(stage.read_to_the_end, judged)
        _run_phase(lambda: judge.check(stage, judged, settled=closed), judged)
    if opened and whole:
        _run_phase(lambda: judge.count(stage, judged), judged)
        stage.forget()
    judged.doubts += stage.doubts
    judged.anomalies += [*stage.findings, *({"name": "crash", "evidence": crash} for crash in stage.crashes())]
    judged.counts |= stage.counts
    stage.stall_s += stalls(stage.journals, stage.killed)
    judge.guard(stage, judged)
    judge.as_a_control(stage.cell, judged)


def _open(stage: CellEnvironment) -> None:
    stage.cluster.make_whole(Deadline(_WHOLE_S))
    stage.make_topics()
    stage.reader()


def break_it(stage: CellEnvironment) -> None:
    """The cell's play; over the direct reader it counts the writers that were seen with what only that one has."""
    if stage.cell.reader != DIRECT:
        stage.cell.play(stage)
        return

    def tell(seen: int, started: int) -> None:
        stage.fire(HOLDERS, seen)
        stage.notes.append(f"{seen} of {started} writers were seen with a line from holder to driver")

    with observe_leases(lambda: stage.writers, tell):
        stage.cell.play(stage)


def _close(stage: CellEnvironment) -> None:
    """End the writers in good order and let one more drain what is left, while the reader reads along."""
    stage.stop_writers()
    stage.drain()


def _run_phase(call: Callable[[], None], judged: judge.Judgement) -> bool:
    """One act; a stall is the program's fault, anything else foreseen is the campaign's and leaves a doubt."""
    try:
        call()
    except StalledError as error:
        judged.stalled(str(error))
        return False
    except Exception as error:  # noqa: BLE001 - the next cells are to run, whatever is wrong with this one
        judged.doubts.append(f"{type(error).__name__}: {error}")
        if not isinstance(error, (BrewError, OSError)):
            traceback.print_exc()
        return False
    return True


def _result(stage: CellEnvironment, judged: judge.Judgement, began: datetime) -> Result:
    cell = stage.cell
    return Result(
        cell=cell.name,
        row=cell.row,
        fault=cell.fault,
        target=cell.target,
        moment=cell.moment,
        path=cell.path,
        seed=stage.seed,
        verdict=judged.verdict,
        began=began.isoformat(timespec="seconds"),
        seconds=round((datetime.now(UTC) - began).total_seconds(), 2),
        bound_s=stage.bound_s,
        recovery_s=[round(one, 3) for one in stage.recovery_s],
        stall_s=[round(one, 3) for one in stage.stall_s],
        fired={what: number for what, number in sorted(stage.fired.items()) if number},
        needed=judge.needed_of(stage),
        counts=judged.counts,
        anomalies=judged.anomalies,
        doubts=judged.doubts,
        note="; ".join(stage.notes),
        expected=INCONCLUSIVE if cell.not_applicable else cell.expected,
    )


class _Watchdog(threading.Timer):
    """Kills all programs of a cell that is far over its time; what waits for one of them then goes on."""

    def __init__(self, seconds: float, programs: Programs) -> None:
        super().__init__(seconds, programs.kill)
        self.daemon = True

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *_: object) -> None:
        self.cancel()
