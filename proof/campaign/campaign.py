"""
All cells for each applicable reader, and campaigns that run many of them, in turn or in parallel.

Each cell that starts the pipeline runs with `--reader connector` and with `direct`. Its name ends in the reader, then
`-spark` if it runs on Spark; the others run in one process (`--master none`).
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path

from brew.deadline import Deadline
from brew.errors import UsageError
from proof.campaign.cell import (
    DIRECT,
    LINES,
    WHOLE,
    Cell,
    Result,
    append_result,
    campaign_metadata,
    finished_results,
    write_file,
)
from proof.campaign.cluster import ExternalCluster, Sandbox
from proof.campaign.effects import HOLDERS
from proof.campaign.runner import RunSettings, run
from proof.campaign.stage import WRITER
from proof.provenance import Kernel, MadeWith

THEMES = (
    *("writer", "wire", "broker", "kafka", "payload", "spark", "ledger", "downstream", "claims"),
    *("access", "sink", "mixture"),
)
SPARK = "-spark"
_SHORT_ROUND = {"F01-mid-produce-writer", "F08-two-writers-short", "F35-poison-short"}
Round = tuple[Cell, int]


def cells() -> list[Cell]:
    """Return all cells in the order of the themes, for each applicable reader."""
    themes = (import_module(f"proof.campaign.cells.{theme}") for theme in THEMES)
    table = [cell for theme in themes for cell in theme.CELLS]
    return [variant for cell in table for variant in [over(reader, cell) for reader in cell.readers] or [cell]]


def chosen(patterns: Iterable[str]) -> list[Cell]:
    """
    Return all cells, or those that match a pattern (a name with wildcards, a row, or a mark), in the patterns' order.

    Raises:
        UsageError: a pattern matches no cell.
    """
    everything, found = cells(), dict[str, Cell]()
    for pattern in patterns:
        if not (matching := {cell.name: cell for cell in everything if _fits(cell, pattern)}):
            raise UsageError(f"--cells {pattern!r} matches no cell; `python -m proof campaign --list` lists all")
        found |= matching  # a cell stays at its first place
    return list(found.values()) or everything


def named(name: str) -> Cell:
    """Return the cell with this name; raise `UsageError` if there is none."""
    if cell := next((cell for cell in cells() if cell.name == name), None):
        return cell
    raise UsageError(f"there is no cell {name!r}; `python -m proof campaign --list` lists all")


def _fits(cell: Cell, pattern: str) -> bool:
    return fnmatch(cell.name, pattern) or cell.row == pattern or pattern in cell.marks


def over(reader: str, cell: Cell) -> Cell:
    """Return the cell for one reader; with the direct reader it is inconclusive unless a lease holder was seen."""
    marks = cell.marks
    if reader == DIRECT:
        marks = frozenset({"prove"} if cell.name in _SHORT_ROUND else ())
    return replace(
        cell,
        name=f"{cell.name.removesuffix(SPARK)}-{reader}{SPARK if cell.path == SPARK[1:] else ''}",
        path=f"{reader} {cell.path}",
        reader=reader,
        needed={**cell.needed, **({HOLDERS: 1} if reader == DIRECT else {})},
        marks=marks | {reader},
    )


@dataclass(frozen=True, slots=True)
class Plan:
    """The cells and seeds to run, and where; without ``bootstrap``, ``at_once`` of them in a sandbox each."""

    cells: Sequence[Cell]
    seeds: Sequence[int]
    settings: RunSettings
    command: str
    bootstrap: str | None = None
    resume: bool = False
    again: bool = False
    at_once: int = 1
    begin_within_s: float | None = None

    def left(self, done: Sequence[Result]) -> list[Round]:
        """Return what has no result: all cells of a seed, then the next one, so that most of the matrix is covered."""
        known = {(result.cell, result.seed) for result in done}
        return [(cell, seed) for seed in self.seeds for cell in self.cells if (cell.name, seed) not in known]

    def missing_in(self, done: Sequence[Result]) -> list[str]:
        """Return the cells and seeds without a result, each as the text `NAME with seed N`."""
        return [f"{cell.name} with seed {seed}" for cell, seed in self.left(done)]


def run_campaign(plan: Plan, starts: Callable[[Cell, int], None], ends: Callable[[Result], None]) -> list[Result]:
    """
    Run the cells that have no result yet; ``ends`` also gets each known result that is not as expected.

    The results file is written at the end, even if the campaign is interrupted.
    """
    folder = plan.settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not plan.resume:
        (folder / LINES).unlink(missing_ok=True)
    # Results from another kernel prove nothing about this one, so those cells run again.
    known = finished_results(folder, {_made_with(plan, kind).kernel for kind in Kernel})
    began, clock = datetime.now(UTC), time.monotonic()
    campaign, numbers = _Campaign(plan, known, starts, ends), range(plan.at_once)
    repeated = {(cell.name, seed) for cell, seed in campaign.left}
    for result in campaign.done:
        if not result.as_expected and (result.cell, result.seed) not in repeated:  # it decides the exit code, too
            ends(result)
    # Daemons, so that a campaign that is told to end does not wait for its cells; their programs end with it, and each
    # cluster's guard stops the brokers.
    lanes = [threading.Thread(target=campaign.lane, args=[n], name=f"lane {n}", daemon=True) for n in numbers]
    try:
        if len(lanes) == 1:
            campaign.lane(0)  # in this thread, so that a cell cleans up when it is told to end
        else:
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()
    finally:
        campaign.over = True
        campaign.left.clear()
        for number in numbers:
            campaign.close(number)
        seconds, made_with = time.monotonic() - clock, _made_with(plan, Kernel.RANGES)
        about = campaign_metadata(plan.command, began, seconds, plan.seeds, made_with)
        write_file(folder / WHOLE, about, campaign.done)
    for error in campaign.errors:
        raise error
    return campaign.done


class _Campaign:
    """The cells left to run, the lanes that take them from either end, and the results; thread-safe."""

    def __init__(
        self, plan: Plan, known: Sequence[Result], starts: Callable[[Cell, int], None], ends: Callable[[Result], None]
    ) -> None:
        self._late = {(one.cell, one.seed): one for one in known if plan.again and one.only_late}
        self.left = deque(plan.left([one for one in known if (one.cell, one.seed) not in self._late]))
        self.done = [*known]
        self.errors: list[BaseException] = []
        self.over = False
        self._plan, self._starts, self._ends = plan, starts, ends
        self._clusters: dict[int, Sandbox] = {}
        self._lock = threading.Lock()
        self._time = None if plan.begin_within_s is None else Deadline(plan.begin_within_s)

    def lane(self, number: int) -> None:
        """Run cells sequentially on a cluster of its own; odd lanes start at the list's end, with the long cells."""
        plan = self._plan
        try:
            while (taken := self._take(last=number % 2 == 1)) is not None:
                cell, seed = taken
                cluster = ExternalCluster("") if cell.not_applicable else self._cluster(number)
                made_with = _made_with(plan, Kernel.of(cell.row, cell.name))
                result = replace(run(cell, seed, cluster, plan.settings), **asdict(made_with))
                if before := self._late.pop((cell.name, seed), None):
                    result = replace(result, note=f"repeated after {'; '.join(before.evidence)}. {result.note}".strip())
                if not result.as_expected:
                    self.close(number)  # its brokers may be in any state
                with self._lock:
                    if self.over:
                        return  # the end of the campaign stopped its brokers, so it says nothing
                    append_result(plan.settings.folder, result)
                    if before:
                        self.done.remove(before)  # not earlier: without a new result, it still counts
                    self.done.append(result)
                    self._ends(result)
        except BaseException as error:  # noqa: BLE001 - raised again after the lanes are joined
            self.errors.append(error)
            self.left.clear()
        finally:
            self.close(number)

    def _take(self, *, last: bool) -> Round | None:
        with self._lock:
            if not self.left or (self._time is not None and self._time.expired()):
                return None
            cell, seed = self.left.pop() if last else self.left.popleft()
            self._starts(cell, seed)
            return cell, seed

    def _cluster(self, number: int) -> ExternalCluster:
        if self._plan.bootstrap is not None:
            return ExternalCluster(self._plan.bootstrap)
        if number not in self._clusters:
            self._clusters[number] = Sandbox(Path(tempfile.mkdtemp(prefix="brew-campaign-")))
        return self._clusters[number]

    def close(self, number: int) -> None:
        """Stop the lane's own cluster; may be called from another thread while a cell uses it."""
        if (cluster := self._clusters.pop(number, None)) is not None:
            cluster.close()


def _made_with(plan: Plan, kind: Kernel) -> MadeWith:
    return MadeWith.now(our_program=plan.settings.program == WRITER, our_brokers=plan.bootstrap is None, kind=kind)
