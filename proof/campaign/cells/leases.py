"""What only the direct reader has: leases that are lost, holders and drivers that stand still for longer than one."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import psutil

from proof.campaign.cell import Cell, Need
from proof.campaign.effects import OPEN, caught_open, cut, lines, signal_all
from proof.campaign.holders import holders
from proof.campaign.programs import Program
from proof.campaign.stage import CellEnvironment

_LEASE_S = 3.0
_SPARK = ("--master", "local[2]", "--lease", f"{_LEASE_S:g}")
_SLOTS = 2
_START_S = 120.0
_LET_GO_S = 30.0


def _started(stage: CellEnvironment) -> Program:
    stage.orders(2000, "--transactional")
    writer = stage.writer(*_SPARK, "--follow", "--max-records-per-transaction", "200")
    stage.await_commits(4, _START_S * stage.slack)
    return writer


def _workers(stage: CellEnvironment, writer: Program) -> list[psutil.Process]:
    """The holders, all of them, at work; the driver is none."""

    def found() -> list[psutil.Process]:
        return [one for one in holders(writer) if one.pid != writer.pid]

    stage.until(lambda: len(found()) >= _SLOTS, "a holder on each slot", _START_S * stage.slack)
    return found()


def _caught(stage: CellEnvironment, writer: Program) -> tuple[psutil.Process, set[int]] | None:
    """A holder that stands still with a transaction open, and where."""
    holder = stage.random.choice(_workers(stage, writer))
    where = caught_open(stage, [holder])
    if not where:
        stage.doubts.append("no holder was caught with a transaction that the brokers know as open")
        return None
    return holder, where


def holder_frozen(stage: CellEnvironment) -> None:
    """A holder stands still in a transaction for longer than its lease; others work on what it had, and it wakes up."""
    with stage.feeding(600):
        writer = _started(stage)
        for _ in range(stage.times):
            if (caught := _caught(stage, writer)) is None:
                return
            holder, where = caught
            at = time.time()
            try:
                for partition in sorted(where):
                    stage.recovered(at, [partition])
            finally:
                signal_all([holder], stop=False)
            stage.fire("holders_frozen")
            stage.await_commits(8)


def driver_frozen(stage: CellEnvironment) -> None:
    """The driver stands still past all leases: its holders let go of everything by themselves; then it goes on."""
    with stage.feeding(600):
        writer = _started(stage)
        driver = psutil.Process(writer.pid)
        for _ in range(stage.times):
            if not caught_open(stage, [driver], at_work=(workers := _workers(stage, writer))):
                stage.doubts.append("no holder had a transaction open when the driver stood still")
                return
            try:
                _await_release(stage, writer, workers)
                stage.fire("drivers_frozen")
            finally:
                driver.send_signal(signal.SIGCONT)
            stage.recovered(time.time())
            stage.await_commits(8)


def _await_release(stage: CellEnvironment, writer: Program, workers: list[psutil.Process]) -> None:
    """Wait until no holder keeps its line to the driver."""
    stage.until(lambda: not any(lines(writer, one) for one in workers), "holders that let go", _LET_GO_S * stage.slack)


def lease_lost(stage: CellEnvironment) -> None:
    """The line between a holder in a transaction and its driver breaks; its partitions are granted anew."""
    with stage.feeding(600):
        writer = _started(stage)
        for _ in range(stage.times):
            if (caught := _caught(stage, writer)) is None:
                return
            holder, where = caught
            try:
                had = lines(writer, holder)
                for _, descriptor in had:
                    cut(holder, descriptor)
            finally:
                signal_all([holder], stop=False)
            _await_without(stage, writer, holder, had)
            gone = time.time()  # until then the holder may have ended its own transaction
            for partition in sorted(where):
                stage.recovered(gone, [partition])
            stage.fire("leases_lost")
            stage.await_commits(8)


def _await_without(stage: CellEnvironment, writer: Program, holder: psutil.Process, had: set[tuple[int, int]]) -> None:
    stage.until(lambda: not had & lines(writer, holder), "the line being gone", _LET_GO_S * stage.slack)


def _cell(name: str, row: str, fault: str, target: str, play: Callable[[CellEnvironment], None], what: str) -> Cell:
    return Cell(
        name=f"{row}-lease-{name}",
        row=row,
        fault=fault,
        target=target,
        moment="open transaction",
        play=play,
        path="spark",
        needs=frozenset({Need.SPARK}),
        needed={what: 1, OPEN: 1},
        bound_s=20.0,
        limit_s=1200.0,
    )


CELLS = (
    _cell("holder", "F04", "SIGSTOP past the lease, then SIGCONT", "holder", holder_frozen, "holders_frozen"),
    _cell("driver", "F04", "SIGSTOP past all leases, then SIGCONT", "driver", driver_frozen, "drivers_frozen"),
    _cell("lost", "F07", "the line to the driver breaks", "holder", lease_lost, "leases_lost"),
)
