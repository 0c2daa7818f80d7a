"""The servers that tests use, fresh names, so that tests share a broker but never topics, and topics on it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import AdminClient, admin
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from proof.campaign import cell
from sandbox.kafka import Cluster, Settings
from sandbox.store import Store


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


# Controllers write an empty record twice a second: a third of what an idle broker takes.
QUIET = {"metadata.max.idle.interval.ms": "5000"}


@contextmanager
def sandbox_broker(brokers: int = 1, kafka: str | None = None) -> Iterator[Broker]:
    """
    Yield a sandbox cluster on free ports, which is removed at the end together with its data.

    ``kafka``: its version; by default, that of `BREW_TEST_KAFKA`, else the sandbox's default.
    """
    directory = Path(tempfile.mkdtemp(prefix="brew-test-kafka-"))
    try:
        settings = Settings(kafka=kafka or os.environ.get("BREW_TEST_KAFKA") or None, properties=QUIET)
        with Cluster.start(directory, brokers=brokers, settings=settings) as cluster:
            yield Broker(cluster.bootstrap, cluster)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _container() -> Iterator[Broker]:
    from .containers import KafkaContainer, engine  # noqa: PLC0415 - slow to import, and seldom used

    with engine(), KafkaContainer() as running:
        yield Broker(running.bootstrap)


_PREFIX = "it-"


class Names(cell.Names):
    """Topics and group of one test: `it-<test>-<8 hex digits>` and a suffix."""

    @classmethod
    def fresh(cls, test: str, seed: int | None = None) -> Self:
        word = re.sub(r"[^a-zA-Z0-9]+", "-", test.removeprefix("test_")).strip("-")[:60]
        end = "" if seed is None else f"-s{seed}"
        return cls(f"{_PREFIX}{word}{end}-{uuid.uuid4().hex[:8]}")

    def topic(self, suffix: str) -> str:
        """Return the name of another topic of this test."""
        return f"{self.stem}.{suffix}"


_Store = TypeVar("_Store", bound=Store)


@contextmanager
def store(kind: type[_Store], properties: Mapping[str, str] | None = None) -> Iterator[_Store]:
    """
    Yield a server on a free port, which is removed at the end together with its data.

    Raises:
        Refused: it is not installed; the text names `make setup-stores`. Tests then fail, and are not skipped.
    """
    directory = Path(tempfile.mkdtemp(prefix=f"brew-test-{kind.name}-"))
    directory.chmod(0o711)  # PostgreSQL does not run as root
    try:
        with kind.start(directory, properties=properties) as found:
            yield found
    finally:
        shutil.rmtree(directory, ignore_errors=True)


STEP_S = 20.0


def make_topics(
    connection: Connection, *names: str, partitions: int = 1, config: Mapping[str, str] | None = None
) -> None:
    """Create these topics, and wait until every broker knows them."""
    client = admin(connection)
    topics.create(client, [topics.TopicSpec(name, partitions, config or {}) for name in names], Deadline(30))
    topics.describe_all(client, list(names), Deadline(30))


@functools.cache
def _admin(bootstrap: str) -> AdminClient:
    return admin(Connection(bootstrap))


def delete_topics(broker: Broker) -> None:
    """Delete the topics of all tests, if this worker started the broker; else, other workers use it, too."""
    if broker.cluster is None:
        return
    client, deadline = _admin(broker.bootstrap), Deadline(STEP_S)
    if left := [name for name in topics.names(client, deadline) if name.startswith(_PREFIX)]:
        cluster_admin.delete_topics(client, left, deadline)


def begun(connection: Connection, names: Names) -> KafkaTransaction:
    """Begin a transaction in partition 0 with one flushed record; the caller must end and close it."""
    kafka = KafkaTransaction(TransactionSettings(connection, names.group, STEP_S), names.input, 0)
    try:
        kafka.fence(Deadline(STEP_S))
        kafka.locate(Deadline(STEP_S))
        kafka.begin()
        kafka.produce(names.output, b"1", None, 0)
        kafka.flush(Deadline(STEP_S))
    except BaseException:
        kafka.close()
        raise
    return kafka
