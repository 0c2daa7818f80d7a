"""
Kafka record batches (format v2) built from Arrow columns, without a Python object for each record.

A record is one element of a binary array that Arrow joins from the record's parts, so a batch is a slice of that
array's buffer. The format: https://kafka.apache.org/documentation/#recordbatch.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

Array = np.ndarray[Any, Any]

_LENGTH_AND_CRC, _CHECKED = struct.Struct(">qiibI"), struct.Struct(">hiqqqhii")
"""A batch's header: the part up to the checksum, and the part that the checksum covers, like the records."""
_AFTER_LENGTH = 12
_MAGIC, _NO_LEADER_EPOCH, _TRANSACTIONAL = 2, -1, 0x10
_UNCHANGING = b"\x00\x00"
"""A record's attributes (none) and its delta to the batch's timestamp: equal for all records."""
_NULL = -1
"""The length that stands for null."""
_LONGEST_VARINT, _TWO_BYTES = 5, 0x80


@dataclass(slots=True)
class ArrowBatch:
    """One record batch, in the form that `AIOKafkaProducer.send_batch` takes; its id is set when it is sent."""

    topic: str
    partition: int
    records: memoryview
    count: int
    timestamp_ms: int
    _encoded: bytes = b""

    def record_count(self) -> int:
        return self.count

    def size(self) -> int:
        return _LENGTH_AND_CRC.size + _CHECKED.size + len(self.records)

    def closed(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: the batch is complete."""

    def _set_producer_state(self, producer_id: int, epoch: int, sequence: int) -> None:
        last, now = self.count - 1, self.timestamp_ms
        checked = _CHECKED.pack(_TRANSACTIONAL, last, now, now, producer_id, epoch, sequence, self.count)
        body = b"".join((checked, self.records))
        length = len(body) + _LENGTH_AND_CRC.size - _AFTER_LENGTH
        self._encoded = _LENGTH_AND_CRC.pack(0, length, _NO_LEADER_EPOCH, _MAGIC, google_crc32c.value(body)) + body

    def _build(self) -> bytes:
        return self._encoded


@dataclass(frozen=True, slots=True)
class Records:
    """The columns of some records; ``destinations`` are indices into ``names``, (topic, partition) pairs."""

    value: pa.Array
    key: pa.Array | None
    headers: pa.ListArray | None
    destinations: Array
    names: Sequence[tuple[str, int]]


SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("count", pa.int32()),
        ("size", pa.int32()),
        ("records", pa.binary()),
    ]
)
"""``size``: of ``records`` before they were compressed for a shuffle; 0: they are not."""
_CODEC = pa.Codec("lz4_raw")


def encoded(
    rows: Records, own: Sequence[tuple[str, bytes | None]], most: int, *, compress: bool = False
) -> pa.RecordBatch:
    """
    Encode records as batches of ``SCHEMA``: each of one partition, in order, and about ``most`` bytes at most.

    ``own``: headers to append to each record. ``compress``: for a shuffle; `batches_of` undoes it. All records together
    must have less than 2 GiB.
    """
    total = len(rows.destinations)
    if not total:
        return pa.RecordBatch.from_pylist([], SCHEMA)
    parts, size = _parts(rows, own)
    order = np.argsort(rows.destinations, kind="stable") if len(rows.names) > 1 else None
    destinations = rows.destinations if order is None else rows.destinations[order]
    cuts = _cuts(size if order is None else size[order], destinations, most)
    counts = np.diff(cuts)
    delta = np.arange(total) - np.repeat(cuts[:-1], counts)
    if order is not None:
        delta[order] = delta.copy()
    delta_varint = _varints(delta)
    length = _varints(size + len(_UNCHANGING) + _lengths(delta_varint))
    joined = _joined(length, _scalar(_UNCHANGING), delta_varint, *parts)
    if order is not None:
        joined = joined.take(pa.array(order))
    found = [rows.names[destination] for destination in destinations[cuts[:-1]].tolist()]
    offsets = _offsets(joined)[cuts].astype(np.int32)
    records, sizes = _binary(pa.binary(), offsets, joined), np.zeros(len(counts), np.int32)
    if compress:
        records = pa.array([_CODEC.compress(cell.as_buffer(), asbytes=True) for cell in records], pa.binary())
        sizes = np.diff(offsets)
    columns = [
        pa.array([topic for topic, _ in found], pa.string()),
        pa.array([partition for _, partition in found], pa.int32()),
        pa.array(counts, pa.int32()),
        pa.array(sizes),
        records,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def batches_of(encoded: pa.RecordBatch, timestamp_ms: int) -> Iterator[ArrowBatch]:
    """Yield the batches of `encoded`, ready to send; all records get this timestamp."""
    columns = (encoded.column(name).to_pylist() for name in ("topic", "partition", "count", "size"))
    for topic, partition, count, size, cell in zip(*columns, encoded.column("records"), strict=True):
        # One at a time: all batches of a chunk may be many times larger than the chunk.
        records = _CODEC.decompress(cell.as_buffer(), size) if size else cell.as_buffer()
        yield ArrowBatch(topic, partition, memoryview(records), count, timestamp_ms)


def _parts(rows: Records, own: Sequence[tuple[str, bytes | None]]) -> tuple[list[Any], Array]:
    """Return each record's encoded key, value and headers, and their size in bytes per record."""
    parts, size = list[Any](), np.zeros(len(rows.destinations), np.int64)
    for column in (rows.key, rows.value):
        if column is None:
            parts.append(_scalar(_varint(_NULL)))
            size += 1
        else:
            lengths, cells = _sized(column)
            parts += [lengths, cells]
            size += _lengths(lengths) + _lengths(cells)
    tail = b"".join(_header(name, value) for name, value in own)
    if rows.headers is None:
        tail = _varint(len(own)) + tail
    else:
        many, cells = _headers(rows.headers)
        varint = _varints(many + len(own))
        parts += [varint, cells]
        size += _lengths(varint) + _lengths(cells)
    return [*parts, _scalar(tail)], size + len(tail)


def _headers(column: pa.ListArray) -> tuple[Array, pa.Array]:
    """Return each record's number of headers, and its encoded headers as one cell."""
    flat = column.flatten()
    joined = _joined(*_sized(flat.field("key")), *_sized(flat.field("value")))
    many = pc.fill_null(column.value_lengths(), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    ends = np.concatenate([[0], np.cumsum(many)])
    return many, _binary(pa.large_binary(), _offsets(joined)[ends], joined)


def _sized(column: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return each cell's length, as a varint, and its bytes."""
    cells = column.cast(pa.large_binary())
    lengths = pc.fill_null(pc.binary_length(cells), _NULL).to_numpy(zero_copy_only=False)
    return _varints(lengths), cells.fill_null(b"") if cells.null_count else cells


def _joined(*parts: Any) -> pa.Array:
    """Join each row's parts into one cell."""
    return pc.binary_join_element_wise(*parts, _scalar(b""))


def _binary(kind: pa.DataType, offsets: Array, data: pa.Array) -> pa.Array:
    """Return an array over the same bytes with other cell borders."""
    return pa.Array.from_buffers(
        kind, len(offsets) - 1, [None, pa.py_buffer(offsets), data.buffers()[2] or pa.py_buffer(b"")]
    )


def _cuts(size: Array, destinations: Array, most: int) -> Array:
    """Return where batches begin, and the end: at each new destination, and where a record would exceed ``most``."""
    total = np.cumsum(size + 2 * _LONGEST_VARINT + len(_UNCHANGING))
    borders = [*(np.flatnonzero(np.diff(destinations)) + 1).tolist(), len(size)]
    cuts = [0]
    for border in borders:
        while cuts[-1] < border:
            start = cuts[-1]
            before = int(total[start - 1]) if start else 0
            end = int(np.searchsorted(total, before + most, side="right"))
            cuts.append(min(max(end, start + 1), border))
    return np.array(cuts)


def _varints(values: Array) -> pa.Array:
    """Encode each number as a zigzag varint."""
    coded = (values << 1) ^ (values >> 63)
    if int(coded.max(initial=0)) < _TWO_BYTES:
        data, offsets = coded.astype(np.uint8), np.arange(len(values) + 1)
    else:
        size = np.ones(len(values), np.int64)
        for bits in range(7, 7 * _LONGEST_VARINT, 7):
            longer = coded >= 1 << bits
            if not longer.any():
                break
            size += longer
        offsets = np.concatenate([[0], np.cumsum(size)])
        data = np.empty(int(offsets[-1]), np.uint8)
        for place in range(int(size.max())):
            rows = slice(None) if place == 0 else np.flatnonzero(size > place)
            more = np.where(size[rows] > place + 1, 0x80, 0)
            data[offsets[:-1][rows] + place] = coded[rows] >> 7 * place & 0x7F | more
    return pa.Array.from_buffers(pa.large_binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _varint(value: int) -> bytes:
    return bytes(_varints(np.array([value], np.int64))[0].as_py())


def _header(name: str, value: bytes | None) -> bytes:
    key = name.encode()
    return _varint(len(key)) + key + (_varint(_NULL) if value is None else _varint(len(value)) + value)


def _offsets(cells: pa.Array) -> Array:
    return np.frombuffer(cells.buffers()[1], np.int64)[cells.offset : cells.offset + len(cells) + 1]


def _lengths(cells: pa.Array) -> Array:
    """Return the length in bytes of each cell; no cell may be null."""
    return np.diff(_offsets(cells))


def _scalar(value: bytes) -> pa.Scalar:
    return pa.scalar(value, pa.large_binary())
