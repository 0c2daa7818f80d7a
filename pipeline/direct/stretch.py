"""The input of one transaction, read while it is written: how far it goes is known when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from pipeline.direct.turns import Turns
from pipeline.ports import Rows
from protocol.kafka.tail import Taken

CHUNK = 10_000
"""Records taken at a time: enough to spare calls, few enough that what was read is in the caches when it is written."""


class Source(Protocol):
    """The part of `protocol.kafka.tail.Tail` that is used here."""

    def take(self, most: int, most_bytes: int, wait_s: float) -> Taken | None: ...


class Stretch:
    """
    What one transaction writes, read while it is written: a few thousand records stay in the processor's caches.

    Ends where nothing more is there now, or a bound is reached.
    """

    def __init__(self, tail: Source, first: Taken, most: int, most_bytes: int, producing: Turns) -> None:
        self._tail, self._taken, self._producing = tail, first, producing
        self._most, self._most_bytes = most, most_bytes
        self._turn: object = None

    def reached(self) -> int:
        """One past the last offset that was read so far."""
        return self._taken.until

    def aside(self) -> AbstractContextManager[None]:
        """Around a wait between two pieces: another partition of this process produces meanwhile."""
        return self._producing.aside(self._turn)

    def __iter__(self) -> Iterator[Rows]:
        with self._producing.one() as self._turn:
            yield from self._chunks()

    def _chunks(self) -> Iterator[Rows]:
        taken: Taken | None = self._taken
        while taken is not None:
            self._taken = taken
            yield from _rows(taken)
            self._most -= len(taken.records)
            self._most_bytes -= taken.size
            some = min(CHUNK, self._most)
            taken = self._tail.take(some, self._most_bytes, 0) if some > 0 and self._most_bytes > 0 else None


def _rows(taken: Taken) -> Iterator[Rows]:
    """The kernel's parallel lists; none when there is nothing but markers."""
    records = taken.records
    if records:
        yield Rows(
            [one.offset() for one in records],
            [one.key() for one in records],
            [one.value() for one in records],
            [one.headers() for one in records],
            [one.timestamp()[1] for one in records],
        )
