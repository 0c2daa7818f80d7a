"""The exactly-once sink on real Spark and a real broker: any query, both ways to write, and the position it keeps."""

from __future__ import annotations

import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from harness.operate import json_of, pipeline
from harness.pipeline import Stage
from harness.sinks import WORDS, SinkStage, numbers
from pyspark import TaskContext
from pyspark.sql import functions as sf
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

import brew
from brew.errors import Refused, UsageError
from brew.names import SINK_BATCH, STEPS, ExitCode
from brew.observability.status import Transactions, from_json
from brew.sink import shared
from brew.sink.position import PositionMetadata
from brew.sink.query import in_few_tasks, tasks_of, wake_workers


def page(sink: brew.ExactlyOnceSink, name: str) -> str:
    with urllib.request.urlopen(f"{sink.probes_url}/{name}", timeout=10) as reply:
        return str(reply.read().decode())


BOTH = pytest.mark.parametrize("writers", [1, "tasks"], ids=["one", "tasks"])


@pytest.fixture
def make(stage: Stage, tmp_path: Path) -> Any:
    def make_stage(writers: Any = 1) -> SinkStage:
        it = SinkStage(stage, tmp_path, writers)
        it.create()
        return it

    return make_stage


@BOTH
def test_a_copy_in_batches_is_whole_and_each_record_tells_its_batch(make: Any, writers: Any) -> None:
    """AvailableNow cuts the input; the position is the next batch, its metadata the query and its source offsets."""
    it = make(writers)
    it.feed(100)
    it.run(it.copied(most=40), it.sink())
    assert it.values() == numbers(100)
    assert sum(it.batches().values()) == 100
    last = max(it.batches())
    assert last >= 2
    position = it.position()
    assert position is not None
    assert position.offset == last + 1
    metadata = PositionMetadata.parse(position.metadata)
    assert metadata is not None
    assert metadata.query
    it.stage.nothing_open(it.stage.names.output)


@BOTH
def test_keys_stay_together_where_other_producers_put_them(make: Any, writers: Any) -> None:
    """By murmur2, as Java's producer; both ways to write agree, however wide Spark makes Arrow's columns."""
    it = make(writers)
    it.spark.conf.set("spark.sql.execution.arrow.useLargeVarTypes", "true")
    it.feed(100)
    it.run(it.copied(), it.sink())
    keys_and_partitions = {(record.key(), record.partition()) for record in it.stage.records(it.stage.names.output)}
    assert {key for key, _ in keys_and_partitions} == {word.encode() for word in WORDS}
    assert keys_and_partitions == {(word.encode(), (murmur2(word.encode()) & 0x7FFFFFFF) % 3) for word in WORDS}


@BOTH
def test_rows_may_name_partition_topic_and_headers(make: Any, writers: Any) -> None:
    it = make(writers)
    it.feed(30)
    headers = sf.array(sf.struct(sf.lit("h").alias("key"), sf.lit(b"1").alias("value")))
    rows = it.source().select(
        "key",
        sf.col("value").cast("string"),
        "partition",
        sf.lit(it.stage.names.dead_letter).alias("topic"),
        headers.alias("headers"),
    )
    it.run(rows, it.sink(topic=None, position_topic=it.stage.names.output))
    records = it.stage.records(it.stage.names.dead_letter)
    assert Counter(record.value() for record in records) == numbers(30)
    assert {record.partition() == int(record.value() or b"") % 3 for record in records} == {True}
    assert {tuple(name for name, _ in record.headers() or ()) for record in records} == {
        ("h", "brew.sink.name", "brew.sink.batch")
    }


@BOTH
def test_a_batch_that_is_out_already_runs_its_plan_and_drops_its_rows(make: Any, writers: Any) -> None:
    """
    As after a kill between commit and Spark's commit log; without the plan its state would not go on either.

    `/status` and `/metrics` of the sink tell both batches.
    """
    it = make(writers)
    it.feed(40)
    it.run(it.counted(), it.sink(), "update")
    it.forget_last_commit()
    it.feed(40, start=40)
    sink = it.sink(probe_port=0)
    it.run(it.counted(), sink, "update")
    with closing(sink):
        (row,) = from_json(page(sink, "status?producers")).partitions
        assert (row.topic, row.position, row.lag, row.records) == (it.stage.names.output, 2, 0, 4)
        assert row.transactions == Transactions(committed=1, refused=1)
        last = row.last_transaction
        assert last is not None
        assert (last.transactional_id, tuple(last.steps)) == (f"{it.name}:{it.stage.names.output}:sink", STEPS)
        assert last.producer_id is not None, last.producer_unknown
        assert f'brew_txn_total{{outcome="refused",partition="0",topic="{row.topic}"}} 1.0' in page(sink, "metrics")
    assert it.totals() == sorted(((word.encode(), n) for word in WORDS for n in (10, 20)), key=str)


@BOTH
def test_a_query_in_complete_mode_that_goes_by_the_clock(make: Any, writers: Any) -> None:
    """Each batch is the whole result."""
    it = make(writers)
    it.feed(40)
    writer = it.counted().writeStream.outputMode("complete").foreachBatch(it.sink())
    query = writer.option("checkpointLocation", str(it.checkpoint)).trigger(processingTime="1 second").start()
    try:
        for start in (40, 80):
            query.processAllAvailable()
            it.feed(40, start=start)
        query.processAllAvailable()
    finally:
        query.stop()
    batches, totals = it.batches(), it.totals()
    assert set(batches.values()) == {len(WORDS)}
    assert len(batches) == it.position().offset >= 3
    for total in (10, 30):
        assert {(word.encode(), total) for word in WORDS} <= set(totals)


def test_more_tasks_than_slots_can_use_are_joined_with_their_state(make: Any) -> None:
    """Spark shuffles into 200 partitions by itself, each with a state store; a task of ours takes several of them."""
    it = make()
    it.spark.conf.set("spark.sql.shuffle.partitions", "11")
    tasks = list[int]()
    for start, writers in ((0, 1), (40, "tasks")):
        sink = it.sink(writers=writers)

        def count_tasks_and_write(df: Any, batch_id: int, sink: Any = sink) -> None:
            tasks.extend([tasks_of(df), tasks_of(in_few_tasks(df))])
            sink(df, batch_id)

        it.feed(40, start=start)
        it.run(it.counted(), count_tasks_and_write, "update")
    slots = int(it.spark.sparkContext.defaultParallelism)
    assert tasks == [11, 4 * slots] * 2
    assert it.totals() == sorted(((word.encode(), n) for word in WORDS for n in (10, 20)), key=str)


def by_sparks_own_sink(it: SinkStage) -> None:
    options = {"kafka.bootstrap.servers": it.stage.broker.bootstrap, "topic": it.stage.names.output}
    writer = it.counted().writeStream.format("kafka").options(**options).outputMode("update")
    query = writer.option("checkpointLocation", str(it.checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


def test_sparks_own_sink_writes_such_a_batch_twice(make: Any) -> None:
    """The control of the test before: what makes the difference is the sink."""
    it = make()
    it.feed(40)
    by_sparks_own_sink(it)
    it.forget_last_commit()
    by_sparks_own_sink(it)
    assert Counter(it.totals()) == Counter({(word.encode(), 10): 2 for word in WORDS})


def test_a_query_moves_from_sparks_own_sink_and_back_without_a_duplicate(make: Any) -> None:
    """Its checkpoint and state stay: the way that docs/guide/sink.md describes, where no batch is in flight."""
    it = make("tasks")
    it.feed(40)
    by_sparks_own_sink(it)
    it.feed(40, start=40)
    with pytest.raises(Refused, match=r"call start_at\(1\)"):
        it.run(it.counted(), it.sink(), "update")
    sink = it.sink()
    sink.start_at(1)
    it.run(it.counted(), sink, "update")
    it.feed(40, start=80)
    by_sparks_own_sink(it)
    assert it.totals() == sorted(((word.encode(), n) for word in WORDS for n in (10, 20, 30)), key=str)


@BOTH
def test_a_batch_that_came_to_nothing_is_written_by_the_next_attempt(make: Any, writers: Any) -> None:
    """A function of the query fails half way: what was written is aborted, and another attempt may follow at once."""
    it = make(writers)
    it.feed(30)
    sink, failed = it.sink(), []
    poison = sf.when(sf.col("value") == b"25", sf.raise_error(sf.lit("boom")).cast("binary")).otherwise(sf.col("value"))

    def fail_then_write(df: Any, batch_id: int) -> None:
        if not failed:
            with pytest.raises(Exception, match="boom"):
                sink(df.withColumn("value", poison), batch_id)
            failed.append(batch_id)
        sink(df, batch_id)

    it.run(it.copied(), fail_then_write)
    assert (it.values(), failed) == (numbers(30), [0])
    it.stage.nothing_open(it.stage.names.output)


@pytest.fixture
def shuffles(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tasks each shuffle of a sink had."""
    counts, repartition = list[int](), ClassicFrame.repartitionById

    def count_and_repartition(self: Any, count: int, column: Any) -> Any:
        counts.append(count)
        return repartition(self, count, column)

    monkeypatch.setattr(ClassicFrame, "repartitionById", count_and_repartition)
    return counts


def test_a_copy_that_keeps_its_partitions_is_not_shuffled(make: Any, shuffles: list[int]) -> None:
    it = make("tasks")
    it.feed(90)
    it.run(it.source().select("key", "value", "partition"), it.sink())
    assert it.values() == numbers(90)
    assert shuffles == []
    records = it.stage.records(it.stage.names.output)
    assert {record.partition() == int(record.value() or b"") % 3 for record in records} == {True}


def test_rows_of_one_partition_in_two_tasks_end_the_batch_which_is_shuffled_then(
    make: Any, shuffles: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers take the second task's first records for duplicates of the first one's, and say nothing."""
    it = make("tasks")
    it.feed(90)
    sink = it.sink()
    with caplog.at_level("INFO", "brew.sink"):
        it.run(it.source().select("key", "value", sf.lit(1).alias("partition")), sink)
    assert it.values() == numbers(90)
    assert (sink.last_batch.rows, sink.last_batch.attempts) == (90, 2)
    assert len(shuffles) == 1
    assert "two tasks wrote to" in caplog.text
    assert {record.partition() for record in it.stage.records(it.stage.names.output)} == {1}


@pytest.mark.parametrize("wrong_by", [-1, 1], ids=["fewer", "more"])
def test_a_task_that_miscounts_its_records_ends_the_batch(
    make: Any, monkeypatch: pytest.MonkeyPatch, wrong_by: int
) -> None:
    """Brokers compare the count in a record batch with its records; a task reports the sum of these counts."""
    it, encode = make("tasks"), shared.encoded_rows

    def miscount(*arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in encode(*arguments, **options):
            counts = pa.array([count + wrong_by for count in batch["count"].to_pylist()], pa.int32())
            yield batch.set_column(2, batch.schema.field("count"), counts)

    it.feed(90)
    with monkeypatch.context() as patch:
        patch.setattr(shared, "encoded_rows", miscount)
        with pytest.raises(Refused, match="InvalidRecordError"):
            it.run(it.copied(), it.sink())
    assert (it.values(), it.position()) == (Counter(), None)
    it.run(it.copied(), it.sink())
    assert it.values() == numbers(90)


def test_a_task_whose_report_is_lost_ends_the_batch(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that fails tells it in its report: without one, the batch was committed without the task's rows."""
    it, write_share = make("tasks"), shared.write_share

    def fail_without_report(*arguments: Any, speculation: bool) -> Iterator[pa.RecordBatch]:
        if TaskContext.get().partitionId():
            yield from write_share(*arguments, speculation=speculation)
        else:
            for _ in arguments[-1]:
                pass

    it.feed(90)
    rows = it.source().select(sf.col("value").alias("key"), "value")
    with monkeypatch.context() as patch:
        patch.setattr(shared, "write_share", fail_without_report)
        with pytest.raises(Refused, match=r"1 of 2 tasks of stage .* reported what they wrote"):
            it.run(rows, it.sink(attempts=1))
    assert (it.values(), it.position()) == (Counter(), None)
    it.run(rows, it.sink())
    assert it.values() == numbers(90)


def test_rows_without_headers_reach_the_tasks_with_an_empty_list(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With null, Spark's look at an Arrow batch's size after each row is quadratic (`_without_null_headers`)."""
    it, encoded_rows = make("tasks"), shared.encoded_rows

    def refuse_nulls(*arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        *rest, batches = arguments
        looked = list(batches)
        if any(batch.column("headers").null_count for batch in looked):
            raise ValueError("headers are null")
        yield from encoded_rows(*rest, iter(looked), **options)

    it.feed(90)
    rows = it.copied().withColumn("headers", sf.lit(None).cast("array<struct<key:string,value:binary>>"))
    with monkeypatch.context() as patch:
        patch.setattr(shared, "encoded_rows", refuse_nulls)
        it.run(rows, it.sink(headers=False))
    assert it.values() == numbers(90)


@pytest.mark.parametrize("shuffle", [False, True])
def test_record_batches_are_compressed_for_a_shuffle_and_only_there(
    make: Any, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    it, encoded_rows = make("tasks"), shared.encoded_rows

    def checked(*arguments: Any, **options: Any) -> Iterator[pa.RecordBatch]:
        for batch in encoded_rows(*arguments, **options):
            if any((size > 0) != shuffle for size in batch.column("size").to_pylist()):
                raise ValueError(f"sizes {batch.column('size')}, shuffle: {shuffle}")
            yield batch

    it.feed(90)
    with monkeypatch.context() as patch:
        patch.setattr(shared, "encoded_rows", checked)
        it.run(it.source().select("key", "value", *([] if shuffle else ["partition"])), it.sink())
    assert it.values() == numbers(90)


@BOTH
def test_a_batch_job_is_written_once_for_its_id(make: Any, writers: Any) -> None:
    it = make(writers)
    rows = it.spark.range(1000, numPartitions=4).select(sf.col("id").cast("string").alias("value"))
    sink = it.sink()
    assert sink.write(rows, 20261123)
    assert sink.last_batch.rows == 1000
    assert not sink.write(rows, 20261123)
    with pytest.raises(Refused, match="ids have to grow"):
        sink.write(rows, 20261121)
    assert sink.write(rows, 20261124)
    assert it.values() == numbers(1000) + numbers(1000)


@BOTH
def test_a_row_that_can_not_be_computed_leaves_nothing_of_its_batch(make: Any, writers: Any) -> None:
    """Spark mostly kills the task's Python first; cell F40-stage-one has its rows break off, too."""
    it = make(writers)
    it.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    it.feed(60)
    value = sf.col("value").cast("string")
    broken = sf.when(value == "59", sf.raise_error(sf.lit("no such row"))).otherwise(value).alias("value")
    with pytest.raises(Refused, match="no such row"):
        it.run(it.copied().coalesce(1).select("key", broken), it.sink())
    assert it.values() == Counter()
    it.run(it.copied(), it.sink())
    assert it.values() == numbers(60)


@BOTH
def test_an_empty_batch_moves_the_position(make: Any, writers: Any) -> None:
    it = make(writers)
    assert it.sink().write(it.spark.createDataFrame([], "value string"), 4)
    assert it.sink().write(it.spark.createDataFrame(it.spark.sparkContext.emptyRDD(), "value string"), 5), "no task"
    position = it.position()
    assert position is not None
    assert position.offset == 6


@BOTH
def test_the_sources_offsets_are_committed_with_the_batch_so_that_lag_tools_see_the_query(
    make: Any, writers: Any
) -> None:
    """Nobody reads them for the promise. Version 2 of the checkpoint's offset log is that of named sources."""
    it = make(writers)
    it.spark.conf.set("spark.sql.streaming.offsetLog.formatVersion", "2" if writers == 1 else "1")
    it.feed(90)
    it.run(it.copied(), it.sink(name=f"{it.name}.sink", source_group=it.name))
    assert it.stage.committed() == {p: log.end for p, log in it.stage.logs(it.stage.names.input).items()}
    it.feed(6, start=90)
    report = json_of(it.stage, "lag", "--interval", "0.1")
    assert [row["remaining"] for row in report["partitions"]] == [2, 2, 2]
    position = it.position(it.name, it.stage.names.input)
    assert position is not None
    assert position.metadata.startswith(f"{it.name}.sink:{it.stage.names.output}:sink"), "librdkafka may append bytes"


def test_explain_and_xray_tell_which_batch_wrote_a_record_and_lag_that_a_sinks_group_has_none(make: Any) -> None:
    it = make("tasks")
    it.feed(3)
    it.run(it.copied(), it.sink())
    output = it.stage.names.output
    record = it.stage.records(output)[0]
    place = f"{output}/{record.partition()}/{record.offset()}"
    report = json_of(it.stage, "explain", place)
    assert (report["sink"], report["batch"], report["record"]["fate"]) == (it.name, 0, "committed")
    assert report["copied"] is False
    assert report["record"]["transactional_id"] == f"{it.name}:{output}:sink"
    downstream = ("--input", output, "--output", it.stage.names.input, "--group", f"{it.name}.downstream")
    assert json_of(it.stage, "explain", place, *downstream)["orders"][0]["answer"] == "not-read"
    strips = json_of(it.stage, "xray", "--topic", output)["strips"]
    sinks = [run["sink"] for strip in strips for run in strip["runs"] if run["kind"] == "committed"]
    assert sinks == [{"name": it.name, "batch": 0}] * len(sinks) != []
    report = json_of(it.stage, "lag", "--input", output)
    assert report.get("next_batch") == 1, (report, it.position())
    code, text = pipeline(it.stage, "lag", "--input", output, "--fail-on", "stuck")
    assert code == ExitCode.REFUSED
    assert f"group {it.name} holds the position of a sink (the next batch is 1, of " in " ".join(text.split())


@BOTH
def test_a_partition_may_be_added_while_the_query_runs(make: Any, writers: Any) -> None:
    """Between two batches of one run: the next one writes to it, and each batch places its keys by one count."""
    it = make(writers)
    it.feed(90)
    sink = it.sink()

    def add_after_the_first(df: Any, batch_id: int) -> None:
        sink(df, batch_id)
        if batch_id == 0:
            it.more_partitions(it.stage.names.output, 5)

    it.run(it.source(most=30).select(sf.col("value").alias("key"), "value"), add_after_the_first)
    assert it.values() == numbers(90)
    counts: dict[int, set[int]] = {}
    for record in it.stage.records(it.stage.names.output):
        batch, key = int(dict(record.headers())[SINK_BATCH]), murmur2(record.key()) & 0x7FFFFFFF
        counts[batch] = counts.get(batch, {3, 5}) & {n for n in (3, 5) if key % n == record.partition()}
    assert counts == {0: {3}} | {batch: {5} for batch in range(1, len(counts))}
    assert len(counts) >= 3


def test_ways_to_write_may_change_between_runs(make: Any) -> None:
    it = make(1)
    it.feed(30)
    it.run(it.copied(), it.sink())
    it.forget_last_commit()
    it.feed(30, start=30)
    it.run(it.copied(), it.sink(writers="tasks"))
    assert it.values() == numbers(60)


@BOTH
def test_a_row_without_a_topic_is_refused_and_nothing_of_its_batch_is_seen(make: Any, writers: Any) -> None:
    """With tasks that is found before the shuffle, and told by the task that would have written it; so is a header."""
    it = make(writers)
    it.feed(30)
    topic = sf.when(sf.col("value") == b"25", sf.lit(None)).otherwise(sf.lit(it.stage.names.output))
    rows = it.source().select("key", "value", topic.alias("topic"))
    with pytest.raises(Refused, match="the sink got a row whose topic is null"):
        it.run(rows, it.sink(topic=None, position_topic=it.stage.names.output))
    headers = sf.array(sf.struct(sf.lit(None).cast("string").alias("key"), sf.col("value")))
    with pytest.raises(Refused, match="a header whose key is null"):
        it.run(it.source().select("key", "value", headers.alias("headers")), it.sink())
    assert (it.values(), it.position()) == (Counter(), None)


def test_a_sink_starts_sparks_python_in_the_background_once_for_an_application(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch took a second longer without."""
    monkeypatch.setattr("brew.sink.query._woken", set())
    it = make()
    it.spark.range(1).count()  # the session is this thread's now
    tracker = it.spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup())
    it.sink()
    (thread,) = [running for running in threading.enumerate() if running.name == "brew-sink-wake"]
    thread.join(30)
    assert len(set(tracker.getJobIdsForGroup()) - before) == 1
    assert wake_workers() is None


def test_a_sink_called_by_hand_says_what_to_call_instead(make: Any) -> None:
    it = make()
    with pytest.raises(UsageError, match=r"use sink\.write"):
        it.sink()(it.spark.createDataFrame([("a",)], "value string"), 0)


def test_a_topic_that_is_not_there_is_refused(make: Any) -> None:
    it = make()
    sink = it.sink(topic=f"{it.name}.nowhere")
    with pytest.raises(Refused, match="does not exist; create it"):
        sink.write(it.spark.createDataFrame([("a",)], "value string"), 0)


def test_two_sinks_in_one_function_keep_positions_of_their_own(make: Any) -> None:
    it = make()
    it.feed(30)
    first, second = it.sink(), it.sink(name=f"{it.name}.b", topic=it.stage.names.dead_letter, writers="tasks")

    def write_to_both(df: Any, batch_id: int) -> None:
        first(df, batch_id)
        second(df, batch_id)

    it.run(it.copied(), write_to_both)
    it.forget_last_commit()
    it.run(it.copied(), write_to_both)
    copy = Counter(record.value() for record in it.stage.records(it.stage.names.dead_letter))
    assert (it.values(), copy) == (numbers(30), numbers(30))
