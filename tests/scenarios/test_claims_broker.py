"""The claims topic's broker is killed and paused under members at work."""

from __future__ import annotations

import threading
from contextlib import ExitStack

from harness.brokers import Broker
from harness.names import Names
from harness.programs import until

from brew.claims.heartbeater import Heartbeater
from brew.claims.member import Membership
from brew.claims.messages import ClaimingPartition, decode
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka.claims_log import ClaimsLog
from proof.claims.history import Belief, broken

INTERVAL_S = 0.5
PARTITIONS = (0, 1, 2, 3)


def test_members_go_on_after_their_broker_was_killed_and_no_token_has_two_holders(alone: Broker, names: Names) -> None:
    """They stop by themselves while the log can't be written, and share again when it can."""
    assert alone.cluster is not None
    connection, topic = Connection(alone.bootstrap), names.topic("claims")
    beliefs: set[Belief] = set()
    stop = threading.Event()

    def watch(keeper: Heartbeater) -> None:
        while not stop.wait(0.01):
            beliefs.update(Belief(keeper.membership.client_id, p, one.token) for p, one in keeper.held().items())

    with ExitStack() as stack:
        keepers = [
            stack.enter_context(
                Heartbeater(
                    lambda: ClaimsLog(connection, topic), Membership(name, "g", "worked", PARTITIONS, INTERVAL_S)
                )
            )
            for name in "ab"
        ]
        watchers = [threading.Thread(target=watch, args=[one], daemon=True) for one in keepers]
        for one in watchers:
            one.start()
        until(lambda: sum(len(one.held()) for one in keepers) == len(PARTITIONS), "all are owned")
        alone.cluster.kill(1)
        until(lambda: not any(one.held() for one in keepers), "both have stopped", 10)
        alone.cluster.restart(1)
        until(lambda: sum(len(one.held()) for one in keepers) == len(PARTITIONS), "all are owned again")
        stop.set()
        for one in watchers:
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
    assert {one.partition for one in beliefs} == set(PARTITIONS)
