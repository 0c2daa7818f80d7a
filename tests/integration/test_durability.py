"""A PostgreSQL server that can lose what it has committed: refused, or accepted on purpose and told."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from harness import enriched
from harness.downstream import LedgerStage, ReceiveStage, document, run
from harness.servers import Broker, Names, store

from sandbox.store import Postgres

ORDERS = 40
_REFUSED = 3
_UNWRITTEN = {"wal_writer_delay": "10s"}  # what is committed asynchronously stays in the server's memory for so long


@pytest.fixture(scope="module")
def careless() -> Iterator[Postgres]:
    """A server of its own: its settings would concern every other test."""
    with store(Postgres, {"fsync": "off", "full_page_writes": "off", **_UNWRITTEN}) as server:
        yield server


@pytest.fixture
def topic(broker: Broker, names: Names) -> str:
    enriched.make_topic(broker.bootstrap, names.output)
    enriched.write(broker.bootstrap, names.output, ORDERS)
    return names.output


def test_a_server_without_fsync_is_refused_by_ledger_and_receivers(
    broker: Broker, careless: Postgres, names: Names, topic: str
) -> None:
    """The setting is named with what it should be; accepted on purpose it is told all the same."""
    ledger = LedgerStage(broker.bootstrap, careless.url, topic, names.group, "d_ledger")
    receive = ReceiveStage(broker.bootstrap, topic, names.group, careless.url, "d_receive")
    for command in (ledger.command(), receive.command("postgres")):
        done = run(command)
        assert (done.returncode, "fsync=off and full_page_writes=off" in done.stderr) == (_REFUSED, True), done.stderr
        assert "ALTER SYSTEM SET fsync = on" in done.stderr
        accepted = run([*command, "--accept-weaker"])
        assert (accepted.returncode, "weaker guarantee" in accepted.stderr) == (0, True), accepted.stderr
    ledger.proven(ORDERS)


def test_without_synchronous_commit_a_crash_of_the_server_loses_effects_and_so_it_is_refused(
    broker: Broker, careless: Postgres, names: Names, topic: str
) -> None:
    """The role's own setting counts, whatever the server's is; accepted, the check names what the crash has taken."""
    stage = ReceiveStage(broker.bootstrap, topic, names.group, careless.url, "d_async")
    with psycopg.connect(careless.url, autocommit=True) as connection:
        connection.execute("ALTER ROLE brew SET synchronous_commit = off")
    done = run(stage.command("postgres"))
    assert (done.returncode, "synchronous_commit=off" in done.stderr) == (_REFUSED, True), done.stderr
    assert run(stage.command("postgres", "--accept-weaker", "--partitions", "0")).returncode == 0
    with psycopg.connect(careless.url) as connection:
        connection.execute("CREATE TABLE flushed ()")
        connection.execute("SET LOCAL synchronous_commit = on")  # all that was committed until here is written
    assert run(stage.command("postgres", "--accept-weaker")).returncode == 0
    careless.kill()
    careless.restart()
    checked = run(stage.command("postgres", "--check", "--json"))
    assert checked.returncode == 1, checked.stdout + checked.stderr
    assert document(checked)["findings"]["receiver-lost"] > 0
