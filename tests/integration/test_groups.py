"""What a group's coordinator is asked through kafka-python: librdkafka's admin client would not outlive each answer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
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


def test_where_no_broker_answers_the_reason_is_told_in_time_and_no_thread_is_left() -> None:
    """Not an error: the run asks again a few seconds later."""
    before = set(threading.enumerate())
    facts = Groups(Connection("127.0.0.1:1")).now("g", Deadline(0.5))
    assert isinstance(facts, Unknown)
    assert "127.0.0.1:1" in facts.reason
    until(lambda: set(threading.enumerate()) <= before, "the end of its threads")
