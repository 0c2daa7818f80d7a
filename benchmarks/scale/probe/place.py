"""A sandbox to measure on: brokers, topics with orders of a given size, and what the brokers have used so far."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka import topics
from protocol.kafka.clients import admin, producer
from protocol.kafka.scan import LogRecord
from protocol.kafka.tail import Tail
from protocol.kafka.topics import Wanted
from sandbox.kafka import Cluster, Settings

_ASK_S = 120.0
_CALM_S = 1.0
_COORDINATOR = "group-coordinat"
"""How the kernel calls the threads `group-coordinator-event-processor-N`: it keeps 15 letters."""
_COMPILERS = ("C1 ", "C2 ", "Sweeper")
"""A broker that has run for an hour has nothing to compile."""
_SHM, _ROOM = Path("/dev/shm"), 8 * 2**30  # noqa: S108 - a mount point, not a name to be guessed
SMALL, LARGE = 160, 1184
"""Key and value of an order of the benchmark, and of one that is 1 KiB larger."""


@dataclass
class Sandbox:
    """Running brokers; every topic that it makes has a name of its own."""

    cluster: Cluster
    home: Path
    _names: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))

    @property
    def connection(self) -> Connection:
        return Connection(self.cluster.bootstrap)

    @property
    def brokers(self) -> int:
        return len(self.cluster.layout.nodes)

    def topic(self, partitions: int = 1) -> str:
        name, client, deadline = f"scale.{next(self._names)}", admin(self.connection), Deadline(_ASK_S)
        topics.create(client, [Wanted(name, partitions, {})], deadline)
        topics.describe_all(client, [name], deadline)
        return name

    def orders(self, count: int, size: int) -> str:
        """A topic of one partition with so many orders of ``size`` bytes, key and value together."""
        name, deadline = self.topic(), Deadline(_ASK_S)
        client = producer(self.connection, None, timeout_s=_ASK_S, message_max_bytes=10_000_000)
        pad = "x" * (size - sum(map(len, _order(0, ""))))
        for number in range(count):
            key, value = _order(number, pad)
            while True:
                try:
                    client.produce(name, value, key, 0)
                    break
                except BufferError:
                    client.poll(0.05)
                    deadline.check("seeding")
        if client.flush(deadline.remaining_s()):
            raise Refused(f"{count} orders of {size} bytes could not be written within {_ASK_S:g} s")
        client.close()
        return name

    def broker_cpu_s(self) -> float:
        """CPU seconds of all brokers since their start, without their compilers'."""
        return self._cpu_s(lambda name: not name.startswith(_COMPILERS))

    def idle_cpu_per_s(self) -> float:
        """What all brokers use while nobody asks for anything: followers that fetch, controllers that beat."""
        time.sleep(_CALM_S)
        began, before = time.monotonic(), self.broker_cpu_s()
        time.sleep(_CALM_S)
        return (self.broker_cpu_s() - before) / (time.monotonic() - began)

    def coordinator_cpu_s(self) -> float:
        """Of these, those of the group coordinator's threads."""
        return self._cpu_s(lambda name: name.startswith(_COORDINATOR))

    def _cpu_s(self, wanted: Callable[[str], bool]) -> float:
        """To the nanosecond, of the threads with such names."""
        found = 0
        for node in self.cluster.layout.nodes:
            for task in Path(f"/proc/{self._process(node.number).pid}/task").iterdir():
                try:
                    if wanted((task / "comm").read_text()):
                        found += int((task / "schedstat").read_text().split()[0])
                except OSError:
                    continue  # a thread that has just ended
        return found / 1e9

    def log_bytes(self, topic: str) -> int:
        """Bytes of a topic's logs on the first broker."""
        layout = self.cluster.layout
        data = layout.data(layout.node(1))
        return sum(file.stat().st_size for file in data.glob(f"{topic}-*/*.log"))

    def _process(self, number: int):  # noqa: ANN202 - psutil's
        identity = self.cluster.layout.node(number).identity
        process = identity.process() if identity else None
        if process is None:
            raise Refused(f"broker {number} is gone; its log: {self.cluster.layout.log(self.cluster.layout.node(1))}")
        return process


def _order(number: int, pad: str) -> tuple[bytes, bytes]:
    order = {
        "order_id": f"{number:09d}",
        "customer_id": f"gold-{number % 999_999:06d}",
        "item": "latte",
        "quantity": 1,
        "total_cents": 450,
        "store": "north",
        "created_at": "2026-11-21T08:00:00Z",
        "n": pad,
    }
    return b"gold-%06d" % (number % 999_999), orjson.dumps(order)


@dataclass(frozen=True, slots=True)
class Read:
    """All records of a topic, and what it took to hold them: this thread's CPU, the client's, the brokers'."""

    records: list[LogRecord]
    take_s: float
    fetch_s: float
    broker_s: float


def read(here: Sandbox, topic: str, count: int) -> Read:
    """
    Through the direct reader's own tail.

    Raises:
        DeadlineExceeded: they did not come.
    """
    deadline, records = Deadline(_ASK_S), []
    broker, thread, process = here.broker_cpu_s(), time.thread_time(), time.process_time()
    tail = Tail(here.connection, "scale.read", topic, 0, 0, 64 * 1024 * 1024)
    try:
        while len(records) < count:
            taken = tail.take(70_000, 16 * 1024 * 1024, 0.05)
            if taken is not None:
                records += taken.records
            deadline.check(f"reading {topic}")
    finally:
        tail.close()
    thread, process = time.thread_time() - thread, time.process_time() - process
    return Read(records, thread, max(0.0, process - thread), here.broker_cpu_s() - broker)


def _memory() -> Path | None:
    """A file system in memory with room for the logs, where there is one: nobody simulates how a kernel writes back."""
    if _SHM.is_dir() and shutil.disk_usage(_SHM).free > _ROOM:
        return _SHM
    return None


@contextmanager
def sandbox(brokers: int) -> Iterator[Sandbox]:
    """Brokers with both compilers and 1 GiB of heap each (three: 512 MiB); they go with their data."""
    with tempfile.TemporaryDirectory(prefix="brew-scale-", dir=_memory()) as place:
        home = Path(place)
        settings = Settings(heap_mb=1024 if brokers == 1 else 512, quick=False)
        with Cluster.start(home / "broker", brokers=brokers, settings=settings) as cluster:
            yield Sandbox(cluster, home)
