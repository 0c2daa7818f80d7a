"""The exactly-once sink: all parts fail, readers see each batch whole or absent in a partition, and each row once."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from brew.names import CrashMode, CrashPoint
from proof.campaign import sink_query
from proof.campaign.cell import CellFunction, CellTable, Need
from proof.campaign.cells.broker import HELD_UP, moved
from proof.campaign.cells.spark import SPECULATION, standalone
from proof.campaign.cluster import CLIENTS
from proof.campaign.effects import COPIES, LEADERS_MOVED, OPEN, stopped, tree
from proof.campaign.programs import repeated
from proof.campaign.sink_query import COPY, MOST, START_S, SinkExperiment, ancestor, attempts, sink_on
from proof.campaign.stage import CellEnvironment, StalledError

CELLS = CellTable(path="sink", readers=(), needs={Need.SPARK}, judged=False, limit_s=1500.0)
ONE, TASKS, SPARKS, SPARKS_IN_BATCHES = "1", "tasks", "spark", "spark-in-batches"
_NAMES = {ONE: "one", TASKS: "tasks"}
_FEED, _CUT_S, _LATE_S = 100, 15.0, 3.0
_EXECUTOR = "CoarseGrainedExecutorBackend"
_FAILED, _FENCED = "attempts_failed", "attempts_fenced"
_THREE = {Need.SPARK, Need.SANDBOX, Need.THREE}
_ROW_BY_ROW = ("--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=1")
"""Row by row, so that a writer in the middle of its rows has rows left to write."""
_KILLED = ("SIGKILL", "sink's driver and its JVM")


def both(name: str, fault: str, target: str, *args: object, **fields: Any) -> Callable[[CellFunction], CellFunction]:
    """Return a decorator for two cells, `NAME-one` and `NAME-tasks`; the function gets ``writers`` before the stage."""

    def add(function: CellFunction) -> CellFunction:
        for writers, word in _NAMES.items():
            CELLS(f"{name}-{word}", fault, target, *args, writers, **fields)(function)
        return function

    return add


amid, flushed = (partial(both, moment=point) for point in (CrashPoint.MID_PRODUCE, CrashPoint.AFTER_FLUSH))
between, between_for_both = partial(CELLS, moment="between runs"), partial(both, moment="between runs")

# F39: the driver dies.


def driver_crash(query: str, point: CrashPoint | None, writers: str, stage: CellEnvironment) -> None:
    """Driver and JVM die at a point of each batch (None: any); each run finds out if the last batch is committed."""
    with sink_on(stage, writers, query, orders=MOST * (stage.kills + 1)) as experiment:
        killed = time.time()
        for batch in range(stage.kills):
            at_point = point or stage.random.choice(list(CrashPoint))
            program = experiment.start("--crash-point", at_point, "--crash-batch", str(batch))
            if experiment.watcher.batches() < batch:
                experiment.visible(batch)
                stage.recovery_s.append(time.time() - killed)
            experiment.crashed(program)
            killed = time.time()
            stage.fire("kills")


for _point in CrashPoint:
    both(f"F39-{_point}", *_KILLED, sink_query.COUNT, _point, moment=_point, needed={"kills": 0}, limit_s=6000.0)(
        driver_crash
    )
for _query in (COPY, sink_query.JOIN, sink_query.RAND):
    both(f"F39-{_query}", *_KILLED, _query, None, moment="any point", needed={"kills": 0}, limit_s=6000.0)(driver_crash)


@CELLS(
    *("F39-kill-control", "SIGKILL, commit-log entry missing", "Spark's own sink"),
    needed=("kills",),
    breaks="duplicate-output",
)
def sparks_own(stage: CellEnvironment) -> None:
    """The control: Spark's own sink, killed after its write, with its commit log as such a kill leaves it."""
    with sink_on(stage, SPARKS, orders=2 * MOST) as experiment:
        program = experiment.start("--follow")
        commits = experiment.checkpoint / "commits"
        # Spark moves this one there last.
        stage.until((commits / ".1.crc").exists, "the last batch", START_S * stage.slack)
        program.kill()
        stage.fire("kills")
        for name in ("1", ".1.crc"):
            (commits / name).unlink(missing_ok=True)


@CELLS(*("F39-torn-control", "a batch without a transaction", "Spark's own sink"), moment="always", breaks="torn-batch")
def torn(stage: CellEnvironment) -> None:
    """The reader's control: Spark's own sink writes slow rows, and readers see each batch grow."""
    with sink_on(stage, SPARKS_IN_BATCHES, COPY, orders=MOST) as experiment:
        experiment.ended(experiment.start("--slow-ms", "50"))


# F40: tasks die, exist twice, or run again.


@amid("F40-task", "SIGKILL, the task is repeated", "task", needed=("tasks_repeated",))
def task_killed(writers: str, stage: CellEnvironment) -> None:
    """A task's Python worker dies half-way through its rows, and Spark runs the task again."""
    with sink_on(stage, writers) as experiment:
        crash = ("--crash-point", CrashPoint.MID_PRODUCE, "--crash-batch", "1", "--crash-mode", CrashMode.WORKER)
        experiment.ended(experiment.start(*crash, *experiment.events.options))
        stage.fired |= experiment.events.count()


@amid("F40-executor", "SIGKILL", "executor JVM of a task in a transaction", needed=("kills", OPEN, "executors_lost"))
def executor_killed(writers: str, stage: CellEnvironment) -> None:
    """One of two executors dies with one of its tasks in a transaction; the other runs the task again."""
    with sink_on(stage, writers, feed=_FEED) as experiment:
        cluster = ("--master", "local-cluster[2,1,1024]", *experiment.events.options)
        program, hold = experiment.held(CrashPoint.MID_PRODUCE, *cluster)
        if (victim := ancestor(hold.process, _EXECUTOR)) is None:
            stage.doubts.append("the executor of the task was not found")
            return
        since = time.time()
        victim.kill()
        stage.fire("kills")
        experiment.recovered(since)
        hold.release()
        experiment.finish(program)
        stage.fired |= experiment.events.count()


@amid("F40-stage", "shuffle files lost, the stage is repeated", "Spark's local disk", needed=(OPEN, "stages_repeated"))
def stage_repeated(writers: str, stage: CellEnvironment) -> None:
    """The shuffle files vanish while a writer is at its first rows: it can't fetch others, and the stage runs again."""
    disk = stage.folder / "local"
    conf = {"spark.default.parallelism": 2, "spark.sql.execution.arrow.maxRecordsPerBatch": 10, "spark.local.dir": disk}
    with sink_on(stage, writers, sink_query.KEYED, orders=2 * MOST) as experiment:
        wide = ("--master", "local[1]", "--width", "300000", *repeated("--conf", conf), *experiment.events.options)
        program, hold = experiment.held(CrashPoint.MID_PRODUCE, *wide, follow=False)
        for file in disk.rglob("shuffle_*"):
            file.unlink()
        hold.release()
        experiment.ended(program)
        stage.fired |= experiment.events.count(hold.stage)
        experiment.fire_attempts(program, _FAILED)


@amid("F40-speculation", "a task stands still, a copy runs", "Spark", needed=(OPEN, COPIES))
def speculation(writers: str, stage: CellEnvironment) -> None:
    """A writer hangs in its transaction, and Spark runs a copy of its task on another host; then it continues."""
    conf = repeated("--conf", {**SPECULATION, "spark.speculation.task.duration.threshold": "1s"})
    with standalone(stage) as cluster, sink_on(stage, writers, feed=_FEED) as experiment:
        # A copy with tasks waits for half of the time-out before it ends the batch.
        options = ("--master", cluster.url, *conf, *_ROW_BY_ROW, "--transaction-timeout", "20")
        program, hold = experiment.held(CrashPoint.MID_PRODUCE, *options, *experiment.events.options)
        experiment.recovered(time.time())
        hold.release()
        experiment.finish(program)
        stage.fired |= experiment.events.count(hold.stage)


# F41: the driver is stopped.


@flushed(
    *("F41-frozen", "SIGSTOP past the time-out, then SIGCONT", "driver"),
    needed=("pauses", OPEN, "aborted_by_brokers", _FAILED),
)
def frozen_driver(writers: str, stage: CellEnvironment) -> None:
    """The whole query is stopped until brokers have aborted its transaction; then it continues and writes it again."""
    with sink_on(stage, writers, feed=_FEED) as experiment:
        program, hold = experiment.held(CrashPoint.AFTER_FLUSH, "--transaction-timeout", "10")
        with stopped(tree(psutil.Process(program.pid))):
            stage.fire("pauses")
            hold.release()
            stage.until(lambda: not experiment.is_open(), "brokers aborting the transaction", START_S * stage.slack)
            stage.fire("aborted_by_brokers")
        experiment.recovered(time.time())
        experiment.finish(program)
        experiment.fire_attempts(program, _FAILED)


@amid("F41-zombie", "SIGSTOP, a new run goes on, SIGCONT", "driver and its tasks", needed=("pauses", OPEN, _FENCED))
def zombie(writers: str, stage: CellEnvironment) -> None:
    """The query is stopped amid its rows, and another run on its checkpoint continues; its other rows come too late."""
    with sink_on(stage, writers, feed=_FEED) as experiment:
        sleeper, hold = experiment.held(CrashPoint.MID_PRODUCE, *_ROW_BY_ROW)
        with stopped(tree(psutil.Process(sleeper.pid))):
            stage.fire("pauses")
            hold.release()
            program = experiment.follow()
        stage.until(lambda: sleeper.code() is not None, "the end of the first query", START_S * stage.slack)
        experiment.fire_attempts(sleeper, _FENCED, "Fenced")
        if program.code() is None:
            experiment.finish(program)
        else:  # Spark may notice first that two runs share a checkpoint
            stage.notes.append(program.ending)


# F42: brokers die, or are isolated.


def broker_killed(role: str, writers: str, stage: CellEnvironment) -> None:
    """The broker with this role dies while the transaction is open; another takes over, and the batch continues."""
    with sink_on(stage, writers, COPY, feed=_FEED) as experiment:
        program, hold = experiment.held(CrashPoint.AFTER_FLUSH)
        victim = stage.leader(role)
        since = stage.sandbox.kill(victim)
        stage.fire("broker_kills")
        hold.release()
        experiment.recovered(since)
        moved(stage, role, victim, START_S)
        stage.sandbox.restart(victim)
        experiment.finish(program)


def cut_off(role: str, writers: str, stage: CellEnvironment) -> None:
    """The network is cut in an open transaction: no client reaches a broker, or the group's coordinator no broker."""
    with sink_on(stage, writers, COPY, feed=_FEED) as experiment:
        program, hold = experiment.held(CrashPoint.AFTER_FLUSH)
        brokers = stage.sandbox.brokers
        if role:
            victim = stage.leader(role)
            since = stage.sandbox.cut(victim, *(broker for broker in brokers if broker != victim))
        else:
            since = max(stage.sandbox.cut(broker, CLIENTS) for broker in brokers)
        stage.fire("cuts")
        hold.release()
        stage.pause(_CUT_S)
        healed = stage.sandbox.heal()
        experiment.recovered(healed)
        if role:
            moved(stage, role, victim, START_S)
        else:
            done = [attempt.at for attempt in attempts(program.said()) if attempt.status == "written"]
            stage.fire(HELD_UP, int(not any(since + _LATE_S < at < healed for at in done)))
        experiment.finish(program)


for _name, _role, _target in (
    ("coordinator", "transactions", "transaction coordinator"),
    ("leader", "output", "broker leading the output"),
    ("group", "group", "group coordinator"),
):
    _seen = ("broker_kills", LEADERS_MOVED, OPEN)
    flushed(f"F42-{_name}", "SIGKILL", _target, _role, needs=_THREE, needed=_seen)(broker_killed)
for _name, _role, _target, _effect in (
    ("cut", "", "clients and all brokers", HELD_UP),
    ("peers", "group", "the group's coordinator and the other brokers", LEADERS_MOVED),
):
    _fault, _needs = f"network cut for {_CUT_S:g} s", _THREE | {Need.NETWORKS}
    flushed(f"F42-{_name}", _fault, _target, _role, needs=_needs, needed=("cuts", OPEN, _effect))(cut_off)


# F43: checkpoints and names.


def _deleted(experiment: SinkExperiment) -> Path:
    """Run once, and delete the checkpoint; return a copy of it."""
    experiment.ended(experiment.start())
    copy = shutil.copytree(experiment.checkpoint, experiment.stage.folder / "copy")
    shutil.rmtree(experiment.checkpoint)
    return copy


def _restored(experiment: SinkExperiment) -> Path:
    """Run twice, and restore the checkpoint from between the runs; return a copy of the latest one."""
    experiment.ended(experiment.start())
    old = shutil.copytree(experiment.checkpoint, experiment.stage.folder / "old")
    experiment.stage.orders(4 * MOST)
    experiment.ended(experiment.start())
    latest = shutil.copytree(experiment.checkpoint, experiment.stage.folder / "latest")
    replaced(experiment, old)
    return latest


def checkpoint_lost(lose: Callable[[SinkExperiment], Path], reason: str, writers: str, stage: CellEnvironment) -> None:
    """A deleted or old checkpoint is refused for a ``reason``; the control, Spark's own sink, writes input again."""
    with sink_on(stage, writers) as experiment:
        latest = lose(experiment)
        if reason:
            experiment.refused(experiment.start(), reason)
            replaced(experiment, latest)
        else:
            stage.fire("wipes")


_WIPED, _OLD, _SPARKS = "checkpoint deleted", "an old copy of the checkpoint", "Spark's own sink"
_GONE, _OLDER = (_deleted, "the checkpoint was deleted"), (_restored, "an older copy of the checkpoint was restored")
between("F43-deleted", _WIPED, "sink", *_GONE, ONE, needed=("refusals",))(checkpoint_lost)
between_for_both("F43-restored", _OLD, "sink", *_OLDER, needed=("refusals",))(checkpoint_lost)
_AGAIN = {"needed": ("wipes",), "breaks": "duplicate-output"}
between("F43-deleted-control", _WIPED, _SPARKS, _deleted, "", SPARKS, **_AGAIN)(checkpoint_lost)
between("F43-restored-control", _OLD, _SPARKS, _restored, "", SPARKS, **_AGAIN)(checkpoint_lost)


def replaced(experiment: SinkExperiment, copy: Path) -> None:
    shutil.rmtree(experiment.checkpoint)
    shutil.copytree(copy, experiment.checkpoint)


@flushed("F43-one-name", "a second query with the name", "sink", needed=(OPEN, "refusals", _FENCED))
def one_name(writers: str, stage: CellEnvironment) -> None:
    """A second query uses the name of one in mid-transaction: it ends that, and is refused; the first continues."""
    with sink_on(stage, writers, feed=_FEED) as experiment:
        program, hold = experiment.held(CrashPoint.AFTER_FLUSH)
        experiment.refused(experiment.start(checkpoint=stage.folder / "other"), "two queries have one name")
        if experiment.is_open():
            raise StalledError("the second query left the first one's transaction open")
        hold.release()
        experiment.finish(program)
        experiment.fire_attempts(program, _FENCED, "Fenced")
