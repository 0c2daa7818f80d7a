"""The crew that Spark runs: a slot that fails is tried again, and a crew without any slot says why."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from brew.connection import Connection
from brew.errors import Refused
from brew.kafka.transaction import TransactionSettings
from brew.readers.direct import executors
from brew.readers.direct.executors import LocalWorker, SparkWorkers
from brew.readers.direct.messages import WorkerSettings
from brew.settings import CrashSettings, DirectSettings, Limits
from pipeline.enrichment import OrderEnrichment


class Context:
    """Runs jobs: slots in ``broken`` fail at once, the others work until ``over``."""

    def __init__(self, *broken: int) -> None:
        self.broken, self.tried = set(broken), [0, 0]
        self.tasks = list[Any]()
        self.over, self.healed = threading.Event(), threading.Event()
        self._gateway: Any = self
        self.proc: Any = None
        self.defaultParallelism = 2

    def addJobTag(self, tag: str) -> None: ...  # noqa: N802 - Spark's name

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
def _quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(executors, "_RESTART_PAUSE_S", 0.01)
    return


def idle_crew(context: Any, office: Any = None) -> SparkWorkers:
    terms: Any = None
    return SparkWorkers(context, office, terms)


def crew_of(context: Any) -> SparkWorkers:
    crew = idle_crew(context)
    crew.open(2)
    return crew


def test_a_crew_without_a_working_slot_gives_up_with_the_cause() -> None:
    context = Context(0, 1)
    crew = crew_of(context)
    for job in crew._jobs.values():
        job.join(10)
    with pytest.raises(Refused, match="no way to the driver"):
        crew.check()


def test_a_slot_that_gave_up_is_tried_again_while_another_works() -> None:
    """The executor that was lost may come back an hour later."""
    context = Context(1)
    crew = crew_of(context)
    crew._jobs[1].join(10)
    crew.check()
    context.broken.clear()
    crew.open(2)
    assert context.healed.wait(10)
    assert context.tried[0] == 1, "the one that works was left alone"
    crew.stop_restarts()
    context.over.set()


class Dead(Context):
    """Spark's context as it is once its JVM was killed."""

    @property
    def defaultParallelism(self) -> int:  # noqa: N802 - Spark's name
        raise Py4JError("An error occurred while calling o42.sc")

    @defaultParallelism.setter
    def defaultParallelism(self, _count: int) -> None: ...  # noqa: N802

    def cancelJobsWithTag(self, tag: str) -> None:  # noqa: N802
        raise Py4JError(f"An error occurred while calling o42.cancelJobsWithTag {tag}")


class Closed:
    """The office of a crew that is sent away."""

    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def test_a_jvm_that_dies_between_two_looks_is_told_in_one_sentence() -> None:
    """Its sockets close a moment before it has ended, so a look at the process alone comes too early."""
    context = Dead()
    with subprocess.Popen([sys.executable, "-c", "input(); exit(7)"], stdin=subprocess.PIPE) as context.proc:
        crew = idle_crew(context)
        crew.check()
        context.proc.stdin.write(b"\n")
        context.proc.stdin.flush()
        with pytest.raises(Refused, match=r"has ended by itself \(exit code 7"):
            crew.slots()


def test_a_jvm_that_answers_nothing_is_refused_with_its_words() -> None:
    with pytest.raises(Refused, match=r"does not answer: An error occurred while calling o42\.sc"):
        idle_crew(Dead()).slots()


def test_a_crew_without_a_jvm_can_be_interrupted() -> None:
    """What comes after it, the fencing of what is still open, must not be left out."""
    crew = idle_crew(Dead(), Closed())
    crew.interrupt()
    assert crew._dismissed.is_set()


def test_failures_far_apart_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of weeks loses more executors than a slot is tried for in a row."""
    context, rounds = Context(), iter([False, False, False, False, True] * 3)
    crew = idle_crew(context)

    def count(_job: object) -> int:
        good = next(rounds, None)
        if good is None:
            crew.stop_restarts()
        elif not good:
            raise RuntimeError("Caused by: java.io.IOException: the executor was lost")
        return 0

    job = type("Job", (), {"mapPartitions": lambda self, _run: self, "count": count})()
    monkeypatch.setattr(context, "parallelize", lambda *_: job)
    crew._keep(0)
    assert next(rounds, None) is None, "it gave up before the end"


def test_a_slot_is_tried_five_times_in_a_row_and_no_more() -> None:
    context = Context(0)
    crew = idle_crew(context)
    crew._keep(0)
    assert context.tried[0] == 5


def test_a_crew_that_was_dismissed_starts_no_holder_again() -> None:
    context = Context()
    crew = crew_of(context)
    assert context.healed.wait(10)
    crew.stop_restarts()
    context.over.set()
    for job in crew._jobs.values():
        job.join(10)
    assert context.tried == [1, 1]
    crew.check()  # they ended because they were to


@pytest.mark.parametrize("kept", [True, False])
def test_a_crew_ends_with_its_holders_lines_and_with_its_spark_unless_that_is_kept(
    monkeypatch: pytest.MonkeyPatch, kept: bool
) -> None:
    """A holder without a line ends by itself; Spark goes after that."""
    office, ended = Closed(), list[bool]()
    monkeypatch.setattr(executors.session, "end", lambda *_: ended.append(office.closed))
    terms: Any = None
    lines: Any = office
    context: Any = Context()
    SparkWorkers(context, lines, terms, kept=kept).close()
    assert (office.closed, ended) == (True, [] if kept else [True])


def test_an_interrupted_crew_cancels_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    cancelled = list[object]()
    monkeypatch.setattr(executors.session, "cancel_all", cancelled.append)
    context, office = Context(), Closed()
    idle_crew(context, office).interrupt()
    assert (cancelled, office.closed) == ([context], True)


@pytest.mark.parametrize(("attempt", "probability"), [(0, 1.0), (1, 0.0), (3, 0.0)])
def test_a_crash_on_purpose_strikes_a_task_once(
    monkeypatch: pytest.MonkeyPatch, attempt: int, probability: float
) -> None:
    """Spark repeats the task of a worker that died; each time again, and the job fails."""
    given = list[Any]()
    monkeypatch.setattr(
        executors, "run_lease_worker", lambda terms, slot: given.append((terms.crash.probability, slot))
    )
    task = type("Task", (), {"attemptNumber": lambda _self: attempt})()
    monkeypatch.setattr(executors.TaskContext, "get", lambda: task)
    transaction = TransactionSettings(Connection("127.0.0.1:1"), "group", 60.0)
    certain = CrashSettings(probability=1.0)
    terms = WorkerSettings(
        "127.0.0.1", 1, "token", "in", transaction, OrderEnrichment(Limits()), DirectSettings(), certain, 1000
    )
    assert list(executors._run_in_task(terms, 4, [])) == []
    assert given == [(probability, 4)]


class LoneLine:
    """`hold` of the crew without Spark: ends as often as the test has it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = 0
        self.begun, self.over = threading.Semaphore(0), threading.Semaphore(0)
        self.error: Exception | None = None
        monkeypatch.setattr(executors, "run_lease_worker", self)

    def __call__(self, _terms: object, slot: int) -> None:
        assert slot == 0
        self.calls += 1
        self.begun.release()
        if self.error is not None:
            raise self.error
        assert self.over.acquire(timeout=20)


def lone(monkeypatch: pytest.MonkeyPatch) -> tuple[LocalWorker, LoneLine, Closed]:
    held, office = LoneLine(monkeypatch), Closed()
    lines: Any = office
    terms: Any = SimpleNamespace(transformation=OrderEnrichment(Limits()))
    return LocalWorker(lines, terms), held, office


def test_without_spark_one_holder_is_started_when_there_is_work_and_again_when_its_line_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew, held, office = lone(monkeypatch)
    crew.open(0)
    assert (held.begun.acquire(timeout=0.05), crew.slots()) == (False, 1)
    for _ in range(2):
        crew.open(1)
    assert held.begun.acquire(timeout=20)
    assert not held.begun.acquire(timeout=0.05), "one of them"
    held.over.release()
    assert held.begun.acquire(timeout=20), "the driver was slow for longer than the lease"
    crew.check()
    crew.stop_restarts()
    held.over.release()
    crew.close()
    assert (held.calls, office.closed) == (2, True)
    assert crew._thread is not None
    assert not crew._thread.is_alive()


def test_without_spark_a_holder_that_fails_ends_the_run_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, held, _ = lone(monkeypatch)
    held.error = Refused("the driver can't be reached from its task")
    crew.open(1)
    crew._thread.join(20)  # type: ignore[union-attr]
    with pytest.raises(Refused, match="can't be reached"):
        crew.check()
    assert held.calls == 1


def test_without_spark_an_interrupted_crew_hangs_up(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, held, office = lone(monkeypatch)
    crew.open(1)
    assert held.begun.acquire(timeout=20)
    crew.interrupt()
    assert office.closed
    held.over.release()
    crew.close()
