"""
Transformations of whole batches: records as a `pyarrow.RecordBatch`, and the answers in the batch that is returned.

A function marked with `brew.batches` gets the columns `topic`, `partition`, `offset`, `key`, `value`, `headers` (a list
of structs of `name` and `value`) and `timestamp`. It returns a batch whose `offset` column says which input each row
came from: a missing offset means dropped, a repeated one fans out. Columns that are not returned keep the input's
value. Three more are allowed: `destination` (an output topic), `reject` (the reason for a dead letter) and `message`
(its message).

Each row must depend on its own record only: where batches begin and end differs from attempt to attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from brew.record import Record, Reject, check_headers, checked_reject

Answers = list[tuple[Record, ...] | Reject]

_HEADERS = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", _HEADERS),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)
_ANSWERED = {*SCHEMA.names, "destination", "reject", "message"}


def batch_of(records: Sequence[Record]) -> pa.RecordBatch:
    """Return records as the function gets them; the headers cell of a record without headers is null."""
    plain = not any(record.headers for record in records)
    headers = (
        pa.nulls(len(records), _HEADERS)
        if plain
        else pa.array(
            [[{"name": name, "value": value} for name, value in one.headers] or None for one in records], _HEADERS
        )
    )
    return pa.RecordBatch.from_arrays(
        [
            pa.array([one.topic for one in records], pa.string()),
            pa.array([one.partition for one in records], pa.int32()),
            pa.array([one.offset for one in records], pa.int64()),
            pa.array([one.key for one in records], pa.binary()),
            pa.array([one.value for one in records], pa.binary()),
            headers,
            pa.array([one.timestamp for one in records], pa.timestamp("ms", "UTC")),
        ],
        schema=SCHEMA,
    )


def apply_batch(function: Callable[..., Any], records: Sequence[Record]) -> Answers:
    """
    Call a function of batches; return an answer for each record, as `brew.record.apply` does.

    Raises:
        TypeError: it returned something other than a batch, or a batch without `offset` or with unknown columns.
        ValueError: the batch has an offset that was not in the input.
        Exception: whatever the function raises except `Reject`, which rejects all records of the batch.
    """
    try:
        answered = function(batch_of(records))
    except Reject as reject:
        return [checked_reject(reject)] * len(records)
    if not isinstance(answered, pa.RecordBatch):
        raise TypeError(f"it returned {type(answered).__name__}; a function of batches returns a pyarrow.RecordBatch")
    wrong = set(answered.schema.names) - _ANSWERED
    if wrong or "offset" not in answered.schema.names:
        what = f"has the columns {sorted(wrong)}" if wrong else "has no column 'offset'"
        raise TypeError(f"the batch that it returned {what}; its columns may be {', '.join(sorted(_ANSWERED))}")
    inputs = {record.offset: record for record in records}
    outputs: dict[int, list[Record]] = {offset: [] for offset in inputs}
    rejected: dict[int, Reject] = {}
    for offset, output in _rows(answered, inputs):
        if isinstance(output, Reject):
            rejected[offset] = output
        else:
            outputs[offset].append(output)
    return [rejected.get(record.offset) or tuple(outputs[record.offset]) for record in records]


def _rows(answered: pa.RecordBatch, inputs: dict[int, Record]) -> Iterator[tuple[int, Record | Reject]]:
    """Yield each row's offset and its output or rejection."""
    offsets = answered.column("offset").to_pylist()
    foreign = [offset for offset in offsets if offset not in inputs]
    if foreign:
        raise ValueError(f"the batch that it returned has offset {foreign[0]}, which was not in the one that it got")
    keys, values = _bytes(answered, "key"), _bytes(answered, "value")
    headers, timestamps = _cells(answered, "headers", _HEADERS), _cells(answered, "timestamp", pa.int64())
    destinations, reasons, messages = (
        _cells(answered, name, pa.string()) for name in ("destination", "reject", "message")
    )
    for row, offset in enumerate(offsets):
        came = inputs[offset]
        if reasons is not None and reasons[row] is not None:
            yield offset, Reject(reasons[row], (messages[row] if messages else None) or "")
            continue
        output = Record(
            came.topic,
            came.partition,
            offset,
            came.key if keys is None else keys[row],
            came.value if values is None else values[row],
            came.headers if headers is None else tuple((one["name"], one["value"]) for one in headers[row] or ()),
            came.timestamp if timestamps is None else timestamps[row] or came.timestamp,
            None if destinations is None else destinations[row],
        )
        if headers is not None:
            check_headers(output.headers)
        yield offset, output


def _cells(answered: pa.RecordBatch, name: str, kind: pa.DataType | None = None) -> list[Any] | None:
    if name not in answered.schema.names:
        return None
    column = answered.column(name)
    if kind == pa.int64() and pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz))
    return (column if kind is None else column.cast(kind)).to_pylist()  # type: ignore[no-any-return]


def _bytes(answered: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    """Return a column as bytes; text, which pyarrow's string functions return, is encoded as UTF-8."""
    return _cells(answered, name, pa.binary())
