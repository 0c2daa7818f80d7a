"""What all measurements share: a broker with inputs and outputs, machine information, memory."""

from __future__ import annotations

import importlib.metadata
import json
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Refused
from brew.journal import Entry, Phase, Step
from brew.kafka import cluster_admin, topics
from brew.kafka.clients import admin
from brew.kafka.topics import TopicSpec
from brew.names import ExitCode
from sandbox.kafka import Cluster, Settings
from sandbox.process import Identity

ROOT = Path(__file__).resolve().parent.parent
JVM_DIR = Path(os.environ.get("BREW_JVM_DIR", ROOT / ".jvm"))
PEERS = Path(__file__).with_name("peers")
STREAMS = PEERS / "build/streams/streams.jar"
FRANZ = PEERS / "build/franz"
FLINK = PEERS / "build/flink/flink.jar"
QUIX = PEERS / "build/quix/bin/python"
PARTITIONS = 4
_ASK_S, _SLOWEST_PER_S = 60.0, 5_000


def step_timeout_s(records: int) -> Deadline:
    """Return the time allowed for a step over ``records``: two minutes, plus what the slowest machine needs."""
    return Deadline(120 + records / _SLOWEST_PER_S)


@dataclass
class BenchmarkCluster:
    """The broker, and a directory for all files written by runs."""

    cluster: Cluster
    home: Path
    kind: str = "tuned"
    inputs: dict[int, str] = field(default_factory=dict)

    @property
    def connection(self) -> Connection:
        return Connection(self.cluster.bootstrap)

    def broker_cpu_s(self) -> float:
        """Return the CPU seconds used by the broker since its start."""
        node = self.cluster.layout.node(1)
        return server_cpu_s(node.identity, f"the broker has ended; see its log {self.cluster.layout.log(node)}")

    def input_of(self, records: int) -> str:
        """Return a topic of ``records`` orders, seeded and read once to warm up the broker."""
        if records not in self.inputs:
            name = f"bench.in.{records}"
            self.seed(name, records)
            counts = self.count(name, "key", records)
            if counts["unique"] != records:
                raise Refused(f"the seeder wrote {counts['unique']} different orders instead of {records}")
            self.inputs[records] = name
        return self.inputs[records]

    def seed(self, name: str, records: int) -> None:
        """Create a topic of ``records`` orders, numbered from 0."""
        make_topics(self.connection, [name])
        options = ["--topic", name, "--count", str(records), "--start", "0"]
        program("proof", "seed", "--bootstrap", self.cluster.bootstrap, *options, records=records)

    def drop_topics(self, names: Sequence[str]) -> None:
        cluster_admin.delete_topics(admin(self.connection), list(names), Deadline(_ASK_S))

    def count(self, topic: str, unique_by: str, records: int) -> dict[str, int]:
        """Return what `python -m downstream count` reports for a topic; duplicates are reported, not refused."""
        options = ["--topic", topic, "--unique-by", unique_by, "--json"]
        good = (ExitCode.DONE, ExitCode.VIOLATION)
        output = program(
            "downstream", "count", "--bootstrap", self.cluster.bootstrap, *options, records=records, good=good
        )
        counts: dict[str, int] = json.loads(output)
        return counts


BROKERS: Mapping[str, str] = {
    "default": "Kafka's defaults, except for replication factors of 1",
    "default-young": "the same, restarted before each run, so that its JVM is cold",
    "tuned": "the sandbox's settings: 8 partitions of internal topics, indexes of 1 MiB, quick elections",
}
"""The kinds of broker; the first is what most users have."""
# Kafka 4.1's documented defaults of what `sandbox.layout.server_properties` overrides.
_DEFAULTS = {
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "group.initial.rebalance.delay.ms": "3000",
    "broker.session.timeout.ms": "9000",
    "broker.heartbeat.interval.ms": "2000",
    "auto.create.topics.enable": "true",
    "log.index.size.max.bytes": str(10 * 1024**2),
}


def make_topics(
    connection: Connection, names: Sequence[str], partitions: int = PARTITIONS, config: Mapping[str, str] | None = None
) -> None:
    """Create topics, and return once all can be described."""
    client, deadline = admin(connection), Deadline(_ASK_S)
    topics.create(client, [TopicSpec(name, partitions, config or {}) for name in names], deadline)
    topics.describe_all(client, list(names), deadline)


@contextmanager
def benchmark_cluster(kind: str = "tuned") -> Iterator[BenchmarkCluster]:
    """Run a one-node broker with both JIT compilers and 1 GiB of heap; it is always removed with its data."""
    properties = {} if kind == "tuned" else _DEFAULTS
    with tempfile.TemporaryDirectory(prefix="brew-bench-") as folder:
        home = Path(folder)
        settings = Settings(heap_mb=1024, quick=False, properties=properties)
        with Cluster.start(home / "broker", settings=settings) as cluster:
            yield BenchmarkCluster(cluster, home, kind)


def program(package: str, *arguments: str, records: int = 0, good: Sequence[int] = (0,)) -> str:
    """Run one of our programs to its end and return its output."""
    command = [sys.executable, "-m", package, *arguments]
    deadline = step_timeout_s(records)
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=deadline.budget_s)
    except subprocess.TimeoutExpired as error:
        raise Refused(f"`{' '.join(command[1:])}` did not end within {deadline.budget_s:g} s") from error
    if done.returncode not in good:
        raise Refused(f"`{' '.join(command[1:])}` ended with {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
    return done.stdout


def server_cpu_s(identity: Identity | None, gone: str) -> float:
    process = identity.process() if identity else None
    if process is None:
        raise Refused(gone)
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def children_cpu_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


def transacting_s(lines: Iterable[Entry]) -> float:
    """Return the seconds from a journal's first fence to its last commit."""
    known = list(lines)
    first = min(line.at for line in known if line.step is Step.FENCE)
    return max(line.at for line in known if line.step is Step.COMMIT and line.phase is Phase.DONE) - first


def save(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n")


def machine() -> dict[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    judged = subprocess.run([sys.executable, ROOT / "scripts/judge_python.py"], check=False, timeout=30).returncode
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": f"{cores} ({_cpu_model()})",
        "memory": f"{psutil.virtual_memory().total / 2**30:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "load before the start": f"{os.getloadavg()[0]:.2f}",
        "python": f"{platform.python_version()}, built with{'out' if judged == 10 else ''} optimisations",
        "java": _matched(r'version "([^"]+)"', _program_output("java", "-version")),
        "class-data archives": _archives(),
        "pyspark": importlib.metadata.version("pyspark"),
        "confluent-kafka": importlib.metadata.version("confluent-kafka"),
        "kafka broker": jar_version(JVM_DIR / "kafka", "kafka_2.13"),
        "kafka-clients of the connector": jar_version(JVM_DIR / "spark", "kafka-clients"),
        "kafka-streams": jar_version(STREAMS.parent / "lib", "kafka-streams"),
        "franz-go": _matched(r"twmb/franz-go v(\S+)", (PEERS / "franz/go.mod").read_text()),
        "flink": jar_version(FLINK.parent / "lib", "flink-clients"),
        "flink-connector-kafka": jar_version(FLINK.parent / "lib", "flink-connector-kafka"),
        "quix-streams": _matched(r"quixstreams==(\S+)", (PEERS / "quix-requirements.txt").read_text()),
        "commit": _program_output("git", "describe", "--always", "--dirty") or "none",
    }


def _cpu_model() -> str:
    file = Path("/proc/cpuinfo")
    model = re.search(r"model name\s*:\s*(.+)", file.read_text()) if file.exists() else None
    return model[1].strip() if model else platform.machine()


def _archives() -> str:
    """Return whether the JVMs use the class-data archives, which hold a class path; without them a start is slower."""
    pyspark = Path(str(importlib.metadata.distribution("pyspark").locate_file("pyspark/jars")))
    paths = {"kafka": [JVM_DIR / "kafka"], "spark": [JVM_DIR / "spark", pyspark]}
    for name, folders in paths.items():
        if not (file := JVM_DIR / f"{name}.jsa").exists():
            return f"none ({name})"
        with file.open("rb") as archive, mmap.mmap(archive.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if any(data.find(f"{folder}/".encode()) < 0 for folder in folders):
                return f"not used: {file.name} was made in another folder"
    return "used"


def _matched(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else "unknown"


def _program_output(name: str, *arguments: str) -> str:
    """Return a program's output; empty if it is not installed or fails."""
    if (program := shutil.which(name)) is None:
        return ""
    done = subprocess.run([program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    return (done.stdout or done.stderr).strip() if done.returncode == 0 else ""


def jar_version(folder: Path, name: str) -> str:
    jars = sorted(folder.glob(f"{name}-[0-9]*.jar"))
    return jars[0].stem.removeprefix(f"{name}-") if jars else "not built"


_MOST = 4 * 2**30


def touch(most: int = _MOST) -> float:
    """
    Touch and free up to ``most`` bytes, at most half of what is available; return microseconds per page.

    A virtual machine's free memory may be back at its host: each page's first access costs 20 microseconds, not one.
    """
    size: int = max(mmap.PAGESIZE, min(most, psutil.virtual_memory().available // 2))
    with mmap.mmap(-1, size) as memory:
        began = time.monotonic()
        for position in range(0, size, mmap.PAGESIZE):
            memory[position] = 1
        return 1e6 * (time.monotonic() - began) / -(-size // mmap.PAGESIZE)
