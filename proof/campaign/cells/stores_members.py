"""The ledger's members hang, come and go, and its database is set back."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Iterator

from proof.campaign.cells.stores_ledger import ORDERS, Ledger, dying, ledger_on
from proof.campaign.cells.stores_programs import ended, filled, no_stall, stopped
from proof.campaign.cells.stores_servers import POSTGRES
from proof.campaign.stage import Stage, StalledError

_IDLE_S, _LOCK_S = 3.0, 0.5
_SESSION_S = 6.0
LOCK_BOUND_S = _IDLE_S + 2 * _LOCK_S + 2.0
"""A stopped member's session is ended, its lock is free, and the next one has looked again."""
_WAITS_S = 1.0
_MEET_S = 2.0
REBALANCED_S = 2 * _SESSION_S + 3.0
"""A dead or stopped member's partitions are given out anew after its session."""


def row_locked(stage: Stage) -> None:
    """
    A member hangs with its rows locked and another takes over.

    First it is woken afterwards and finds its transaction gone; then one is killed while the other waits for it.
    """
    times = ("--idle-timeout-s", f"{_IDLE_S:g}", "--lock-timeout-s", f"{_LOCK_S:g}")
    with ledger_on(stage, *times) as ledger:
        for killed in (False, True):
            filled(stage, ORDERS)
            alone = ledger.consumer.all_partitions
            sleeper = ledger.consumer.start(*alone, *dying(stage, "before-commit", "stop", 1.0), "--json")
            if not stopped(stage, sleeper):
                continue
            since = time.time()
            stage.fire("pauses")
            rival = ledger.consumer.start(*alone, "--json", name="rival")
            if killed:
                stage.pause(_WAITS_S)
                sleeper.kill()
                since = time.time()
                stage.fire("kills")
            ended(stage, rival)
            assert rival.ended_at is not None
            stage.recovery_s.append(rival.ended_at - since)
            if not killed:
                sleeper.signal(signal.SIGCONT)
                if json.loads(ended(stage, sleeper).printed())["entries"] == 0:
                    stage.fire("overtaken")
        ledger.check()


def row_unguarded(stage: Stage) -> None:
    """The control: positions that are written as if nobody else were there, taken from Kafka's offset."""
    with ledger_on(stage, bug="position-of-kafka") as ledger, no_stall():
        filled(stage, ORDERS)
        alone = ledger.consumer.all_partitions
        sleeper = ledger.consumer.start(*alone, *dying(stage, "after-commit", "stop", 1.0))
        if stopped(stage, sleeper):
            stage.fire("pauses")
        ended(stage, ledger.consumer.start(*alone, name="rival"))
        sleeper.signal(signal.SIGCONT)
        ended(stage, sleeper)
        ledger.check()


def rebalance(stage: Stage) -> None:
    """Members of a group join, leave, hang and die while orders come in; partitions move under their hands."""
    with ledger_on(stage) as ledger:
        with stage.feeding():
            stage.writer("--follow")
            _come_and_go(stage, ledger)
            stage.stop_writers()
        stage.drain()
        ledger.check()


def _come_and_go(stage: Stage, ledger: Ledger) -> None:
    follow = ("--follow", "--session-timeout-s", f"{_SESSION_S:g}", "--max-poll-interval-s", "30")
    start = ledger.consumer.start
    first = start(*follow)
    _all_move(stage, ledger)
    second, third = start(*follow), start(*follow)
    _all_move(stage, ledger)
    stage.fire("joins", 3)
    first.terminate()
    ended(stage, first)
    _all_move(stage, ledger)
    second.kill()
    stage.fire("kills")
    _all_move(stage, ledger)
    third.signal(signal.SIGSTOP)
    stage.fire("pauses")
    fourth = start(*follow)
    _all_move(stage, ledger)
    third.signal(signal.SIGCONT)
    _all_move(stage, ledger)
    for member in (third, fourth):
        member.terminate()
        ended(stage, member)


def _all_move(stage: Stage, ledger: Ledger) -> None:
    """Wait until the ledger goes on in every partition, once the members had time to meet; keep how long it took."""
    stage.pause(_MEET_S)
    since, before = time.time(), ledger.positions()
    stage.until(
        lambda: all(ledger.positions().get(p, 0) > at for p, at in before.items()), "every partition going on", 60.0
    )
    stage.recovery_s.append(time.time() - since)


@contextlib.contextmanager
def _set_back(stage: Stage, bug: str) -> Iterator[Ledger]:
    """Yield a ledger whose database was copied, went on, and was put back to the copy; Kafka is ahead of it."""
    with ledger_on(stage, bug=bug) as ledger:
        filled(stage, ORDERS)
        ledger.consumer.drain(*ledger.consumer.all_partitions)
        copy = ledger.servers.backup(POSTGRES)
        filled(stage, ORDERS)
        ledger.consumer.drain(*ledger.consumer.all_partitions)
        ledger.servers.restore(POSTGRES, copy)
        stage.fire("restores")
        yield ledger


def restored(stage: Stage) -> None:
    """The database is set back: an alarm, and everything that is missing in it is read again."""
    with _set_back(stage, "") as ledger:
        if "ledger-rollback" not in ledger.consumer.checked()["findings"]:
            raise StalledError("the check does not see that Kafka is ahead of the database")
        told = json.loads(ledger.consumer.drain(*ledger.consumer.all_partitions, "--json").printed())
        stage.fire("alarms", sum(alarm.startswith("ledger-rollback") for alarm in told["alarms"]))
        ledger.check()


def larger_of_both(stage: Stage) -> None:
    """The control: the pattern that takes the larger of both offsets leaves out what the database forgot."""
    with _set_back(stage, "larger-of-both") as ledger, no_stall():
        filled(stage, ORDERS)  # so that the position leaps over what is missing
        ledger.check()
