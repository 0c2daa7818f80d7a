"""Spark's own cluster, a master and three workers: a worker dies or freezes, the master restarts, a worker is added."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

from proof.campaign.cell import DIRECT, CellTable, Need
from proof.campaign.effects import HOLDERS, OPEN, caught_open, fenced_since, kill_all, signal_all, tree
from proof.campaign.programs import repeated
from proof.campaign.stage import CellEnvironment, StalledError

CELLS = CellTable(path="spark", moment="mid batch", needs={Need.SPARK}, limit_s=1500.0, bound_s=60.0)
_WORKERS = 3
_START_S, _COMMAND_S = 240.0, 240.0
# The driver declares an executor lost after 20 s of silence: the default is two minutes.
_CONF = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.network.timeout": "20s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "2s",
}


class _Cluster:
    """The sandbox's cluster, operated by its commands."""

    def __init__(self, stage: CellEnvironment) -> None:
        self._directory = str(stage.folder / "cluster")

    def command(self, *words: str) -> str:
        line = [sys.executable, "-m", "sandbox", "spark", *words, "--dir", self._directory]
        done = subprocess.run(line, capture_output=True, text=True, timeout=_COMMAND_S, check=False)
        if done.returncode and words[0] != "status":  # it fails while a process is down, as required here
            raise StalledError(f"`sandbox spark {' '.join(words)}` failed: {done.stderr.strip()}")
        return done.stdout

    def workers(self) -> list[psutil.Process]:
        found = json.loads(self.command("status", "--json"))["processes"]
        return [psutil.Process(pid) for name, pid in found.items() if name != "master" and pid]

    @property
    def url(self) -> str:
        return str(json.loads(self.command("status", "--json"))["url"])


@contextlib.contextmanager
def _at_work(stage: CellEnvironment) -> Iterator[_Cluster]:
    """Within the block, run on a cluster, with orders fed; everything is down at the end."""
    cluster = _Cluster(stage)
    try:
        cluster.command("up", "--port", "0", "--workers", str(_WORKERS), "--cores", "1")
        with stage.feeding():
            stage.orders(2000, "--transactional")
            small = ("--max-records-per-transaction", "200")
            stage.writer("--master", cluster.url, "--follow", "--patience", "300", *small, *repeated("--conf", _CONF))
            stage.await_commits(4, _START_S * stage.slack)
            if stage.cell.reader == DIRECT:
                stage.fire(HOLDERS, _holders(stage, cluster))
            yield cluster
        stage.stop_writers()
    finally:
        cluster.command("down", "--wipe")


def _holders(stage: CellEnvironment, cluster: _Cluster) -> int:
    """Count the workers' descendants that have written a journal: here they are not the driver's descendants."""
    below = {process.pid for worker in cluster.workers() for process in tree(worker)}
    return len({entry.pid for entry in stage.journals.entries} & below)


def _stopped_at_work(stage: CellEnvironment, cluster: _Cluster) -> tuple[list[psutil.Process], set[int]]:
    """Stop a worker and its executor while brokers hold transactions of theirs open; return them and the partitions."""
    for worker in stage.random.sample(found := cluster.workers(), len(found)):
        if partitions := caught_open(stage, victims := tree(worker)):
            return victims, partitions
    stage.doubts.append("no worker was caught with a transaction that the brokers know as open")
    return [], set()


@CELLS("F06-cluster-worker", "SIGKILL", "worker and its executor", needed=("kills", OPEN))
def worker_killed(stage: CellEnvironment) -> None:
    """A worker dies with its executor in mid-transaction, as when its machine loses power; the others do its work."""
    with _at_work(stage) as cluster:
        victims, partitions = _stopped_at_work(stage, cluster)
        if not victims:
            return
        killed = time.time()
        kill_all(victims)
        stage.fire("kills")
        for partition in sorted(partitions):
            stage.recovered(killed, [partition])
        stage.await_commits(8)


@CELLS("F07-cluster-worker", "SIGSTOP, then SIGCONT", "worker and its executor", needed=("pauses", OPEN))
def worker_frozen(stage: CellEnvironment) -> None:
    """A worker hangs in mid-transaction until others have done its part; then it wakes up, and is fenced."""
    with _at_work(stage) as cluster:
        victims, partitions = _stopped_at_work(stage, cluster)
        if not victims:
            return
        pids, asleep = {process.pid for process in victims}, time.time()
        try:
            stage.fire("pauses")
            for partition in sorted(partitions):  # commits elsewhere arrive at once, before any takeover
                stage.recovered(asleep, [partition], without=pids)
            stage.await_commits(8)
        finally:
            woken = time.time()
            signal_all(victims, stop=False)
        stage.await_commits(8)
        stage.fire("woken_fenced", int(fenced_since(stage, pids, woken)))


@CELLS("F06-cluster-master", "restarted, a worker added", "master", needed=("restarts", "added"))
def master_restarted(stage: CellEnvironment) -> None:
    """The master dies and restarts during a run, a worker is added, another one dies: the run continues throughout."""
    with _at_work(stage) as cluster:
        cluster.command("kill", "master")
        killed = time.time()
        stage.await_commits(4)
        cluster.command("restart", "master")
        stage.fire("restarts")
        stage.recovered(killed)
        cluster.command("add")
        stage.fire("added")
        stage.await_commits(8)
        cluster.command("kill", "1")
        stage.recovered(time.time())
        stage.await_commits(8)
