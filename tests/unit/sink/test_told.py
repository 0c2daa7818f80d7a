"""What `explain` says of a record that a sink wrote."""

from __future__ import annotations

from typing import Any

import pytest

from operations.explain.search import _unsourced


class Record:
    """A record of which only the headers count."""

    def __init__(self, headers: Any) -> None:
        self.headers = lambda: headers


def test_a_sinks_record_tells_its_batch() -> None:
    record: Any = Record([("a", None), ("brew.sink.name", b"revenue"), ("brew.sink.batch", b"17")])
    assert _unsourced(record).startswith("it was written by batch 17 of sink revenue, by a query")


@pytest.mark.parametrize("headers", [None, [], [("brew.sink.name", b"revenue")]])
def test_another_record_has_no_source(headers: Any) -> None:
    record: Any = Record(headers)
    assert _unsourced(record) == "it carries no source headers"
