"""
Transformations of whole batches: records as a `pyarrow.RecordBatch`, and the answers in the batch that comes back.

A function marked with `brew.batches` gets the columns `topic`, `partition`, `offset`, `key`, `value`, `headers` (a list
of structs of `name` and `value`) and `timestamp`. It returns a batch whose `offset` says which input each row came
from: an offset that is missing was dropped, one that stands several times fans out. Columns that are not returned keep
the input's value. Three more may be: `destination` (an output topic), `reject` (the reason for a dead letter) and
`message` (what to say with it).

Each row has to depend on its own record only: where batches begin and end differs from attempt to attempt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from brew.record import Record, Reject

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
    """Records as the function gets them; where a record has no headers, the cell is null."""
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
    Call a function of batches; an answer for each record, as `brew.record.apply` gives it.

    Raises:
        TypeError: it returned something else than a batch, or one without `offset` or with columns nobody knows.
        ValueError: an offset that it was not given.
        Exception: whatever the function raises but `Reject`, which rejects all records of the batch.
    """
    try:
        answered = function(batch_of(records))
    except Reject as reject:
        return [reject] * len(records)
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
    """Each row's offset, and the output or the rejection that it is."""
    offsets = answered.column("offset").to_pylist()
    foreign = [offset for offset in offsets if offset not in inputs]
    if foreign:
        raise ValueError(f"the batch that it returned has offset {foreign[0]}, which was not in the one that it got")
    keys, values = _bytes(answered, "key"), _bytes(answered, "value")
    headers, timestamps = _cells(answered, "headers", _HEADERS), _cells(answered, "timestamp", pa.int64())
    destinations, reasons, messages = (_cells(answered, name) for name in ("destination", "reject", "message"))
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
        yield offset, output


def _cells(answered: pa.RecordBatch, name: str, kind: pa.DataType | None = None) -> list[Any] | None:
    if name not in answered.schema.names:
        return None
    column = answered.column(name)
    if kind == pa.int64() and pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("ms", column.type.tz))
    return (column if kind is None else column.cast(kind)).to_pylist()  # type: ignore[no-any-return]


def _bytes(answered: pa.RecordBatch, name: str) -> list[bytes | None] | None:
    """Text is taken for its UTF-8, which pyarrow's functions of strings return."""
    return _cells(answered, name, pa.binary())
