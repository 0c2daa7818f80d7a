"""The first and the last record of a batch, without decoding those in between."""

from __future__ import annotations

from protocol.kafka.raw_format import DefaultRecordBatch
from protocol.position import SourcePosition

_HEADER = DefaultRecordBatch.HEADER_STRUCT
_CODEC_MASK = DefaultRecordBatch.CODEC_MASK
_MORE = 0x80
Sources = tuple[SourcePosition, SourcePosition]


def sources(content: memoryview) -> Sources | None:
    """
    Where the first and the last record of one batch came from, by their headers.

    None where a record names no source, or where the batch is compressed: that would mean to decompress all of it.
    """
    fields = _HEADER.unpack_from(content)
    if fields[5] & _CODEC_MASK or not fields[12]:
        return None
    first = last = _HEADER.size
    for _ in range(fields[12] - 1):
        length, at = _varint(content, last)
        last = at + length
    found = SourcePosition.of(_headers(content, first)), SourcePosition.of(_headers(content, last))
    return None if found[0] is None or found[1] is None else (found[0], found[1])


def _headers(content: memoryview, at: int) -> list[tuple[str, bytes | None]]:
    """Of the record at this place: length, attributes, time and offset deltas, key, value, then the headers."""
    _, at = _varint(content, at)
    at += 1
    for _ in range(2):
        _, at = _varint(content, at)
    for _ in range(2):
        _, at = _bytes(content, at)
    count, at = _varint(content, at)
    found = []
    for _ in range(count):
        name, at = _bytes(content, at)
        value, at = _bytes(content, at)
        found.append(((name or b"").decode("utf-8", "replace"), value))
    return found


def _bytes(content: memoryview, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(content, at)
    return (None, at) if length < 0 else (bytes(content[at : at + length]), at + length)


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    """A zigzag number, and the place behind it."""
    value = shift = 0
    while (byte := content[at]) & _MORE:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    value |= byte << shift
    return value >> 1 ^ -(value & 1), at + 1
