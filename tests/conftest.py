"""Fixtures of all tests: `broker` (a real one, one per session) and `names` (fresh ones per test)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness.brokers import Broker, any_broker
from harness.names import Names


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A real Kafka broker at `broker.bootstrap`, shared by the session and ended with it, whatever happens."""
    with any_broker() as found:
        yield found


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Names:
    """Topic and group names that nothing has used before."""
    return Names.fresh(request.node.name)
