"""Fixtures of the scenarios: `stage`, one test's topics and programs, with nothing left running behind it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage

from sandbox.jvm import QUICK


@pytest.fixture
def quick_jvms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs' JVMs compile once and collect with one thread: executors don't live long enough for more."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", " ".join(QUICK))


@pytest.fixture
def stage(broker: Broker, names: Names) -> Iterator[Stage]:
    """Topics and group of this test's own; whatever it started is gone when it ends."""
    made = Stage(broker, names)
    yield made
    made.nobody_left()
