"""SIGKILL around a store's commit: what `make kills` does 200 times, a few times; and the bugs that it has to see."""

from __future__ import annotations

import pytest
from harness import enriched
from harness.downstream import LedgerStage, ReceiveStage
from harness.servers import Broker, Names

from brew.fault_injection import CrashMoment
from sandbox.store import Postgres, Redis
from tests.kills.bugs import BUGS
from tests.kills.campaign import Stage, campaign

KILLS = 5
LOST_OR_TWICE = {
    "position-afterwards": "ledger-duplicate",
    "position-before": "ledger-missing",
    "position-of-kafka": "ledger-duplicate",
    "claim-before": "receiver-lost",
    "claim-afterwards": "receiver-duplicate",
}


def _stage(store: str, broker: Broker, postgres: Postgres, names: Names) -> Stage:
    enriched.make_topic(broker.bootstrap, names.output)
    schema = "k_" + names.stem.rsplit("-", 1)[1]
    if store == "ledger":
        return LedgerStage(broker.bootstrap, postgres.url, names.output, names.group, schema)
    return ReceiveStage(broker.bootstrap, names.output, names.group, postgres.url, schema)


@pytest.mark.parametrize("store", ["ledger", "postgres"])
def test_kills_around_the_commit_lose_and_double_nothing(
    store: str, broker: Broker, postgres: Postgres, names: Names
) -> None:
    """Before, in and behind the commit, and anywhere: rows are the outputs, the money is conserved, one effect each."""
    killed = campaign(_stage(store, broker, postgres, names), store, KILLS, seed=7)
    assert sum(killed.kills.values()) == KILLS
    assert killed.findings == {}, killed.report
    if store == "ledger":
        assert (killed.report["rows"], killed.report["cents"]) == (killed.orders, killed.report["booked_cents"])
    else:
        assert (killed.report["messages"], killed.report["effects"]) == (killed.orders, killed.orders)


def test_the_duplicates_of_the_claim_beside_the_effect_are_counted(broker: Broker, redis: Redis, names: Names) -> None:
    """Killed between effect and `done`, as often as that: one duplicate each, none lost."""
    enriched.make_topic(broker.bootstrap, names.output)
    stage = ReceiveStage(broker.bootstrap, names.output, names.group, redis=redis.url)
    killed = campaign(stage, "redis", 3, seed=7, moments=[CrashMoment.BEFORE_COMMIT])
    assert killed.report["effects"] == killed.orders + 3
    assert "receiver-lost" not in killed.findings


@pytest.mark.parametrize(("store", "bug"), [(store, bug) for store, bugs in BUGS.items() for bug in bugs])
def test_each_bug_is_seen(store: str, bug: str, broker: Broker, postgres: Postgres, names: Names) -> None:
    """The same kills with a bug put in: the check names what it did, so its silence above means something."""
    moment = CrashMoment.AFTER_COMMIT if bug == "position-of-kafka" else CrashMoment.BEFORE_COMMIT
    killed = campaign(_stage(store, broker, postgres, names), store, 1, seed=7, bug=bug, moments=[moment])
    assert killed.findings[LOST_OR_TWICE[bug]] >= 1, killed.report
