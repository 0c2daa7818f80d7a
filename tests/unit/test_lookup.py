"""The row in force at a time, whenever it is asked for."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from harness.pages import ROOT
from harness.records import FakeRecord as Record

from brew import lookup
from brew.errors import BrewError, DeadlineExceeded, Denied, Refused, TransformFailed, Unreachable
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


def test_a_row_without_a_key_is_not_a_row_of_the_empty_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can look it up: Kafka tells a missing key from an empty one, and so does the table."""
    log = [Record(0, b"", b"empty", time_ms=100), Record(1, None, b"none", time_ms=200)]
    reader = SimpleNamespace(ends=lambda _deadline: {}, read=lambda *_given: iter([log]))
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
