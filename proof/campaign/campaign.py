"""Many cells, one after another, on one cluster: results as they come, taken up again after an interruption."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from proof.campaign import result as results
from proof.campaign.cell import Cell
from proof.campaign.cluster import Foreign, Sandbox
from proof.campaign.result import Result
from proof.campaign.runner import Terms, run

_PACKAGES = ("confluent-kafka", "kafka-python", "pyspark")


@dataclass(frozen=True, slots=True)
class Plan:
    """Which cells with which seeds, where; without ``bootstrap`` on a sandbox of its own."""

    cells: Sequence[Cell]
    seeds: Sequence[int]
    terms: Terms
    command: str
    bootstrap: str | None = None
    resume: bool = False

    def rounds(self) -> list[tuple[Cell, int]]:
        """Every cell with the first seed, then with the next: an interrupted campaign has seen most of the matrix."""
        return [(cell, seed) for seed in self.seeds for cell in self.cells]


def carry_out(plan: Plan, starts: Callable[[Cell, int], None], ends: Callable[[Result], None]) -> list[Result]:
    """Run what is not finished yet; the whole is written at the end, also at an early one."""
    folder = plan.terms.folder
    folder.mkdir(parents=True, exist_ok=True)
    if not plan.resume:
        (folder / results.LINES).unlink(missing_ok=True)
    done = results.finished(folder)
    known = {(one.cell, one.seed) for one in done}
    began, clock = datetime.now(UTC), time.monotonic()
    stand = _Stand(plan.bootstrap)
    try:
        for cell, seed in plan.rounds():
            if (cell.name, seed) in known:
                continue
            starts(cell, seed)
            ground = Foreign("") if cell.not_applicable else stand.cluster()
            found = run(cell, seed, ground, plan.terms)
            stand.after(found)
            results.append(folder, found)
            done.append(found)
            ends(found)
    finally:
        stand.close()
        results.write_whole(folder, _about(plan, began, time.monotonic() - clock), done)
    return done


class _Stand:
    """The cluster that cells share; a new one when the last cell left doubts about it."""

    def __init__(self, bootstrap: str | None) -> None:
        self._foreign = None if bootstrap is None else Foreign(bootstrap)
        self._own: Sandbox | None = None
        self._home: Path | None = None

    def cluster(self) -> Foreign:
        if self._foreign is not None:
            return self._foreign
        if self._own is None:
            self._home = Path(tempfile.mkdtemp(prefix="brew-campaign-"))
            self._own = Sandbox(self._home)
        return self._own

    def after(self, result: Result) -> None:
        """Cells that ended otherwise than they should may have left the brokers in any state."""
        if not result.as_expected:
            self.close()

    def close(self) -> None:
        if self._own is not None:
            self._own.close()
            self._own = None
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)
            self._home = None


def _about(plan: Plan, began: datetime, seconds: float) -> dict[str, object]:
    return {
        "command": plan.command,
        "began": began.isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "machine": f"{os.cpu_count()} cores, {_memory_gib()} GiB, {platform.system()} {platform.machine()}",
        "versions": {name: importlib.metadata.version(name) for name in _PACKAGES}
        | {"python": platform.python_version(), "kafka": _kafka_version()},
        "seeds": list(plan.seeds),
    }


def _memory_gib() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30)


def _kafka_version() -> str:
    jars = sorted((Path(__file__).resolve().parents[2] / ".jvm" / "kafka").glob("kafka_*.jar"))
    return jars[0].stem.rpartition("-")[2] if jars else "unknown"
