"""Batches without a bound of bytes are for partitions whose records were small a moment ago."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brew.outcome import Outcome, Status
from brew.readers.connector import SMALL_RECORD_BYTES, SMALL_RECORDS, RecordSizes

SMALL = Outcome(0, 0, 100, Status.COMMITTED, enriched=90, rejected=10, read_bytes=100 * 200)


def test_a_partition_that_was_not_read_yet_is_bounded() -> None:
    weights = RecordSizes({})
    assert not weights.all_small([0])
    weights.apply_outcome([SMALL])
    assert weights.all_small([0])
    assert not weights.all_small([0, 1]), "all of a job's partitions have to be known"


@pytest.mark.parametrize("status", [Status.FAILED, Status.FENCED, Status.CRASHED, Status.OFFSET_GAP])
def test_after_a_failure_it_is_bounded_again(status: Status) -> None:
    """It may have been the memory."""
    weights = RecordSizes({})
    weights.apply_outcome([SMALL])
    weights.apply_outcome([Outcome(0, 100, 200, status)])
    assert not weights.all_small([0])


def test_large_records_are_bounded_and_an_attempt_without_records_tells_nothing() -> None:
    weights = RecordSizes({})
    weights.apply_outcome([replace(SMALL, read_bytes=100 * SMALL_RECORD_BYTES)])
    assert not weights.all_small([0])
    weights.apply_outcome([SMALL])
    weights.apply_outcome([Outcome(0, 100, 200, Status.ALREADY_DONE)])
    assert weights.all_small([0])


@pytest.mark.parametrize("name", sorted(SMALL_RECORDS))
def test_who_bounds_batches_is_not_overruled(name: str) -> None:
    weights = RecordSizes({name: "500"})
    weights.apply_outcome([SMALL])
    assert not weights.all_small([0])
