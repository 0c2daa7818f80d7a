"""The ledger as a handler of the consume loop: one database transaction per batch, position included."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from downstream.consume.crash import Crash, Moment
from downstream.consume.handler import Lease, Seat, Slice
from downstream.ledger.entry import Entry, entry
from downstream.ledger.position import start
from downstream.ledger.store import TABLES, Ledger
from downstream.postgres import Connection, Database, DatabaseSettings, commit_and_die, make_tables
from protocol.deadline import Deadline


@dataclass
class Booked:
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
        self, settings: DatabaseSettings, group: str, topic: str, tell: Callable[[str], None], crash: Crash
    ) -> None:
        self._settings, self._tell, self._crash = settings, tell, crash
        self._database = Database(settings, "brew-ledger")
        self._ledger = Ledger(group, topic)
        self._made = False
        self.booked = Booked()

    def assigned(self, seats: Sequence[Seat], deadline: Deadline) -> Mapping[int, int]:
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

    def handle(self, slices: Sequence[Slice], lease: Lease) -> None:
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
            self._crash.at(Moment.BEFORE_COMMIT)
            if self._crash.due(Moment.COMMIT_IN_FLIGHT):
                commit_and_die(connection, self._crash)
        self._crash.at(Moment.AFTER_COMMIT)
        self.booked.entries += len(entries)
        self.booked.problems += sum(one.problem is not None for one in entries)
        lease.report({one.partition: one.until for one in slices})

    def _book(self, connection: Connection, slices: Sequence[Slice], entries: Sequence[Entry]) -> None:
        rows = self._ledger.lock(connection, [one.partition for one in slices])
        self._ledger.require(rows, slices)
        self._crash.at(Moment.AFTER_CLAIM)
        self._ledger.book(connection, entries)
        self._ledger.advance(connection, slices)

    def tick(self, lease: Lease) -> None:
        """Nothing is due by time."""

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:
        """Nothing is held between two batches."""

    def lost(self, partitions: Collection[int]) -> None:
        """The next owner locks the rows; what we had begun is committed or gone."""

    def close(self, deadline: Deadline) -> None:  # noqa: ARG002 - the handler's shape
        self._database.close()
