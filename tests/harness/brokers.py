"""Where the tests' broker comes from: the environment, a container engine, or the sandbox."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.kafka import Cluster
from sandbox.launch import Settings

CONTAINER_IMAGE = "apache/kafka:4.1.1"


@dataclass(frozen=True, slots=True)
class Broker:
    """A real broker; ``cluster`` is there when it is the sandbox's and may be killed and started again."""

    bootstrap: str
    cluster: Cluster | None = None


@contextmanager
def any_broker() -> Iterator[Broker]:
    """The broker of `KAFKA_BOOTSTRAP`, or one in a container if `BREW_TEST_CONTAINERS=1`, or the sandbox's."""
    if given := os.environ.get("KAFKA_BOOTSTRAP"):
        yield Broker(given)
    elif os.environ.get("BREW_TEST_CONTAINERS") == "1" and _engine_answers():
        with _container() as broker:
            yield broker
    else:
        with sandbox_broker() as broker:
            yield broker


@contextmanager
def sandbox_broker(brokers: int = 1, kafka: str | None = None) -> Iterator[Broker]:
    """
    A cluster of the sandbox on free ports, gone at the end together with its data.

    ``kafka``: its version; else that of `BREW_TEST_KAFKA`, else the usual one.
    """
    directory = Path(tempfile.mkdtemp(prefix="brew-test-kafka-"))
    try:
        settings = Settings(kafka=kafka or os.environ.get("BREW_TEST_KAFKA") or None)
        with Cluster.start(directory, brokers=brokers, settings=settings) as cluster:
            yield Broker(cluster.bootstrap, cluster)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _engine_answers() -> bool:
    import docker  # noqa: PLC0415 - slow to import, and seldom used

    try:
        client = docker.from_env(timeout=2)
        try:
            return bool(client.ping())
        finally:
            client.close()
    except docker.errors.DockerException:
        return False


@contextmanager
def _container() -> Iterator[Broker]:
    from testcontainers.kafka import KafkaContainer  # noqa: PLC0415

    container = KafkaContainer(CONTAINER_IMAGE).with_kraft()
    for name, value in {
        "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
        "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
        "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
        "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    }.items():
        container = container.with_env(name, value)
    with container as running:
        yield Broker(running.get_bootstrap_server())
