"""A run's looks at positions: what they wait for, fence and believe, and when they ask others or give up."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

import pytest
from confluent_kafka import Producer
from harness.pipeline import DrainView, Stage

from brew.deadline import Deadline
from brew.driver import partitions
from brew.driver import partitions as survey
from brew.driver import run as running
from brew.driver.partitions import OffsetsClient, PartitionSurvey
from brew.driver.run_context import RunContext, RunProgress
from brew.errors import Refused
from brew.kafka import cluster_admin
from brew.kafka.clients import Consumer, producer
from brew.kafka.offsets import committed
from brew.offsets import Committed, OffsetRange


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


def test_a_look_does_not_fence_what_this_run_is_at_work_on(stage: Stage) -> None:
    """A partition is given out while it is empty; its first transaction may outlast the next look."""
    stage.create(1)
    stage.drain_locally()
    context = run_context(stage)
    survey = PartitionSurvey(context)
    survey.read(lambda _source: range(1))
    context.running[0] = OffsetRange(stage.names.input, 0, 0, 1)
    stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id": "c-1"}'))
    first = begin_transaction(stage)
    facts, complete = survey.read(lambda _source: range(1))
    survey.close()
    assert ([fact.committed for fact in facts], complete) == ([None], True)
    first.commit_transaction(20)
    assert stage.outputs() == 1


def test_what_hides_the_output_for_too_long_is_refused_by_name(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody gives us the partition of whoever hangs there; to begin would be a guess."""
    die_in_partition_0_before_partition_1_has_a_position(stage)
    monkeypatch.setattr(partitions, "output_wait_s", lambda _settings: 1e-9)
    survey = PartitionSurvey(run_context(stage))
    survey.owned = {1}
    with pytest.raises(Refused, match="an open transaction of another producer hides output"):
        survey.read(lambda _source: range(2))
    survey.close()


STEP_S = 20.0
ORDERS, PAST = 10, 4


@pytest.fixture
def offsets_client(stage: Stage) -> Iterator[OffsetsClient]:
    """All orders are out, so that the group stands at the end."""
    stage.create(1)
    stage.seed(ORDERS)
    stage.drain_locally()
    client = OffsetsClient(stage.settings())
    yield client
    client.close()


def _position(offsets_client: OffsetsClient, known: dict[int, int]) -> int:
    source = offsets_client.input_topic(Deadline(STEP_S))
    return offsets_client.facts(source, [0], Deadline(STEP_S), known)[0].position


def test_a_position_behind_what_was_seen_is_asked_for_through_other_clients(
    offsets_client: OffsetsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are kept may know a coordinator that is cut off; nothing but a transaction's word tells so."""
    kept_clients = list[Consumer]()

    def read_from_cut_off_coordinator(
        reader: Consumer, topic: str, partitions: Iterable[int], deadline: Deadline
    ) -> dict[int, object]:
        if len(kept_clients) < 2 and reader not in kept_clients:
            kept_clients.append(reader)
        if reader in kept_clients:
            return {0: Committed(PAST, "")}
        return dict(committed(reader, topic, partitions, deadline))

    monkeypatch.setattr(survey, "committed", read_from_cut_off_coordinator)
    assert _position(offsets_client, {}) == PAST
    assert _position(offsets_client, {0: ORDERS}) == ORDERS
    assert _position(offsets_client, {}) == ORDERS, "those others are kept"


def test_a_position_that_somebody_moved_back_is_believed(offsets_client: OffsetsClient, stage: Stage) -> None:
    """One truth: also where it is behind what this run has seen."""
    names = stage.names
    cluster_admin.set_offsets(stage.connection, names.group, names.input, {0: PAST}, Deadline(STEP_S))
    assert _position(offsets_client, {0: ORDERS}) == PAST
