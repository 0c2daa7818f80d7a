"""Run many cells, one after another or on several clusters at once; results are kept, and a campaign can be resumed."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from brew.deadline import Deadline
from proof.campaign import result as results
from proof.campaign.cell import Cell
from proof.campaign.cluster import ExternalCluster, Sandbox
from proof.campaign.result import Result
from proof.campaign.runner import RunSettings, run
from proof.campaign.stage import WRITER
from proof.provenance import SINK_ROWS, MadeWith

Round = tuple[Cell, int]


@dataclass(frozen=True, slots=True)
class Plan:
    """
    Which cells with which seeds, where; without ``bootstrap`` on sandboxes of its own.

    ``at_once`` cells run at the same time, each on a cluster that no other cell uses meanwhile: a verdict tells of its
    own faults only. ``begin_within_s``: no cell begins later than that.
    """

    cells: Sequence[Cell]
    seeds: Sequence[int]
    settings: RunSettings
    command: str
    bootstrap: str | None = None
    resume: bool = False
    at_once: int = 1
    begin_within_s: float | None = None

    def rounds(self) -> list[Round]:
        """Every cell with the first seed, then with the next: an interrupted campaign has seen most of the matrix."""
        return [(cell, seed) for seed in self.seeds for cell in self.cells]

    def missing_in(self, done: Sequence[Result]) -> list[str]:
        """Cells and seeds without a result, as `NAME with seed N`."""
        known = {(result.cell, result.seed) for result in done}
        return [f"{cell.name} with seed {seed}" for cell, seed in self.rounds() if (cell.name, seed) not in known]


def run_campaign(plan: Plan, starts: Callable[[Cell, int], None], ends: Callable[[Result], None]) -> list[Result]:
    """Run the cells that are not finished yet; write the results file at the end, also when the campaign is stopped."""
    folder = plan.settings.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not plan.resume:
        (folder / results.LINES).unlink(missing_ok=True)
    # What was made with another kernel shows nothing of this one: it is run again.
    done = results.finished(folder, {_made_with(plan, sink=sink).kernel for sink in (False, True)})
    known = {(result.cell, result.seed) for result in done}
    began, clock = datetime.now(UTC), time.monotonic()
    left = [(cell, seed) for cell, seed in plan.rounds() if (cell.name, seed) not in known]
    todo = _CellQueue(plan, left, done, starts, ends)
    lanes = [_Lane(todo, number) for number in range(plan.at_once)]
    try:
        if len(lanes) == 1:
            lanes[0].run()  # in this thread, so that a cell that is told to end cleans up behind itself
        else:
            for lane in lanes:
                lane.start()
            for lane in lanes:
                lane.join()
    finally:
        todo.left.clear()
        for lane in lanes:
            lane.clusters.close()
        results.write_whole(folder, _campaign_metadata(plan, began, time.monotonic() - clock), done)
    for lane in lanes:
        if lane.error is not None:
            raise lane.error
    return done


class _CellQueue:
    """The cells left to run, taken from both ends, and the results; thread-safe."""

    def __init__(
        self,
        plan: Plan,
        left: Sequence[Round],
        done: list[Result],
        starts: Callable[[Cell, int], None],
        ends: Callable[[Result], None],
    ) -> None:
        self.plan, self.left, self.done = plan, deque(left), done
        self._starts, self._ends = starts, ends
        self._lock = threading.Lock()
        self._time = None if plan.begin_within_s is None else Deadline(plan.begin_within_s)

    def take(self, *, last: bool) -> Round | None:
        with self._lock:
            if not self.left or (self._time is not None and self._time.expired()):
                return None
            cell, seed = self.left.pop() if last else self.left.popleft()
            self._starts(cell, seed)
            return cell, seed

    def finish(self, result: Result) -> None:
        with self._lock:
            results.append(self.plan.settings.folder, result)
            self.done.append(result)
            self._ends(result)


class _Lane(threading.Thread):
    """
    Cells one after another on the lane's own cluster.

    Every other lane begins at the end of the list, where the long cells are. A daemon, so that a campaign that is told
    to end does not wait for its cells; their programs end with it, and each cluster's guard sees to the brokers.
    """

    def __init__(self, todo: _CellQueue, number: int) -> None:
        super().__init__(name=f"lane {number}", daemon=True)
        self.clusters = _LaneCluster(todo.plan.bootstrap)
        self.error: BaseException | None = None
        self._todo, self._from_the_end = todo, number % 2 == 1

    def run(self) -> None:
        try:
            while (taken := self._todo.take(last=self._from_the_end)) is not None:
                cell, seed = taken
                cluster = ExternalCluster("") if cell.not_applicable else self.clusters.cluster()
                plan = self._todo.plan
                made_with = _made_with(plan, sink=cell.row in SINK_ROWS)
                result = replace(run(cell, seed, cluster, plan.settings), **asdict(made_with))
                self.clusters.after(result)
                self._todo.finish(result)
        except BaseException as error:  # noqa: BLE001 - raised again where the campaign is waited for
            self.error = error
            self._todo.left.clear()
        finally:
            self.clusters.close()


class _LaneCluster:
    """The cluster that a lane's cells share; a new one after a cell that did not end as expected."""

    def __init__(self, bootstrap: str | None) -> None:
        self._foreign = None if bootstrap is None else ExternalCluster(bootstrap)
        self._own: Sandbox | None = None
        self._home: Path | None = None

    def cluster(self) -> ExternalCluster:
        if self._foreign is not None:
            return self._foreign
        if self._own is None:
            self._home = Path(tempfile.mkdtemp(prefix="brew-campaign-"))
            self._own = Sandbox(self._home)
        return self._own

    def after(self, result: Result) -> None:
        """Drop the cluster after a cell that did not end as expected: its brokers may be in any state."""
        if not result.as_expected:
            self.close()

    def close(self) -> None:
        """End the cluster; may be called from another thread while a cell uses it."""
        own, self._own = self._own, None
        home, self._home = self._home, None
        if own is not None:
            own.close()
        if home is not None:
            shutil.rmtree(home, ignore_errors=True)


def _campaign_metadata(plan: Plan, began: datetime, seconds: float) -> dict[str, object]:
    return campaign_metadata(plan.command, began, seconds, plan.seeds, _made_with(plan))


def campaign_metadata(
    command: str, began: datetime, seconds: float, seeds: Sequence[int], made_with: MadeWith
) -> dict[str, object]:
    """Metadata of a results file: command, time, machine, versions."""
    return {
        "command": command,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": f"{os.cpu_count()} cores, {_memory_gib()} GiB, {platform.system()} {platform.machine()}",
        **asdict(made_with),
        "seeds": list(seeds),
    }


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _made_with(plan: Plan, *, sink: bool = False) -> MadeWith:
    return MadeWith.now(our_program=plan.settings.program == WRITER, our_brokers=plan.bootstrap is None, sink=sink)
