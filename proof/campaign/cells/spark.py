"""The same through Spark: workers, executors and drivers die, hang, and come twice."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from collections.abc import Callable, Sequence
from itertools import groupby

import psutil

from proof.campaign.cell import Cell, Need
from proof.campaign.cells.writer import ROWS
from proof.campaign.holders import holders
from proof.campaign.programs import Program
from proof.campaign.stage import Stage, StalledError
from protocol.journal import Step
from protocol.names import CrashPoint

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
_KILLS = 10
# A direct reader's task that Spark repeats spares itself, so a run has a death for each slot.
_EACH_TIME = {"": ("local[2]", "0.5", 8000), "direct": ("local[4]", "1", 2000)}
STRUCK = "holders_struck"
"""What fires where processes are killed or stopped: those of them that hold partitions by a lease."""
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


def _started(stage: Stage, *options: str, name: str = "writer") -> Program:
    writer = stage.writer(*options, "--follow", "--max-records-per-transaction", "500", name=name)
    stage.await_commits(4, _START_S * stage.slack)
    return writer


def workers_crash(point: CrashPoint, stage: Stage) -> None:
    """Python workers kill themselves at ``point``; the run heals itself each time, with the JVM that it has."""
    master, probability, orders = _EACH_TIME[stage.cell.reader]
    crash = ("--crash-prob", probability, "--crash-point", point, "--crash-mode", "worker")
    before = -1
    while before < (died := deaths(stage)) < _KILLS:
        before = died
        stage.orders(orders, "--transactional")
        seed = ("--crash-seed", str(stage.seed))
        writer = stage.writer("--master", master, *crash, *seed, "--max-records-per-transaction", "200")
        if (code := writer.wait(stage.deadline)) != 0:
            raise StalledError(f"the run did not heal itself, it ended with {code}: {writer.last_words()}")
    stage.fire("kills", died)


def deaths(stage: Stage) -> int:
    """Writer processes in which a partition's last attempt has no outcome: they died in it."""
    stage.journals.look()
    written = [e for e in stage.journals.entries if e.step is not Step.READ]
    lines = sorted(written, key=lambda e: (e.pid, e.fields["partition"], e.at))
    last = {place: [*some][-1] for place, some in groupby(lines, key=lambda e: (e.pid, e.fields["partition"]))}
    return len({pid for (pid, _), line in last.items() if line.step is not Step.OUTCOME})


def _leases(writer: Program, victims: Sequence[psutil.Process]) -> int:
    """How many processes hold partitions by a lease among these and those below them."""
    among: set[int] = set()
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            among |= {victim.pid, *(one.pid for one in victim.children(recursive=True))}
    return sum(one.pid in among for one in holders(writer))


def executor_killed(stage: Stage) -> None:
    """One of two executor JVMs dies in mid batch; Spark gives its tasks to another one."""
    with stage.feeding():
        stage.orders(2000, "--transactional")
        writer = _started(stage, *_CLUSTER)
        victims = family(writer, _EXECUTOR)
        if not victims:
            stage.doubts.append("no executor was found to kill")
            return
        victim = max(victims, key=lambda one: _leases(writer, [one]))
        stage.fire(STRUCK, _leases(writer, [victim]))
        victim.kill()
        stage.fire("kills")
        stage.recovered(time.time())
        stage.await_commits(8)


def driver_killed(stage: Stage) -> None:
    """The driver's JVM and program die; a new driver resumes from the group's offset."""
    with stage.feeding():
        stage.orders(2000, "--transactional")
        writer = _started(stage, *_LOCAL)
        victims = [*family(writer, _DRIVER), *family(writer, _WORKER)]
        stage.fire(STRUCK, _leases(writer, victims))
        for victim in victims:
            with contextlib.suppress(psutil.NoSuchProcess):
                victim.kill()
        writer.kill()
        at = time.time()
        stage.fire("kills")
        stage.writer(*_LOCAL, "--follow", name="next")
        stage.recovered(at)


def orphan(stage: Stage) -> None:
    """A worker hangs, its JVM and driver die, a new driver goes on; then the worker wakes up."""
    with stage.feeding():
        stage.orders(2000, "--transactional")
        writer = _started(stage, *_LOCAL)
        workers = family(writer, _WORKER)
        stage.fire(STRUCK, _leases(writer, workers))
        try:
            for worker in workers:
                worker.suspend()
            stage.fire("pauses", len(workers))
            for victim in family(writer, _DRIVER):
                victim.kill()
            writer.kill()
            at = time.time()
            stage.writer(*_LOCAL, "--follow", name="next")
            stage.recovered(at)
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.resume()
            stage.await_commits(8)
        finally:
            for worker in workers:
                with contextlib.suppress(psutil.NoSuchProcess):
                    worker.send_signal(signal.SIGKILL)


def _met(stage: Stage) -> bool:
    """Whether one of them found what the other one did: fenced by it, or its range done already."""
    stage.journals.look()
    told = (e.fields.get("status") for e in stage.journals.entries if e.step is Step.OUTCOME)
    return not _MEETINGS.isdisjoint(told)


def two_drivers(stage: Stage) -> None:
    """Two Spark drivers with one group fence each other."""
    with stage.feeding(600):
        stage.orders(2000)
        first = _started(stage, *_LOCAL, name="first")
        second = stage.writer(*_LOCAL, "--follow", name="second")
        stage.until(functools.partial(_met, stage), "the drivers meet", _START_S * stage.slack)
        stage.fire("meetings")
        stage.pause(20.0)
        for writer in (first, second):
            if writer.code() is not None:
                stage.notes.append(f"{writer.name} ended with {writer.code()}: {writer.last_words()}")
        stage.fire("rivals", 2)


def speculation(stage: Stage) -> None:
    """Spark starts copies of tasks that seem slow; each range is written once all the same."""
    stage.orders(8000)
    writer = stage.writer(*_CLUSTER, *_conf(_SPECULATION), "--max-records-per-transaction", "500")
    if (code := writer.wait(stage.deadline)) != 0:
        raise StalledError(f"the run ended with {code}: {writer.last_words()}")
    stage.fire("speculative_runs")


def no_local_disk(stage: Stage) -> None:
    """Spark's own directory can't be written: the run ends with nothing committed, and the next one does it all."""
    stage.orders(500)
    before = stage.commits()
    writer = stage.writer(*_LOCAL, *_conf({"spark.local.dir": _NO_DISK}))
    if writer.wait(stage.deadline) == 0 or stage.commits() != before:
        raise StalledError("a run without a local directory ended well; it should not have started")
    stage.fire("full_disks")


def _cell(
    name: str, fault: str, target: str, play: Callable[[Stage], None], *, bound_s: float | None = None, **needed: int
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
        limit_s=300.0,
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
        needed={"kills": _KILLS},
        limit_s=300.0,
    )


def _none(_stage: Stage) -> None:
    """Nothing to play."""


CELLS: Sequence[Cell] = (
    *map(_crash_cell, CrashPoint),
    _cell("F06-executor", "SIGKILL", "executor JVM", executor_killed, bound_s=30.0, kills=1),
    _cell("F06-driver", "SIGKILL", "driver JVM and program", driver_killed, bound_s=30.0, kills=1),
    _cell("F07-orphan", "SIGSTOP, JVM killed, SIGCONT", "Python worker", orphan, bound_s=30.0, pauses=1),
    _cell("F08-two-drivers", "two drivers, one group", "driver", two_drivers, rivals=2, meetings=1),
    _cell("F09-speculation", "speculation on", "Spark", speculation, speculative_runs=1),
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
