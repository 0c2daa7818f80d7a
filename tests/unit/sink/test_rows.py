"""The columns that a sink takes, Kafka's default partitioner on Arrow columns, and rows from Arrow batches."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from hypothesis import given
from hypothesis import strategies as st

from brew.errors import Refused, UsageError
from brew.sink.rows import check_destinations, checked_columns, checked_headers, destinations_of, partitions_of, rows_of

HEADERS = "array<struct<key:string,value:binary>>"


def test_the_columns_of_sparks_own_sink_are_taken_and_others_left_out() -> None:
    columns = {"key": "binary", "offset": "bigint", "value": "string", "partition": "int", "headers": HEADERS}
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
