"""Limit concurrent work of the partitions of one process; a slow partition does not block the others for long."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from brew.transaction_sizing import TransactionSize, TransactionSizes

MAX_TRANSACTIONS = 4
"""Concurrent transactions; more compete for the processor (measured with 4 and 64 partitions, docs/decisions/0009)."""
MAX_PRODUCING = 1
"""Of these, those that read, enrich and produce: Python runs one thread at a time, and switching costs a tenth."""
MAX_READING = 8
"""Partitions that a drain reads concurrently: each reader has threads and wakes up while its queue is full."""
MAX_TURN_S, MAX_READING_TURN_S = 1.0, 5.0
"""A longer turn is waiting for a broker, and blocks no other; a reader's turn is as long as a large transaction."""


class ConcurrencyLimit:
    """
    Lets ``limit`` threads work at a time.

    A few transactions keep the processor as busy as 64, which only compete for it. A turn longer than ``max_turn_s``
    no longer counts, so that a partition with a slow broker does not block the others.
    """

    def __init__(self, limit: int, max_turn_s: float = MAX_TURN_S) -> None:
        self._limit, self._max_turn_s = limit, max_turn_s
        self._changed = threading.Condition()
        self._since: dict[object, float] = {}

    @contextmanager
    def turn(self, stop: threading.Event | None = None) -> Iterator[object]:
        """
        Wait for a turn, at most ``max_turn_s`` for each thread that has one; yield the turn for the other methods.

        If ``stop`` is set the wait ends (after `wake`), and the caller has to check ``stop`` itself.
        """
        turn = object()
        self._acquire(turn, stop)
        try:
            yield turn
        finally:
            self._release(turn)

    @contextmanager
    def released(self, turn: object) -> Iterator[None]:
        """Release the turn during the block, in which this thread waits for a broker."""
        self._release(turn)
        try:
            yield
        finally:
            self._acquire(turn)

    def resume_turn(self, turn: object) -> None:
        """Count the turn again, from now on for ``max_turn_s``; does nothing without a turn."""
        with self._changed:
            if turn in self._since:
                self._since[turn] = time.monotonic()

    def suspend(self, turn: object) -> None:
        """Stop counting the turn while there is nothing to do in it; does nothing without a turn."""
        with self._changed:
            if turn in self._since:
                self._since[turn] = -math.inf
                self._changed.notify()

    def wake(self) -> None:
        """Have all waiting threads check whether they should stop."""
        with self._changed:
            self._changed.notify_all()

    def _acquire(self, turn: object, stop: threading.Event | None = None) -> None:
        with self._changed:
            while not (stop is not None and stop.is_set()) and (wait_s := self._wait_s()) > 0:
                self._changed.wait(wait_s)
            self._since[turn] = time.monotonic()

    def _release(self, turn: object) -> None:
        with self._changed:
            del self._since[turn]
            self._changed.notify()

    def _wait_s(self) -> float:
        """Seconds until the oldest turn no longer counts; 0 if there is room."""
        now = time.monotonic()
        counted = [left_s for since in self._since.values() if (left_s := since + self._max_turn_s - now) > 0]
        return 0.0 if len(counted) < self._limit else min(counted)


class SharedLimits:
    """
    The limits that the partitions of one process share: on reading a backlog, on transactions and on producing, and the
    adaptive sizes of transactions.
    """

    def __init__(self, first: TransactionSize) -> None:
        self.sizes = TransactionSizes(first)
        self.reading = ConcurrencyLimit(MAX_READING, MAX_READING_TURN_S)
        self.transactions = ConcurrencyLimit(MAX_TRANSACTIONS)
        self.producing = ConcurrencyLimit(MAX_PRODUCING)
