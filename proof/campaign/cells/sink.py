"""
The exactly-once sink under a stateful query: drivers, tasks, executors and brokers die, hang, and come twice.

A reader looks at the output while all of that happens and sees each batch whole or absent in each partition; in the end
every row is there once, and the totals of the last ones are the input's counts.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import psutil

from brew.deadline import Deadline
from brew.errors import BrewError
from brew.kafka import cluster_admin, offsets
from brew.kafka.kafka_python import open_transactions
from brew.kafka.log_reader import LogRecord, scan
from brew.names import READ_COMMITTED, SINK_BATCH, CrashMode, CrashPoint, SinkTransactionalId
from proof.campaign.cell import CellTable, Need
from proof.campaign.cells.spark import SPECULATION, executor_workers, standalone
from proof.campaign.effects import OPEN, signal_all, tree
from proof.campaign.programs import ROOT, Program
from proof.campaign.stage import CellEnvironment, StalledError
from proof.checking.sink_batches import NO_BATCH, BatchHistory, SeenRow

DURING = "batches_during_the_pause"
CELLS = CellTable(path="sink", needs={Need.SPARK}, judged=False, limit_s=1500.0)

ONE, TASKS, SPARKS = "1", "tasks", "spark"
_NAMES = {ONE: "one", TASKS: "tasks"}
_ORDERS, _MOST, _FEED = 400, 100, 100
_ALL = "1000000"
"""Offsets in a batch of the last run: a backlog of feeding is one batch, however slow the machine is."""
_START_S, _END_S, _ASK_S = 120.0, 180.0, 20.0
_LOOK_S = 0.01
_TRIES = 400
_BATCHES = 3
_SHORT_S = 3.0
_PROGRAM = str(ROOT / "scripts/sink_query.py")
_CLUSTER = ("--master", "local-cluster[2,1,1024]")
_EXECUTOR = "CoarseGrainedExecutorBackend"
THREE: dict[str, Any] = {"needs": {Need.SPARK, Need.SANDBOX, Need.THREE}, "moment": "under load"}


class Watcher(threading.Thread):
    """Reads what becomes visible in the output, look by look, into a `BatchHistory`."""

    def __init__(self, stage: CellEnvironment) -> None:
        super().__init__(name="watcher", daemon=True)
        self._stage, self._history, self._read = stage, BatchHistory(), dict[int, int]()
        self._stop_now, self._lock = threading.Event(), threading.Lock()

    def run(self) -> None:
        while not self._stop_now.wait(_LOOK_S):
            with contextlib.suppress(BrewError):  # a broker is away: nothing was taken, the next look takes it all
                self.look()

    def look(self) -> BatchHistory:
        """Take what has become visible since the last look."""
        stage, topic = self._stage, self._stage.names.output
        with self._lock:
            logs = offsets.log_offsets(stage.cluster.admin, topic, range(stage.cell.partitions), Deadline(_ASK_S))
            ranges = {p: (self._read.get(p, log.first), log.last_stable) for p, log in logs.items()}
            ranges = {p: (start, until) for p, (start, until) in ranges.items() if start < until}
            chunks: dict[int, list[SeenRow]] = {p: [] for p in ranges}
            for batch in scan(stage.cluster.connection, topic, ranges, READ_COMMITTED) if ranges else ():
                for record in batch:
                    chunks[record.partition() or 0].append(_row(record))
            for partition, rows in chunks.items():
                self._history.observe(partition, rows)
                self._read[partition] = ranges[partition][1]
            return self._history

    def batches(self) -> int:
        """How many batches are visible."""
        with self._lock:
            return len({row.batch for row in self._history.rows} - {NO_BATCH})

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_now.set()
        self.join(_ASK_S)


def _row(record: LogRecord) -> SeenRow:
    batch = dict(record.headers() or ()).get(SINK_BATCH)
    return SeenRow(NO_BATCH if batch is None else int(batch), record.key() or b"", int(record.value() or b"0"))


@dataclass
class SinkPlay:
    """One cell's query: its runs share a checkpoint; a reader watches."""

    stage: CellEnvironment
    watcher: Watcher
    writers: str
    started: list[Program] = field(default_factory=list)

    @property
    def checkpoint(self) -> Path:
        return self.stage.folder / "checkpoint"

    def start(self, *options: str, checkpoint: Path | None = None, writers: str | None = None) -> Program:
        """The query, until the input is drained, or until SIGTERM with `--follow`."""
        stage = self.stage
        words = ["--bootstrap", stage.bootstrap, "--input", stage.names.input, "--output", stage.names.output]
        words += ["--name", stage.names.group, "--checkpoint", str(checkpoint or self.checkpoint)]
        words += ["--writers", writers or self.writers, "--most", str(_MOST), *options]
        stage.programs.environment.setdefault("PYTHONPATH", str(ROOT))
        program = stage.programs.start(f"query-{len(self.started)}", sys.executable, _PROGRAM, *words)
        self.started.append(program)
        return program

    def ended(self, program: Program, code: int = 0) -> None:
        """
        Wait for a query's end.

        Raises:
            StalledError: it ended otherwise.
        """
        if (found := program.wait(Deadline(_END_S * self.stage.slack))) != code:
            raise StalledError(f"{program.name} ended with {found} instead of {code}: {program.last_words()}")

    def follow(self, *options: str) -> Program:
        """A query that goes on, and has written some batches."""
        program, goal = self.start("--follow", *options), self.watcher.batches() + _BATCHES
        self.stage.until(lambda: self.watcher.batches() >= goal, "the first batches", _START_S * self.stage.slack)
        return program

    def more(self, count: int = _BATCHES) -> None:
        """Wait for so many more batches."""
        goal = self.watcher.batches() + count
        self.stage.until(lambda: self.watcher.batches() >= goal, f"{count} more batches", _START_S * self.stage.slack)

    def is_open(self) -> bool:
        """Whether brokers hold a transaction of the sink open."""
        stage, topic = self.stage, self.stage.names.output
        found = open_transactions(stage.cluster.connection, topic, range(stage.cell.partitions), Deadline(_ASK_S))
        return any(one.transactional_id == self.transactional_id for one in found)

    @property
    def transactional_id(self) -> str:
        return str(SinkTransactionalId(self.stage.names.group, self.stage.names.output))

    def stopped_in_transaction(self, program: Program) -> list[psutil.Process]:
        """The query with its JVM and workers, stopped with a transaction open; empty if it did not come to that."""
        for _ in range(_TRIES):
            self.stage.deadline.check("a transaction that is open")
            victims = tree(psutil.Process(program.pid))
            signal_all(victims, stop=True)
            if self.is_open():
                self.stage.fire(OPEN)
                return victims
            signal_all(victims, stop=False)
            time.sleep(self.stage.random.uniform(0.005, 0.1))
        self.stage.doubts.append("nothing was caught with a transaction that the brokers know as open")
        return []

    def check(self) -> None:
        """Drain what is left, and compare what was seen with the input."""
        stage = self.stage
        self.ended(self.start("--most", _ALL))
        counts = Counter((row[2] or b"").partition(b"-")[0] for row in stage.records(stage.names.input))
        history = self.watcher.look()
        stage.findings += history.findings(counts)
        stage.counts |= {"batches": self.watcher.batches(), "rows": history.rows.total(), "inputs": counts.total()}
        if self.is_open():
            stage.findings.append({"name": "hanging-transaction", "evidence": self.transactional_id})


@contextlib.contextmanager
def sink_on(stage: CellEnvironment, writers: str) -> Iterator[SinkPlay]:
    """A query's play, with some input and a reader that looks on."""
    stage.orders(_ORDERS)
    with Watcher(stage) as watcher:
        yield SinkPlay(stage, watcher, writers)


def driver_crash(point: CrashPoint, writers: str, stage: CellEnvironment) -> None:
    """The driver and its JVM die by SIGKILL at a point of a batch; each next run finds out whether it was written."""
    with sink_on(stage, writers) as play:
        for number in range(stage.kills):
            if number:
                stage.orders(_ORDERS)
            play.watcher.look()
            at = play.watcher.batches() + 1
            since = time.time()
            play.ended(play.start("--crash-point", point, "--crash-batch", str(at)), -signal.SIGKILL)
            stage.fire("kills")
            play.ended(play.start())
            stage.recovery_s.append(time.time() - since)
        play.check()


for _point in CrashPoint:
    for _writers, _word in _NAMES.items():
        CELLS(
            *(f"F39-{_point}-{_word}", "SIGKILL", "sink's driver and its JVM", _point, _writers),
            moment=_point,
            needed={"kills": 0},
            limit_s=6000.0,
        )(driver_crash)


@CELLS("F39-kill-control", "SIGKILL, commit-log entry missing", "Spark's own sink", needed={"kills": 1})
def sparks_own(stage: CellEnvironment) -> None:
    """The control: Spark's own sink, killed behind its write, with its commit log as such a kill leaves it."""
    with sink_on(stage, SPARKS) as play:
        program = play.start("--follow")
        commits = play.checkpoint / "commits"
        last = _ORDERS // _MOST - 1
        stage.until((commits / str(last)).exists, "the last batch", _START_S * stage.slack)
        program.kill()
        stage.fire("kills")
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)
        play.check()


@CELLS(*("F40-task-one", "SIGKILL, the task is repeated", "one writer", ONE), moment=CrashPoint.MID_PRODUCE)
@CELLS(*("F40-task-tasks", "SIGKILL, the task is repeated", "tasks", TASKS), moment=CrashPoint.MID_PRODUCE)
def task_killed(writers: str, stage: CellEnvironment) -> None:
    """A task's Python worker dies half way through its rows, and Spark runs the task again."""
    with sink_on(stage, writers) as play:
        crash = ("--crash-point", CrashPoint.MID_PRODUCE, "--crash-batch", "1", "--crash-mode", CrashMode.WORKER)
        play.ended(play.start(*crash))
        play.check()


@CELLS(*("F40-executor-one", "SIGKILL", "executor JVM", ONE), needed={"kills": 1})
@CELLS(*("F40-executor-tasks", "SIGKILL", "executor JVM", TASKS), needed={"kills": 1})
def executor_killed(writers: str, stage: CellEnvironment) -> None:
    """One of two executors dies while batches are written; with tasks the batch begins again in a new epoch."""
    with sink_on(stage, writers) as play:
        with stage.feeding(_FEED):
            program = play.follow(*_CLUSTER)
            for _ in range(stage.times):
                victims = [one for one in tree(psutil.Process(program.pid)) if _EXECUTOR in " ".join(one.cmdline())]
                if not victims:
                    stage.doubts.append("no executor was found to kill")
                    return
                since = time.time()
                stage.random.choice(victims).kill()
                stage.fire("kills")
                play.more()
                stage.recovery_s.append(time.time() - since)
            stage.stop(program)
        play.check()


@CELLS(*("F41-frozen-one", "SIGSTOP past the time-out", "driver", ONE), needed={"pauses": 1, OPEN: 1})
@CELLS(*("F41-frozen-tasks", "SIGSTOP past the time-out", "driver", TASKS), needed={"pauses": 1, OPEN: 1})
def frozen_driver(writers: str, stage: CellEnvironment) -> None:
    """The whole query stands still until brokers have aborted its transaction; then it goes on and writes it again."""
    with sink_on(stage, writers) as play:
        with stage.feeding(_FEED):
            program = play.follow("--transaction-timeout", str(_SHORT_S))
            if not (victims := play.stopped_in_transaction(program)):
                return
            try:
                stage.until(lambda: not play.is_open(), "brokers aborting the transaction", _START_S * stage.slack)
                stage.fire("pauses")
            finally:
                signal_all(victims, stop=False)
            since = time.time()
            play.more()
            stage.recovery_s.append(time.time() - since)
            stage.stop(program)
        play.check()


@CELLS(
    *("F41-zombie-one", "SIGSTOP, a new run goes on, SIGCONT", "driver", ONE), needed={"pauses": 1, "woken": 1, OPEN: 1}
)
@CELLS(
    *("F41-zombie-tasks", "SIGSTOP, a new run goes on, SIGCONT", "driver", TASKS),
    needed={"pauses": 1, "woken": 1, OPEN: 1},
)
def zombie(writers: str, stage: CellEnvironment) -> None:
    """The query stands still in a transaction, another run on its checkpoint goes on; then the first one wakes."""
    with sink_on(stage, writers) as play:
        with stage.feeding(_FEED):
            sleeper = play.follow()
            if not (victims := play.stopped_in_transaction(sleeper)):
                return
            stage.fire("pauses")
            try:
                play.follow()
            finally:
                signal_all(victims, stop=False)
            stage.fire("woken")
            sleeper.wait(Deadline(_END_S * stage.slack))  # Spark or brokers tell it that another run is there
            for program in play.started:
                if program.code() is None:
                    stage.stop(program)
        play.check()


@CELLS(*("F42-coordinator-one", "SIGKILL", "transaction coordinator", ONE), needed={"broker_kills": 1}, **THREE)
@CELLS(*("F42-coordinator-tasks", "SIGKILL", "transaction coordinator", TASKS), needed={"broker_kills": 1}, **THREE)
def coordinator_killed(writers: str, stage: CellEnvironment) -> None:
    """The coordinator of the sink's transactions dies while one is open, and another broker takes over."""
    with sink_on(stage, writers) as play:
        with stage.feeding(_FEED):
            program = play.follow()
            client, name = stage.cluster.admin, play.transactional_id
            victim = cluster_admin.coordinator(client, cluster_admin.TRANSACTIONS, name, Deadline(_ASK_S))
            since = stage.sandbox.kill(victim)
            stage.fire("broker_kills")
            play.more()
            stage.recovery_s.append(time.time() - since)
            stage.sandbox.restart(victim)
            stage.stop(program)
        play.check()


@CELLS("F43-checkpoint-deleted", "checkpoint deleted", "sink", moment="between runs", needed={"refusals": 1})
def checkpoint_deleted(stage: CellEnvironment) -> None:
    """A query whose checkpoint is gone would write all of its input again: it is refused."""
    with sink_on(stage, ONE) as play:
        play.ended(play.start())
        copy = shutil.copytree(play.checkpoint, stage.folder / "copy")
        shutil.rmtree(play.checkpoint)
        _refused(play, play.start(), "the checkpoint was deleted")
        shutil.rmtree(play.checkpoint)
        shutil.copytree(copy, play.checkpoint)
        play.check()


@CELLS("F43-checkpoint-control", "checkpoint deleted", "Spark's own sink", moment="between runs", needed={"wipes": 1})
def checkpoint_deleted_under_sparks(stage: CellEnvironment) -> None:
    """The control: Spark's own sink writes all of its input again."""
    with sink_on(stage, SPARKS) as play:
        play.ended(play.start())
        shutil.rmtree(play.checkpoint)
        stage.fire("wipes")
        play.check()


@CELLS("F43-one-name", "a second query with the name", "sink", moment="between batches", needed={"refusals": 1})
def one_name(stage: CellEnvironment) -> None:
    """A second query takes the name of one that is at work: it is refused, and the first one goes on."""
    with sink_on(stage, TASKS) as play:
        with stage.feeding(_FEED):
            program = play.follow()
            _refused(play, play.start(checkpoint=stage.folder / "other"), "two queries have one name")
            play.more()
            stage.stop(program)
        play.check()


def _refused(play: SinkPlay, program: Program, reason: str) -> None:
    """
    Raises:
        StalledError: it was not refused for that reason.
    """
    code = program.wait(Deadline(_END_S * play.stage.slack))
    if code == 0 or reason not in program.said():
        raise StalledError(f"{program.name} was to be refused ({reason}) and ended with {code}")
    play.stage.fire("refusals")


@CELLS(*("F40-speculation-one", "a task stands still, a copy runs", "Spark", ONE), needed={"pauses": 1, DURING: 1})
@CELLS(*("F40-speculation-tasks", "a task stands still, a copy runs", "Spark", TASKS), needed={"pauses": 1, DURING: 1})
def speculation(writers: str, stage: CellEnvironment) -> None:
    """With speculation on, an executor's Python workers stand still, and Spark runs copies of their tasks elsewhere."""
    master = standalone(stage)
    conf = [word for name, value in SPECULATION.items() for word in ("--conf", f"{name}={value}")]
    with sink_on(stage, writers) as play:
        with stage.feeding(_FEED):
            program = play.follow("--master", master, *conf)
            victims = [stage.random.choice(executor_workers(stage))]
            signal_all(victims, stop=True)
            stage.fire("pauses")
            try:
                play.more(1)
                stage.fire(DURING)
            finally:
                signal_all(victims, stop=False)
            play.more()
            stage.stop(program)
        play.check()
