"""Record batches as brokers hand them out: their headers, and the markers; nothing is decompressed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from protocol.batches import RawBatch
from protocol.errors import Refused

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch

__all__ = ["DefaultRecordBatch", "parse_batches", "parsed"]

_HEADER = DefaultRecordBatch.HEADER_STRUCT
_LENGTH_END = 12
_MAGIC_2 = 2


def parse_batches(data: bytes | memoryview) -> Iterator[RawBatch]:
    """The complete batches in what a fetch returned; the last one may be cut off and is left out."""
    return (batch for batch, _ in parsed(data))


def parsed(data: bytes | memoryview) -> Iterator[tuple[RawBatch, memoryview]]:
    """As `parse_batches`, each with its bytes."""
    view, at = memoryview(data), 0
    while at + _HEADER.size <= len(view):
        fields = _HEADER.unpack_from(view, at)
        end = at + _LENGTH_END + fields[1]
        if fields[3] != _MAGIC_2:
            raise Refused(
                f"the log holds record batches of format {fields[3]}, which know no transactions; "
                "format 2 is needed (brokers write it since Kafka 0.11): copy the topic to a new one"
            )
        if end > len(view):
            return
        control = bool(fields[5] & DefaultRecordBatch.CONTROL_MASK)
        batch = RawBatch(
            base_offset=fields[0],
            last_offset=fields[0] + fields[6],
            records=fields[12],
            producer_id=fields[9],
            producer_epoch=fields[10],
            base_sequence=fields[11],
            transactional=bool(fields[5] & DefaultRecordBatch.TRANSACTIONAL_MASK),
            control=control,
            marker=_marker(view[at:end]) if control else None,
            max_timestamp=fields[8],
        )
        yield batch, view[at:end]
        at = end


def _marker(batch: memoryview) -> str | None:
    for record in DefaultRecordBatch(batch):
        if record.abort:
            return "abort"
        if record.commit:
            return "commit"
    return None
