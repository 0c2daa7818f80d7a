"""Brokers that do not answer while a partition is taken over: waited for, with the loop's own patience."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from harness import enriched
from harness.brokers import Broker, sandbox_broker
from harness.downstream import LedgerStage, Running
from harness.names import Names
from harness.programs import until

from downstream.consume import loop as looping
from downstream.consume.loop import Loop
from sandbox.store import Postgres

ORDERS = 60


@pytest.fixture
def alone() -> Iterator[Broker]:
    """A broker that no other test uses."""
    with sandbox_broker() as found:
        yield found


def test_brokers_that_are_silent_while_partitions_are_taken_over_again_are_waited_for(
    alone: Broker, postgres: Postgres, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The database dies, so partitions are asked about anew; then no broker answers for longer than that takes."""
    monkeypatch.setattr(looping, "_ASK_S", 1.0)
    assert alone.cluster is not None
    enriched.make_topic(alone.bootstrap, names.output)
    enriched.write(alone.bootstrap, names.output, ORDERS)
    stage = LedgerStage(alone.bootstrap, postgres.url, names.output, names.group, "b_ledger")
    handler, stop, notes = stage.handler(), threading.Event(), list[str]()
    running = Running(Loop(stage.loop(follow=True), handler, stop, notes.append), stop)
    try:
        until(lambda: handler.booked.entries == ORDERS, "all are booked")
        postgres.kill()
        enriched.write(alone.bootstrap, names.output, ORDERS, seed=2, first=1000)
        until(lambda: running.loop.result.postponed > 0, "the ledger waits for its database")
        alone.cluster.pause(1)
        until(lambda: any("their offsets can't be read" in note for note in notes), "and for its brokers")
        alone.cluster.resume(1)
        postgres.restart()
        until(lambda: handler.booked.entries == 2 * ORDERS, "it goes on")
    finally:
        alone.cluster.resume(1)
        if not postgres.running():
            postgres.restart()
        stop.set()
    running.done()
    stage.proven(2 * ORDERS)
