"""What brokers are asked through kafka-python: groups, raw batches, open transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.pipeline import Stage
from harness.servers import Broker, Names
from harness.waiting import until

from brew.cluster import GroupFacts
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Fatal, Unreachable
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin, consumer, producer
from brew.kafka.cluster import Groups, group_state
from brew.kafka.kafka_python import open_transactions, raw_batches
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED

STEP_S = 20.0


@pytest.fixture
def stage(stage: Stage) -> Stage:
    stage.create(1)
    return stage


@pytest.fixture
def groups(stage: Stage) -> Iterator[Groups]:
    groups = Groups(stage.connection)
    yield groups
    groups.close()


@contextmanager
def member(stage: Stage, protocol: str) -> Iterator[None]:
    """Somebody who has joined the group with this protocol (`classic`, or `consumer` as of KIP-848)."""
    client = consumer(stage.connection, stage.names.group, READ_COMMITTED, **{"group.protocol": protocol})
    try:
        client.subscribe([stage.names.input])
        until(lambda: client.poll(0.05) or client.assignment(), "a partition for the member")
        yield
    finally:
        client.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_are_told_whatever_protocol_they_joined_with(stage: Stage, groups: Groups, protocol: str) -> None:
    """DescribeGroups knows nothing of a group of KIP-848; the position of both is moved by their members."""
    with member(stage, protocol):
        facts = groups.describe(stage.names.group, Deadline(STEP_S))
    assert (facts.state, [member.partition("@")[0] for member in facts.members]) == ("stable", ["rdkafka"])
    assert facts.operations is not None
    assert {"READ", "DELETE", "DESCRIBE"} <= facts.operations


def test_a_group_that_nobody_made_is_dead_and_one_that_holds_offsets_is_empty(stage: Stage, groups: Groups) -> None:
    """Neither has members; deleted, it is dead again, and then there is nothing left to delete."""
    group = stage.names.group
    assert groups.now(group, Deadline(STEP_S)) == GroupFacts("dead", ())
    cluster_admin.set_offsets(stage.connection, group, stage.names.input, {0: 0}, Deadline(STEP_S))
    assert stage.committed() == {0: 0}
    assert group_state(stage.connection, group, Deadline(STEP_S)) == ("empty", 0)
    cluster_admin.delete_group(stage.connection, group, Deadline(STEP_S))
    assert groups.describe(group, Deadline(STEP_S)).state == "dead"
    with pytest.raises(Fatal, match=f"delete group {group}: .*GroupIdNotFoundError"):
        cluster_admin.delete_group(stage.connection, group, Deadline(STEP_S))


def test_a_group_with_members_is_neither_moved_nor_deleted(stage: Stage) -> None:
    """The coordinator's words are in the error."""
    with member(stage, "classic"):
        with pytest.raises(Fatal, match="NonEmptyGroup"):
            cluster_admin.delete_group(stage.connection, stage.names.group, Deadline(STEP_S))
        with pytest.raises(Fatal, match="UnknownMemberId"):
            cluster_admin.set_offsets(stage.connection, stage.names.group, stage.names.input, {0: 0}, Deadline(STEP_S))


def test_the_connection_is_kept_between_questions_and_ends_with_its_thread(stage: Stage) -> None:
    """A following run asks every five seconds."""
    before = set(threading.enumerate())
    groups = Groups(stage.connection)
    groups.describe(stage.names.group, Deadline(STEP_S))
    client = groups._admin
    groups.describe(stage.names.group, Deadline(STEP_S))
    assert groups._admin is client
    groups.close()
    groups.close()
    until(lambda: set(threading.enumerate()) <= before, "the end of the connection's thread")


def topic_with_transactions(broker: Broker, names: Names, compression: str = "none") -> Connection:
    """Three plain records, two committed, four aborted, one open; each flush is a batch, however slow the loop is."""
    connection = Connection(broker.bootstrap)
    topics.create(admin(connection), [topics.TopicSpec(names.input, 1, {})], Deadline(20))
    unhurried = {"linger.ms": 20_000}
    plain = producer(connection, None, timeout_s=30, message_max_bytes=1_000_000, **unhurried)
    for _ in range(3):
        plain.produce(names.input, b"plain" * 50, partition=0)
    assert plain.flush(20) == 0
    more = {"compression.type": compression, **unhurried}
    writer = producer(connection, names.topic("tx"), timeout_s=60, message_max_bytes=1_000_000, **more)
    writer.init_transactions(20)
    for records, end in ((2, writer.commit_transaction), (4, writer.abort_transaction), (1, None)):
        writer.begin_transaction()
        for _ in range(records):
            writer.produce(names.input, b"in a transaction" * 50, partition=0)
        assert writer.flush(20) == 0
        if end is not None:
            end(20)
    return connection


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_raw_batches_tell_who_wrote_and_how_it_ended(broker: Broker, names: Names, compression: str) -> None:
    """Headers and markers only: no codec is needed."""
    connection = topic_with_transactions(broker, names, compression)
    log = log_offsets(admin(connection), names.input, [0], Deadline(20))[0]
    batches = list(raw_batches(connection, names.input, 0, log.first, log.end, Deadline(20)))
    assert [(batch.records, batch.transactional, batch.marker) for batch in batches] == [
        (3, False, None),
        (2, True, None),
        (1, True, "commit"),
        (4, True, None),
        (1, True, "abort"),
        (1, True, None),
    ]
    assert [batch.base_offset for batch in batches] == [0, 3, 5, 6, 10, 11]
    assert len({batch.producer_id for batch in batches if batch.transactional}) == 1


def test_a_range_yields_the_batches_that_hold_its_offsets(broker: Broker, names: Names) -> None:
    """The first one may begin before it."""
    connection = topic_with_transactions(broker, names)
    batches = list(raw_batches(connection, names.input, 0, 4, 7, Deadline(20)))
    assert [(batch.base_offset, batch.last_offset) for batch in batches] == [(3, 4), (5, 5), (6, 9)]
    assert list(raw_batches(connection, names.input, 0, 7, 7, Deadline(20))) == []


def test_an_open_transaction_is_named_with_its_first_offset_and_age(broker: Broker, names: Names) -> None:
    """The partition's leader and the coordinator together know all of it."""
    connection = topic_with_transactions(broker, names)
    (transaction,) = open_transactions(connection, names.input, [0], Deadline(20))
    assert (transaction.partition, transaction.first_offset, transaction.transactional_id) == (0, 11, names.topic("tx"))
    assert transaction.age_s is not None
    assert 0 <= transaction.age_s < 60


def test_no_thread_is_left_behind(broker: Broker, names: Names) -> None:
    """Neither after an answer nor after a failure."""
    connection = topic_with_transactions(broker, names)
    before = set(threading.enumerate())
    open_transactions(connection, names.input, [0], Deadline(20))
    next(raw_batches(connection, names.input, 0, 0, 5, Deadline(20)))
    with pytest.raises(BrewError):
        open_transactions(connection, names.topic("missing"), [0], Deadline(20))
    with pytest.raises(Unreachable):
        open_transactions(Connection("localhost:1"), names.input, [0], Deadline(0.3))
    assert set(threading.enumerate()) <= before


def test_a_missing_topic_ends_with_the_deadline(broker: Broker, names: Names) -> None:
    """It may be there in a moment, so it is waited for, and not for ever."""
    with pytest.raises(BrewError, match="raw batches"):
        list(raw_batches(Connection(broker.bootstrap), names.input, 0, 0, 5, Deadline(1)))
