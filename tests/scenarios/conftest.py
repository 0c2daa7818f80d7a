"""Fixtures of the scenarios: `stage`, one test's topics and programs, with nothing left running behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import brokers
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage, quick_jvms


@pytest.fixture(name="quick_jvms")
def _quick_jvms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs' JVMs start fast: they don't live long enough for more."""
    for name, value in quick_jvms().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def _second_broker() -> Iterator[Broker]:
    with brokers.sandbox_broker() as found:  # by its module: `--secure` replaces it
        yield found


@pytest.fixture
def alone(_second_broker: Broker) -> Broker:
    """A broker that no other test uses meanwhile, so that it may be killed and paused."""
    assert _second_broker.cluster is not None
    if not _second_broker.cluster.running():  # a test before this one failed
        _second_broker.cluster.restart()
    return _second_broker


@pytest.fixture
def stage(broker: Broker, names: Names) -> Iterator[Stage]:
    """Topics and group of this test's own; whatever it started is gone when it ends."""
    made = Stage(broker, names)
    yield made
    made.no_process_left()
