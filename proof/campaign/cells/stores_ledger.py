"""The ledger: consumers and database die around the commit, and its reply is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from proof.campaign.cells.stores_programs import (
    Consumer,
    ended,
    filled,
    forgetting,
    found_by,
    killed_again_and_again,
    moved,
    no_stall,
    stopped,
)
from proof.campaign.cells.stores_reply import LosesReplies
from proof.campaign.cells.stores_servers import POSTGRES, Servers
from proof.campaign.cells.stores_sums import asked, compare_ledger, positions
from proof.campaign.stage import Stage

MOMENTS = ("after-claim", "before-commit", "commit-in-flight", "after-commit")
SCHEMA = "cell"
BATCH = 20
DIES = 0.4
ORDERS = 240
_ROUNDS = 3
_IN_TRANSACTION = "SELECT pid FROM pg_stat_activity WHERE application_name = 'brew-ledger' AND state LIKE 'idle in%'"


@dataclass(frozen=True)
class Ledger:
    """A ledger with its database."""

    consumer: Consumer
    servers: Servers
    url: str

    def position(self) -> int:
        """Grows with every commit; -1 while the database can't tell."""
        found = self.positions()
        return sum(found.values()) if found else -1

    def positions(self) -> dict[int, int]:
        """Partition -> next offset; none while the database can't tell."""
        return positions(self.url, SCHEMA)

    def check(self) -> None:
        """Drain what is left, then compare: by its own check, and by the campaign's sums."""
        self.consumer.drain(*self.consumer.all_partitions)
        found_by(self.consumer.stage, self.consumer.checked())
        compare_ledger(self.consumer, self.url, SCHEMA)


@contextlib.contextmanager
def ledger_on(stage: Stage, *options: str, bug: str = "", pattern: str = "ledger") -> Iterator[Ledger]:
    with Servers() as servers:
        url = servers.up(POSTGRES)
        words = (pattern, "--database", url, "--schema", SCHEMA, "--batch", str(BATCH), *options)
        with forgetting(Consumer(stage, words, bug=bug)) as consumer:
            yield Ledger(consumer, servers, url)


def dying(stage: Stage, moment: str, how: str = "kill", probability: float = DIES) -> list[str]:
    seed = str(stage.random.randrange(2**31))
    return ["--crash-point", moment, "--crash-how", how, "--crash-prob", str(probability), "--crash-seed", seed]


def consumer_killed(stage: Stage) -> None:
    """Consumers die with the row locked, before the commit, in it and behind it, again and again."""
    with ledger_on(stage) as ledger:
        _kill(stage, ledger, MOMENTS)
        ledger.check()


def offsets_afterwards(stage: Stage) -> None:
    """The control: rows and position in two transactions, and deaths between them."""
    with ledger_on(stage, bug="position-afterwards") as ledger, no_stall():
        _kill(stage, ledger, MOMENTS[1:2])
        ledger.check()


def _kill(stage: Stage, ledger: Ledger, moments: tuple[str, ...]) -> None:
    def options() -> list[str]:
        return dying(stage, stage.random.choice(moments))

    killed_again_and_again(ledger.consumer, options, ledger.position, per_kill=int(BATCH / DIES))


def backend_killed(stage: Stage) -> None:
    """SIGKILL to the session's own process between INSERT and COMMIT; the server ends all others and recovers."""

    def kill(ledger: Ledger) -> float:
        os.kill(int(asked(ledger.url, SCHEMA, _IN_TRANSACTION)[0]), signal.SIGKILL)
        return time.time()

    _database_killed(stage, kill)


def server_killed(stage: Stage) -> None:
    """SIGKILL to the postmaster and all its children between INSERT and COMMIT; then it is started again."""

    def kill(ledger: Ledger) -> float:
        ledger.servers.kill(POSTGRES)
        ledger.servers.restart(POSTGRES)
        return time.time()

    _database_killed(stage, kill)


def _database_killed(stage: Stage, kill: Callable[[Ledger], float]) -> None:
    with ledger_on(stage) as ledger:
        for _ in range(_ROUNDS):
            filled(stage, ORDERS)
            member = ledger.consumer.start(
                *ledger.consumer.all_partitions, *dying(stage, "before-commit", "stop"), "--json"
            )
            if not stopped(stage, member):
                continue
            before = ledger.position()
            since = kill(ledger)
            stage.fire("database_kills")
            member.signal(signal.SIGCONT)
            moved(stage, ledger.position, since, before)
            ended(stage, member)
        ledger.check()


def reply_lost(stage: Stage) -> None:
    """The COMMIT took place and nobody told the ledger: it looks, and never guesses."""
    with ledger_on(stage) as ledger:
        filled(stage, 2 * ORDERS)
        with LosesReplies(ledger.url, DIES / 2, stage.random) as door:
            ledger.consumer.drain(*ledger.consumer.all_partitions, "--database", door.url)
        stage.fire("lost_replies", door.lost)
        stage.recovery_s += door.recovery_s
        ledger.check()
