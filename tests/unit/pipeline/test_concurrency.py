"""Turns: so many work at once and no more, and one that lasts too long keeps nobody."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from brew.readers.direct.worker import ConcurrencyLimit

WAIT_S = 20.0


class Workers:
    """Threads that take a turn and hold it until they are let go."""

    def __init__(self, turns: ConcurrencyLimit, count: int) -> None:
        self._turns, self._lock = turns, threading.Lock()
        self.inside, self.leave = threading.Semaphore(0), threading.Semaphore(0)
        self._working, self.most = 0, 0
        with_turns = ThreadPoolExecutor(count)
        self._done = [with_turns.submit(self._work) for _ in range(count)]

    def _count(self, more: int) -> None:
        with self._lock:
            self._working += more
            self.most = max(self.most, self._working)

    def _work(self) -> None:
        with self._turns.turn():
            self._count(1)
            self.inside.release()
            assert self.leave.acquire(timeout=WAIT_S)
            self._count(-1)

    def arrived(self, count: int) -> bool:
        return all(self.inside.acquire(timeout=WAIT_S) for _ in range(count))

    def end(self) -> None:
        self.leave.release(len(self._done))
        for one in self._done:
            one.result(WAIT_S)


def started(target: Callable[..., None], *arguments: object) -> threading.Thread:
    """A thread that has had some time."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    thread.join(0.1)
    return thread


def test_so_many_work_at_once_and_the_next_comes_when_one_leaves() -> None:
    workers = Workers(ConcurrencyLimit(limit=3, max_turn_s=WAIT_S), 8)
    assert workers.arrived(3)
    for _ in range(5):
        workers.leave.release()
        assert workers.arrived(1)
    workers.end()
    assert workers.most == 3


def test_a_turn_that_lasts_too_long_keeps_nobody() -> None:
    workers = Workers(ConcurrencyLimit(limit=1, max_turn_s=0.05), 4)
    # None is ever let go: they all work only because the turns before theirs have lasted too long.
    assert workers.arrived(4)
    workers.end()


def test_a_turn_is_given_back_when_its_work_fails() -> None:
    turns = ConcurrencyLimit(limit=1, max_turn_s=WAIT_S)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), turns.turn():
            1 / 0  # noqa: B018 - work that fails
    workers = Workers(turns, 1)
    assert workers.arrived(1)
    workers.end()


@contextmanager
def suspended(turns: ConcurrencyLimit, turn: object) -> Iterator[None]:
    turns.suspend(turn)
    yield
    turns.resume_turn(turn)


@pytest.mark.parametrize("while_waiting", [ConcurrencyLimit.released, suspended])
def test_who_waits_aside_lets_another_one_in_and_has_its_turn_again(while_waiting: Callable[..., Any]) -> None:
    turns, inside = ConcurrencyLimit(1, 60.0), threading.Event()

    def other() -> None:
        with turns.turn():
            inside.set()

    with turns.turn() as turn:
        first = started(other)
        assert not inside.is_set()
        with while_waiting(turns, turn):
            first.join(WAIT_S)
            assert inside.is_set()
        inside.clear()
        late = started(other)
        assert not inside.is_set(), "it works again, so others wait"
    late.join(WAIT_S)
    assert inside.is_set()
    turns.resume_turn(turn)
    turns.suspend(None)
    assert turns._wait_s() == 0.0, "who has no turn takes none from others"


def test_the_next_one_comes_when_the_oldest_turn_has_lasted_too_long_not_the_youngest() -> None:
    """A slow broker keeps nobody for longer than its own turn, however many others have come since."""
    turns = ConcurrencyLimit(limit=2, max_turn_s=100.0)
    oldest, youngest = object(), object()
    turns._acquire(oldest)
    turns._acquire(youngest)
    turns._since[oldest] -= 90.0
    assert 5.0 < turns._wait_s() <= 10.0
    turns._since[oldest] -= 10.0
    assert turns._wait_s() == 0.0
    turns._acquire(object())
    assert turns._wait_s() > 50.0, "two others count, whatever has lasted too long"


def test_who_waited_aside_and_failed_gives_its_turn_back_once() -> None:
    turns = ConcurrencyLimit(1, 60.0)
    with pytest.raises(TimeoutError), turns.turn() as turn, turns.released(turn):
        raise TimeoutError
    assert turns._since == {}


def test_whoever_is_told_to_stop_is_woken_and_not_the_one_that_came_first() -> None:
    """A partition that is called back leaves at once, whoever is still at work; any of many may have waited longer."""
    turns, stops = ConcurrencyLimit(1, 60.0), [threading.Event() for _ in range(3)]
    left: queue.Queue[int] = queue.Queue()

    def waiting(number: int) -> None:
        with turns.turn(stops[number]):
            left.put(number)

    with turns.turn():
        threads = [started(waiting, number) for number in range(3)]
        for number in (2, 0, 1):
            assert left.empty()
            stops[number].set()
            turns.wake()
            assert left.get(timeout=WAIT_S) == number
            threads[number].join(WAIT_S)
        assert turns._wait_s() > 0, "the first one's turn still counts"
