"""Once every few seconds, whichever of the threads comes first."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Every:
    """A first time after ``seconds``, too: what begins with it has just been looked at."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._clock = seconds, clock
        self._lock, self._next = threading.Lock(), clock() + seconds

    def due(self) -> bool:
        """Whether it is time; who is told so is the only one until the next time."""
        with self._lock:
            if self._clock() < self._next:
                return False
            self._next = self._clock() + self._seconds
            return True
