"""The same on Spark: workers, executors and drivers crash, hang or exist twice; leases of the direct reader end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import psutil

from brew.journal import Phase, Step
from brew.names import CrashPoint
from proof.campaign import effects
from proof.campaign.cell import CONNECTOR, DIRECT, CellTable, Need, nothing
from proof.campaign.cells.writer import ROWS
from proof.campaign.cluster import SandboxFolder
from proof.campaign.effects import COPIES, HOLDERS, OPEN, fenced_since, kill_all, lines, stopped, tree
from proof.campaign.journals import Kill, open_ranges
from proof.campaign.programs import Program, repeated
from proof.campaign.stage import CellEnvironment, FaultMissedError, StalledError

CELLS = CellTable(path="spark", moment="mid batch", needs={Need.SPARK}, limit_s=1500.0)
bounded = partial(CELLS, bound_s=30.0)
_LOCAL = ("--master", "local[2]")
_CLUSTER = ("--master", "local-cluster[2,1,1024]")
_SMALL = ("--max-records-per-transaction", "500")
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.multiplier": "1.01",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.interval": "10ms",
    "spark.speculation.minTaskRuntime": "1ms",
}
_NO_DISK = "/proc/brew-no-such-disk"
# A task of the direct reader that Spark repeats does not kill itself, so a run has one death per slot.
_EACH_TIME = {CONNECTOR: ("local[2]", "0.5", 8000), DIRECT: ("local[4]", "1", 2000)}
_MEETINGS = {"fenced", "ahead", "already-done", "offset-gap"}
_START_S = 120.0
_EXECUTOR, _DRIVER, _WORKER = "CoarseGrainedExecutorBackend", "SparkSubmit", "pyspark.worker"
_LEASE_S, _LET_GO_S, _SLOTS = 3.0, 30.0, 2
_LEASED = (*_LOCAL, "--lease", f"{_LEASE_S:g}", "--max-records-per-transaction", "200")
# Only the direct reader holds partitions by a lease.
leased = partial(CELLS, readers=(DIRECT,), moment="open transaction", bound_s=20.0, limit_s=1200.0)


def descendants(writer: Program, word: str) -> list[psutil.Process]:
    """Return a writer's descendants whose command line contains ``word``, the oldest first."""
    below = [process for process in tree(psutil.Process(writer.pid)) if process.pid != writer.pid]
    found = (process for process in below if any(word in part for part in _words(process)))
    return sorted(found, key=lambda process: process.create_time())


def _any_executor(stage: CellEnvironment, writer: Program) -> psutil.Process:
    if executors := descendants(writer, _EXECUTOR):
        return stage.random.choice(executors)
    raise FaultMissedError("no executor was found to kill")


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return list(process.cmdline())
    return []


def _at_work(stage: CellEnvironment, *options: str, feed: int = 300) -> contextlib.AbstractContextManager[Program]:
    return stage.at_work(*options, feed=feed, orders=2000, seconds=_START_S * stage.slack)


class SparkCluster(SandboxFolder):
    """A standalone cluster of the sandbox, operated by its commands."""

    @property
    def url(self) -> str:
        return str(self.status()["url"])

    def workers(self) -> list[psutil.Process]:
        found = self.status()["processes"]
        return [psutil.Process(pid) for name, pid in found.items() if name != "master" and pid]


@contextlib.contextmanager
def standalone(stage: CellEnvironment, workers: int = 2, cores: int = 2) -> Iterator[SparkCluster]:
    """Run a standalone cluster with a host per worker: Spark runs no copy of a task on the task's own host."""
    with SparkCluster(stage.folder / "cluster", "spark") as cluster:
        cluster.run("up", "--port", "0", "--workers", str(workers), "--cores", str(cores))
        yield cluster
        stage.stop_writers()


def workers_crash(point: CrashPoint, stage: CellEnvironment) -> None:
    """Python workers kill themselves at ``point``; the run recovers each time, in the same JVM."""
    master, probability, orders = _EACH_TIME[stage.cell.reader]
    crash = ("--crash-prob", probability, "--crash-point", point, "--crash-mode", "worker")
    before = -1
    while before < (died := deaths(stage)) < stage.kills:
        before = died
        stage.orders(orders, "--transactional")
        seed = ("--crash-seed", str(stage.seed))
        stage.ended(stage.writer("--master", master, *crash, *seed, "--max-records-per-transaction", "200"))
    stage.fire("kills", died)


for _point in CrashPoint:
    _cells, _name = partial(CELLS, moment=_point, limit_s=1800.0), f"{ROWS[_point]}-{_point}-spark"
    _cells(_name, "SIGKILL", "Spark's Python worker", _point, needed={"kills": 0})(workers_crash)


def deaths(stage: CellEnvironment) -> int:
    """Count the writer processes in which a partition's last attempt has no outcome: they died in it."""
    written = [e for e in stage.journals.look() if e.step is not Step.READ]
    last = {(e.pid, e.fields["partition"]): e for e in sorted(written, key=lambda e: e.at)}
    return len({pid for (pid, _), entry in last.items() if entry.step is not Step.OUTCOME})


def _caught(
    stage: CellEnvironment,
    what: str,
    groups: Iterable[list[psutil.Process]],
    *,
    at_work: Sequence[psutil.Process] = (),
) -> tuple[list[psutil.Process], set[int]]:
    """Stop the first of these groups of which the brokers hold transactions open; return it and their partitions."""
    for victims in groups:
        if partitions := effects.caught_open(stage, victims, at_work=at_work):
            return victims, partitions
    raise FaultMissedError(f"no transaction that the brokers know as open was caught in {what}")


@bounded(
    *("F06-driver-and-executor", "SIGKILL at once", "driver and an executor JVM", True, True),
    needed=("killed_together", OPEN),
)
@bounded("F06-driver", "SIGKILL", "driver JVM and program", False, True, needed=("kills", OPEN))
@bounded("F06-executor", "SIGKILL", "executor JVM", True, False, needed=("kills", OPEN))
def killed(executor: bool, driver: bool, stage: CellEnvironment) -> None:
    """An executor JVM, the driver with its JVM, or both die in mid-batch; another one or a new driver continues."""
    options = (*(_CLUSTER if executor else _LOCAL), *_SMALL)
    with _at_work(stage, *options) as writer:
        for _ in range(stage.times):
            target = _any_executor(stage, writer) if executor else psutil.Process(writer.pid)
            victims, _ = _caught(stage, f"{[target.pid]}", [tree(target)])
            before: set[int] = set()
            if driver:
                before = {process.pid for process in tree(psutil.Process(writer.pid))}
                victims += descendants(writer, _DRIVER)
            died = kill_all(victims)
            stage.fire("killed_together" if executor and driver else "kills")
            if driver:
                writer.process_kill()
                writer = stage.writer(*options, "--follow", name="next")  # noqa: PLW2901 - the next to be killed
            stage.recovered(died, without=before)
            stage.await_commits(8)


@bounded("F07-orphan", "SIGSTOP, JVM killed, SIGCONT", "Python worker", needed=("pauses", "zombies_fenced", OPEN))
def orphan(stage: CellEnvironment) -> None:
    """A worker hangs, its JVM and driver die, and a new driver continues; then the worker wakes up."""
    with _at_work(stage, *_LOCAL, *_SMALL) as writer:
        workers, _ = _caught(stage, "any worker", [tree(*descendants(writer, _WORKER))])
        try:
            # Their daemon is not woken: it would end them as soon as it noticed that the JVM is gone.
            orphans = [worker for worker in workers if worker.ppid() in {other.pid for other in workers}]
            with effects.frozen(workers) as freezer:
                stage.fire("pauses", len(orphans))
                kill_all(descendants(writer, _DRIVER))
                writer.kill()
                killed = time.time()
                stage.writer(*_LOCAL, "--follow", name="next")
                stage.recovered(killed)
                woken = time.time()
                freezer.release(orphans)
                stage.fire("zombies_fenced", int(fenced_since(stage, {process.pid for process in orphans}, woken)))
                kill_all(workers)  # the daemon, still frozen, would end with the others
            stage.await_commits(8)
        finally:
            kill_all(workers)


def _met(stage: CellEnvironment) -> int:
    """Count how often a driver met the other one: it was fenced, or its range was already done."""
    return sum(e.fields.get("status") in _MEETINGS for e in stage.journals.look() if e.step is Step.OUTCOME)


@CELLS("F08-two-drivers", "two drivers, one group", "driver", needed={"rivals": 2, "meetings": 1})
def two_drivers(stage: CellEnvironment) -> None:
    """Two Spark drivers with one group fence each other."""
    with stage.feeding(600):
        stage.orders(2000)
        first = stage.writer(*_LOCAL, "--follow", *_SMALL, name="first")
        stage.await_commits(4, _START_S * stage.slack)
        second = stage.writer(*_LOCAL, "--follow", name="second")
        wanted = stage.times
        stage.until(lambda: _met(stage) >= wanted, f"{wanted} conflicts between the drivers", _START_S * stage.slack)
        stage.pause(20.0)
        stage.fire("meetings", _met(stage))
        stage.note_ended(first, second)
        stage.fire("rivals", 2)


@CELLS(
    *("F09-speculation", "a task stands still, a copy runs", "Spark"),
    readers=(CONNECTOR,),  # each job of the direct reader is of one task, and Spark copies none of those
    needed=(OPEN, COPIES, "fences"),
)
def speculation(stage: CellEnvironment) -> None:
    """A task hangs in its transaction, and Spark runs a copy of it on another host; then the first one wakes."""
    with standalone(stage) as cluster, stage.feeding():
        stage.orders(4000)
        stage.writer("--master", cluster.url, "--follow", *_SMALL, *repeated("--conf", SPECULATION))
        stage.await_commits(4, _START_S * stage.slack)
        # In a standalone cluster, they are not the driver's descendants.
        below = tree(*cluster.workers())
        workers = [process for process in below if any(_WORKER in word for word in _words(process))]
        worker = stage.random.choice(workers)
        victims, _ = _caught(stage, f"{[worker.pid]}", [tree(worker)])
        pids, asleep = {process.pid for process in victims}, time.time()
        with stopped(victims):
            stage.until(lambda: copied(stage, pids, asleep), "a copy of the stopped task")
            stage.recovered(asleep)
        stage.await_commits(8)
        stage.fire(COPIES, effects.copies(stage.journals.look()))


def copied(stage: CellEnvironment, sleepers: set[int], since: float) -> bool:
    """Return whether another process fenced a range that one of the sleepers had begun and not ended."""
    entries = stage.journals.look()
    mine = {p for pid in sleepers for p in open_ranges(entries, Kill(since, pid))}
    others = (e for e in entries if e.pid not in sleepers and e.at > since)
    return any(e.fields["partition"] in mine for e in others if e.step is Step.FENCE and e.phase is Phase.DONE)


CELLS(
    *("F09-split-range", "repartition, minPartitions", "Spark"),
    moment="plan",
    readers=(),
    needs=(),
    limit_s=120.0,
    not_applicable="no option reaches that setting, and a plan that cuts a range is refused before it runs",
)(nothing)


# It ends before anything is read.
@CELLS("F37-no-local-disk", "spark.local.dir can't be written", "disk", readers=(CONNECTOR,), needed=("full_disks",))
def no_local_disk(stage: CellEnvironment) -> None:
    """Spark's local directory can't be written: the run ends with nothing committed, and the next one does it all."""
    stage.orders(500)
    before = stage.commits()
    writer = stage.writer(*_LOCAL, "--conf", f"spark.local.dir={_NO_DISK}")
    if writer.wait(stage.deadline) == 0 or stage.commits() != before:
        raise StalledError("a run without a local directory ended well; it should not have started")
    if (code := stage.writer(*_LOCAL).wait(stage.deadline)) != 0:
        raise FaultMissedError(f"a run with a local directory ended with {code}, too, so this was not the reason")
    stage.fire("full_disks")


# Leases, which only the direct reader has: lost ones, and holders and drivers stopped for longer than one.


def _workers(stage: CellEnvironment, writer: Program) -> list[psutil.Process]:
    """Return all active lease holders, without the driver."""

    def others() -> list[psutil.Process] | None:
        found = [process for process in effects.holders(writer) if process.pid != writer.pid]
        return found if len(found) >= _SLOTS else None

    return stage.until(others, "a lease holder on each slot", _START_S * stage.slack)


def _await_gone(stage: CellEnvironment, what: str, connected: Callable[[], object]) -> None:
    stage.until(lambda: not connected(), what, _LET_GO_S * stage.slack)


@leased("F04-lease-holder", "SIGSTOP past the lease, then SIGCONT", "holder", needed=("holders_frozen", OPEN))
def holder_frozen(stage: CellEnvironment) -> None:
    """A holder hangs in a transaction for longer than its lease; others take over its partitions, and it wakes up."""
    with _at_work(stage, *_LEASED, feed=600) as writer:
        for _ in range(stage.times):
            holder = stage.random.choice(_workers(stage, writer))
            victims, partitions = _caught(stage, f"lease holder {holder.pid}", [[holder]])
            frozen = time.time()
            with stopped(victims):
                for partition in sorted(partitions):
                    stage.recovered(frozen, [partition])
            stage.fire("holders_frozen")
            stage.await_commits(8)


@leased("F04-lease-driver", "SIGSTOP past all leases, then SIGCONT", "driver", needed=("drivers_frozen", OPEN))
def driver_frozen(stage: CellEnvironment) -> None:
    """The driver is stopped past all leases: its holders release everything by themselves; then it continues."""
    with _at_work(stage, *_LEASED, feed=600) as writer:
        driver = psutil.Process(writer.pid)
        for _ in range(stage.times):
            workers = _workers(stage, writer)
            victims, _ = _caught(stage, "a holder of the stopped driver", [[driver]], at_work=workers)
            with stopped(victims):
                _await_gone(stage, "holders disconnecting", lambda: any(lines(writer, worker) for worker in workers))  # noqa: B023 - called in this round
                stage.fire("drivers_frozen")
            stage.recovered(time.time())
            stage.await_commits(8)


@leased("F07-lease-lost", "the line to the driver breaks", "holder", needed=("leases_lost", OPEN))
def lease_lost(stage: CellEnvironment) -> None:
    """The connection between a holder in a transaction and its driver breaks; its partitions are granted again."""
    with _at_work(stage, *_LEASED, feed=600) as writer:
        for _ in range(stage.times):
            holder = stage.random.choice(_workers(stage, writer))
            victims, partitions = _caught(stage, f"lease holder {holder.pid}", [[holder]])
            with stopped(victims):
                had = lines(writer, holder)
                for _, descriptor in had:
                    effects.cut(holder, descriptor)
            _await_gone(stage, "the end of the connection to the driver", lambda: had & lines(writer, holder))  # noqa: B023 - called in this round
            gone = time.time()  # until then, the holder may have ended its own transaction
            for partition in sorted(partitions):
                stage.recovered(gone, [partition])
            stage.fire("leases_lost")
            stage.await_commits(8)


# Spark's own cluster, a master and three workers: a worker dies or freezes, the master restarts, a worker is added.

on_cluster = partial(CELLS, bound_s=60.0)
# The driver declares an executor lost after 20 s of silence: the default is two minutes.
CLUSTER_CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}


@contextlib.contextmanager
def _on_cluster(stage: CellEnvironment) -> Iterator[SparkCluster]:
    """Within the block, run on a cluster, with orders fed; everything is down at the end."""
    with standalone(stage, workers=3, cores=1) as cluster, stage.feeding():
        stage.orders(2000, "--transactional")
        options = ("--follow", "--patience", "300", "--max-records-per-transaction", "200")
        stage.writer("--master", cluster.url, *options, *repeated("--conf", CLUSTER_CONF))
        stage.await_commits(4, 2 * _START_S * stage.slack)
        if stage.cell.reader == DIRECT:  # by journals, since here holders are not the driver's descendants
            below = {process.pid for process in tree(*cluster.workers())}
            stage.fire(HOLDERS, len({entry.pid for entry in stage.journals.entries} & below))
        yield cluster


def _stopped_at_work(stage: CellEnvironment, cluster: SparkCluster) -> tuple[list[psutil.Process], set[int]]:
    """Stop a worker and its executor while brokers hold transactions of theirs open; return them and the partitions."""
    workers = stage.random.sample(found := cluster.workers(), len(found))
    return _caught(stage, "any worker", (tree(worker) for worker in workers))


@on_cluster("F06-cluster-worker", "SIGKILL", "worker and its executor", needed=("kills", OPEN))
def worker_killed(stage: CellEnvironment) -> None:
    """A worker dies with its executor in mid-transaction, as when its machine loses power; the others do its work."""
    with _on_cluster(stage) as cluster:
        victims, partitions = _stopped_at_work(stage, cluster)
        killed = time.time()
        kill_all(victims)
        stage.fire("kills")
        for partition in sorted(partitions):
            stage.recovered(killed, [partition])
        stage.await_commits(8)


@on_cluster("F07-cluster-worker", "SIGSTOP, then SIGCONT", "worker and its executor", needed=("pauses", OPEN))
def worker_frozen(stage: CellEnvironment) -> None:
    """A worker hangs in mid-transaction until others have done its part; then it wakes up, and is fenced."""
    with _on_cluster(stage) as cluster:
        victims, partitions = _stopped_at_work(stage, cluster)
        pids, asleep = {process.pid for process in victims}, time.time()
        with stopped(victims):
            stage.fire("pauses")
            for partition in sorted(partitions):  # commits elsewhere arrive at once, before any takeover
                stage.recovered(asleep, [partition], without=pids)
            stage.await_commits(8)
            woken = time.time()
        stage.await_commits(8)
        stage.fire("woken_fenced", int(fenced_since(stage, pids, woken)))


@on_cluster("F06-cluster-master", "restarted, a worker added", "master", needed=("restarts", "added"))
def master_restarted(stage: CellEnvironment) -> None:
    """The master dies and restarts during a run, a worker is added, another one dies: the run continues throughout."""
    with _on_cluster(stage) as cluster:
        cluster.run("kill", "master")
        killed = time.time()
        stage.await_commits(4)
        cluster.run("restart", "master")
        stage.fire("restarts")
        stage.recovered(killed)
        cluster.run("add")
        stage.fire("added")
        stage.await_commits(8)
        cluster.run("kill", "1")
        stage.recovered(time.time())
        stage.await_commits(8)
