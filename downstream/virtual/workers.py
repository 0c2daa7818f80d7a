"""Threads that work through keys: what handlers do is slow I/O, so a thread waits and the others run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, TypeVar

from brew.deadline import Deadline
from downstream.virtual.scheduling import KeyedQueue

T = TypeVar("T")

Work = Callable[[T], float | None]
"""Handle a piece; None: finished. Seconds: it failed, try again after them. An exception stops all workers."""


class Workers(Generic[T]):
    """
    ``count`` threads on one `KeyedQueue`; `put` never blocks, so whoever feeds them keeps an eye on how much is out.

    The first exception of ``work`` is kept, no further piece is begun, and `check` raises it where the feeder looks.
    """

    def __init__(self, count: int, work: Work[T], now: Callable[[], float] = time.monotonic) -> None:
        self._work, self._now = work, now
        self._queue: KeyedQueue[T] = KeyedQueue()
        self._lock = threading.Lock()
        self._work_came = threading.Condition(self._lock)
        self._came_to_rest = threading.Condition(self._lock)
        self._running = 0
        self._stopped = False
        self._failure: BaseException | None = None
        self._threads = [
            threading.Thread(
                target=self._run, name=f"virtual-{n}", daemon=True
            )  # a hung handler must not hold the exit
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, pieces: Iterable[tuple[Hashable, T]]) -> None:
        """Add pieces, each under its key."""
        with self._lock:
            count = 0
            for key, piece in pieces:
                self._queue.put(key, piece)
                count += 1
            self._work_came.notify(count)

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def check(self) -> None:
        """Raise what a worker could not handle."""
        if self._failure is not None:
            raise self._failure

    def stop(self, deadline: Deadline) -> bool:
        """Begin nothing more and wait for what is running; False when a handler was still running at the deadline."""
        with self._lock:
            self._stopped = True
            self._work_came.notify_all()
            return self._came_to_rest.wait_for(lambda: self._running == 0, deadline.remaining_s())

    def _run(self) -> None:
        while (taken := self._next()) is not None:
            key, piece = taken
            again_s: float | None = None
            failure: BaseException | None = None
            try:
                again_s = self._work(piece)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the feeder's thread has to hear of it
                failure = error
            with self._lock:
                self._running -= 1
                if failure is not None:
                    self._failure = self._failure or failure
                    self._stopped = True
                    self._work_came.notify_all()
                elif again_s is None:
                    self._queue.finish(key)  # nobody is woken: this thread takes the key's next piece, or another
                else:
                    self._queue.put_off(key, self._now() + again_s)
                if self._running == 0:
                    self._came_to_rest.notify_all()

    def _next(self) -> tuple[Hashable, T] | None:
        """A key's first piece, waiting for one; None when the workers stop."""
        with self._lock:
            while not self._stopped:
                taken = self._queue.take(self._now())
                if taken is not None:
                    self._running += 1
                    return taken
                due = self._queue.due()
                self._work_came.wait(None if due is None else max(0.0, due - self._now()))
            return None
