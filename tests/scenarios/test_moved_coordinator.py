"""Three brokers: one dies, and a group's coordinator moves to another, as in each rolling restart."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness.names import Names
from harness.transactions import STEP_S, begun, make_topics
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin
from brew.kafka.cluster_admin import reassign
from brew.kafka.committed_offset import locator
from brew.offsets import Committed
from sandbox.kafka import Cluster

# Asks where a group stands, again and again, with what the Python client offers for it.
_ADMIN_CLIENT = """
import contextlib, sys
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

client = AdminClient({"bootstrap.servers": sys.argv[1]})
asked = [ConsumerGroupTopicPartitions(sys.argv[2], [TopicPartition(sys.argv[3], 0)])]
while True:
    with contextlib.suppress(KafkaException):
        client.list_consumer_group_offsets(asked, request_timeout=5)[sys.argv[2]].result(20)
        print("asked", flush=True)
"""


@pytest.fixture(scope="module")
def three() -> Iterator[Cluster]:
    """Three brokers that no other module uses."""
    directory = Path(tempfile.mkdtemp(prefix="brew-test-kafka-"))
    try:
        with Cluster.start(directory, brokers=3) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _committed(connection: Connection, names: Names, offset: int) -> None:
    kafka = begun(connection, names)
    kafka.send_offsets(offset, "", Deadline(STEP_S))
    kafka.commit(Deadline(STEP_S))
    kafka.close()


def _coordinator_moves(connection: Connection, group: str) -> None:
    """To the other broker; the old one lives on, and says that it is none when it is asked."""
    client = admin(connection)
    led = cluster_admin.leaders(client, cluster_admin.OFFSETS, Deadline(STEP_S))
    home = cluster_admin.coordinator_partition(group, len(led))
    other, *rest = sorted(cluster_admin.brokers(client, Deadline(STEP_S)), key=lambda one: one == led[home])
    reassign(connection, cluster_admin.OFFSETS, {home: [other, *rest]}, Deadline(STEP_S))
    until(
        lambda: cluster_admin.coordinator(client, cluster_admin.OFFSETS, group, Deadline(STEP_S)) == other,
        "another coordinator",
    )


@pytest.fixture
def stood(three: Cluster, names: Names) -> Connection:
    """A group that stands at 5, located and confirmed by this process."""
    connection = three.connection
    make_topics(connection, names.input, names.output)
    _committed(connection, names, 5)
    return connection


def test_a_transaction_commits_though_the_coordinator_it_knew_is_none_any_more(stood: Connection, names: Names) -> None:
    kafka = begun(stood, names)
    _coordinator_moves(stood, names.group)
    kafka.send_offsets(7, "", Deadline(STEP_S))
    kafka.commit(Deadline(STEP_S))
    kafka.close()
    assert locator(stood, names.group).committed(names.input, 0, Deadline(STEP_S)) == Committed(7, "")


def test_librdkafkas_admin_client_would_end_the_process(stood: Connection, names: Names) -> None:
    """Why somebody else asks (its issue 5040). Once this one fails, the library can do it, and may."""
    command = [sys.executable, "-c", _ADMIN_CLIENT, stood.bootstrap, names.group, names.input]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "asked\n"
            _coordinator_moves(stood, names.group)
            program.communicate(timeout=2 * STEP_S)
        finally:
            program.kill()
    assert program.returncode == -signal.SIGSEGV


def test_three_brokers_hold_three_replicas_and_go_on_without_one(three: Cluster, names: Names) -> None:
    """Replication 3, as the promise needs it; the others answer while one is dead, and take it in again."""
    assert len(three.running()) == 3
    make_topics(three.connection, names.input, names.output)
    assert topics.describe_one(admin(three.connection), names.input, Deadline(STEP_S)).replicas == 3
    three.kill(2)
    assert len(three.running()) == 2
    # Who was not asked yet may hear of the topic from the next controller, if this was the first one.
    until(lambda: names.input in topics.names(admin(three.connection), Deadline(STEP_S)), "the others tell of it")
    three.restart(2)
    assert len(three.running()) == 3
