"""CPU of a record: partitions of one process, read while they are written, as the direct reader does it."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import fmean

from pipeline.attempt import Job, Offer, attempt
from pipeline.direct.stretch import CHUNK, Stretch
from pipeline.direct.turns import PRODUCING, Desk, Turns
from pipeline.outcome import Status
from pipeline.pace import Pace
from pipeline.ports import Targets
from pipeline.settings import DirectSettings, Limits
from protocol.deadline import Deadline
from protocol.errors import Refused
from protocol.kafka.tail import Tail
from protocol.kafka.transaction import TransactionSettings
from protocol.position import OffsetRange
from scale.numbers import Line, StepCost
from scale.probe.place import LARGE, SMALL, Read, Sandbox, read

_TIMEOUT_S = 60.0
_MOST = 40_000
_GC_AFTER = 500_000
_TOGETHER = 8
"""Partitions of one process: their threads have colder caches than one alone, and wait for each other."""
_ROUNDS = 3
"""The one in the middle counts, as of the runs that the simulator is compared with."""
_DIRECT = DirectSettings()


@dataclass(frozen=True, slots=True)
class Worked:
    """
    Seconds of all partitions: CPU of the threads that work on them, of the client's threads, of brokers; the clock's.

    ``change_s``: on average, from the end of one partition's turn to the beginning of another's that waited for it.
    """

    python_s: float
    native_s: float
    broker_s: float
    wall_s: float
    transactions: int
    change_s: float

    def cpu_s(self) -> float:
        """Of everything that took part."""
        return self.python_s + self.native_s + self.broker_s


class _Timed(Turns):
    """The product's turns, and how long each took to be handed on."""

    def __init__(self) -> None:
        super().__init__(PRODUCING)
        self.changes: list[float] = []
        self._given = 0.0

    def _take(self, turn: object, stop: threading.Event | None = None) -> None:
        asked = time.perf_counter()
        super()._take(turn, stop)
        if asked < self._given:
            self.changes.append(time.perf_counter() - self._given)

    def _give(self, turn: object) -> None:
        self._given = time.perf_counter()
        super()._give(turn)


def lines(
    here: Sandbox, counts: tuple[int, int], steps: Mapping[str, StepCost]
) -> tuple[dict[str, Line], float, dict[str, str]]:
    """
    Lines through small and large orders, without what ``steps`` of their transactions cost; microseconds between the
    turns of two partitions; what to remember of it. ``counts``: orders of each of the partitions, small and large ones.

    Raises:
        Refused: a transaction was not committed.
    """
    found, told, change_s = [], {}, 0.0
    for size, count in zip((SMALL, LARGE), counts, strict=True):
        topics = [here.orders(count, size) for _ in range(_TOGETHER)]
        # Also for the broker's caches and compilers; records that stay would be in the way of Python's.
        reads = [replace(read(here, topic, count), records=[]) for topic in topics]
        worked(here, topics, count, "warm")
        rounds = [worked(here, topics, count, f"counted.{number}") for number in range(_ROUNDS)]
        done = sorted(rounds, key=Worked.cpu_s)[_ROUNDS // 2]
        found.append(_per_record(reads, done, steps, _TOGETHER * count))
        change_s = change_s or done.change_s
        told[f"{_TOGETHER} partitions of one process, {size} bytes"] = (
            f"{_TOGETHER * count / done.wall_s:,.0f} records/s"
        )
    small, large = found
    kib = (LARGE - SMALL) / 1024
    return {name: _line(small[name], (large[name] - small[name]) / kib) for name in small}, 1e6 * change_s, told


def worked(here: Sandbox, topics: Sequence[str], count: int, group: str) -> Worked:
    """Partition 0 of all ``topics`` side by side, in transactions of 40,000 records."""
    desk, turns = Desk(Pace.at_most(_MOST, _TIMEOUT_S)), _Timed()
    desk.producing = turns
    outputs = [here.topic() for _ in topics]
    collect = gc.get_threshold()
    gc.set_threshold(_GC_AFTER)  # as a holder does
    began, broker, process = time.monotonic(), here.broker_cpu_s(), time.process_time()
    try:
        with ThreadPoolExecutor(len(topics)) as pool:
            places = zip(topics, outputs, strict=True)
            each = [pool.submit(_partition, here, place, count, f"{place[0]}.{group}", desk) for place in places]
            found = [one.result() for one in each]
        process, wall = time.process_time() - process, time.monotonic() - began
        broker = here.broker_cpu_s() - broker
    finally:
        gc.set_threshold(*collect)
    python = sum(one.cpu_s for one in found)
    change_s = fmean(turns.changes or [0.0])
    transactions = sum(one.transactions for one in found)
    return Worked(python, max(0.0, process - python), broker, wall, transactions, change_s)


@dataclass(frozen=True, slots=True)
class _Done:
    cpu_s: float
    transactions: int


def _partition(here: Sandbox, place: tuple[str, str], count: int, group: str, desk: Desk) -> _Done:
    """One partition from its start to its end, in a thread of its own."""
    topic, output = place
    job = Job({}, TransactionSettings(here.connection, group, _TIMEOUT_S), Limits())
    targets, at, transactions = Targets(output, output, 0, 0), 0, 0
    deadline, began = Deadline(2 * _TIMEOUT_S), time.thread_time()
    tail = Tail(here.connection, group, topic, 0, 0, _DIRECT.read_ahead_bytes // _TOGETHER)
    try:
        while at < count:
            deadline.check(f"transactions over {topic}")
            first = tail.take(CHUNK, _DIRECT.transaction_bytes, 0.05)
            if first is None:
                continue
            stretch = Stretch(tail, first, _MOST, _DIRECT.transaction_bytes, desk.producing)
            offered = OffsetRange(topic, 0, at, first.until)
            with desk.transactions.one():
                offer = Offer(offered, targets, at == 0, None, stretch.reached, stretch.aside)
                outcome = attempt(offer, stretch, job)
            if outcome.status is not Status.COMMITTED:
                raise Refused(f"a measured transaction ended {outcome.status.value}: {outcome.detail}")
            at, transactions = outcome.until, transactions + 1
    finally:
        tail.close()
    return _Done(time.thread_time() - began, transactions)


def _per_record(reads: Sequence[Read], done: Worked, steps: Mapping[str, StepCost], count: int) -> dict[str, float]:
    """In microseconds."""
    fixed = {
        name: 1e-3 * done.transactions * sum(getattr(step, name) for step in steps.values())
        for name in ("python_ms", "native_ms", "broker_ms")
    }
    take_s, fetch_s, broker_s = (sum(getattr(one, name) for one in reads) for name in ("take_s", "fetch_s", "broker_s"))
    all_of_it = {
        "take": take_s,
        "fetch": fetch_s,
        "broker_fetch": broker_s,
        "produce": done.python_s - fixed["python_ms"] - take_s,
        "send": done.native_s - fixed["native_ms"] - fetch_s,
        "broker_append": done.broker_s - fixed["broker_ms"] - broker_s,
    }
    return {name: 1e6 * max(0.0, value) / count for name, value in all_of_it.items()}


def _line(at_small_us: float, us_per_kib: float) -> Line:
    slope = max(0.0, us_per_kib)
    return Line(at_small_us - slope * SMALL / 1024, slope)
