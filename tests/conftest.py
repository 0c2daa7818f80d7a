"""Fixtures of all tests: `broker`, `postgres`, `redis` (real ones, one per worker), `names` (fresh ones per test)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from harness.brokers import Broker, any_broker
from harness.names import Names
from harness.secure import Secure, secure_broker
from harness.stores import store
from harness.workers import Groups

from sandbox.postgres import Postgres
from sandbox.redis import Redis

_LONGEST_FIRST = ("scenarios", "integration", "unit")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Folders with long tests come first, so that the workers of `make test` are busy to the end."""
    here = config.rootpath / "tests"

    def folder(item: pytest.Item) -> str:
        return item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""

    items.sort(key=lambda item: _LONGEST_FIRST.index(name) if (name := folder(item)) in _LONGEST_FIRST else -1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """One test at a time to whoever is free, see `harness.workers`."""
    return Groups(config, log)


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    """A real Kafka broker at `broker.bootstrap`, shared by a worker's tests and ended with them, whatever happens."""
    with any_broker() as found:
        yield found


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL server at `postgres.url`, shared by the session; a schema per test keeps tests apart."""
    with store(Postgres) as found:
        yield found


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    """A real Redis server at `redis.url`, shared by the session; a group per test keeps tests apart."""
    with store(Redis) as found:
        yield found


@pytest.fixture(scope="session")
def secure() -> Iterator[Secure]:
    """A broker that asks who is there, shared by a worker's tests; each grants rights on its own names."""
    with secure_broker() as found:
        yield found


@pytest.fixture
def names(request: pytest.FixtureRequest) -> Names:
    """Topic and group names that nothing has used before."""
    return Names.fresh(request.node.name)
