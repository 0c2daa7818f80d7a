"""The input range that each transaction committed, from Kafka's offset log; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from protocol.batches import OffsetBatch, OffsetCommit


@dataclass(frozen=True, slots=True)
class Span:
    """The offsets `[start, until)` of an input partition; ``start`` is None where the log no longer tells it."""

    start: int | None
    until: int


Spans = dict[tuple[int, int], dict[int, Span]]
"""(Producer, epoch) -> input partition -> what its transaction was to commit, whether it did or not."""


def spans(batches: Iterable[OffsetBatch], firsts: Mapping[int, int]) -> Spans:
    """
    A range begins where the group stood before it.

    That is the commit before, which compaction leaves until a newer one is compacted, too. A group's first range begins
    at the log start: known where it is 0 (``firsts``) and the offset log has no gap in which a commit may have been.
    """
    found: defaultdict[tuple[int, int], dict[int, Span]] = defaultdict(dict)
    stands: dict[int, int | None] = {}
    pending: defaultdict[int, list[OffsetCommit]] = defaultdict(list)
    reached = 0
    whole = True

    def begins(partition: int) -> int | None:
        if partition in stands or not whole or firsts.get(partition) != 0:
            return stands.get(partition)
        return 0

    for batch in batches:
        raw = batch.raw
        whole &= raw.base_offset == reached and raw.records == raw.last_offset - raw.base_offset + 1
        reached = raw.last_offset + 1
        took_effect: Iterable[OffsetCommit] = () if raw.transactional else batch.commits
        if raw.control:
            ended = pending.pop(raw.producer_id, [])
            took_effect = ended if raw.marker == "commit" else ()
        elif raw.transactional and batch.commits:
            pending[raw.producer_id] += batch.commits
            for one in batch.commits:
                if one.until is not None:
                    found[raw.producer_id, raw.producer_epoch][one.partition] = Span(begins(one.partition), one.until)
        for one in took_effect:
            stands[one.partition] = one.until
    return dict(found)
