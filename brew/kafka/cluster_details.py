"""Cluster queries that only kafka-python supports: features, transactional ids, the controller's clock."""

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
    """The finalized level of a feature; 0 if the brokers do not know it."""
    try:
        with kafka_python_admin(connection, deadline) as admin:
            features = ask(admin, deadline, "describe features", admin._async_describe_features)  # noqa: SLF001
    except BrewError as error:
        return Unknown(str(error))
    return int(features.get(feature, {}).get("finalized", (0, 0))[1])


def may_describe(connection: Connection, transactional_id: str, deadline: Deadline) -> bool | Unknown:
    """
    Check for Describe on the id by asking for its state (KIP-664); Write implies Describe.

    False means that Write is missing, too. Write itself can't be checked without fencing the id's producer.
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
    A lower bound of how far the controller's clock is ahead of this machine's; negative if it is behind.

    The leader of the metadata log reports the current time as its own last fetch. 0 if that time lies between request
    and response.
    """
    try:
        with kafka_python_admin(connection, deadline) as admin:
            before = _now()
            log = ask(admin, deadline, "describe the metadata quorum", _metadata_log, admin)
            after = _now()
    except BrewError as error:
        return Unknown(str(error))
    times = {voter.replica_id: voter.last_fetch_timestamp or -1 for voter in log.current_voters}
    controller_ms = times.get(log.leader_id, -1)
    return (
        ahead_s(controller_ms, before, after)
        if controller_ms > 0
        else Unknown("this controller does not say when it answers")
    )


def ahead_s(controller_ms: int, before: float, after: float) -> float:
    """The clock's lead, from a controller time taken between two local times (seconds since the epoch)."""
    controller = controller_ms / 1000
    return round(controller - after if controller > after else min(0.0, controller + 0.001 - before), 3)


async def _metadata_log(admin: KafkaAdminClient) -> Any:
    """The library's own call fails on answers of brokers before 3.9, which have no error messages."""
    partition = DescribeQuorumRequest.TopicData.PartitionData(partition_index=0)
    request = DescribeQuorumRequest(
        topics=[DescribeQuorumRequest.TopicData(topic_name=_METADATA, partitions=[partition])]
    )
    response = await admin._manager.send(request)  # noqa: SLF001
    log = None if response.error_code else response.topics[0].partitions[0]
    if log is None or log.error_code:
        raise for_code(response.error_code if log is None else log.error_code)(f"describe {_METADATA}")
    return log
