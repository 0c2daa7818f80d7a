"""The columns that a sink takes, Kafka's default partitioner on Arrow columns, and record batches out of them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from aiokafka.partitioner import murmur2
from aiokafka.record import MemoryRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from hypothesis import given
from hypothesis import strategies as st

from brew.errors import Refused, UsageError
from brew.kafka.arrow_batches import SCHEMA, ArrowBatch, Records, batches_of, encoded
from brew.sink.rows import check_destinations, checked_columns, checked_headers, destinations_of, partitions_of, rows_of

HEADERS_TYPE = "array<struct<key:string,value:binary>>"


def test_the_columns_of_sparks_own_sink_are_taken_and_others_left_out() -> None:
    columns = {"key": "binary", "offset": "bigint", "value": "string", "partition": "int", "headers": HEADERS_TYPE}
    assert checked_columns(columns, "out") == ["value", "key", "partition", "headers"]
    assert checked_columns({"value": "binary", "topic": "string"}, None) == ["value", "topic"]
    assert checked_columns({"value": "binary", "topic": "string"}, "out") == ["value"], "the sink's topic goes first"
    with pytest.raises(UsageError, match="missing: topic"):
        checked_columns({"value": "binary"}, None)


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"key": "binary"}, "(missing: value)"),
        ({"value": "struct<a:int>"}, "wrong type: value struct<a:int>"),
        ({"value": "binary", "key": "int", "partition": "bigint"}, "wrong type: key int, partition bigint"),
        ({"value": "binary", "headers": "array<string>"}, "wrong type: headers array<string>"),
        ({}, "columns found: none"),
    ],
)
def test_other_columns_are_refused_with_those_found_and_those_wanted(columns: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked_columns(columns, "out")
    wanted = "columns wanted: value binary or string, key binary or string, topic string, partition int"
    assert (reason in str(refused.value), wanted in str(refused.value)) == (True, True)


@given(
    st.lists(st.none() | st.binary(max_size=70)),
    st.integers(1, 50),
    st.integers(0, 3),
    st.sampled_from([pa.binary(), pa.large_binary()]),
)
def test_keys_go_where_kafkas_default_partitioner_puts_them(
    keys: list[bytes | None], partitions: int, skipped: int, kind: pa.DataType
) -> None:
    """Also in a slice of a longer column, as Arrow hands out."""
    column = pa.array([b"x"] * skipped + keys + [b"y"] * skipped, kind).slice(skipped, len(keys))
    targets = partitions_of(column, partitions).tolist()
    with_key = [(place, key) for place, key in zip(targets, keys, strict=True) if key is not None]
    assert [place for place, _ in with_key] == [(murmur2(key) & 0x7FFFFFFF) % partitions for _, key in with_key]
    assert all(0 <= place < partitions for place in targets)


def test_text_keys_go_where_their_utf_8_goes() -> None:
    words = ["gold-1", "straße", "", "🜁"]
    text, data = pa.array(words), pa.array([word.encode() for word in words])
    assert partitions_of(text, 7).tolist() == partitions_of(data, 7).tolist()
    column = pa.array([b"a", b"bb", b"ccc", b"dddd"], pa.large_binary())
    assert partitions_of(column[1:3], 7).tolist() == partitions_of(column, 7).tolist()[1:3]


def test_rows_without_a_key_take_turns() -> None:
    targets = partitions_of(pa.array([None] * 5, pa.binary()), 2)
    assert (targets.tolist() in ([0, 1, 0, 1, 0], [1, 0, 1, 0, 1]), targets.dtype) == (True, "int32")


def test_single_rows_without_a_key_do_not_all_go_to_one_partition() -> None:
    """Small micro-batches, or Arrow batches of one row (spark.sql.execution.arrow.maxRecordsPerBatch)."""
    assert {partitions_of(pa.array([None]), 3).item() for _ in range(200)} == {0, 1, 2}


def test_rows_are_read_from_text_and_bytes_with_headers_as_pairs() -> None:
    batch = pa.RecordBatch.from_pydict({
        "value": pa.array(["ä", None]),
        "key": pa.array(["k", None], pa.large_string()),
        "partition": pa.array([1, None], pa.int32()),
        "headers": pa.array([[{"key": "h", "value": b"1"}, {"key": "n", "value": None}], None]),
    })  # fmt: skip
    first, second = rows_of(batch, "out")
    assert first == ("ä".encode(), b"k", "out", 1, [("h", b"1"), ("n", None)])
    assert second == (None, None, "out", None, None)


def test_each_row_has_its_own_headers() -> None:
    named = [[("a", b"1"), ("b", b"2")], None, [], [("c", b"3")], [("d", None), ("e", b"5")]]
    column = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in named]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["x"] * len(named)), "headers": pa.array(column)})
    assert [headers for *_, headers in rows_of(batch, "out")] == named


def test_columns_that_are_not_there_are_empty_and_each_row_may_name_its_topic() -> None:
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"]), "topic": pa.array(["out", "late"])})
    assert list(rows_of(batch, None)) == [(b"a", None, "out", None, None), (b"b", None, "late", None, None)]
    assert [topic for _, _, topic, _, _ in rows_of(batch, "mine")] == ["mine", "mine"]


def not_asked(topic: str) -> int:
    raise AssertionError(f"asked for the partitions of {topic}")


def placed(columns: dict[str, pa.Array], topic: str | None, counts: dict[str, int]) -> list[tuple[str, int]]:
    destinations, names = destinations_of(pa.RecordBatch.from_pydict(columns), topic, counts.__getitem__)
    return [names[one] for one in destinations.tolist()]


def test_rows_that_name_their_partition_go_there_and_those_with_neither_key_nor_partition_take_turns() -> None:
    columns = {"value": pa.array(["a", "b", "c"]), "partition": pa.array([4, 0, 4], pa.int32())}
    assert placed(columns, "out", {"out": 5}) == [("out", 4), ("out", 0), ("out", 4)]
    first, second, third = placed({"value": pa.array(["a"] * 3)}, "out", {"out": 2})
    assert (first, {first, second}) == (third, {("out", 0), ("out", 1)})
    assert placed({"partition": pa.array([], pa.int32())}, "out", {"out": 1}) == []


def test_rows_without_a_partition_go_where_their_key_belongs_in_their_topic() -> None:
    keys, topics = [b"gold-1", b"gold-2", b"gold-3", b"gold-1"], ["out", "late", "late", "late"]
    partitions = pa.array([None, None, 5, None], pa.int32())
    columns = {"key": pa.array(keys), "topic": pa.array(topics), "partition": partitions}
    wanted = [(murmur2(key) & 0x7FFFFFFF) % count for key, count in zip(keys, (3, 7, 7, 7), strict=True)]
    wanted[2] = 5
    assert placed(columns, None, {"out": 3, "late": 7}) == list(zip(topics, wanted, strict=True))


def missing(topic: str) -> int:
    raise Refused(f"no topic {topic}")


@pytest.mark.parametrize(
    ("topics", "partitions", "count_of", "expected"),
    [
        (["out", None], None, {"out": 5}.__getitem__, "a row whose topic is null"),
        (["out", "out"], [0, -1], {"out": 5}.__getitem__, "partition -1 of topic 'out', which has 5 partitions"),
        (["out", "late"], [4, 3], {"out": 5, "late": 3}.__getitem__, r"partition 3 of topic 'late', .* \(0 to 2\)"),
        (["out", "late"], None, missing, "no topic out"),
        (["out", "late"], None, lambda topic: 5 if topic == "out" else missing(topic), "no topic late"),
        ([None, None], [0, 1], not_asked, "a row whose topic is null"),
        (["out", ""], None, {"out": 5}.__getitem__, "a row with topic '';"),
        (["out", ".."], None, {"out": 5}.__getitem__, r"a row with topic '\.\.'; a name has 1 to 249 of"),
        (["größe", "out"], None, not_asked, "a row with topic 'größe'"),
    ],
)
def test_a_destination_that_does_not_exist_is_refused(
    topics: list[str | None], partitions: list[int] | None, count_of: Callable[[str], int], expected: str
) -> None:
    """By both writers: the client would repeat it until the batch's attempts are used up."""
    columns = {"key": pa.array(["k", "k"]), "topic": pa.array(topics, pa.string())}
    if partitions is not None:
        columns["partition"] = pa.array(partitions, pa.int32())
    batch = pa.RecordBatch.from_pydict(columns)
    for check in (check_destinations, destinations_of):
        with pytest.raises(Refused, match=expected):
            check(batch, None, count_of)


def test_a_sinks_topic_takes_precedence_and_a_null_partition_is_the_keys() -> None:
    columns = {"topic": pa.array(["x", None]), "partition": pa.array([4, None], pa.int32())}
    batch = pa.RecordBatch.from_pydict({**columns, "key": pa.array(["a", "b"])})
    check_destinations(batch, "out", {"out": 5}.__getitem__)
    with pytest.raises(Refused, match="partition 4 of topic 'out', which has 4"):
        check_destinations(batch, "out", {"out": 4}.__getitem__)
    check_destinations(batch.select(["key"]), "out", not_asked)  # rows that name no destination cost no request


def test_a_header_without_a_key_is_refused() -> None:
    """Brokers refuse such a record without saying which; one without a value is right."""
    headers = pa.array([[{"key": "h", "value": None}], [{"key": None, "value": b"1"}]])
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a", "b"]), "headers": headers})
    for read in (lambda: list(rows_of(batch, "out")), lambda: checked_headers(batch.column("headers"))):
        with pytest.raises(Refused, match="a header whose key is null"):
            read()
    assert len(list(rows_of(batch.slice(0, 1), "out"))) == 1
    with pytest.raises(Refused, match="a header whose key is null"):
        checked_headers(pa.array([[None]], headers.type))


def test_a_header_or_topic_that_is_not_utf_8_is_refused() -> None:
    """Spark's strings hold any bytes. Consumers could not read such a header, and the sink none of the topic's."""

    def text(data: bytes) -> pa.Array:
        return pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(struct.pack("ii", 0, len(data))), pa.py_buffer(data)]
        )

    one = pa.StructArray.from_arrays([text(b"\xc3\x28"), pa.array([b"x"])], ["key", "value"])
    headers = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), one)
    with pytest.raises(Refused, match="a header whose key is not UTF-8"):
        checked_headers(headers)
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["a"]), "topic": text(b"\xc3\x28")})
    with pytest.raises(Refused, match=r"a row with topic .*xc3\("):
        destinations_of(batch, None, not_asked)


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


def sent(rows: Records, most: int, own: Any = OWN, *, compress: bool = False) -> list[ArrowBatch]:
    batches = list(batches_of(encoded(rows, own, most, compress=compress), NOW))
    for number, batch in enumerate(batches):
        batch._set_producer_state(4711, 7, number)
    return batches


@given(ROWS, st.integers(1, 2000), st.integers(0, 2), st.booleans())
def test_records_are_read_as_they_were_written_each_place_in_its_order(
    rows: list[Row], most: int, before: int, compress: bool
) -> None:
    batches = sent(columns(rows, before=before), most, compress=compress)
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
    small = encoded(columns(rows), OWN, 300, compress=True)
    assert [bytes(one.records) for one in batches_of(small, NOW)] == [bytes(one.records) for one in pieces]
    bytes_of = [int(pc.sum(pc.binary_length(one.column("records"))).as_py()) for one in (small, batch)]
    assert bytes_of[0] < bytes_of[1] / 2
