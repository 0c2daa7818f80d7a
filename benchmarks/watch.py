"""A run observed from outside: its process tree, its memory, and when its records become visible."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import psutil
from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from brew.connection import Connection
from brew.deadline import Deadline, retry_until
from brew.errors import BrewError, Refused
from brew.kafka.clients import TopicPartition, admin, mapped
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from proof.campaign.programs import Background

_POLL_S, _ASK_S = 0.02, 5.0


class VisibilitySample(NamedTuple):
    """Number of offsets below the partitions' last stable offsets ``at`` a time (monotonic seconds)."""

    at: float
    visible: int


class EndOffsets:
    """The ends of a topic's partitions, for one kind of reader."""

    def __init__(self, connection: Connection, topic: str, partitions: int) -> None:
        self._client = admin(connection)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._wanted = {TopicPartition(topic, p): latest for p in range(partitions)}

    def ask(self, isolation: str = READ_COMMITTED) -> dict[int, int]:
        """Return the last stable offset (or log end, for `read_uncommitted`) by partition."""
        level = IsolationLevel.READ_COMMITTED if isolation == READ_COMMITTED else IsolationLevel.READ_UNCOMMITTED

        def once() -> dict[int, int]:
            with mapped("look"):
                answers = self._client.list_offsets(self._wanted, isolation_level=level, request_timeout=_ASK_S)
                return {tp.partition: future.result().offset for tp, future in answers.items()}

        # A topic that was just created may have no leader yet.
        return retry_until(once, "look", Deadline(_ASK_S))


class VisibilityWatch(Background):
    """Records every change of what is visible; polling costs this process and the broker, more with more partitions."""

    def __init__(self, ends: EndOffsets) -> None:
        super().__init__("visibility")
        self._ends = ends
        self.sights: list[VisibilitySample] = []

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        self._look()

    def run(self) -> None:
        while not self.over.wait(_POLL_S):
            with contextlib.suppress(BrewError):  # a broker under load may answer late; the next poll catches up
                self._look()

    def _look(self) -> None:
        visible = sum(self._ends.ask().values())
        if visible != (self.sights[-1].visible if self.sights else 0):
            self.sights.append(VisibilitySample(time.monotonic(), visible))


@dataclass(frozen=True, slots=True)
class Throughput:
    """The pace of a run as seen by a `read_committed` reader; seconds from process start."""

    first_visible_s: float
    last_visible_s: float
    records_per_s: float
    overall_records_per_s: float


def throughput(sights: Sequence[VisibilitySample], started: float, records: int) -> Throughput | None:
    """
    Return the pace of a run; None if nothing ever became visible.

    Records visible at the first poll do not count for the rate; if that were all, the overall rate is used instead.
    """
    if not sights:
        return None
    first, last = sights[0], sights[-1]
    overall = records / (last.at - started)
    later = max(0, records - first.visible)
    rate = later / (last.at - first.at) if last.at > first.at and later else overall
    return Throughput(first.at - started, last.at - started, rate, overall)


def open_records(ends: EndOffsets) -> int:
    """Return the number of offsets above the last stable ones: not 0 while a transaction is open."""
    stable = ends.ask()
    return sum(ends.ask(READ_UNCOMMITTED).values()) - sum(stable.values())


_MEASURED = Path(__file__).with_name("measured.py")
_SAMPLE_S, _KILL_S, _LAST_LINES = 0.5, 10.0, 15
_BY_SIGTERM = {128 + signal.SIGTERM, -signal.SIGTERM}


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources used by a tree from its start to the end of its last process."""

    exit_code: int
    wall_s: float
    cpu_s: float
    orphans_adopted: bool
    killed_after_end: int


class Tree:
    """A command below `measured.py`, with its output in a file; leaving the context kills what is left of it."""

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

    def __exit__(self, *_: object) -> None:
        self.kill()

    def processes(self) -> list[psutil.Process]:
        """Return all processes of the command, including orphans, without `measured.py` itself."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return list(psutil.Process(self._launcher.pid).children(recursive=True))
        return []

    def kill(self) -> None:
        """Send SIGKILL to all processes, which `measured.py` does at the end of its input; it ends last."""
        if self._launcher.stdin is not None:
            self._launcher.stdin.close()
        try:
            self._launcher.wait(_KILL_S)
        except subprocess.TimeoutExpired as error:
            self._launcher.kill()
            raise self.refused(f"not all of its processes ended within {_KILL_S:g} s of SIGKILL") from error

    def terminate(self) -> None:
        """Send SIGTERM to the command only, as a supervisor does; `wait` reports how it ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self._launcher.pid).children()
            for process in sorted(children, key=lambda child: child.create_time())[:1]:
                process.terminate()

    def running(self) -> bool:
        return self._launcher.poll() is None

    def wait(self, deadline: Deadline, *, stopped: bool = False) -> Usage:
        """Wait for the end of the whole tree; ``stopped``: a SIGTERM was sent, and may explain the exit code."""
        try:
            self._launcher.wait(max(0.001, deadline.remaining_s()))
        except subprocess.TimeoutExpired as error:
            raise self.refused(f"no end within {deadline.budget_s:g} s") from error
        if not self._report.exists():
            raise self.refused("it was killed from outside")
        usage = Usage(**json.loads(self._report.read_text()))
        if usage.exit_code != 0 and not (stopped and usage.exit_code in _BY_SIGTERM):
            raise self.refused(f"it ended with {usage.exit_code}")
        return usage

    def refused(self, what: str) -> Refused:
        """Return an error with the last lines of the output."""
        return Refused(f"{what}; its last lines:\n{self.tail()}")

    def tail(self) -> str:
        lines = self._log.read_text("utf-8", "replace").splitlines()
        return "\n".join(f"  {line[:400]}" for line in lines[-_LAST_LINES:])


class MemoryWatch(Background):
    """
    Samples a tree's memory and CPU time twice a second.

    PSS counts a page shared by n processes as 1/n for each; resident sizes count it n times, as `ps` does. While
    ``sparing``, memory is not read, because that takes long enough to show in a latency measured by this process.
    """

    def __init__(self, tree: Tree) -> None:
        super().__init__("memory")
        self._tree = tree
        self.peak = Counter[str]()
        """The largest sum of PSS seen, in bytes, by role at that moment (driver, jvm, workers)."""
        self.resident_peak = 0
        """The largest sum of resident sizes seen, in bytes."""
        self.sparing = False
        self._cpu: dict[tuple[int, float], float] = {}

    @property
    def cpu_s(self) -> float:
        """CPU seconds of all processes seen, without up to half a second at the end of each."""
        return sum(self._cpu.values())

    def run(self) -> None:
        while not self.over.wait(_SAMPLE_S):
            processes = self._tree.processes()
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    times = process.cpu_times()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
            if not self.sparing:
                self.weigh(processes)

    def weigh(self, processes: Sequence[psutil.Process] | None = None) -> None:
        found = self._tree.processes() if processes is None else processes
        parts, resident = memory_of(found)
        if parts.total() > self.peak.total():
            self.peak = parts
        self.resident_peak = max(self.resident_peak, resident)


def memory_of(processes: Sequence[psutil.Process]) -> tuple[Counter[str], int]:
    """
    Return the bytes of PSS by role, and the sum of resident sizes.

    The first process is the driver, `java` the JVM, all others are Python workers.
    """
    parts, resident = Counter(driver=0, jvm=0, workers=0), 0
    for number, process in enumerate(processes):
        with contextlib.suppress(psutil.Error):
            role = "jvm" if process.name() == "java" else "workers" if number else "driver"
            memory = process.memory_full_info()
            parts[role] += getattr(memory, "pss", memory.uss)
            resident += memory.rss
    return parts, resident
