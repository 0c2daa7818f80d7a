"""Look at the input partitions of a group: position, log, records left, who holds it back, our own transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from pipeline.operate.judge.lag import Look
from pipeline.operate.judge.remain import Remainder, Remaining
from protocol.batches import OpenTransaction
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.errors import BrewError
from protocol.kafka import topics
from protocol.kafka.clients import READ_UNCOMMITTED, admin, consumer
from protocol.kafka.first_visible import FirstVisible, first_visible
from protocol.kafka.introspect import RawLogs
from protocol.kafka.offsets import committed, log_offsets
from protocol.kafka.transactions import Transactions, transactions
from protocol.names import TransactionalId
from protocol.position import Committed, LogOffsets
from protocol.transactions import Coordinated

_T = TypeVar("_T")


class Observer:
    """
    Looks again and again, through the same clients.

    ``exact``: up to so many offsets raw batches are read to count records; behind that it is "at most".
    ``ages``: of partitions with something to read the first record is asked for, too, unless the position stood still.
    ``silent``: what the brokers did not tell at the last look, or None.
    """

    def __init__(self, connection: Connection, topic: str, group: str, exact: int, *, ages: bool = True) -> None:
        self._connection, self._topic, self._group, self._exact = connection, topic, group, exact
        self._ages = ages
        self._first: dict[int, tuple[int, FirstVisible]] = {}
        self._admin = admin(connection)
        # Not waiting for pending offsets: an open transaction must not stop who looks at it.
        self._reader = consumer(connection, group, READ_UNCOMMITTED)
        self.silent: str | None = None

    def look(self, deadline: Deadline) -> list[Look]:
        """All partitions now; the position first, so that it never exceeds the log read after it."""
        found = range(topics.existing(self._admin, self._topic, deadline).partitions)
        positions = committed(self._reader, self._topic, found, deadline)
        logs = log_offsets(self._admin, self._topic, found, deadline)
        looks = [_plain(p, logs[p], positions[p]) for p in found]
        if all(one.log.end == one.position for one in looks):
            return looks
        self.silent = None
        try:
            with transactions(self._connection, deadline) as told:
                return self._deep(looks, told, deadline)
        except BrewError as error:
            self.silent = str(error)
            return looks

    def _deep(self, looks: list[Look], told: Transactions, deadline: Deadline) -> list[Look]:
        blocked = [one.partition for one in looks if one.log.last_stable < one.log.end]
        behind = [one.partition for one in looks if one.position < one.log.last_stable]
        holders = self._if_told(lambda: self._holders(told, blocked))
        ids = {str(TransactionalId(self._group, self._topic, p)): p for p in behind}
        own = self._if_told(lambda: {ids[one.transactional_id]: one for one in told.named(ids)})
        deep = [
            Look(
                one.partition,
                one.log,
                one.committed,
                self._remaining(one, told.raw, deadline),
                holders.get(one.partition, ()),
                own.get(one.partition),
            )
            for one in looks
        ]
        return [self._aged(one, told.raw, deadline) for one in deep] if self._ages else deep

    def _aged(self, one: Look, raw: RawLogs, deadline: Deadline) -> Look:
        """With the time of the first record that waits; where the position stood still it is the same one as before."""
        if not one.remaining.records or one.position < one.log.first:
            return one
        at, found = self._first.get(one.partition, (-1, FirstVisible()))
        if at != one.position or found.time_ms is None:
            try:
                span = (one.position, one.log.last_stable)
                found = first_visible(raw, self._topic, one.partition, *span, deadline)
            except BrewError as error:
                self.silent, found = str(error), FirstVisible()
            self._first[one.partition] = one.position, found
        return replace(one, remaining=Remaining(0) if found.nothing else one.remaining, oldest_ms=found.time_ms)

    def _if_told(self, ask: Callable[[], Mapping[int, _T]]) -> Mapping[int, _T]:
        """What older brokers, or missing rights, leave untold stops nothing else."""
        try:
            return ask()
        except BrewError as error:
            self.silent = str(error)
            return {}

    def _holders(self, told: Transactions, blocked: list[int]) -> Mapping[int, tuple[OpenTransaction, ...]]:
        held = told.held((self._topic, p) for p in blocked) if blocked else []
        known = told.of_producers(one.producer_id for one in held)
        owners: dict[int, Coordinated] = {one.producer_id: one for one in known}
        now_ms = int(time.time() * 1000)
        found: dict[int, tuple[OpenTransaction, ...]] = {}
        for one in held:
            owner = owners.get(one.producer_id)
            name, age_s = (None, None) if owner is None else (owner.transactional_id, owner.age_s(now_ms))
            opened = OpenTransaction(one.partition, one.producer_id, one.producer_epoch, one.first_offset, name, age_s)
            found[one.partition] = (*found.get(one.partition, ()), opened)
        return found

    def _remaining(self, one: Look, raw: RawLogs, deadline: Deadline) -> Remaining:
        if not 0 < one.log.last_stable - one.position <= self._exact or one.position < one.log.first:
            return one.remaining
        count = Remainder(one.position, one.log.last_stable)
        most = one.log.last_stable + self._exact  # markers may stand above the last stable offset
        until = min(one.log.end, most)
        for batch, _ in raw.batches(self._topic, one.partition, one.position, until, deadline):
            count.add(batch)
            if count.settled:
                break
        return count.remaining()

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _plain(partition: int, log: LogOffsets, position: Committed | None) -> Look:
    at = log.first if position is None else position.offset
    left = max(0, log.last_stable - at)
    return Look(partition, log, position, Remaining(left, exact=left == 0))
