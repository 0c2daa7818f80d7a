"""What is to be simulated: a cluster, a load and the settings of a run, refused together."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.direct.turns import AT_ONCE, PRODUCING
from pipeline.settings import DirectSettings, Reader
from protocol.errors import UsageError

_DIRECT = DirectSettings()
RECORD_OVERHEAD = 64
"""Bytes that the direct reader counts beside key and value (`protocol/kafka/tail.py`)."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """
    ``rate`` is records/s over all partitions; 0: a ``backlog`` of so many records in each partition is drained.

    ``one_machine``: executors and brokers share ``cores`` processors, as on a laptop. ``lose`` executors end at
    ``lose_at`` seconds; ``silent``: nobody hears of it before the lease (connector: Spark's network time-out) is over.
    ``turns``: transactions of a process at a time (direct), ``producing``: of these, those that read and produce;
    0: all that it holds.
    ``network_ms`` and ``replication_ms`` are what a round trip and an append on all replicas take beyond the loopback.
    """

    reader: Reader = Reader.DIRECT
    partitions: int = 64
    executors: int = 4
    cores: int = 4
    slots_per_executor: int = 0
    brokers: int = 3
    broker_cores: int = 8
    replicas: int = 3
    record_bytes: int = 160
    transaction_bytes: int = _DIRECT.transaction_bytes
    read_ahead_bytes: int = _DIRECT.read_ahead_bytes
    max_records: int = 250_000
    lease_s: float = _DIRECT.lease_s
    turns: int = AT_ONCE
    producing: int = PRODUCING
    lanes: int = 2
    groups: int = 1
    rate: float = 0.0
    backlog: int = 0
    seconds: float = 10.0
    warm_up_s: float = 2.0
    network_ms: float = 0.5
    replication_ms: float = 1.0
    lose: int = 0
    lose_at: float = 5.0
    silent: bool = False
    one_machine: bool = False
    without_spark: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        limits: list[tuple[str, float, float, float]] = [
            ("--partitions", self.partitions, 1, 20_000),
            ("--executors", self.executors, 1, 2_000),
            ("--cores", self.cores, 1, 128),
            ("--slots", self.slots_per_executor, 0, 128),
            ("--brokers", self.brokers, 1, 200),
            ("--replicas", self.replicas, 1, 9),
            ("--broker-cores", self.broker_cores, 1, 256),
            ("--record-bytes", self.record_bytes, 1, 50_000_000),
            ("--transaction-bytes", self.transaction_bytes, 1024, 1024**3),
            ("--read-ahead-bytes", self.read_ahead_bytes, 1024**2, 16 * 1024**3),
            ("--max-records-per-transaction", self.max_records, 1, 10_000_000),
            ("--lease", self.lease_s, 1, 600),
            ("--turns", self.turns, 0, 20_000),
            ("--producing", self.producing, 0, 20_000),
            ("--lanes", self.lanes, 1, 64),
            ("--groups", self.groups, 1, self.partitions),
            ("--rate", self.rate, 0, 1e10),
            ("--backlog", self.backlog, 0, 1e9),
            ("--seconds", self.seconds, 0.1, 3600),
            ("--warm-up", self.warm_up_s, 0, 3600),
            ("--network-ms", self.network_ms, 0, 1000),
            ("--replication-ms", self.replication_ms, 0, 1000),
            ("--lose", self.lose, 0, self.executors - 1),
        ]
        for option, value, least, most in limits:
            if not least <= value <= most:
                raise UsageError(f"{option} is {value:g}: it has to be between {least:g} and {most:g}")
        if self.lose and not self.warm_up_s <= self.lose_at < self.warm_up_s + self.seconds:
            end = self.warm_up_s + self.seconds
            raise UsageError(
                f"--lose-at is {self.lose_at:g}: it has to be in the time that is counted, {self.warm_up_s:g} to "
                f"{end:g} s; change it, --warm-up or --seconds"
            )

    @property
    def copies(self) -> int:
        """Of each record of the output; there are no more than brokers."""
        return min(self.replicas, self.brokers)

    @property
    def slots(self) -> int:
        return self.executors * (self.slots_per_executor or self.cores)

    @property
    def open_at_once(self) -> int:
        """Transactions that may be open at a time."""
        each = 1 if self.reader is Reader.CONNECTOR else (self.turns or self.partitions)
        return min(self.partitions, self.slots * each)

    @property
    def executor_of(self) -> list[int]:
        """The executor of each slot."""
        each = self.slots_per_executor or self.cores
        return [slot // each for slot in range(self.slots)]

    @property
    def most_records(self) -> int:
        """Of one transaction by bytes and by count."""
        if self.reader is Reader.CONNECTOR:
            return self.max_records
        return max(1, min(self.max_records, self.transaction_bytes // (self.record_bytes + RECORD_OVERHEAD)))
