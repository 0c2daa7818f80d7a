"""Totals: the program dies around the changelog's commit, and its local state is lost."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
from collections.abc import Iterator

from proof.campaign.cells.stores_programs import Consumer, ended, filled, forgetting, no_stall
from proof.campaign.cells.stores_sums import compare, sold, totals
from proof.campaign.stage import Stage
from protocol.names import CrashPoint

BEFORE = (CrashPoint.MID_PRODUCE, CrashPoint.AFTER_FLUSH, CrashPoint.AFTER_SEND_OFFSETS)
AFTER = (CrashPoint.COMMIT_IN_FLIGHT, CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT)
_ORDERS = 200
_ROUNDS = 3


@contextlib.contextmanager
def _counting(stage: Stage, bug: str = "") -> Iterator[Consumer]:
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
    told = consumer.checked("--recompute")
    for one in told["first"]:
        name = "state-drift" if one["where"].startswith("state") else "changelog-drift"
        stage.findings.append({"name": name, "evidence": f"{one}"})
    wanted, found = sold(stage), totals(stage, consumer.made[0])
    compare(stage, "changelog-drift", "orders and cents in the results", found, (wanted.orders, wanted.cents))
    stage.notes.append(f"{found[0]} of {wanted.orders} orders and {found[1]} of {wanted.cents} cents in the results")


def killed(points: tuple[CrashPoint, ...], stage: Stage) -> None:
    """It dies at one of the points, again and again; each next start wipes the state and restores it."""
    with _counting(stage) as consumer:
        for number in range(max(_ROUNDS, stage.kills)):
            filled(stage, _ORDERS)
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


def state_wiped(stage: Stage) -> None:
    """The directory of the state is gone: everything comes back from the changelog."""
    with _counting(stage) as consumer:
        for _ in range(_ROUNDS):
            filled(stage, _ORDERS)
            consumer.drain()
            shutil.rmtree(stage.folder / "state")
            stage.fire("wipes")
            filled(stage, _ORDERS)
            since = time.time()
            after = consumer.drain()
            assert after.ended_at is not None
            stage.recovery_s.append(after.ended_at - since)
        _check(consumer)


def offsets_afterwards(stage: Stage) -> None:
    """The control: deltas and offsets in two transactions, and a death between them."""
    with _counting(stage, "offsets-afterwards") as consumer, no_stall():
        filled(stage, _ORDERS)
        _die(consumer, CrashPoint.COMMIT_IN_FLIGHT, "orders")
        _check(consumer)
