"""Brokers that are paused or killed under programs at work: waited for, and nobody works on what others may hold."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest
from harness import enriched
from harness.downstream import LedgerStage, Running
from harness.programs import until
from harness.servers import Broker, Names

from brew.claims.heartbeater import Heartbeater
from brew.claims.member import Membership
from brew.claims.messages import ClaimingPartition, decode
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import clients
from brew.kafka.claims_log import ClaimsLog
from downstream.consume import loop as looping
from downstream.consume.loop import Loop
from proof.claims.history import Belief, broken
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


def test_members_go_on_after_their_broker_was_killed_and_no_token_has_two_holders(alone: Broker, names: Names) -> None:
    """They stop by themselves while the log can't be written, and share again when it can."""
    assert alone.cluster is not None
    connection, topic, partitions = Connection(alone.bootstrap), names.topic("claims"), (0, 1, 2, 3)
    beliefs: set[Belief] = set()
    stop = threading.Event()

    def watch(heartbeater: Heartbeater) -> None:
        while not stop.wait(0.01):
            beliefs.update(
                Belief(heartbeater.membership.client_id, p, one.token) for p, one in heartbeater.held().items()
            )

    with ExitStack() as stack:
        heartbeaters = [
            stack.enter_context(
                Heartbeater(lambda: ClaimsLog(connection, topic), Membership(name, "g", "worked", partitions, 0.5))
            )
            for name in "ab"
        ]
        threads = [threading.Thread(target=watch, args=[one], daemon=True) for one in heartbeaters]
        for one in threads:
            one.start()
        until(lambda: sum(len(one.held()) for one in heartbeaters) == len(partitions), "all are owned")
        alone.cluster.kill(1)
        until(lambda: not any(one.held() for one in heartbeaters), "both have stopped", 10)
        alone.cluster.restart(1)
        until(lambda: sum(len(one.held()) for one in heartbeaters) == len(partitions), "all are owned again")
        stop.set()
        for one in threads:
            one.join(5)

    log = ClaimsLog(connection, topic, create=False)
    try:
        entries = log.history(log.bounds(Deadline(20)), Deadline(20))
    finally:
        log.close()
    claims = {entry.offset: decode(entry.value) for entry in entries}
    granted = {
        (one.partition, one.token): claim.client_id
        for one in beliefs
        if isinstance(claim := claims.get(one.token), ClaimingPartition) and claim.partition == one.partition
    }
    assert broken(beliefs, granted) == []
    assert {one.partition for one in beliefs} == set(partitions)
