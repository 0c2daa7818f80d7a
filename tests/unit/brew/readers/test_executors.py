"""The workers that Spark runs: a slot that fails is tried again, and workers without any slot say why."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from harness.lease_coordinator import worker_settings
from py4j.protocol import Py4JError
from pyspark import SparkContext

from brew.errors import Refused
from brew.readers.direct import executors
from brew.readers.direct.executors import LocalWorker, SparkWorkers
from brew.settings import CrashSettings, Limits
from brew.spark.gateway import cause
from pipeline.transformation import OrderEnrichment


class Context:
    """Runs jobs: slots in ``broken`` fail at once, the others work until ``over``."""

    def __init__(self, *broken: int) -> None:
        self.broken, self.tried = set(broken), [0, 0]
        self.tasks = list[Any]()
        self.over, self.healed = threading.Event(), threading.Event()
        self._gateway: Any = self
        self.proc: Any = None
        self.defaultParallelism = 2
        self.job_tags, self.cancelled_tags = set[str](), set[str]()

    def addJobTag(self, tag: str) -> None:  # noqa: N802 - Spark's name
        self.job_tags.add(tag)

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        self.cancelled_tags.add(tag)

    def parallelize(self, slots: list[int], _count: int) -> Any:
        context = self

        class Job:
            def mapPartitions(self, run: Any) -> Job:  # noqa: N802 - Spark's name
                context.tasks.append(run)
                return self

            def count(self) -> int:
                context.tried[slots[0]] += 1
                if slots[0] in context.broken:
                    raise RuntimeError("Caused by: java.net.ConnectException: no way to the driver")
                if slots[0] == 1:
                    context.healed.set()
                context.over.wait(10)
                return 0

        return Job()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_RESTART_PAUSE_S", 0.01)


def spark_workers(context: Any, server: Any = None, settings: Any = None) -> SparkWorkers:
    return SparkWorkers(context, server, settings)


def opened_workers(context: Any) -> SparkWorkers:
    workers = spark_workers(context)
    workers.open(2)
    return workers


def test_a_job_without_a_working_slot_gives_up_with_the_cause() -> None:
    context = Context(0, 1)
    workers = opened_workers(context)
    for job in workers._jobs.values():
        job.join(10)
    with pytest.raises(Refused, match="no way to the driver"):
        workers.check()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("ModuleNotFoundError: No module named 'pyarrow'", f"'pyarrow'; PYSPARK_PYTHON names .* {sys.executable}"),
        ("KeyError: 'x'", "KeyError: 'x'$"),
    ],
)
def test_what_a_tasks_python_raised_is_the_cause(raised: str, expected: str) -> None:
    text = (
        "An error occurred while calling o1.collect.\n: org.apache.spark.SparkException: Job aborted\n"
        "Caused by: org.apache.spark.api.python.PythonException: An exception was thrown from the Python worker: "
        f'Traceback (most recent call last):\n  File "worker.py", line 1, in main\n\n    load()\n{raised}\n'
        " SQLSTATE: 38000\n\tat org.apache.spark.Executor.run(Executor.scala:1)\n"
    )
    assert re.match(f".*{expected}", cause(RuntimeError(text)))


@pytest.mark.parametrize(
    "said",
    [
        "python3: Error while finding module specification for 'pyspark.daemon' ({raised})",
        'Traceback (most recent call last):\n    File "daemon.py", line 1\n  {raised}',
    ],
    ids=["no such module to run", "traceback"],
)
def test_a_python_in_which_sparks_daemon_does_not_start_is_named_by_what_it_lacks(said: str) -> None:
    """It was "org.apache.spark.SparkException:" or "PYTHONPATH was:"."""
    raised = "ModuleNotFoundError: No module named 'pyspark'"
    text = (
        "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n"
        ": org.apache.spark.SparkException: Job aborted due to stage failure: \n"
        f"Error from python worker:\n  {said.format(raised=raised)}\nPYTHONPATH was:\n  /spark-core.jar:.\n"
        "org.apache.spark.SparkException: EOFException occurred while reading the port number from its stdout.\n"
    )
    assert cause(RuntimeError(text)).startswith(f"{raised}; PYSPARK_PYTHON names")


def test_a_slot_that_gave_up_is_tried_again_while_another_works() -> None:
    """The executor that was lost may come back an hour later."""
    context = Context(1)
    workers = opened_workers(context)
    workers._jobs[1].join(10)
    workers.check()
    context.broken.clear()
    workers.open(2)
    assert context.healed.wait(10)
    assert context.tried[0] == 1, "the one that works was left alone"
    workers.stop_restarts()
    context.over.set()


class DeadContext(Context):
    """Spark's context as it is once its JVM was killed."""

    @property
    def defaultParallelism(self) -> int:  # noqa: N802 - Spark's name
        raise Py4JError("An error occurred while calling o42.sc")

    @defaultParallelism.setter
    def defaultParallelism(self, _count: int) -> None: ...  # noqa: N802

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        raise Py4JError(f"An error occurred while calling o42.cancelJobsWithTag {tag}")


class FakeServer:
    """The server that workers close when they end."""

    closed = False

    def close(self) -> None:
        self.closed = True


def test_a_jvm_that_dies_between_two_looks_is_told_in_one_sentence() -> None:
    """Its sockets close a moment before it has ended, so a look at the process alone comes too early."""
    context = DeadContext()
    command = [sys.executable, "-c", "print(flush=True); input(); exit(7)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as context.proc:
        context.proc.stdout.readline()  # how long Python takes to start says nothing about its end
        workers = spark_workers(context)
        workers.check()
        context.proc.stdin.write(b"\n")
        context.proc.stdin.flush()
        with pytest.raises(Refused, match=r"has ended by itself \(exit code 7"):
            workers.slots()


def test_a_jvm_that_answers_nothing_is_refused_with_its_words_and_its_job_can_be_interrupted() -> None:
    """What comes after it, the fencing of what is still open, must not be left out."""
    workers = spark_workers(DeadContext(), FakeServer())
    with pytest.raises(Refused, match=r"does not answer: An error occurred while calling o42\.sc"):
        workers.slots()
    workers.interrupt()
    assert workers._stopping.is_set()


def test_a_session_that_its_owner_stops_during_a_run_is_the_reason_for_its_end() -> None:
    """In a notebook, `run.wait()` raised AttributeError: 'NoneType' object has no attribute 'sc'."""
    context = object.__new__(SparkContext)
    context._jsc, context._gateway = None, None  # as `stop` leaves it
    workers = spark_workers(context, FakeServer())
    for call in (workers.check, workers.slots):
        with pytest.raises(Refused, match=r"Spark was stopped .* run again"):
            call()
    workers.interrupt()


def test_a_slot_is_tried_five_times_in_a_row_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures far apart do not add up: a run of weeks loses more executors than that, and its only job each time."""
    context = Context(0)
    spark_workers(context)._run_repeatedly(0)
    assert context.tried[0] == 5
    context, rounds = Context(), iter([False, False, False, True] * 4)
    workers = spark_workers(context)

    def count(_job: object) -> int:
        worked = next(rounds, None)
        if worked is None:
            workers.stop_restarts()
            return 0
        if worked:
            assert workers.last_failure() == "java.io.IOException: the executor was lost"
            workers.worked(0)
            assert workers.last_failure() is None
        raise RuntimeError("Caused by: java.io.IOException: the executor was lost")

    job = type("Job", (), {"mapPartitions": lambda self, _run: self, "count": count})()
    monkeypatch.setattr(context, "parallelize", lambda *_: job)
    workers._run_repeatedly(0)
    assert next(rounds, None) is None, "it gave up before the end"


def test_the_reason_is_that_of_the_last_failure() -> None:
    """And not the first slot's, whatever came since."""
    workers = spark_workers(Context())
    for slot, reason in ((0, "old"), (1, "older"), (0, "new")):
        job = Mock(count=Mock(side_effect=RuntimeError(reason)))
        workers._context = Mock(parallelize=Mock(return_value=Mock(mapPartitions=Mock(return_value=job))))
        workers._run_repeatedly(slot)
        assert workers.last_failure() == reason


def test_a_job_that_was_dismissed_starts_no_worker_again() -> None:
    context = Context()
    workers = opened_workers(context)
    assert context.healed.wait(10)
    workers.stop_restarts()
    context.over.set()
    for job in workers._jobs.values():
        job.join(10)
    assert context.tried == [1, 1]
    workers.check()  # they ended because they were to


def test_a_job_ends_before_its_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker without a connection ends by itself; Spark goes after that. An interrupted one cancels what runs."""
    server, ended, context = FakeServer(), list[bool](), Context()
    monkeypatch.setattr(executors.session, "end", lambda *_: ended.append(server.closed))
    spark_workers(context, server).close()
    assert (server.closed, ended, context.cancelled_tags) == (True, [True], set())
    server = FakeServer()
    spark_workers(context, server).interrupt()
    assert (len(context.cancelled_tags), server.closed) == (1, True)


def test_an_interrupted_run_cancels_its_own_jobs_only() -> None:
    """Two `brew.Pipeline` of a process share one context; with one tag, both lost their jobs."""
    context = Context()
    first, second = spark_workers(context, FakeServer()), spark_workers(context, FakeServer())
    for workers in (first, second):
        workers.stop_restarts()
    first._run_repeatedly(0)
    tags_of_first = set(context.job_tags)
    first._run_repeatedly(1)
    assert context.job_tags == tags_of_first, "one tag for all of a run's jobs"
    second._run_repeatedly(0)
    first.interrupt()
    assert context.cancelled_tags == tags_of_first
    assert context.job_tags - tags_of_first, "the other run's jobs go on"


def test_a_task_that_hangs_loses_its_slot_when_its_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a context that other runs use, too, a function that never returns kept the slot for good."""
    monkeypatch.setattr(executors, "_JOIN_S", 0.1)
    monkeypatch.setattr(executors.session, "end", Mock())
    context = Context()
    monkeypatch.setattr(context, "cancelJobsWithTag", lambda _tag: context.over.set())
    workers = spark_workers(context, FakeServer())
    workers.open(1)
    workers.close()
    assert context.over.is_set()
    assert not workers._jobs[0].is_alive()


@pytest.mark.parametrize(("attempt", "probability"), [(0, 1.0), (1, 0.0), (3, 0.0)])
def test_a_crash_strikes_a_task_once(monkeypatch: pytest.MonkeyPatch, attempt: int, probability: float) -> None:
    """Spark repeats the task of a worker that died; each time again, and the job fails."""
    run = Mock()
    monkeypatch.setattr(executors, "run_lease_worker", run)
    task = type("Task", (), {"attemptNumber": lambda _self: attempt})()
    monkeypatch.setattr(executors.TaskContext, "get", lambda: task)
    settings = worker_settings(crash=CrashSettings(probability=1.0))
    assert list(executors._run_in_task(settings, 4, [])) == []
    assert [(given.crash.probability, slot) for (given, slot), _ in run.call_args_list] == [(probability, 4)]


class FakeLeaseWorker:
    """The lease worker of a run without Spark: ends as often as the test has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.begun, self.over = threading.Semaphore(0), threading.Semaphore(0)
        self.error: Exception | None = None
        monkeypatch.setattr(executors, "run_lease_worker", self)

    def __call__(self, _settings: object, slot: int) -> None:
        assert slot == 0
        self.calls += 1
        self.begun.release()
        if self.error is not None:
            raise self.error
        assert self.over.acquire(timeout=20)


def local_worker(monkeypatch: pytest.MonkeyPatch) -> tuple[LocalWorker, FakeLeaseWorker, FakeServer]:
    lease_worker, server = FakeLeaseWorker(monkeypatch), FakeServer()
    settings: Any = SimpleNamespace(transformation=OrderEnrichment(Limits()))
    return LocalWorker(server, settings), lease_worker, server


def test_without_spark_one_worker_starts_when_there_is_work_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, lease_worker, server = local_worker(monkeypatch)
    workers.open(0)
    assert (lease_worker.begun.acquire(timeout=0.05), workers.slots()) == (False, 1)
    for _ in range(2):
        workers.open(1)
    assert lease_worker.begun.acquire(timeout=20)
    assert not lease_worker.begun.acquire(timeout=0.05), "one of them"
    lease_worker.over.release()
    assert lease_worker.begun.acquire(timeout=20), "the driver was slow for longer than the lease"
    workers.check()
    workers.stop_restarts()
    lease_worker.over.release()
    workers.close()
    assert (lease_worker.calls, server.closed) == (2, True)
    assert not workers._thread.is_alive()


def test_without_spark_a_worker_that_fails_ends_the_run_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, lease_worker, _ = local_worker(monkeypatch)
    lease_worker.error = Refused("the driver can't be reached from its task")
    workers.open(1)
    workers._thread.join(20)
    with pytest.raises(Refused, match="can't be reached"):
        workers.check()
    assert lease_worker.calls == 1


def test_without_spark_an_interrupted_job_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    workers, lease_worker, server = local_worker(monkeypatch)
    workers.open(1)
    assert lease_worker.begun.acquire(timeout=20)
    workers.interrupt()
    assert server.closed
    lease_worker.over.release()
    workers.close()


def test_without_spark_a_job_whose_function_hangs_does_not_hold_back_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM took up to the transaction's time-out; the run has fenced the transaction before."""
    workers, lease_worker, _ = local_worker(monkeypatch)
    monkeypatch.setattr(executors, "_END_S", 0.05)
    workers._settings = Mock(transformation=Mock(release=(released := Mock())))
    workers.open(1)
    assert lease_worker.begun.acquire(timeout=20)
    workers.close()
    assert not released.called, "it is still in use"
    lease_worker.over.release()
    workers._thread.join(20)
    workers.close()
    assert released.called
