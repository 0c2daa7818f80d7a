"""What only kafka-python can ask a cluster about itself: features, transactional ids, the controller's clock."""

from __future__ import annotations

import time
import warnings
from typing import Any

from brew.acl import Denial, denial_in
from brew.cluster import Unknown
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError
from brew.kafka.kafka_python import NoSuchId, ask, kafka_python_admin

_now = time.time


def level(connection: Connection, feature: str, deadline: Deadline) -> int | Unknown:
    """The level of a feature; 0 where the brokers know none of that name."""
    try:
        with kafka_python_admin(connection, deadline) as admin:
            told = ask(admin, deadline, "describe features", admin._async_describe_features)  # noqa: SLF001
    except BrewError as error:
        return Unknown(str(error))
    return int(told.get(feature, {}).get("finalized", (0, 0))[1])


def may_describe(connection: Connection, transactional_id: str, deadline: Deadline) -> bool | Unknown:
    """
    Ask for the id's state (KIP-664), for which Describe is needed; Write brings that with it.

    So a no means that Write is missing. Nobody can ask for Write itself without fencing whoever holds the id.
    """
    try:
        with kafka_python_admin(connection, deadline) as admin:
            call = admin._async_describe_transactions  # noqa: SLF001 - as in brew.kafka.kafka_python
            ask(admin, deadline, "describe transactions", call, [transactional_id])
    except NoSuchId:
        return True
    except BrewError as error:
        return False if denial_in(str(error)) is Denial.RIGHT else Unknown(str(error))
    return True


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
        with kafka_python_admin(connection, deadline) as admin:
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
