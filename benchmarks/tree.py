"""A measured process tree seen from outside: start it, sample its memory, kill all of it at once."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
from beside import ScopedThread

from brew.deadline import Deadline
from brew.errors import Refused

_MEASURED = Path(__file__).with_name("measured.py")
_SAMPLE_S = 0.5
_KILL_S = 10.0
_LAST_LINES = 15
_BY_SIGTERM = {128 + signal.SIGTERM, -signal.SIGTERM}


@dataclass(frozen=True, slots=True)
class Usage:
    """What a tree used from its start to the end of its last process."""

    exit_code: int
    wall_s: float
    cpu_s: float
    orphans_adopted: bool
    killed_after_end: int


@dataclass(slots=True)
class Peak:
    """The largest sum of PSS seen, in bytes, and whose it was at that moment (driver, jvm, workers)."""

    total: int = 0
    parts: dict[str, int] = field(default_factory=dict)


class Tree:
    """A command below `measured.py`, output to a file; leaving the context kills what is left of it."""

    def __init__(self, command: Sequence[str], home: Path) -> None:
        self._report, self._log = home / "usage.json", home / "output.log"
        home.mkdir(parents=True, exist_ok=True)
        self._report.unlink(missing_ok=True)
        with self._log.open("wb") as out:
            self._launcher = subprocess.Popen(
                [sys.executable, str(_MEASURED), str(self._report), *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._launcher.stdin is not None:
            self._launcher.stdin.close()  # measured.py kills the tree at the end of its input
        try:
            self._launcher.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def processes(self) -> list[psutil.Process]:
        """All processes of the command, orphans included, without `measured.py` itself."""
        try:
            return psutil.Process(self._launcher.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """SIGKILL to all of it at once, `measured.py` last: it adopts what loses its parent meanwhile."""
        deadline = Deadline(_KILL_S)
        while found := self.processes():
            for process in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(found, timeout=0.05)
            deadline.check("killing the pipeline")
        self._launcher.kill()
        self._launcher.wait(_KILL_S)

    def terminate(self) -> None:
        """SIGTERM to the command alone, as a supervisor sends it; `wait` tells how it ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in sorted(psutil.Process(self._launcher.pid).children(), key=lambda one: one.create_time())[:1]:
                process.terminate()

    def running(self) -> bool:
        return self._launcher.poll() is None

    def wait(self, deadline: Deadline, *, stopped: bool = False) -> Usage:
        """
        Wait for the end of the whole tree; ``stopped``: a SIGTERM was sent, and may be what the exit code tells.

        Raises:
            Refused: it ended with an error, or not in time; the last lines of its output are in the text.
        """
        try:
            self._launcher.wait(max(0.001, deadline.remaining_s()))
        except subprocess.TimeoutExpired as error:
            raise Refused(f"no end within {deadline.budget_s:g} s; its last lines:\n{self.tail()}") from error
        if not self._report.exists():
            raise Refused(f"it was killed from outside; its last lines:\n{self.tail()}")
        usage = Usage(**json.loads(self._report.read_text()))
        if usage.exit_code != 0 and not (stopped and usage.exit_code in _BY_SIGTERM):
            raise Refused(f"it ended with {usage.exit_code}; its last lines:\n{self.tail()}")
        return usage

    def tail(self) -> str:
        lines = self._log.read_text("utf-8", "replace").splitlines()
        return "\n".join(f"  {line[:400]}" for line in lines[-_LAST_LINES:])


class MemoryWatch(ScopedThread):
    """
    Samples a tree's memory and CPU time twice a second.

    PSS counts a page shared by n processes as 1/n for each, so the sum counts forked workers' shared pages once. While
    ``sparing``, memory is left out: to read it takes this process long enough to show in a latency measured in it.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__()
        self._tree = tree
        self.peak = Peak()
        self.sparing = False
        self._cpu: dict[tuple[int, float], float] = {}

    @property
    def cpu_s(self) -> float:
        """CPU seconds of every process seen, as of its last sample: misses the last half second of each."""
        return sum(self._cpu.values())

    def work(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            found = self._tree.processes()
            for process in found:
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
            if not self.sparing:
                self.weigh(found)

    def weigh(self, found: Sequence[psutil.Process] | None = None) -> None:
        """Look at the memory now."""
        parts = memory_parts(self._tree.processes() if found is None else found)
        if (total := sum(parts.values())) > self.peak.total:
            self.peak = Peak(total, parts)


def memory_parts(processes: Sequence[psutil.Process]) -> dict[str, int]:
    """Bytes of PSS by role: the first process is the driver, `java` the JVM, all others are Python workers."""
    parts = {"driver": 0, "jvm": 0, "workers": 0}
    for number, process in enumerate(processes):
        with contextlib.suppress(psutil.Error):
            role = "jvm" if process.name() == "java" else "workers" if number else "driver"
            memory = process.memory_full_info()
            parts[role] += getattr(memory, "pss", memory.uss)
    return parts
