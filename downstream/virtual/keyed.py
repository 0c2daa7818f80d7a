"""Work by key: one piece of a key at a time, in order, any number of keys at once; pure, time is an argument."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class KeyedQueue(Generic[T]):
    """
    Pieces of work, each under a key.

    A key's first piece stays its first until it is finished, however often it is put off; other keys go on meanwhile.
    A free worker takes whatever key is ready, so that no worker idles while another one has a heap of keys to itself.
    """

    def __init__(self) -> None:
        self._pieces: dict[Hashable, deque[T]] = {}
        self._ready: deque[Hashable] = deque()
        self._later: list[tuple[float, int, Hashable]] = []
        self._number = itertools.count()

    def __len__(self) -> int:
        """Pieces that are not finished."""
        return sum(map(len, self._pieces.values()))

    def put(self, key: Hashable, piece: T) -> None:
        """Add a piece behind the others of its key."""
        behind = self._pieces.get(key)
        if behind is None:
            self._pieces[key] = deque([piece])
            self._ready.append(key)
        else:
            behind.append(piece)

    def take(self, now: float) -> tuple[Hashable, T] | None:
        """A key's first piece, for one worker; None when all are in work, put off, or there is none."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        if not self._ready:
            return None
        key = self._ready.popleft()
        return key, self._pieces[key][0]

    def due(self) -> float | None:
        """When the next piece that was put off comes back; None when none was."""
        return self._later[0][0] if self._later else None

    def finish(self, key: Hashable) -> None:
        """The piece that `take` gave is finished; the key's next one may begin."""
        pieces = self._pieces[key]
        pieces.popleft()
        if pieces:
            self._ready.append(key)
        else:
            del self._pieces[key]

    def put_off(self, key: Hashable, until: float) -> None:
        """The piece that `take` gave failed; it comes again at ``until``, and its key waits with it."""
        heapq.heappush(self._later, (until, next(self._number), key))
