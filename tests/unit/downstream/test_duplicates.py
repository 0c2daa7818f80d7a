"""Distinct counting in memory and on disk."""

from __future__ import annotations

import tempfile
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downstream.count import DistinctCount, Limits, digest

SMALL = Limits(identities=50)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(st.one_of(st.none(), st.binary(max_size=3)), max_size=40), max_size=8), st.booleans())
def test_the_count_is_exact_in_memory_and_on_disk(batches: list[list[bytes | None]], spill: bool) -> None:
    """A plain counter over everything agrees, wherever the identities are kept."""
    told = Counter(one for batch in batches for one in batch if one is not None)
    with DistinctCount(Limits(identities=3) if spill else SMALL) as counting:
        for batch in batches:
            counting.add(batch)
        found = counting.result()
    assert found.records == sum(map(len, batches))
    assert found.unidentified == sum(one is None for batch in batches for one in batch)
    assert found.unique == len(told)
    assert found.duplicates == sum(told.values()) - len(told)
    again = {one for one, times in told.items() if times > 1}
    assert set(found.examples) <= again
    assert found.example_digests <= {digest(one) for one in again}
    assert bool(found.examples or found.example_digests) == bool(again)


def test_a_duplicate_across_the_move_to_disk_is_found() -> None:
    """What was in memory before the limit meets what came after it."""
    with DistinctCount(SMALL) as counting:
        counting.add([b"%d" % n for n in range(100)])
        counting.add([b"7"])
        found = counting.result()
    assert (found.unique, found.duplicates, found.example_digests) == (100, 1, frozenset([digest(b"7")]))


def test_long_identities_move_to_disk_by_their_size() -> None:
    """A few keys of a megabyte fill memory as well as many short ones."""
    with DistinctCount(Limits(identities=1000, identity_bytes=10_000)) as counting:
        counting.add([b"%d" % n * 5_000 for n in range(5)])
        counting.add([b"0" * 5_000])
        assert counting.result().example_digests == {digest(b"0" * 5_000)}


def test_memory_stays_flat_beyond_the_limit() -> None:
    """Ten times the identities take no more memory than the limit, its files' buffers and one bucket."""
    tracemalloc.start()
    try:
        with DistinctCount(Limits(identities=5_000)) as counting:
            for start in range(0, 200_000, 2_000):
                counting.add([b"key-%012d" % n for n in range(start, start + 2_000)])
            assert counting.result().unique == 200_000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000  # 200,000 keys of 16 bytes in a set would take 20 MB


def test_the_files_are_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the reading was broken off."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def broken_off() -> None:
        with DistinctCount(SMALL) as counting:
            counting.add([b"%d" % n for n in range(100)])
            assert any(tmp_path.iterdir())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert not list(tmp_path.iterdir())
