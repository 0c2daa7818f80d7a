"""The fixture of most integration tests: `stage`, one test's topics and programs on the session's broker."""

from __future__ import annotations

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    return Stage(broker, names)
