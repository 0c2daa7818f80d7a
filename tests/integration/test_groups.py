"""What a group's coordinator is asked through kafka-python: librdkafka's admin client would not outlive each answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage
from harness.waiting import until

from brew.cluster import GroupFacts, Unknown
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Fatal
from brew.kafka import cluster_admin
from brew.kafka.clients import consumer
from brew.kafka.cluster import Groups, group_state
from brew.names import READ_COMMITTED

STEP_S = 20.0


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    made = Stage(broker, names)
    made.create(1)
    return made


@pytest.fixture
def asked(stage: Stage) -> Iterator[Groups]:
    found = Groups(stage.connection)
    yield found
    found.close()


@contextmanager
def member(stage: Stage, protocol: str) -> Iterator[None]:
    """Somebody who has joined the group with this protocol (`classic`, or `consumer` as of KIP-848)."""
    joined = consumer(stage.connection, stage.names.group, READ_COMMITTED, **{"group.protocol": protocol})
    try:
        joined.subscribe([stage.names.input])
        until(lambda: joined.poll(0.05) or joined.assignment(), "a partition for the member")
        yield
    finally:
        joined.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_are_told_whatever_protocol_they_joined_with(stage: Stage, asked: Groups, protocol: str) -> None:
    """DescribeGroups knows nothing of a group of KIP-848; the position of both is moved by their members."""
    with member(stage, protocol):
        told = asked.describe(stage.names.group, Deadline(STEP_S))
    assert (told.state, [one.partition("@")[0] for one in told.members]) == ("stable", ["rdkafka"])
    assert told.operations is not None
    assert {"READ", "DELETE", "DESCRIBE"} <= told.operations


def test_a_group_that_nobody_made_is_dead_and_one_that_holds_offsets_is_empty(stage: Stage, asked: Groups) -> None:
    """Neither has members; deleted, it is dead again, and then there is nothing left to delete."""
    group = stage.names.group
    assert asked.now(group, Deadline(STEP_S)) == GroupFacts("dead", ())
    cluster_admin.set_offsets(stage.connection, group, stage.names.input, {0: 0}, Deadline(STEP_S))
    assert stage.committed() == {0: 0}
    assert group_state(stage.connection, group, Deadline(STEP_S)) == ("empty", 0)
    cluster_admin.delete_group(stage.connection, group, Deadline(STEP_S))
    assert asked.describe(group, Deadline(STEP_S)).state == "dead"
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
    one = Groups(stage.connection)
    one.describe(stage.names.group, Deadline(STEP_S))
    kept = one._admin
    one.describe(stage.names.group, Deadline(STEP_S))
    assert one._admin is kept
    one.close()
    one.close()
    until(lambda: set(threading.enumerate()) <= before, "the end of the connection's thread")


def test_where_no_broker_answers_the_reason_is_told_in_time_and_no_thread_is_left() -> None:
    """Not an error: the run asks again a few seconds later."""
    before = set(threading.enumerate())
    told = Groups(Connection("127.0.0.1:1")).now("g", Deadline(0.5))
    assert isinstance(told, Unknown)
    assert "127.0.0.1:1" in told.reason
    until(lambda: set(threading.enumerate()) <= before, "the end of its threads")
