"""
The exactly-once sink: drivers, tasks, executors and brokers die, hang, are cut off, and come twice.

A reader looks at the output while all of that happens and sees each batch whole or absent in each partition; in the end
every row is there once, and the totals of the last ones are the input's counts.
"""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from brew.names import CrashMode, CrashPoint
from proof.campaign.cell import CellTable, Need, Play
from proof.campaign.cells.broker import HELD_UP, moved
from proof.campaign.cells.spark import SPECULATION, standalone
from proof.campaign.cluster import CLIENTS
from proof.campaign.effects import COPIES, LEADERS_MOVED, OPEN, signal_all, tree
from proof.campaign.programs import Program, repeated
from proof.campaign.sink_query import (
    COPY,
    COUNT,
    JOIN,
    KEYED,
    MOST,
    RAND,
    START_S,
    SinkPlay,
    ancestor,
    attempts,
    sink_on,
)
from proof.campaign.stage import CellEnvironment, StalledError

CELLS = CellTable(path="sink", needs={Need.SPARK}, judged=False, limit_s=1500.0)

ONE, TASKS, SPARKS, SPARKS_IN_BATCHES = "1", "tasks", "spark", "spark-in-batches"
_NAMES = {ONE: "one", TASKS: "tasks"}
_FEED = 100
_CUT_S, _LATE_S = 15.0, 3.0
_EXECUTOR = "CoarseGrainedExecutorBackend"
_FAILED, _FENCED = "attempts_failed", "attempts_fenced"
_THREE = {Need.SPARK, Need.SANDBOX, Need.THREE}
_ROW_BY_ROW = ("--conf", "spark.sql.execution.arrow.maxRecordsPerBatch=1")
"""So that a writer in the middle of its rows has rows left to write."""


def both(name: str, fault: str, target: str, *args: object, **fields: Any) -> Callable[[Play], Play]:
    """A cell for each way to write, `NAME-one` and `NAME-tasks`; the play gets the way before the stage."""

    def add(play: Play) -> Play:
        for writers, word in _NAMES.items():
            CELLS(f"{name}-{word}", fault, target, *args, writers, **fields)(play)
        return play

    return add


# F39: the driver dies.


def driver_crash(query: str, point: CrashPoint | None, writers: str, stage: CellEnvironment) -> None:
    """
    The driver and its JVM die by SIGKILL at a point of a batch, time after time.

    Each next run finds out whether that batch is out, and dies in the one behind it. Without a ``point`` each dies at
    another one.
    """
    with sink_on(stage, writers, query, orders=MOST * (stage.kills + 1)) as play:
        killed = time.time()
        for batch in range(stage.kills):
            at_point = point or stage.random.choice(list(CrashPoint))
            program = play.start("--crash-point", at_point, "--crash-batch", str(batch))
            if play.watcher.batches() < batch:
                play.visible(batch)
                stage.recovery_s.append(time.time() - killed)
            play.ended(program, -signal.SIGKILL)
            killed = time.time()
            stage.fire("kills")


_KILLED = ("SIGKILL", "sink's driver and its JVM")
for _point in CrashPoint:
    both(f"F39-{_point}", *_KILLED, COUNT, _point, moment=_point, needed={"kills": 0}, limit_s=6000.0)(driver_crash)
for _query in (COPY, JOIN, RAND):
    both(f"F39-{_query}", *_KILLED, _query, None, moment="any point", needed={"kills": 0}, limit_s=6000.0)(driver_crash)


@CELLS("F39-kill-control", "SIGKILL, commit-log entry missing", "Spark's own sink", needed={"kills": 1})
def sparks_own(stage: CellEnvironment) -> None:
    """The control: Spark's own sink, killed behind its write, with its commit log as such a kill leaves it."""
    with sink_on(stage, SPARKS, orders=2 * MOST) as play:
        program = play.start("--follow")
        commits = play.checkpoint / "commits"
        stage.until((commits / "1").exists, "the last batch", START_S * stage.slack)
        program.kill()
        stage.fire("kills")
        for name in ("1", ".1.crc"):
            (commits / name).unlink(missing_ok=True)


@CELLS(*("F39-torn-control", "a batch without a transaction", "Spark's own sink"), moment="always", breaks="torn-batch")
def torn(stage: CellEnvironment) -> None:
    """The control of the reader: Spark's own sink writes slow rows, and readers see each batch grow."""
    with sink_on(stage, SPARKS_IN_BATCHES, COPY, orders=MOST) as play:
        play.ended(play.start("--slow-ms", "50"))


# F40: tasks die, come twice, or run again.


@both("F40-task", "SIGKILL, the task is repeated", "task", moment=CrashPoint.MID_PRODUCE, needed={"tasks_repeated": 1})
def task_killed(writers: str, stage: CellEnvironment) -> None:
    """A task's Python worker dies half way through its rows, and Spark runs the task again."""
    with sink_on(stage, writers) as play:
        crash = ("--crash-point", CrashPoint.MID_PRODUCE, "--crash-batch", "1", "--crash-mode", CrashMode.WORKER)
        play.ended(play.start(*crash, *play.events.options))
        stage.fired |= play.events.count()


@both(
    *("F40-executor", "SIGKILL", "executor JVM of a task in a transaction"),
    moment=CrashPoint.MID_PRODUCE,
    needed={"kills": 1, OPEN: 1, "executors_lost": 1},
)
def executor_killed(writers: str, stage: CellEnvironment) -> None:
    """One of two executors dies with a task of its own in a transaction; another one runs the task again."""
    with sink_on(stage, writers, feed=_FEED) as play:
        cluster = ("--master", "local-cluster[2,1,1024]", *play.events.options)
        program, hold = play.held(CrashPoint.MID_PRODUCE, *cluster)
        if (victim := ancestor(hold.process, _EXECUTOR)) is None:
            stage.doubts.append("the executor of the task was not found")
            return
        since = time.time()
        victim.kill()
        stage.fire("kills")
        play.recovered(since)
        hold.release()
        play.more()
        play.stopped(program)
        stage.fired |= play.events.count()


@both(
    *("F40-stage", "shuffle files lost, the stage is repeated", "Spark's local disk"),
    moment=CrashPoint.MID_PRODUCE,
    needed={OPEN: 1, "stages_repeated": 1},
)
def stage_repeated(writers: str, stage: CellEnvironment) -> None:
    """
    The shuffle files vanish while a writer is at its first rows: it can't fetch the others, and the stage runs again.

    To Spark that is no second attempt of the task. Rows are wide, so that the writer has not fetched all of them yet.
    """
    disk = stage.folder / "local"
    conf = {
        "spark.local.dir": disk,
        "spark.default.parallelism": 2,
        "spark.sql.execution.arrow.maxRecordsPerBatch": 10,
    }
    with sink_on(stage, writers, KEYED, orders=2 * MOST) as play:
        wide = ("--master", "local[1]", "--width", "300000", *repeated("--conf", conf), *play.events.options)
        program, hold = play.held(CrashPoint.MID_PRODUCE, *wide, follow=False)
        for file in disk.rglob("shuffle_*"):
            file.unlink()
        hold.release()
        play.ended(program)
        stage.fired |= play.events.count(hold.stage)
        play.fire_attempts(program, _FAILED)


@both(
    *("F40-speculation", "a task stands still, a copy runs", "Spark"),
    moment=CrashPoint.MID_PRODUCE,
    needed={OPEN: 1, COPIES: 1},
)
def speculation(writers: str, stage: CellEnvironment) -> None:
    """A writer stands still in its transaction, and Spark runs a copy of its task on another host; then it goes on."""
    conf = repeated("--conf", {**SPECULATION, "spark.speculation.task.duration.threshold": "1s"})
    master = standalone(stage)
    with sink_on(stage, writers, feed=_FEED) as play:
        # A copy with tasks waits for half of the time-out before it ends the batch.
        options = ("--master", master, *conf, *_ROW_BY_ROW, "--transaction-timeout", "20", *play.events.options)
        program, hold = play.held(CrashPoint.MID_PRODUCE, *options)
        since = time.time()
        play.recovered(since)
        hold.release()
        play.more()
        play.stopped(program)
        stage.fired |= play.events.count(hold.stage)


# F41: the driver stands still.


@both(
    *("F41-frozen", "SIGSTOP past the time-out, then SIGCONT", "driver"),
    moment=CrashPoint.AFTER_FLUSH,
    needed={"pauses": 1, OPEN: 1, "aborted_by_brokers": 1, _FAILED: 1},
)
def frozen_driver(writers: str, stage: CellEnvironment) -> None:
    """The whole query stands still until brokers have aborted its transaction; then it goes on and writes it again."""
    with sink_on(stage, writers, feed=_FEED) as play:
        program, hold = play.held(CrashPoint.AFTER_FLUSH, "--transaction-timeout", "10")
        with stopped(stage, program):
            hold.release()
            stage.until(lambda: not play.is_open(), "brokers aborting the transaction", START_S * stage.slack)
            stage.fire("aborted_by_brokers")
        since = time.time()
        play.recovered(since)
        play.more()
        play.stopped(program)
        play.fire_attempts(program, _FAILED)


@both(
    *("F41-zombie", "SIGSTOP, a new run goes on, SIGCONT", "driver and its tasks"),
    moment=CrashPoint.MID_PRODUCE,
    needed={"pauses": 1, OPEN: 1, _FENCED: 1},
)
def zombie(writers: str, stage: CellEnvironment) -> None:
    """
    The query stands still in the middle of its rows, and another run on its checkpoint goes on.

    Then the first one wakes, and its tasks write their other rows: too late.
    """
    with sink_on(stage, writers, feed=_FEED) as play:
        sleeper, hold = play.held(CrashPoint.MID_PRODUCE, *_ROW_BY_ROW)
        with stopped(stage, sleeper):
            hold.release()
            program = play.follow()
        stage.until(lambda: sleeper.code() is not None, "the end of the first query", START_S * stage.slack)
        play.fire_attempts(sleeper, _FENCED, "Fenced")
        if program.code() is None:
            play.more()
            play.stopped(program)
        else:  # Spark may find out first that two runs share a checkpoint
            stage.notes.append(f"{program.name} ended with {program.code()}: {program.last_words()}")


@contextlib.contextmanager
def stopped(stage: CellEnvironment, program: Program) -> Iterator[None]:
    """A block in which a query stands still, with its JVM and workers."""
    victims = tree(psutil.Process(program.pid))
    signal_all(victims, stop=True)
    stage.fire("pauses")
    try:
        yield
    finally:
        signal_all(victims, stop=False)


# F42: brokers die, or are cut off.


def broker_killed(role: str, writers: str, stage: CellEnvironment) -> None:
    """The broker with this role dies while the transaction is open; another one takes over, and the batch goes on."""
    with sink_on(stage, writers, COPY, feed=_FEED) as play:
        program, hold = play.held(CrashPoint.AFTER_FLUSH)
        victim = play.leader(role)
        since = stage.sandbox.kill(victim)
        stage.fire("broker_kills")
        hold.release()
        play.recovered(since)
        moved(stage, role, victim, play.leader, START_S)
        stage.sandbox.restart(victim)
        play.more()
        play.stopped(program)


def cut_off(role: str, writers: str, stage: CellEnvironment) -> None:
    """
    The network is cut for a while as the transaction is open: no client reaches a broker, or a broker no other one.

    A group coordinator that others can't reach tells of a position that its successor has moved on since.
    """
    with sink_on(stage, writers, COPY, feed=_FEED) as play:
        program, hold = play.held(CrashPoint.AFTER_FLUSH)
        brokers = stage.sandbox.brokers
        if role:
            victim = play.leader(role)
            since = stage.sandbox.cut(victim, *(broker for broker in brokers if broker != victim))
        else:
            since = max(stage.sandbox.cut(broker, CLIENTS) for broker in brokers)
        stage.fire("cuts")
        hold.release()
        stage.pause(_CUT_S)
        healed = stage.sandbox.heal()
        play.recovered(healed)
        if role:
            moved(stage, role, victim, play.leader, START_S)
        else:
            done = [attempt.at for attempt in attempts(program.said()) if attempt.status == "written"]
            stage.fire(HELD_UP, int(not any(since + _LATE_S < at < healed for at in done)))
        play.more()
        play.stopped(program)


for _name, _role, _target in (
    ("coordinator", "transactions", "transaction coordinator"),
    ("leader", "output", "broker leading the output"),
    ("group", "group", "group coordinator"),
):
    both(
        *(f"F42-{_name}", "SIGKILL", _target, _role),
        moment=CrashPoint.AFTER_FLUSH,
        needs=_THREE,
        needed={"broker_kills": 1, LEADERS_MOVED: 1, OPEN: 1},
    )(broker_killed)
for _name, _role, _target, _effect in (
    ("cut", "", "clients and all brokers", HELD_UP),
    ("peers", "group", "the group's coordinator and the other brokers", LEADERS_MOVED),
):
    both(
        *(f"F42-{_name}", f"network cut for {_CUT_S:g} s", _target, _role),
        moment=CrashPoint.AFTER_FLUSH,
        needs=_THREE | {Need.NETWORKS},
        needed={"cuts": 1, OPEN: 1, _effect: 1},
    )(cut_off)


# F43: checkpoints and names.

_BETWEEN: dict[str, Any] = {"moment": "between runs"}


@CELLS("F43-deleted", "checkpoint deleted", "sink", needed={"refusals": 1}, **_BETWEEN)
def checkpoint_deleted(stage: CellEnvironment) -> None:
    """A query whose checkpoint is gone would write all of its input again: it is refused."""
    with sink_on(stage, ONE) as play:
        play.ended(play.start())
        copy = shutil.copytree(play.checkpoint, stage.folder / "copy")
        shutil.rmtree(play.checkpoint)
        play.refused(play.start(), "the checkpoint was deleted")
        replaced(play, copy)


@both("F43-restored", "an old copy of the checkpoint", "sink", needed={"refusals": 1}, **_BETWEEN)
def checkpoint_restored(writers: str, stage: CellEnvironment) -> None:
    """A query whose checkpoint was replaced by an old copy would write some of its input again: it is refused."""
    with sink_on(stage, writers) as play:
        latest = _restored(play)
        play.refused(play.start(), "an older copy of the checkpoint was restored")
        replaced(play, latest)


@CELLS("F43-deleted-control", "checkpoint deleted", "Spark's own sink", needed={"wipes": 1}, **_BETWEEN)
def deleted_under_sparks(stage: CellEnvironment) -> None:
    """The control: Spark's own sink writes all of its input again."""
    with sink_on(stage, SPARKS) as play:
        play.ended(play.start())
        shutil.rmtree(play.checkpoint)
        stage.fire("wipes")


@CELLS("F43-restored-control", "an old copy of the checkpoint", "Spark's own sink", needed={"wipes": 1}, **_BETWEEN)
def restored_under_sparks(stage: CellEnvironment) -> None:
    """The control: Spark's own sink writes again what is behind the copy."""
    with sink_on(stage, SPARKS) as play:
        _restored(play)
        stage.fire("wipes")


def _restored(play: SinkPlay) -> Path:
    """Two runs, and the checkpoint as it was between them; a copy of the latest one."""
    play.ended(play.start())
    old = shutil.copytree(play.checkpoint, play.stage.folder / "old")
    play.stage.orders(4 * MOST)
    play.ended(play.start())
    latest = shutil.copytree(play.checkpoint, play.stage.folder / "latest")
    replaced(play, old)
    return latest


def replaced(play: SinkPlay, copy: Path) -> None:
    """The checkpoint is this copy from now on."""
    shutil.rmtree(play.checkpoint)
    shutil.copytree(copy, play.checkpoint)


@both(
    *("F43-one-name", "a second query with the name", "sink"),
    moment=CrashPoint.AFTER_FLUSH,
    needed={OPEN: 1, "refusals": 1, _FENCED: 1},
)
def one_name(writers: str, stage: CellEnvironment) -> None:
    """A second query takes the name of one in mid transaction: it ends that, and is refused; the first one goes on."""
    with sink_on(stage, writers, feed=_FEED) as play:
        program, hold = play.held(CrashPoint.AFTER_FLUSH)
        play.refused(play.start(checkpoint=stage.folder / "other"), "two queries have one name")
        if play.is_open():
            raise StalledError("the second query left the first one's transaction open")
        hold.release()
        play.more()
        play.stopped(program)
        play.fire_attempts(program, _FENCED, "Fenced")
