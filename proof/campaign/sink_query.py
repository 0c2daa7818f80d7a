"""A query through the sink (`scripts/sink_query.py`) that cells break, and the fault's effects in logs of all sides."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from brew.deadline import Deadline
from brew.errors import BrewError, Refused
from brew.kafka import cluster_admin, offsets
from brew.kafka.log_reader import LogRecord, Row, scan
from brew.names import READ_COMMITTED, SINK_BATCH, CrashPoint, SinkTransactionalId
from proof.campaign.effects import OPEN
from proof.campaign.programs import ROOT, Background, Program, repeated
from proof.campaign.stage import CellEnvironment, FaultMissedError, StalledError
from proof.checking.sink_batches import NO_BATCH, BatchHistory, SeenRow

COUNT, COPY, KEYED, RAND, JOIN = "count", "copy", "keyed", "rand", "join"
MOST = 100
"""The most offsets in a batch."""
START_S, END_S, ASK_S, BATCHES = 120.0, 180.0, 20.0, 3
_ALL = "1000000"
"""The same for the last run: a backlog of feeding is one batch, however slow the machine is."""
_LOOK_S = 0.05
_PROGRAM = str(ROOT / "scripts/sink_query.py")
_ATTEMPT = re.compile(
    r"^([\d.]+) sink \S+: batch (\d+) (\S+), \d+ rows in \S+ s \(attempt \d+\)(?:: (.*))?$", re.MULTILINE
)


class Watcher(Background):
    """Polls the output, and adds what becomes visible to a `BatchHistory`."""

    def __init__(self, stage: CellEnvironment) -> None:
        super().__init__("watcher", ASK_S)
        self._stage, self._history, self._read = stage, BatchHistory(), dict[int, int]()
        self._lock = threading.Lock()

    def run(self) -> None:
        while not self.over.wait(_LOOK_S):
            with contextlib.suppress(BrewError):  # a broker is down: the next poll reads everything
                self.look()

    def look(self) -> BatchHistory:
        """Read what has become visible since the last call."""
        stage, topic = self._stage, self._stage.names.output
        with self._lock:
            client, partitions, deadline = stage.cluster.admin, range(stage.cell.partitions), Deadline(ASK_S)
            if not self._read:
                logs = offsets.log_offsets(client, topic, partitions, deadline)
                self._read = {p: log.first for p, log in logs.items()}
            ends = cluster_admin.last_stable(client, topic, partitions, deadline)
            ranges = {p: (self._read[p], until) for p, until in ends.items() if self._read[p] < until}
            chunks: dict[int, list[SeenRow]] = {p: [] for p in ranges}
            for batch in scan(stage.cluster.connection, topic, ranges, READ_COMMITTED) if ranges else ():
                for record in batch:
                    chunks[record.partition() or 0].append(_row(record))
            for partition, rows in chunks.items():
                self._history.observe(partition, rows)
                self._read[partition] = ranges[partition][1]
            return self._history

    def batches(self) -> int:
        with self._lock:
            return len({row.batch for row in self._history.rows} - {NO_BATCH})


def _row(record: LogRecord) -> SeenRow:
    batch = dict(record.headers() or ()).get(SINK_BATCH)
    return SeenRow(NO_BATCH if batch is None else int(batch), record.key() or b"", int(record.value() or b"0"))


class Attempt(NamedTuple):
    """One attempt at a batch from the query's log; ``at``: the time it ended, in seconds since the epoch."""

    at: float
    batch: int
    status: str
    detail: str


def attempts(said: str) -> list[Attempt]:
    found = _ATTEMPT.findall(said)
    return [Attempt(float(at), int(batch), status, detail or "") for at, batch, status, detail in found]


class SparkEvents:
    """Spark's event log of a run: the tasks and stages run again, and the speculative copies started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def options(self) -> tuple[str, ...]:
        """The query's options that enable the event log."""
        self.folder.mkdir(exist_ok=True)
        known = {"enabled": "true", "dir": self.folder.as_uri(), "rolling.enabled": "false", "compress": "false"}
        return tuple(repeated("--conf", {f"spark.eventLog.{name}": value for name, value in known.items()}))

    def count(self, stage: int | None = None) -> Counter[str]:
        """Count `copies`, `tasks_repeated`, `stages_repeated` after lost shuffle files, and `executors_lost`."""
        found, lost = Counter[str](), set[int]()
        for event in self._events():
            kind, task, of = event["Event"], event.get("Task Info", {}), event.get("Stage Info", {})
            if stage is not None and event.get("Stage ID", of.get("Stage ID", stage)) != stage:
                continue
            if kind == "SparkListenerTaskStart":
                found["copies"] += task["Speculative"]
                found["tasks_repeated"] += task["Attempt"] > 0 and not task["Speculative"]
            elif kind == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "FetchFailed":
                lost.add(event["Stage ID"])
            elif kind == "SparkListenerStageSubmitted":
                found["stages_repeated"] += of["Stage Attempt ID"] > 0 and of["Stage ID"] in lost
            found["executors_lost"] += kind == "SparkListenerExecutorRemoved"
        return +found

    def _events(self) -> Iterator[dict[str, Any]]:
        for file in self.folder.iterdir():
            for line in file.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):  # a line that is still being written
                    yield json.loads(line)


@dataclass(frozen=True, slots=True)
class HeldBatch:
    """A batch that is held at a crash point until it is released."""

    file: Path

    @property
    def process(self) -> int:
        return int(self.file.read_text().split()[0])

    @property
    def stage(self) -> int:
        """The id of the Spark stage whose task is held; -1 for the driver."""
        return int(self.file.read_text().split()[1])

    def release(self) -> None:
        self.file.with_name(f"{self.file.name}.go").touch()


@dataclass
class SinkExperiment:
    """The query of one cell: its runs share a checkpoint, and a reader polls the output."""

    stage: CellEnvironment
    watcher: Watcher
    writers: str
    query: str = COUNT
    started: list[Program] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stage.transactional_id = str(SinkTransactionalId(self.stage.names.group, self.stage.names.output))

    @property
    def checkpoint(self) -> Path:
        return self.stage.folder / "checkpoint"

    @cached_property
    def events(self) -> SparkEvents:
        return SparkEvents(self.stage.folder / "events")

    def start(self, *options: str, checkpoint: Path | None = None) -> Program:
        """Start the query; it runs until the input is drained or, with `--follow`, until SIGTERM."""
        stage = self.stage
        words = ["--bootstrap", stage.bootstrap, "--input", stage.names.input, "--output", stage.names.output]
        words += ["--name", stage.names.group, "--checkpoint", str(checkpoint or self.checkpoint)]
        words += ["--query", self.query, "--writers", self.writers, "--most", str(MOST), *options]
        stage.programs.environment.setdefault("PYTHONPATH", str(ROOT))
        program = stage.programs.start(f"query-{len(self.started)}", sys.executable, _PROGRAM, *words)
        self.started.append(program)
        return program

    def ended(self, program: Program, code: int = 0) -> None:
        """Wait for the query's end; raise `StalledError` if it ended with another exit code."""
        self.stage.ended(program, code, Deadline(END_S * self.stage.slack))

    def crashed(self, program: Program) -> None:
        """Wait for the query's death at its crash point; raise `FaultMissedError` if it ended without reaching it."""
        if program.wait(Deadline(END_S * self.stage.slack)) == 0:
            raise FaultMissedError(f"{program.name} ended without reaching its crash point: {program.last_output()}")
        self.ended(program, -signal.SIGKILL)

    def finish(self, program: Program) -> None:
        """Wait for some more batches, and stop the query; raise `StalledError` if it does not end cleanly."""
        self.visible(self.watcher.batches() + BATCHES)
        self.stage.stop(program, END_S)
        self.stage.ended(program)

    def refused(self, program: Program, reason: str) -> None:
        """Wait for a query to end because the sink refuses; raise `StalledError` if not for that reason."""
        code = program.wait(Deadline(END_S * self.stage.slack))
        if code == 0 or reason not in program.said():
            raise StalledError(f"{program.name} should have been refused ({reason}), but ended with {code}")
        self.stage.fire("refusals")

    def follow(self, *options: str) -> Program:
        """Start a query that follows, and wait until it has written some batches."""
        goal = self.watcher.batches() + BATCHES
        program = self.start("--follow", *options)
        self.visible(goal)
        return program

    def held(self, point: CrashPoint, *options: str, follow: bool = True) -> tuple[Program, HeldBatch]:
        """Start a query and hold a batch at a point of its transaction, which the brokers hold open."""
        hold = HeldBatch(self.stage.folder / f"held-{len(self.started)}")
        at = self.watcher.batches() + (BATCHES if follow else 0)
        place = ("--crash-point", point, "--crash-batch", str(at), "--hold-file", str(hold.file))
        program = self.start(*place, *(["--follow"] if follow else []), *options)

        def waits() -> bool:
            if program.code() is not None:
                raise StalledError(program.ending)
            return hold.file.exists()

        self.stage.until(waits, f"batch {at} at {point}", START_S * self.stage.slack)
        self.stage.fire(OPEN, int(self.is_open()))
        return program, hold

    def recovered(self, since: float) -> None:
        """Wait for one more batch, and record the seconds it took."""
        self.visible(self.watcher.batches() + 1)
        self.stage.recovery_s.append(time.time() - since)

    def visible(self, goal: int) -> None:
        """Wait until ``goal`` batches are visible."""

        def there() -> bool:
            if all(program.code() is not None for program in self.started):
                self.watcher.look()
                if self.watcher.batches() < goal:
                    raise StalledError(self.started[-1].ending)
            return self.watcher.batches() >= goal

        self.stage.until(there, f"batch {goal - 1}", START_S * self.stage.slack)

    def is_open(self) -> bool:
        """Return whether the brokers hold a transaction of the sink open."""
        known = self.stage.open_transactions()
        return any(transaction.transactional_id == self.stage.transactional_id for transaction in known)

    def fire_attempts(self, program: Program, name: str, word: str = "") -> None:
        """Count the failed attempts of a run whose detail contains ``word``."""
        failed = [attempt for attempt in attempts(program.said()) if attempt.status == "failed"]
        self.stage.fire(name, sum(word in attempt.detail for attempt in failed))

    def check(self) -> None:
        """Drain the input, and compare what was seen with it."""
        stage = self.stage
        self.ended(self.start("--most", _ALL))
        counts = self._counts(stage.records(stage.names.input))
        history = self.watcher.look()
        stage.findings += history.findings(counts, no_batch_empty=self.query != JOIN)
        stage.counts |= {"batches": self.watcher.batches(), "rows": history.rows.total(), "inputs": counts.total()}
        if self.is_open():
            stage.find("hanging-transaction", stage.transactional_id)

    def _counts(self, rows: Iterable[Row]) -> Counter[bytes]:
        if self.query == COUNT:
            return Counter((row[2] or b"").partition(b"-")[0] for row in rows)
        return Counter(b"%d-%d" % row[:2] for row in rows)


@contextlib.contextmanager
def sink_on(
    stage: CellEnvironment, writers: str, query: str = COUNT, *, orders: int = 4 * MOST, feed: int = 0
) -> Iterator[SinkExperiment]:
    """Yield a query with some input, and feed ``feed`` orders per second; on exit, check all of it."""
    if not Path(_PROGRAM).exists():
        raise Refused(f"the query's program {_PROGRAM} is not in an installed package; run this cell in a checkout")
    stage.orders(orders)
    with Watcher(stage) as watcher:
        experiment = SinkExperiment(stage, watcher, writers, query)
        with stage.feeding(feed) if feed else contextlib.nullcontext():
            yield experiment
        experiment.check()


def ancestor(pid: int, word: str) -> psutil.Process | None:
    """Return this process's nearest ancestor whose command line contains ``word``."""
    with contextlib.suppress(psutil.Error):
        for process in psutil.Process(pid).parents():
            if word in " ".join(process.cmdline()):
                return process
    return None
