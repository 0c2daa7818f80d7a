"""The direct reader in a worker: turns of so many at once, and what one transaction reads while it is written."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from harness.fakes import log_record

from brew.kafka.log_reader import FetchedRecords
from brew.readers.direct import worker
from brew.readers.direct.worker import ConcurrencyLimit, TransactionInput

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


SIZE = 100


@dataclass
class FakeTail:
    """Offsets up to ``end`` are there; remembers what was asked for."""

    end: int
    position: int = 0
    takes: list[tuple[int, int, float]] = field(default_factory=list)

    def take(self, most: int, most_bytes: int, wait_s: float) -> FetchedRecords | None:
        self.takes.append((most, most_bytes, wait_s))
        start = self.position
        self.position = min(self.end, start + most, start + max(1, most_bytes // SIZE))
        return taken(start, self.position) if self.position > start else None


def taken(start: int, end: int) -> FetchedRecords:
    records = [log_record(offset, value=b"{}", timestamp=(1, offset * 10)) for offset in range(start, end)]
    return FetchedRecords(records, end, (end - start) * SIZE)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "CHUNK", 10)


def read(end: int, most: int, most_bytes: int) -> tuple[TransactionInput, list[int], FakeTail]:
    tail = FakeTail(end)
    first = tail.take(10, most_bytes, 0.05)
    written = TransactionInput(tail, first, most, most_bytes, ConcurrencyLimit(1))
    assert written.reached() == first.until, "before the first batch"
    return written, [offset for rows in written for offset in rows.offsets], tail


def test_it_ends_where_nothing_more_is_there_and_never_waits() -> None:
    written, offsets, tail = read(25, 1000, 1_000_000)
    assert (written.reached(), offsets) == (25, list(range(25)))
    assert {wait_s for _most, _bytes, wait_s in tail.takes[1:]} == {0}


@pytest.mark.parametrize(
    ("most", "most_bytes", "until"), [(12, 1_000_000, 12), (1000, 12 * SIZE, 12), (10, SIZE * 10, 10)]
)
def test_it_ends_at_either_bound(most: int, most_bytes: int, until: int) -> None:
    """Records and bytes are counted over the whole transaction, not from one look to the next."""
    written, offsets, tail = read(1000, most, most_bytes)
    assert (written.reached(), offsets, tail.position) == (until, list(range(until)), until)


def test_markers_alone_move_its_end_without_a_row() -> None:
    written = TransactionInput(FakeTail(0), FetchedRecords([], 7, 0), 10, 1000, ConcurrencyLimit(1))
    assert (list(written), written.reached()) == ([], 7)


def test_rows_hold_the_records_columns_in_order() -> None:
    (rows,) = TransactionInput(FakeTail(0), taken(3, 5), 2, 1000, ConcurrencyLimit(1))
    assert rows == ([3, 4], [b"k"] * 2, [b"{}"] * 2, [None] * 2, [30, 40])


@pytest.mark.parametrize("key", [None, b"", b"\xff\x00"])
@pytest.mark.parametrize("value", [None, b"", b"\xff\xfe"])
@pytest.mark.parametrize("headers", [None, [("a", b"1"), ("a", None), ("a", b""), ("source.offset", b"7")]])
def test_a_records_key_value_and_headers_are_handed_on_as_they_came(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]] | None
) -> None:
    """Null and empty are two things in Kafka, a header's name may repeat, and its value may be null."""
    fetched = FetchedRecords([log_record(3, 0, key, value, headers)], 4, SIZE)
    (rows,) = TransactionInput(FakeTail(0), fetched, 2, 1000, ConcurrencyLimit(1))
    assert (rows.keys, rows.values, rows.headers) == ([key], [value], [None if headers is None else tuple(headers)])


def test_only_one_reads_and_writes_at_a_time_and_an_end_in_the_middle_gives_the_turn_back() -> None:
    turns, other_had_its_turn = ConcurrencyLimit(1, 60.0), threading.Event()

    def other() -> None:
        with turns.turn():
            other_had_its_turn.set()

    rows = iter(TransactionInput(FakeTail(20), taken(0, 3), 10, 1000, turns))
    next(rows)
    thread = threading.Thread(target=other, daemon=True)
    thread.start()
    assert not other_had_its_turn.wait(0.05)
    rows.close()
    assert other_had_its_turn.wait(20)
