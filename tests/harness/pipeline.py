"""Run the programs as users do (or a drain inside the test), watch them, kill them, and query the broker afterwards."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from pyspark.sql import SparkSession

from brew.cluster import OpenTransaction
from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import run as running
from brew.driver.micro_batches import MicroBatchLane
from brew.driver.run_context import ProgressView, RunProgress
from brew.jvm.dependencies import Part, home, jars
from brew.kafka import topics
from brew.kafka.clients import AdminClient, admin, producer
from brew.kafka.kafka_python import open_transactions
from brew.kafka.log_reader import LogRecord, scan
from brew.kafka.offsets import committed_by, log_offsets
from brew.kafka.transaction import connect_early
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import LogOffsets
from brew.outcome import Outcome, Status
from brew.readers.connector import SparkEngine
from brew.settings import PipelineSettings
from brew.spark import session
from brew.spark.shipping import pickled
from brew.transformation import for_executors, transformation
from pipeline.__main__ import run_command, settings_of
from proof.__main__ import proof
from sandbox.jvm import QUICK, Jvm

from .programs import ROOT, Ran, Running, call_program, until
from .servers import Broker, Names
from .waiting import await_ends, markers_written

MARK = "BREW_TEST_STAGE"
PARTITIONS = 4
CONNECTOR, DIRECT = READERS = ("connector", "direct")
_LEAVE_S = 20.0


@dataclass
class DrainView(ProgressView):
    """The view that a drain inside this process reports to, and the record of what it did."""

    progress: RunProgress = field(default_factory=RunProgress)
    outcomes: list[Outcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def cycle(self, lane: int, outcomes: list[Outcome], seconds: float) -> None:  # noqa: ARG002 - the view's shape
        self.outcomes.extend(outcomes)

    def note(self, note: str) -> None:
        self.notes.append(note)

    def statuses(self) -> set[Status]:
        return {one.status for one in self.outcomes}


@functools.cache
def shared_spark() -> SparkSession:
    """Return one Spark for all drains inside the test process: a cycle takes a third of a second, a start six."""
    context = run_command.make_context("run", ["--master", "local[2]"])
    spark = session.start(settings_of(context.params).spark)
    atexit.register(session.end, spark.sparkContext)
    return spark


@dataclass(frozen=True)
class Stage:
    """
    Topics and group of one test on the broker, the programs that work on them, and the proof.

    ``reader``: used by drains inside this process; by default, the default reader. The connector has Spark.
    """

    broker: Broker
    names: Names
    reader: str = field(default="", kw_only=True)

    @property
    def connection(self) -> Connection:
        return Connection(self.broker.bootstrap)

    @functools.cached_property
    def admin(self) -> AdminClient:
        return admin(self.connection)

    # Names, as options and as make variables.

    def options(self) -> list[str]:
        names = self.names
        pairs = {
            "--bootstrap": self.broker.bootstrap,
            "--input": names.input,
            "--output": names.output,
            "--dead-letter": names.dead_letter,
            "--group": names.group,
        }
        return [word for pair in pairs.items() for word in pair]

    def variables(self) -> dict[str, str]:
        names = self.names
        return {
            "BOOTSTRAP": self.broker.bootstrap,
            "INPUT_TOPIC": names.input,
            "OUTPUT_TOPIC": names.output,
            "DLQ_TOPIC": names.dead_letter,
            "GROUP_ID": names.group,
        }

    # Programs, each in a process that carries this stage's mark.

    def start(self, command: Sequence[str]) -> Running:
        return Running(command, environment(self.names.stem))

    def run(self, command: Sequence[str], seconds: float = 120.0) -> Ran:
        with self.start(command) as program:
            return program.wait(seconds)

    def python(self, *arguments: str) -> Running:
        return self.start([sys.executable, "-m", *arguments])

    def follow(self, *options: str) -> Running:
        """Start `python -m pipeline run` in the background (it drains unless ``options`` contain `--follow`)."""
        return self.python("pipeline", "run", *self.options(), "--master", "local[2]", *options)

    def pipeline(self, *options: str, seconds: float = 120.0) -> Ran:
        with self.follow(*options) as program:
            return program.wait(seconds)

    def make_command(self, target: str, **variables: str) -> list[str]:
        named = {**self.variables(), **variables}
        return ["make", "--no-print-directory", target, *(f"{name}={value}" for name, value in named.items())]

    def make(self, target: str, **variables: str) -> Ran:
        return self.run(self.make_command(target, **variables))

    def tool(self, name: str, *arguments: str) -> str:
        """Run one of Kafka's tools; return its output."""
        command = Jvm().tool(name, ["--bootstrap-server", self.broker.bootstrap, *arguments])
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # The same pipeline inside this process.

    def settings(self, *options: str) -> PipelineSettings:
        with run_command.make_context("run", [*self.options(), "--master", "local[2]", *options]) as context:
            return settings_of(context.params)

    def drain(self, *options: str, view: DrainView | None = None) -> DrainView:
        """Check, plan, read and transact until drained, with `run`'s parts and this stage's reader; raise any error."""
        return self._run_in_process(threading.Event(), options, view or DrainView())

    def follow_in_process(self, stop: threading.Event, *options: str) -> DrainView:
        """Do the same without an end, until ``stop`` is set."""
        return self._run_in_process(stop, [*options, "--follow"], DrainView())

    def drain_locally(
        self, *options: str, view: DrainView | None = None, stop: threading.Event | None = None
    ) -> DrainView:
        """Drain without Spark, with any reader: in one lane, with the decisions made in the caller's thread."""
        view = view or DrainView()
        reader = ["--reader", self.reader] if self.reader else []
        preflight = running.check(self.settings("--master", "none", "--lanes", "1", *reader, *options))
        shared = running.create_context(preflight, stop or threading.Event(), view.progress, view)
        runner, workers = running.create_workers(shared)
        try:
            for worker in workers:
                worker.run()
        finally:
            runner.close()
        return view

    def _run_in_process(self, stop: threading.Event, options: Sequence[str], view: DrainView) -> DrainView:
        if self.reader != CONNECTOR:
            return self.drain_locally(*options, view=view, stop=stop)
        preflight = running.check(self.settings("--reader", CONNECTOR, *options))
        engine = SparkEngine(shared_spark(), preflight.settings.spark, patience_s=60)
        shared = running.create_context(preflight, stop, view.progress, view)
        shipped = for_executors(transformation(preflight.settings), pickled)
        lanes = [MicroBatchLane(shared, engine, index, shipped) for index in range(preflight.settings.lanes)]
        running.run_loops(shared, engine, lanes)
        return view

    # Topics and records.

    def create(self, partitions: int = PARTITIONS, *, orders: int = 0, **others: int) -> None:
        """Create the input with so many orders; `output=3` makes that topic, too (the run makes what is missing)."""
        sizes = {"input": partitions, **others}
        wanted = [topics.TopicSpec(getattr(self.names, name), size, {}) for name, size in sizes.items()]
        topics.create(self.admin, wanted, Deadline(30))
        topics.describe_all(self.admin, [one.name for one in wanted], Deadline(30))
        if orders:
            self.seed(orders)

    def seed(self, count: int, *options: str) -> dict[str, Any]:
        arguments = ["--bootstrap", self.broker.bootstrap, "--topic", self.names.input, "--count", str(count)]
        code, report = self._proof("seed", *arguments, *options)
        assert code == 0, report
        return report

    def produce(self, topic: str, *records: tuple[Any, ...]) -> None:
        """Write plain records of (partition, key, value[, headers[, timestamp]])."""
        writer = producer(self.connection, None, timeout_s=30, message_max_bytes=10_000_000)
        connect_early(writer, topic)
        for partition, key, value, *more in records:
            headers, timestamp = [*more, None, None][:2]
            writer.produce(topic, value, key, partition, None, None, timestamp or 0, headers)
        assert writer.flush(30) == 0

    def logs(self, topic: str) -> dict[int, LogOffsets]:
        known = topics.describe_one(self.admin, topic, Deadline(20))
        return log_offsets(self.admin, topic, range(known.partitions), Deadline(20))

    def records(self, topic: str, isolation: str = READ_COMMITTED) -> list[LogRecord]:
        committed_only = isolation == READ_COMMITTED
        if committed_only and self.unstable_offsets(topic):
            markers_written(self.connection, topic)
        ends = {p: (log.first, log.last_stable if committed_only else log.end) for p, log in self.logs(topic).items()}
        return [record for batch in scan(self.connection, topic, ends, isolation) for record in batch]

    def committed(self) -> dict[int, int | None]:
        """Return the group's stable position per input partition."""
        group = (self.connection, self.names.group, self.names.input)
        committed = committed_by(*group, self.logs(self.names.input), READ_COMMITTED, Deadline(20))
        return {p: None if position is None else position.offset for p, position in committed.items()}

    def drained(self) -> bool:
        """Return whether the group is at the input's end."""
        ends = {p: log.end for p, log in self.logs(self.names.input).items()}
        return {p: position or 0 for p, position in self.committed().items()} == ends

    def open_transactions(self, topic: str | None = None) -> list[OpenTransaction]:
        topic = topic or self.names.output
        return open_transactions(self.connection, topic, self.logs(topic), Deadline(20))

    def nothing_open(self, topic: str | None = None) -> None:
        """Assert that no transaction stays open; an end is answered before its markers are written (KIP-98)."""
        until(lambda: not self.open_transactions(topic), "the end of all transactions", 15)

    def outputs(self) -> int:
        return len(self.records(self.names.output))

    def unstable_offsets(self, topic: str | None = None) -> int:
        """Count the offsets after the last stable offset (of the output), a cheap test for open transactions."""
        return sum(log.end - log.last_stable for log in self.logs(topic or self.names.output).values())

    # The proof.

    def _proof(self, *arguments: str) -> tuple[int, Any]:
        code, stdout, stderr = call_program(proof, "proof", *arguments, "--json")
        return code, json.loads(stdout) if stdout else stderr

    def verify(self) -> tuple[int, Any]:
        """Run `python -m proof verify --json`; return exit code and report."""
        return self._proof("verify", *self.options())

    def proven(self, **expected: int) -> dict[str, Any]:
        """
        Assert the promise by record identity, the broker's view, and that no process is left.

        ``expected`` are fields of the report, such as `inputs=30`.
        """
        code, report = self.verify()
        assert (code, report["verdict"] if isinstance(report, dict) else report) == (0, "proven"), report
        assert {name: report[name] for name in expected} == expected
        assert self.open_transactions() == []
        assert self.open_transactions(self.names.dead_letter) == []
        assert self.drained()
        self.no_process_left()
        return report

    def crash_and_heal(self, *options: str, orders: int = 300, seconds: float = 120.0) -> None:
        """Assert that a run that dies before its commit leaves nothing to see, and the next one writes all once."""
        self.create()
        self.seed(orders)
        crashed = self.pipeline("--crash-prob", "1", *options, seconds=seconds)
        assert crashed.code == 2, crashed.text
        assert self.outputs() == 0
        assert self.records(self.names.output, READ_UNCOMMITTED), "the log holds what the dead attempt wrote"
        healed = self.pipeline(*options, seconds=seconds)
        assert healed.code == 0, healed.text
        self.proven(inputs=orders, outputs=orders)

    def no_process_left(self, seconds: float = _LEAVE_S) -> None:
        """Assert that all processes started by this stage are gone, JVMs and workers included."""
        deadline = Deadline(seconds)
        while (remaining := dict(self._left())) and not deadline.expired():
            await_ends(remaining, deadline)
        assert remaining == {}, f"still there after {seconds:g} s: {remaining}"

    def _left(self) -> Iterator[tuple[int, str]]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self.names.stem and process.status() != psutil.STATUS_ZOMBIE:
                    yield process.pid, " ".join(process.cmdline())[:120]


@pytest.fixture
def stage(broker: Broker, names: Names) -> Iterator[Stage]:
    """Topics and group of one test; whatever it started is gone when it ends."""
    made = Stage(broker, names)
    yield made
    made.no_process_left()


def environment(mark: str) -> dict[str, str]:
    """Return this process's environment without variables for make or the programs, plus a stage's mark."""
    words = ("MAKE", "MFLAGS", "PYSPARK_", "SPARK_", "CRASH_", "SEED_", "STAND_BY", "SHARE", "PROFILES_", "TIERS")
    named = {"BOOTSTRAP", "INPUT_TOPIC", "OUTPUT_TOPIC", "DLQ_TOPIC", "GROUP_ID", "MASTER", "READER", "FOLLOW"}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(words) and name not in named}
    return {**kept, MARK: mark}


def quick_jvms() -> dict[str, str]:
    """Return the variable for JVMs that compile once, collect with one thread, and map the classes of `make setup`."""
    archive = f"-XX:SharedArchiveFile={home() / 'spark.jsa'}"  # one that is missing, or does not fit, is passed over
    return {"JDK_JAVA_OPTIONS": " ".join([*QUICK, archive, "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"])}


def quick_executors() -> list[str]:
    """Return the options with which executors of `local-cluster` map those classes, too: the same class path."""
    return ["--conf", f"spark.executor.extraClassPath={':'.join(map(str, jars(Part.SPARK, home())))}"]


__all__ = [
    "CONNECTOR", "DIRECT", "MARK", "PARTITIONS", "READERS", "READ_UNCOMMITTED", "ROOT", "Broker", "DrainView",
    "Names", "Ran", "Running", "Stage", "Status", "quick_executors", "quick_jvms", "shared_spark",
    "until",
]  # fmt: skip
