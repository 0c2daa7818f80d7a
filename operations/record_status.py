"""Whether a record is visible, aborted or open, judged by its batch's transaction; pure."""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.offsets import LogOffsets


class RecordState(enum.StrEnum):
    PLAIN = "plain"
    COMMITTED = "committed"
    ABORTED = "aborted"
    OPEN = "open"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class RecordWriter:
    """The producer of a record, and the marker of its transaction, if there is one."""

    state: RecordState
    producer_id: int = -1
    producer_epoch: int = -1
    marker_offset: int | None = None
    marker_epoch: int | None = None


def writer_of(offset: int, batches: Iterable[RawBatch]) -> RecordWriter:
    """Return who wrote a record, from raw batches in log order from it on; reads no further than its marker."""
    log = iter(batches)
    own = next((batch for batch in log if batch.last_offset >= offset), None)
    if own is None or own.base_offset > offset:
        return RecordWriter(RecordState.UNKNOWN)
    writer = (own.producer_id, own.producer_epoch)
    if not own.transactional:
        return RecordWriter(RecordState.PLAIN, *writer)
    end = next((batch for batch in log if batch.control and batch.producer_id == own.producer_id), None)
    if end is None:
        return RecordWriter(RecordState.OPEN, *writer)
    state = RecordState.COMMITTED if end.marker == "commit" else RecordState.ABORTED
    return RecordWriter(state, *writer, end.base_offset, end.producer_epoch)


@dataclass(frozen=True, slots=True)
class Visibility:
    visible: bool
    rule: str


def visibility(offset: int, written: RecordWriter, log: LogOffsets) -> Visibility:
    """Return whether a `read_committed` reader sees the record, and why."""
    if written.state is RecordState.ABORTED:
        ended = f"aborted by the marker at {written.marker_offset}"
        if written.marker_epoch is not None and written.marker_epoch > written.producer_epoch:
            how = "fenced, timed out, or aborted under transaction.version 2"
            ended += f" (epoch {written.marker_epoch}, newer than the producer's: {how})"
        else:
            ended += " (by its own producer)"
        return Visibility(visible=False, rule=ended)
    if written.state is RecordState.OPEN:
        return Visibility(visible=False, rule="its transaction is still open: no marker yet")
    if written.state is RecordState.UNKNOWN:
        return Visibility(visible=False, rule="no batch contains it: retention or compaction removed it")
    if offset >= log.last_stable:
        behind = f"not below the last stable offset {log.last_stable}"
        return Visibility(visible=False, rule=f"{behind}: readers wait for an older open transaction")
    if written.state is RecordState.PLAIN:
        return Visibility(visible=True, rule="written outside of transactions, and below the last stable offset")
    return Visibility(visible=True, rule=f"committed by the marker at {written.marker_offset}")


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets `[start, until)` of an input partition; ``start`` is None if the log no longer has it."""

    start: int | None
    until: int


Spans = dict[tuple[int, int], dict[int, Span]]
"""(Producer, epoch) -> input partition -> the range that its transaction was to commit, whether it did or not."""


def spans(batches: Iterable[OffsetBatch], firsts: Mapping[int, int]) -> Spans:
    """
    Return the input ranges of the group's transactions; a range begins at the group's offset before it.

    That offset is the previous commit, which compaction keeps until a newer one is compacted, too. A group's first
    range begins at the log start: known if it is 0 (``firsts``) and the offset log has no gap that may hide a commit.
    """
    ranges: defaultdict[tuple[int, int], dict[int, Span]] = defaultdict(dict)
    stands: dict[int, int | None] = {}
    reached = 0
    whole = True

    def begins(partition: int) -> int | None:
        if partition in stands or not whole or firsts.get(partition) != 0:
            return stands.get(partition)
        return 0

    for batch, took_effect in effective_commits(batches):
        raw = batch.raw
        whole &= raw.base_offset == reached and raw.records == raw.last_offset - raw.base_offset + 1
        reached = raw.last_offset + 1
        if raw.transactional:
            for commit in batch.commits:
                if commit.until is not None:
                    span = Span(begins(commit.partition), commit.until)
                    ranges[raw.producer_id, raw.producer_epoch][commit.partition] = span
        for commit in took_effect:
            stands[commit.partition] = commit.until
    return dict(ranges)


def effective_commits(batches: Iterable[OffsetBatch]) -> Iterator[tuple[OffsetBatch, Sequence[OffsetCommit]]]:
    """Yield each batch with the commits that take effect there; a transaction's do so at its commit marker."""
    pending: defaultdict[int, list[OffsetCommit]] = defaultdict(list)
    for batch in batches:
        raw = batch.raw
        if raw.control:
            ended = pending.pop(raw.producer_id, [])
            yield batch, ended if raw.marker == "commit" else ()
        elif raw.transactional:
            pending[raw.producer_id] += batch.commits
            yield batch, ()
        else:
            yield batch, batch.commits
