"""Limits on what the partitions of one process do at once; none waits long for one that is slow."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from brew.transaction_sizing import TransactionSize, TransactionSizes

AT_ONCE = 4
"""Transactions; more take the processor from each other (measured over 4 and 64 partitions, docs/decisions/0009)."""
PRODUCING = 1
"""Of these, those that read, enrich and produce: Python runs one thread, and changing between them costs a tenth."""
READING = 8
"""Partitions that a drain reads at a time: a reader costs threads, wakes up when it is full, and waits for its turn."""
LONGEST_S, LONGEST_READING_S = 1.0, 5.0
"""A turn that lasts longer waits for a broker, and keeps nobody; a reader's is as long as a large transaction."""


class ConcurrencyLimit:
    """
    Lets ``at_once`` threads work at a time.

    64 transactions of a process at once take the processor from each other; a few keep it as busy. What has lasted for
    ``longest_s`` no longer counts, so that a partition whose broker is slow stops no other.
    """

    def __init__(self, at_once: int, longest_s: float = LONGEST_S) -> None:
        self._at_once, self._longest_s = at_once, longest_s
        self._changed = threading.Condition()
        self._since: dict[object, float] = {}

    @contextmanager
    def one(self, stop: threading.Event | None = None) -> Iterator[object]:
        """
        Wait for a turn, ``longest_s`` at most for each thread that has one; yields what `aside` takes.

        Whoever is stopped waits no longer (after `wake`), and has to check ``stop`` itself.
        """
        turn = object()
        self._acquire(turn, stop)
        try:
            yield turn
        finally:
            self._release(turn)

    @contextmanager
    def aside(self, turn: object) -> Iterator[None]:
        """Within a turn: let others have it while this thread waits."""
        self._release(turn)
        try:
            yield
        finally:
            self._acquire(turn)

    def resume_turn(self, turn: object) -> None:
        """Count the turn again, from now on for ``longest_s``; does nothing without a turn."""
        with self._changed:
            if turn in self._since:
                self._since[turn] = time.monotonic()

    def suspend(self, turn: object) -> None:
        """Let the turn block nobody while there is nothing to do in it; does nothing without a turn."""
        with self._changed:
            if turn in self._since:
                self._since[turn] = -math.inf
                self._changed.notify()

    def wake(self) -> None:
        """Have all that wait check whether they are to stop."""
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
        """Seconds until the oldest turn no longer counts; 0 when there is room."""
        now = time.monotonic()
        counted = [left for since in self._since.values() if (left := since + self._longest_s - now) > 0]
        return 0.0 if len(counted) < self._at_once else min(counted)


class SharedLimits:
    """
    What the partitions of one process share: limits on reading a backlog, on transactions and on producing in them, and
    the sizes of transactions that they have learned.
    """

    def __init__(self, first: TransactionSize) -> None:
        self.sizes = TransactionSizes(first)
        self.reading = ConcurrencyLimit(READING, LONGEST_READING_S)
        self.transactions = ConcurrencyLimit(AT_ONCE)
        self.producing = ConcurrencyLimit(PRODUCING)
