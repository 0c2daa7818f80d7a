"""Counting records of the output: by source position or key, exactly, in bounded memory."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness.records import FakeRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import Headers
from downstream.__main__ import _document, _text
from downstream.count import KEY, SOURCE, Count, DistinctCount, digest, tally


def record(offset: int | None, key: bytes | None = b"same") -> FakeRecord:
    """A record from that source position."""
    return FakeRecord(key=key, source=offset)


def count(records: Sequence[Any], by: str = SOURCE, isolation: str = READ_COMMITTED) -> Count:
    distinct_by = tally([one] for one in records)
    return Count("t", isolation, by, *distinct_by, {SOURCE: [], KEY: []}, {})


def test_a_key_may_repeat_and_a_source_position_may_not() -> None:
    records = [record(1), record(2), record(2)]
    by_source, by_key = count(records), count(records, KEY)
    assert (by_source.unique, by_source.duplicates, by_source.fallen_back) == (2, 1, 0)
    assert (by_key.unique, by_key.duplicates, by_key.fallen_back) == (1, 2, 0)
    assert _text(by_source).startswith("3 records, 1 unique key, 1 duplicate (read_committed, by source position)")
    assert _text(by_key).startswith("3 records, 1 unique key, 2 duplicates (read_committed, by key)")
    assert not count([record(1), record(2)]).alarming
    assert count([record(1), record(2)], KEY).alarming


def test_n_aborted_and_n_committed_records_are_n_duplicates_of_an_uncommitted_reader() -> None:
    records = [record(n, b"k%d" % n) for n in range(30)] * 2
    counted = count(records, isolation=READ_UNCOMMITTED)
    assert _text(counted).splitlines() == [
        "60 records, 30 unique keys, 30 duplicates (read_uncommitted, by source position)",
        "duplicates are expected here: this reader also sees aborted records",
    ]
    assert not counted.alarming


@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("source.topic", b"in")],
        [("source.topic", None), ("source.partition", b"0"), ("source.offset", b"1")],
        [("source.topic", b"in"), ("source.partition", b"x"), ("source.offset", b"1")],
        [("source.topic", b"in"), ("source.partition", b"0"), ("source.offset", b"-1")],
        [("source.topic", b"in"), ("source.partition", b"0"), ("source.offset", b"")],
        [("source.topic", b"in"), ("source.partition", b"0"), ("source.offset", b"9" * 5000)],
        [("source.topic", b"in"), ("source.partition", b"\xff"), ("source.offset", None)],
    ],
)
def test_a_record_whose_headers_can_not_be_read_is_counted_by_key(headers: Headers | None) -> None:
    counted = count([record(1), record(2), *(FakeRecord(key=key, headers=headers) for key in (b"a", b"b", b"a"))])
    assert (counted.unique, counted.duplicates, counted.fallen_back, counted.unidentified) == (4, 1, 3, 0)
    assert _text(counted).splitlines()[:2] == [
        "5 records, 3 unique keys, 1 duplicate (read_committed, by source position)",
        "3 of the records don't have a readable source position in the headers: counted by key instead",
    ]
    assert _document(counted)["by_source"] == {"unique": 2, "duplicates": 0, "unidentified": 3}


def test_where_no_record_has_a_source_position_all_are_counted_by_key_and_it_says_so() -> None:
    """A topic that the pipeline did not write; an empty one is counted as it was asked for."""
    counted = count([record(None, b"a"), record(None, b"b")])
    assert _text(counted).splitlines() == [
        "2 records, 2 unique keys, 0 duplicates (read_committed, by key)",
        "no record has a readable source position in the headers: counted by key instead",
    ]
    assert _text(count([])) == "0 records, 0 unique keys, 0 duplicates (read_committed, by source position)"


def test_a_key_cannot_write_control_characters_to_the_terminal() -> None:
    """They stay as they are in the JSON document, which escapes them itself."""
    hostile = "\x1b]0;title\x07\r\n\u202e"
    counted = replace(count([record(1), record(1)], KEY), examples={KEY: [hostile, "k-\xe9 1"]})
    shown = r"\x1b]0;title\x07\r\n\u202e, k-" + "\xe9 1"
    assert _text(counted).splitlines()[-1] == f"duplicate keys, the first of them: {shown}"
    assert _document(counted)["examples"] == [hostile, "k-\xe9 1"]


def test_a_record_with_neither_counts_neither_way() -> None:
    """One without a key alone is known by its source, and no key is taken for one, whatever its text."""
    counted = count([record(1, None), record(1, None), record(None, None)])
    assert (counted.unique, counted.duplicates, counted.unidentified) == (1, 1, 1)
    assert "1 record with neither source position nor key" in _text(counted)
    by_key = count([record(1, None), record(1, b"a")], KEY)
    assert (by_key.unique, by_key.duplicates, by_key.unidentified) == (1, 0, 1)
    both = count([record(1), record(None, b"in[0]@1")])
    assert (both.unique, both.duplicates) == (2, 0)


def test_the_document_tells_both_ways_of_counting() -> None:
    answer = _document(count([record(1), record(2), record(2), record(None)]))
    assert answer["unique_by"] == "source"
    assert (answer["records"], answer["unique"], answer["duplicates"], answer["counted_by_key_instead"]) == (4, 3, 1, 1)
    assert answer["by_key"] == {"unique": 1, "duplicates": 3, "unidentified": 0}
    assert answer["by_source"] == {"unique": 2, "duplicates": 1, "unidentified": 1}


SMALL = 50


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=40), max_size=8), st.booleans())
def test_the_count_is_exact_in_memory_and_on_disk(batches: list[list[bytes | None]], spill: bool) -> None:
    occurrences = Counter(one for batch in batches for one in batch if one is not None)
    with DistinctCount(3 if spill else SMALL) as counting:
        for batch in batches:
            counting.add(batch)
        result = counting.result()
    assert result.records == sum(map(len, batches))
    assert result.unidentified == sum(one is None for batch in batches for one in batch)
    assert result.unique == len(occurrences)
    assert result.duplicates == sum(occurrences.values()) - len(occurrences)
    repeated = {one for one, times in occurrences.items() if times > 1}
    assert set(result.examples) <= repeated
    assert result.example_digests <= {digest(one) for one in repeated}
    assert bool(result.examples or result.example_digests) == bool(repeated)


def test_a_duplicate_across_the_move_to_disk_is_found() -> None:
    """What was in memory meets what came after; a few keys of a megabyte fill memory as well as many short ones."""
    with DistinctCount(SMALL) as counting:
        counting.add([b"%d" % n for n in range(100)])
        counting.add([b"7"])
        result = counting.result()
    assert (result.unique, result.duplicates, result.example_digests) == (100, 1, frozenset([digest(b"7")]))
    with DistinctCount(1000, identity_bytes=10_000) as counting:
        counting.add([b"%d" % n * 5_000 for n in range(5)])
        counting.add([b"0" * 5_000])
        assert counting.result().example_digests == {digest(b"0" * 5_000)}


def test_memory_stays_flat_beyond_the_limit() -> None:
    tracemalloc.start()
    try:
        with DistinctCount(5_000) as counting:
            for start in range(0, 200_000, 2_000):
                counting.add([b"key-%012d" % n for n in range(start, start + 2_000)])
            assert counting.result().unique == 200_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000  # 200,000 keys of 16 bytes in a set would take 20 MB


def test_the_files_are_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def broken_off() -> None:
        with DistinctCount(SMALL) as counting:
            counting.add([b"%d" % n for n in range(100)])
            assert any(tmp_path.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert not list(tmp_path.iterdir())
