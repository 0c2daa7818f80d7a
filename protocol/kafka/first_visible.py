"""The first record that a `read_committed` reader is still given: how long somebody waits, from one small fetch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.batches import RawBatch
from protocol.deadline import Deadline
from protocol.kafka.introspect import RawLogs
from protocol.kafka.raw_format import DefaultRecordBatch, parsed

_FIRST_BYTES, _MORE_BYTES = 1024, 1024 * 1024
_FETCHES = 8
Aborted = list[tuple[int, int]]
"""Producer id and first offset of each aborted transaction."""


@dataclass(frozen=True, slots=True)
class FirstVisible:
    """
    ``time_ms``: the record's timestamp, in ms since the epoch; None where it has none, or was not found in few fetches.

    ``nothing``: there is no such record below the last stable offset.
    """

    time_ms: int | None = None
    nothing: bool = False


def first_visible(
    raw: RawLogs, topic: str, partition: int, start: int, last_stable: int, deadline: Deadline
) -> FirstVisible:
    """
    The first record at or behind ``start``; markers and aborted records are none.

    One fetch of one batch tells, unless that is aborted; a long row of aborted batches is given up on.
    """
    here, most = start, _FIRST_BYTES
    for _ in range(_FETCHES):
        content, aborted = raw.visible(topic, partition, here, most, deadline)
        found, here = _first(parsed(content), aborted, here)
        if found is not None:
            return FirstVisible(found if found >= 0 else None)
        if here >= last_stable or not content:
            return FirstVisible(nothing=True)
        most = _MORE_BYTES
    return FirstVisible()


def _first(batches: Iterable[tuple[RawBatch, memoryview]], aborted: Aborted, start: int) -> tuple[int | None, int]:
    """The timestamp of the first visible record, if there is one; and where to go on."""
    here, begun, hidden = start, sorted(aborted, key=lambda one: one[1]), set[int]()
    for batch, content in batches:
        while begun and begun[0][1] <= batch.last_offset:
            hidden.add(begun.pop(0)[0])
        if batch.control:
            # The marker ends the transaction: what the same producer writes behind it is another one.
            hidden.discard(batch.producer_id)
        elif not (batch.transactional and batch.producer_id in hidden):
            found = _time_ms(content, here)
            if found is not None:
                return found, here
        here = max(here, batch.last_offset + 1)
    return None, here


def _time_ms(content: memoryview, start: int) -> int | None:
    """Of the first record at or behind ``start``; None where there is none in this batch."""
    batch = DefaultRecordBatch(content)
    if batch.last_offset < start or not batch.records_count:
        return None
    if batch.timestamp_type == batch.LOG_APPEND_TIME:
        return int(batch.max_timestamp)
    if batch.compression_type:  # its first record's: to know better would be to decompress all of it
        return int(batch.first_timestamp)
    return next((int(one.timestamp) for one in batch if one.offset >= start), None)
