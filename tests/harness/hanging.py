"""Create a hanging transaction: records of a transaction that its coordinator has already ended."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka.clients import admin, producer
from brew.kafka.kafka_python import AdminPartition, ask, kafka_python_admin, raw_batches
from brew.kafka.offsets import log_offsets

from .waiting import markers_written

with warnings.catch_warnings():
    # On import, the library reads its message schemas with a deprecated function.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.errors import for_code
    from kafka.protocol.producer.produce import ProduceRequest
    from kafka.record.memory_records import MemoryRecordsBuilder

_VERIFICATION = "transaction.partition.verification.enable"


def hang(connection: Connection, topic: str, transactional_id: str) -> int:
    """
    Open a transaction in partition 0 that nobody will end; return its producer id.

    A late record causes this on brokers that do not verify transactions (before KIP-890; since then, a setting).
    """
    writer = producer(connection, transactional_id, timeout_s=20, message_max_bytes=1_000_000)
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce(topic, b"in good order", partition=0)
    writer.commit_transaction(20)
    markers_written(connection, topic)  # the marker must precede the late record, or it would commit that too
    end = log_offsets(admin(connection), topic, [0], Deadline(20))[0].end
    (batch,) = [one for one in raw_batches(connection, topic, 0, end - 2, end, Deadline(20)) if not one.control]
    with _unverified(admin(connection)):
        _late_record(connection, topic, transactional_id, batch.producer_id, batch.producer_epoch)
    return batch.producer_id


@contextmanager
def _unverified(client: AdminClient) -> Iterator[None]:
    def switch(value: str) -> None:
        entry = ConfigEntry(_VERIFICATION, value, incremental_operation=AlterConfigOpType.SET)
        nodes = client.describe_cluster().result(20).nodes
        resources = [ConfigResource(ResourceType.BROKER, str(node.id), incremental_configs=[entry]) for node in nodes]
        for future in client.incremental_alter_configs(resources).values():
            future.result(20)

    switch("false")
    try:
        yield
    finally:
        switch("true")


def _late_record(connection: Connection, topic: str, transactional_id: str, producer_id: int, epoch: int) -> None:
    """Send the record, with retries until the brokers apply the setting."""
    deadline = Deadline(20)
    while True:
        records = MemoryRecordsBuilder(2, 0, 10_000, 0, True, producer_id, epoch, 1)
        records.append(int(time.time() * 1000), None, b"late")
        records.close()
        data = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=5000,
            topic_data=[
                data(name=topic, partition_data=[data.PartitionProduceData(index=0, records=records.buffer())])
            ],
            max_version=10,
        )
        with kafka_python_admin(connection, deadline) as client:

            async def send(request: ProduceRequest = request, client: object = client) -> int:
                leader = next(iter(await client._async_get_leader_for_partitions([AdminPartition(topic, 0)])))
                response = await client._manager.send(request, node_id=leader)
                return int(response.responses[0].partition_responses[0].error_code)

            code = ask(client, deadline, "late record", send)
        if code == 0:
            return
        if deadline.expired():
            raise for_code(code)("the late record was not taken")
