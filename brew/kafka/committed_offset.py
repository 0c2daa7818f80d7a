"""
Locate a group's stable committed offset, and confirm it after send-offsets.

A coordinator that is partitioned from the other brokers does not know that it was replaced, and returns stale offsets
(docs/decisions/0012). It also does not know the offsets that its successor accepted. So a coordinator that reports our
offset as pending has also seen everything committed before it.
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
from brew.errors import Abortable, BrewError, DeadlineExceeded, Retriable, Unreachable
from brew.kafka.clients import ONE_TRANSACTION, consumer
from brew.kafka.offsets import committed
from brew.names import READ_COMMITTED
from brew.offsets import Committed

if TYPE_CHECKING:
    from brew.kafka.group_requests import OffsetFetchClient

STEP = "send-offsets"
_CONFIRM_S = 20.0
_OPEN_S, _ATTEMPT_S = 2.0, 3.0
"""
Time-outs for creating a client (one unresponsive bootstrap server may use all of it) and for its answer. Each failed
attempt doubles both for the next one: with TLS and a login, a new client needs over a dozen round trips.
"""
_MAX_PATIENCE = 4
MAX_UNAWARE_ANSWERS = 6
"""How many answers without a pending offset are accepted before giving up; each comes through a new client."""


class PositionConfirmation:
    """Confirms one group's position with its coordinator. Thread-safe; must not be used across a fork."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection, self._group = connection, group
        self._lock = threading.Lock()
        self._client: OffsetFetchClient | None = None

    def confirm(self, topic: str, partition: int, located: Committed | None, deadline: Deadline) -> None:
        """
        Return once a coordinator that knows this transaction's pending offset reports ``located`` as committed.

        Raises:
            Abortable: the committed offset differs, or no coordinator knows the pending offset.
        """
        expected = None if located is None else located.offset
        wait, unaware, patience = deadline.part(_CONFIRM_S), 0, 1
        reason = "no coordinator answered"
        while unaware < MAX_UNAWARE_ANSWERS and not wait.expired():
            client: OffsetFetchClient | None = None
            try:
                client = self.client(wait.part(_OPEN_S * patience), _ATTEMPT_S * patience)
                answer = client.fetch(STEP, (topic, partition), wait.part(_ATTEMPT_S * patience))
            except (DeadlineExceeded, Retriable, Unreachable) as error:
                reason, patience = str(error), min(2 * patience, _MAX_PATIENCE)
                time.sleep(min(PAUSE_S, wait.remaining_s()))
            else:
                if answer.aware and answer.offset == expected:
                    return
                if answer.aware:
                    self.forget()
                    raise Abortable(_moved_message(self._group, f"{topic}[{partition}]", expected, answer.offset))
                unaware += 1
                reason = "the coordinator does not know the offset just sent: it may be partitioned from the other "
                reason += "brokers, or this transaction has ended"
            if client is not None:
                self.forget(client)
        place = f"{topic}[{partition}]"
        raise Abortable(
            f"{STEP}: the position of group {self._group} in {place} can't be confirmed: {reason}; "
            "the range is planned again"
        )

    def forget(self, client: OffsetFetchClient | None = None) -> None:
        """Discard the cached client, unless ``client`` has already been replaced by another one."""
        with self._lock:
            current = self._client
            if current is None or (client is not None and client is not current):
                return
            self._client = None
        current.end()

    def client(self, deadline: Deadline, request_s: float = _ATTEMPT_S) -> OffsetFetchClient:
        """Return the cached client; if several threads create one at the same time, the first one is kept."""
        cached = self._client
        if cached is not None:
            return cached
        # Imports kafka-python, which takes 0.15 s; a driver on Spark does not need it.
        from brew.kafka.group_requests import OffsetFetchClient  # noqa: PLC0415

        client = OffsetFetchClient(self._connection, self._group, deadline, request_s)
        with self._lock:
            winner = self._client = self._client or client
        if winner is not client:
            client.end()
        return winner


def _moved_message(group: str, place: str, expected: int | None, committed_now: int | None) -> str:
    stood, stands = ("nowhere" if offset is None else str(offset) for offset in (expected, committed_now))
    return (
        f"{STEP}: group {group} stood at {stood} in {place} when this transaction began, and stands at {stands}: a "
        "replaced coordinator reported a stale offset, or the offset was reset; nothing was committed, the range is "
        "planned again"
    )


_CACHED_CLIENT_S = 1.0
"""Time for a cached client, which may ask the wrong coordinator; a new client looks the coordinator up."""
_NEW_CLIENT_S = 5.0
"""
Time for a new client, doubled for one more: threads share one, which reports a missing right only to the first that
asks.
"""
_MAX_LOCATORS = 8


class Locator:
    """
    One group's committed offsets. Thread-safe; must not be used across a fork (see `locator`).

    The client is cached: two tasks commit 163 transactions per second with it, and 120 with a client for each
    transaction (1,000 records/s over four partitions, 2 cores).
    """

    def __init__(self, connection: Connection, group: str) -> None:
        self.connection, self.group, self.process = connection, group, os.getpid()
        self._lock = threading.Lock()
        self._client: Consumer | None = None
        self.confirmation = PositionConfirmation(connection, group)

    def committed(self, topic: str, partition: int, deadline: Deadline) -> Committed | None:
        """
        Return the group's stable committed offset, or None if there is none. A failed client is not used again.

        Raises:
            DeadlineExceeded: a pending transaction did not end, or the coordinator did not answer, in time.
        """
        cached = self._client
        if cached is not None:
            try:
                attempt = deadline.part(_CACHED_CLIENT_S)
                return committed(cached, topic, [partition], attempt)[partition]
            except BrewError as error:
                self._discard(cached)
                if not isinstance(error, DeadlineExceeded | Retriable):
                    raise
                deadline.check("locate")
        patience_s = _NEW_CLIENT_S
        while True:
            client, attempt = self.client(), deadline.part(patience_s)
            try:
                return committed(client, topic, [partition], attempt)[partition]
            except DeadlineExceeded:
                self._discard(client)
                if deadline.expired():
                    raise
                patience_s *= 2
            except BrewError:
                self._discard(client)
                raise

    def client(self) -> Consumer:
        """Return the consumer, which never joins the group; send-offsets passes its group metadata."""
        with self._lock:
            if self._client is None:
                # The client waits for stable offsets only with read_committed.
                self._client = consumer(self.connection, self.group, READ_COMMITTED, **ONE_TRANSACTION)
            return self._client

    def invalidate(self) -> None:
        """Use new clients from now on, because a transaction based on the answers of the cached ones failed."""
        with self._lock:
            self._client = None
        self.confirmation.forget()

    def _discard(self, client: Consumer) -> None:
        """Drop the reference; threads that still wait for its answer keep the client alive until they are done."""
        with self._lock:
            if self._client is client:
                self._client = None


_locators: deque[Locator] = deque()
_locators_lock = threading.Lock()


def locator(connection: Connection, group: str) -> Locator:
    """Return this process's locator of the group; a forked process makes its own."""
    with _locators_lock:
        for candidate in _locators:
            if (candidate.process, candidate.group, candidate.connection) == (os.getpid(), group, connection):
                return candidate
        if len(_locators) == _MAX_LOCATORS:
            _locators.popleft().invalidate()
        created = Locator(connection, group)
        _locators.append(created)
        return created
