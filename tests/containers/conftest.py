"""Fixtures of `make test-containers`: an engine, and a broker in a container on a network of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.containers import KafkaContainer, Network, engine, network
from harness.pipeline import Stage
from harness.servers import Broker, Names


@pytest.fixture(scope="session")
def command_line() -> Iterator[str]:
    """The engine's command, with its API at `DOCKER_HOST`; without an engine an error says what installs one."""
    with engine() as found:
        yield found


@pytest.fixture(scope="session")
def bridge(command_line: str) -> Iterator[Network]:  # noqa: ARG001 - it has to answer
    """A bridge network on which containers find each other by name."""
    with network() as found:
        yield found


@pytest.fixture(scope="session")
def kafka(bridge: Network) -> Iterator[KafkaContainer]:
    """A broker in a container; tests on this machine and containers of `bridge` reach it."""
    with KafkaContainer(bridge) as found:
        yield found


@pytest.fixture
def stage(kafka: KafkaContainer, names: Names) -> Iterator[Stage]:
    """Topics and group of this test's own on the broker in a container."""
    made = Stage(Broker(kafka.bootstrap), names)
    yield made
    made.no_process_left()
