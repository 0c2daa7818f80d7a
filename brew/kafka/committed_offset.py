"""
Locate a group's stable committed offset, and confirm it behind send-offsets.

A coordinator that is cut off from the other brokers does not know that it no longer is one, and tells its clients of
positions that are past (docs/decisions/0012). It can't know of offsets that its successor took: whoever answers that
the offset just sent is pending has seen all that was committed before it, too.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from confluent_kafka import Consumer

from brew.connection import Connection
from brew.deadline import PAUSE_S, Deadline
from brew.errors import Abortable, BrewError, DeadlineExceeded, Retriable
from brew.kafka.clients import ONE_TRANSACTION, consumer
from brew.kafka.offsets import committed
from brew.names import READ_COMMITTED
from brew.offsets import Committed

if TYPE_CHECKING:
    from brew.kafka.offset_fetch import OffsetFetchClient

STEP = "send-offsets"
_CONFIRM_S, _ATTEMPT_S = 5.0, 3.0
_OPEN_S = 2.0
"""The client tries one bootstrap server, for all of that time if nothing comes back; then another attempt is made."""
STRANGERS = 6
"""So many answers of coordinators that know of nothing pending; each comes through a client of its own."""


class PositionConfirmation:
    """One group's position as its coordinator knows it. Safe for threads; used in the process that made it."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection, self._group = connection, group
        self._lock = threading.Lock()
        self._asker: OffsetFetchClient | None = None

    def confirm(self, topic: str, partition: int, located: Committed | None, deadline: Deadline) -> None:
        """
        Return once a coordinator that knows of this transaction's pending offset says that the group stands there.

        Raises:
            Abortable: it stands elsewhere; or no coordinator was found that knows of the pending offset.
        """
        expected = None if located is None else located.offset
        patience, strangers = deadline.part(_CONFIRM_S), 0
        why = "no coordinator answered"
        while strangers < STRANGERS and not patience.expired():
            asker: OffsetFetchClient | None = None
            try:
                asker = self.client(patience.part(_OPEN_S))
                answer = asker.look(STEP, (topic, partition), patience.part(_ATTEMPT_S))
            except (DeadlineExceeded, Retriable) as error:
                why = str(error)
                time.sleep(min(PAUSE_S, patience.remaining_s()))
            else:
                if answer.aware and answer.offset == expected:
                    return
                if answer.aware:
                    self.forget()
                    raise Abortable(_moved(self._group, f"{topic}[{partition}]", expected, answer.offset))
                strangers += 1
                why = "who answered for it knows nothing of the offset just sent: it is cut off from the other brokers"
                why += ", or this transaction has ended"
            if asker is not None:
                self.forget(asker)
        place = f"{topic}[{partition}]"
        raise Abortable(f"{STEP}: where group {self._group} stands in {place} can't be confirmed: {why}; planned again")

    def forget(self, asker: OffsetFetchClient | None = None) -> None:
        """Ask through a new one from now on, unless that was done since ``asker`` was used."""
        with self._lock:
            kept = self._asker
            if kept is None or (asker is not None and asker is not kept):
                return
            self._asker = None
        kept.end()

    def client(self, deadline: Deadline) -> OffsetFetchClient:
        """The one that is kept; several threads may make one at first, the first one stays."""
        kept = self._asker
        if kept is not None:
            return kept
        # With it kafka-python is imported: 0.15 s, which a driver on Spark has no use for.
        from brew.kafka.offset_fetch import OffsetFetchClient  # noqa: PLC0415

        made = OffsetFetchClient(self._connection, self._group, deadline, _ATTEMPT_S)
        with self._lock:
            first = self._asker = self._asker or made
        if first is not made:
            made.end()
        return first


def _moved(group: str, place: str, expected: int | None, found: int | None) -> str:
    stood, stands = ("nowhere" if at is None else str(at) for at in (expected, found))
    return (
        f"{STEP}: group {group} stood at {stood} in {place} when this transaction began, and stands at {stands}: a "
        "coordinator that no longer is one told that, or somebody moved it; nothing was committed, planned again"
    )


_KEPT_S = 1.0
"""Patience with a client that was kept; a new one knows nothing, so it is not wrong about where the coordinator is."""
_NEW_S = 5.0
"""Then another one is made: threads share one, and a missing right was told to the first that asked it only."""
_MOST = 8


class Locator:
    """
    One group's committed offsets. Safe for threads; used in the process that made it (`locator`).

    With one made for each transaction two tasks committed 120 transactions a second, with one that is kept 163 (1,000
    records/s over four partitions, 2 cores).
    """

    def __init__(self, connection: Connection, group: str) -> None:
        self.connection, self.group, self.process = connection, group, os.getpid()
        self._lock = threading.Lock()
        self._client: Consumer | None = None
        self.standing = PositionConfirmation(connection, group)

    def committed(self, topic: str, partition: int, deadline: Deadline) -> Committed | None:
        """
        The group's stable committed offset; None when there is none. A client that failed is not asked again.

        Raises:
            DeadlineExceeded: a pending transaction did not end, or the coordinator did not answer, in time.
        """
        kept = self._client
        if kept is not None:
            try:
                patience = deadline.part(_KEPT_S)
                return committed(kept, topic, [partition], patience)[partition]
            except BrewError as error:
                self._give_up(kept)
                if not isinstance(error, DeadlineExceeded | Retriable):
                    raise
                deadline.check("locate")
        while True:
            client, patience = self.client(), deadline.part(_NEW_S)
            try:
                return committed(client, topic, [partition], patience)[partition]
            except DeadlineExceeded:
                self._give_up(client)
                if deadline.expired():
                    raise
            except BrewError:
                self._give_up(client)
                raise

    def client(self) -> Consumer:
        """The client; it never joins the group, and says so where a transaction takes offsets along."""
        with self._lock:
            if self._client is None:
                # Stable offsets are only waited for at read_committed.
                self._client = consumer(self.connection, self.group, READ_COMMITTED, **ONE_TRANSACTION)
            return self._client

    def invalidate(self) -> None:
        """Ask through new clients from now on: a transaction on what these said has come to nothing."""
        with self._lock:
            self._client = None
        self.standing.forget()

    def _give_up(self, client: Consumer) -> None:
        """Threads that still wait for its answer hold on to it; it ends with the last of them."""
        with self._lock:
            if self._client is client:
                self._client = None


_locators: deque[Locator] = deque()
_knowing = threading.Lock()


def locator(connection: Connection, group: str) -> Locator:
    """The one of this process for this group; a forked process makes its own."""
    with _knowing:
        for one in _locators:
            if (one.process, one.group, one.connection) == (os.getpid(), group, connection):
                return one
        if len(_locators) == _MOST:
            _locators.popleft().invalidate()
        made = Locator(connection, group)
        _locators.append(made)
        return made
