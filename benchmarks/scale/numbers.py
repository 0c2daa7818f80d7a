"""The measured single numbers that the simulator is fed with, and the JSON file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from protocol.errors import Refused

FORMAT = 4
FILE = Path(__file__).with_name("numbers.json")
STEPS = ("open", "fence", "locate", "begin", "produce", "flush", "send-offsets", "commit", "close")
"""What a transaction's time goes to; `open` and `close` are those of its two clients."""


@dataclass(frozen=True, slots=True)
class Line:
    """CPU of one record: microseconds, and microseconds for each KiB of its key and value."""

    us: float
    us_per_kib: float

    def seconds(self, record_bytes: float) -> float:
        return max(0.0, 1e-6 * (self.us + self.us_per_kib * record_bytes / 1024))


@dataclass(frozen=True, slots=True)
class StepCost:
    """
    One step of a transaction of one record, against one broker on the loopback device.

    ``wall_ms`` from call to return; of it ``python_ms`` CPU of the calling thread, ``native_ms`` CPU of the client's
    other threads, ``broker_ms`` CPU of the broker. ``trips``: round trips that wait for one another.
    """

    wall_ms: float
    python_ms: float
    native_ms: float
    broker_ms: float
    trips: float

    @property
    def path(self) -> tuple[float, float, float]:
        """What the caller waits for beside its own CPU: client threads, broker, and what no CPU explains (timers)."""
        left = max(0.0, self.wall_ms - self.python_ms)
        native = min(left, self.native_ms)
        broker = min(left - native, self.broker_ms)
        return native, broker, left - native - broker

    def times(self, count: float) -> StepCost:
        """So many at once, in one call."""
        return StepCost(
            count * self.wall_ms, count * self.python_ms, count * self.native_ms, count * self.broker_ms, self.trips
        )

    @property
    def beside(self) -> tuple[float, float]:
        """CPU of client threads and broker that nobody waits for: markers, clean-up, what runs side by side."""
        native, broker, _ = self.path
        return self.native_ms - native, self.broker_ms - broker


@dataclass(frozen=True, slots=True)
class Connector:
    """
    The connector reader: ``cycle_s`` of a lane's cycle without its transactions, ``cpu_us`` of the whole tree per
    record, ``start_s`` from process start to the first commit.
    """

    cycle_s: float
    cpu_us: float
    start_s: float


@dataclass(frozen=True, slots=True)
class Sockets:
    """
    TCP connections of one client: ``at_one`` with one broker, ``per_broker`` more with each other one.

    A transaction opens and closes those of a producer; a tail keeps its own, and a process its locator's.
    """

    at_one: float
    per_broker: float

    def at(self, brokers: int) -> float:
        return self.at_one + self.per_broker * (brokers - 1)


@dataclass(frozen=True, slots=True)
class Idle:
    """
    A fetch that a broker keeps until its time is over, since nothing has come: CPU microseconds of the broker, and of
    the program that waits (the looks of the partition's thread meanwhile among them).
    """

    client_us: float
    broker_us: float


@dataclass(frozen=True, slots=True)
class Logs:
    """Bytes that one transaction adds to Kafka's own logs on one replica, and what it adds to the output."""

    transaction_state: float
    consumer_offsets: float
    marker: float
    marker_records: float
    record_overhead: float


@dataclass(frozen=True, slots=True)
class Memory:
    """MiB (PSS) of a holder's process: without partitions, and for each one that it holds; threads of the latter."""

    process_mib: float
    partition_mib: float
    partition_threads: float


@dataclass(frozen=True, slots=True)
class Numbers:
    """
    Everything measured, each number by itself: nothing here comes from a run that the simulator is compared with.

    ``take``, ``produce``: CPU of the Python thread per record. ``fetch``, ``send``: CPU of the client's own threads.
    ``broker_fetch``, ``broker_append``: of the broker. ``change_us``: by the clock, from one partition's turn
    to that of another which waited for it. ``coordinator_us``: of the group coordinator's threads per
    transaction. ``..._per_broker``: what each further broker adds to a transaction; ``..._per_partition``: what each
    further partition of the output does, by its metadata. ``connection_us``: CPU of a broker for a connection, opened
    and closed. ``tail_open``: of a partition's reader, to its first fetch; ``idle``: of a fetch with nothing to take.
    ``survey``: the driver's look at where partitions stand, and what each of them adds to it.
    ``flush_mib_per_s``: one producer into one partition. ``speed``: orders that one thread enriched in a second then:
    how fast the machine was. ``start_s``: process start to the first grant, no Spark;
    ``spark_start_s``: what Spark adds. ``requests``: of one transaction, by API.
    """

    steps: Mapping[str, StepCost]
    tail_open: StepCost
    tail_close: StepCost
    idle: Idle
    survey: StepCost
    survey_partition: StepCost
    take: Line
    produce: Line
    fetch: Line
    send: Line
    broker_fetch: Line
    broker_append: Line
    change_us: float
    coordinator_us: float
    connection_us: float
    native_us_per_broker: float
    broker_us_per_broker: float
    native_us_per_partition: float
    broker_us_per_partition: float
    flush_mib_per_s: float
    speed: float
    start_s: float
    spark_start_s: float
    requests: Mapping[str, float]
    tail: Sockets
    transaction: Sockets
    logs: Logs
    memory: Memory
    connector: Connector
    conditions: Mapping[str, str]

    @property
    def transaction_s(self) -> float:
        """A transaction of one record, by the clock."""
        return sum(step.wall_ms for step in self.steps.values()) / 1000

    def without(self, *steps: str) -> Numbers:
        """The same with these steps for nothing: what a simulator that forgets them would say."""
        nothing = StepCost(0.0, 0.0, 0.0, 0.0, 0.0)
        return replace(self, steps={**self.steps, **dict.fromkeys(steps, nothing)})


_PARTS: dict[str, type] = {
    **dict.fromkeys(("tail_open", "tail_close", "survey", "survey_partition"), StepCost),
    **dict.fromkeys(("take", "produce", "fetch", "send", "broker_fetch", "broker_append"), Line),
    **dict.fromkeys(("tail", "transaction"), Sockets),
    "idle": Idle,
    "logs": Logs,
    "memory": Memory,
    "connector": Connector,
}


def save(numbers: Numbers, path: Path) -> None:
    document = {"format": FORMAT, **asdict(numbers)}
    path.write_text(json.dumps(_rounded(document), indent=2, ensure_ascii=False) + "\n")


def load(path: Path = FILE) -> Numbers:
    """
    Read the numbers back.

    Raises:
        Refused: there are none, or they are those of another format.
    """
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: no measured numbers ({error}); measure them with `make bench-scale`") from error
    told = document.pop("format", None) if isinstance(document, dict) else None
    if told != FORMAT:
        raise Refused(f"{path}: its format is {told}, {FORMAT} is needed; measure again with `make bench-scale`")
    wanted = {field.name for field in fields(Numbers)}
    if odd := sorted(wanted ^ document.keys()):
        raise Refused(f"{path}: {', '.join(odd)} missing or unknown; measure again with `make bench-scale`")
    try:
        parts = {name: kind(**document[name]) for name, kind in _PARTS.items()}
        steps = {name: StepCost(**document["steps"][name]) for name in STEPS}
    except (TypeError, KeyError) as error:
        raise Refused(f"{path}: not as it is written ({error}); measure again with `make bench-scale`") from error
    return Numbers(**{**document, **parts, "steps": steps})


def _rounded(value: Any) -> Any:
    """Four digits that count, so that two files can be compared by eye."""
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return value
