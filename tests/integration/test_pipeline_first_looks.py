"""A run's looks at positions: whose open transactions they wait for, and for how long."""

from __future__ import annotations

import threading

import pytest
from confluent_kafka import Producer
from harness.pipeline import DrainView, Stage

from brew.driver import partitions
from brew.driver import run as running
from brew.driver.partitions import PartitionSurvey
from brew.driver.run_context import RunContext, RunProgress
from brew.kafka.clients import producer


def run_context(stage: Stage) -> RunContext:
    preflight = running.check(stage.settings("--master", "none"))
    return running.create_context(preflight, threading.Event(), RunProgress(), DrainView())


def begin_transaction(stage: Stage) -> Producer:
    """A transaction of partition 0, with a record in the output."""
    txn_id = f"{stage.names.group}:{stage.names.input}:0"
    writer = producer(stage.connection, txn_id, timeout_s=60, message_max_bytes=1_000_000)
    writer.init_transactions(20)
    writer.begin_transaction()
    writer.produce(stage.names.output, b"of a transaction", partition=0)
    assert writer.flush(20) == 0
    return writer


def die_in_partition_0_before_partition_1_has_a_position(stage: Stage) -> Producer:
    """Leave an open transaction, which hides what came out of both; whoever is killed there does not go on with it."""
    stage.create(2)
    order = (b"gold-1", b'{"customer_id": "c-1"}')
    stage.produce(stage.names.input, (0, *order))
    stage.drain_locally()
    stage.produce(stage.names.input, (0, *order), (1, *order))
    return begin_transaction(stage)


def test_a_dead_run_elsewhere_does_not_hold_back_a_partition_that_has_no_position_yet(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output has to be looked through; the dead one's next attempt would fence it."""
    die_in_partition_0_before_partition_1_has_a_position(stage)
    monkeypatch.setattr(partitions, "output_wait_s", lambda _settings: 1e-9)  # who had to look again would be refused
    stage.drain_locally()
    assert stage.committed() == {0: 2, 1: 1}
    assert len(stage.records(stage.names.output)) == 3


def test_a_rival_that_died_is_waited_for_look_by_look_until_its_partition_is_ours(stage: Stage) -> None:
    """Each look ends soon, so that claims are followed meanwhile; a fence may strike only in what is ours."""
    die_in_partition_0_before_partition_1_has_a_position(stage)
    survey = PartitionSurvey(run_context(stage))
    survey.owned = {1}
    for _ in range(2):
        facts, complete = survey.read(lambda _source: range(2))
        assert (1 in {fact.partition for fact in facts}, complete) == (False, False)
    assert len(stage.open_transactions()) == 1
    survey.owned = {0, 1}
    facts, complete = survey.read(lambda _source: range(2))
    survey.close()
    assert ({fact.partition for fact in facts}, complete) == ({0, 1}, True)
    stage.nothing_open()


def test_a_rival_that_works_on_and_on_is_waited_for_no_longer_than_its_transaction(stage: Stage) -> None:
    """At each look it has another one open; what they hide came later than what has to be seen."""
    rival = die_in_partition_0_before_partition_1_has_a_position(stage)
    survey = PartitionSurvey(run_context(stage))
    survey.owned = {1}
    assert survey.read(lambda _source: range(2))[1] is False
    rival.commit_transaction(20)
    rival.begin_transaction()
    rival.produce(stage.names.output, b"of the next one", partition=0)
    assert rival.flush(20) == 0
    facts, complete = survey.read(lambda _source: range(2))
    survey.close()
    assert ({fact.partition for fact in facts}, complete) == ({0, 1}, True)
    rival.abort_transaction(20)
