"""Brokers that do not answer while a partition is taken over: waited for, with the loop's own patience."""

from __future__ import annotations

import threading

import pytest
from harness import enriched
from harness.brokers import Broker
from harness.downstream import LedgerStage, Running
from harness.names import Names
from harness.programs import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import clients
from downstream.consume import loop as looping
from downstream.consume.loop import Loop
from sandbox.store import Postgres

ORDERS = 60


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
        with pytest.raises(Refused, match="no Kafka broker answered"):  # connections stay, answers do not come
            clients.reach(Connection(alone.bootstrap), Deadline(0.5))
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
