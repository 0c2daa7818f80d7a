"""Turns: so many work at once and no more, and one that lasts too long keeps nobody."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

import pytest

from brew.deadline import Deadline
from brew.readers.direct.worker import ConcurrencyLimit

WAIT_S = 20.0


class Workers:
    """Threads that take a turn and hold it until they are let go."""

    def __init__(self, turns: ConcurrencyLimit, count: int) -> None:
        self._turns, self._changed = turns, threading.Condition()
        self.working, self.most, self.done = 0, 0, 0
        self._leave = 0
        self.threads = [threading.Thread(target=self._work, daemon=True) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def _work(self) -> None:
        with self._turns.turn(), self._changed:
            self.working += 1
            self.most = max(self.most, self.working)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._leave > 0, WAIT_S)
            self._leave -= 1
            self.working -= 1
            self.done += 1
            self._changed.notify_all()

    def until(self, working: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.working == working, WAIT_S)

    def let_go(self, count: int) -> None:
        with self._changed:
            self._leave += count
            self._changed.notify_all()

    def join(self) -> None:
        deadline = Deadline(WAIT_S)
        for thread in self.threads:
            thread.join(deadline.remaining_s())


def started(target: Callable[..., None], *arguments: object) -> threading.Thread:
    """A thread that has had some time."""
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    thread.join(0.1)
    return thread


def test_so_many_work_at_once_and_the_next_comes_when_one_leaves() -> None:
    workers = Workers(ConcurrencyLimit(limit=3, max_turn_s=WAIT_S), 8)
    assert workers.until(3)
    for _ in range(8):
        workers.let_go(1)
    workers.join()
    assert workers.done == 8
    assert workers.most == 3


def test_a_turn_that_lasts_too_long_keeps_nobody() -> None:
    workers = Workers(ConcurrencyLimit(limit=1, max_turn_s=0.05), 4)
    # None is ever let go: they all work only because the turns before theirs have lasted too long.
    assert workers.until(4)
    workers.let_go(4)
    workers.join()
    assert workers.done == 4


def test_a_turn_is_given_back_when_its_work_fails() -> None:
    turns = ConcurrencyLimit(limit=1, max_turn_s=WAIT_S)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), turns.turn():
            1 / 0  # noqa: B018 - work that fails
    workers = Workers(turns, 1)
    assert workers.until(1)
    workers.let_go(1)
    workers.join()


def test_who_waits_aside_lets_another_one_in_and_has_its_turn_again() -> None:
    turns, inside, done = ConcurrencyLimit(1, 60.0), threading.Event(), threading.Event()

    def other() -> None:
        with turns.turn():
            inside.set()
        done.set()

    with turns.turn() as turn:
        started(other)
        assert not inside.is_set()
        with turns.released(turn):
            assert done.wait(20)
        inside.clear()
        late = started(other)
        assert not inside.is_set(), "it works again, so others wait"
    late.join(20)
    assert inside.is_set()


def test_a_turn_that_goes_on_counts_and_one_that_steps_back_keeps_nobody() -> None:
    turns, inside = ConcurrencyLimit(1, 60.0), threading.Event()

    def other() -> None:
        with turns.turn():
            inside.set()

    with turns.turn() as turn:
        started(other)
        turns.suspend(turn)
        assert inside.wait(WAIT_S)
        inside.clear()
        turns.resume_turn(turn)
        late = started(other)
        assert not inside.is_set(), "it counts again"
    late.join(WAIT_S)
    assert inside.is_set()
    turns.resume_turn(turn)
    turns.suspend(None)
    assert turns._wait_s() == 0.0, "who has no turn takes none from others"


def test_who_is_told_to_stop_waits_no_longer_and_takes_nobodys_turn() -> None:
    """A partition that is called back leaves at once, whoever is still at work."""
    turns, stop, left = ConcurrencyLimit(1, 60.0), threading.Event(), threading.Event()

    def waiting() -> None:
        with turns.turn(stop):
            left.set()

    with turns.turn():
        thread = started(waiting)
        assert not left.is_set()
        stop.set()
        turns.wake()
        assert left.wait(WAIT_S)
        thread.join(WAIT_S)
        assert turns._wait_s() > 0, "the first one's turn still counts"


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
    """A time-out of the brokers is raised out of the wait itself."""
    turns = ConcurrencyLimit(1, 60.0)
    with pytest.raises(TimeoutError), turns.turn() as turn, turns.released(turn):
        raise TimeoutError
    assert turns._since == {}


def test_whoever_is_told_to_stop_is_woken_and_not_the_one_that_came_first() -> None:
    """One partition of many is called back, and any of them may have waited longer."""
    turns, stops = ConcurrencyLimit(1, 60.0), [threading.Event() for _ in range(3)]
    left: queue.Queue[int] = queue.Queue()

    def waiting(number: int) -> None:
        with turns.turn(stops[number]):
            left.put(number)

    with turns.turn():
        for number in range(3):
            started(waiting, number)
        for number in (2, 0, 1):
            stops[number].set()
            turns.wake()
            assert left.get(timeout=WAIT_S) == number
