"""Containers for tests: an engine that responds, and a Kafka broker on testcontainers' public base class."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import docker
import psutil
from docker.errors import DockerException, NotFound
from testcontainers.core.config import testcontainers_config
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network
from testcontainers.core.wait_strategies import LogMessageWaitStrategy

from brew.connection import SCRAM, Connection, Secret, jaas
from brew.deadline import Deadline
from brew.kafka import clients, cluster_admin
from sandbox.certificates import Authority
from sandbox.process import ServerProcess, free

from .waiting import until

KAFKA_IMAGE = "apache/kafka:4.1.1"
INSIDE_PORT, SECRET_PORT = 19092, 19093
SECRET_USER = "pipeline"
INSTALL = "install one with `scripts/setup-packages.sh containers`, then make the images with `make containers`"
_OWNER = "brew.test.process"
_PING_S, _SERVICE_S = 5, 20
_GRACE_S = 40


class NoEngineError(AssertionError):
    """No container engine responds; the message names the command that installs one."""


def engine_answers() -> bool:
    """Return whether a Docker API responds at `DOCKER_HOST` or the usual socket."""
    with contextlib.suppress(DockerException), contextlib.closing(docker.from_env(timeout=_PING_S)) as client:
        return bool(client.ping())
    return False


@contextlib.contextmanager
def engine() -> Iterator[str]:
    """
    Yield the command line name of an engine that serves Docker's API at `DOCKER_HOST`.

    Docker, or whatever else responds, is used as it is. Otherwise, Podman's service runs on its own socket until the
    block ends. Containers and networks of killed tests are removed first.

    Raises:
        NoEngineError: there is neither.
    """
    with contextlib.ExitStack() as stack:
        command = next((one for one in ("docker", "podman") if shutil.which(one)), "docker")
        if not engine_answers():
            stack.enter_context(_podman_service())
            command = "podman"
        # No cleanup container is needed, and its image can't be pulled everywhere.
        testcontainers_config.ryuk_disabled = True
        _remove_leftovers()
        yield command


@contextlib.contextmanager
def _podman_service() -> Iterator[None]:
    podman = shutil.which("podman")
    if podman is None:
        raise NoEngineError(f"no container engine answers here, and there is no podman; {INSTALL}")
    folder = Path(tempfile.mkdtemp(prefix="brew-podman-"))
    address, log = f"unix://{folder}/podman.sock", folder / "service.log"
    service = ServerProcess([podman, "system", "service", "--time=0", address], log, ends_with_parent=True)
    before = os.environ.get("DOCKER_HOST")
    os.environ["DOCKER_HOST"] = address
    try:
        until(lambda: engine_answers() or not service.identity.alive(), "Podman's service", _SERVICE_S)
        if not service.identity.alive():
            raise NoEngineError(f"`podman system service` ended: {log.read_text()[-500:]}; {INSTALL}")
        yield
    finally:
        del os.environ["DOCKER_HOST"]
        if before is not None:
            os.environ["DOCKER_HOST"] = before
        service.identity.kill()
        service.ended()
        shutil.rmtree(folder, ignore_errors=True)


def _labels() -> dict[str, str]:
    return {_OWNER: str(os.getpid())}


def _remove_leftovers() -> None:
    with contextlib.closing(docker.from_env()) as client:
        leftovers = [*client.containers.list(all=True, filters={"label": _OWNER})]
        leftovers += client.networks.list(filters={"label": _OWNER})
        for leftover in leftovers:
            labels = leftover.labels if hasattr(leftover, "labels") else leftover.attrs["Labels"]
            if not psutil.pid_exists(int(labels[_OWNER])):
                with contextlib.suppress(NotFound):
                    leftover.remove(**({"force": True} if hasattr(leftover, "status") else {}))


def network() -> Network:
    """Return a new bridge network with name resolution; a context manager."""
    return Network(docker_network_kw={"labels": _labels()})


class Container(DockerContainer):
    """A container that knows its exit code, and can be killed and restarted with its files."""

    def __init__(self, image: str, **settings: Any) -> None:
        super().__init__(image, labels=_labels(), **settings)
        self.published: dict[int, str] = {}

    def publish(self, port: int) -> str:
        """Publish ``port`` to this machine; return the address (testcontainers' own query fails with Podman)."""
        self.published[port] = f"localhost:{free(1)[0]}"
        self.with_bind_ports(port, int(self.published[port].rpartition(":")[2]))
        return self.published[port]

    def kill(self) -> None:
        """Send SIGKILL to its main process."""
        self.get_wrapped_container().kill()

    def again(self) -> None:
        """Restart a container that has ended, with its files and ports."""
        self.get_wrapped_container().start()

    def running(self) -> bool:
        self.reload()
        return self.status == "running"

    def end(self, seconds: int = _GRACE_S) -> int:
        """Send SIGTERM and, after ``seconds``, SIGKILL; return the exit code."""
        self.get_wrapped_container().stop(timeout=seconds)
        return self.wait()

    def text(self) -> str:
        """Return its output on both streams."""
        return b"".join(self.get_logs()).decode(errors="replace")


class KafkaContainer(Container):
    """
    One broker with the interface of `apache/kafka`: settings as `KAFKA_...`, on a free port of this machine.

    Clients on this machine connect to `bootstrap`, containers of its network to `inside`, and with TLS, `SECRET_USER`
    and `password` to `secret`; `authority` is the CA certificate's file. The host's port is known before the start, so
    that the broker can advertise it; testcontainers' own Kafka class writes a start script for another image, and
    refuses this one's tag.
    """

    def __init__(self, network: Network | None = None, *, name: str = "kafka", image: str = KAFKA_IMAGE) -> None:
        super().__init__(image)
        # The broker itself connects here too (transaction markers), so without a network it is its own localhost.
        self.inside = f"{name if network else 'localhost'}:{INSIDE_PORT}"
        self.secret = f"{name}:{SECRET_PORT}"
        self.password = secrets.token_hex(16)
        self._folder = Path(tempfile.mkdtemp(prefix="brew-container-"))
        self.authority = self._certificates(name)
        self.with_volume_mapping(self._folder, "/etc/kafka/secrets", "ro")
        self.bootstrap = self.publish(9092)
        if network is not None:
            self.with_network(network).with_network_aliases(name)
        self.env.update(self._settings())
        self.waiting_for(LogMessageWaitStrategy("Kafka Server started").with_startup_timeout(90))

    def start(self) -> Self:
        """Start the broker, and create the user."""
        super().start()
        client = clients.admin(Connection(self.bootstrap))
        cluster_admin.set_passwords(client, {SECRET_USER: Secret(self.password)}, [SCRAM[0]], Deadline(30))
        return self

    def stop(self, *, force: bool = True, delete_volume: bool = True) -> None:
        """Remove the container with its files."""
        super().stop(force, delete_volume)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _certificates(self, name: str) -> Path:
        """Return the path of the CA certificate; the broker's certificate and key are beside it."""
        authority, broker = Authority.fresh(), self._folder / "broker.pem"
        authority.write(self._folder)
        broker.write_bytes(b"".join(authority.issue(name, [name, "localhost"])))
        for file, mode in ((self._folder, 0o755), (broker, 0o644), (self._folder / "ca.pem", 0o644)):
            file.chmod(mode)  # the container runs as another user
        return self._folder / "ca.pem"

    def again(self) -> None:
        """Restart the container and wait until the broker reports that it is ready."""
        starts = self.text().count("Kafka Server started")
        super().again()
        until(lambda: self.text().count("Kafka Server started") > starts, "the broker's start", 90)

    def _settings(self) -> Mapping[str, str]:
        module = jaas(SCRAM[0], "-", "-").partition(" username")[0]
        kinds = {"CONTROLLER": "PLAINTEXT", "PLAINTEXT": "PLAINTEXT", "INSIDE": "PLAINTEXT", "SECRET": "SASL_SSL"}
        return {
            "KAFKA_NODE_ID": "1",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_LISTENERS": f"PLAINTEXT://:9092,INSIDE://:{INSIDE_PORT},SECRET://:{SECRET_PORT},CONTROLLER://:9093",
            "KAFKA_ADVERTISED_LISTENERS": f"PLAINTEXT://{self.bootstrap},INSIDE://{self.inside},SECRET://{self.secret}",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": ",".join(f"{one}:{kind}" for one, kind in kinds.items()),
            "KAFKA_SASL_ENABLED_MECHANISMS": SCRAM[0],
            "KAFKA_LISTENER_NAME_SECRET_SCRAM___SHA___512_SASL_JAAS_CONFIG": f"{module};",
            "KAFKA_SSL_KEYSTORE_TYPE": "PEM",
            "KAFKA_SSL_KEYSTORE_LOCATION": "/etc/kafka/secrets/broker.pem",
            "KAFKA_SSL_TRUSTSTORE_TYPE": "PEM",
            "KAFKA_SSL_TRUSTSTORE_LOCATION": "/etc/kafka/secrets/ca.pem",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "INSIDE",
            "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_OFFSETS_TOPIC_NUM_PARTITIONS": "8",
            "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
            "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
            "KAFKA_TRANSACTION_STATE_LOG_NUM_PARTITIONS": "8",
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
            "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
            # A killed broker can't register again until its old registration expires: 9 s by default.
            "KAFKA_BROKER_SESSION_TIMEOUT_MS": "3000",
            "KAFKA_BROKER_HEARTBEAT_INTERVAL_MS": "500",
        }


def version(image: str) -> str:
    """Return the tag after the colon."""
    return image.rpartition(":")[2]


__all__ = ["SECRET_USER", "Container", "KafkaContainer", "Network", "NoEngineError", "engine", "network", "version"]
