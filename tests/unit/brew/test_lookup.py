"""The row in force at a time, whenever it is asked for."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from types import SimpleNamespace
from unittest.mock import MagicMock, Mock

import pytest
from harness.pages import ROOT
from harness.records import FakeRecord as Record

from brew import lookup
from brew.errors import BrewError, DeadlineExceeded, Denied, Fatal, Refused, TransformFailed, Unreachable
from brew.load import load
from brew.lookup import Rows, Table
from brew.testing import record, transform


class Topic:
    """Rows appear at a time of their own; counts how often it is read."""

    def __init__(self, now: int) -> None:
        self.now, self.reads, self.position = now, 0, 0
        self.log: list[tuple[bytes, int, bytes | None]] = []
        self.rows = Rows(self.refresh, lambda: self.now)

    def refresh(self, rows: Rows) -> None:
        self.reads += 1
        for row in self.log[self.position :]:
            rows.add(*row)
        self.position = len(self.log)


def test_a_row_counts_from_its_own_time_until_the_next_one() -> None:
    topic = Topic(now=10_000)
    topic.log = [(b"USD", 100, b"1"), (b"USD", 300, None), (b"USD", 200, b"2"), (b"USD", 200, b"3")]
    rows = topic.rows
    values = {99: None, 100: b"1", 199: b"1", 200: b"3", 299: b"3", 300: None}
    assert {time: rows.at(b"USD", time) for time in values} == values
    assert rows.at(b"EUR", 500) is None
    assert topic.reads == 1


def test_a_record_newer_than_what_was_read_sees_rows_written_before_it() -> None:
    """And one whose clock is ahead does not read the topic for each record."""
    topic = Topic(now=1000)
    rows = topic.rows
    assert rows.at(b"USD", 900) is None
    topic.log.append((b"USD", 1500, b"1"))
    topic.now = 2600
    assert rows.at(b"USD", 900) is None
    assert topic.reads == 1
    assert rows.at(b"USD", 2500) == b"1"
    for _ in range(5):
        rows.at(b"USD", 99_999)
    assert topic.reads == 2


def test_a_record_that_follows_a_read_closely_sees_the_rows_before_it() -> None:
    """A pipeline that follows its input transforms records milliseconds after they were written."""
    topic = Topic(now=1000)
    rows = topic.rows
    assert rows.at(b"USD", 990) is None
    topic.log.append((b"USD", 1100, b"1"))
    topic.now = 1300
    assert rows.at(b"USD", 1200) == b"1"
    assert rows.at(b"USD", 1299) == b"1"
    assert topic.reads == 2
    topic.log.append((b"USD", 600, b"2"))
    topic.now = 700  # the clock was set back: for as long as that, no row was read
    assert (rows.at(b"USD", 650), rows.at(b"USD", 650)) == (b"2", b"2")
    assert topic.reads == 3


def test_a_lookup_that_waited_for_a_read_that_failed_fails_with_it() -> None:
    """Four transactions read one after another, a minute each without brokers, and the watchdog ended the process."""
    read = Mock(side_effect=DeadlineExceeded("no broker"))
    rows = Rows(read, lambda: 1000)
    lock = rows._lock

    def after_another(_lock: object) -> None:
        rows._lock = lock
        with pytest.raises(DeadlineExceeded, match="no broker"):
            rows.at(b"USD", 900)
        lock.acquire()

    rows._lock = MagicMock(__enter__=after_another, __exit__=lambda *_: lock.release())
    for reads in (1, 2):  # the next one reads again
        with pytest.raises(DeadlineExceeded, match="no broker"):
            rows.at(b"USD", 900)
        assert read.call_count == reads


def test_a_row_without_a_key_is_not_a_row_of_the_empty_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can look it up: Kafka tells a missing key from an empty one, and so does the table."""
    log = [Record(0, b"", b"empty", time_ms=100), Record(1, None, b"none", time_ms=200)]
    reader = SimpleNamespace(positions={}, ends=lambda _deadline: {}, read=lambda *_given: iter([log]))
    monkeypatch.setattr(lookup, "FullTopicReader", lambda *_given: reader)
    assert Table("rows-without-a-key").at(b"", 300) == b"empty"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Refused("topic 'rates' does not exist; name another one"), TransformFailed),
        (Denied("no Describe on rates"), TransformFailed),
        (Unreachable("no broker"), Unreachable),
        (DeadlineExceeded("too slow"), DeadlineExceeded),
    ],
)
def test_a_table_without_its_topic_ends_a_run_and_one_without_brokers_waits(
    monkeypatch: pytest.MonkeyPatch, error: BrewError, expected: type[BrewError]
) -> None:
    """The run would repeat its transaction until the end of its patience, and say nothing."""
    monkeypatch.setattr(lookup, "FullTopicReader", Mock(side_effect=error))
    with pytest.raises(expected, match=str(error)):
        Table("rates-without-a-topic").at(b"USD", 300)


class Reader:
    """Fails as told behind its first row, as often as ``failures`` says; a failed poll drops what came with it."""

    failures, silent = 1, False

    def __init__(self, error: BrewError) -> None:
        self.positions, self.closed, self._error = {0: 0}, False, error

    def is_stale(self, _deadline: object) -> bool:
        if Reader.silent and self.positions[0] == 3:
            Reader.silent = False
            raise DeadlineExceeded("describe topics: no answer")
        return False

    def ends(self, _deadline: object) -> dict[int, int]:
        return {0: 3}

    def close(self) -> None:
        self.closed = True

    def read(self, *_given: object) -> Iterator[list[Record]]:
        while self.positions[0] < 3:
            self.positions[0] += 1
            if self.positions[0] == 2 and Reader.failures:
                Reader.failures -= 1
                self.positions[0] -= isinstance(self._error, DeadlineExceeded)
                raise self._error
            yield [Record(self.positions[0], b"k%d" % self.positions[0], b"row", time_ms=100)]


@pytest.mark.parametrize(
    ("error", "failures", "readers"),
    [
        (Fatal("read of rates[1]: not authorized"), 1, 2),
        (DeadlineExceeded("slow"), 1, 1),
        (DeadlineExceeded("silent for good"), 2, 2),
    ],
)
def test_rows_that_came_with_an_error_are_read_again(
    monkeypatch: pytest.MonkeyPatch, error: BrewError, failures: int, readers: int
) -> None:
    """Its reader was kept, with a position behind rows that nobody had: every lookup of theirs said None."""
    made: list[Reader] = []
    monkeypatch.setattr(Reader, "failures", failures)
    monkeypatch.setattr(lookup, "FullTopicReader", lambda *_given: made.append(Reader(error)) or made[-1])
    table = Table(f"rates-{error}")
    for _ in range(failures):
        with pytest.raises(type(error)):
            table.at(b"k1", 300)
    assert [table.at(b"k%d" % n, 300) for n in (1, 2, 3)] == [b"row"] * 3
    assert [reader.closed for reader in made] == [True] * (readers - 1) + [False]


def test_a_table_whose_client_lost_the_brokers_is_read_by_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Reader] = []
    monkeypatch.setattr(Reader, "failures", 0)
    monkeypatch.setattr(Reader, "silent", True)
    monkeypatch.setattr(lookup, "FullTopicReader", lambda *_given: made.append(Reader(BrewError())) or made[-1])
    now = time.time() * 1000
    monkeypatch.setattr(lookup, "time", SimpleNamespace(time=lambda: now / 1000, monotonic=time.monotonic))
    table = Table("rates-of-a-silent-client")
    assert table.at(b"k1", 300) == b"row"
    now += 10_000
    with pytest.raises(DeadlineExceeded):
        table.at(b"k1", int(now) - 1)
    assert table.at(b"k1", int(now) - 1) == b"row"
    assert [reader.closed for reader in made] == [True, False]


def test_a_table_travels_as_values_and_refuses_a_key_of_text() -> None:
    with pytest.raises(TypeError, match="key to look up in 'rates' is 'USD'; a record's key is bytes"):
        Table("rates").at("USD", 1)  # type: ignore[arg-type]
    table = Table("rates", bootstrap="k:1")
    assert pickle.loads(pickle.dumps(table)) == table


@pytest.mark.parametrize("amount", ["1e30", 1e30, "-9e999999", "Infinity", "NaN", True, None])
def test_an_amount_that_the_example_can_not_convert_is_rejected_and_does_not_end_the_run(amount: object) -> None:
    """One such payment would block its partition."""
    in_euros = load(f"{ROOT}/examples/currency.py:in_euros").target
    result = transform(in_euros, [record({"amount": amount, "currency": "EUR"})])
    assert [one.reason for one in result.rejected] == ["no-amount"]
