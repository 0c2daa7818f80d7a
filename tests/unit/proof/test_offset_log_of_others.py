"""Groups share the partitions of Kafka's offset log; another group's transactions are neither judged nor counted."""

from __future__ import annotations

import pytest

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from proof.checking.input_partition import InputPartition
from proof.checking.positions import OffsetLog, Positions
from proof.checking.transactions import Endings
from proof.findings import Findings, Name


def reused(commits: tuple[OffsetCommit, ...]) -> list[OffsetBatch]:
    """Two transactions of one producer in one epoch, each with these commits."""

    def raw(offset: int, marker: str | None = None) -> RawBatch:
        return RawBatch(offset, offset, 1, 7, 3, 0, True, marker is not None, marker, 1000)

    return [
        OffsetBatch(raw(0), commits),
        OffsetBatch(raw(1, "commit")),
        OffsetBatch(raw(2), commits),
        OffsetBatch(raw(3, "abort")),
    ]


@pytest.mark.parametrize(("ours", "reuses", "counted"), [(True, 1, 2), (False, 0, 0)])
def test_a_foreign_groups_transactions_are_neither_judged_nor_counted(ours: bool, reuses: int, counted: int) -> None:
    """Found by the mutants: one group's reused epoch made its neighbours' runs red, and their counts too high."""
    found = Findings()
    endings = Endings(found, [500])
    position = Positions("in", 0, InputPartition(0), found, endings.both)
    log = OffsetLog({0: position}, found, endings, strict=True)
    log.begin(4)

    log.take(reused((OffsetCommit(0, 5),) if ours else ()))

    assert found.totals[Name.EPOCH_REUSE] == reuses
    assert endings.counts["committed_transactions"] + endings.counts["aborted_transactions"] == counted
    assert endings.first_commit_ms == {500: 1000 if ours else None}
