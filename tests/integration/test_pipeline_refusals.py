"""Refuse rather than guess: each refusal on a real broker, by a drain inside this process."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from harness.pipeline import READERS, DrainView, Stage, until

from brew.deadline import Deadline
from brew.driver import missing_offsets
from brew.driver.partitions import OffsetsClient
from brew.errors import Refused
from brew.kafka.offsets import committed_by
from brew.names import READ_COMMITTED
from brew.settings import OnMissingPosition
from proof.seed import resolve


@pytest.fixture(params=READERS)
def stage(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    return replace(stage, reader=request.param)


def move(stage: Stage, *positions: tuple[int, int], metadata: str = "") -> None:
    """Set the group's position by hand, as `kafka-consumer-groups --reset-offsets` does."""
    offsets = [TopicPartition(stage.names.input, partition, offset, metadata) for partition, offset in positions]
    futures = stage.admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(stage.names.group, offsets)])
    for future in futures.values():
        future.result(20)


def delete_group(stage: Stage) -> None:
    """Let the group vanish, as retention of offsets does."""
    for future in stage.admin.delete_consumer_groups([stage.names.group]).values():
        future.result(20)
    until(lambda: set(stage.committed().values()) == {None}, "the group's end")


def create_and_drain(stage: Stage, count: int = 40, partitions: int = 2) -> None:
    stage.create(partitions, orders=count)
    stage.drain()


def test_vanished_offsets_are_refused_with_both_ways_out_and_nothing_is_written(stage: Stage) -> None:
    """To begin at the earliest would double what is out; to begin at the latest would lose what came since."""
    create_and_drain(stage)
    delete_group(stage)
    stage.seed(6)
    with pytest.raises(Refused, match="offsets-vanished") as refused:
        stage.drain()
    assert "--on-missing-position restore" in str(refused.value)
    assert "--on-missing-position start-over" in str(refused.value)
    assert len(stage.records(stage.names.output)) == 40

    # The first way out: the headers of the output tell the position.
    stage.drain("--on-missing-position", "restore")
    stage.proven(inputs=46, outputs=46)

    # The second one does what it says, and the proof sees it: this is the check of the check.
    delete_group(stage)
    stage.drain("--on-missing-position", "start-over")
    code, report = stage.verify()
    assert (code, report["totals"]) == (1, {"duplicate-output": 46})


@pytest.mark.parametrize("policy", OnMissingPosition)
def test_what_another_first_run_writes_meanwhile_is_not_taken_for_a_lost_position(
    stage: Stage, policy: OnMissingPosition
) -> None:
    """Two runs begin at once: one looks, the other commits, then the first one finds records without a position."""
    stage.create(2, orders=20)
    settings = replace(stage.settings(), on_missing_position=policy)
    offsets_client = OffsetsClient(settings)
    source = offsets_client.input_topic(Deadline(20))
    facts = offsets_client.facts(source, range(2), Deadline(20), {})
    stage.drain()
    targets = offsets_client.output_topics(source, Deadline(20))
    allowed = missing_offsets.resolve(settings, facts, targets, [], missing_offsets.OutputWait(Deadline(20)))
    offsets_client.close()
    assert allowed == ({0, 1} if policy is OnMissingPosition.START_OVER else set()), "they are asked again"
    stage.drain()
    stage.proven(inputs=20, outputs=20)


def test_one_vanished_partition_is_enough_to_refuse_and_rejected_records_count_as_output(stage: Stage) -> None:
    """The dead-letter topic tells the position too."""
    stage.create(2)
    stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id": 1}'), (1, b"k", b"not json"))
    stage.drain()
    delete_group(stage)
    move(stage, (0, 1))
    with pytest.raises(Refused, match=rf"offsets-vanished: .*{stage.names.input}\[1\]"):
        stage.drain()
    stage.drain("--on-missing-position", "restore")
    stage.proven(inputs=2, outputs=1, dead_letters=1)


def test_retention_past_the_position_is_refused_with_the_lost_range(stage: Stage) -> None:
    """Records that nobody enriched are gone; to go on silently would hide it."""
    create_and_drain(stage)
    stage.seed(20)
    for future in stage.admin.delete_records([TopicPartition(stage.names.input, 0, 25)]).values():
        future.result(20)
    with pytest.raises(Refused, match=r"input-lost: .*offsets \[20, 25\) are gone; .* --to-earliest"):
        stage.drain()
    # On purpose, the operator's way that the sentence names.
    move(stage, (0, 25))
    stage.drain()
    code, report = stage.verify()
    assert code == 3, "what retention took can't be proven"
    assert report["totals"] == {}
    assert report["unverifiable"] == 20


def test_retention_before_the_first_run_is_no_loss(stage: Stage) -> None:
    """A group that never stood anywhere begins at the first record there is."""
    stage.create(2, orders=40)
    for future in stage.admin.delete_records([TopicPartition(stage.names.input, 0, 15)]).values():
        future.result(20)
    stage.drain()
    assert stage.proven(inputs=25, outputs=25)["verdict"] == "proven"


def test_a_recreated_topic_is_refused_even_where_the_offset_fits(stage: Stage) -> None:
    """The position belongs to a topic that is gone: the id beside it tells."""
    create_and_drain(stage)
    names = stage.names
    committed = committed_by(stage.connection, names.group, names.input, [0, 1], READ_COMMITTED, Deadline(20))
    (metadata,) = {position.metadata for position in committed.values() if position is not None}
    stage.admin.delete_topics([stage.names.input])[stage.names.input].result(20)
    until(lambda: stage.names.input not in stage.admin.list_topics(timeout=10).topics, "the topic's end")
    stage.create(2, orders=60)
    # A broker forgets the offsets of a deleted topic; one that was down meanwhile, or a mirror, may not.
    until(lambda: set(stage.committed().values()) == {None}, "the old topic's offsets' end")
    with pytest.raises(Refused, match="offsets-vanished: "):
        stage.drain()
    with pytest.raises(Refused, match=r"topic-recreated: the output's last record of .* came from offset 19"):
        stage.drain("--on-missing-position", "restore")
    move(stage, (0, 20), (1, 20), metadata=metadata)
    old_id = re.escape(metadata.partition("=")[2])
    with pytest.raises(Refused, match=rf"topic-recreated: .* stands at 20 of topic id {old_id}, the topic has id "):
        stage.drain()
    assert len(stage.records(stage.names.output)) == 40


def test_a_position_moved_back_while_running_is_told_and_read_again(stage: Stage) -> None:
    """One truth: an operator's reset takes effect at once, in the running pipeline, and doubles what it doubles."""
    stage.create(1, output=1, orders=30)
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(stage.follow_in_process, stop)
        try:
            until(lambda: stage.outputs() == 30, "the first pass")
            move(stage, (0, 10))
            until(lambda: stage.outputs() == 50, "the second pass")
        finally:
            stop.set()
        notes = following.result(30).notes
    assert any(note.startswith("offset-gap: partition 0") for note in notes), notes
    code, report = stage.verify()
    assert (code, report["totals"]) == (1, {"duplicate-output": 20})
    assert report["findings"][0]["evidence"].endswith("came out before")


def test_a_position_moved_forward_is_obeyed_and_the_proof_names_what_was_skipped(stage: Stage) -> None:
    """The outsider decides, and the checker says what it cost: the check of the loss check."""
    stage.create(1, orders=30)
    move(stage, (0, 10))
    stage.drain()
    code, report = stage.verify()
    assert (code, report["totals"]) == (1, {"lost-output": 10})
    assert [finding["offset"] for finding in report["findings"]] == list(range(10))


def test_a_drain_gives_up_on_an_upstream_transaction_that_does_not_end(stage: Stage) -> None:
    """After --blocked-patience it says who was in the way and what to do; what was visible is out."""
    stage.create(2)
    stage.seed(20, "--transactional", "--leave-open", "--transaction-timeout-s", "600")
    run = DrainView()
    with pytest.raises(Refused, match="held back by an open upstream transaction"):
        stage.drain("--blocked-patience", "2", view=run)
    transactional_id = f"seed:{stage.names.input}:open"
    assert any(transactional_id in note for note in run.notes), run.notes
    assert stage.outputs() == 20
    stage.nothing_open()
    resolve(stage.connection, transactional_id, Deadline(20))
    stage.drain()
    stage.proven(inputs=20)
