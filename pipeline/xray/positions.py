"""When the group's commits took effect, from Kafka's offset log; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from protocol.batches import OffsetBatch, OffsetCommit


def effective(batches: Iterable[OffsetBatch]) -> dict[int, list[tuple[int, int]]]:
    """Partition -> (ms, offset), in order; a commit inside of a transaction counts from its commit marker on."""
    found: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    pending: dict[int, list[OffsetCommit]] = {}

    def take(commits: Iterable[OffsetCommit], at_ms: int) -> None:
        for one in commits:
            if one.until is not None:
                found[one.partition].append((at_ms, one.until))

    for batch in batches:
        raw = batch.raw
        if raw.control:
            ended = pending.pop(raw.producer_id, [])
            take(ended if raw.marker == "commit" else [], raw.max_timestamp)
        elif raw.transactional:
            if batch.commits:
                pending.setdefault(raw.producer_id, []).extend(batch.commits)
        else:
            take(batch.commits, raw.max_timestamp)
    return dict(found)
