"""`downstream ledger`: one database transaction per batch, position included."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from brew.deadline import Deadline
from brew.fault_injection import CrashMoment, StoreCrash
from brew.names import ExitCode
from brew.signals import stop_on_signals
from downstream.consume.handler import GRACE_S, AssignedPartition, HandlerContext, PartitionBatch
from downstream.consume.loop import Loop
from downstream.consume.options import (
    crash_of,
    crash_options,
    database_options,
    database_settings,
    loop_options,
    loop_settings,
)
from downstream.ledger.check import check
from downstream.ledger.entry import Entry, entry
from downstream.ledger.store import TABLES, Ledger, start
from downstream.observed import ObservedHandler, ObservedProgram, observed
from downstream.postgres import Connection, Database, DatabaseSettings, commit_and_die, make_tables


@dataclass
class LedgerResult:
    """What this process has booked, and the alarms it has raised."""

    entries: int = 0
    problems: int = 0
    alarms: list[str] = field(default_factory=list)


class LedgerHandler:
    """
    Book a batch: 1. lock the positions, 2. compare, 3. insert and add up, 4. move the positions, 5. commit.

    The database is the only authority. Kafka hears of the new offset after the commit, and only lag tools read it.
    """

    def __init__(
        self, settings: DatabaseSettings, group: str, topic: str, tell: Callable[[str], None], crash: StoreCrash
    ) -> None:
        self._settings, self._tell, self._crash = settings, tell, crash
        self._database = Database(settings, "brew-ledger")
        self._ledger = Ledger(group, topic)
        self._made = False
        self.booked = LedgerResult()

    def assigned(self, seats: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:
        if not self._made:
            make_tables(self._database, self._settings.schema, TABLES)
            self._made = True
        with self._database.transaction(deadline) as connection:
            self._ledger.make(connection, seats)
        with self._database.transaction(deadline) as connection:
            rows = self._ledger.lock(connection, [seat.partition for seat in seats])
        found = {}
        for seat in seats:
            begin = start(rows[seat.partition], seat)
            if begin.alarm is not None:
                self.booked.alarms.append(begin.alarm)
                self._tell(begin.alarm)
            found[seat.partition] = begin.offset
        return found

    def handle(self, slices: Sequence[PartitionBatch], lease: HandlerContext) -> None:
        for one in slices:
            lease.check(one.partition)
        entries = [
            entry(one.partition, record.offset(), record.value(), record.headers())
            for one in slices
            for record in one.records
        ]
        with self._database.transaction(lease.deadline) as connection:
            self._book(connection, slices, entries)
            for one in slices:
                lease.check(one.partition)
            self._crash.at(CrashMoment.BEFORE_COMMIT)
            if self._crash.due(CrashMoment.COMMIT_IN_FLIGHT):
                commit_and_die(connection, self._crash)
        self._crash.at(CrashMoment.AFTER_COMMIT)
        self.booked.entries += len(entries)
        self.booked.problems += sum(one.problem is not None for one in entries)
        lease.report({one.partition: one.until for one in slices})

    def _book(self, connection: Connection, slices: Sequence[PartitionBatch], entries: Sequence[Entry]) -> None:
        rows = self._ledger.lock(connection, [one.partition for one in slices])
        self._ledger.require(rows, slices)
        self._crash.at(CrashMoment.AFTER_CLAIM)
        self._ledger.book(connection, entries)
        self._ledger.advance(connection, slices)

    def tick(self, lease: HandlerContext) -> None:
        """Nothing is due by time."""

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Nothing is held between two batches."""

    def lost(self, partitions: Collection[int]) -> None:
        """The next owner locks the rows; what we had begun is committed or gone."""

    def close(self, deadline: Deadline) -> None:  # noqa: ARG002 - the handler's shape
        self._database.close()


GROUP = "brew-ledger"


@click.command("ledger")
@loop_options
@click.option("--group", default=GROUP, show_default=True, metavar="NAME", help="Owner of the positions.")
@database_options
@click.option("--schema", default="brew_ledger", show_default=True, help="PostgreSQL schema of the ledger's tables.")
@click.option("--accept-weaker", is_flag=True, help="Go on although the server can lose what it has committed.")
@click.option("--check", "only_check", is_flag=True, help="Compare the ledger with the topic; exit 1 if they differ.")
@crash_options
def ledger_command(group: str, schema: str, *, only_check: bool, as_json: bool, **given: Any) -> int:
    """
    Book enriched orders into PostgreSQL: rows, and balances per customer and tier, each order exactly once.

    The position is kept in the same database and moved in the same transaction as the rows, so a crash leaves both or
    neither. The database is the only authority; Kafka's offset is stored afterwards, for lag tools.

    \b
    Exactly once: the rows and balances in this database.
    Not covered:  whatever else reads the rows and acts outside of the database.
    Refused:      a server with fsync, full_page_writes or synchronous_commit off (--accept-weaker goes on).
    Restored dump (Kafka ahead of the database): alarm `ledger-rollback`, and what is missing is read again.

    \b
    Examples:
      python -m downstream ledger --database postgresql://brew@localhost:5432/brew
      python -m downstream ledger --follow                        one of many; the group spreads partitions
      python -m downstream ledger --partitions 0,1                these, without group assignment
      python -m downstream ledger --check --json                  rows = outputs, money to the cent
    """  # noqa: D301 - click's own mark
    settings, database = loop_settings(given, group), database_settings(given, schema)
    if only_check:
        found = check(settings, database)
        click.echo(json.dumps(found.document(), indent=2) if as_json else found.text())
        return ExitCode.VIOLATION if found.findings else ExitCode.DONE
    stop = threading.Event()
    stop_on_signals(stop, GRACE_S, follow=settings.follow)
    handler = LedgerHandler(
        database, settings.group, settings.topic, lambda text: click.echo(text, err=True), crash_of(given)
    )
    with observed(ObservedProgram.loop("downstream ledger", settings), given) as recorder:
        watched = ObservedHandler(handler, recorder, settings.topic)
        told = Loop(settings, watched, stop, lambda text: click.echo(text, err=True)).run()
    booked = handler.booked
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(booked) | dataclasses.asdict(told), indent=2))
    else:
        click.echo(f"{booked.entries} orders booked, {booked.problems} of them without moving a balance")
        for alarm in booked.alarms:
            click.echo(alarm)
    return ExitCode.DONE
