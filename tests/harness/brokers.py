"""Where the tests' broker comes from: the environment, a container engine, or the sandbox."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sandbox.kafka import Cluster, Settings


@dataclass(frozen=True, slots=True)
class Broker:
    """A real broker; ``cluster`` is there when it is the sandbox's and may be killed and started again."""

    bootstrap: str
    cluster: Cluster | None = None


@contextmanager
def any_broker() -> Iterator[Broker]:
    """
    The broker of `KAFKA_BOOTSTRAP`, or one in a container if `BREW_TEST_CONTAINERS=1`, or the sandbox's.

    Whoever asks for containers where no engine answers gets an error (`harness.containers.NoEngineError`).
    """
    if given := os.environ.get("KAFKA_BOOTSTRAP"):
        yield Broker(given)
    elif os.environ.get("BREW_TEST_CONTAINERS") == "1":
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


@contextmanager
def _container() -> Iterator[Broker]:
    from .containers import KafkaContainer, engine  # noqa: PLC0415 - slow to import, and seldom used

    with engine(), KafkaContainer() as running:
        yield Broker(running.bootstrap)
