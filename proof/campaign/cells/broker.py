"""Brokers die, hang, come back, all of them or the one that matters."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, KafkaFailure
from brew.kafka import cluster_admin
from brew.kafka.reassignment import reassign
from proof.campaign.cell import Cell, Need
from proof.campaign.effects import LEADERS_MOVED, OPEN, caught_open, signal_all
from proof.campaign.journals import is_commit
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment, StalledError

ROLES = ("input", "output", "transactions", "group")
_NEEDS = frozenset({Need.SANDBOX, Need.THREE})
_WHOLE_S = 60.0
_PAUSE_S = 20.0
_LATE_S = 3.0
_ASK_S = 20.0


def running(stage: CellEnvironment) -> Program:
    """A writer in the middle of its work, orders transactional and aborted behind it."""
    stage.orders(2000, "--transactional")
    writer = stage.writer("--follow", "--max-records-per-transaction", "100")
    stage.await_commits(10)
    return writer


def in_transaction(stage: CellEnvironment, writer: Program, blow: Callable[[], float]) -> float:
    """Strike while the brokers hold a transaction of the writer open; it stands still until the blow has fallen."""
    process = psutil.Process(writer.pid)
    caught_open(stage, [process])
    try:
        return blow()
    finally:
        signal_all([process], stop=False)


def moved(stage: CellEnvironment, role: str, victim: int) -> None:
    """Wait until another broker has ``role`` for this stage's partition."""

    def elsewhere() -> bool:
        with contextlib.suppress(KafkaFailure, DeadlineExceeded):
            return stage.leader(role) != victim
        return False

    stage.until(elsewhere, f"another broker than {victim} for the {role}", _WHOLE_S)
    stage.fire(LEADERS_MOVED)


def whole(stage: CellEnvironment) -> None:
    """All brokers back, all replicas in sync."""
    stage.cluster.make_whole(Deadline(_WHOLE_S), stage.names.topics())


def kill_leader(role: str, stage: CellEnvironment) -> None:
    """SIGKILL to the broker that holds ``role`` for one partition; commits there go on, then the broker comes back."""
    with stage.feeding():
        writer = running(stage)
        for _ in range(stage.times):
            victim = stage.leader(role)
            at = in_transaction(stage, writer, functools.partial(stage.sandbox.kill, victim))
            stage.fire("broker_kills")
            stage.recovered(at, [stage.partition])
            moved(stage, role, victim)
            whole(stage)
            stage.await_commits(10)


def pause_leader(role: str, stage: CellEnvironment) -> None:
    """SIGSTOP for 20 s to the broker that holds ``role``; after SIGCONT it must not disturb what went on elsewhere."""
    with stage.feeding():
        writer = running(stage)
        victim = stage.leader(role)
        paused = in_transaction(stage, writer, functools.partial(stage.sandbox.pause, victim))
        stage.fire("broker_pauses")
        stage.pause(_PAUSE_S)
        healed = stage.sandbox.resume(victim)
        moved(stage, role, victim)
        stage.recovered(healed, [stage.partition])
        before = [e.at for e in stage.journals.entries if paused < e.at < healed and e.step == "commit"]
        stage.notes.append(f"{len(before)} commit steps during the pause of broker {victim}")
        whole(stage)


def kill_all(stage: CellEnvironment) -> None:
    """All brokers die at the same moment; what was acknowledged is in the page cache and comes back."""
    with stage.feeding():
        writer = running(stage)
        in_transaction(stage, writer, lambda: stage.sandbox.kill(*stage.sandbox.brokers))
        stage.fire("broker_kills", len(stage.sandbox.brokers))
        stage.pause(1.0)
        stage.sandbox.restart(*stage.sandbox.brokers)
        stage.recovered(time.time())
        whole(stage)


def rolling(stage: CellEnvironment, *, hard: bool) -> None:
    """One broker after another goes and comes back, cleanly or by SIGKILL; commits continue in between."""
    with stage.feeding():
        running(stage)
        for broker in stage.sandbox.brokers:
            began = time.time()
            if hard:
                stage.sandbox.kill(broker)
            stage.sandbox.restart(broker)
            stage.fire("broker_kills" if hard else "broker_restarts")
            whole(stage)
            stage.recovered(began, [stage.partition])
            stage.recovered(time.time(), [stage.partition])


def without_quorum(stage: CellEnvironment) -> None:
    """Two of three are down: nothing may be acknowledged; then all goes on."""
    with stage.feeding():
        writer = running(stage)
        victims = stage.random.sample(stage.sandbox.brokers, 2)
        at = in_transaction(stage, writer, lambda: stage.sandbox.kill(*victims))
        stage.fire("broker_kills", 2)
        stage.pause(12.0)
        stage.journals.look()
        # What was sent before the kill may be answered a moment later.
        false = [e for e in stage.journals.entries if is_commit(e) and e.at > at + _LATE_S]
        if false:
            raise StalledError(f"{len(false)} transactions were acknowledged with one replica of three alive")
        stage.sandbox.restart(*victims)
        stage.recovered(time.time())
        whole(stage)


def storm(stage: CellEnvironment, *, seconds: float) -> None:
    """Every two seconds other replicas in another order, and an election of the first: leaders move all the time."""
    with stage.feeding():
        running(stage)
        end = time.monotonic() + seconds
        turn, led = 0, _leaders(stage)
        while time.monotonic() < end:
            stage.deadline.check("the storm")
            turn += 1
            for topic in stage.names.topics():
                move_leaders(stage, topic, turn)
            stage.fire("storms")
            stage.pause(2.0)
            now = _leaders(stage)
            stage.fire(LEADERS_MOVED, sum(led[place] != leader for place, leader in now.items() if place in led))
            led |= now
        stage.recovered(time.time(), [stage.partition])
        whole(stage)


def _leaders(stage: CellEnvironment) -> dict[tuple[str, int], int]:
    """Who leads each partition; none where nobody could say it."""
    found: dict[tuple[str, int], int] = {}
    for topic in stage.names.topics():
        with contextlib.suppress(KafkaFailure, DeadlineExceeded):
            leaders = cluster_admin.leaders(stage.cluster.admin, topic, Deadline(_ASK_S))
            found |= {(topic, partition): leader for partition, leader in leaders.items()}
    return found


def move_leaders(stage: CellEnvironment, topic: str, turn: int) -> None:
    """Rotate the replicas of every partition of a topic, and let the new first ones lead."""
    brokers, deadline = stage.sandbox.brokers, Deadline(_ASK_S)
    rotated = {p: _rotated(brokers, p + turn) for p in range(stage.cell.partitions)}
    with contextlib.suppress(KafkaFailure, DeadlineExceeded):  # the last one may still be going on
        reassign(stage.cluster.connection, topic, rotated, deadline)


def _rotated(brokers: Sequence[int], turn: int) -> list[int]:
    by = turn % len(brokers)
    return [*brokers[by:], *brokers[:by]]


def _role_cells(role: str) -> tuple[Cell, Cell]:
    coordinators = {"transactions": "transaction coordinator", "group": "group coordinator"}
    target = coordinators.get(role, f"broker leading the {role}")
    common: dict[str, Any] = {
        "target": target,
        "moment": "under load",
        "needs": _NEEDS,
        "bound_s": 15.0,
        "limit_s": 900.0,
    }
    marks = frozenset({"prove"}) if role in {"output", "transactions"} else frozenset[str]()
    effects = {LEADERS_MOVED: 1, OPEN: 1}
    kill = functools.partial(kill_leader, role)
    pause = functools.partial(pause_leader, role)
    return (
        Cell(
            f"F14-{role}-leader",
            "F14",
            "SIGKILL",
            play=kill,
            needed={"broker_kills": 1, **effects},
            marks=marks,
            **common,
        ),
        Cell(
            f"F15-{role}-leader",
            "F15",
            "SIGSTOP 20 s",
            play=pause,
            needed={"broker_pauses": 1, **effects},
            **common,
        ),
    )


_STORM = {"storms": 15, LEADERS_MOVED: 15}


def _cell(name: str, fault: str, play: Callable[[CellEnvironment], None], bound_s: float, **needed: int) -> Cell:
    row, moment = name.partition("-")[0], "under load"
    return Cell(name, row, fault, "brokers", moment, play, needs=_NEEDS, needed=needed, bound_s=bound_s, limit_s=240.0)


CELLS = (
    *(cell for role in ROLES for cell in _role_cells(role)),
    _cell("F16-all-killed", "SIGKILL to all three at once", kill_all, 60.0, broker_kills=3, **{OPEN: 1}),
    _cell("F17-rolling-clean", "rolling restart", functools.partial(rolling, hard=False), 15.0, broker_restarts=3),
    _cell("F17-rolling-killed", "rolling SIGKILL", functools.partial(rolling, hard=True), 15.0, broker_kills=3),
    _cell(
        "F18-storm",
        "replicas and leaders move every 2 s",
        functools.partial(storm, seconds=60.0),
        15.0,
        storms=15,
        **{LEADERS_MOVED: 15},
    ),
    _cell("F22-without-quorum", "two of three brokers down", without_quorum, 30.0, broker_kills=2, **{OPEN: 1}),
)
