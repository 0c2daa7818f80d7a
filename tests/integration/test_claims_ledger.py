"""A ledger whose members take partitions by claim: `--ownership claims`."""

from __future__ import annotations

import pytest
from harness import enriched
from harness.brokers import Broker
from harness.downstream import LedgerStage, document, drain, following, run
from harness.names import Names
from harness.programs import until

from brew.connection import Connection
from downstream.claims.admin import Filter, Watcher
from downstream.consume.handler import ClaimsSettings, LoopSettings
from sandbox.store import Postgres

ORDERS = 400
INTERVAL_S = 0.5


@pytest.fixture
def stage(broker: Broker, postgres: Postgres, names: Names) -> LedgerStage:
    enriched.make_topic(broker.bootstrap, names.output)
    enriched.write(broker.bootstrap, names.output, ORDERS)
    schema = "l_" + names.stem.rsplit("-", 1)[1]
    return LedgerStage(broker.bootstrap, postgres.url, names.output, names.group, schema)


def by_claim(stage: LedgerStage, names: Names, client: str, *, follow: bool = True) -> LoopSettings:
    claims = ClaimsSettings(names.topic("claims"), client, INTERVAL_S)
    return stage.loop(partitions=None, follow=follow, claims=claims)


def test_two_ledgers_share_a_topic_by_claim_and_each_order_is_booked_once(stage: LedgerStage, names: Names) -> None:
    """One begins, the other gets its share, one leaves; more orders come all the while."""
    with following(by_claim(stage, names, "a"), stage.handler()) as a:
        until(lambda: a.loop.result.records >= ORDERS, "the first one books all")
        watcher = Watcher(Connection(stage.bootstrap), names.topic("claims"))

        def owners() -> list[str | None]:
            watcher.read_new()
            return [row.owner for row in watcher.snapshot(Filter()).rows]

        with following(by_claim(stage, names, "b"), stage.handler()) as b:
            until(lambda: sorted(map(str, owners())) == ["a", "a", "b", "b"], "both have their share")
            enriched.write(stage.bootstrap, stage.topic, ORDERS, first=ORDERS)
            until(lambda: a.loop.result.records + b.loop.result.records >= 2 * ORDERS, "both book")
            a.stop.set()
            a.done()
            until(lambda: owners() == ["b"] * 4, "the other one has all")
        watcher.close()
    assert stage.proven(2 * ORDERS).rows == 2 * ORDERS


def test_a_draining_member_ends_also_where_others_hold_everything(stage: LedgerStage, names: Names) -> None:
    """It waits until what a dead member held would be stale, and then as long as any member of a group."""
    with following(by_claim(stage, names, "a"), stage.handler()) as a:
        until(lambda: a.loop.result.records >= ORDERS, "the first one books all")
        idle = drain(
            stage.loop(partitions=(0,), settle_s=0.2, claims=ClaimsSettings(names.topic("claims"), "a2", 0.15)),
            stage.handler(),
        )
    assert idle.records == 0
    stage.proven(ORDERS)


def test_the_command_takes_partitions_by_claim(stage: LedgerStage, names: Names) -> None:
    """From its options to the rows."""
    options = ("--ownership", "claims", "--claims", names.topic("claims"), "--client-id", "ledger-1")
    told = document(run(stage.command(*options, "--heartbeat-interval-s", "0.5", "--json")))
    assert told["entries"] == ORDERS
    stage.proven(ORDERS)
