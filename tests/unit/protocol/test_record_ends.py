"""The first and the last record of a batch as Kafka writes it."""

from __future__ import annotations

import warnings

import pytest

from brew.kafka.raw_log import source_positions
from brew.offsets import SourcePosition

with warnings.catch_warnings():
    # The library reads its message schemas with a deprecated function while it is imported.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecordsBuilder


def written(*offsets: int | None, compression: int = 0, value: bytes | None = b"v" * 300) -> memoryview:
    """A batch of copies of `in[3]` at these source offsets; None: a record without headers."""
    builder = MemoryRecordsBuilder(2, compression, 1_000_000, 0, True, 7, 1, 0)
    for offset in offsets:
        ours = [] if offset is None else SourcePosition("in", 3, offset).headers()
        builder.append(1_780_000_000_000, b"key", value, [("trace", b"x" * 200), ("nothing", None), *ours])
    builder.close()
    return memoryview(bytes(builder.buffer()))


@pytest.mark.parametrize("value", [b"v" * 300, b"", None])
@pytest.mark.parametrize("offsets", [(5,), (5, 6), (5, 9, 70_000, 1 << 40)])
def test_first_and_last_source_are_read_whatever_lies_between(offsets: tuple[int, ...], value: bytes | None) -> None:
    """By their headers, behind the input's own."""
    found = SourcePosition("in", 3, offsets[0]), SourcePosition("in", 3, offsets[-1])
    assert source_positions(written(*offsets, value=value)) == found


def test_a_batch_without_sources_or_compressed_tells_none() -> None:
    """A foreign writer's, or one that had to be decompressed whole."""
    assert source_positions(written(None, None)) is None
    assert source_positions(written(5, None)) is None
    assert source_positions(written(5, 6, compression=1)) is None
