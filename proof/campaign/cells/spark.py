"""The same through Spark: workers, executors and drivers die, hang, and come twice."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import signal
import sys
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

import psutil

from brew.journal import Phase, Step
from brew.names import CrashPoint
from proof.campaign.cell import Cell, Need
from proof.campaign.cells.direct import CONNECTOR, DIRECT
from proof.campaign.cells.writer import ROWS
from proof.campaign.effects import COPIES, OPEN, caught_open, copies, fenced_since, signal_all, tree
from proof.campaign.freezer import frozen
from proof.campaign.journals import Kill, open_ranges
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment, StalledError

_LOCAL = ("--master", "local[2]")
_CLUSTER = ("--master", "local-cluster[2,1,1024]")
_SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.interval": "10ms",
    "spark.speculation.minTaskRuntime": "1ms",
}
_NO_DISK = "/proc/brew-no-such-disk"
_HOSTS = ("127.0.0.1", "127.0.0.2")
# A direct reader's task that Spark repeats spares itself, so a run has a death for each slot.
_EACH_TIME = {CONNECTOR: ("local[2]", "0.5", 8000), DIRECT: ("local[4]", "1", 2000)}
_MEETINGS = {"fenced", "ahead", "already-done", "offset-gap"}
_START_S = 120.0
_EXECUTOR, _DRIVER, _WORKER = "CoarseGrainedExecutorBackend", "SparkSubmit", "pyspark.daemon"


def family(writer: Program, word: str) -> list[psutil.Process]:
    """The processes below a writer whose command line holds ``word``, the oldest first."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        for one in psutil.Process(writer.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if any(word in part for part in one.cmdline()):
                    found.append(one)
    return sorted(found, key=lambda one: one.create_time())


def _conf(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def _started(stage: CellEnvironment, *options: str, name: str = "writer") -> Program:
    writer = stage.writer(*options, "--follow", "--max-records-per-transaction", "500", name=name)
    stage.await_commits(4, _START_S * stage.slack)
    return writer


def workers_crash(point: CrashPoint, stage: CellEnvironment) -> None:
    """Python workers kill themselves at ``point``; the run heals itself each time, with the JVM that it has."""
    master, probability, orders = _EACH_TIME[stage.cell.reader]
    crash = ("--crash-prob", probability, "--crash-point", point, "--crash-mode", "worker")
    before = -1
    while before < (died := deaths(stage)) < stage.kills:
        before = died
        stage.orders(orders, "--transactional")
        seed = ("--crash-seed", str(stage.seed))
        writer = stage.writer("--master", master, *crash, *seed, "--max-records-per-transaction", "200")
        if (code := writer.wait(stage.deadline)) != 0:
            raise StalledError(f"the run did not heal itself, it ended with {code}: {writer.last_words()}")
    stage.fire("kills", died)


def deaths(stage: CellEnvironment) -> int:
    """Writer processes in which a partition's last attempt has no outcome: they died in it."""
    stage.journals.look()
    written = [e for e in stage.journals.entries if e.step is not Step.READ]
    lines = sorted(written, key=lambda e: (e.pid, e.fields["partition"], e.at))
    last = {place: [*some][-1] for place, some in groupby(lines, key=lambda e: (e.pid, e.fields["partition"]))}
    return len({pid for (pid, _), line in last.items() if line.step is not Step.OUTCOME})


def _stopped_in_transaction(stage: CellEnvironment, *roots: psutil.Process) -> list[psutil.Process]:
    """Processes with all below them, stopped while the brokers hold a transaction of theirs open; empty if never."""
    victims = tree(*roots)
    if caught_open(stage, victims):
        return victims
    stage.doubts.append("nothing was caught with a transaction that the brokers know as open")
    return []


def _kill(victims: Sequence[psutil.Process]) -> float:
    """SIGKILL to all of them; return when that was done."""
    for one in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    return time.time()


def executor_killed(stage: CellEnvironment) -> None:
    """One of two executor JVMs dies in mid batch; Spark gives its tasks to another one."""
    with stage.feeding():
        stage.orders(2000, "--transactional")
        writer = _started(stage, *_CLUSTER)
        for _ in range(stage.times):
            if not (executors := family(writer, _EXECUTOR)):
                stage.doubts.append("no executor was found to kill")
                return
            if not (victims := _stopped_in_transaction(stage, stage.random.choice(executors))):
                return
            at = _kill(victims)
            stage.fire("kills")
            stage.recovered(at)
            stage.await_commits(8)


def driver_killed(stage: CellEnvironment) -> None:
    """The driver's JVM and program die; a new driver resumes from the group's offset."""
    with stage.feeding():
        stage.orders(2000, "--transactional")
        writer = _started(stage, *_LOCAL)
        for _ in range(stage.times):
            if not (victims := _stopped_in_transaction(stage, psutil.Process(writer.pid))):
                return
            at = _kill(victims)
            writer.kill()
            stage.fire("kills")
            writer = stage.writer(*_LOCAL, "--follow", "--max-records-per-transaction", "500", name="next")
            stage.recovered(at)
            stage.await_commits(8)


def driver_and_executor_killed(stage: CellEnvironment) -> None:
    """Driver and one of two executors die at the same moment; the other one is left alone, and a new run goes on."""
    with stage.feeding():
        stage.orders(2000, "--transactional")
        writer = _started(stage, *_CLUSTER)
        for _ in range(stage.times):
            executor = stage.random.choice(family(writer, _EXECUTOR))
            if not (victims := _stopped_in_transaction(stage, executor)):
                return
            before = {one.pid for one in tree(psutil.Process(writer.pid))}
            at = _kill([*victims, *family(writer, _DRIVER)])
            writer.process_kill()
            stage.fire("killed_together")
            writer = stage.writer(*_CLUSTER, "--follow", "--max-records-per-transaction", "500", name="next")
            stage.recovered(at, without=before)
            stage.await_commits(8)


def orphan(stage: CellEnvironment) -> None:
    """A worker hangs, its JVM and driver die, a new driver goes on; then the worker wakes up."""
    with stage.feeding():
        stage.orders(2000, "--transactional")
        writer = _started(stage, *_LOCAL)
        workers = _stopped_in_transaction(stage, *family(writer, _WORKER))
        try:
            if not workers:
                return
            # Their daemon is not woken: it would end them as soon as it heard that the JVM is gone.
            orphans = [one for one in workers if one.ppid() in {other.pid for other in workers}]
            with frozen(workers) as freezer:
                stage.fire("pauses", len(orphans))
                for victim in family(writer, _DRIVER):
                    victim.kill()
                writer.kill()
                at = time.time()
                stage.writer(*_LOCAL, "--follow", name="next")
                stage.recovered(at)
                woken = time.time()
                freezer.release(orphans)
                stage.fire("zombies_fenced", int(fenced_since(stage, {one.pid for one in orphans}, woken)))
                for worker in workers:  # still frozen, the daemon would end with the others
                    with contextlib.suppress(psutil.NoSuchProcess):
                        worker.kill()
            stage.await_commits(8)
        finally:
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.send_signal(signal.SIGKILL)


def _met(stage: CellEnvironment) -> int:
    """How often one of them found what the other one did: fenced by it, or its range done already."""
    stage.journals.look()
    return sum(e.fields.get("status") in _MEETINGS for e in stage.journals.entries if e.step is Step.OUTCOME)


def two_drivers(stage: CellEnvironment) -> None:
    """Two Spark drivers with one group fence each other."""
    with stage.feeding(600):
        stage.orders(2000)
        first = _started(stage, *_LOCAL, name="first")
        second = stage.writer(*_LOCAL, "--follow", name="second")
        wanted = stage.times
        stage.until(lambda: _met(stage) >= wanted, f"the drivers meet {wanted} times", _START_S * stage.slack)
        stage.pause(20.0)
        stage.fire("meetings", _met(stage))
        for writer in (first, second):
            if writer.code() is not None:
                stage.notes.append(f"{writer.name} ended with {writer.code()}: {writer.last_words()}")
        stage.fire("rivals", 2)


def speculation(stage: CellEnvironment) -> None:
    """A task stands still in its transaction, and Spark runs a copy of it on another host; then the first one wakes."""
    master = standalone(stage)
    with stage.feeding():
        stage.orders(4000)
        stage.writer(*("--master", master, "--follow", "--max-records-per-transaction", "500"), *_conf(_SPECULATION))
        stage.await_commits(4, _START_S * stage.slack)
        sleeper = stage.random.choice(_executor_workers(stage))
        if not (victims := _stopped_in_transaction(stage, sleeper)):
            return
        asleep = time.time()
        try:
            stage.until(
                lambda: copied(stage, {one.pid for one in victims}, asleep), "a copy of a task that stands still"
            )
            stage.recovered(asleep)
        finally:
            signal_all(victims, stop=False)
        stage.await_commits(8)
        stage.journals.look()
        stage.fire(COPIES, copies(stage.journals.entries))


def copied(stage: CellEnvironment, sleepers: set[int], since: float) -> bool:
    """Whether somebody else fenced a range that one of the sleepers had begun and not ended."""
    stage.journals.look()
    mine = {p for pid in sleepers for p in open_ranges(stage.journals.entries, Kill(since, pid))}
    others = (e for e in stage.journals.entries if e.pid not in sleepers and e.at > since)
    return any(e.fields["partition"] in mine for e in others if e.step is Step.FENCE and e.phase is Phase.DONE)


def standalone(stage: CellEnvironment) -> str:
    """
    A standalone Spark cluster of two workers on two addresses; its master's URL.

    Spark runs no copy of a task on a host that has the task already, and `local` and `local-cluster` are one host.
    """
    found = importlib.util.find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    command = str(Path(found.origin).parent / "bin" / "spark-class")
    where = ("--port", "0", "--webui-port", "0")
    stage.programs.environment["PYSPARK_PYTHON"] = sys.executable  # a worker would take the first python3 on PATH
    deploy = "org.apache.spark.deploy"
    master = stage.programs.start("master", command, f"{deploy}.master.Master", "--host", _HOSTS[0], *where)
    stage.until(lambda: _url(master) is not None, "Spark's master", _START_S * stage.slack)
    url = _url(master)
    assert url is not None
    for host in _HOSTS:
        words = ("--host", host, *where, "--cores", "2", "--memory", "1g", "--work-dir", str(stage.folder / host))
        stage.programs.start(f"worker-{host}", command, f"{deploy}.worker.Worker", *words, url)
    return url


def _url(master: Program) -> str | None:
    told = re.search(r"spark://[\d.]+:\d+", master.said())
    return told and told.group()


def _executor_workers(stage: CellEnvironment) -> list[psutil.Process]:
    """Python workers of all executors; those are no children of the driver in a standalone cluster."""
    found = [one for program in stage.programs.running() for one in tree(psutil.Process(program.pid))]
    return [one for one in found if any(_WORKER in word for word in _words(one))]


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def no_local_disk(stage: CellEnvironment) -> None:
    """Spark's own directory can't be written: the run ends with nothing committed, and the next one does it all."""
    stage.orders(500)
    before = stage.commits()
    writer = stage.writer(*_LOCAL, *_conf({"spark.local.dir": _NO_DISK}))
    if writer.wait(stage.deadline) == 0 or stage.commits() != before:
        raise StalledError("a run without a local directory ended well; it should not have started")
    stage.fire("full_disks")


def _cell(
    name: str,
    fault: str,
    target: str,
    play: Callable[[CellEnvironment], None],
    *,
    bound_s: float | None = None,
    **needed: int,
) -> Cell:
    return Cell(
        name=name,
        row=name.partition("-")[0],
        fault=fault,
        target=target,
        moment="mid batch",
        play=play,
        path="spark",
        needs=frozenset({Need.SPARK}),
        needed=needed,
        bound_s=bound_s,
        limit_s=1500.0,
    )


def _crash_cell(point: CrashPoint) -> Cell:
    return Cell(
        name=f"{ROWS.get(point, 'F01')}-{point}-spark",
        row=ROWS.get(point, "F01"),
        fault="SIGKILL",
        target="Spark's Python worker",
        moment=point,
        play=functools.partial(workers_crash, point),
        path="spark",
        needs=frozenset({Need.SPARK}),
        needed={"kills": 0},
        limit_s=1800.0,
    )


def _none(_stage: CellEnvironment) -> None:
    """Nothing to play."""


CELLS: Sequence[Cell] = (
    *map(_crash_cell, CrashPoint),
    _cell("F06-executor", "SIGKILL", "executor JVM", executor_killed, bound_s=30.0, kills=1, **{OPEN: 1}),
    _cell("F06-driver", "SIGKILL", "driver JVM and program", driver_killed, bound_s=30.0, kills=1, **{OPEN: 1}),
    _cell(
        "F06-driver-and-executor",
        "SIGKILL at once",
        "driver and an executor JVM",
        driver_and_executor_killed,
        bound_s=30.0,
        killed_together=1,
        **{OPEN: 1},
    ),
    _cell(
        "F07-orphan",
        "SIGSTOP, JVM killed, SIGCONT",
        "Python worker",
        orphan,
        bound_s=30.0,
        pauses=1,
        zombies_fenced=1,
        **{OPEN: 1},
    ),
    _cell("F08-two-drivers", "two drivers, one group", "driver", two_drivers, rivals=2, meetings=1),
    _cell(
        "F09-speculation", "a task stands still, a copy runs", "Spark", speculation, **{OPEN: 1, COPIES: 1, "fences": 1}
    ),
    Cell(
        name="F09-split-range",
        row="F09",
        fault="repartition, minPartitions",
        target="Spark",
        moment="plan",
        play=_none,
        path="spark",
        not_applicable="no option reaches that setting, and a plan that cuts a range is refused before it runs",
    ),
    _cell("F37-no-local-disk", "spark.local.dir can't be written", "disk", no_local_disk, full_disks=1),
)
