"""The sink refuses rather than guesses: each case on real Spark and a real broker, and the way out that it names."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from harness.pipeline import Stage
from harness.records import write_unreadable
from harness.servers import STEP_S, make_topics
from harness.sinks import SinkStage, numbers
from pyspark.sql import DataFrame

from brew.deadline import Deadline
from brew.errors import BrewError, Refused
from brew.kafka import sink_transaction
from brew.kafka.group_requests import delete_group
from brew.names import SINK_BATCH, SINK_NAME


@pytest.fixture
def it(request: pytest.FixtureRequest, stage: Stage, tmp_path: Path) -> SinkStage:
    """30 records are in, and out as batch 0. One function decides for both ways to write (`position.is_new`)."""
    it = SinkStage(stage, tmp_path, getattr(request, "param", "tasks"))
    it.create()
    it.feed(30)
    it.run(it.copied(), it.sink())
    return it


BOTH = pytest.mark.parametrize("it", [1, "tasks"], ids=["one", "tasks"], indirect=True)


def refusal(it: SinkStage, **run: Any) -> str:
    """What the next run of the copy is told; nothing more is visible behind it."""
    it.feed(30, start=30)
    before = it.values()
    with pytest.raises(Refused) as refused:
        it.run(it.copied(), run.pop("sink", None) or it.sink(), **run)
    assert it.values() == before
    it.stage.nothing_open(it.stage.names.output)
    return str(refused.value)


@BOTH
def test_a_checkpoint_that_was_deleted(it: SinkStage) -> None:
    text = refusal(it, checkpoint=it.folder / "new")
    assert "is at batch 0, Kafka's position (batch 1, " in text
    assert "two queries have one name, or the checkpoint was deleted" in text


def test_a_checkpoint_that_was_restored_from_an_old_copy(it: SinkStage) -> None:
    copy = it.copy_checkpoint()
    for start in (30, 60):
        it.feed(30, start=start)
        it.run(it.copied(), it.sink())
    it.restore_checkpoint(copy)
    with pytest.raises(Refused, match=r"is at batch 1, Kafka's position is batch 3 .*an older copy of the checkpoint"):
        it.run(it.copied(), it.sink())
    assert it.values() == numbers(90)


def test_a_checkpoint_that_was_rolled_back_by_one_batch_and_planned_it_anew(it: SinkStage) -> None:
    """The numbers agree, the source offsets do not: to drop the rows would lose those of the new records."""
    copy = it.copy_checkpoint()
    it.feed(30, start=30)
    it.run(it.copied(), it.sink())
    it.restore_checkpoint(copy)
    it.feed(30, start=60)
    with pytest.raises(Refused, match="batch 1 that is out covered other source offsets than the checkpoint says"):
        it.run(it.copied(), it.sink())
    assert it.values() == numbers(60)


def test_a_sink_that_was_renamed_over_an_old_checkpoint(it: SinkStage) -> None:
    text = refusal(it, sink=it.sink(name=f"{it.name}.new"))
    assert "is at batch 1, Kafka has no position of it" in text
    assert "the sink was renamed" in text


def test_a_topic_that_was_created_again(it: SinkStage) -> None:
    it.recreate(it.stage.names.output)
    text = refusal(it)
    assert "is at batch 1" in text
    assert "its topic was deleted and created again" in text or "it was deleted and created again" in text


def test_a_topic_that_is_created_again_between_two_batches_of_one_run(it: SinkStage) -> None:
    """The running sink took its first look for true, and the next start refused instead of the next batch."""
    it.feed(30, start=30)
    sink = it.sink()

    def recreated_after(df: DataFrame, batch_id: int) -> None:
        sink(df, batch_id)
        if batch_id == 1:
            it.recreate(it.stage.names.output)

    with pytest.raises(Refused, match=r"is at batch 2.*created again"):
        it.run(it.copied(15), recreated_after)
    assert it.values() == Counter()


def test_the_way_out_of_a_recreated_topic_on_the_sink_that_refused(it: SinkStage) -> None:
    """It committed the former topic's id, for which the next process refused: "it was created again"."""
    sink = it.sink()
    it.feed(30, start=30)
    it.run(it.copied(), sink)
    it.recreate(it.stage.names.output)
    it.feed(30, start=60)
    with pytest.raises(Refused, match="deleted and created again"):
        it.run(it.copied(), sink)
    sink.start_at(2)
    it.run(it.copied(), sink)
    it.feed(30, start=90)
    it.run(it.copied(), it.sink())
    assert it.values() == numbers(60, start=60)


def test_a_position_that_expired_and_the_way_out(it: SinkStage) -> None:
    """Records' headers are the evidence; who knows better sets the position by hand."""
    it.stage.nothing_open(it.stage.names.output)
    delete_group(it.stage.connection, it.name, Deadline(STEP_S))
    text = refusal(it)
    assert "is at batch 1, Kafka has no position of it" in text
    assert "the topic holds its records up to batch 0: the position expired" in text
    it.sink().start_at(1)
    it.run(it.copied(), it.sink())
    assert it.values() == numbers(60)


def test_records_whose_headers_the_client_can_not_read_do_not_end_the_search_for_evidence(stage: Stage) -> None:
    """Another program may write such names, a sink refuses them; the search ended with SystemError, or SIGSEGV."""
    names = stage.names
    make_topics(stage.connection, names.output)
    ours = (SINK_NAME, b"revenue")
    stage.produce(names.output, *((0, b"k", b"v", [ours, (SINK_BATCH, batch)]) for batch in (b"6", b"7")))
    write_unreadable(stage.connection, names.output, 3)
    found = [
        sink_transaction.last_in_topic(stage.connection, names.output, name, SINK_BATCH, (SINK_NAME, name.encode()))
        for name in ("revenue", "other")
    ]
    assert found == [7, None]


def test_a_checkpoint_and_a_position_that_are_both_gone(it: SinkStage) -> None:
    """Nothing but the records tells that this is no new sink."""
    delete_group(it.stage.connection, it.name, Deadline(STEP_S))
    text = refusal(it, checkpoint=it.folder / "new")
    assert "is at batch 0, Kafka has no position of it" in text
    assert "the topic holds its records up to batch 0" in text


def test_brokers_that_do_not_verify_partitions_of_transactions(it: SinkStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_transaction, "OLDEST", (99, 0))
    text = refusal(it)
    assert "the sink needs 3.6 or later" in text
    assert "allow_old_brokers=True" in text
    it.run(it.copied(), it.sink(allow_old_brokers=True))
    assert it.values() == numbers(60)


@BOTH
def test_two_queries_of_one_name_at_once(it: SinkStage) -> None:
    """They fence each other until one has committed; the other one is refused then."""
    name, errors = f"{it.name}.both", list[str]()

    def run(number: int) -> None:
        try:
            it.run(it.copied(), it.sink(name=name, attempts=8), checkpoint=it.folder / f"both-{number}")
        except BrewError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert len(errors) == 1
    assert "two queries have one name" in errors[0]
    assert it.values() == numbers(30) + numbers(30)


SMALL = {"max.message.bytes": "20000"}
UNWRITABLE: dict[str, tuple[list[tuple[Any, ...]], str, str]] = {
    "partition": ([("a", 2), ("b", 3)], "value string, partition int", r"partition 3 of topic .* \(0 to 2\)"),
    "topic": ([("a", "no-such-topic")], "value string, topic string", "topic 'no-such-topic' does not exist"),
    "too-large": ([("a" * 30_000, 0)], "value string, partition int", "larger than max.message.bytes of its topic"),
    "no-key": ([("a", 0)], "value string, partition int", "cleanup.policy=compact takes no row without a key"),
}


@pytest.fixture(params=[1, "tasks"], ids=["one", "tasks"])
def empty(request: pytest.FixtureRequest, stage: Stage, tmp_path: Path) -> SinkStage:
    """No batch is out; record batches of the output are small."""
    make_topics(stage.connection, stage.names.output, partitions=3, config=SMALL)
    return SinkStage(stage, tmp_path, request.param)


@pytest.mark.parametrize("case", UNWRITABLE)
def test_a_row_that_no_attempt_can_write_ends_the_query_at_the_first_one(empty: SinkStage, case: str) -> None:
    """An `Abortable` would mean that it was repeated until the attempts were used up."""
    rows, schema, message = UNWRITABLE[case]
    if case == "no-key":
        compact = ("--topic", empty.stage.names.output, "--add-config", "cleanup.policy=compact")
        empty.stage.tool("kafka-configs", "--alter", *compact)
    topic = None if case == "topic" else empty.stage.names.output
    sink = empty.sink(topic=topic, position_topic=empty.stage.names.output)
    with pytest.raises(Refused, match=message):
        sink.write(empty.spark.createDataFrame(rows, schema), 0)
    assert not empty.values()
    empty.stage.nothing_open(empty.stage.names.output)


def test_record_batches_are_no_larger_than_the_topic_allows(empty: SinkStage) -> None:
    """Their usual size would be refused whatever the rows, and at every attempt."""
    sink = empty.sink()
    sink.write(empty.spark.range(3000).selectExpr("cast(id as string) as key", "repeat('x', 50) as value"), 0)
    assert empty.values() == {b"x" * 50: 3000}
    assert sink.last_batch is not None
    assert sink.last_batch.attempts == 1
