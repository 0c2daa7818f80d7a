"""Records as a `RecordBatch` and back: every column, what may be left out, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import brew
from brew.record import Record, Reject, apply
from brew.record_batches import SCHEMA, apply_batch, batch_of

RECORDS = [Record("in", 1, 5, b"k", b"v", (("h", b"1"), ("n", None)), 17), Record("in", 1, 7, None, None, (), 18)]


def test_what_comes_back_unchanged_is_unchanged() -> None:
    """Every column there and back; one that is left out keeps the input's value."""
    assert batch_of(RECORDS).schema == SCHEMA
    assert apply_batch(lambda batch: batch, RECORDS) == [(one,) for one in RECORDS]
    assert apply_batch(lambda batch: batch.select(["offset"]), RECORDS) == [(one,) for one in RECORDS]


def test_text_is_taken_for_its_bytes() -> None:
    """Pyarrow's functions of strings return strings."""

    @brew.batches
    def upper(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = pc.utf8_upper(batch["value"].cast(pa.string()))
        return pa.RecordBatch.from_arrays([batch["offset"], values], names=["offset", "value"])

    assert apply(upper, RECORDS[0]) == (RECORDS[0].with_value(b"V"),)


def test_destinations_and_reasons_have_columns_of_their_own() -> None:
    def routed(_batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = {"offset": [5, 7, 5], "destination": ["b", None, None], "reject": [None, "empty", None]}
        return pa.RecordBatch.from_pydict({**columns, "message": [None, "no value", None]})

    first, second = apply_batch(routed, RECORDS)
    assert first == (RECORDS[0].to("b"), RECORDS[0])
    assert isinstance(second, Reject)
    assert str(second) == "empty: no value"

    @brew.batches
    def rejecting(_batch: pa.RecordBatch) -> pa.RecordBatch:
        raise brew.Reject("no")

    assert str(apply(rejecting, RECORDS[0])) == "no", "raised over a batch of one, it is its record's"


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda batch: batch.to_pylist(), "returned list"),
        (lambda batch: batch.select(["value"]), "no column 'offset'"),
        (lambda batch: batch.rename_columns([*batch.schema.names[:-1], "time"]), r"columns \['time'\]"),
        (lambda _batch: pa.RecordBatch.from_pydict({"offset": [6]}), "offset 6, which was not"),
        (
            lambda _batch: pa.RecordBatch.from_pydict({"offset": [5], "headers": [[{"name": "a\0", "value": b""}]]}),
            r"header name 'a\\x00'",
        ),
    ],
)
def test_a_batch_that_can_not_be_read_is_refused_by_what_is_wrong(function: Callable[..., object], why: str) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        apply_batch(function, RECORDS)
