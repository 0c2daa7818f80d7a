"""The clock of the cluster's controller: the only one that an answer to a read-only question carries (KIP-836)."""

from __future__ import annotations

import time

from protocol.cluster import Unknown
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka.introspect import ask, plain_admin

_now = time.time


def controller_ahead_s(connection: Connection, deadline: Deadline) -> float | Unknown:
    """
    How far the controller's clock is ahead of this machine's, at least; negative where it is behind.

    A leader of the metadata log has just "fetched" from itself when it is asked, and says when. 0 where that lies
    between question and answer.
    """
    try:
        with plain_admin(connection, deadline) as admin:
            before = _now()
            call = admin._async_describe_quorum  # noqa: SLF001
            told = ask(admin, deadline, "describe the metadata quorum", call, "__cluster_metadata", 0)
            after = _now()
    except BrewError as error:
        return Unknown(str(error))
    (log,) = told["topics"][0]["partitions"]
    times = {one["replica_id"]: one.get("last_fetch_timestamp", -1) for one in log["current_voters"]}
    there_ms = times.get(log["leader_id"], -1)
    return ahead_s(there_ms, before, after) if there_ms > 0 else Unknown("the controller is older than Kafka 3.3")


def ahead_s(there_ms: int, before: float, after: float) -> float:
    """``there_ms`` was the time there at some moment between two times here (seconds since the epoch)."""
    there = there_ms / 1000
    return round(there - after if there > after else min(0.0, there + 0.001 - before), 3)
