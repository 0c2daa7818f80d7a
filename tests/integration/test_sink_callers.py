"""What a program may do with a sink, on real Spark and a real broker: what would lose rows is refused."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier, Event, Thread, main_thread
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from harness.pipeline import Stage
from harness.servers import STEP_S
from harness.sinks import SinkStage, numbers
from harness.waiting import until
from py4j.protocol import Py4JNetworkError
from pyspark import InheritableThread
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

import brew
from brew.deadline import Deadline
from brew.errors import Abortable, Refused, UsageError
from brew.kafka import topics
from brew.kafka.clients import READ_COMMITTED, TopicPartition, consumer
from brew.kafka.group_requests import delete_group
from brew.names import CrashMode, CrashPoint
from brew.sink import sink as sinks
from brew.sink.batch import Result, SinkCrash, Status
from brew.transaction import Transaction


@pytest.fixture(params=[1, "tasks"], ids=["one", "tasks"])
def it(request: pytest.FixtureRequest, stage: Stage, tmp_path: Path) -> SinkStage:
    """30 records are in, none is out."""
    it = SinkStage(stage, tmp_path, request.param)
    it.create()
    it.feed(30)
    return it


ONE = pytest.mark.parametrize("it", [1], ids=["one"], indirect=True)
TASKS = pytest.mark.parametrize("it", ["tasks"], ids=["tasks"], indirect=True)


def rows(it: SinkStage, start: int, count: int) -> DataFrame:
    return it.spark.range(start, start + count, 1, 2).select(sf.col("id").cast("string").alias("value"))


def halves(df: DataFrame) -> list[DataFrame]:
    odd = sf.col("value").cast("string").cast("int") % 2 == 1
    return [df.filter(odd), df.filter(~odd)]


def test_two_threads_do_not_share_a_sink(it: SinkStage) -> None:
    """Both wrote in one epoch, where brokers dropped the second one's sequence numbers as duplicates."""
    sink, barrier = it.sink(transaction_timeout_s=10), Barrier(2)

    def write(number: int) -> bool | UsageError:
        frame = rows(it, number * 1000, 1000)
        barrier.wait(30)
        try:
            return sink.write(frame, number)
        except UsageError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(write, (1, 2))
    assert (first is True) != (second is True)
    assert "is writing a batch in another thread" in str(second if first is True else first)
    assert it.values() == numbers(1000, start=1000 if first is True else 2000)


def held_at(point: CrashPoint, batch_id: int, file: Path) -> SinkCrash:
    """Return what makes a batch's first attempt create FILE at a point, and wait for FILE.go."""

    @dataclass(frozen=True)
    class Hold(SinkCrash):  # in a function, so that Spark's Python gets it by value
        file: str = ""

        def crash(self, _point: CrashPoint, _transaction: Transaction | None) -> None:
            Path(self.file).touch()
            for _ in range(600):
                if not Path(f"{self.file}.go").exists():
                    Event().wait(0.1)

    return Hold(point, batch_id, CrashMode.WORKER, file=str(file))


# Where the first job waits, the other job's id, the first one's attempts, and what becomes of the first.
JOBS: dict[str, tuple[CrashPoint, int, int, bool | str]] = {
    "same-id": (CrashPoint.AFTER_SEND_OFFSETS, 5, 5, False),
    "same-id-once": (CrashPoint.AFTER_FLUSH, 5, 1, "not written in 1 attempts.* Fenced: .* newer (attempt|instance)"),
    "higher-id": (CrashPoint.AFTER_SEND_OFFSETS, 6, 5, "Kafka's position is batch 7 .*: ids have to grow"),
    "lower-id": (CrashPoint.AFTER_FLUSH, 4, 5, True),
}


@pytest.mark.parametrize("case", JOBS)
def test_a_batch_job_ends_the_transaction_of_another_one_of_its_name(it: SinkStage, case: str) -> None:
    """The first job's rows are written, not committed, when the other one begins; its next attempt decides anew."""
    point, other_id, attempts, expected = JOBS[case]
    held = it.folder / "held"
    first = it.sink(attempts=attempts, transaction_timeout_s=600, _crash=held_at(point, 5, held))
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(first.write, rows(it, 1000, 1000), 5)
        try:
            until(held.exists, "the first job's rows", 60)
            assert it.stage.open_transactions(it.stage.names.output)
            assert it.sink().write(rows(it, 0, 1000), other_id)
            assert it.values() == numbers(1000)
        finally:
            Path(f"{held}.go").touch()
        if isinstance(expected, str):
            with pytest.raises(Abortable if attempts == 1 else Refused, match=expected):
                job.result(60)
        else:
            assert job.result(60) is expected
    it.stage.nothing_open(it.stage.names.output)
    assert it.values() == numbers(2000 if expected is True else 1000)


def test_another_frame_of_a_batch_that_is_written_is_refused_and_the_same_is_not(it: SinkStage) -> None:
    """Its rows would be dropped as already written, without a word."""

    def write_halves(df: DataFrame, batch_id: int) -> None:
        for frame in halves(df):
            it.sink()(frame, batch_id)

    with pytest.raises(Refused, match=r"batch 0 of this query was written by an earlier call.* write their union"):
        it.run(it.copied(), write_halves)
    assert it.values() == Counter({b"%d" % n: 1 for n in range(1, 30, 2)})

    def write_union_twice(df: DataFrame, batch_id: int) -> None:
        odd, even = halves(df)
        for _ in range(2):
            sink(odd.union(even), batch_id)

    it.recreate(it.stage.names.output)
    sink = it.sink(name=f"{it.name}.united")
    it.run(it.copied(), write_union_twice, checkpoint=it.folder / "united")
    assert it.values() == numbers(30)


def test_an_interrupted_batch_job_leaves_no_transaction_open(it: SinkStage) -> None:
    """Its tasks are gone, and readers waited for the rest of the transaction time-out."""
    release_file = it.folder / "over"

    def block_until_released(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:  # larger than the buffer of Spark's Python
            yield pa.RecordBatch.from_pydict({"value": ["x" * 200_000] * batch.num_rows})
        for _ in range(600):
            if not release_file.exists():
                Event().wait(0.1)

    def interrupt() -> None:
        until(lambda: it.stage.open_transactions(it.stage.names.output), "an open transaction", 30)
        signal.pthread_kill(main_thread().ident or 0, signal.SIGINT)

    it.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    frame = rows(it, 0, 10).coalesce(1).mapInArrow(block_until_released, "value string")
    sink = it.sink(transaction_timeout_s=600)
    with ThreadPoolExecutor(1) as pool:
        interrupted = pool.submit(interrupt)
        # On the way out, pyspark connects to the JVM again, and rarely gets no answer.
        with pytest.raises((KeyboardInterrupt, Py4JNetworkError)):
            sink.write(frame, 1)
        release_file.touch()
        interrupted.result(30)
    assert it.stage.open_transactions(it.stage.names.output) == []
    assert sink.write(rows(it, 0, 10), 1)
    assert it.values() == numbers(10)


@ONE
def test_one_writer_writes_the_tasks_that_came_after_it_counted_them(
    it: SinkStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a batch source grows: a second task found the batch written by the first, and its rows were lost."""
    count_tasks, source, added = sinks.tasks_of, it.stage.names.topic("source"), list[int]()
    topics.create(it.stage.admin, [topics.TopicSpec(source, 1, {})], Deadline(STEP_S))
    topics.describe_all(it.stage.admin, [source], Deadline(STEP_S))
    it.stage.produce(source, (0, b"k", b"0"))

    def count_then_grow(frame: DataFrame) -> int:
        tasks = count_tasks(frame)
        it.more_partitions(source, 2)
        it.stage.produce(source, (1, b"k", b"1"))
        added.append(tasks)
        return tasks

    monkeypatch.setattr(sinks, "tasks_of", count_then_grow)
    options = {"kafka.bootstrap.servers": it.stage.broker.bootstrap, "subscribe": source}
    it.sink().write(it.spark.read.format("kafka").options(**options).load().select("value"), 1)
    assert added == [1]
    assert it.values() == numbers(2)


def test_an_adaptive_plan_is_computed_once(it: SinkStage) -> None:
    """Asking Spark for the number of its tasks runs all stages but the last."""
    it.spark.conf.set("spark.sql.adaptive.enabled", "true")
    rows_computed = it.spark.sparkContext.accumulator(0)

    def count_rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows_computed.add(batch.num_rows)
            yield batch

    def shuffle(df: DataFrame) -> DataFrame:
        values = df.select(sf.col("value").cast("string")).mapInArrow(count_rows, "value string")
        return values.groupBy("value").count().select("value")

    assert it.sink().write(shuffle(rows(it, 100, 10)), 0)
    assert rows_computed.value == 10
    query_sink = it.sink(name=f"{it.name}.query")
    it.run(it.copied(), lambda df, batch_id: query_sink(shuffle(df), batch_id))
    assert rows_computed.value == 40
    assert it.values() == numbers(30) + numbers(10, start=100)


def test_the_topic_of_the_rows_tells_that_a_position_elsewhere_expired(it: SinkStage) -> None:
    """The position's topic holds no record, so the batch was taken for a new sink's and written twice."""
    other_position_topic: dict[str, Any] = {"position_topic": it.stage.names.dead_letter}
    assert it.sink(**other_position_topic).write(rows(it, 0, 10), 1)
    it.stage.nothing_open()
    delete_group(it.stage.connection, it.name, Deadline(STEP_S))
    with pytest.raises(Refused, match="the topic holds its records up to batch 1"):
        it.sink(**other_position_topic).write(rows(it, 0, 10), 1)
    assert it.values() == numbers(10)


def test_the_offset_of_a_consumer_whose_group_has_the_sinks_name_is_not_its_position(it: SinkStage) -> None:
    """One that reads the output and commits stands at 2 after a row and its marker, which said that batch 1 is out."""
    sink = it.sink()
    assert sink.write(rows(it, 0, 10), 0)
    reader = consumer(it.stage.connection, it.name, READ_COMMITTED)
    reader.commit(offsets=[TopicPartition(it.stage.names.output, 0, 2)], asynchronous=False)
    reader.close()
    with pytest.raises(Refused, match=r"committed by another program .*such as a consumer of that group"):
        sink.write(rows(it, 10, 10), 1)
    sink.start_at(1)
    assert sink.write(rows(it, 10, 10), 1)
    assert it.values() == numbers(20)


@TASKS
def test_a_stage_that_spark_has_forgotten_is_not_only_called_repeated(
    it: SinkStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With spark.ui.retainedStages=1, Spark's status tracker forgot some stages before they were looked at."""
    monkeypatch.setattr(it.spark.sparkContext, "statusTracker", lambda: SimpleNamespace(getStageInfo=lambda _: None))
    with pytest.raises(Abortable, match=r"repeated stage \d+, or has forgotten it already \(spark\.ui\.retainedStages"):
        it.sink(attempts=1).write(rows(it, 0, 10), 0)
    assert not it.values()


@TASKS
def test_a_query_that_is_stopped_makes_no_further_attempt(it: SinkStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """`stop` waits for foreachBatch: for minutes while a broker is away."""
    attempted, attempts, stopped = Event(), list[int](), Event()

    def fail_attempt(*_: object) -> Result:
        attempts.append(1)
        attempted.set()
        assert stopped.wait(30)
        return Result(Status.FAILED, detail="Fenced: x")

    monkeypatch.setattr(brew.ExactlyOnceSink, "_attempt", fail_attempt)
    writer = it.copied().writeStream.foreachBatch(it.sink(attempts=50)).option("checkpointLocation", str(it.checkpoint))
    query = writer.start()
    assert attempted.wait(60)
    stopping = Thread(target=query.stop)
    stopping.start()
    until(lambda: not query.isActive, "the query to be stopping")
    stopped.set()
    stopping.join(30)
    assert not stopping.is_alive()
    assert len(attempts) == 1


@TASKS
def test_calls_that_spark_does_not_know_of_are_told_what_to_do(it: SinkStage) -> None:
    """`write` inside a query knows no checkpoint; a thread of one's own does not know its query."""
    sink, other = it.sink(), it.sink(name=f"{it.name}.other", topic=it.stage.names.dead_letter)
    with pytest.raises(Refused, match=r"sink\.write was called inside foreachBatch"):
        it.run(it.copied(), sink.write)

    def write_in_pool(df: DataFrame, batch_id: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(sink, df, batch_id).result()

    with pytest.raises(Refused, match=r"threads that foreachBatch starts have to be pyspark\.InheritableThread"):
        it.run(it.copied(), write_in_pool)

    def write_in_threads(df: DataFrame, batch_id: int) -> None:
        options: dict[str, Any] = {"args": (df, batch_id), "session": df.sparkSession}
        threads = [InheritableThread(target=target, **options) for target in (sink, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    it.run(it.copied(), write_in_threads)
    assert it.values() == numbers(30)
    assert len(it.stage.records(it.stage.names.dead_letter)) == 30
