"""What all runs stand on: a broker of our own, filled inputs, fresh outputs."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import topics
from brew.kafka.clients import admin, mapped
from brew.kafka.topics import TopicSpec
from brew.names import ExitCode
from sandbox.kafka import Cluster
from sandbox.launch import Settings

ROOT = Path(__file__).resolve().parent.parent
PARTITIONS = 4
_ASK_S = 60.0
_SLOWEST_PER_S = 5_000


def step_timeout_s(records: int) -> Deadline:
    """How long a step over so many records may take: two minutes, and what the slowest machine needs."""
    return Deadline(120 + records / _SLOWEST_PER_S)


@dataclass
class BenchmarkCluster:
    """The broker, and a directory for everything that runs write."""

    cluster: Cluster
    home: Path
    inputs: dict[int, str] = field(default_factory=dict)

    @property
    def connection(self) -> Connection:
        return Connection(self.cluster.bootstrap)

    def broker_cpu_s(self) -> float:
        """CPU seconds that the broker has used since its start."""
        identity = self.cluster.layout.node(1).identity
        process = identity.process() if identity else None
        if process is None:
            raise Refused(f"the broker is gone; its log: {self.cluster.layout.log(self.cluster.layout.node(1))}")
        times = process.cpu_times()
        return float(times.user + times.system)

    def input_of(self, records: int) -> str:
        """A topic with so many orders, seeded once and read once: the broker is warm for whoever comes first."""
        if records not in self.inputs:
            name = f"bench.in.{records}"
            self.seed(name, records)
            found = self.count(name, "key", records)
            if found["unique"] != records:
                raise Refused(f"the seeder wrote {found['unique']} different orders instead of {records}")
            self.inputs[records] = name
        return self.inputs[records]

    def seed(self, name: str, records: int) -> None:
        """A topic with so many orders, numbers 0 and up."""
        self.make_topics([name])
        options = ["--topic", name, "--count", str(records), "--start", "0"]
        program("proof", "seed", "--bootstrap", self.cluster.bootstrap, *options, records=records)

    def make_topics(self, names: Sequence[str], config: Mapping[str, str] | None = None) -> None:
        wanted = [TopicSpec(name, PARTITIONS, config or {}) for name in names]
        deadline = Deadline(_ASK_S)
        client = admin(self.connection)
        topics.create(client, wanted, deadline)
        topics.describe_all(client, list(names), deadline)

    def drop_topics(self, names: Sequence[str]) -> None:
        client = admin(self.connection)
        with mapped("delete topics"):
            for future in client.delete_topics(list(names), operation_timeout=_ASK_S).values():
                future.result()

    def count(self, topic: str, unique_by: str, records: int) -> dict[str, int]:
        """What `python -m downstream count` tells of a topic; duplicates are told, not refused."""
        options = ["--topic", topic, "--unique-by", unique_by, "--json"]
        good = (ExitCode.DONE, ExitCode.VIOLATION)
        told = program(
            "downstream", "count", "--bootstrap", self.cluster.bootstrap, *options, records=records, good=good
        )
        return json.loads(told)


@contextmanager
def benchmark_cluster() -> Iterator[BenchmarkCluster]:
    """A one-node broker with both compilers and 1 GiB of heap; it goes with its data, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="brew-bench-") as place:
        home = Path(place)
        with Cluster.start(home / "broker", settings=Settings(heap_mb=1024, quick=False)) as cluster:
            yield BenchmarkCluster(cluster, home)


def program(package: str, *arguments: str, records: int = 0, good: Sequence[int] = (0,)) -> str:
    """
    Run one of the house's programs to its end; returns what it printed.

    Raises:
        Refused: it ended with an exit code that is not ``good``, or not in time.
    """
    command = [sys.executable, "-m", package, *arguments]
    deadline = step_timeout_s(records)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=deadline.budget_s)
    except subprocess.TimeoutExpired as error:
        raise Refused(f"`{' '.join(command[1:])}` did not end within {deadline.budget_s:g} s") from error
    if done.returncode not in good:
        raise Refused(f"`{' '.join(command[1:])}` ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout
