"""Counting a partition's batches."""

from __future__ import annotations

from brew.cluster import RawBatch
from brew.offsets import LogOffsets
from proof.log_summary import LogCounts, fold


def data(base: int, records: int, producer: int = -1) -> RawBatch:
    return RawBatch(base, base + records - 1, records, producer, 0, 0, producer >= 0, False, None, 0)


def marker(base: int, producer: int, kind: str) -> RawBatch:
    return RawBatch(base, base, 1, producer, 0, -1, True, True, kind, 0)


def test_a_marker_decides_all_that_its_producer_wrote_since_the_last_one() -> None:
    """Interleaved producers are told apart by their ids."""
    batches = [data(0, 5, 1), data(5, 3, 2), data(8, 2, 1), marker(10, 2, "abort"), marker(11, 1, "commit")]
    assert fold(batches, LogOffsets(0, 12, 12)) == LogCounts(visible=7, aborted=3, control=2)


def test_the_same_producer_can_commit_and_then_abort() -> None:
    """A marker ends the transaction, not the producer."""
    batches = [data(0, 4, 1), marker(4, 1, "commit"), data(5, 6, 1), marker(11, 1, "abort")]
    assert fold(batches, LogOffsets(0, 12, 12)) == LogCounts(visible=4, aborted=6, control=2)


def test_records_without_a_marker_are_open_and_others_behind_them_wait() -> None:
    """The last stable offset is where the oldest open transaction begins."""
    batches = [data(0, 2), data(2, 3, 1), data(5, 4), data(9, 1, 2), marker(10, 2, "commit")]
    assert fold(batches, LogOffsets(0, 2, 11)) == LogCounts(visible=2, waiting=5, open=3, control=1)


def test_an_abort_marker_without_records_is_only_a_control_record() -> None:
    """A fenced producer that wrote nothing here leaves such a marker."""
    assert fold([marker(0, 9, "abort")], LogOffsets(0, 1, 1)) == LogCounts(control=1)


def test_a_batch_cut_by_retention_counts_what_is_left_of_it() -> None:
    """The log starts in the middle of a batch after DeleteRecords."""
    assert fold([data(0, 10)], LogOffsets(7, 10, 10)) == LogCounts(visible=3)


def test_a_compacted_batch_counts_its_records_not_its_offsets() -> None:
    """Compaction keeps a batch's offsets and takes records out of it."""
    thin = RawBatch(0, 99, 4, -1, -1, -1, False, False, None, 0)
    assert fold([thin], LogOffsets(0, 100, 100)) == LogCounts(visible=4)
