"""What one transaction of the direct reader writes, read while it is written."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import pytest
from harness.fakes import log_record

from brew.kafka.log_reader import FetchedRecords
from brew.readers.direct import worker
from brew.readers.direct.worker import ConcurrencyLimit, TransactionInput

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
