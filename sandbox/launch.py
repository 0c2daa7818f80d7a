"""Start brokers: format their data, launch them, wait until they answer or say why they don't."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.jvm.dependencies import KAFKAS, Part
from brew.kafka import clients, topics
from sandbox.jvm import QUICK, Jvm
from sandbox.layout import Layout, Node
from sandbox.network import Network
from sandbox.process import ServerProcess

_STARTED = b"Kafka Server started"
_POLL_S = 0.02
_LAST_LINES = 12


@dataclass(frozen=True, slots=True)
class Settings:
    """
    How brokers run: ``quick`` ones start in half the time and are slower under load; leashed ones end with us.

    ``namespaces`` gives each a network of its own, ``data_size_mb`` the last one a data directory of that size.
    ``secure`` brokers ask who is there (`sandbox.secure`); those of a cluster that was made so always do.
    ``kafka``: their version, a key of `brew.jvm.dependencies.KAFKAS`; None: the cluster's, a new one's is the first.
    """

    heap_mb: int = 512
    quick: bool = True
    leashed: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    start_s: float = 60.0
    namespaces: bool = False
    data_size_mb: int = 0
    secure: bool = False
    kafka: str | None = None

    @property
    def jvm(self) -> Jvm:
        return Jvm(part=KAFKAS[self.kafka] if self.kafka else Part.KAFKA)

    def kept(self) -> dict[str, Any]:
        """What a later command needs to start a broker again as this one would."""
        return {
            "heap_mb": self.heap_mb,
            "quick": self.quick,
            "properties": dict(self.properties),
            "kafka": self.kafka,
        }

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


def format_data(layout: Layout, nodes: Sequence[Node], jvm: Jvm, deadline: Deadline) -> None:
    """Let Kafka's own tool prepare the data directories that are new, all nodes at the same time."""
    new = [node for node in nodes if not (layout.data(node) / "meta.properties").exists()]
    running = [(node, _formatting(layout, node, jvm)) for node in new]
    try:
        for node, process in running:
            log = layout.home(node) / "format.log"
            try:
                code = process.wait(timeout=max(0.001, deadline.remaining_s()))
            except subprocess.TimeoutExpired as error:
                raise _not_started(node, "formatting its data directory took too long", log) from error
            if code != 0:
                raise _not_started(node, "its data directory could not be formatted", log)
    finally:
        for _, process in running:
            process.kill()
            process.wait()


def _formatting(layout: Layout, node: Node, jvm: Jvm) -> subprocess.Popen[bytes]:
    settings = str(layout.properties(node))
    arguments = ["format", "--ignore-formatted", "--cluster-id", layout.cluster_id, "--config", settings]
    with (layout.home(node) / "format.log").open("wb") as out:
        command = jvm.command("kafka.tools.StorageTool", arguments, flags=QUICK)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)


def launch(layout: Layout, node: Node, settings: Settings) -> ServerProcess:
    """Start one broker; it isn't ready when this returns."""
    command = settings.jvm.command("kafka.Kafka", [str(layout.properties(node))], flags=settings.flags())
    inside = Network(layout.directory).entering(node.number) if node.namespace else []
    return ServerProcess([*inside, *command], layout.log(node), leashed=settings.leashed)


def log_size(layout: Layout, node: Node) -> int:
    """Where the next start's lines will begin in the broker's log."""
    log = layout.log(node)
    return log.stat().st_size if log.exists() else 0


def await_started(layout: Layout, node: Node, begin: int, deadline: Deadline) -> None:
    """Wait for the broker's own word in its log, from ``begin`` on, then for its port; look at its life meanwhile."""
    log = layout.log(node)
    while not (_STARTED in _lines_from(log, begin) and _listens(node)):
        if not node.alive():
            raise _not_started(node, "it ended while starting", log, begin)
        if deadline.expired():
            raise _not_started(node, f"it was not ready within {deadline.budget_s:g} s", log, begin)
        time.sleep(_POLL_S)


def await_answer(connection: Connection, brokers: int, deadline: Deadline) -> None:
    """Return once a client is told of so many brokers."""
    clients.reach(connection, deadline)
    client = clients.admin(connection)
    while topics.brokers(client, deadline) < brokers:
        deadline.check("brokers finding each other")
        time.sleep(_POLL_S)


def _listens(node: Node) -> bool:
    try:
        socket.create_connection((node.host, node.port), timeout=1).close()
    except OSError:
        return False
    return True


def _not_started(node: Node, why: str, log: Path, begin: int = 0) -> Refused:
    lines = _lines_from(log, begin).decode("utf-8", "replace").splitlines()
    shown = [f"  {line}" for line in lines if not line.startswith("\t")]  # stack traces stay in the log
    last = "\n".join(shown[-_LAST_LINES:])
    return Refused(f"broker {node.number} on port {node.port} did not start: {why}; last lines of {log}:\n{last}")


def _lines_from(log: Path, begin: int) -> bytes:
    with log.open("rb") as file:
        file.seek(begin)
        return file.read()
