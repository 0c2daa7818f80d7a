"""
Deliberate bugs in the ledger and the receivers, put into the process that is killed; the check must detect them.

A bug that splits a commit in two crashes between them only if a batch has records: after a batch of markers alone,
nothing can be lost or duplicated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from brew.deadline import Deadline
from brew.fault_injection import CrashMoment, StoreCrash
from brew.kafka.transaction import KafkaTransaction
from downstream.consume.handler import HandlerContext, PartitionBatch
from downstream.ledger import command as ledger_handler
from downstream.ledger.command import LedgerHandler, OffsetRow, Start
from downstream.ledger.entry import entry
from downstream.receive.postgres import PostgresReceiver
from downstream.receive.receiver import Message


def _entries(slices: Sequence[PartitionBatch]) -> list[ledger_handler.Entry]:
    return [entry(one.partition, r.offset(), r.value(), r.headers()) for one in slices for r in one.records]


def _position_afterwards() -> None:
    """Commit rows first, the position in a separate transaction: a kill in between books twice."""

    def handle(self: LedgerHandler, slices: Sequence[PartitionBatch], context: HandlerContext) -> None:
        with self._database.transaction(context.deadline) as connection:
            self._ledger.book(connection, _entries(slices))
        if _entries(slices):
            self._crash.at(CrashMoment.BEFORE_COMMIT)
        with self._database.transaction(context.deadline) as connection:
            self._ledger.advance(connection, slices)
        self._crash.at(CrashMoment.AFTER_COMMIT)

    LedgerHandler.handle = handle


def _position_before() -> None:
    """Commit the position first: a kill in between loses rows."""

    def handle(self: LedgerHandler, slices: Sequence[PartitionBatch], context: HandlerContext) -> None:
        with self._database.transaction(context.deadline) as connection:
            self._ledger.advance(connection, slices)
        if _entries(slices):
            self._crash.at(CrashMoment.BEFORE_COMMIT)
        with self._database.transaction(context.deadline) as connection:
            self._ledger.book(connection, _entries(slices))
        self._crash.at(CrashMoment.AFTER_COMMIT)

    LedgerHandler.handle = handle


def _position_of_kafka() -> None:
    """Resume at Kafka's offset, which is committed after the database: a kill in between books twice."""
    handle = LedgerHandler.handle

    def spared_behind_markers(self: LedgerHandler, slices: Sequence[PartitionBatch], context: HandlerContext) -> None:
        crash = self._crash
        self._crash = crash if _entries(slices) else StoreCrash()
        handle(self, slices, context)
        self._crash = crash

    LedgerHandler.handle = spared_behind_markers
    _positions(lambda row, assignment: Start(min(row.next_offset, assignment.committed or 0)))


def _larger_of_both() -> None:
    """Resume at the larger of both offsets, a published pattern: what a restored dump lacks is never read again."""
    _positions(lambda row, assignment: Start(max(row.next_offset, assignment.committed or 0)))


def _positions(start: Callable[[OffsetRow, ledger_handler.AssignedPartition], Start]) -> None:
    """Start where ``start`` says, and write positions without checking for other writers."""
    ledger_handler.start = start
    ledger_handler.Ledger.require = lambda *_: None
    ledger_handler.Ledger.advance = advance_unguarded


def advance_unguarded(self: ledger_handler.Ledger, connection: Any, slices: Sequence[PartitionBatch]) -> None:
    """Write positions whatever others have written meanwhile."""
    for one in slices:
        where = [one.until, *self._names, one.partition]
        name = "consumer_group = %s AND topic = %s AND partition = %s"
        connection.execute(f"UPDATE kafka_offsets SET next_offset = %s WHERE {name}", where)


def _claim_before() -> None:
    """Commit claims before their effects: a kill in between loses effects."""

    def claim(self: PostgresReceiver, found: Sequence[Message], context: HandlerContext) -> int:
        with self._database.transaction(context.deadline) as connection:
            fresh = self._fresh(connection, found) if found else []
        if fresh:
            self.settings.crash.at(CrashMoment.BEFORE_COMMIT)
        with self._database.transaction(context.deadline) as connection:
            if fresh:
                self._effect(connection, fresh)
        return len(fresh)

    PostgresReceiver.claim = claim


def _claim_afterwards() -> None:
    """Commit effects before their claims: a kill in between repeats effects."""

    def claim(self: PostgresReceiver, found: Sequence[Message], context: HandlerContext) -> int:
        names = [one.message_id for one in found]
        known = "SELECT message_id FROM processed_messages WHERE consumer_group = %s AND message_id = ANY(%s)"
        with self._database.transaction(context.deadline) as connection:
            old = {row[0] for row in connection.execute(known, [self.settings.group, names])}
            fresh = [one for one in found if one.message_id not in old]
            if fresh:
                self._effect(connection, fresh)
        if fresh:
            self.settings.crash.at(CrashMoment.BEFORE_COMMIT)
        with self._database.transaction(context.deadline) as connection:
            self._fresh(connection, fresh)
        return len(fresh)

    PostgresReceiver.claim = claim


_COMMIT_S = 20.0


def _offsets_afterwards() -> None:
    """Commit deltas in one transaction, the offset after them in the next: a kill in between counts twice."""
    send, commit = KafkaTransaction.send_offsets, KafkaTransaction.commit

    def remembered(self: KafkaTransaction, *offset: Any) -> None:
        self.later = offset  # type: ignore[attr-defined]

    def twice(self: KafkaTransaction, deadline: Deadline) -> None:
        commit(self, deadline)
        self.begin()
        send(self, *self.later)  # type: ignore[attr-defined]
        commit(self, deadline)

    def surely(self: KafkaTransaction) -> None:
        commit(self, Deadline(_COMMIT_S))  # a commit still in flight may be lost with the process

    KafkaTransaction.send_offsets = remembered  # type: ignore[method-assign]
    KafkaTransaction.commit_without_waiting = surely  # type: ignore[method-assign]
    KafkaTransaction.commit = twice  # type: ignore[method-assign]


BUGS: dict[str, dict[str, Callable[[], None]]] = {
    "ledger": {
        "position-afterwards": _position_afterwards,
        "position-before": _position_before,
        "position-of-kafka": _position_of_kafka,
    },
    "postgres": {"claim-before": _claim_before, "claim-afterwards": _claim_afterwards},
}

OTHERS: dict[str, Callable[[], None]] = {"larger-of-both": _larger_of_both, "offsets-afterwards": _offsets_afterwards}
"""Detected under other faults than kills around a store's commit, by the campaign's controls (F31, F33)."""
