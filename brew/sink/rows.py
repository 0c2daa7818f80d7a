"""The rows of a batch: the columns that a sink takes, Kafka's default partitioner, and records from Arrow batches."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from brew.errors import Refused, UsageError
from brew.names import checked_topic

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

COLUMNS = ("value", "key", "topic", "partition", "headers")
_BYTES = {"binary", "string"}
_WANTED = {
    "value": _BYTES,
    "key": _BYTES,
    "topic": {"string"},
    "partition": {"int"},
    "headers": {"array<struct<key:string,value:binary>>"},
}

Headers = list[tuple[str, bytes | None]]


Row = tuple[bytes | None, bytes | None, str, int | None, Headers | None]
"""Value, key, topic, partition and headers of one record to write; with partition None the key decides."""


def checked_columns(found: Mapping[str, str], topic: str | None) -> list[str]:
    """
    Return the columns to write of a frame with columns ``found`` (name -> Spark's simple type name), without others.

    Raises:
        UsageError: the sink can't write such rows; the text has the columns found and wanted.
    """
    wrong = [f"{name} {found[name]}" for name, types in _WANTED.items() if name in found and found[name] not in types]
    missing = [] if "value" in found else ["value"]
    if topic is None and "topic" not in found:
        missing.append("topic (or give the sink a topic)")
    if wrong or missing:
        said = [*([f"wrong type: {', '.join(wrong)}"] if wrong else ()), *(f"missing: {one}" for one in missing)]
        wanted = ", ".join(f"{name} {' or '.join(sorted(types))}" for name, types in _WANTED.items())
        have = ", ".join(f"{name} {kind}" for name, kind in found.items()) or "none"
        raise UsageError(
            f"the sink can't write these rows ({'; '.join(said)}); columns found: {have}; columns wanted: {wanted}, of "
            "which all but value are optional; select them before writeStream"
        )
    return [name for name in COLUMNS if name in found and not (name == "topic" and topic is not None)]


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Iterator[Row]:
    """
    Return the records of one Arrow batch, in order; ``topic`` takes precedence over the column of that name.

    Raises:
        Refused: a row has a header without a key.
    """
    count = batch.num_rows

    def column(name: str) -> list[Any]:
        return _bytes_of(batch.column(name)) if name in batch.schema.names else [None] * count

    topics = [topic] * count if topic is not None else batch.column("topic").to_pylist()
    headers = _headers_of(batch.column("headers")) if "headers" in batch.schema.names else [None] * count
    return zip(column("value"), column("key"), topics, column("partition"), headers, strict=True)


def check_destinations(batch: pa.RecordBatch, topic: str | None, count_of: Callable[[str], int]) -> None:
    """
    Check the topics and partitions that rows name; ``count_of`` returns a topic's number of partitions, or raises.

    Raises:
        Refused: a row names no topic, or a partition that its topic does not have.
    """
    if topic is None or "partition" in batch.schema.names:
        _check_destinations(batch, *_named_topics(batch, topic), count_of)


def _named_topics(batch: pa.RecordBatch, topic: str | None) -> tuple[list[str], pa.Array | None]:
    """Return the distinct topics, and each row's as an index into them (None: there is only one)."""
    if topic is not None:
        return [topic], None
    import pyarrow as pa  # noqa: PLC0415 - loaded only where there are rows, not with `import brew`

    coded = batch.column("topic").dictionary_encode()
    if coded.null_count:
        raise Refused("the sink got a row whose topic is null; every row needs a topic, or give the sink one")
    return [_named(name) for name in coded.dictionary.cast(pa.binary()).to_pylist()], coded.indices


def _named(raw: bytes) -> str:
    """Spark's strings need not be UTF-8, and no topic's name may have more than ASCII."""
    name = raw.decode(errors="backslashreplace")
    try:
        return checked_topic(name, "topic")
    except UsageError as error:
        raise Refused(
            f"the sink got a row with topic {name!r}; a name has 1 to 249 of the characters a-z A-Z 0-9 . _ -"
        ) from error


def _check_destinations(
    batch: pa.RecordBatch, topics: list[str], indices: pa.Array | None, count_of: Callable[[str], int]
) -> None:
    import pyarrow.compute as pc  # noqa: PLC0415 - loaded only where there are rows, not with `import brew`

    for number, name in enumerate(topics):
        count = count_of(name)
        if "partition" not in batch.schema.names:
            continue
        column = batch.column("partition")
        found = pc.min_max(column if indices is None else column.filter(pc.equal(indices, number))).as_py()
        for partition in (found["min"], found["max"]):
            if partition is not None and not 0 <= partition < count:
                raise Refused(
                    f"the sink got a row with partition {partition} of topic {name!r}, which has {count} partitions "
                    f"(0 to {count - 1}); null leaves the partition to the row's key"
                )


def _bytes_of(column: pa.Array) -> list[Any]:
    import pyarrow as pa  # noqa: PLC0415 - loaded only where there are rows, not with `import brew`

    if pa.types.is_string(column.type):
        column = column.cast(pa.binary())
    elif pa.types.is_large_string(column.type):
        column = column.cast(pa.large_binary())
    return list(column.to_pylist())


def checked_headers(column: pa.ListArray) -> pa.StructArray:
    """
    Return the headers of all rows, concatenated.

    Raises:
        Refused: a header has no key, or one that consumers can't read.
    """
    import pyarrow as pa  # noqa: PLC0415 - loaded only where there are rows, not with `import brew`

    flat = column.flatten()
    if flat.null_count or flat.field("key").null_count:
        raise Refused("the sink got a row with a header whose key is null; every header needs one")
    try:
        flat.field("key").validate(full=True)
    except pa.ArrowInvalid as error:  # Spark's strings may hold any bytes
        raise Refused(f"the sink got a row with a header whose key is not UTF-8 ({error})") from error
    return flat


def _headers_of(column: pa.Array) -> list[Headers | None]:
    """Cut the lists of all keys and all values by row: a dictionary for each header took four times as long."""
    flat = checked_headers(column)
    pairs = list(zip(flat.field("key").to_pylist(), flat.field("value").to_pylist(), strict=True))
    found, start = list[Headers | None](), 0
    for size in column.value_lengths().to_pylist():
        found.append(None if size is None else pairs[start : start + size])
        start += size or 0
    return found


def destinations_of(
    batch: pa.RecordBatch, topic: str | None, count_of: Callable[[str], int]
) -> tuple[np.ndarray[Any, Any], list[tuple[str, int]]]:
    """
    Return each row's destination as a number, and the (topic, partition) that each number stands for.

    ``topic`` takes precedence over the column of that name. ``count_of``: returns a topic's number of partitions.

    Raises:
        Refused: as `check_destinations`.
    """
    import numpy as np  # noqa: PLC0415 - loaded only where there are rows, not with `import brew`

    topics, indices = _named_topics(batch, topic)
    _check_destinations(batch, topics, indices, count_of)

    count, names = batch.num_rows, batch.schema.names
    of_topic = np.zeros(count, np.int64) if indices is None else indices.to_numpy().astype(np.int64)
    partitions, open_rows = np.zeros(count, np.int64), np.ones(count, np.bool_)
    if "partition" in names:
        column = batch.column("partition")
        open_rows = column.is_null().to_numpy(zero_copy_only=False)
        partitions = column.fill_null(0).to_numpy().astype(np.int64)
    for number, name in enumerate(topics if open_rows.any() else ()):
        rows = np.flatnonzero(open_rows & (of_topic == number))
        keys = batch.column("key").take(_array(rows)) if "key" in names else _array([None] * len(rows))
        partitions[rows] = partitions_of(keys, count_of(name))
    found, destinations = np.unique((of_topic << 32) | partitions, return_inverse=True)
    return destinations, [(topics[one >> 32], one & 0xFFFFFFFF) for one in found.tolist()]


def _array(values: Any) -> pa.Array:
    import pyarrow as pa  # noqa: PLC0415 - as above

    return pa.array(values)


_M = 0x5BD1E995
_SEED = 0x9747B28C
_POSITIVE = 0x7FFFFFFF


def partitions_of(keys: pa.Array, partitions: int) -> np.ndarray[Any, Any]:
    """
    Return each key's partition by Kafka's default partitioner (murmur2); rows without a key are distributed in turn.

    Their turns begin anywhere: from the first partition on, it would get all rows of micro-batches with one row each.
    Vectorized: each step handles the same four bytes of all keys that are long enough.
    """
    import numpy as np  # noqa: PLC0415 - loaded only where there are rows, not with `import brew`
    import pyarrow as pa  # noqa: PLC0415 - as above

    keys = keys.cast(pa.large_binary())
    _, offsets_buffer, data_buffer = keys.buffers()
    offsets = np.frombuffer(offsets_buffer, np.int64)[keys.offset : keys.offset + len(keys) + 1]
    data = np.frombuffer(data_buffer or b"", np.uint8)
    hashes = _murmur2(data, offsets[:-1], np.diff(offsets))
    found: np.ndarray[Any, Any] = ((hashes & _POSITIVE) % partitions).astype(np.int32)
    if keys.null_count:
        without = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        begin = random.randrange(partitions)  # noqa: S311 - a place, not a secret
        found[without] = (begin + np.arange(len(without))) % partitions
    return found


def _murmur2(data: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> Any:
    import numpy as np  # noqa: PLC0415 - as above

    def byte(at: Any) -> Any:
        return data[at].astype(np.uint32)

    multiplier = np.uint32(_M)
    hashes = np.uint32(_SEED) ^ sizes.astype(np.uint32)
    words, word = sizes // 4, 0
    left = np.flatnonzero(words > 0)
    while left.size:
        at = starts[left] + 4 * word
        block = byte(at) | byte(at + 1) << 8 | byte(at + 2) << 16 | byte(at + 3) << 24
        block *= multiplier
        block ^= block >> 24
        block *= multiplier
        hashes[left] = hashes[left] * multiplier ^ block
        word += 1
        left = left[words[left] > word]
    rest, tail = sizes & 3, starts + 4 * words
    for back in (3, 2, 1):
        some = np.flatnonzero(rest >= back)
        hashes[some] ^= byte(tail[some] + back - 1) << 8 * (back - 1)
    some = np.flatnonzero(rest > 0)
    hashes[some] *= multiplier
    hashes ^= hashes >> 13
    hashes *= multiplier
    return hashes ^ (hashes >> 15)
