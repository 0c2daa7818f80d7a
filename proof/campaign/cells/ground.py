"""The ground shakes: networks that fall apart, a disk that fills up."""

from __future__ import annotations

from collections.abc import Callable

from proof.campaign.cell import Cell, Need
from proof.campaign.cells.broker import in_transaction, moved, running, whole
from proof.campaign.cluster import CLIENTS
from proof.campaign.effects import LEADERS_MOVED, OPEN
from proof.campaign.journals import is_commit
from proof.campaign.stage import CellEnvironment

_CUT_S = 15.0
_LATE_S = 3.0
HELD_UP = "commits_held_up"
"""What fires: a cut during which nothing was committed in the partition that it was made for."""


def cut_from_clients(stage: CellEnvironment) -> None:
    """The transactions' coordinator is alive for its peers, and out of reach for every client."""
    victim = stage.leader("transactions")
    _cut(stage, lambda: stage.sandbox.cut(victim, CLIENTS))


def cut_from_peers(stage: CellEnvironment) -> None:
    """The leader of the output reaches its clients but no other broker: it must not go on as the minority."""
    _alone(stage, "output")


def cut_coordinator(stage: CellEnvironment) -> None:
    """The group's coordinator, alone, tells its clients of a position that others have moved on since."""
    _alone(stage, "group")


def cut_everything(stage: CellEnvironment) -> None:
    """No client reaches any broker."""
    _cut(stage, lambda: max(stage.sandbox.cut(broker, CLIENTS) for broker in stage.sandbox.brokers))


def _alone(stage: CellEnvironment, role: str) -> None:
    victim = stage.leader(role)
    others = [one for one in stage.sandbox.brokers if one != victim]
    _cut(stage, lambda: stage.sandbox.cut(victim, *others), lambda: moved(stage, role, victim))


def _cut(stage: CellEnvironment, cut: Callable[[], float], effect: Callable[[], None] | None = None) -> None:
    """
    Cut under an open transaction, heal, go on.

    Without an ``effect`` of its own the cut shows in the partition: nothing was committed there while it lasted.
    """
    with stage.feeding():
        at = in_transaction(stage, running(stage), cut)
        stage.fire("cuts")
        stage.pause(_CUT_S)
        healed = stage.sandbox.heal()
        if effect is not None:
            effect()
        else:
            # What was sent before the cut may be answered a moment later.
            stage.journals.look()
            mine = (e for e in stage.journals.entries if is_commit(e) and e.fields["partition"] == stage.partition)
            stage.fire(HELD_UP, int(not any(at + _LATE_S < e.at < healed for e in mine)))
        stage.recovered(healed, [stage.partition])
        whole(stage)
        stage.await_commits(10)


def disk_full(stage: CellEnvironment) -> None:
    """A broker's disk has no room left: it leaves, the other two go on, and it comes back once there is room."""
    with stage.feeding():
        running(stage)
        victim = stage.sandbox.disk_broker
        filled = stage.sandbox.fill(victim)
        stage.until(lambda: victim in stage.sandbox.down(), f"broker {victim} giving up on its full disk", 60.0)
        stage.fire("full_disks")
        stage.recovered(filled, [stage.partition])
        stage.await_commits(20)
        whole(stage)
        stage.await_commits(10)


def _cell(name: str, target: str, play: Callable[[CellEnvironment], None], effect: str, *marks: str) -> Cell:
    return Cell(
        name=name,
        row="F19",
        fault=f"network cut for {_CUT_S:g} s",
        target=target,
        moment="under load",
        play=play,
        needs=frozenset({Need.SANDBOX, Need.THREE, Need.NETWORKS}),
        needed={"cuts": 1, OPEN: 1, effect: 1},
        bound_s=20.0,
        limit_s=180.0,
        marks=frozenset(marks),
    )


CELLS = (
    _cell("F19-clients-coordinator", "clients and the transactions' coordinator", cut_from_clients, HELD_UP),
    _cell("F19-leader-peers", "the output's leader and the other brokers", cut_from_peers, LEADERS_MOVED, "prove"),
    _cell("F19-group-peers", "the group's coordinator and the other brokers", cut_coordinator, LEADERS_MOVED, "prove"),
    _cell("F19-clients-brokers", "clients and all brokers", cut_everything, HELD_UP),
    Cell(
        name="F21-disk-full",
        row="F21",
        fault="no room on one broker's disk",
        target="broker",
        moment="under load",
        play=disk_full,
        needs=frozenset({Need.SANDBOX, Need.THREE, Need.DISK}),
        needed={"full_disks": 1},
        bound_s=30.0,
        limit_s=180.0,
    ),
)
