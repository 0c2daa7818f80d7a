"""`brew.testing`: what a user's test sees is what a run does."""

from __future__ import annotations

from typing import Any

import pytest

import brew
from brew import testing


def function(record: brew.Record) -> Any:
    value = record.json()
    if value == "wrong":
        return value
    if value == "drop":
        return None
    return [record.with_json(value), record.to("late")] if value == "two" else record


def test_outputs_drops_and_rejects_are_told_apart() -> None:
    inputs = [testing.record(value, key=str(n)) for n, value in enumerate(["one", "drop", "two", b"{"])]
    result = testing.transform(function, inputs)
    assert [one.json() for one in result.outputs] == ["one", "two", "two"]
    assert {topic: len(records) for topic, records in result.by_topic.items()} == {"output": 2, "late": 1}
    assert result.dropped == [inputs[1]]
    assert [(one.record, one.reason) for one in result.rejected] == [(inputs[3], "not-json")]


def test_an_answer_that_a_run_refuses_fails_the_test() -> None:
    with pytest.raises(TypeError, match="it returned str"):
        testing.transform(function, [testing.record("wrong")])
    with pytest.raises(TypeError, match="goes to 'late'"):
        testing.transform(function, [testing.record("two")], also_output=["other"])
    assert testing.transform(function, [testing.record("two")], also_output=["late"]).outputs


def test_a_record_takes_bytes_texts_and_objects() -> None:
    record = testing.record({"a": 1}, key="k", headers={"h": "1", "none": None}, topic="t", offset=5)
    assert record == brew.Record("t", 0, 5, b"k", b'{"a":1}', (("h", b"1"), ("none", None)), 0)
    assert (testing.record(b"raw").value, testing.record().value) == (b"raw", None)


def test_a_function_of_batches_is_called_as_a_run_calls_it() -> None:
    even = brew.batches(lambda batch: batch.filter([number % 2 == 0 for number in range(batch.num_rows)]))
    result = testing.transform(even, [testing.record(n, offset=n) for n in range(4)])
    assert [one.json() for one in result.outputs] == [0, 2]
    assert [one.offset for one in result.dropped] == [1, 3]


def test_records_of_a_batch_without_offsets_are_told_apart() -> None:
    """All records that `record` makes have the offset 0; each of them got the results of all."""
    result = testing.transform(brew.batches(lambda batch: batch.slice(1)), [testing.record(n) for n in range(3)])
    assert [one.json() for one in result.outputs] == [1, 2]
    assert [one.json() for one in result.dropped] == [0]


@pytest.mark.parametrize("failure", [ValueError, SystemExit])
def test_a_batch_that_fails_is_repeated_record_by_record(failure: type[BaseException]) -> None:
    """A run does it, too: the function may reject the record that fails, and accept the others."""

    @brew.batches
    def picky(batch: Any) -> Any:
        if b"bad" in batch["value"].to_pylist():
            raise brew.Reject("bad") if batch.num_rows == 1 else failure("a bad record")
        return batch

    records = [testing.record(value, offset=n) for n, value in enumerate([b"good", b"bad"])]
    result = testing.transform(picky, records)
    assert [one.value for one in result.outputs] == [b"good"]
    assert [(one.record, one.reason) for one in result.rejected] == [(records[1], "bad")]
