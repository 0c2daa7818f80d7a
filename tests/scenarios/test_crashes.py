"""Crashes on purpose and by force, of whole pipelines in processes of their own."""

from __future__ import annotations

import random
import re
import signal
from contextlib import ExitStack

import psutil
import pytest
from harness.pipeline import PARTITIONS, READ_UNCOMMITTED, Running, Stage, Status, until

from brew.cluster import ONGOING
from brew.deadline import Deadline
from brew.kafka.transactions_admin import open_transactions_admin
from brew.names import CrashPoint

BEFORE_COMMIT = {CrashPoint.AFTER_FENCE, CrashPoint.MID_PRODUCE, CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS}
UNCOMMITTED = re.compile(r"^💥 crash before commit: (\d+) records? already in output log$", re.MULTILINE)
COMMITTED = re.compile(r"^💥 crash after commit: (\d+) records? committed, not reported$", re.MULTILINE)
IN_FLIGHT = re.compile(
    r"^💥 crash with the commit in flight: (\d+) records? in output log, outcome unknown$", re.MULTILINE
)
CONFLICT = re.compile(r'"status":"(fenced|already-done|ahead)"')
ROUNDS = 2
OFFSETS = "__consumer_offsets"
ALONE = ("--master", "none")
SMALL = ("--max-records-per-transaction", "20")


def test_five_certain_crashes_in_a_row_lose_and_double_nothing(stage: Stage) -> None:
    """Each run fences the one before and dies at the same place; the sixth may live, and brings everything out once."""
    stage.create(orders=100)
    left = 0
    for _ in range(5):
        ran = stage.pipeline("--crash-prob", "1.0", *ALONE)
        assert ran.code == 2, ran.text
        assert ran.statuses() == {"crashed"}
        match = UNCOMMITTED.search(ran.out)
        assert match is not None, ran.text
        left += int(match[1])
        assert stage.records(stage.names.output) == []
        stage.no_process_left()
    assert stage.drain_locally("--crash-prob", "0").statuses() == {Status.COMMITTED}
    assert len(stage.records(stage.names.output, READ_UNCOMMITTED)) == 100 + left
    stage.proven(inputs=100, outputs=100)


@pytest.mark.parametrize("point", list(CrashPoint))
def test_a_crash_at_this_point_ends_with_2_and_the_next_run_heals_it(stage: Stage, point: CrashPoint) -> None:
    """
    The 💥 line says what the crash left in the log: records that wait, that are out, or whose commit is unknown.

    Without a JVM. The crash story and test_transform_crashes.py have crashes through Spark.
    """
    stage.create(2, orders=40)
    ran = stage.pipeline("--crash-prob", "1.0", "--crash-point", point.value, *ALONE)
    assert ran.code == 2, ran.text
    stage.no_process_left()
    line = UNCOMMITTED if point in BEFORE_COMMIT else IN_FLIGHT if point is CrashPoint.COMMIT_IN_FLIGHT else COMMITTED
    match = line.search(ran.out)
    assert match is not None, ran.text
    in_log = len(stage.records(stage.names.output, READ_UNCOMMITTED))
    assert int(match[1]) == in_log
    assert (in_log > 0) == (point is not CrashPoint.AFTER_FENCE)
    if point in BEFORE_COMMIT:
        assert stage.records(stage.names.output) == []
    if line is COMMITTED:
        assert len(stage.records(stage.names.output)) == in_log
        assert stage.unstable_offsets() == 0
    stage.drain_locally()
    stage.proven(inputs=40, outputs=40)


def test_a_run_whose_workers_die_in_mid_transaction_heals_itself(stage: Stage) -> None:
    """CRASH_MODE=worker: every range's first attempt is killed with its worker, and the same run still exits 0."""
    stage.create(orders=60)
    ran = stage.run(stage.make_command("run-pipeline-crash", CRASH_PROB="1.0", CRASH_MODE="worker"))
    assert ran.code == 0, ran.text
    assert "💥" not in ran.out
    assert "Traceback" not in ran.text
    assert len(stage.records(stage.names.output, READ_UNCOMMITTED)) > 60, "the dead attempts left aborted records"
    stage.proven(inputs=60, outputs=60)


def is_in_a_transaction(stage: Stage, program: Running) -> bool:
    """
    Stop all its processes once one transaction seems open; return whether one holds back the output and has no offsets.

    If so, they stay stopped. Any other one may be sending its commit, or its first record, and is seen only now.
    """
    if not stage.unstable_offsets():
        return False
    program.signal_tree(signal.SIGSTOP)
    with open_transactions_admin(stage.connection, Deadline(20)) as coordinators:
        ongoing = [one for one in coordinators.ongoing() if one.state == ONGOING]
    without_offsets = {one.transactional_id for one in ongoing if OFFSETS not in {topic for topic, _ in one.places}}
    if without_offsets & {one.transactional_id for one in stage.open_transactions()}:
        return True
    program.signal_tree(signal.SIGCONT)
    return False


def test_kill_9_at_random_moments_under_load_time_after_time(stage: Stage) -> None:
    """Driver, JVM and workers die in the middle of a long backlog; each round goes on from Kafka's answer."""
    chance = random.Random(20)
    stage.create(orders=30_000)
    last: dict[int, int] = {}
    for _ in range(ROUNDS):
        with stage.follow("--follow", "--max-records-per-transaction", "50") as program:
            program.await_cycle(times=chance.randint(1, 3))
            until(lambda: is_in_a_transaction(stage, program), "an open transaction", 30)
            program.kill_tree()
            program.wait()
        assert stage.open_transactions(), "the kill met no transaction"
        stage.no_process_left()
        now = {p: log.last_stable for p, log in stage.logs(stage.names.output).items()}
        assert now != last, "no progress between the kills"
        last = now
    assert sum(last.values()) < 30_000, "the load ended before the rounds did"
    stage.drain_locally()
    stage.proven(inputs=30_000, outputs=30_000)


def test_a_worker_a_driver_and_a_jvm_that_die_alone_leave_nothing_behind(stage: Stage) -> None:
    """
    A worker's partitions go on elsewhere. Without its driver the JVM ends with its workers; without its JVM the driver
    ends with one sentence.
    """
    stage.create(orders=8_000)
    with stage.follow("--follow", *SMALL) as program:
        program.await_cycle()
        max(program.processes_with("pyspark.worker"), key=lambda process: process.create_time()).kill()
        before = stage.committed()
        stage.seed(8_000)  # a partition may have been drained before the look
        until(lambda: all((offset or 0) > (before[p] or 0) for p, offset in stage.committed().items()), "all go on", 30)
        psutil.Process(program.pid).kill()
        program.wait()
        stage.no_process_left()
    stage.seed(8_000)
    with stage.follow(*SMALL) as program:
        program.await_cycle()
        (jvm,) = [process for process in program.processes_with("java") if process.name() == "java"]
        jvm.kill()
        ran = program.wait()
    assert ran.code == 3, ran.text
    # pyspark's own server thread prints a trace of its broken socket, now or later; our last word is the sentence.
    ours = [line for line in ran.err.splitlines() if line.startswith("pipeline: ")]
    assert ours[-1].startswith("pipeline: Spark's JVM has ended by itself (exit code -9"), ran.err
    assert "brew/driver/run.py" not in ran.err
    stage.no_process_left()
    stage.drain_locally()
    stage.proven(inputs=24_000, outputs=24_000)


def test_two_pipelines_with_the_same_group_at_once_write_everything_once(stage: Stage) -> None:
    """One on Spark, one without; they fence each other or find ranges done by the other, and orders come until then."""
    stage.create(orders=20)
    seeded = 20
    with ExitStack() as stack:
        on_spark = stack.enter_context(stage.follow("--follow", *SMALL))
        on_spark.await_cycle()  # Spark is up
        without_spark = stack.enter_context(stage.follow("--follow", *SMALL, *ALONE))
        deadline = Deadline(120)
        while not (on_spark.has_printed(CONFLICT) or without_spark.has_printed(CONFLICT)):
            deadline.check("the two pipelines meet")
            for program in (on_spark, without_spark):
                assert program.alive(), program.output()
            stage.seed(2_000)
            seeded += 2_000
            until(stage.drained, "the group stands at the input's end", 90)
        on_spark.terminate()
        without_spark.terminate()
        results = [on_spark.wait(), without_spark.wait()]
    assert [ran.code for ran in results] == [0, 0], [ran.text for ran in results]
    stage.proven(inputs=seeded, outputs=seeded)
    assert len(stage.logs(stage.names.output)) == PARTITIONS
