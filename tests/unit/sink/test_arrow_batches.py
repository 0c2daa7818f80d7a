"""Kafka record batches out of Arrow columns: what aiokafka reads out of them is what was put in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record import MemoryRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from brew.kafka.arrow_batches import SCHEMA, ArrowBatch, Records, batches_of, encoded

Place = tuple[str, int]
Row = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]
"""Value, key, headers and the number of the place."""

NAMES: list[Place] = [("out", 0), ("out", 3), ("late", 0)]
OWN = [("brew.sink.name", b"revenue"), ("none", None)]
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_SEQUENCE, _HEADER = 53, 61
"""Where a batch's first sequence number is, which aiokafka does not tell, and where its records begin."""
NOW = 1_764_000_000_000
CELLS = st.none() | st.binary(max_size=200)
ROWS = st.lists(
    st.tuples(CELLS, CELLS, st.none() | st.lists(st.tuples(st.text(max_size=5), CELLS), max_size=3), st.integers(0, 2))
)


def columns(rows: Sequence[Row], *, before: int = 0) -> Records:
    """Return columns that are slices after ``before`` other rows and before one more, as Arrow may pass them."""
    others: list[Row] = [(b"other", b"x", [("o", b"y")], 0)]
    filled = others * before + list(rows) + others
    headers = [None if one is None else [{"key": k, "value": v} for k, v in one] for _, _, one, _ in filled]
    return Records(
        pa.array([value for value, *_ in filled], pa.large_binary()).slice(before, len(rows)),
        pa.array([key for _, key, *_ in filled], pa.binary()).slice(before, len(rows)),
        pa.array(headers, HEADERS).slice(before, len(rows)),
        np.array([place for *_, place in rows], np.int64),
        NAMES,
    )


def read(batch: ArrowBatch) -> list[tuple[Any, ...]]:
    """The batch as a broker gets it, read by aiokafka."""
    records = MemoryRecords(bytes(batch._build()))
    records_read = records.next_batch()
    assert records_read.validate_crc()
    assert not records.has_next()
    return [(one.value, one.key, list(one.headers), one.timestamp, one.offset) for one in records_read]


def sent(rows: Records, most: int, own: Any = OWN) -> list[ArrowBatch]:
    batches = list(batches_of(encoded(rows, own, most), NOW))
    for number, batch in enumerate(batches):
        batch._set_producer_state(4711, 7, number)
    return batches


@given(ROWS, st.integers(1, 2000), st.integers(0, 2))
def test_records_are_read_as_they_were_written_each_place_in_its_order(rows: list[Row], most: int, before: int) -> None:
    batches = sent(columns(rows, before=before), most)
    for number, place in enumerate(NAMES):
        mine = [one for one in batches if (one.topic, one.partition) == place]
        records_read = [record[:3] for one in mine for record in read(one)]
        assert records_read == [(v, k, [*(h or []), *OWN]) for v, k, h, p in rows if p == number]
    assert sum(one.record_count() for one in batches) == len(rows)


@given(ROWS, st.integers(1, 2000))
def test_a_batch_is_as_long_as_allowed_but_for_a_single_longer_record(rows: list[Row], most: int) -> None:
    for batch in sent(columns(rows), most):
        assert batch.count == 1 or len(batch.records) <= most
        assert batch.size() == len(batch._build())
        assert [(offset, when) for *_, when, offset in read(batch)] == [(offset, NOW) for offset in range(batch.count)]


def test_a_batch_ends_before_the_record_that_may_be_too_long() -> None:
    """A record counts with 12 bytes for lengths and attributes; these records need 5."""
    rows: list[Row] = [(b"v" * 100, b"k", None, 0)] * 10
    (batch,) = sent(columns(rows), 100_000, ())
    bound = len(batch.records) // 10 + 7
    assert [one.count for one in sent(columns(rows), 5 * bound, ())] == [5, 5]
    assert [one.count for one in sent(columns(rows), 5 * bound - 1, ())] == [4, 4, 2]


def test_destinations_that_alternate_are_one_batch_each() -> None:
    """Not a batch for each change of place; the limit is of the records that are in a batch."""
    rows: list[Row] = [(b"v" * (1000 if number % 2 else 1), None, None, number % 2) for number in range(20)]
    rows_of_two = replace(columns(rows), names=NAMES[:2])
    assert [(one.partition, one.count) for one in sent(rows_of_two, 100_000)] == [(0, 10), (3, 10)]
    assert [(one.partition, one.count) for one in sent(rows_of_two, 2500, ())] == [(0, 10), *[(3, 2)] * 5]


@pytest.mark.parametrize("sizes", [(0, 1, 63, 64, 8191, 8192), (1, 64)])
def test_records_are_as_short_as_aiokafkas_own(sizes: tuple[int, ...]) -> None:
    """Byte for byte, with lengths of one to three bytes; 64 is the shortest of two, also where none is longer."""
    own = DefaultRecordBatchBuilder(2, 0, True, -1, -1, -1, 10**6)
    rows: list[Row] = [(b"v" * size, b"k", [("h", b"x")], 0) for size in sizes] * 20
    for offset, (value, key, headers, _) in enumerate(rows):
        assert own.append(offset, NOW, key, value, headers or []) is not None
    (batch,) = sent(columns(rows), 10**6, ())
    assert bytes(batch.records) == bytes(own.build())[_HEADER:]


def test_a_batch_tells_brokers_its_transaction_producer_and_sequence_number() -> None:
    (batch,) = sent(columns([(b"a", None, None, 0), (b"b", None, None, 0)]), 1000)
    batch._set_producer_state(4711, 7, 40)
    header = MemoryRecords(bytes(batch._build())).next_batch()
    assert (header.is_transactional, header.is_control_batch) == (True, False)
    sequence = int.from_bytes(batch._build()[_SEQUENCE : _SEQUENCE + 4])
    assert (header.producer_id, header.producer_epoch, sequence) == (4711, 7, 40)
    assert (header.base_offset, header.next_offset, header.magic, header.compression_type) == (0, 2, 2, 0)
    assert (batch.closed(), batch.timestamp_ms) == (True, NOW)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.large_binary()])
def test_columns_may_be_text_and_key_and_headers_left_out(kind: pa.DataType) -> None:
    rows = Records(pa.array(["ä", None], kind), None, None, np.zeros(2, np.int64), [("out", 1)])
    (batch,) = sent(rows, 1000, ())
    assert [one[:3] for one in read(batch)] == [("ä".encode(), None, []), (None, None, [])]


def test_cells_under_a_null_are_not_written() -> None:
    """Arrow leaves it open what bytes a null cell has."""
    offsets, data = pa.py_buffer(np.array([0, 3, 6], np.int32)), pa.py_buffer(b"oldnew")
    value = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x02"), offsets, data])
    (batch,) = sent(Records(value, None, None, np.zeros(2, np.int64), [("out", 1)]), 1000, ())
    assert [one[0] for one in read(batch)] == [None, b"new"]


def test_large_records_have_lengths_of_several_bytes() -> None:
    sizes = [0, 63, 64, 8191, 8192, 1_048_575, 1_048_576, 3_000_000]
    rows: list[Row] = [(b"x" * size, None, None, 0) for size in sizes]
    assert [len(record[0]) for one in sent(columns(rows), 512 * 1024) for record in read(one)] == sizes


def test_more_than_128_records_are_told_apart_by_their_offsets() -> None:
    rows: list[Row] = [(b"%d" % number, None, None, 0) for number in range(20_000)]
    (batch,) = sent(columns(rows), 10_000_000)
    assert [(record[0], record[4]) for record in read(batch)] == [(b"%d" % offset, offset) for offset in range(20_000)]


def test_no_rows_are_no_batches() -> None:
    assert encoded(columns([]), OWN, 1000).num_rows == 0
    assert encoded(columns([]), OWN, 1000).schema == SCHEMA


def test_batches_are_the_same_behind_a_shuffle() -> None:
    """Rows of `SCHEMA` come back in other pieces, and with spark.sql.execution.arrow.useLargeVarTypes wider."""
    rows: list[Row] = [(b"%d" % number, None, None, number % 3) for number in range(100)]
    batch = encoded(columns(rows), OWN, 300)
    pieces = [one for number in range(batch.num_rows) for one in batches_of(batch.slice(number, 1), NOW)]
    assert [bytes(one.records) for one in pieces] == [bytes(one.records) for one in batches_of(batch, NOW)]
    large = pa.schema([one.with_type(pa.large_binary()) if one.name == "records" else one for one in SCHEMA])
    assert [bytes(one.records) for one in batches_of(batch.cast(large), NOW)] == [bytes(one.records) for one in pieces]
