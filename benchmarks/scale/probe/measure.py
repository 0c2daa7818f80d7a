"""All single numbers, one after another: `python -m benchmarks.scale measure`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from statistics import fmean

from machine import machine
from rich.console import Console

from scale.numbers import Numbers, Sockets
from scale.probe.around import surveys, tails
from scale.probe.place import Sandbox, sandbox
from scale.probe.records import lines
from scale.probe.runs import (
    WITH_SPARK,
    WITHOUT_SPARK,
    Standing,
    connector,
    first_commit_s,
    idle,
    memory,
    standing,
)
from scale.probe.single import empty_transactions, flush_mib_per_s, logs, steps, trips
from scale.probe.sockets import connection_us, count, sockets
from scale.probe.speed import speed
from scale.probe.timed import Laps

_WIDE = 1_000


def measure(console: Console, *, quick: bool, also: Callable[[Sandbox, Numbers], None] | None = None) -> Numbers:
    """
    Measure on one broker, then what three of them change; ``also`` gets the one, warm by then.

    Raises:
        BrewError: a broker or a run failed.
    """
    few = 60 if quick else 250
    console.print(f"load {os.getloadavg()[0]:.2f}")
    with sandbox(1) as here:
        one, near = _on_one_broker(console, here, few, quick=quick)
        if also is not None:
            also(here, one)
    with sandbox(3) as here:
        console.print("three brokers: connections, and what each further one adds to a transaction")
        three = count(here)
        far, _, _ = empty_transactions(here, few // 2, few // 2)
        tail, transaction = sockets((int(one.tail.at_one), int(one.transaction.at_one)), three)
    native = max(0.0, _native_s(far) - _native_s(near)) / 2
    fields = {name: getattr(one, name) for name in Numbers.__dataclass_fields__}
    # What further brokers do for a transaction is to be connected to; theirs were not warm, the first one was.
    more = {"native_us_per_broker": 1e6 * native, "broker_us_per_broker": transaction.per_broker * one.connection_us}
    return Numbers(**{**fields, **more, "tail": tail, "transaction": transaction})


def _native_s(laps: Laps) -> float:
    return sum(laps.mean_s(step, lambda lap: lap.native_s) for step in laps.laps)


def _stood(console: Console, here: Sandbox) -> tuple[list[tuple[int, Standing]], dict[str, str]]:
    """Runs that hold 4 and 64 partitions with nothing to do, and what to remember of them."""
    stood = [(partitions, standing(here, partitions)) for partitions in (4, 64)]
    told = {}
    for partitions, one in stood:
        what = f"{one.mib:.0f} MiB, {one.threads} threads, {one.connections} connections"
        console.print(f"  {partitions} partitions held: {what}")
        told[f"standing run over {partitions} partitions"] = what
    return stood, told


def _on_one_broker(console: Console, here: Sandbox, few: int, *, quick: bool) -> tuple[Numbers, Laps]:
    conditions = {**machine(), "command": " ".join(["python -m benchmarks.scale", *sys.argv[1:]])}
    console.print(f"one broker: connections; load {os.getloadavg()[0]:.2f}")
    held, more = count(here)
    fast = [speed()]
    console.print("transactions of one record")
    laps, broker_s, coordinator_s = empty_transactions(here, few, 8 * few)
    console.print(f"  {1e6 * coordinator_s:.0f} us of the group coordinator each; the same into {_WIDE:,} partitions")
    wide, wide_broker_s, _ = empty_transactions(here, few // 2, few // 4, output_partitions=_WIDE)
    in_a_row, requests = trips(here)
    whole_s = sum(laps.wall_s(step) for step in laps.laps)
    console.print(f"  {1000 * whole_s:.1f} ms each; records")
    each = steps(laps, broker_s, in_a_row)
    cpu, change_us, told = lines(here, (8_000, 2_000) if quick else (60_000, 15_000), each)
    conditions |= told
    fast.append(speed())
    console.print("readers and surveys")
    tail_open, tail_close = tails(here, few // 2)
    survey, survey_partition = surveys(here, few // 4)
    console.print("bytes in Kafka's own logs, flush bandwidth")
    written, bandwidth = logs(here, few), flush_mib_per_s(here)
    console.print("programs: start-up, memory, the connector")
    stood, told = _stood(console, here)
    conditions |= told
    start_s = first_commit_s(here, WITHOUT_SPARK, 1 if quick else 3)
    spark_s = first_commit_s(here, WITH_SPARK, 1)
    fast.append(speed())
    conditions["load at the end of single numbers"] = f"{os.getloadavg()[0]:.2f}"
    numbers = Numbers(
        steps=each,
        tail_open=tail_open,
        tail_close=tail_close,
        idle=idle(stood[0], stood[1]),
        survey=survey,
        survey_partition=survey_partition,
        **cpu,
        change_us=change_us,
        coordinator_us=1e6 * coordinator_s,
        native_us_per_broker=0.0,
        broker_us_per_broker=0.0,
        connection_us=connection_us(here, 4 * few),
        native_us_per_partition=1e6 * max(0.0, _native_s(wide) - _native_s(laps)) / (_WIDE - 1),
        broker_us_per_partition=1e6 * max(0.0, wide_broker_s - broker_s) / (_WIDE - 1),
        flush_mib_per_s=bandwidth,
        speed=fmean(fast),
        start_s=max(0.0, start_s - whole_s),
        spark_start_s=max(0.0, spark_s - start_s),
        requests=requests,
        tail=Sockets(held, 0.0),
        transaction=Sockets(more, 0.0),
        logs=written,
        memory=memory(stood[0], stood[1]),
        connector=connector(here, 100_000 if quick else 200_000, whole_s),
        conditions=conditions,
    )
    return numbers, laps
