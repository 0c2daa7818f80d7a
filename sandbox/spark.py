"""A standalone Spark cluster on this machine: a master and workers as processes, each worker with its own address."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import click
import psutil

from brew.cli import option
from brew.deadline import Deadline
from brew.errors import Refused, UsageError
from brew.jvm.dependencies import java
from brew.names import ExitCode
from sandbox.jvm import QUICK
from sandbox.process import HOST, Identity, ServerProcess, await_start, free, read_state, require_free, write_state
from sandbox.stores import Server, directory_option, each_command, exclusive

MASTER = "master"
LOG4J = Path(__file__).with_name("spark-log4j2.properties")
_STATE_FILE = "spark.json"
FIRST_PORT = 7077
_DEPLOY, _SCALA = "org.apache.spark.deploy", "2.13"
_REGISTERED = re.compile(rb"Successfully registered with master|Registered with master")
_LEADER = re.compile(rb"I have been elected leader")
_START_S, _STOP_S = 120.0, 15.0
# By default, the master declares a silent worker lost after a minute.
_WORKER_TIMEOUT_S = 15


@dataclass(frozen=True, slots=True)
class Settings:
    """Each worker's resources, and the Python of its executors; ``ends_with_parent``: they end with us."""

    cores: int = 2
    memory_mb: int = 1024
    python: str = sys.executable
    ends_with_parent: bool = True


@dataclass(frozen=True, slots=True)
class State:
    """What the next command needs to know: the master's port, the workers' settings, and the processes."""

    port: int
    cores: int
    memory_mb: int
    python: str
    processes: Mapping[str, Identity | None] = field(default_factory=dict)

    @classmethod
    def read(cls, directory: Path) -> State | None:
        def parsed(kept: Any) -> State:
            processes = {name: Identity.parse(one) for name, one in kept.pop("processes").items()}
            return cls(**kept, processes=processes)

        return read_state(directory / _STATE_FILE, parsed, "cluster", f"remove {directory}")


class SparkCluster:
    """A cluster with its directory; signals go to `master` or a worker's number, and to all its descendants."""

    def __init__(self, directory: Path, state: State, *, ends_with_parent: bool = True) -> None:
        self.directory = directory
        self.state = state
        self._ends_with_parent = ends_with_parent
        self._started: dict[str, ServerProcess] = {}

    @classmethod
    def start(
        cls, directory: Path, *, workers: int = 3, port: int | None = None, settings: Settings | None = None
    ) -> Self:
        """Start the master and ``workers`` workers, if they don't run; `Refused` if something is missing or fails."""
        settings = settings or Settings()
        directory = directory.resolve() / "spark"
        directory.mkdir(parents=True, exist_ok=True)
        state = State.read(directory)
        if state is None or not any(one is not None and one.alive() for one in state.processes.values()):
            port = port or (state.port if state else free(1)[0])
            state = State(port, settings.cores, settings.memory_mb, settings.python)
        cluster = cls(directory, state, ends_with_parent=settings.ends_with_parent)
        try:
            cluster._start_missing(workers, Deadline(_START_S))
        except BaseException:
            for name in list(cluster._started):
                cluster._stop(name)
            raise
        return cluster

    def _start_missing(self, workers: int, deadline: Deadline) -> None:
        if not self.alive(MASTER):
            require_free(self.state.port)
            self._launch(MASTER)
            self._await(MASTER, deadline)
        names = {*map(str, range(1, workers + 1)), *self.workers}
        new = [name for name in sorted(names, key=int) if not self.alive(name)]
        for name in new:
            self._launch(name)
        for name in new:
            self._await(name, deadline)

    @classmethod
    def open(cls, directory: Path, *, ends_with_parent: bool = True) -> Self | None:
        """Return the cluster of ``directory``, running or not, or None if there never was one."""
        home = directory.resolve() / "spark"
        state = State.read(home)
        return None if state is None else cls(home, state, ends_with_parent=ends_with_parent)

    @property
    def url(self) -> str:
        return f"spark://{HOST}:{self.state.port}"

    @property
    def workers(self) -> list[str]:
        return sorted(self.state.processes.keys() - {MASTER}, key=int)

    def log(self, name: str) -> Path:
        return self.directory / ("master.log" if name == MASTER else f"worker-{name}.log")

    def alive(self, name: str) -> bool:
        identity = self.state.processes.get(name)
        return identity is not None and identity.alive()

    def add_worker(self) -> str:
        """Start one more worker; return its number."""
        name = str(max(map(int, self.workers), default=0) + 1)
        self.restart(name)
        return name

    def kill(self, name: str) -> None:
        """Send SIGKILL to a process and all its descendants, as if its machine lost power."""
        psutil.wait_procs(self._send_all(name, signal.SIGKILL), timeout=_STOP_S)
        self._ended(name)

    def pause(self, name: str) -> None:
        """Send SIGSTOP: connections stay open, nothing responds."""
        self._send_all(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self._send_all(name, signal.SIGCONT)

    def restart(self, name: str) -> None:
        """Start a process again; a running one is shut down cleanly first."""
        self._stop(name)
        self._launch(name)
        self._await(name, Deadline(_START_S))

    def close(self, *, wipe: bool = False) -> int:
        """Stop all running processes, workers first; return their number."""
        running = [name for name in (*self.workers, MASTER) if self.alive(name)]
        for name in running:
            self._stop(name)
        if wipe:
            shutil.rmtree(self.directory, ignore_errors=True)
        return len(running)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send_all(self, name: str, number: signal.Signals) -> list[psutil.Process]:
        identity = self.state.processes.get(name)
        if identity is None or not (family := identity.send_all(number)):
            raise Refused(f"{_title(name)} is not running; `python -m sandbox spark status` shows what is")
        return family

    def _stop(self, name: str) -> None:
        identity = self.state.processes.get(name)
        if identity is None or not identity.alive():
            return
        family = identity.send_all(signal.SIGCONT)
        identity.stop(Deadline(_STOP_S))
        for child in family[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(family[1:], timeout=_STOP_S)
        self._ended(name)

    def _ended(self, name: str) -> None:
        if started := self._started.pop(name, None):
            started.ended()
        self._note(name, None)

    def _note(self, name: str, identity: Identity | None) -> None:
        self.state = replace(self.state, processes={**self.state.processes, name: identity})
        write_state(self.directory / _STATE_FILE, asdict(self.state))

    def _launch(self, name: str) -> None:
        root = spark_home()
        recovery = ["-Dspark.deploy.recoveryMode=FILESYSTEM"]
        recovery += [f"-Dspark.deploy.recoveryDirectory={self.directory}/recovery"]
        words = [java(), *QUICK, "-Xmx256m", f"-Dlog4j2.configurationFile=file:{LOG4J}", *recovery]
        words += [f"-Dspark.worker.timeout={_WORKER_TIMEOUT_S}", "-cp", f"{root}/jars/*"]
        if name == MASTER:
            words += [f"{_DEPLOY}.master.Master", "--host", HOST, "--port", str(self.state.port), "--webui-port", "0"]
        else:
            host = f"127.0.0.{int(name) + 1}"
            offer = ["--cores", str(self.state.cores), "--memory", f"{self.state.memory_mb}m"]
            words += [f"{_DEPLOY}.worker.Worker", "--host", host, "--port", "0", "--webui-port", "0", *offer]
            words += ["--work-dir", str(self.directory / f"work-{name}"), self.url]
        # Executors run the first python3 on their worker's PATH, and import nothing through our PYTHONPATH.
        path = os.pathsep.join([str(Path(self.state.python).parent), *os.get_exec_path()])
        variables = [f"SPARK_HOME={root}", f"SPARK_SCALA_VERSION={_SCALA}", f"PATH={path}"]
        self.log(name).write_bytes(b"")
        command = ["env", "-u", "PYTHONPATH", *variables, *words]
        self._started[name] = ServerProcess(command, self.log(name), ends_with_parent=self._ends_with_parent)
        self._note(name, self._started[name].identity)

    def _await(self, name: str, deadline: Deadline) -> None:
        log, wanted = self.log(name), _LEADER if name == MASTER else _REGISTERED

        def ready() -> bool:
            return wanted.search(log.read_bytes()) is not None

        await_start(f"Spark's {_title(name)}", ready, lambda: self.alive(name), log, deadline)


def _title(name: str) -> str:
    return name if name == MASTER else f"worker {name}"


def spark_home() -> Path:
    if (found := importlib.util.find_spec("pyspark")) is None or found.origin is None:
        raise Refused("pyspark is not installed; it is one of this package's requirements")
    return Path(found.origin).parent


_name = click.argument("name")


@click.group()
def spark() -> None:
    """
    Run a standalone Spark cluster on this machine: one master, some workers.

    Examples:
      python -m sandbox spark up                  a master and three workers; prints the URL for --master
      python -m sandbox spark status --json
      python -m sandbox spark add                 one more worker
      python -m sandbox spark kill 2              break it: kill pause resume restart; NAME is a number or master
      python -m sandbox spark down --wipe
    """


@spark.command()
@option("--workers", type=click.IntRange(1, 9), default=3, help="Number of workers.")
@option("--cores", type=click.IntRange(1), default=2, help="Cores of each worker.")
@option("--memory-mb", type=click.IntRange(512), default=1024, help="Memory of each worker in MiB.")
@option("--port", type=click.IntRange(0, 65_535), default=FIRST_PORT, help="Port of the master; 0: a free one.")
@directory_option
def up(workers: int, cores: int, memory_mb: int, port: int, directory: Path) -> None:
    """
    Start the cluster; does nothing if it is running.

    Examples:
      python -m sandbox spark up --workers 2 --cores 1
      python -m sandbox spark up --port 0
    """
    with exclusive(directory):
        settings = Settings(cores, memory_mb, ends_with_parent=False)
        cluster = SparkCluster.start(directory, workers=workers, port=port or None, settings=settings)
    click.echo(f"Spark is up at {cluster.url} with {len(cluster.workers)} workers ({cluster.directory}/*.log)")
    click.echo(f"To run on it: make run-pipeline MASTER={cluster.url}")


@spark.command()
@option("--wipe", is_flag=True, help="Also remove the logs and the executors' folders.")
@directory_option
def down(directory: Path, *, wipe: bool) -> None:
    """
    Stop the cluster; does nothing if it is not running.

    Example:
      python -m sandbox spark down --wipe
    """
    if not directory.exists():
        click.echo("nothing is up")
        return
    with exclusive(directory):
        cluster = SparkCluster.open(directory)
        stopped = 0 if cluster is None else cluster.close(wipe=wipe)
    click.echo(f"Spark is down ({stopped} stopped)" if stopped else "nothing is up")


@spark.command()
@option("--json", "as_json", is_flag=True, help="Print one JSON document instead of text.")
@directory_option
def status(directory: Path, *, as_json: bool) -> None:
    """
    Show each process's state; exit code 3 unless all that were started are up.

    Example:
      python -m sandbox spark status --json
    """
    cluster = SparkCluster.open(directory)
    running = {name: cluster.alive(name) for name in (MASTER, *cluster.workers)} if cluster else {}
    if as_json:
        known = cluster.state.processes if cluster else {}
        processes = {name: identity.pid if (identity := known[name]) and running[name] else None for name in running}
        click.echo(json.dumps({"url": cluster.url if cluster else None, "running": running, "processes": processes}))
    elif cluster is None:
        click.echo(f"no cluster was ever started in {directory}")
    else:
        for name, alive in running.items():
            click.echo(f"{_title(name):<10} {'up' if alive else 'down':<5} {cluster.log(name)}")
    click.get_current_context().exit(ExitCode.DONE if running and all(running.values()) else ExitCode.REFUSED)


@spark.command()
@directory_option
def add(directory: Path) -> None:
    """
    Start one more worker.

    Example:
      python -m sandbox spark add
    """
    with exclusive(directory):
        name = _detached_cluster(directory).add_worker()
    click.echo(f"worker {name} is up")


def _detached_cluster(directory: Path) -> SparkCluster:
    if (found := SparkCluster.open(directory, ends_with_parent=False)) is None:
        raise Refused(f"no cluster in {directory}; `python -m sandbox spark up` starts one")
    return found


def _process(directory: Path, name: str) -> Iterator[Server]:
    cluster = _detached_cluster(directory)
    known = (MASTER, *cluster.workers)
    if name not in known:
        raise UsageError(f"{name!r} is not a process of this cluster; choose one of: {' '.join(known)}")
    yield _title(name), (cluster, name)


for _what, _summary, _act, _done in (
    ("kill", "Send SIGKILL to the master or a worker, with its executors.", SparkCluster.kill, "is killed"),
    ("pause", "Send SIGSTOP to the master or a worker, with its executors.", SparkCluster.pause, "is paused"),
    ("resume", "Send SIGCONT to a paused one.", SparkCluster.resume, "is resumed"),
    ("restart", "Restart the master or a worker.", SparkCluster.restart, "is up"),
):
    spark.add_command(each_command(_what, _summary, f"spark {_what} 2", _name, _process, _act, _done))
