"""A real Kafka cluster on this machine, one node or three with replication: formatted, started, and awaited."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.jvm.dependencies import KAFKAS, Part
from brew.kafka import clients, topics
from sandbox import secure
from sandbox.isolation import Network, fill_disk, limit_disk, release_disks
from sandbox.jvm import QUICK, Jvm
from sandbox.layout import STATE_FILE, Layout, Node, new_cluster_id, on_ports, secured, server_properties
from sandbox.process import (
    HOST,
    PortTaken,
    ServerProcess,
    await_start,
    not_started,
    read_from,
    require_free,
    write_private,
)
from sandbox.secure import Security

_STARTED = b"Kafka Server started"
_POLL_S, _START_S, _STOP_GRACE_S, _PORT_CHOICES = 0.02, 120.0, 15.0, 3


@dataclass(frozen=True, slots=True)
class Settings:
    """
    How brokers run: ``quick`` ones start in half the time and are slower under load; with ``ends_with_parent``
    they end with us.

    ``namespaces`` gives each its own network, ``data_size_mb`` the last one a data directory of that size. ``secure``
    brokers authenticate clients (`sandbox.secure`); those of a cluster created that way always do. ``kafka``: a key of
    `brew.jvm.dependencies.KAFKAS`; None: the cluster's, or the first key for a new one.
    """

    heap_mb: int = 512
    quick: bool = True
    ends_with_parent: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    namespaces: bool = False
    data_size_mb: int = 0
    secure: bool = False
    kafka: str | None = None

    @property
    def jvm(self) -> Jvm:
        return Jvm(part=KAFKAS[self.kafka] if self.kafka else Part.KAFKA)

    def kept(self) -> dict[str, Any]:
        """Return the settings that a later command needs to restart a broker in the same way."""
        return {"heap_mb": self.heap_mb, "quick": self.quick, "properties": dict(self.properties), "kafka": self.kafka}

    def flags(self) -> list[str]:
        log = "-Dorg.slf4j.simpleLogger."
        return [
            *(QUICK if self.quick else ()),
            f"-Xmx{self.heap_mb}m",
            f"{log}showDateTime=true",
            f"{log}dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSS",
            f"{log}showThreadName=false",
            f"{log}log.org.apache.kafka.common.config.AbstractConfig=warn",
        ]


def _title(node: Node) -> str:
    return f"broker {node.number} on port {node.port}"


def format_data(layout: Layout, nodes: Sequence[Node], jvm: Jvm, deadline: Deadline) -> None:
    """Format the new data directories of all nodes in parallel, with Kafka's own tool."""
    new = [node for node in nodes if not (layout.data(node) / "meta.properties").exists()]
    running = []
    for node in new:
        given = ["--cluster-id", layout.cluster_id, "--config", str(layout.properties(node))]
        command = jvm.command("kafka.tools.StorageTool", ["format", "--ignore-formatted", *given], flags=QUICK)
        log = layout.home(node) / "format.log"
        with log.open("wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        running.append((node, process, log))
    try:
        for node, process, log in running:
            try:
                code = process.wait(timeout=max(0.001, deadline.remaining_s()))
            except subprocess.TimeoutExpired as error:
                raise not_started(_title(node), "formatting its data directory took too long", log) from error
            if code != 0:
                raise not_started(_title(node), "its data directory could not be formatted", log)
    finally:
        for _, process, _ in running:
            process.kill()
            process.wait()


def await_answer(connection: Connection, brokers: int, deadline: Deadline) -> None:
    """Wait until a client sees this number of brokers."""
    clients.reach(connection, deadline)
    client = clients.admin(connection)
    while topics.brokers(client, deadline) < brokers:
        deadline.check("brokers finding each other")
        time.sleep(_POLL_S)


def _listens(node: Node) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((node.host, node.port), timeout=1):
        return True
    return False


class Cluster:
    """A running cluster, or one to start from its directory; between commands, its state file is authoritative."""

    def __init__(self, layout: Layout, settings: Settings) -> None:
        self.layout = layout
        self.settings = settings
        self._started: dict[int, ServerProcess] = {}

    @classmethod
    def start(
        cls, directory: Path, *, brokers: int = 1, ports: Sequence[int] | None = None, settings: Settings | None = None
    ) -> Self:
        """Start the directory's cluster with its data, on ``ports``, its own or free ones; `Refused` if that fails."""
        directory = directory.resolve()
        directory.mkdir(parents=True, exist_ok=True)
        kept = Layout.read(directory)
        settings = settings or Settings()
        if kept is not None:
            _check_fits(kept, brokers, settings)
            settings = replace(settings, kafka=kept.kafka)
        if kept is not None and (ports is None or any(node.alive() for node in kept.nodes)):
            return cls._start_layout(kept, settings)
        cluster_id, secure_ = (kept.cluster_id, kept.secure) if kept else (new_cluster_id(), settings.secure)
        for choices_left in reversed(range(_PORT_CHOICES)):
            fresh = on_ports(directory, cluster_id, brokers, ports)
            try:
                return cls._start_layout(secured(fresh) if secure_ else fresh, settings)
            except PortTaken:  # free when it was chosen, and not any more when the broker came to it
                if not choices_left:
                    raise
        raise AssertionError("the last choice returns or raises")

    @classmethod
    def _start_layout(cls, kept: Layout, settings: Settings) -> Self:
        """Start the brokers of a layout that do not run; none that this call has started is left if one fails."""
        if settings.data_size_mb:
            kept = kept.with_node(kept.nodes[-1].number, size_mb=settings.data_size_mb)
        elsewhere: dict[str, Any] = {"namespace": settings.namespaces, "host": HOST}
        stay = [node.alive() or node.namespace == settings.namespaces for node in kept.nodes]
        placed = [n if stays else replace(n, **elsewhere) for n, stays in zip(kept.nodes, stay, strict=True)]
        kept = replace(kept, launched=settings.kept(), nodes=tuple(placed))
        cluster = cls(kept, settings)
        try:
            cluster._start([node for node in kept.nodes if not node.alive()])
        except BaseException:
            for number in list(cluster._started):
                cluster.kill(number)
            raise
        return cluster

    @classmethod
    def open(cls, directory: Path, settings: Settings | None = None) -> Self | None:
        """Return the cluster in ``directory``, running or not, or None if there never was one."""
        if (layout := Layout.read(directory.resolve())) is None:
            return None
        return cls(layout, settings or Settings(ends_with_parent=False, **layout.launched))

    @property
    def bootstrap(self) -> str:
        return self.layout.bootstrap

    @property
    def connection(self) -> Connection:
        """A connection with all rights."""
        return Security.of(self.layout).connection(self.layout) if self.layout.secure else Connection(self.bootstrap)

    def running(self) -> list[Node]:
        return [node for node in self.layout.nodes if node.alive()]

    def stop(self) -> int:
        """Shut all brokers down cleanly, keeping their data; return how many were running."""
        running = self.running()
        for node in running:  # all at once: a controller waits for its peers
            if node.identity is not None:
                node.identity.send(signal.SIGTERM)
        grace = Deadline(_STOP_GRACE_S)
        for node in self.layout.nodes:
            self._stop(node.number, grace)
        return len(running)

    def close(self, *, wipe: bool = False) -> None:
        """Stop all brokers; with ``wipe``, remove the cluster's files too, without waiting for a clean shutdown."""
        if not wipe:
            self.stop()
            self.network.remove()
            return
        for node in self.layout.nodes:
            self.kill(node.number)
        self.network.remove()
        release_disks(self.layout.directory)
        for folder in (*map(self.layout.home, self.layout.nodes), Security.of(self.layout).folder):
            shutil.rmtree(folder, ignore_errors=True)
        (self.layout.directory / STATE_FILE).unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(wipe=True)

    def kill(self, number: int = 1) -> None:
        """Send SIGKILL to one broker, as if its machine lost power; return when its port is free again."""
        if (identity := self.layout.node(number).identity) is not None:
            identity.kill()
        self._forget(number)

    def pause(self, number: int = 1) -> None:
        """Send SIGSTOP to one broker: its connections stay open, and it does not respond."""
        self._signal(number, signal.SIGSTOP)

    def resume(self, number: int = 1) -> None:
        self._signal(number, signal.SIGCONT)

    def restart(self, *numbers: int) -> None:
        """Start brokers again (default: the first) on their ports and data; running ones are stopped cleanly first."""
        for number in numbers or (1,):
            self._stop(number, Deadline(_STOP_GRACE_S))
        self._start([self.layout.node(number) for number in numbers or (1,)])

    def cut(self, number: int, others: Collection[int | str]) -> None:
        self.network.cut(number, others)

    def fill(self, number: int) -> int:
        return fill_disk(self.layout.data(self.layout.node(number)))

    def heal(self) -> int:
        """Remove all cuts and restore the free space of full disks; return the number of cuts."""
        for node in self.layout.nodes:
            if node.size_mb:
                limit_disk(self.layout.data(node), node.size_mb)
        return self.network.heal() if any(node.namespace for node in self.layout.nodes) else 0

    @property
    def network(self) -> Network:
        return Network(self.layout.directory)

    def _signal(self, number: int, what: signal.Signals) -> None:
        if (identity := self.layout.node(number).identity) is None or not identity.send(what):
            raise Refused(f"broker {number} is not running")

    def _stop(self, number: int, grace: Deadline) -> None:
        if (identity := self.layout.node(number).identity) is not None:
            identity.stop(grace)
        self._forget(number)

    def _forget(self, number: int) -> None:
        if (started := self._started.pop(number, None)) is not None:
            started.ended()
        self.layout = self.layout.with_node(number, identity=None)
        if self.layout.directory.exists():
            self.layout.write()

    def _start(self, nodes: Sequence[Node]) -> None:
        """Format new nodes, start all, record each process at once, and return when the whole cluster responds."""
        if not nodes:
            return
        self._place()
        if self.layout.secure:
            Security.of(self.layout).prepare(self.layout, renew=not self.running())
        nodes = [self.layout.node(node.number) for node in nodes]
        for node in nodes:
            if not node.namespace:  # in its own network, all ports are free
                for port in (node.port, node.controller_port, node.mutual_port):
                    require_free(port)
        deadline = Deadline(_START_S)
        for node in nodes:
            self.layout.home(node).mkdir(parents=True, exist_ok=True)
            more = secure.settings(self.layout, node) if self.layout.secure else {}
            text = server_properties(self.layout, node, {**more, **self.settings.properties})
            write_private(self.layout.properties(node), text.encode())
        jvm = self.settings.jvm
        jvm.class_path()  # refused before anything is kept
        self.layout.write()  # the data formatted now has this cluster's id, also if this command is killed
        format_data(self.layout, nodes, jvm, deadline)
        logs = {node.number: self.layout.log(node) for node in nodes}
        begin = {number: log.stat().st_size if log.exists() else 0 for number, log in logs.items()}
        for node in nodes:
            self._launch(node)
        for node in map(self.layout.node, logs):
            self._await(node, begin[node.number], deadline)
        self.finish_start(deadline)

    def finish_start(self, deadline: Deadline | None = None) -> None:
        """Wait until the brokers answer, and create users: the command that launched them may have been killed."""
        deadline = deadline or Deadline(_START_S)
        await_answer(self.connection, len(self.running()), deadline)
        if self.layout.secure:
            Security.of(self.layout).create_users(self.layout, deadline)

    def _await(self, node: Node, begin: int, deadline: Deadline) -> None:
        """Wait until the broker's log, from ``begin`` on, reports the start and its port is open."""
        log = self.layout.log(node)

        def ready() -> bool:
            return _STARTED in read_from(log, begin) and _listens(node)

        await_start(_title(node), ready, node.alive, log, deadline, begin)

    def _launch(self, node: Node) -> None:
        jvm, settings = self.settings.jvm, self.settings
        command = jvm.command("kafka.Kafka", [str(self.layout.properties(node))], flags=settings.flags())
        inside = self.network.entering(node.number) if node.namespace else []
        started = ServerProcess([*inside, *command], self.layout.log(node), ends_with_parent=settings.ends_with_parent)
        self._started[node.number] = started
        self.layout = self.layout.with_node(node.number, identity=started.identity)
        self.layout.write()

    def _place(self) -> None:
        """Create missing networks and limited disks, which a `down` or a reboot removed."""
        if any(node.namespace for node in self.layout.nodes):
            for number, host in self.network.make([node.number for node in self.layout.nodes]).items():
                self.layout = self.layout.with_node(number, host=host, namespace=True)
        for node in self.layout.nodes:
            if node.size_mb and not node.alive():
                limit_disk(self.layout.data(node), node.size_mb)


def _check_fits(kept: Layout, brokers: int, settings: Settings) -> None:
    holds, remove = f"{kept.directory} holds a cluster", "with `make down WIPE=1` (`down --wipe`), or choose another"
    if len(kept.nodes) != brokers:
        remedy = "start it with that number, or remove it with `make down WIPE=1`"
        raise Refused(f"{holds} of {len(kept.nodes)} brokers, not {brokers}; {remedy}")
    if settings.secure and not kept.secure:
        remedy = f"remove it and its data {remove} directory (--dir) for a secure one"
        raise Refused(f"{holds} without authentication; {remedy}")
    if settings.kafka not in {None, kept.kafka}:
        remedy = f"remove it {remove} directory (--dir)"
        raise Refused(f"{holds} of Kafka {kept.kafka}, not {settings.kafka}; {remedy}")


def make_archive(directory: Path) -> Path:
    """Create the archive of a broker's classes, which halves later starts, by running one; return its path."""
    jvm = Jvm()
    jvm.archive.unlink(missing_ok=True)
    fresh = jvm.archive.with_suffix(".new")
    with Cluster.start(directory, settings=_Recording()) as cluster:
        cluster.stop()  # cleanly: the file is written at the very end
    if not fresh.exists():
        raise Refused("the JVM wrote no class-data archive")
    return fresh.replace(jvm.archive)


class _Recording(Settings):
    def flags(self) -> list[str]:
        return [*super().flags(), f"-XX:ArchiveClassesAtExit={self.jvm.archive.with_suffix('.new')}"]
