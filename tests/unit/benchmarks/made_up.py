"""Made-up single numbers for tests of the simulator."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from scale.numbers import (  # noqa: E402 - the benchmarks are programs, no package
    STEPS,
    Connector,
    Idle,
    Line,
    Logs,
    Memory,
    Numbers,
    Sockets,
    StepCost,
)

FREE = Line(0.0, 0.0)
NOTHING = StepCost(0.0, 0.0, 0.0, 0.0, 0.0)
STEP = StepCost(wall_ms=2.0, python_ms=0.2, native_ms=0.1, broker_ms=0.2, trips=2.0)
NUMBERS = Numbers(
    steps=dict.fromkeys(STEPS, STEP),
    tail_open=STEP,
    tail_close=STEP,
    idle=Idle(20.0, 40.0),
    survey=STEP,
    survey_partition=StepCost(0.02, 0.01, 0.005, 0.005, 0.0),
    take=Line(0.5, 0.1),
    produce=Line(2.0, 0.5),
    fetch=Line(0.3, 0.2),
    send=Line(0.5, 0.3),
    broker_fetch=Line(0.1, 0.1),
    broker_append=Line(0.2, 0.2),
    change_us=0.0,
    coordinator_us=100.0,
    connection_us=25.0,
    native_us_per_broker=50.0,
    broker_us_per_broker=50.0,
    native_us_per_partition=0.1,
    broker_us_per_partition=0.1,
    flush_mib_per_s=400.0,
    speed=500_000.0,
    start_s=1.0,
    spark_start_s=3.0,
    requests={"Metadata": 4.0, "EndTxn": 1.0},
    tail=Sockets(2.0, 1.0),
    transaction=Sockets(4.0, 2.0),
    logs=Logs(600.0, 300.0, 78.0, 1.0, 70.0),
    memory=Memory(60.0, 1.0, 6.0),
    connector=Connector(0.3, 8.0, 5.0),
    conditions={},
)
WAITING = replace(
    NUMBERS,
    steps=dict.fromkeys(STEPS, StepCost(2.0, 0.0, 0.0, 0.0, 0.0)),
    **dict.fromkeys(("tail_open", "tail_close", "survey", "survey_partition"), NOTHING),
    idle=Idle(0.0, 0.0),
    coordinator_us=0.0,
    native_us_per_broker=0.0,
    broker_us_per_broker=0.0,
    native_us_per_partition=0.0,
    broker_us_per_partition=0.0,
    flush_mib_per_s=1e9,
    **dict.fromkeys(("take", "produce", "fetch", "send", "broker_fetch", "broker_append"), FREE),
)
"""No CPU at all: nine steps of 2 ms."""
