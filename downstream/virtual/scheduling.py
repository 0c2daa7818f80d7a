"""Which record may run, which offset may be stored, what follows a failure; and threads that process keys in order."""

from __future__ import annotations

import enum
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from brew.deadline import Deadline
from brew.errors import UsageError

T = TypeVar("T")


class KeyedQueue(Generic[T]):
    """
    A queue of tasks, each with a key. A key's first task stays first until it is finished, however often it is
    postponed; other keys continue meanwhile. A free worker takes any key that is ready, so no worker idles while
    another has several keys waiting.
    """

    def __init__(self) -> None:
        self._pieces: dict[Hashable, deque[T]] = {}
        self._ready: deque[Hashable] = deque()
        self._later: list[tuple[float, int, Hashable]] = []
        self._number = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._pieces.values()))

    def put(self, key: Hashable, piece: T) -> None:
        """Add a task after the others of its key."""
        behind = self._pieces.get(key)
        if behind is None:
            self._pieces[key] = deque([piece])
            self._ready.append(key)
        else:
            behind.append(piece)

    def take(self, now: float) -> tuple[Hashable, T] | None:
        """Return a key and its first task for one worker; None if none is ready."""
        while self._later and self._later[0][0] <= now:
            self._ready.append(heapq.heappop(self._later)[2])
        if not self._ready:
            return None
        key = self._ready.popleft()
        return key, self._pieces[key][0]

    def due(self) -> float | None:
        """Return when the next postponed task is due; None if there is none."""
        return self._later[0][0] if self._later else None

    def finish(self, key: Hashable) -> None:
        """Finish the task returned by `take`; the key's next one may start."""
        pieces = self._pieces[key]
        pieces.popleft()
        if pieces:
            self._ready.append(key)
        else:
            del self._pieces[key]

    def put_off(self, key: Hashable, until: float) -> None:
        """Postpone the failed task returned by `take` until ``until``; its key waits with it."""
        heapq.heappush(self._later, (until, next(self._number), key))


class OffsetTracker:
    """
    Records of one partition, taken in ascending order and finished in any order. `position` is the next offset to
    store: every record below it is finished. A crash therefore repeats the records between the stored position and the
    last one taken, at most `span`, and skips none.
    """

    def __init__(self, start: int) -> None:
        """``start``: the offset at which reading begins; everything below it is done."""
        self.next = start
        """The next offset to read."""
        self._taken: deque[int] = deque()
        self._unfinished: set[int] = set()

    @property
    def position(self) -> int:
        """The oldest unfinished record; if there is none, the next offset to read."""
        return self._taken[0] if self._taken else self.next

    @property
    def span(self) -> int:
        """Records taken but not yet passed by the position, finished or not: what a crash would repeat."""
        return len(self._taken)

    @property
    def unfinished(self) -> int:
        return len(self._unfinished)

    def take(self, offset: int) -> None:
        """Note that a record was given to a worker; raises `ValueError` if its offset is below one already read."""
        if offset < self.next:
            raise ValueError(f"offset {offset} was read already: the next one is {self.next} or later")
        self._taken.append(offset)
        self._unfinished.add(offset)
        self.next = offset + 1

    def finish(self, offset: int) -> None:
        """Note that a record's effect is done, or its dead letter; raises `ValueError` if it is not a taken one."""
        if offset not in self._unfinished:
            raise ValueError(f"offset {offset} is not in progress")
        self._unfinished.discard(offset)
        while self._taken and self._taken[0] not in self._unfinished:
            self._taken.popleft()

    def passed(self, until: int) -> None:
        """Note that no further record lies below ``until``: markers at the log's end count as read."""
        self.next = max(self.next, until)


class OnFailure(enum.StrEnum):
    """What happens to a record whose last attempt has failed."""

    DEAD_LETTER = "dead-letter"
    STOP = "stop"


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a record is tried; the delay between attempts is ``first_s``, doubled each time, at most ``most_s``."""

    attempts: int = 5
    first_s: float = 0.1
    most_s: float = 10.0

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise UsageError(f"--attempts is {self.attempts}: a record needs at least one attempt; set it to 1 or more")
        if not 0 < self.first_s <= self.most_s:
            raise UsageError(
                f"--back-off-s is {self.first_s:g} and --most-back-off-s {self.most_s:g}: "
                "the first must be above 0 and not above the second"
            )

    def after(self, failures: int) -> float | None:
        """Return the seconds until the next attempt after that many failures; None if there is none."""
        if failures >= self.attempts:
            return None
        doublings = min(failures - 1, 64)
        return float(min(self.most_s, self.first_s * 2**doublings))


Work = Callable[[T], float | None]
"""Handle a piece; None: finished. Seconds: it failed, try again after them. An exception stops all workers."""


class Workers(Generic[T]):
    """
    ``count`` threads on one `KeyedQueue`; `put` never blocks, so callers must limit how many tasks are unfinished. The
    first exception of ``work`` stops all workers, and `check` raises it in the calling thread.
    """

    def __init__(self, count: int, work: Work[T]) -> None:
        self._work = work
        self._queue: KeyedQueue[T] = KeyedQueue()
        self._lock = threading.Lock()
        self._work_came = threading.Condition(self._lock)
        self._came_to_rest = threading.Condition(self._lock)
        self._running = 0
        self._stopped = False
        self._failure: BaseException | None = None
        self._threads = [
            # A hung handler must not block the exit.
            threading.Thread(target=self._run, name=f"virtual-{n}", daemon=True)
            for n in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, pieces: Iterable[tuple[Hashable, T]]) -> None:
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
        if self._failure is not None:
            raise self._failure

    def stop(self, deadline: Deadline) -> bool:
        """Start nothing more and wait for running handlers; return False if one still runs at the deadline."""
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
            except BaseException as error:  # noqa: BLE001 - `check` raises it in the feeding thread
                failure = error
            with self._lock:
                self._running -= 1
                if failure is not None:
                    self._failure = self._failure or failure
                    self._stopped = True
                    self._work_came.notify_all()
                elif again_s is None:
                    self._queue.finish(key)  # no notify needed: this thread takes the key's next task, or another one
                else:
                    self._queue.put_off(key, time.monotonic() + again_s)
                if self._running == 0:
                    self._came_to_rest.notify_all()

    def _next(self) -> tuple[Hashable, T] | None:
        """Wait for a key's first task; return None when the workers stop."""
        with self._lock:
            while not self._stopped:
                taken = self._queue.take(time.monotonic())
                if taken is not None:
                    self._running += 1
                    return taken
                due = self._queue.due()
                self._work_came.wait(None if due is None else max(0.0, due - time.monotonic()))
            return None
