"""Broker failures: crashes, hangs, restarts, network partitions, a full disk."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from functools import partial

import psutil

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, KafkaFailure
from brew.kafka import cluster_admin
from brew.kafka.cluster_admin import reassign
from proof.campaign.cell import CellTable, Need
from proof.campaign.cluster import CLIENTS
from proof.campaign.effects import LEADERS_MOVED, OPEN, caught_open, stopped
from proof.campaign.journals import is_commit
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment, StalledError

_THREE = frozenset({Need.SANDBOX, Need.THREE})
CELLS = CellTable(needs=_THREE, limit_s=240.0)
_WHOLE_S, _PAUSE_S, _CUT_S, _ASK_S, _STORM_S = 60.0, 20.0, 15.0, 20.0, 60.0
_LATE_S = 3.0  # requests sent before a fault may be answered shortly after it
HELD_UP = "commits_held_up"
"""Event: a cut during which nothing was committed in the partition that it targeted."""


def running(stage: CellEnvironment) -> contextlib.AbstractContextManager[Program]:
    """Within the block, a writer processes orders, some of them in aborted transactions."""
    return stage.at_work("--max-records-per-transaction", "100", feed=300, orders=2000, commits=10)


def in_transaction(stage: CellEnvironment, writer: Program, inject: Callable[[], float]) -> float:
    """Inject a fault while the brokers hold a transaction of the writer open; the writer is stopped until then."""
    process = psutil.Process(writer.pid)
    caught_open(stage, [process])
    with stopped([process]):
        return inject()


def moved(stage: CellEnvironment, role: str, victim: int, seconds: float = _WHOLE_S) -> None:
    """Wait until ``role`` has moved to another broker for this stage's partition."""

    def elsewhere() -> bool:
        with contextlib.suppress(KafkaFailure, DeadlineExceeded):
            return stage.leader(role) != victim
        return False

    stage.until(elsewhere, f"a move of the {role} from broker {victim} to another", seconds)
    stage.fire(LEADERS_MOVED)


def whole(stage: CellEnvironment) -> None:
    """Wait until all brokers are back and all replicas in sync."""
    stage.cluster.restore(Deadline(_WHOLE_S), stage.names.topics())


def kill_leader(role: str, stage: CellEnvironment) -> None:
    """SIGKILL to the broker with ``role`` for one partition; commits there continue, then the broker comes back."""
    with running(stage) as writer:
        for _ in range(stage.times):
            victim = stage.leader(role)
            killed = in_transaction(stage, writer, partial(stage.sandbox.kill, victim))
            stage.fire("broker_kills")
            stage.recovered(killed, [stage.partition])
            moved(stage, role, victim)
            whole(stage)
            stage.await_commits(10)


def pause_leader(role: str, stage: CellEnvironment) -> None:
    """SIGSTOP for 20 s to the broker with ``role``; after SIGCONT it must not disturb what others have continued."""
    with running(stage) as writer:
        victim = stage.leader(role)
        paused = in_transaction(stage, writer, partial(stage.sandbox.pause, victim))
        stage.fire("broker_pauses")
        stage.pause(_PAUSE_S)
        healed = stage.sandbox.resume(victim)
        moved(stage, role, victim)
        stage.recovered(healed, [stage.partition])
        before = [e.at for e in stage.journals.entries if paused < e.at < healed and e.step == "commit"]
        stage.notes.append(f"{len(before)} commit steps during the pause of broker {victim}")
        whole(stage)


for _role, _target in {
    "input": "broker leading the input",
    "output": "broker leading the output",
    "transactions": "transaction coordinator",
    "group": "group coordinator",
}.items():
    _marks = "prove" if _role in {"output", "transactions"} else ""
    _killed, _paused = ("broker_kills", LEADERS_MOVED, OPEN), ("broker_pauses", LEADERS_MOVED, OPEN)
    _cells = partial(CELLS, bound_s=15.0, limit_s=900.0)
    _cells(f"F14-{_role}-leader", "SIGKILL", _target, _role, needed=_killed, marks=_marks)(kill_leader)
    _cells(f"F15-{_role}-leader", "SIGSTOP 20 s", _target, _role, needed=_paused)(pause_leader)


@CELLS(
    *("F16-all-killed", "SIGKILL to all three at once", "brokers", 3, 1.0),
    bound_s=60.0,
    needed={"broker_kills": 3, OPEN: 1},
)
def killed_at_once(count: int, seconds: float, stage: CellEnvironment) -> None:
    """Several brokers die at the same moment: nothing may be acknowledged until they are back; then all continues."""
    with running(stage) as writer:
        victims = stage.random.sample(stage.sandbox.brokers, count)
        killed = in_transaction(stage, writer, lambda: stage.sandbox.kill(*victims))
        stage.fire("broker_kills", count)
        stage.pause(seconds)
        false = [e for e in stage.journals.look() if is_commit(e) and e.at > killed + _LATE_S]
        if false:
            raise StalledError(f"{len(false)} transactions were acknowledged with {count} of three brokers dead")
        stage.sandbox.restart(*victims)
        stage.recovered(time.time())
        whole(stage)


@CELLS("F17-rolling-clean", "rolling restart", "brokers", False, bound_s=15.0, needed={"broker_restarts": 3})
@CELLS("F17-rolling-killed", "rolling SIGKILL", "brokers", True, bound_s=15.0, needed={"broker_kills": 3})
def rolling(hard: bool, stage: CellEnvironment) -> None:
    """Brokers are restarted one after another, cleanly or by SIGKILL; commits continue in between."""
    with running(stage):
        for broker in stage.sandbox.brokers:
            began = time.time()
            if hard:
                stage.sandbox.kill(broker)
            stage.sandbox.restart(broker)
            stage.fire("broker_kills" if hard else "broker_restarts")
            whole(stage)
            stage.recovered(began, [stage.partition])
            stage.recovered(time.time(), [stage.partition])


CELLS(
    *("F22-without-quorum", "two of three brokers down", "brokers", 2, 12.0),
    bound_s=30.0,
    needed={"broker_kills": 2, OPEN: 1},
)(killed_at_once)


@CELLS(
    *("F18-storm", "replicas and leaders move every 2 s", "brokers"),
    bound_s=15.0,
    needed={"storms": 15, LEADERS_MOVED: 15},
)
def storm(stage: CellEnvironment) -> None:
    """Every two seconds, replicas are reassigned and a preferred leader is elected: leaders move all the time."""
    with running(stage):
        end = time.monotonic() + _STORM_S
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
    """Return the leader of each partition; partitions without a known leader are left out."""
    known: dict[tuple[str, int], int] = {}
    for topic in stage.names.topics():
        with contextlib.suppress(KafkaFailure, DeadlineExceeded):
            leaders = cluster_admin.leaders(stage.cluster.admin, topic, Deadline(_ASK_S))
            known |= {(topic, partition): leader for partition, leader in leaders.items()}
    return known


def move_leaders(stage: CellEnvironment, topic: str, turn: int) -> None:
    """Rotate the replicas of every partition of a topic, and elect the new first ones as leaders."""
    brokers, deadline = stage.sandbox.brokers, Deadline(_ASK_S)
    starts = {p: (p + turn) % len(brokers) for p in range(stage.cell.partitions)}
    rotated = {p: [*brokers[start:], *brokers[:start]] for p, start in starts.items()}
    with contextlib.suppress(KafkaFailure, DeadlineExceeded):  # the last reassignment may still be in progress
        reassign(stage.cluster.connection, topic, rotated, deadline)


def cut_off(role: str, peers: bool, stage: CellEnvironment) -> None:
    """
    The network is cut during an open transaction, healed after a while, and commits continue.

    Either no client reaches the broker with ``role`` (without one: any broker), and nothing may be committed. Or the
    broker reaches none of its ``peers``, and must not continue as the minority, with a position that others advance.
    """
    brokers = stage.sandbox.brokers
    victims = [stage.leader(role)] if role else brokers
    others: list[int | str] = [broker for broker in brokers if broker not in victims] if peers else [CLIENTS]
    with running(stage) as writer:
        began = in_transaction(stage, writer, lambda: max(stage.sandbox.cut(victim, *others) for victim in victims))
        stage.fire("cuts")
        stage.pause(_CUT_S)
        healed = stage.sandbox.heal()
        if peers:
            moved(stage, role, victims[0])
        else:
            mine = (e for e in stage.journals.look() if is_commit(e) and e.fields["partition"] == stage.partition)
            stage.fire(HELD_UP, int(not any(began + _LATE_S < e.at < healed for e in mine)))
        stage.recovered(healed, [stage.partition])
        whole(stage)
        stage.await_commits(10)


for _name, _target, _role, _peers in (
    ("clients-coordinator", "clients and the transactions' coordinator", "transactions", False),
    ("clients-brokers", "clients and all brokers", "", False),
    ("leader-peers", "the output's leader and the other brokers", "output", True),
    ("group-peers", "the group's coordinator and the other brokers", "group", True),
):
    _seen = ("cuts", OPEN, LEADERS_MOVED if _peers else HELD_UP)
    _cells = partial(CELLS, needs=_THREE | {Need.NETWORKS}, bound_s=20.0, limit_s=180.0)
    _fault, _marks = f"network cut for {_CUT_S:g} s", "prove" if _peers else ""
    _cells(f"F19-{_name}", _fault, _target, _role, _peers, needed=_seen, marks=_marks)(cut_off)


@CELLS(
    *("F21-disk-full", "no room on one broker's disk", "broker"),
    needs=_THREE | {Need.DISK},
    needed=("full_disks",),
    bound_s=30.0,
    limit_s=180.0,
)
def disk_full(stage: CellEnvironment) -> None:
    """A broker's disk is full: it leaves, the other two continue, and it comes back once there is space."""
    with running(stage):
        victim = stage.sandbox.disk_broker
        filled = stage.sandbox.fill(victim)
        stage.until(lambda: victim in stage.sandbox.down(), f"the end of broker {victim}, whose disk is full", 60.0)
        stage.fire("full_disks")
        stage.recovered(filled, [stage.partition])
        stage.await_commits(20)
        whole(stage)
        stage.await_commits(10)
