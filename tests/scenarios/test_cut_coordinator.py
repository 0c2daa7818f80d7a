"""A group's coordinator that is cut off from the other brokers, and not from us, tells of a position that is past."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from harness.names import Names
from harness.transactions import STEP_S, make_topics
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Abortable, BrewError
from brew.kafka import cluster_admin
from brew.kafka.clients import admin
from brew.kafka.committed_offset import PositionConfirmation
from brew.kafka.log_reader import scan
from brew.kafka.offsets import log_offsets
from brew.kafka.transaction import KafkaTransaction, TransactionSettings
from brew.kafka.transactions_admin import open_transactions_admin
from brew.names import READ_COMMITTED
from sandbox import isolation
from sandbox.kafka import Cluster, Settings

pytestmark = pytest.mark.skipif(not isolation.may_isolate(), reason="namespaces need root, `ip` and `nsenter`")


@pytest.fixture
def three() -> Iterator[Cluster]:
    """Three brokers, each in a network of its own, that no other test uses."""
    directory = Path(tempfile.mkdtemp(prefix="brew-test-kafka-"))
    try:
        with Cluster.start(directory, brokers=3, settings=Settings(namespaces=True)) as cluster:
            yield cluster
    finally:
        shutil.rmtree(directory, ignore_errors=True)


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


def test_a_position_that_a_cut_off_coordinator_tells_is_not_committed_on(
    three: Cluster, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says 10 where the group stands at 20 by now; without the look behind send-offsets rows come out twice."""
    make_topics(three.connection, names.input, names.output, partitions=2)
    whole = TransactionSettings(three.connection, names.group, STEP_S)
    for partition in (0, 1):
        until(partial(_written, whole, names, partition, 0, 5), "a first transaction each")
    cut_off = cluster_admin.coordinator(admin(three.connection), cluster_admin.OFFSETS, names.group, Deadline(STEP_S))
    others = [node for node in three.layout.nodes if node.number != cut_off]
    bootstrap = ",".join(f"{node.host}:{node.port}" for node in others)
    mine = TransactionSettings(Connection(bootstrap), names.group, STEP_S)
    theirs = TransactionSettings(Connection(bootstrap, {"client.id": "somebody-else"}), names.group, STEP_S)
    for partition in (0, 1):  # who asks for ``mine`` knows the coordinator from here on, and is kept
        _write(mine, names, partition, 5, 10)

    # A marker on its way to the broker that is cut off would hold the next fence back for half a minute.
    with open_transactions_admin(three.connection, Deadline(STEP_S)) as told:
        until(lambda: not told.going_on(), "the end of these transactions everywhere")
    three.cut(cut_off, [node.number for node in others])
    asking = admin(mine.connection)
    until(
        lambda: (
            cluster_admin.coordinator(asking, cluster_admin.OFFSETS, names.group, Deadline(STEP_S)) not in {cut_off, -1}
        ),
        "another coordinator",
    )
    for partition in (0, 1):
        until(partial(_written, theirs, names, partition, 10, 20), "it takes commits", 60)

    with monkeypatch.context() as without:
        without.setattr(PositionConfirmation, "confirm", lambda *_: None)
        _write(mine, names, 1, 10, 20)
    with pytest.raises(Abortable, match=r"stood at 10 in .*\[0\] when this transaction began, and stands at 20"):
        _write(mine, names, 0, 10, 20)
    _write(mine, names, 0, 20, 30)

    for partition in (0, 1):
        until(lambda at=partition: _visible(mine.connection, names, at).total() >= 30, "the last row being visible")
    assert _visible(mine.connection, names, 0) == Counter(range(30))
    assert _visible(mine.connection, names, 1) == Counter(range(20)) + Counter(range(10, 20))
