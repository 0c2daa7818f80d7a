"""The ground shakes: networks that fall apart, a disk that fills up."""

from __future__ import annotations

from collections.abc import Callable

from proof.campaign.cell import Cell, Need
from proof.campaign.cells.broker import running, whole
from proof.campaign.cluster import CLIENTS
from proof.campaign.stage import Stage

_CUT_S = 15.0


def cut_from_clients(stage: Stage) -> None:
    """The transactions' coordinator is alive for its peers, and out of reach for every client."""
    _cut(stage, lambda: stage.sandbox.cut(stage.leader("transactions"), CLIENTS))


def cut_from_peers(stage: Stage) -> None:
    """The leader of the output reaches its clients but no other broker: it must not go on as the minority."""
    _cut(stage, lambda: _alone(stage, "output"))


def cut_coordinator(stage: Stage) -> None:
    """The group's coordinator, alone, tells its clients of a position that others have moved on since."""
    _cut(stage, lambda: _alone(stage, "group"))


def cut_everything(stage: Stage) -> None:
    """No client reaches any broker."""

    def cut() -> None:
        for broker in stage.sandbox.brokers:
            stage.sandbox.cut(broker, CLIENTS)

    _cut(stage, cut)


def _alone(stage: Stage, role: str) -> None:
    victim = stage.leader(role)
    stage.sandbox.cut(victim, *(one for one in stage.sandbox.brokers if one != victim))


def _cut(stage: Stage, cut: Callable[[], object]) -> None:
    with stage.feeding():
        running(stage)
        cut()
        stage.fire("cuts")
        stage.pause(_CUT_S)
        healed = stage.sandbox.heal()
        stage.recovered(healed, [stage.partition])
        whole(stage)
        stage.await_commits(10)


def disk_full(stage: Stage) -> None:
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


def _cell(name: str, target: str, play: Callable[[Stage], None], *marks: str) -> Cell:
    return Cell(
        name=name,
        row="F19",
        fault=f"network cut for {_CUT_S:g} s",
        target=target,
        moment="under load",
        play=play,
        needs=frozenset({Need.SANDBOX, Need.THREE, Need.NETWORKS}),
        needed={"cuts": 1},
        bound_s=20.0,
        limit_s=180.0,
        marks=frozenset(marks),
    )


CELLS = (
    _cell("F19-clients-coordinator", "clients and the transactions' coordinator", cut_from_clients),
    _cell("F19-leader-peers", "the output's leader and the other brokers", cut_from_peers, "prove"),
    _cell("F19-group-peers", "the group's coordinator and the other brokers", cut_coordinator, "prove"),
    _cell("F19-clients-brokers", "clients and all brokers", cut_everything),
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
