"""The environment of a cell: fresh topics and group, writers and readers as processes, their journals, the cluster."""

from __future__ import annotations

import contextlib
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from brew.cluster import OpenTransaction
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, Refused
from brew.kafka import cluster_admin, offsets, topics
from brew.kafka.clients import KafkaException, Producer, producer
from brew.kafka.kafka_python import open_transactions
from brew.kafka.log_reader import Row, scan_rows
from brew.names import READ_COMMITTED, ExitCode
from proof.campaign.cell import BOTH, CONNECTOR, DIRECT, PROVEN, Cell, Names
from proof.campaign.cluster import ExternalCluster, Sandbox
from proof.campaign.journals import Journals, Kill, first_commit
from proof.campaign.programs import Background, Program, Programs
from proof.seed import orders, spoiled

_POLL_S, _ASK_S, _OPEN_S, _READ_S = 0.005, 30.0, 20.0, 120.0
WRITER = (sys.executable, "-m", "pipeline", "run")
FEED_RATE = 300
_KILLS_PER_TIME, _EVERY_S, _FLUSH_S, _TIMEOUT_S = 5, 0.05, 20.0, 120.0
_FIRST, _BAD_EVERY = 10_000_000, 50
_Found = TypeVar("_Found")


class StalledError(BrewError):
    """The program under test did not continue in time: a finding."""


class FaultMissedError(BrewError):
    """The fault found no target, so the cell shows nothing."""


class Feeder(Background):
    """Writes ``rate`` orders per second to all partitions, one in fifty unreadable; lost ones are replaced."""

    def __init__(self, connection: Connection, topic: str, partitions: int, rate: int, seed: int) -> None:
        super().__init__(f"feed {topic}", _FLUSH_S + 1)
        self._connection, self._topic, self.partitions, self._rate = connection, topic, partitions, rate
        self._orders, self._random = orders(seed), random.Random(seed)  # noqa: S311 - not for security
        self._number = _FIRST

    def run(self) -> None:
        client = self._client()
        while not self.over.wait(_EVERY_S):
            try:
                self._write(client)
            except KafkaException:  # an idempotent producer may fail for good; the order numbers continue
                client.purge()
                client = self._client()
            except BufferError:
                client.poll(_EVERY_S)
        client.flush(_FLUSH_S)

    def _client(self) -> Producer:
        settings = {"enable.idempotence": True, "linger.ms": 1}
        return producer(self._connection, None, timeout_s=_TIMEOUT_S, message_max_bytes=1_000_000, **settings)

    def _write(self, client: Producer) -> None:
        for _ in range(max(1, int(self._rate * _EVERY_S))):
            made = self._orders(self._number)
            if self._number % _BAD_EVERY == 0:
                made = spoiled(made, self._number // _BAD_EVERY)
            self._number += 1
            client.produce(self._topic, made[1], made[0], self._number % self.partitions)
        client.poll(0)


@dataclass
class CellEnvironment:
    """The environment of one cell with one seed; ``program``: the writer under test, ``kills``: those of a loop."""

    cell: Cell
    seed: int
    cluster: ExternalCluster
    folder: Path
    programs: Programs
    deadline: Deadline
    kills: int = 5
    program: tuple[str, ...] = WRITER
    fired: Counter[str] = field(default_factory=Counter)
    recovery_s: list[float] = field(default_factory=list)
    stall_s: list[float] = field(default_factory=list)
    killed: list[Kill] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    findings: list[Mapping[str, Any]] = field(default_factory=list)
    """What the play itself found wrong beyond Kafka, such as a ledger's rows; `name` and `evidence` each."""
    counts: dict[str, int] = field(default_factory=dict)
    minutes: float | None = None
    """Duration of a mixture; None: the cell's default."""
    slack: float = 1.0

    def __post_init__(self) -> None:
        self.random = random.Random(f"{self.cell.name}/{self.seed}")  # noqa: S311 - not for security
        self.names = Names.fresh(self.cell.name, self.seed)
        self.bootstrap = self.cluster.bootstrap
        self.journals = Journals(self.folder / "journals")
        self.partition = self.seed % self.cell.partitions
        """The one input partition whose brokers the fault targets."""
        self.transactional_id = self.names.transactional_id(self.partition)
        """The id whose transactions are looked at and whose coordinator is broken."""
        self._started = Counter[str]()
        self.writers: list[Program] = []
        """All writers that were started, including those that have ended."""
        self._readers: list[Program] = []

    @property
    def bound_s(self) -> float | None:
        return None if self.cell.bound_s is None else self.cell.bound_s * self.slack

    @property
    def times(self) -> int:
        """How often to inject a long fault: once in a short round, twenty times for a hundred kills."""
        return max(1, self.kills // _KILLS_PER_TIME)

    @cached_property
    def sandbox(self) -> Sandbox:
        """The cluster, for cells that break it."""
        if not isinstance(self.cluster, Sandbox):
            raise Refused(f"{self.cell.name} breaks brokers, but not those of --bootstrap; run it without that option")
        return self.cluster

    def make_topics(self) -> None:
        """Create input, output and dead-letter topics, and wait until every broker knows them."""
        wanted = [topics.TopicSpec(name, self.cell.partitions, {}) for name in self.names.topics()]
        topics.create(self.cluster.admin, wanted, Deadline(_ASK_S))
        topics.describe_all(self.cluster.admin, self.names.topics(), Deadline(_ASK_S))

    def orders(self, count: int, *options: str) -> None:
        """Seed the input and wait for it; one order in fifty is unreadable."""
        words = ["seed", "--bootstrap", self.cluster.bootstrap, "--topic", self.names.input, "--count", str(count)]
        words += ["--seed", str(self.seed), "--bad-every", "50", *options]
        self.other("seed", "proof", *words).done(self.deadline)

    def feeding(self, rate: int = FEED_RATE) -> Feeder:
        return Feeder(self.cluster.connection, self.names.input, self.cell.partitions, rate, self.seed)

    def records(self, topic: str) -> Iterator[Row]:
        """Yield all records of a topic that are visible to a `read_committed` reader."""
        ends = offsets.log_offsets(self.cluster.admin, topic, range(self.cell.partitions), Deadline(_ASK_S))
        ranges = {partition: (log.first, log.last_stable) for partition, log in ends.items()}
        for rows in scan_rows(self.cluster.connection, topic, ranges, READ_COMMITTED):
            yield from rows

    def writer(self, *options: str, name: str = "writer") -> Program:
        """Start the program under test with the cell's reader, without Spark unless ``options`` name a master."""
        broken = (sys.executable, "-m", "tests.mutants", "as", self.cell.bug, "run")
        words = [*(broken if self.cell.bug else self.program), "--bootstrap", self.bootstrap, *self.names.options()]
        if reader := self._reader():
            words += ["--reader", reader]
        words += ["--master", "none", "--journal", str(self.journals.folder), "--transaction-timeout", "20"]
        program = self.programs.start(self._numbered(name), *words, "--poll-interval", "0.05", *options)
        self.writers.append(program)
        return program

    def start_writer(self, *options: str, orders: int = 1000, commits: int = 4, seconds: float = 60.0) -> Program:
        """Seed orders and start a writer that follows the input; wait until it has committed some transactions."""
        self.orders(orders, "--transactional")
        writer = self.writer("--follow", *options)
        self.await_commits(commits, seconds)
        return writer

    @contextlib.contextmanager
    def at_work(self, *options: str, feed: int = 600, **started: Any) -> Iterator[Program]:
        """Within the block, feed orders, with a writer (`start_writer`) that follows them."""
        with self.feeding(feed):
            yield self.start_writer(*options, **started)

    def note_ended(self, *writers: Program) -> None:
        for writer in writers:
            if writer.code() is not None:
                self.notes.append(writer.ending)

    def _reader(self) -> str:
        """Return the cell's reader; with `both`, the one that the previous writer did not have."""
        if self.cell.reader != BOTH:
            return self.cell.reader
        reader = (CONNECTOR, DIRECT)[len(self.writers) % 2]
        self.fire(f"{reader}_writers")
        return reader

    def other(self, name: str, *words: str) -> Program:
        """Run `python -m words...`: another program of this repository."""
        return self.programs.python(self._numbered(name), *words)

    def reader(self) -> Program:
        """Start a `read_committed` reader of output and dead letters, which keeps running through all faults."""
        program = self.other("reader", "proof", "read", "--follow", *self._reading())
        self._readers.append(program)
        return program

    def stop(self, program: Program, seconds: float = 30.0) -> int:
        """Send SIGTERM and return the exit code; a process that does not end in time is killed and noted."""
        program.terminate()
        program.signal(signal.SIGCONT)  # a stopped process handles SIGTERM only once it continues
        try:
            return program.wait(Deadline(min(seconds, max(0.1, self.deadline.remaining_s()))))
        except BrewError:
            program.abort()
            self.notes.append(f"{program.name} did not end within {seconds:g} s of SIGTERM")
            return -signal.SIGKILL

    def crashes(self) -> list[str]:
        """Return a description of each writer that crashed by itself."""
        return [crash for program in self.writers if (crash := program.crash) is not None]

    def stop_writers(self) -> None:
        self.stop_running(self.writers)

    def abort_writers(self) -> None:
        """Abort the running writers; each dumps its stacks."""
        for program in self.writers:
            if program.code() is None:
                program.abort()

    def stop_all(self) -> None:
        self.stop_running([*self.writers, *self._readers])

    def stop_running(self, programs: Sequence[Program]) -> None:
        for program in programs:
            if program.code() is None:
                self.stop(program)

    def drain(self, *options: str) -> None:
        """Run another writer until the input is drained; it must exit with 0."""
        self.ended(self.writer("--patience", "60", *options, name="drain"))

    def ended(self, program: Program, code: int = 0, deadline: Deadline | None = None) -> None:
        """Wait for the program's end; raise `StalledError` if it ended with another exit code."""
        if (found := program.wait(deadline or self.deadline)) != code:
            raise StalledError(f"{program.name} ended with {found} instead of {code}: {program.last_output()}")

    def read_to_the_end(self) -> None:
        """Run a last `read_committed` reader from the logs' starts to their ends."""
        self.other("last-reader", "proof", "read", *self._reading()).done(self.deadline)

    def proven(self) -> None:
        """Run the checker on what exists so far, for cells whose fault removes data that it would compare."""
        if (report := self.verified())["verdict"] != PROVEN:
            raise StalledError(f"not proven even before the fault: {report['totals']}, {report['doubts']}")

    def verified(self, *options: str) -> dict[str, Any]:
        """Let `proof verify` compare the cell's logs; return its report."""
        words = ("verify", "--bootstrap", self.cluster.bootstrap, *self.names.options(), "--json", *options)
        return self.other("verify", "proof", *words).report(Deadline(_READ_S), ExitCode.REFUSED)

    def _reading(self) -> list[str]:
        asked = ["--topic", self.names.output, "--topic", self.names.dead_letter]
        return ["--bootstrap", self.cluster.bootstrap, "--journal", str(self.journals.folder), *asked]

    def _numbered(self, name: str) -> str:
        self._started[name] += 1
        return f"{name}-{self._started[name]}"

    def fire(self, what: str, times: int = 1) -> None:
        self.fired[what] += times

    def find(self, name: str, evidence: str) -> None:
        self.findings.append({"name": name, "evidence": evidence})

    def until(self, condition: Callable[[], _Found | None], what: str, seconds: float | None = None) -> _Found:
        """Wait for and return what ``condition`` finds; raise `StalledError` if late, or if a writer crashes."""
        limit = Deadline(min(seconds or self.deadline.budget_s, max(0.01, self.deadline.remaining_s())))
        while not (found := condition()):
            if crashes := self.crashes():
                raise StalledError(f"{what}: {crashes[0]}")
            if limit.expired():
                raise StalledError(f"{what}: not within {limit.budget_s:.0f} s")
            time.sleep(_POLL_S)
        return found

    def pause(self, seconds: float) -> None:
        """Sleep while the fault lasts, within the cell's time."""
        time.sleep(min(seconds, self.deadline.remaining_s()))

    def commits(self) -> int:
        self.journals.look()
        return self.journals.commits

    def await_commits(self, count: int, seconds: float = 60.0) -> None:
        goal = self.commits() + count
        self.until(lambda: self.commits() >= goal, f"{count} commits", seconds)

    def recovered(
        self, since: float, partitions: Collection[int] | None = None, *, without: Collection[int] = ()
    ) -> None:
        """Wait for the first commit after ``since`` (see `first_commit`), and record the seconds it took."""

        def committed() -> float | None:
            return first_commit(self.journals.look(), since, partitions, without)

        self.recovery_s.append(self.until(committed, "the first new commit after the fault") - since)

    def open_transactions(self) -> list[OpenTransaction]:
        """Return the transactions that the brokers report as open on output and dead letters, of any producer."""
        connection, partitions = self.cluster.connection, range(self.cell.partitions)
        names = self.names.output, self.names.dead_letter
        return [o for topic in names for o in open_transactions(connection, topic, partitions, Deadline(_OPEN_S))]

    def leader(self, role: str) -> int:
        """Return the broker that hosts the `input`, `output`, `transactions` or `group` of this stage's partition."""
        client, deadline = self.cluster.admin, Deadline(_ASK_S)
        if role == "transactions":
            return cluster_admin.coordinator(client, cluster_admin.TRANSACTIONS, self.transactional_id, deadline)
        if role == "group":
            # The brokers create the offsets topic when a group's coordinator is requested for the first time.
            whose = (self.cluster.connection, self.names.group, self.names.input)
            offsets.committed_by(*whose, [0], READ_COMMITTED, deadline)
            return cluster_admin.coordinator(client, cluster_admin.OFFSETS, self.names.group, deadline)
        topic = {"input": self.names.input, "output": self.names.output}[role]
        return cluster_admin.leaders(client, topic, deadline)[self.partition]

    def forget(self) -> None:
        """Delete the cell's topics and group; ignore errors."""
        with contextlib.suppress(BrewError):
            cluster_admin.delete_topics(self.cluster.admin, self.names.topics(), Deadline(_ASK_S))
            cluster_admin.delete_group(self.cluster.connection, self.names.group, Deadline(_ASK_S))
