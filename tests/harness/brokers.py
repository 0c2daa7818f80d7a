"""The tests' broker: from the environment, a container engine, or the sandbox."""

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
    """A real broker; ``cluster`` is set if it is the sandbox's and may be killed and restarted."""

    bootstrap: str
    cluster: Cluster | None = None


@contextmanager
def any_broker() -> Iterator[Broker]:
    """
    Yield the broker of `KAFKA_BOOTSTRAP`, or one in a container if `BREW_TEST_CONTAINERS=1`, or the sandbox's.

    Raises `harness.containers.NoEngineError` if containers are requested and no engine responds.
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
    Yield a sandbox cluster on free ports, which is removed at the end together with its data.

    ``kafka``: its version; by default, that of `BREW_TEST_KAFKA`, else the sandbox's default.
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
