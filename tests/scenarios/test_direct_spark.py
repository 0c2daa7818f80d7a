"""The direct reader in Spark's tasks: workers, executors and drivers die, slots come late, the order to stop comes."""

from __future__ import annotations

import psutil
import pytest
from harness.pipeline import READ_UNCOMMITTED, Stage, until

DIRECT = ("--reader", "direct")
EXECUTOR = "CoarseGrainedExecutorBackend"


def test_a_run_whose_workers_die_in_mid_transaction_heals_itself(stage: Stage) -> None:
    """Each holder dies once, over its first transaction; Spark repeats its task, the driver grants again."""
    stage.create()
    stage.seed(60)
    ran = stage.pipeline(*DIRECT, "--crash-prob", "1.0", "--crash-mode", "worker")
    assert ran.code == 0, ran.text
    assert "Traceback" not in ran.text
    assert len(stage.records(stage.names.output, READ_UNCOMMITTED)) > 60, "the dead attempts left aborted records"
    stage.proven(inputs=60, outputs=60)


def test_kill_9_of_a_worker_a_driver_and_all_of_them(stage: Stage) -> None:
    """A worker's partitions go on elsewhere; a driver's end leaves no orphan; the next run goes on from Kafka."""
    stage.create()
    stage.seed(20_000)
    small = ("--max-records-per-transaction", "500")
    with stage.follow(*DIRECT, *small, "--follow") as program:
        program.await_cycle()
        victim = max(program.members("pyspark.daemon"), key=lambda one: one.create_time())
        victim.kill()
        before = stage.committed()
        stage.seed(4_000)  # a partition may have been drained before the look
        until(lambda: all((at or 0) > (before[p] or 0) for p, at in stage.committed().items()), "all go on", 30)
        psutil.Process(program.pid).kill()
        program.wait()
        stage.nobody_left()
    stage.seed(16_000)
    with stage.follow(*DIRECT, *small, "--follow") as program:
        program.await_cycle()
        program.kill_family()
        program.wait()
    stage.nobody_left()
    ran = stage.pipeline(*DIRECT)
    assert ran.code == 0, ran.text
    stage.proven(inputs=40_000, outputs=40_000)


@pytest.mark.usefixtures("quick_jvms")
def test_an_executor_that_is_killed_costs_its_lease_only(stage: Stage) -> None:
    """The package gets to the executors by itself, and they find the driver."""
    stage.create()
    stage.seed(16_000)
    options = ("--master", "local-cluster[2,1,1024]", "--max-records-per-transaction", "500")
    with stage.follow(*DIRECT, *options, "--follow") as program:
        program.await_cycle(seconds=120)
        until(lambda: len(program.members(EXECUTOR)) == 2, "both executors", 30)
        program.members(EXECUTOR)[0].kill()
        stage.seed(4_000)  # all may have been drained before the kill
        until(stage.drained, "the rest", 120)
        program.terminate()
        ran = program.wait(60)
    assert ran.code == 0, ran.text
    stage.proven(inputs=20_000, outputs=20_000)


def test_sigterm_ends_a_following_run_within_ten_seconds(stage: Stage) -> None:
    stage.create()
    stage.seed(16_000)
    with stage.follow(*DIRECT, "--follow", "--max-records-per-transaction", "500") as program:
        program.await_cycle()
        program.terminate()
        ran = program.wait(30)
    assert ran.code == 0, ran.text
    assert "Traceback" not in ran.text
    stage.nothing_open()
    stage.nobody_left()
    stage.drain_alone()
    stage.proven(inputs=16_000, outputs=16_000)
