"""Fold a partition's batches into counts: what is visible, aborted, open, waiting, control; pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.batches import RawBatch
from protocol.position import LogOffsets


@dataclass(frozen=True, slots=True)
class LogCounts:
    """
    The records of one partition's log, each counted once.

    ``visible`` ones are what a `read_committed` reader gets; ``waiting`` ones are as good as visible but stand behind
    the last stable offset; ``open`` ones belong to transactions without a marker yet.
    """

    visible: int = 0
    waiting: int = 0
    aborted: int = 0
    open: int = 0
    control: int = 0


@dataclass(slots=True)
class _Transaction:
    """Records of one producer since its last marker, before and behind the last stable offset."""

    stable: int = 0
    behind: int = 0


def fold(batches: Iterable[RawBatch], log: LogOffsets) -> LogCounts:
    """
    Count the batches of `[log.first, log.end)`, given in log order.

    A marker decides all records that its producer wrote since the marker before; memory grows with the number of
    producers that have a transaction open, not with the log.
    """
    visible = waiting = aborted = control = 0
    running: dict[int, _Transaction] = {}
    for batch in batches:
        records = _kept(batch, log)
        if batch.control:
            control += records
            ended = running.pop(batch.producer_id, None) if batch.marker else None
            if ended is not None and batch.marker == "commit":
                visible += ended.stable
                waiting += ended.behind
            elif ended is not None:
                aborted += ended.stable + ended.behind
            continue
        stable = batch.base_offset < log.last_stable
        if batch.transactional:
            transaction = running.setdefault(batch.producer_id, _Transaction())
            transaction.stable += records * stable
            transaction.behind += records * (not stable)
        else:
            visible += records * stable
            waiting += records * (not stable)
    still_open = sum(one.stable + one.behind for one in running.values())
    return LogCounts(visible, waiting, aborted, still_open, control)


def _kept(batch: RawBatch, log: LogOffsets) -> int:
    """The batch's records inside the log: retention cuts batches in two, compaction thins them out."""
    inside = min(batch.last_offset + 1, log.end) - max(batch.base_offset, log.first)
    return max(0, min(batch.records, inside))
