"""A Kafka cluster of the sandbox on disk: its nodes, their settings, the state file."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from brew.errors import UsageError
from brew.jvm.dependencies import KAFKAS
from sandbox.process import HOST, Identity, free, read_state, write_state

STATE_FILE = "kafka.json"


@dataclass(frozen=True, slots=True)
class Node:
    """One Kafka process, running if it has an identity; ``size_mb``: of its data; ``mutual_port``: for certificates."""

    number: int
    port: int
    controller_port: int
    identity: Identity | None = None
    host: str = HOST
    namespace: bool = False
    size_mb: int = 0
    mutual_port: int = 0

    def alive(self) -> bool:
        return self.identity is not None and self.identity.alive()


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster's directory: the state file and, for each node, its settings, log and data."""

    directory: Path
    cluster_id: str
    nodes: tuple[Node, ...]
    launched: Mapping[str, Any] = field(default_factory=dict)
    """How the brokers were started, for commands that start one again."""

    @property
    def kafka(self) -> str:
        return self.launched.get("kafka") or next(iter(KAFKAS))

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.nodes)

    @property
    def secure(self) -> bool:
        return any(node.mutual_port for node in self.nodes)

    @property
    def bootstrap_mutual(self) -> str:
        """The bootstrap list for clients that authenticate by certificate instead of password."""
        return ",".join(f"{node.host}:{node.mutual_port}" for node in self.nodes)

    def node(self, number: int) -> Node:
        return next(node for node in self.nodes if node.number == number)

    def document(self, node: Node) -> dict[str, object]:
        alive = node.alive()
        return {
            "broker": node.number,
            "address": f"{'localhost' if node.host == HOST else node.host}:{node.port}",
            "running": alive,
            "process": node.identity.pid if node.identity and alive else None,
            "log": str(self.log(node)),
            "data": str(self.data(node)),
            "network": "namespaces" if node.namespace else "loopback",
            "data_size_mb": node.size_mb or None,
        }

    def home(self, node: Node) -> Path:
        return self.directory / f"kafka-{node.number}"

    def log(self, node: Node) -> Path:
        return self.home(node) / "server.log"

    def data(self, node: Node) -> Path:
        return self.home(node) / "data"

    def properties(self, node: Node) -> Path:
        return self.home(node) / "server.properties"

    def with_node(self, number: int, **changed: Any) -> Layout:
        return replace(self, nodes=tuple(replace(n, **changed) if n.number == number else n for n in self.nodes))

    def write(self) -> None:
        nodes = [asdict(node) for node in self.nodes]
        kept = {"cluster_id": self.cluster_id, "nodes": nodes, "launched": dict(self.launched)}
        write_state(self.directory / STATE_FILE, kept)

    @classmethod
    def read(cls, directory: Path) -> Layout | None:
        def parsed(kept: Any) -> Layout:
            nodes = [Node(**{**node, "identity": Identity.parse(node["identity"])}) for node in kept["nodes"]]
            return cls(directory, kept["cluster_id"], tuple(nodes), kept.get("launched", {}))

        remedy = f"if none of its servers runs, remove {directory}"
        return read_state(directory / STATE_FILE, parsed, "cluster", remedy)


def server_properties(layout: Layout, node: Node, more: Mapping[str, object]) -> str:
    """Return a node's settings, ``more`` last; with three nodes or more, three replicas and two in sync."""
    replicas, needed = (3, 2) if len(layout.nodes) >= 3 else (1, 1)  # noqa: PLR2004 - Kafka's recommendation
    voters = ",".join(f"{n.number}@{n.host}:{n.controller_port}" for n in layout.nodes)
    settings: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.number,
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{node.host}:{node.port},CONTROLLER://{node.host}:{node.controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "log.dirs": layout.data(node),
        "default.replication.factor": replicas,
        "min.insync.replicas": needed,
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": needed,
        # Kafka creates these topics at first use, while the first client waits: 50 partitions each take a second.
        "offsets.topic.num.partitions": 8,
        "transaction.state.log.num.partitions": 8,
        "group.initial.rebalance.delay.ms": 0,
        # A killed broker can't register again until its old registration expires: 9 s by default.
        "broker.session.timeout.ms": 3000,
        "broker.heartbeat.interval.ms": 500,
        "auto.create.topics.enable": "false",
        # Both indexes are mapped at full size, and file systems with long read-ahead fill them with zeros at the first
        # record: at Kafka's 10 MiB each, 64 new partitions took 4 s of a broker's processor time.
        "log.index.size.max.bytes": 1024**2,
        **more,
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def secured(layout: Layout) -> Layout:
    """Return the same cluster, with a port on each node for clients with certificates."""
    taken = [port for node in layout.nodes for port in (node.port, node.controller_port)]
    pairs = zip(layout.nodes, free(len(layout.nodes), apart_from=taken), strict=True)
    return replace(layout, nodes=tuple(replace(node, mutual_port=port) for node, port in pairs))


def plan(directory: Path, cluster_id: str, ports: Sequence[int], controller_ports: Sequence[int]) -> Layout:
    pairs = enumerate(zip(ports, controller_ports, strict=True), start=1)
    return Layout(directory, cluster_id, tuple(Node(n, port, controller) for n, (port, controller) in pairs))


def on_ports(directory: Path, cluster_id: str, brokers: int, ports: Sequence[int] | None) -> Layout:
    """Return a cluster on the given ports, or on free ones; controllers always get free ones."""
    if brokers < 1 or (ports is not None and len(ports) != brokers):
        raise UsageError(f"{brokers} brokers need {brokers} ports, got {list(ports or ())}")
    ports_found = free(2 * brokers if ports is None else brokers, apart_from=ports or ())
    return plan(directory, cluster_id, ports or ports_found[brokers:], ports_found[:brokers])


def new_cluster_id() -> str:
    """Return 16 random bytes in Kafka's id format; Kafka's tool would take a leading dash for an option."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    return text if not text.startswith("-") else new_cluster_id()
