"""The clock of the cluster's controller: the only one that an answer to a read-only question carries (KIP-836)."""

from __future__ import annotations

import time
import warnings
from typing import Any

from protocol.cluster import Unknown
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka.introspect import ask, plain_admin

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka.errors import for_code
    from kafka.protocol.admin import DescribeQuorumRequest

_METADATA = "__cluster_metadata"
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
            log = ask(admin, deadline, "describe the metadata quorum", _metadata_log, admin)
            after = _now()
    except BrewError as error:
        return Unknown(str(error))
    times = {one.replica_id: one.last_fetch_timestamp or -1 for one in log.current_voters}
    there_ms = times.get(log.leader_id, -1)
    return ahead_s(there_ms, before, after) if there_ms > 0 else Unknown("this controller does not say when it answers")


def ahead_s(there_ms: int, before: float, after: float) -> float:
    """``there_ms`` was the time there at some moment between two times here (seconds since the epoch)."""
    there = there_ms / 1000
    return round(there - after if there > after else min(0.0, there + 0.001 - before), 3)


async def _metadata_log(admin: KafkaAdminClient) -> Any:
    """The library's own call fails over answers of brokers before 3.9, which hold no texts of errors."""
    place = DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(topics=[DescribeQuorumRequest.TopicData(topic_name=_METADATA, partitions=[place])])
    response = await admin._manager.send(request)  # noqa: SLF001
    log = None if response.error_code else response.topics[0].partitions[0]
    if log is None or log.error_code:
        raise for_code(response.error_code if log is None else log.error_code)(f"describe {_METADATA}")
    return log
