"""Turns of the partitions of one process: a few write at a time, and none waits long for one that is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

AT_ONCE = 4
"""Transactions; more take the processor from each other (measured over 4 and 64 partitions, docs/decisions/0009)."""
PRODUCING = 1
"""Of these, those that read, enrich and produce: Python runs one thread, and changing between them costs a tenth."""
LONGEST_S = 1.0
"""A turn that lasts longer waits for a broker, and keeps nobody."""


class Turns:
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
    def one(self) -> Iterator[object]:
        """Wait for a turn, ``longest_s`` at most for each that holds one, and work; what `aside` wants to have."""
        turn = object()
        self._take(turn)
        try:
            yield turn
        finally:
            self._give(turn)

    @contextmanager
    def aside(self, turn: object) -> Iterator[None]:
        """Within a turn: wait for somebody, while others have it."""
        self._give(turn)
        try:
            yield
        finally:
            self._take(turn)

    def _take(self, turn: object) -> None:
        with self._changed:
            while (wait_s := self._until_room()) > 0:
                self._changed.wait(wait_s)
            self._since[turn] = time.monotonic()

    def _give(self, turn: object) -> None:
        with self._changed:
            del self._since[turn]
            self._changed.notify()

    def _until_room(self) -> float:
        """Seconds until the oldest turn no longer counts; 0 when there is room."""
        now = time.monotonic()
        counted = [left for since in self._since.values() if (left := since + self._longest_s - now) > 0]
        return 0.0 if len(counted) < self._at_once else min(counted)


class Desk:
    """What the partitions of one process share: turns of whole transactions, and of the producing in them."""

    def __init__(self) -> None:
        self.transactions = Turns(AT_ONCE)
        self.producing = Turns(PRODUCING)
