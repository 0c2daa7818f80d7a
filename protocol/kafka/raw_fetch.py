"""One fetch of raw batches, as the log has them or as a `read_committed` reader is given them."""

from __future__ import annotations

import warnings
from typing import Any

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient
    from kafka import TopicPartition as AdminPartition
    from kafka.errors import for_code
    from kafka.protocol.consumer import FetchRequest

__all__ = ["MOST_BYTES", "AdminPartition", "KafkaAdminClient", "fetch"]

MOST_BYTES = 16 * 1024 * 1024
_COMMITTED = 1


async def fetch(
    admin: KafkaAdminClient, partition: AdminPartition, offset: int, most: int = MOST_BYTES, *, committed: bool = False
) -> Any:
    """
    One request to the leader, outside of any fetch session (epoch -1); its answer for the partition.

    ``most`` bytes, and one batch at least. ``committed``: up to the last stable offset, and with the aborted
    transactions that lie within.
    """
    leader = next(iter(await admin._async_get_leader_for_partitions([partition])))  # noqa: SLF001
    asked = FetchRequest.FetchTopic.FetchPartition(
        partition=partition.partition, fetch_offset=offset, partition_max_bytes=most
    )
    request = FetchRequest(
        max_wait_ms=100,
        min_bytes=1,
        max_bytes=most,
        isolation_level=_COMMITTED if committed else 0,
        session_id=0,
        session_epoch=-1,
        topics=[FetchRequest.FetchTopic(topic=partition.topic, partitions=[asked])],
        forgotten_topics_data=[],
        min_version=4,
        max_version=12,  # from 13 on topics go by id
    )
    response = await admin._manager.send(request, node_id=leader)  # noqa: SLF001
    answer = response.responses[0].partitions[0]
    if answer.error_code:
        raise for_code(answer.error_code)(f"fetch of {partition.topic}[{partition.partition}] at offset {offset}")
    return answer
