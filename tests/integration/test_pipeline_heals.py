"""Crashes and rivals met by a drain inside this process, where a cycle costs little, and what bounds its batches."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import orjson
import psutil
import pytest
from confluent_kafka import KafkaException
from harness.pipeline import CONNECTOR, PARTITIONS, READ_UNCOMMITTED, READERS, DrainView, Stage, Status, shared_spark
from pyspark.sql import DataFrame, SparkSession

from brew.attempt import AttemptSpec, Job, attempt
from brew.deadline import Deadline
from brew.driver.run import check
from brew.errors import Fatal
from brew.kafka.clients import producer
from brew.kafka.transaction import TransactionSettings
from brew.names import CrashPoint, TransactionalId
from brew.offsets import OffsetRange
from brew.planner import position_metadata
from brew.range_transaction import Rows, Targets
from brew.readers import connector as engine
from brew.readers.connector import SMALL_RECORDS, check_one_task_per_range, read_ranges
from pipeline.transformation import OrderEnrichment


@pytest.fixture
def stage(stage: Stage) -> Stage:
    """With Spark: its workers die and its copies of a task run, without this process."""
    return replace(stage, reader=CONNECTOR)


@pytest.fixture(params=READERS)
def any_reader(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    """Whoever reads."""
    return replace(stage, reader=request.param)


def rows_of(stage: Stage, start: int, until: int) -> list[Rows]:
    """Some of partition 0, as a reader hands it over."""
    records = [record for record in stage.records(stage.names.input) if start <= record.offset() < until]
    columns = zip(*[(r.offset(), r.key(), r.value(), None, r.timestamp()[1]) for r in records], strict=True)
    return [Rows(*map(list, columns))]


# One for each way in which a dead attempt is met again: half out, all out, unknown, and committed.
WORKER_POINTS = [
    CrashPoint.MID_PRODUCE,
    CrashPoint.AFTER_SEND_OFFSETS,
    CrashPoint.COMMIT_IN_FLIGHT,
    CrashPoint.BEFORE_REPORT,
]
NOTHING_PRODUCED = {CrashPoint.AFTER_FENCE}
DONE = {CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT}


def count_with_aborted(stage: Stage) -> int:
    """Records of the output as a read_uncommitted reader sees them, aborted attempts among them."""
    return len(stage.records(stage.names.output, READ_UNCOMMITTED))


@pytest.mark.parametrize("point", WORKER_POINTS)
def test_a_dead_worker_heals_within_the_run_at_every_crash_point(stage: Stage, point: CrashPoint) -> None:
    """Each range's first attempt dies by SIGKILL; the next one's fence and locate tell what is out and what is not."""
    stage.create(2, orders=40)
    run = stage.drain("--crash-mode", "worker", "--crash-prob", "1.0", "--crash-point", point.value)
    if point in DONE:
        assert Status.ALREADY_DONE in run.statuses()
        assert count_with_aborted(stage) == 40
    elif point is not CrashPoint.COMMIT_IN_FLIGHT:
        assert count_with_aborted(stage) > 40
    stage.proven(inputs=40, outputs=40)


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_zombie_that_is_still_alive_is_fenced_at_every_crash_point(any_reader: Stage, point: CrashPoint) -> None:
    """The crashed attempt's producer lives on in this process, its transaction open; the next run does not wait."""
    stage = any_reader
    stage.create(2, orders=40)
    crashed = stage.drain_locally("--crash-prob", "1.0", "--crash-point", point.value)
    assert crashed.statuses() == {Status.CRASHED}
    enriched = sum(outcome.enriched for outcome in crashed.outcomes)
    assert (enriched > 0) == (point not in NOTHING_PRODUCED)
    if point not in {CrashPoint.COMMIT_IN_FLIGHT, *DONE}:
        assert len(stage.records(stage.names.output)) == 0
        assert count_with_aborted(stage) == enriched
    stage.drain_locally()
    stage.proven(inputs=40, outputs=40)


def test_a_foreign_holder_of_the_transactional_ids_cannot_break_the_promise(any_reader: Stage) -> None:
    """Somebody fences every id again and again: attempts end as fenced, and once it stops all comes out, once."""
    stage = any_reader
    stage.create()
    run, stopped, seeded = DrainView(), threading.Event(), 0

    def steal() -> None:
        while not stopped.is_set() and not fenced_often_enough():  # a thief who never rests can win every time
            for partition in range(PARTITIONS):
                txn_id = str(TransactionalId(stage.names.group, stage.names.input, partition))
                thief = producer(stage.connection, txn_id, timeout_s=30, message_max_bytes=1_000_000)
                with contextlib.suppress(KafkaException):  # the pipeline fences back
                    thief.init_transactions(10)

    def fenced_often_enough() -> bool:
        """Whether the thief came between a fence and its commit often enough; a theft between cycles shows nothing."""
        return run.progress.totals.fenced >= PARTITIONS

    thief, deadline = threading.Thread(target=steal), Deadline(120)
    thief.start()
    try:
        while not fenced_often_enough():
            deadline.check("the thief meets the pipeline")
            stage.seed(400)
            seeded += 400
            stage.drain_locally("--max-records-per-transaction", "25", view=run)
    finally:
        stopped.set()
        thief.join(60)
    assert any("fenced" in outcome.detail for outcome in run.outcomes if outcome.status is Status.FENCED)
    stage.proven(inputs=seeded, outputs=seeded)


def test_two_attempts_at_the_same_range_at_once_write_it_once(stage: Stage) -> None:
    """What speculation does: the copies run with the same id; one commits, the others are fenced or find it done."""
    stage.create(1, orders=300)
    settings = stage.settings()
    metadata = position_metadata(check(settings).topics[stage.names.input].topic_id)
    targets = Targets(stage.names.output, stage.names.dead_letter, 0, 0, metadata)
    transaction = TransactionSettings(stage.connection, stage.names.group, 30.0)
    rivals = 0
    for start in range(0, 300, 30):
        rows = rows_of(stage, start, start + 30)
        spec = AttemptSpec(OffsetRange(stage.names.input, 0, start, start + 30), targets, first_time=start == 0)
        job = Job({0: spec}, transaction, OrderEnrichment(settings.limits))
        with ThreadPoolExecutor(3) as pool:
            copies = [pool.submit(attempt, spec, iter(rows), job) for _ in range(3)]
            outcomes = [copy.result() for copy in copies]
        statuses = [outcome.status for outcome in outcomes]
        assert set(statuses) <= {Status.COMMITTED, Status.FENCED, Status.ALREADY_DONE}, outcomes
        assert statuses.count(Status.COMMITTED) <= 1, outcomes
        rivals += Status.FENCED in statuses
        assert attempt(spec, iter(rows), job).status in {Status.COMMITTED, Status.ALREADY_DONE}
    assert rivals, "they never met"
    stage.proven(inputs=300, outputs=300)


def test_a_plan_that_cuts_a_range_in_two_is_refused_before_it_runs(stage: Stage) -> None:
    """A task that saw half a range would commit all of it."""
    stage.create(1, orders=100)
    ranges = [OffsetRange(stage.names.input, 0, 0, 100)]
    frame = read_ranges(shared_spark(), stage.connection, stage.names.group, ranges)
    check_one_task_per_range(frame, ranges)
    for wrong in (frame.repartition(2), frame.orderBy("offset")):
        with pytest.raises(Fatal, match="Spark planned"):
            check_one_task_per_range(wrong, ranges)
    doubled = frame.union(frame)
    with pytest.raises(Fatal, match="Spark planned 2 tasks for 1 ranges"):
        check_one_task_per_range(doubled, ranges)


def test_the_next_job_reads_with_the_consumers_of_the_one_before(stage: Stage) -> None:
    """A following run would else open connections with each cycle, and close them minutes later."""
    stage.create(2, orders=40)
    spark, port = shared_spark(), int(stage.broker.bootstrap.rpartition(":")[2])
    jvm = psutil.Process(spark.sparkContext._gateway.proc.pid)

    def connections() -> int:
        """The JVM has to the broker, after one more read."""
        offsets = [log.end for _, log in sorted(stage.logs(stage.names.input).items())]
        ranges = [OffsetRange(stage.names.input, number, 0, end) for number, end in enumerate(offsets)]
        assert len(read_ranges(spark, stage.connection, stage.names.group, ranges).collect()) == 40
        established = (one for one in jvm.net_connections("tcp") if one.status == psutil.CONN_ESTABLISHED)
        return sum(1 for connection in established if connection.raddr.port == port)

    first = connections()
    assert max(connections() for _ in range(3)) <= first, "fewer when those of an earlier test are closed meanwhile"


def test_rows_come_from_the_source_without_being_turned_into_objects(stage: Stage) -> None:
    """The second kind of Spark source hands them on as they are; the first kind converted each one twice."""
    stage.create(1)
    ranges = [OffsetRange(stage.names.input, 0, 0, 1)]
    frame = read_ranges(shared_spark(), stage.connection, stage.names.group, ranges)
    plan = frame._jdf.queryExecution().executedPlan().toString()
    assert "BatchScan" in plan
    assert "Scan KafkaRelation" not in plan


UNBOUNDED = tuple(SMALL_RECORDS.values())
SMALL_RANGES = ("--lanes", "1", "--max-records-per-transaction", "100")


class Bounds:
    """Stands before the reader; ``fails`` is the number of the cycle that does not get its rows."""

    def __init__(self) -> None:
        self.settings: list[tuple[str, ...]] = []
        self.fails = -1

    def read(self, spark: SparkSession, *rest: Any) -> DataFrame:
        self.settings.append(tuple(str(spark.conf.get(name)) for name in SMALL_RECORDS))
        if len(self.settings) == self.fails:
            raise RuntimeError("no memory, say")
        return read_ranges(spark, *rest)


@pytest.fixture
def bounds(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Bounds:
    """What bounds the batches that Spark hands to the workers, in the words of each cycle's session."""
    bounds = Bounds()
    stage.create(2)
    monkeypatch.setattr(engine, "read_ranges", bounds.read)
    return bounds


def test_small_records_are_handed_over_without_a_bound_of_bytes_once_they_are_known(
    stage: Stage, bounds: Bounds
) -> None:
    stage.seed(800)
    stage.drain(*SMALL_RANGES)
    assert [settings == UNBOUNDED for settings in bounds.settings] == [False, True, True, True]
    stage.proven(inputs=800, outputs=800)


def test_large_records_stay_bounded(stage: Stage, bounds: Bounds) -> None:
    order = orjson.dumps({"order_id": "gold-1", "customer_id": "c-1", "note": "x" * 8192})
    stage.produce(stage.names.input, *((number % 2, b"gold-1", order) for number in range(400)))
    stage.drain(*SMALL_RANGES)
    assert [settings == UNBOUNDED for settings in bounds.settings] == [False, False]


def test_after_a_job_that_failed_its_batches_are_bounded_again(stage: Stage, bounds: Bounds) -> None:
    bounds.fails = 2
    stage.seed(800)
    stage.drain(*SMALL_RANGES)
    assert [settings == UNBOUNDED for settings in bounds.settings] == [False, True, False, True, True]
    stage.proven(inputs=800, outputs=800)
