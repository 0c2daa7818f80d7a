"""`downstream ledger`: one database transaction per batch, including the position."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from brew.cli import group_option, option
from brew.deadline import Deadline
from brew.errors import Refused
from brew.fault_injection import CrashMoment, StoreCrash
from brew.names import ExitCode, quantity
from downstream.consume.handler import AssignedPartition, Handler, HandlerContext, PartitionBatch, RetryLater
from downstream.consume.options import (
    crash_of,
    crash_options,
    database_options,
    database_settings,
    loop_options,
    loop_settings,
)
from downstream.ledger.check import check, require_own_tables, require_same_topic
from downstream.ledger.entry import Entry, entry
from downstream.observed import consume, to_stderr
from downstream.postgres import Connection, Database, DatabaseSettings, crash_before_commit, make_tables

ROLLBACK = "ledger-rollback"


@dataclass(frozen=True, slots=True)
class OffsetRow:
    partition: int
    next_offset: int
    topic_id: str


@dataclass(frozen=True, slots=True)
class Start:
    """The offset to read from, always the database's; ``alarm`` is a message if Kafka's offset is ahead of it."""

    offset: int
    alarm: str | None = None


def start(row: OffsetRow, assignment: AssignedPartition) -> Start:
    """
    Return the database's offset, or raise `Refused` if it is no valid position of this log. Kafka's offset, stored
    after the database commit, does not count: behind, a crash came in between; ahead, the database was set back (a
    restored dump) and lacks the records in between. Taking the larger one would lose them.
    """
    where = f"{assignment.topic}[{assignment.partition}]"
    require_same_topic(where, row.topic_id, assignment.topic_id)
    if row.next_offset < assignment.first:
        raise Refused(
            f"input-lost: the ledger is at offset {row.next_offset} of {where}, and retention has deleted the records "
            f"before {assignment.first}; to skip these orders, set next_offset to {assignment.first} in the table "
            f"kafka_offsets of --schema, for partition {assignment.partition}"
        )
    if row.next_offset > assignment.last_stable:
        raise Refused(
            f"offset-ahead: the ledger is at offset {row.next_offset} of {where}, whose last stable offset is "
            f"{assignment.last_stable}; is this another cluster, or was its log truncated? Name the matching "
            "cluster with --bootstrap, or the matching ledger with --database"
        )
    if assignment.reported is not None and assignment.reported > row.next_offset:
        return Start(
            row.next_offset,
            f"{ROLLBACK}: Kafka's offset of {where} is {assignment.reported} and the database is at "
            f"{row.next_offset}: it was restored to an earlier state; reading again from there",
        )
    return Start(row.next_offset)


# No unique index on entries: the position guarantees that each exists once, and the check confirms it.
TABLES = """
CREATE TABLE IF NOT EXISTS kafka_offsets (
    consumer_group text NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    next_offset bigint NOT NULL,
    topic_id text NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (consumer_group, topic, partition)
);
CREATE TABLE IF NOT EXISTS ledger_entries (
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    source text,
    order_id text,
    customer_id text,
    tier text,
    cents numeric,
    discount numeric,
    problem text
);
CREATE TABLE IF NOT EXISTS ledger_balances (
    customer_id text NOT NULL,
    tier text NOT NULL,
    orders bigint NOT NULL,
    cents numeric NOT NULL,
    discount_cents numeric NOT NULL,
    PRIMARY KEY (customer_id, tier)
);
"""

# Two ledgers that start at the same time would not see each other's rows.
_ONE_BY_ONE = "SELECT pg_advisory_xact_lock('kafka_offsets'::regclass::bigint)"
_MAKE = """
INSERT INTO kafka_offsets (consumer_group, topic, partition, next_offset, topic_id)
SELECT %s, %s, * FROM unnest(%s::integer[], %s::bigint[], %s::text[]) ON CONFLICT DO NOTHING
"""
# Rows are locked in partition order, and balances in key order, so that two members cannot deadlock.
_LOCK = """
SELECT partition, next_offset, topic_id FROM kafka_offsets
WHERE consumer_group = %s AND topic = %s AND partition = ANY(%s::integer[]) ORDER BY partition FOR UPDATE
"""
_BOOK = """
WITH booked AS (
    INSERT INTO ledger_entries
    SELECT * FROM unnest(%s::integer[], %s::bigint[], %s::text[], %s::text[], %s::text[], %s::text[],
                         %s::numeric[], %s::numeric[], %s::text[])
    RETURNING customer_id, tier, cents, discount, problem
)
INSERT INTO ledger_balances AS known (customer_id, tier, orders, cents, discount_cents)
SELECT customer_id, tier, count(*), sum(cents), sum(cents * discount) FROM booked
WHERE problem IS NULL GROUP BY customer_id, tier ORDER BY customer_id, tier
ON CONFLICT (customer_id, tier) DO UPDATE SET
    orders = known.orders + excluded.orders,
    cents = known.cents + excluded.cents,
    discount_cents = known.discount_cents + excluded.discount_cents
"""
_ADVANCE = """
UPDATE kafka_offsets AS known SET next_offset = given.until, updated_at = now()
FROM unnest(%s::integer[], %s::bigint[], %s::bigint[]) AS given (partition, expected, until)
WHERE consumer_group = %s AND topic = %s AND known.partition = given.partition AND next_offset = given.expected
"""


class Ledger:
    """SQL statements for one group's positions in one topic; the caller begins and commits."""

    def __init__(self, group: str, topic: str) -> None:
        self._names = (group, topic)

    def make(self, connection: Connection, assignments: Sequence[AssignedPartition]) -> None:
        """Insert missing rows, at the log's first offset; raises `Refused` if the tables are another ledger's."""
        connection.execute(_ONE_BY_ONE)
        require_own_tables(connection, *self._names)
        columns = (
            [s.partition for s in assignments],
            [s.first for s in assignments],
            [s.topic_id for s in assignments],
        )
        connection.execute(_MAKE, [*self._names, *columns])

    def lock(self, connection: Connection, partitions: Sequence[int]) -> dict[int, OffsetRow]:
        """Lock the rows and return them; no other process can move these positions until the transaction ends."""
        rows = connection.execute(_LOCK, [*self._names, list(partitions)])
        return {row[0]: OffsetRow(*row) for row in rows}

    def require(self, rows: Mapping[int, OffsetRow], batches: Sequence[PartitionBatch]) -> None:
        """Raise `RetryLater` if another process has moved the database's position from where a batch begins."""
        for batch in batches:
            row = rows.get(batch.partition)
            if row is None or row.next_offset != batch.start:
                stands = "nowhere" if row is None else str(row.next_offset)
                raise RetryLater(
                    f"partition {batch.partition} is at {stands}, not at {batch.start}: another process moved it", 0.1
                )

    def book(self, connection: Connection, entries: Sequence[Entry]) -> None:
        """Insert the entries and update the balances, in one statement."""
        if entries:
            connection.execute(_BOOK, [list(column) for column in zip(*entries, strict=True)])

    def advance(self, connection: Connection, batches: Sequence[PartitionBatch]) -> None:
        """Move the positions, each from where its batch began; else `RetryLater`: the transaction must roll back."""
        columns = ([s.partition for s in batches], [s.start for s in batches], [s.until for s in batches])
        moved = connection.execute(_ADVANCE, [*columns, *self._names]).rowcount
        if moved != len(batches):
            raise RetryLater(f"{len(batches) - moved} of {len(batches)} positions were moved by another process", 0.1)


@dataclass
class LedgerResult:
    """Number of entries booked by this process, and the alarms it raised."""

    entries: int = 0
    problems: int = 0
    alarms: list[str] = field(default_factory=list)


class LedgerHandler(Handler):
    """
    Books a batch: 1. lock the positions, 2. compare, 3. insert and add up, 4. move the positions, 5. commit. The
    database is the only authority. The offset is stored in Kafka after the commit, for lag tools only. Nothing is done
    for a lost partition: the next owner locks the rows, and our transaction is committed or rolled back.
    """

    def __init__(
        self, settings: DatabaseSettings, group: str, topic: str, tell: Callable[[str], None], crash: StoreCrash
    ) -> None:
        self._settings, self._tell, self._crash = settings, tell, crash
        self._database = Database(settings, "brew-ledger")
        self._ledger = Ledger(group, topic)
        self._made = False
        self._ahead: dict[int, int] = {}  # partition -> a position above the log's end at the time
        self.booked = LedgerResult()

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:
        if not self._made:
            make_tables(self._database, self._settings.schema, TABLES)
            self._made = True
        with self._database.transaction(deadline) as connection:
            self._ledger.make(connection, assignments)
        with self._database.transaction(deadline) as connection:
            rows = self._ledger.lock(connection, [assignment.partition for assignment in assignments])
        starts = {}
        for assignment in assignments:
            self._check_end(rows[assignment.partition].next_offset, assignment)
            begin = start(rows[assignment.partition], assignment)
            if begin.alarm is not None:
                self.booked.alarms.append(begin.alarm)
                self._tell(begin.alarm)
            starts[assignment.partition] = begin.offset
        return starts

    def _check_end(self, at: int, assignment: AssignedPartition) -> None:
        """
        Have a position above the log's end looked at again. Raises `RetryLater`: the end was asked for before the row
        was locked, and another member may have booked meanwhile.
        """
        partition, before = assignment.partition, self._ahead.pop(assignment.partition, None)
        if at > assignment.last_stable and at != before:
            self._ahead[partition] = at
            raise RetryLater(f"partition {partition} is at {at}, above the log's end: another process moved it", 0.1)

    def handle(self, batches: Sequence[PartitionBatch], context: HandlerContext) -> None:
        partitions = [batch.partition for batch in batches]
        context.check(*partitions)
        entries = [
            entry(batch.partition, record.offset(), record.value(), record.headers())
            for batch in batches
            for record in batch.records
        ]
        with self._database.transaction(context.deadline) as connection:
            self._book(connection, batches, entries)
            context.check(*partitions)
            crash_before_commit(connection, self._crash)
        self._crash.at(CrashMoment.AFTER_COMMIT)
        self.booked.entries += len(entries)
        self.booked.problems += sum(entry.problem is not None for entry in entries)
        context.report({batch.partition: batch.until for batch in batches})

    def _book(self, connection: Connection, batches: Sequence[PartitionBatch], entries: Sequence[Entry]) -> None:
        rows = self._ledger.lock(connection, [batch.partition for batch in batches])
        self._ledger.require(rows, batches)
        self._crash.at(CrashMoment.AFTER_CLAIM)
        self._ledger.book(connection, entries)
        self._ledger.advance(connection, batches)

    def close(self, deadline: Deadline) -> None:  # noqa: ARG002 - the handler's shape
        self._database.close()


GROUP = "brew-ledger"


@click.command("ledger")
@loop_options
@group_option(GROUP, "Consumer group; the database keeps its positions.")
@database_options
@option("--schema", default="brew_ledger", help="PostgreSQL schema of the ledger's tables.")
@click.option("--accept-weaker", is_flag=True, help="Run even if the server can lose committed transactions.")
@click.option("--check", "only_check", is_flag=True, help="Compare the ledger with the topic; exit 1 if they differ.")
@crash_options
def ledger_command(group: str, *, only_check: bool, as_json: bool, **given: Any) -> int:
    """
    Book enriched orders into PostgreSQL: rows, and balances per customer and tier, each order exactly once.

    The position is kept in the same database and moved in the same transaction as the rows, so a crash leaves both or
    neither. The database is the only authority; Kafka's offset is stored afterwards, for lag tools.

    \b
    Exactly once: the rows and balances in this database.
    Not covered:  programs that read the rows and act outside the database.
    Refused:      a server with fsync, full_page_writes or synchronous_commit off (unless --accept-weaker).
    Restored dump (Kafka ahead of the database): alarm `ledger-rollback`, and the missing orders are read again.

    Examples:
      python -m downstream ledger --database postgresql://brew@localhost:5432/brew
      python -m downstream ledger --follow                        one of several; the group assigns partitions
      python -m downstream ledger --partitions 0,1                these partitions, without group assignment
      python -m downstream ledger --check --json                  compare rows and amounts with the topic
    """  # noqa: D301 - click's own mark
    settings, database = loop_settings(given, group), database_settings(given)
    if only_check:
        checked = check(settings, database)
        click.echo(json.dumps(checked.document(), indent=2) if as_json else checked.text())
        return ExitCode.VIOLATION if checked.findings else ExitCode.DONE
    handler = LedgerHandler(database, settings.group, settings.topic, to_stderr, crash_of(given))
    result = consume("downstream ledger", settings, handler, given)
    booked = handler.booked
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(booked) | dataclasses.asdict(result), indent=2))
    else:
        click.echo(f"{quantity(booked.entries, 'order')} booked, {booked.problems} of them without a change of balance")
        for alarm in booked.alarms:
            click.echo(alarm)
    return ExitCode.DONE
