"""All cells of stores, and those of the totals."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import time
from collections.abc import Callable, Iterator

from brew.names import CrashPoint
from proof.campaign.cell import Cell
from proof.campaign.cells import stores_ledger as ledger
from proof.campaign.cells import stores_ledger as members
from proof.campaign.cells import stores_receive as receive
from proof.campaign.cells.stores_programs import (
    Consumer,
    compare,
    ended,
    forgetting,
    output_sums,
    produce_orders,
    require_progress,
    totals,
)
from proof.campaign.result import VIOLATED
from proof.campaign.stage import CellEnvironment

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
    told = consumer.checked("--recompute")
    for one in told["first"]:
        name = "state-drift" if one["where"].startswith("state") else "changelog-drift"
        stage.findings.append({"name": name, "evidence": f"{one}"})
    wanted, found = output_sums(stage), totals(stage, consumer.made[0])
    compare(stage, "changelog-drift", "orders and cents in the results", found, (wanted.orders, wanted.cents))
    stage.notes.append(f"{found[0]} of {wanted.orders} orders and {found[1]} of {wanted.cents} cents in the results")


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


def offsets_afterwards(stage: CellEnvironment) -> None:
    """The control: deltas and offsets in two transactions, and a death between them."""
    with _counting(stage, "offsets-afterwards") as consumer, require_progress():
        produce_orders(stage, _ORDERS)
        _die(consumer, CrashPoint.COMMIT_IN_FLIGHT, "orders")
        _check(consumer)


_RECEIVER = "receiver"
_AROUND, _INSIDE, _BETWEEN = "around the commit", "between INSERT and COMMIT", "between batches"
_BACK_S, _RESTORED_S = 10.0, 20.0


def _cell(
    name: str,
    fault: str,
    moment: str,
    play: Callable[[CellEnvironment], None],
    *marks: str,
    target: str = "",
    bound_s: float | None = None,
    **needed: int,
) -> Cell:
    """A cell of these rows; one whose name ends with `control` has a bug, or a weaker promise, that has to be seen."""
    row, control = name.partition("-")[0], name.endswith("-control")
    targets = {"F29": "ledger", "F30": "ledger", "F31": "ledger", "F32": _RECEIVER, "F33": "totals"}
    return Cell(
        name=name,
        row=row,
        fault=fault,
        target=(target or targets[row]) + (" (control)" if control else ""),
        moment=moment,
        play=play,
        path="downstream",
        needed=needed,
        bound_s=None if control else bound_s,
        limit_s=900.0,
        expected=VIOLATED if control else "proven",
        marks=frozenset(marks),
    )


CELLS = (
    _cell("F29-consumer", "SIGKILL", _AROUND, ledger.consumer_killed, "prove", bound_s=_BACK_S, kills=0),
    _cell("F29-consumer-control", "SIGKILL", _AROUND, ledger.offsets_afterwards, kills=0),
    _cell("F29-backend", "SIGKILL of its backend", _INSIDE, ledger.backend_killed, bound_s=_BACK_S, database_kills=2),
    _cell("F29-postmaster", "SIGKILL of the server", _INSIDE, ledger.server_killed, bound_s=_BACK_S, database_kills=2),
    _cell("F29-reply", "the COMMIT's reply lost", _AROUND, ledger.reply_lost, bound_s=_BACK_S, lost_replies=3),
    _cell("F29-receiver", "SIGKILL", _AROUND, receive.receiver_killed, target=_RECEIVER, bound_s=_BACK_S, kills=0),
    _cell("F29-receiver-control", "SIGKILL", _AROUND, receive.claims_afterwards, target=_RECEIVER, kills=0),
    _cell(
        "F30-row-locked",
        "SIGSTOP until another took over, then SIGCONT or SIGKILL",
        "rows locked",
        members.row_locked,
        bound_s=members.LOCK_BOUND_S,
        pauses=2,
        kills=1,
        overtaken=1,
    ),
    _cell("F30-row-locked-control", "SIGSTOP, another goes on", "behind the commit", members.row_unguarded, pauses=1),
    _cell(
        "F30-rebalance",
        "members join, leave, hang and die",
        "under load",
        members.rebalance,
        bound_s=members.REBALANCED_S,
        joins=3,
        kills=1,
        pauses=1,
    ),
    _cell("F31-restore", "database set back", "Kafka ahead", members.restored, restores=1, alarms=1),
    _cell("F31-restore-control", "database set back", "Kafka ahead", members.larger_of_both, restores=1),
    _cell("F32-consumer", "SIGKILL", "around the script", receive.script_killed, "prove", kills=0),
    _cell("F32-redis", "SIGKILL of Redis", "before the script", receive.redis_killed, store_kills=2),
    _cell("F32-flushall", "FLUSHALL", _BETWEEN, receive.flushed, flushes=1, losses_seen=1),
    _cell("F32-failover", "an empty replica takes over", _BETWEEN, receive.failed_over, fail_overs=1, losses_seen=1),
    _cell("F32-forgetting", "eviction, short claims", "start", receive.forgetful, refusals=2, redeliveries=1),
    _cell("F32-expiry-control", "claims run out", "before a redelivery", receive.run_out, expiries=1),
    _cell("F32-beside-control", "SIGKILL", "between effect and `done`", receive.beside_the_effect, kills=0),
    _cell(
        "F33-before-commit",
        "SIGKILL",
        "before the changelog's commit",
        functools.partial(killed, BEFORE),
        "prove",
        bound_s=_RESTORED_S,
        kills=3,
    ),
    _cell(
        "F33-after-commit",
        "SIGKILL",
        "behind the changelog's commit",
        functools.partial(killed, AFTER),
        bound_s=_RESTORED_S,
        kills=3,
    ),
    _cell("F33-state", "local state wiped", "between runs", state_wiped, bound_s=_RESTORED_S, wipes=3),
    _cell("F33-offsets-control", "SIGKILL", "commit-in-flight", offsets_afterwards, kills=1),
)
