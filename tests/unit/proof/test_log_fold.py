"""Counting a partition's batches."""

from __future__ import annotations

import pytest
from harness.xray_logs import batch, marker

from brew.cluster import RawBatch
from brew.offsets import LogOffsets
from proof.log_summary import LogCounts, fold


def plain(base: int, records: int) -> RawBatch:
    return batch(base, records, -1, tx=False)


COMMITTED_THEN_ABORTED = [batch(0, 4, 1), marker(4, 1, "commit"), batch(5, 6, 1), marker(11, 1, "abort")]
INTERLEAVED = [batch(0, 5, 1), batch(5, 3, 2), batch(8, 2, 1), marker(10, 2, "abort"), marker(11, 1, "commit")]
OPEN = [plain(0, 2), batch(2, 3, 1), plain(5, 4), batch(9, 1, 2), marker(10, 2, "commit")]
COMPACTED = RawBatch(0, 99, 4, -1, -1, -1, False, False, None, 0)


@pytest.mark.parametrize(
    ("batches", "log", "counts"),
    [
        pytest.param(INTERLEAVED, (0, 12, 12), LogCounts(visible=7, aborted=3, control=2), id="two producers"),
        pytest.param(COMMITTED_THEN_ABORTED, (0, 12, 12), LogCounts(visible=4, aborted=6, control=2), id="one, twice"),
        pytest.param(OPEN, (0, 2, 11), LogCounts(visible=2, waiting=5, open=3, control=1), id="open, others wait"),
        pytest.param([marker(0, 9, "abort")], (0, 1, 1), LogCounts(control=1), id="a fenced producer's marker alone"),
        pytest.param([plain(0, 10)], (7, 10, 10), LogCounts(visible=3), id="a batch cut by retention"),
        pytest.param([COMPACTED], (0, 100, 100), LogCounts(visible=4), id="offsets kept, records compacted"),
    ],
)
def test_a_marker_decides_all_that_its_producer_wrote_since_the_last_one(
    batches: list[RawBatch], log: tuple[int, int, int], counts: LogCounts
) -> None:
    """Records are counted, not offsets; without a marker they are open, and what is behind the oldest waits."""
    assert fold(batches, LogOffsets(*log)) == counts
