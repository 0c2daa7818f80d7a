"""CPU of a record: one partition, one thread, read while it is written, as the direct reader does it."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.attempt import Job, Offer, attempt
from pipeline.direct.stretch import CHUNK, Stretch
from pipeline.direct.turns import PRODUCING, Turns
from pipeline.outcome import Status
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
_DIRECT = DirectSettings()


@dataclass(frozen=True, slots=True)
class Worked:
    """Seconds of a whole partition: of this thread's CPU, of the client's threads, of the brokers; by the clock."""

    python_s: float
    native_s: float
    broker_s: float
    wall_s: float
    transactions: int


def lines(
    here: Sandbox, counts: tuple[int, int], steps: Mapping[str, StepCost]
) -> tuple[dict[str, Line], dict[str, str]]:
    """
    Lines through small and large orders, without what ``steps`` of their transactions cost; and what to remember of it.

    Raises:
        Refused: a transaction was not committed.
    """
    found, told = [], {}
    for size, count in zip((SMALL, LARGE), counts, strict=True):
        topic = here.orders(count, size)
        read(here, topic, count)  # the broker's caches and compilers
        worked(here, topic, count, "warm")
        taken, done = read(here, topic, count), worked(here, topic, count, "counted")
        found.append(_per_record(taken, done, steps, count))
        told[f"one partition, {size} bytes, one thread"] = f"{count / done.wall_s:,.0f} records/s"
    small, large = found
    kib = (LARGE - SMALL) / 1024
    return {name: _line(small[name], (large[name] - small[name]) / kib) for name in small}, told


def worked(here: Sandbox, topic: str, count: int, group: str) -> Worked:
    """All of partition 0 in transactions of 40,000 records."""
    output, group = here.topic(), f"{topic}.{group}"
    job = Job({}, TransactionSettings(here.connection, group, _TIMEOUT_S), Limits())
    targets, at, transactions = Targets(output, output, 0, 0), 0, 0
    turns = Turns(PRODUCING)
    collect, deadline = gc.get_threshold(), Deadline(2 * _TIMEOUT_S)
    gc.set_threshold(_GC_AFTER)  # as a holder does
    tail = Tail(here.connection, group, topic, 0, 0, _DIRECT.read_ahead_bytes)
    began, broker, thread, process = time.monotonic(), here.broker_cpu_s(), time.thread_time(), time.process_time()
    try:
        while at < count:
            deadline.check(f"transactions over {topic}")
            first = tail.take(CHUNK, _DIRECT.transaction_bytes, 0.05)
            if first is None:
                continue
            stretch = Stretch(tail, first, _MOST, _DIRECT.transaction_bytes, turns)
            offered = OffsetRange(topic, 0, at, first.until)
            outcome = attempt(Offer(offered, targets, at == 0, None, stretch.reached), stretch, job)
            if outcome.status is not Status.COMMITTED:
                raise Refused(f"a measured transaction ended {outcome.status.value}: {outcome.detail}")
            at, transactions = outcome.until, transactions + 1
        thread, process = time.thread_time() - thread, time.process_time() - process
        wall, broker = time.monotonic() - began, here.broker_cpu_s() - broker
    finally:
        tail.close()
        gc.set_threshold(*collect)
    return Worked(thread, max(0.0, process - thread), broker, wall, transactions)


def _per_record(taken: Read, done: Worked, steps: Mapping[str, StepCost], count: int) -> dict[str, float]:
    """In microseconds."""
    fixed = {
        name: 1e-3 * done.transactions * sum(getattr(step, name) for step in steps.values())
        for name in ("python_ms", "native_ms", "broker_ms")
    }
    all_of_it = {
        "take": taken.take_s,
        "fetch": taken.fetch_s,
        "broker_fetch": taken.broker_s,
        "produce": done.python_s - fixed["python_ms"] - taken.take_s,
        "send": done.native_s - fixed["native_ms"] - taken.fetch_s,
        "broker_append": done.broker_s - fixed["broker_ms"] - taken.broker_s,
    }
    return {name: 1e6 * max(0.0, value) / count for name, value in all_of_it.items()}


def _line(at_small_us: float, us_per_kib: float) -> Line:
    slope = max(0.0, us_per_kib)
    return Line(at_small_us - slope * SMALL / 1024, slope)
