"""Reading batch headers out of bytes."""

from __future__ import annotations

import warnings

import pytest

from brew.errors import Refused
from brew.kafka.kafka_python import parse_batches

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecordsBuilder


def batch(records: int, *, offset: int = 0, magic: int = 2, producer_id: int = 7) -> bytes:
    builder = MemoryRecordsBuilder(
        magic,
        0,
        1 << 20,
        offset=offset,
        **(
            {}
            if magic < 2
            else {"transactional": True, "producer_id": producer_id, "producer_epoch": 3, "base_sequence": 11}
        ),
    )
    for n in range(records):
        builder.append(1_000 + n, b"k", b"v")
    builder.close()
    return bytes(builder.buffer())


def test_the_header_tells_offsets_producer_and_number_of_records() -> None:
    """All without looking at a record."""
    (found,) = parse_batches(batch(5))
    assert (found.base_offset, found.last_offset, found.records) == (0, 4, 5)
    assert (found.producer_id, found.producer_epoch, found.base_sequence) == (7, 3, 11)
    assert (found.transactional, found.control, found.marker) == (True, False, None)
    assert found.max_timestamp == 1_004


def test_a_batch_that_was_cut_off_is_left_out() -> None:
    """A fetch ends where its size limit says, in the middle of a batch."""
    whole = batch(3)
    for cut in (1, 30, len(whole) - 1):
        assert [one.records for one in parse_batches(whole + whole[:cut])] == [3]


def test_an_old_format_is_refused_with_what_to_do() -> None:
    """Formats 0 and 1 know neither producers nor transactions."""
    with pytest.raises(Refused, match="copy the topic"):
        list(parse_batches(batch(1, magic=1) + bytes(100)))
