"""`downstream ledger`."""

from __future__ import annotations

import dataclasses
import json
import threading
from typing import Any

import click

from downstream.consume.loop import Loop
from downstream.consume.options import (
    crash_of,
    crash_options,
    database_options,
    database_settings,
    loop_options,
    loop_settings,
)
from downstream.consume.settings import GRACE_S
from downstream.ledger.check import check
from downstream.ledger.handler import LedgerHandler
from downstream.observed import ObservedHandler, Watched, observed
from protocol.names import ExitCode
from protocol.stopping import stop_on_signals

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
    with observed(Watched.loop("downstream ledger", settings), given) as recorder:
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
