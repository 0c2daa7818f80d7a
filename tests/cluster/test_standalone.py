"""A standalone cluster: the crash story, runs and the sink while it is broken, and where packages come from."""

from __future__ import annotations

import itertools
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from harness.pipeline import DIRECT, READERS, ROOT, Ran, Stage, until

from brew.deadline import Deadline
from brew.jvm import dependencies
from brew.jvm.dependencies import Part
from brew.names import READ_UNCOMMITTED
from proof.campaign.cells.spark import CLUSTER_CONF
from sandbox.spark import MASTER, SparkCluster, spark_home

# A row at a time: the transaction of a batch is open for seconds.
_SLOW = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1"}
_HELD_S, _CATCH_S = 1.0, 240.0


def conf(**more: str) -> list[str]:
    return [word for name, value in {**CLUSTER_CONF, **more}.items() for word in ("--conf", f"{name}={value}")]


def options(cluster: SparkCluster, reader: str, *more: str) -> Sequence[str]:
    return ["--master", cluster.url, "--reader", reader, *conf(), *more]


@pytest.mark.parametrize("reader", READERS)
def test_the_crash_story_on_a_cluster(stage: Stage, cluster: SparkCluster, reader: str) -> None:
    """
    The run dies before its commit, on an executor whose Python has nothing of ours; the next one does it all.

    Our packages get there by themselves: `--py-files` of a submitted run, `addPyFile` of this one.
    """
    stage.crash_and_heal(*options(cluster, reader), seconds=300)


@pytest.mark.parametrize("reader", READERS)
def test_a_run_goes_on_while_workers_die_freeze_and_come_and_the_master_restarts(
    stage: Stage, cluster: SparkCluster, reader: str
) -> None:
    """Each time orders that come afterwards come out, each once; nothing is left open."""
    stage.create(output=4, orders=2000)
    total = 2000

    def more(what: str, seconds: float = 240) -> None:
        nonlocal total
        stage.seed(400, "--seed", str(total))
        total += 400
        until(lambda: stage.outputs() == total, f"{total} orders {what}", seconds)

    small = ("--max-records-per-transaction", "100", "--follow", "--patience", "300")
    with stage.follow(*options(cluster, reader, *small)) as program:
        until(lambda: stage.outputs() > 0, "the first orders", 300)
        first, second, *_ = [name for name in cluster.workers if cluster.alive(name)]
        cluster.kill(first)
        more(f"after worker {first} was killed")
        cluster.restart(MASTER)
        more("after the master came back")
        added = cluster.add_worker()
        more(f"with worker {added}")
        cluster.pause(second)
        try:
            more(f"while worker {second} was frozen")
        finally:
            cluster.resume(second)
        more(f"after worker {second} went on")
        program.terminate()
        ran = program.wait(60)
    assert ran.code == 0, ran.text
    stage.proven(inputs=total, outputs=total)


@pytest.fixture
def repaired(cluster: SparkCluster) -> Iterator[SparkCluster]:
    """The cluster; a worker that the test kills is back for the next one."""
    alive = [name for name in cluster.workers if cluster.alive(name)]
    yield cluster
    for name in alive:
        if not cluster.alive(name):
            cluster.restart(name)


@pytest.mark.parametrize("writers", ["1", "tasks"])
def test_a_worker_dies_while_it_holds_a_batch_of_the_sink_open(
    stage: Stage, repaired: SparkCluster, tmp_path: Path, writers: str
) -> None:
    """The query goes on and ends by itself: what the worker had written is in the log, and each row is visible once."""
    stage.create(output=3, orders=6000)
    words = [sys.executable, str(ROOT / "scripts/sink_query.py"), "--bootstrap", stage.broker.bootstrap]
    words += ["--input", stage.names.input, "--output", stage.names.output, "--name", stage.names.group]
    words += [
        "--checkpoint",
        str(tmp_path / "checkpoint"),
        "--writers",
        writers,
        "--master",
        repaired.url,
        *conf(**_SLOW),
    ]
    with stage.start(["env", f"PYTHONPATH={ROOT}", *words, "--query", "plain", "--most", "1000"]) as program:
        repaired.kill(frozen_holder(stage, repaired))
        ran = program.wait(300)
    assert ran.code == 0, ran.text
    rows = [
        Counter((record.key(), record.value()) for record in stage.records(topic))
        for topic in (stage.names.input, stage.names.output)
    ]
    assert rows[0] == rows[1]
    assert rows[0].total() == 6000
    assert len(stage.records(stage.names.output, READ_UNCOMMITTED)) > 6000
    stage.nothing_open()


def frozen_holder(stage: Stage, cluster: SparkCluster) -> str:
    """A worker that was frozen with a batch open, which then stayed open, while nobody else wrote any more of it."""
    workers = itertools.cycle(name for name in cluster.workers if cluster.alive(name))
    deadline = Deadline(_CATCH_S)
    while not deadline.expired():
        until(stage.open_transactions, "an open batch", deadline.remaining_s())
        cluster.pause(name := next(workers))
        held = transactions(stage)
        time.sleep(_HELD_S)
        before = stage.logs(stage.names.output)
        time.sleep(_HELD_S)
        if held & transactions(stage) and stage.logs(stage.names.output) == before:
            return name
        cluster.resume(name)
    raise AssertionError("no worker was caught with a batch open")


def transactions(stage: Stage) -> set[tuple[int, int, int]]:
    """Those that are open in the output: producer, epoch and first offset."""
    return {(one.producer_id, one.producer_epoch, one.first_offset) for one in stage.open_transactions()}


@pytest.mark.parametrize("packages", ["--py-files", "a packed environment"])
def test_a_wheel_that_pip_installed_submits_a_run(
    stage: Stage, cluster: SparkCluster, installed_wheel: Path, packed_environment: dict[str, str], packages: str
) -> None:
    """
    `brew-pipeline submit` becomes `spark-submit` in client mode, with our packages as --py-files.

    What those require is installed beside the executors' Python, or comes with a Python of its own as an archive.
    """
    stage.create(orders=300)
    more = conf(**packed_environment) if packages != "--py-files" else ()
    ran = submitted(stage, installed_wheel, *options(cluster, DIRECT, *more))
    assert ran.code == 0, ran.text
    stage.proven(inputs=300, outputs=300)


def test_an_example_of_the_sink_finds_all_in_a_packed_environment(
    stage: Stage, cluster: SparkCluster, packed_environment: dict[str, str], tmp_path: Path
) -> None:
    """The application's own session ships nothing of ours; brew on the executors is that of the archive."""
    stage.create(2, output=2)
    sales = [b'{"store": "Cork", "cents": %d}' % cents for cents in (100, 20)]
    stage.produce(stage.names.input, *((0, b"", sale) for sale in sales))
    jars = dependencies.jars(Part.SPARK, dependencies.home())
    variables = [f"BOOTSTRAP={stage.broker.bootstrap}", f"SALES={stage.names.input}", f"REVENUE={stage.names.output}"]
    variables += [f"CHECKPOINT={tmp_path / 'checkpoint'}"]
    words = ["env", "-u", "PYTHONPATH", *variables, f"{spark_home()}/bin/spark-submit"]
    words += ["--master", cluster.url, "--jars", ",".join(map(str, jars))]
    words += conf(**packed_environment, **{"spark.sql.shuffle.partitions": "2"})
    ran = stage.run([*words, str(ROOT / "examples/revenue.py")], seconds=300)
    assert ran.code == 0, ran.text
    records = stage.records(stage.names.output)
    assert [(record.key(), record.value()) for record in records] == [(b"Cork", b'{"store":"Cork","cents":120}')]
    stage.nothing_open()


def submitted(stage: Stage, program: Path, *more: str) -> Ran:
    """What the installed `brew-pipeline` made of it, without a trace of the repository in its environment."""
    words = ["env", "-u", "PYTHONPATH", "-C", str(program.parent), f"BREW_JVM_DIR={dependencies.home()}", str(program)]
    words += ["submit", *stage.options(), *more]
    return stage.run(words, seconds=300)
