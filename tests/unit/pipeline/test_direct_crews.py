"""The crew that Spark runs: a slot that fails is tried again, and a crew without any slot says why."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from py4j.protocol import Py4JError

from pipeline.direct import crews
from pipeline.direct.crews import SparkCrew
from protocol.errors import Refused


class Context:
    """Runs jobs: slots in ``broken`` fail at once, the others work until ``over``."""

    def __init__(self, *broken: int) -> None:
        self.broken, self.tried = set(broken), [0, 0]
        self.over, self.healed = threading.Event(), threading.Event()
        self._gateway: Any = self
        self.proc: Any = None
        self.defaultParallelism = 2

    def addJobTag(self, tag: str) -> None: ...  # noqa: N802 - Spark's name

    def parallelize(self, slots: list[int], _count: int) -> Any:
        context = self

        class Job:
            def mapPartitions(self, _run: object) -> Job:  # noqa: N802 - Spark's name
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
    monkeypatch.setattr(crews, "_AGAIN_S", 0.01)
    return


def idle_crew(context: Any, office: Any = None) -> SparkCrew:
    terms: Any = None
    return SparkCrew(context, office, terms)


def crew_of(context: Any) -> SparkCrew:
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
    crew.dismiss()
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

    def close(self) -> None: ...


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
