"""A group's coordinator on three brokers: it moves, one of them dies, and one that is cut off tells of the past."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import Mock

import pytest
from harness import downstream
from harness.programs import Running, call_program
from harness.servers import STEP_S, Names, begun, make_topics
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable, BrewError
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin, producer
from brew.kafka.cluster_admin import reassign
from brew.kafka.committed_offset import PositionConfirmation, locator
from brew.kafka.log_reader import scan
from brew.kafka.offsets import log_offsets
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.kafka.transactions_admin import open_transactions_admin
from brew.names import READ_COMMITTED, ExitCode
from brew.offsets import Committed
from operations.ui.sources import OutputTailSource
from pipeline.__main__ import cli
from sandbox import isolation
from sandbox.kafka import Cluster, Settings

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
def three_brokers() -> Iterator[Cluster]:
    """Three brokers, where that is possible each in a network of its own, that no other module uses."""
    directory = Path(tempfile.mkdtemp(prefix="brew-test-kafka-"))
    try:
        with Cluster.start(directory, brokers=3, settings=Settings(namespaces=isolation.may_isolate())) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture
def healed(three_brokers: Cluster) -> Iterator[Cluster]:
    """The same, whole again behind the test."""
    yield three_brokers
    three_brokers.heal()


def _committed(connection: Connection, names: Names, offset: int) -> None:
    kafka = begun(connection, names)
    kafka.send_offsets(offset, "", Deadline(STEP_S))
    kafka.commit(Deadline(STEP_S))
    kafka.close()


def _coordinator_moves(connection: Connection, group: str) -> None:
    """To the other broker; the old one lives on, and says that it is none when it is asked."""
    client = admin(connection)
    leaders = cluster_admin.leaders(client, cluster_admin.OFFSETS, Deadline(STEP_S))
    partition = cluster_admin.coordinator_partition(group, len(leaders))
    other, *rest = sorted(
        cluster_admin.brokers(client, Deadline(STEP_S)), key=lambda broker: broker == leaders[partition]
    )
    reassign(connection, cluster_admin.OFFSETS, {partition: [other, *rest]}, Deadline(STEP_S))
    until(
        lambda: cluster_admin.coordinator(client, cluster_admin.OFFSETS, group, Deadline(STEP_S)) == other,
        "another coordinator",
    )


@pytest.fixture
def connection(three_brokers: Cluster, names: Names) -> Connection:
    """A group that stands at 5, located and confirmed by this process."""
    connection = three_brokers.connection
    make_topics(connection, names.input, names.output)
    _committed(connection, names, 5)
    return connection


def test_a_transaction_commits_though_the_coordinator_it_knew_is_none_any_more(
    connection: Connection, names: Names
) -> None:
    kafka = begun(connection, names)
    _coordinator_moves(connection, names.group)
    kafka.send_offsets(7, "", Deadline(STEP_S))
    kafka.commit(Deadline(STEP_S))
    kafka.close()
    assert locator(connection, names.group).committed(names.input, 0, Deadline(STEP_S)) == Committed(7, "")


def test_librdkafkas_admin_client_would_end_the_process(connection: Connection, names: Names) -> None:
    """Why somebody else asks (its issue 5040). Once this one fails, the library can do it, and may."""
    command = [sys.executable, "-c", _ADMIN_CLIENT, connection.bootstrap, names.group, names.input]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            assert program.stdout.readline() == "asked\n"
            _coordinator_moves(connection, names.group)
            program.communicate(timeout=2 * STEP_S)
        finally:
            program.kill()
    assert program.returncode == -signal.SIGSEGV


def test_three_brokers_hold_three_replicas_and_go_on_without_one(three_brokers: Cluster, names: Names) -> None:
    """Replication 3, as the promise needs it; the others answer while one is dead, and take it in again."""
    assert len(three_brokers.running()) == 3
    make_topics(three_brokers.connection, names.input, partitions=2)
    # The broker that is asked may hear of the topic after the one that was asked before.
    described = topics.describe_all(admin(three_brokers.connection), [names.input], Deadline(STEP_S))
    assert described[names.input].replicas == 3
    reassign(three_brokers.connection, names.input, {1: [2]}, Deadline(STEP_S))
    three_brokers.kill(2)
    assert len(three_brokers.running()) == 2
    # Who was not asked yet may hear of the topic from the next controller, if this was the first one.
    until(
        lambda: names.input in topics.names(admin(three_brokers.connection), Deadline(STEP_S)), "the others tell of it"
    )
    _lag_leaves_out_what_broker_2_alone_holds(three_brokers.connection, names)
    _a_following_run_starts_beside_it(three_brokers.connection, names)
    _a_consumer_starts_beside_it(three_brokers.connection, names)
    _other_commands_name_it(three_brokers.connection.bootstrap, names.input)
    three_brokers.restart(2)
    assert len(three_brokers.running()) == 3


def _lag_leaves_out_what_broker_2_alone_holds(connection: Connection, names: Names) -> None:
    """It showed nothing of the other partitions, just when an operator needs it."""
    leaders = partial(cluster_admin.leaders, admin(connection), names.input)
    until(lambda: leaders(Deadline(STEP_S))[1] == -1, "a partition without a leader")
    options = ("--bootstrap", connection.bootstrap, "--input", names.input, "--group", names.group, "--interval", "0.1")
    code, stdout, _ = call_program(cli, "pipeline", "lag", *options, "--json")
    document = json.loads(stdout)
    assert (code, document["remaining"], document["lag_s"]) == (0, None, None)
    assert [row["partition"] for row in document["partitions"]] == [0]
    assert f"no leader for {names.input}[1]" in document["unavailable"]
    assert OutputTailSource(connection, names.input, 400).ask(Deadline(STEP_S)).unread == 1, "so does the live view"
    code, _, stderr = call_program(cli, "pipeline", "lag", *options, "--fail-on", "stuck")
    assert code == ExitCode.REFUSED
    assert "--fail-on and --fail-older-than need all partitions" in stderr


def _a_following_run_starts_beside_it(connection: Connection, names: Names) -> None:
    """No run started until the broker was back, though the other partition could be read."""
    writer = producer(connection, None, timeout_s=STEP_S, message_max_bytes=1_000_000)
    writer.produce(names.input, b"{}", b"gold-1", 0)
    assert writer.flush(STEP_S) == 0
    topics_of = {"--input": names.input, "--output": names.output, "--dead-letter": names.dead_letter}
    named = {"--bootstrap": connection.bootstrap, "--group": names.group, "--master": "none", **topics_of}
    options = [word for pair in named.items() for word in pair]
    command = [sys.executable, "-m", "pipeline", "run", *options, "--follow", "--no-probes", "--json"]
    with Running(command, dict(os.environ)) as program:
        program.await_cycle()
        program.await_line(lambda line: f"no leader for {names.input}[1]" in line)
        program.terminate()
        assert program.wait(STEP_S).code == ExitCode.DONE


def _a_consumer_starts_beside_it(connection: Connection, names: Names) -> None:
    """It consumed nothing, and ended after `--patience-s`."""
    seen = list[tuple[int, int]]()
    handler = Mock(
        assigned=lambda assignments, _deadline: {one.partition: one.first for one in assignments},
        handle=lambda batches, _context: seen.extend((one.partition, one.until) for one in batches),
    )
    group = {"partitions": None, "follow": True, "patience_s": 1}
    with downstream.following(downstream.settings(connection.bootstrap, names.group, names.input, **group), handler):
        until(lambda: seen, "a record of the other partition")
    assert seen == [(0, 1)]


def _other_commands_name_it(bootstrap: str, topic: str) -> None:
    """`xray` told nothing of the other partitions; it and `show` waited for a minute, and then advised on rights."""
    options = ("--bootstrap", bootstrap, "--json")
    code, stdout, _ = call_program(cli, "pipeline", "xray", "--topic", topic, *options)
    document = json.loads(stdout)
    assert (code, [strip["partition"] for strip in document["strips"]]) == (0, [0])
    assert f"no leader for {topic}[1]" in document["unavailable"][0]
    code, stdout, _ = call_program(cli, "pipeline", "doctor", "--topic", topic, *options)
    unread = [f"{topic}[1]: no leader; start a broker that holds it"]
    assert (code, json.loads(stdout)["unavailable"]) == (ExitCode.REFUSED, unread)
    code, _, stderr = call_program(cli, "pipeline", "show", topic, *options)
    assert (code, f"no leader for {topic}[1]" in stderr, "--partition" in stderr) == (ExitCode.REFUSED, True, True)
    code, stdout, _ = call_program(cli, "pipeline", "show", topic, "--partition", "0", *options)
    assert (code, json.loads(stdout)["key"]) == (0, {"text": "gold-1"})


# A coordinator that is cut off from the other brokers, and not from us, tells of a position that is past.


def _write(settings: TransactionSettings, names: Names, partition: int, start: int, end: int) -> None:
    """One transaction that is told ``start`` writes the numbers up to ``end``; it raises what its steps raise."""
    kafka = KafkaTransaction(settings, names.input, partition)
    try:
        kafka.fence(Deadline(STEP_S))
        located = kafka.locate(Deadline(STEP_S))
        assert (0 if located is None else located.offset) == start
        kafka.begin()
        for number in range(start, end):
            kafka.produce(names.output, b"%d" % number, None, partition)
        kafka.flush(Deadline(STEP_S))
        try:
            kafka.send_offsets(end, "", Deadline(STEP_S))
        except Abortable:
            kafka.abort(Deadline(STEP_S))
            raise
        kafka.commit(Deadline(STEP_S))
    finally:
        kafka.close()


def _written(settings: TransactionSettings, names: Names, partition: int, start: int, end: int) -> bool:
    """`_write`, while leaders move: False is to be asked again."""
    with contextlib.suppress(BrewError):
        _write(settings, names, partition, start, end)
        return True
    return False


def _visible(connection: Connection, names: Names, partition: int) -> Counter[int]:
    end = log_offsets(admin(connection), names.output, [partition], Deadline(STEP_S))[partition].last_stable
    batches = scan(connection, names.output, {partition: (0, end)}, READ_COMMITTED)
    return Counter(int(record.value() or b"") for batch in batches for record in batch)


@pytest.mark.skipif(not isolation.may_isolate(), reason="namespaces need root, `ip` and `nsenter`")
def test_a_position_that_a_cut_off_coordinator_tells_is_not_committed_on(
    healed: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says 10 where the group stands at 20 by now; without the look behind send-offsets rows come out twice."""
    make_topics(healed.connection, names.input, names.output, partitions=2)
    settings = TransactionSettings(healed.connection, names.group, STEP_S)
    for partition in (0, 1):
        until(partial(_written, settings, names, partition, 0, 5), "a first transaction each")
    cut_off = cluster_admin.coordinator(admin(healed.connection), cluster_admin.OFFSETS, names.group, Deadline(STEP_S))
    others = [node for node in healed.layout.nodes if node.number != cut_off]
    bootstrap = ",".join(f"{node.host}:{node.port}" for node in others)
    mine = TransactionSettings(Connection(bootstrap), names.group, STEP_S)
    theirs = TransactionSettings(Connection(bootstrap, {"client.id": "somebody-else"}), names.group, STEP_S)
    for partition in (0, 1):  # who asks for ``mine`` knows the coordinator from here on, and is kept
        _write(mine, names, partition, 5, 10)

    # A marker on its way to the broker that is cut off would hold the next fence back for half a minute.
    with open_transactions_admin(healed.connection, Deadline(STEP_S)) as coordinators:
        until(lambda: not coordinators.ongoing(), "the end of these transactions everywhere")
    healed.cut(cut_off, [node.number for node in others])
    client = admin(mine.connection)
    until(
        lambda: (
            cluster_admin.coordinator(client, cluster_admin.OFFSETS, names.group, Deadline(STEP_S)) not in {cut_off, -1}
        ),
        "another coordinator",
    )
    for partition in (0, 1):
        until(partial(_written, theirs, names, partition, 10, 20), "it takes commits", 60)

    with monkeypatch.context() as unconfirmed:
        unconfirmed.setattr(PositionConfirmation, "confirm", lambda *_: None)
        _write(mine, names, 1, 10, 20)
    with pytest.raises(Abortable, match=r"stood at 10 in .*\[0\] when this transaction began, and stands at 20"):
        _write(mine, names, 0, 10, 20)
    _write(mine, names, 0, 20, 30)

    for partition in (0, 1):
        until(lambda p=partition: _visible(mine.connection, names, p).total() >= 30, "the last row being visible")
    assert _visible(mine.connection, names, 0) == Counter(range(30))
    assert _visible(mine.connection, names, 1) == Counter(range(20)) + Counter(range(10, 20))
