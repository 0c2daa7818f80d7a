"""How many records a transaction holds is told in whole, or as a least number, where the tail cuts it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from xray_logs import T0, batch, marker

from brew.cluster import RawBatch
from brew.offsets import LogOffsets, SourcePosition
from operations import labels
from operations.ui.model import Transaction, transactions
from operations.xray.model import RunBuilder, Strip

WRITER = 7


def cut(batches: list[RawBatch], *, tail: int = 400, origin: bool = False) -> Transaction:
    """The latest transaction as the last ``tail`` offsets tell of it, and whatever batches lie before them."""
    end = batches[-1].last_offset + 1
    start = max(0, end - tail)
    fold = RunBuilder(start, end, origin=origin)
    for one in batches:
        fold.add(one, lambda one=one: (source(one.base_offset), source(one.last_offset)))  # type: ignore[misc]
    strip = Strip("out", 0, LogOffsets(0, end, end), start, end, fold.finish())
    return transactions({0: strip}, "g", "in")[0]


def source(offset: int) -> SourcePosition:
    return SourcePosition("in", 0, offset)


def long(records: int, base: int = 0, *, each: int = 50, sequence: int = 0, end: bool = True) -> list[RawBatch]:
    """One transaction of so many records in batches of fifty, with its marker."""
    found = [
        batch(base + at, min(each, records - at), WRITER, 3, sequence=sequence + at) for at in range(0, records, each)
    ]
    return [*found, marker(base + records, WRITER, "commit", 3, at=T0)] if end else found


@pytest.mark.parametrize("records", [399, 400, 750, 1460])
@pytest.mark.parametrize("end", [True, False])
def test_a_transaction_larger_than_the_tail_is_counted_whole_once_it_was_read_back(records: int, end: bool) -> None:
    """Ended or open; the first batch of a producer's epoch begins at sequence number 0."""
    told = cut(long(records, end=end))
    assert (told.records, told.exact, told.first) == (records, True, 0)
    assert labels.records(told) == f"{records:,}"


@pytest.mark.parametrize("records", [750, 1460])
def test_a_transaction_whose_beginning_was_not_read_is_told_as_a_least_number(records: int) -> None:
    """Neither 399 records nor the offsets where the tail begins are told as facts."""
    batches = [one for one in long(records) if one.last_offset >= records + 1 - 400]
    told = cut(batches)
    assert (told.exact, told.first, told.last) == (False, None, records - 1)
    assert told.records is not None
    assert 399 <= told.records < records
    assert labels.records(told) == f"≥ {told.records:,}"
    assert f"at least {told.records:,} records" in labels.of_transaction(told)
    assert f"up to offset {records - 1:,}" in labels.of_transaction(told)


def test_a_marker_before_it_shows_where_a_transaction_of_a_kept_producer_begins() -> None:
    """Sequence numbers go on through an epoch that holds several transactions."""
    first, second = long(100, sequence=500), long(750, 101, sequence=600)
    assert (cut([*first, *second]).records, cut([*first, *second]).exact) == (750, True)
    assert (cut(second).records, cut(second).exact) == (750, False)


def test_a_marker_whose_records_were_not_read_tells_no_number() -> None:
    """The tail begins at the marker itself; once the records before it are read, they are counted."""
    batches = long(20)
    assert cut(batches[-1:], tail=1).records is None
    assert labels.of_transaction(cut(batches[-1:], tail=1)).count("records not counted") == 1
    assert (cut(batches, tail=1).records, cut(batches, tail=1).exact) == (20, True)


def test_another_writers_records_in_between_do_not_count() -> None:
    """Producer id and epoch say whose a batch is."""
    own = [batch(at, 50, WRITER, 3, sequence=at // 2) for at in range(0, 800, 100)]
    others = [batch(at + 50, 50, 9, 0, sequence=at // 2) for at in range(0, 800, 100)]
    mixed = sorted([*own, *others], key=lambda one: one.base_offset)
    told = cut([*mixed, marker(800, WRITER, "commit", 3, at=T0)], tail=101)
    assert told.outcome == "open"
    assert (told.producer_id, told.records, told.exact) == (9, 400, True)


def test_one_record_is_one_record() -> None:
    """Not `1 records`."""
    told = replace(cut(long(20)), records=1)
    assert "1 record in output" in labels.of_transaction(told)
