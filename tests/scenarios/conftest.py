"""Fixtures of the scenarios: `stage`, one test's topics and programs, with nothing left running behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import servers
from harness.pipeline import quick_jvms, stage  # noqa: F401 - a fixture
from harness.servers import Broker


@pytest.fixture(name="quick_jvms")
def _quick_jvms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs' JVMs start fast: they don't live long enough for more."""
    for name, value in quick_jvms().items():
        monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def _second_broker() -> Iterator[Broker]:
    with servers.sandbox_broker() as found:  # by its module: `--secure` replaces it
        yield found


@pytest.fixture
def alone(_second_broker: Broker) -> Broker:
    """A broker that no other test uses meanwhile, so that it may be killed and paused."""
    assert _second_broker.cluster is not None
    if not _second_broker.cluster.running():  # a test before this one failed
        _second_broker.cluster.restart()
    return _second_broker
