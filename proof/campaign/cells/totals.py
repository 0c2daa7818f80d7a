"""Totals: they die around their changelog's commit, and their state is wiped."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterator

from brew.names import CrashPoint
from proof.campaign.cell import CellTable
from proof.campaign.cells.stores import (
    Consumer,
    compare,
    ended,
    forgetting,
    output_sums,
    produce_orders,
    require_progress,
    totals,
)
from proof.campaign.stage import CellEnvironment

CELLS = CellTable(path="downstream", bound_s=20.0, limit_s=900.0)

BEFORE = (CrashPoint.MID_PRODUCE, CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS)
AFTER = (CrashPoint.COMMIT_IN_FLIGHT, CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT)
_ORDERS = 200
_ROUNDS = 3


@contextlib.contextmanager
def _counting(stage: CellEnvironment, bug: str = "") -> Iterator[Consumer]:
    output = f"{stage.names.stem}.totals.v1"
    group = f"{stage.names.stem}.totals"
    words = ("totals", "--output", output, "--state-dir", str(stage.folder / "state"), "--max-offsets", "40")
    made = (output, f"{group}.deltas", f"{group}.changelog")
    with forgetting(Consumer(stage, words, made, bug)) as consumer:
        yield consumer


def _check(consumer: Consumer) -> None:
    """Drain and compare: its own recomputation, and the campaign's sums of the results."""
    stage = consumer.stage
    consumer.drain()
    for drift in consumer.checked("--recompute")["first"]:
        name = "state-drift" if drift["where"].startswith("state") else "changelog-drift"
        stage.findings.append({"name": name, "evidence": f"{drift}"})
    wanted, results = output_sums(stage), totals(stage, consumer.made[0])
    compare(stage, "changelog-drift", "orders and cents in the results", results, (wanted.orders, wanted.cents))
    stage.notes.append(
        f"{results[0]} of {wanted.orders} orders and {results[1]} of {wanted.cents} cents in the results"
    )


@CELLS(
    *("F33-before-commit", "SIGKILL", "totals", BEFORE),
    moment="before the changelog's commit",
    marks="prove",
    needed={"kills": 3},
)
@CELLS(*("F33-after-commit", "SIGKILL", "totals", AFTER), moment="behind the changelog's commit", needed={"kills": 3})
def killed(points: tuple[CrashPoint, ...], stage: CellEnvironment) -> None:
    """It dies at one of the points, again and again; each next start wipes the state and restores it."""
    with _counting(stage) as consumer:
        for number in range(max(_ROUNDS, stage.kills)):
            produce_orders(stage, _ORDERS)
            _die(consumer, points[number % len(points)], "deltas")
        _check(consumer)


def _die(consumer: Consumer, point: CrashPoint, reading: str) -> None:
    """Die, and have the next one count what is there; the seconds from the death to its end."""
    stage = consumer.stage
    ended(stage, died := consumer.start("--crash-point", point, "--crash-in", reading), -signal.SIGKILL)
    stage.fire("kills")
    assert died.ended_at is not None
    after = consumer.drain()
    assert after.ended_at is not None
    stage.recovery_s.append(after.ended_at - died.ended_at)


@CELLS("F33-state", "local state wiped", "totals", moment="between runs", needed={"wipes": 3})
def state_wiped(stage: CellEnvironment) -> None:
    """The directory of the state is gone: everything comes back from the changelog."""
    with _counting(stage) as consumer:
        for _ in range(_ROUNDS):
            produce_orders(stage, _ORDERS)
            consumer.drain()
            shutil.rmtree(stage.folder / "state")
            stage.fire("wipes")
            produce_orders(stage, _ORDERS)
            since = time.time()
            after = consumer.drain()
            assert after.ended_at is not None
            stage.recovery_s.append(after.ended_at - since)
        _check(consumer)


@CELLS("F33-offsets-control", "SIGKILL", "totals (control)", moment="commit-in-flight", needed={"kills": 1})
def offsets_afterwards(stage: CellEnvironment) -> None:
    """The control: deltas and offsets in two transactions, and a death between them."""
    with _counting(stage, "offsets-afterwards") as consumer, require_progress():
        produce_orders(stage, _ORDERS)
        _die(consumer, CrashPoint.COMMIT_IN_FLIGHT, "orders")
        _check(consumer)
