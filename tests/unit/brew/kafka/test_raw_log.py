"""Raw batches of a log: headers, offset commits, first visible record, first and last record of a batch."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.deadline import Deadline
from brew.errors import Refused
from brew.kafka import kafka_python
from brew.kafka.cluster_admin import coordinator_partition
from brew.kafka.kafka_python import RawLogs, parse_batches
from brew.kafka.raw_log import (
    BatchFetcher,
    FirstVisible,
    RawHeaders,
    _first,
    first_visible,
    offset_batches,
    source_positions,
)
from brew.offsets import SinkBatch, SourcePosition

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecordsBuilder


TRANSACTION = {"transactional": True, "producer_id": 7, "producer_epoch": 3, "base_sequence": 11}


def bytes_of(builder: MemoryRecordsBuilder, *records: tuple[Any, ...]) -> bytes:
    """A batch of records of (timestamp, key, value[, headers])."""
    for record in records:
        builder.append(*record)
    builder.close()
    return bytes(builder.buffer())


def builder(base: int, producer: int = 7, codec: int = 0) -> MemoryRecordsBuilder:
    return MemoryRecordsBuilder(2, codec, 1 << 20, offset=base, **{**TRANSACTION, "producer_id": producer})


def data(base: int, *times_ms: int, producer: int = 7, codec: int = 0) -> bytes:
    return bytes_of(builder(base, producer, codec), *((time_ms, b"k", b"v" * 50) for time_ms in times_ms))


def test_the_header_tells_offsets_producer_and_number_of_records() -> None:
    """A fetch ends where its size limit says: a batch that was cut off is left out."""
    log = data(0, *range(1_000, 1_005))
    (batch,) = parse_batches(log)
    assert (batch.base_offset, batch.last_offset, batch.records) == (0, 4, 5)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (7, 3, 11)
    assert (batch.transactional, batch.control, batch.marker) == (True, False, None)
    assert batch.max_timestamp == 1_004
    for cut in (1, 30, len(log) - 1):
        assert [one.records for one in parse_batches(log + log[:cut])] == [5]


def test_an_old_format_is_refused_with_what_to_do() -> None:
    """Formats 0 and 1 know neither producers nor transactions."""
    old = bytes_of(MemoryRecordsBuilder(1, 0, 1 << 20), (1_000, b"k", b"v"))
    with pytest.raises(Refused, match="copy the topic"):
        list(parse_batches(old + bytes(100)))


Batch = tuple[RawBatch, memoryview]


def parsed_batch(base: int, *times_ms: int, producer: int = 7, codec: int = 0) -> Batch:
    content = data(base, *times_ms, producer=producer, codec=codec)
    return next(parse_batches(content)), memoryview(content)


def marker(base: int, producer: int = 7) -> Batch:
    batch = RawBatch(base, base, 1, producer, 3, -1, transactional=True, control=True, marker="abort", max_timestamp=0)
    return batch, memoryview(b"")


class Bytes(str):
    """A header's name that the library writes as these bytes."""

    __slots__ = ()

    def encode(self, *_: object) -> bytes:
        return super().encode("latin-1")


GZIP = 1
UNREADABLE = [(time_ms, b"k", b"v" * 50, [(Bytes("n\xff"), b"1")]) for time_ms in (100, 200)]


@pytest.mark.parametrize(
    ("start", "aborted", "batches", "expected"),
    [
        (0, [], [parsed_batch(0, 100, 200)], (100, 0)),
        (1, [], [parsed_batch(0, 100, 200)], (200, 1)),
        # A name of a header that is not UTF-8: `brew lag` ended with a stack trace, and exit code 1.
        (1, [], [(parsed_batch(0, 100, 200)[0], memoryview(bytes_of(builder(0), *UNREADABLE)))], (200, 1)),
        (0, [], [parsed_batch(0, -1)], (-1, 0)),
        (0, [(7, 0)], [parsed_batch(0, 100), marker(1), parsed_batch(2, 300)], (300, 2)),
        (0, [(7, 0), (7, 2)], [parsed_batch(0, 100), marker(1), parsed_batch(2, 300), marker(3)], (None, 4)),
        (0, [(7, 0)], [parsed_batch(0, 100), parsed_batch(1, 200, producer=8)], (200, 1)),
        (0, [(7, 1)], [parsed_batch(0, 100, producer=8), parsed_batch(1, 200)], (100, 0)),
        (5, [], [marker(5), parsed_batch(6, 600)], (600, 6)),
        # Compressed: the first one's of the batch is as near as its header tells.
        (1, [], [parsed_batch(0, 100, 200, codec=GZIP)], (100, 1)),
        (0, [], [], (None, 0)),
    ],
)
def test_markers_and_aborted_records_are_none(start: int, aborted: list, batches: list[Batch], expected: tuple) -> None:
    """An abort ends at its marker: the same producer's next transaction is another one."""
    assert _first(iter(batches), aborted, start) == expected


class AnsweringLog:
    """Answers with one batch, or with all of them where more than one is asked for."""

    def __init__(self, *answers: tuple[bytes, list[tuple[int, int]]]) -> None:
        self._answers = list(answers)
        self.fetches: list[tuple[int, int]] = []

    def visible(self, _topic: str, _partition: int, offset: int, most: int, _deadline: Deadline) -> Any:
        self.fetches.append((offset, most))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def look(log: AnsweringLog, last_stable: int) -> FirstVisible:
    return first_visible(log, "in", 0, 0, last_stable, Deadline(5))  # type: ignore[arg-type]


def test_one_small_fetch_tells_where_the_first_batch_is_visible() -> None:
    """That is what a look costs for each partition that lags. A record without a timestamp has no age."""
    log = AnsweringLog((data(0, 100), []))
    assert (look(log, 9), log.fetches) == (FirstVisible(100), [(0, 1024)])
    assert look(AnsweringLog((data(0, -1), [])), 1) == FirstVisible()


def test_behind_aborted_batches_larger_fetches_go_on_to_the_end_and_not_for_ever() -> None:
    """Nothing below the last stable offset is told as that; a row that never ends is given up on."""
    log = AnsweringLog((data(0, 100), [(7, 0)]), (data(1, 200), []))
    assert (look(log, 2), [offset for offset, _ in log.fetches]) == (FirstVisible(200), [0, 1])
    assert log.fetches[1][1] > log.fetches[0][1]
    assert look(AnsweringLog((data(0, 100), [(7, 0)])), 1) == FirstVisible(nothing=True)
    assert look(AnsweringLog((b"", [])), 5) == FirstVisible(nothing=True)
    endless = AnsweringLog((data(0, 100), [(7, 0)]))
    assert (look(endless, 10**9), len(endless.fetches)) == (FirstVisible(), 8)


@pytest.mark.parametrize(
    ("group", "partition"), [("", 0), ("abc", 96354 % 50), ("polygenelubricants", 0), ("hello", 99162322 % 50)]
)
def test_a_group_lies_where_javas_hash_puts_it(group: str, partition: int) -> None:
    """Among them a name whose hash is the smallest integer, which has no absolute value."""
    assert coordinator_partition(group, 50) == partition


def varint(number: int) -> bytes:
    """Zigzag, below 64."""
    return bytes([number << 1])


def commit(group: bytes, topic: bytes, partition: int, until: int | None, version: int = 1) -> bytes:
    """One record of the offset log, as brokers write it."""
    key = version.to_bytes(2, "big") + b"".join(len(one).to_bytes(2, "big") + one for one in (group, topic))
    key += partition.to_bytes(4, "big")
    value = b"\x01" if until is None else varint(10) + b"\x00\x03" + until.to_bytes(8, "big")
    record = b"\x00\x00\x00" + varint(len(key)) + key + value + varint(0)
    return varint(len(record)) + record


def test_only_the_groups_commits_of_the_topic_are_told() -> None:
    """Other groups and topics, group metadata (key version 2) and deletions lie in the same log."""
    records = [
        commit(b"g", b"in", 3, 17),
        commit(b"other", b"in", 3, 18),
        commit(b"g", b"else", 3, 19),
        commit(b"g", b"in", 2, None),
        commit(b"g", b"in", 1, 20, version=2),
    ]
    raw = RawBatch(4, 8, 5, 7, 0, 0, True, False, None, 0)
    head = b"\x00" * 16 + b"\x02" + b"\x00" * 40 + (5).to_bytes(4, "big")
    log: Any = SimpleNamespace(batches=lambda *_: [(raw, memoryview(head + b"".join(records)))])
    (batch,) = offset_batches(log, "g", "in", 0, 0, 9)
    assert batch == OffsetBatch(raw, (OffsetCommit(3, 17), OffsetCommit(2, None)))


def compressed(codec: int) -> Any:
    """An offset log with one batch that is compressed by this codec."""
    records = commit(b"orders", b"in", 3, 17) + commit(b"other", b"in", 3, 18)
    head = b"\x00" * 16 + b"\x02" + b"\x00" * 5 + bytes([codec]) + b"\x00" * 34 + (2).to_bytes(4, "big")
    batch = memoryview(head + gzip.compress(records))
    return SimpleNamespace(batches=lambda *_: [(RawBatch(4, 5, 2, 7, 0, 0, True, False, None, 0), batch)])


def test_commits_are_told_of_a_compressed_offset_log_too() -> None:
    """With `offsets.topic.compression.codec` set, the group's name is nowhere in its bytes."""
    (batch,) = offset_batches(compressed(1), "orders", "in", 0, 0, 9)
    assert batch.commits == (OffsetCommit(3, 17),)


def test_an_offset_log_of_a_codec_without_its_package_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kafka.codec.has_zstd", lambda: False)
    with pytest.raises(Refused, match=r"offsets\.topic\.compression\.codec .*zstd .*install"):
        list(offset_batches(compressed(4), "orders", "in", 0, 0, 9))


def written(*offsets: int | None, compression: int = 0, value: bytes | None = b"v" * 300) -> memoryview:
    """A batch of copies of `in[3]` at these source offsets; None: a record without headers."""
    sources = [[] if offset is None else SourcePosition("in", 3, offset).headers() for offset in offsets]
    before = [("trace", b"x" * 200), ("nothing", None)]
    records = [(1_780_000_000_000, b"key", value, [*before, *headers]) for headers in sources]
    return memoryview(bytes_of(MemoryRecordsBuilder(2, compression, 1 << 20, 0, True, 7, 1, 0), *records))


@pytest.mark.parametrize("value", [b"v" * 300, b"", None])
@pytest.mark.parametrize("offsets", [(5,), (5, 6), (5, 9, 70_000, 1 << 40)])
def test_first_and_last_source_are_read_whatever_lies_between(offsets: tuple[int, ...], value: bytes | None) -> None:
    expected = SourcePosition("in", 3, offsets[0]), SourcePosition("in", 3, offsets[-1])
    assert source_positions(written(*offsets, value=value)) == expected


@pytest.mark.parametrize("compression", [0, 1])
def test_a_header_s_name_that_is_not_utf_8_is_read_as_java_reads_it(compression: int) -> None:
    """`--reader connector` writes it so; one batch is kept, for its other records."""
    all_headers = [[("a", b"1")], [(Bytes("n\xff"), b"2"), ("b", None)], []]
    records = [(1_780_000_000_000, b"key", b"value" * 90, headers) for headers in all_headers]
    content = bytes_of(MemoryRecordsBuilder(2, compression, 1 << 20, 0, True, 7, 1, 0), *records)
    raw, asked = RawBatch(5, 7, 3, 7, 0, 0, True, False, None, 0), list[Any]()
    log: Any = SimpleNamespace(batches=lambda *place: asked.append(place) or [(raw, memoryview(content))])
    headers_at = RawHeaders(log)
    expected = [[("a", b"1")], [("n\ufffd", b"2"), ("b", None)], []]
    assert [headers_at("in", 3, offset) for offset in (5, 6, 7)] == expected
    assert asked == [("in", 3, 5, 6)]
    with pytest.raises(Refused, match=r"record at in\[3\] offset 8 has a header whose name is not UTF-8"):
        headers_at("in", 3, 8)


def test_a_sinks_batch_is_told_by_its_first_record() -> None:
    headers = [("trace", b"x"), ("brew.sink.name", b"revenue"), ("brew.sink.batch", b"17")]
    records = [(1_780_000_000_000, b"key", b"value", headers)] * 2
    content = bytes_of(MemoryRecordsBuilder(2, 0, 1 << 20, 0, True, 7, 1, 0), *records)
    assert source_positions(memoryview(content)) == SinkBatch("revenue", 17)


def test_a_batch_without_sources_or_compressed_tells_none() -> None:
    assert source_positions(written(None, None)) is None
    assert source_positions(written(5, None)) is None
    assert source_positions(written(5, 6, compression=1)) is None


# As brokers write a batch's first offset, which is not among what its checksum covers.
LOG = [base.to_bytes(8, "big") + data(0, *[100] * count)[8:] for base, count in ((0, 3), (3, 1), (4, 2), (8, 2))]
"""Batches of the offsets 0 to 2, 3, 4 and 5, 8 and 9; 6 and 7 were removed by compaction."""


def fetched_from(offset: int) -> bytes:
    """As a leader answers: from the batch that holds the offset on, of which two fit into an answer."""
    left = [one for one in LOG if next(parse_batches(one)).last_offset >= offset]
    return b"".join(left[:2]) + (left[2][:40] if len(left) > 2 else b"")


RawRead = Callable[[int, int], list[int]]


@pytest.fixture(params=["raw_logs", "batch_fetcher"])
def read(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> RawRead:
    """Return the first offset of each batch of a range, as both ways to read it yield them."""
    fetches: list[int] = []

    def fetch(_admin: object, _partition: object, offset: int, _deadline: object) -> bytes:
        fetches.append(offset)
        assert len(fetches) < 10, "it goes on for ever"
        return fetched_from(offset)

    def fetch_all(_self: object, _topic: object, starts: Mapping[int, int]) -> dict[int, bytes]:
        return {p: fetched_from(start) for p, start in starts.items()}

    monkeypatch.setattr(kafka_python, "_fetch_bytes", fetch)
    monkeypatch.setattr(BatchFetcher, "_fetch_all", fetch_all)

    def whole(start: int, until: int) -> list[int]:
        fetches.clear()
        if request.param == "raw_logs":
            batches = [*RawLogs(cast("Any", None)).batches("in", 3, start, until, Deadline(5))]
        else:
            [(_, batches)] = BatchFetcher(None, Deadline(5)).batches("in", {3: (start, until)})
        return [batch.base_offset for batch, _ in batches]

    return whole


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        (0, 10, [0, 3, 4, 8]),
        (0, 3, [0]),
        (1, 4, [0, 3]),
        (2, 3, [0]),
        (3, 8, [3, 4]),
        (6, 8, []),
        (7, 9, [8]),
        # Compaction has removed what was at the end: the log says nothing more.
        (9, 12, [8]),
        (10, 12, []),
        (5, 5, []),
    ],
)
def test_a_range_is_read_with_each_batch_that_holds_an_offset_of_it_once(
    read: RawRead, start: int, until: int, expected: list[int]
) -> None:
    """Over several fetches, of which the last batch may be cut off; the first one may begin below the range."""
    assert read(start, until) == expected
