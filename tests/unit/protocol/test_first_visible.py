"""The first record that a reader is still given, out of raw batches and the transactions that were aborted."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from brew.cluster import RawBatch
from brew.deadline import Deadline
from brew.kafka.kafka_python import parse_batches
from brew.kafka.raw_log import FirstVisible, _first, first_visible

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.memory_records import MemoryRecordsBuilder

Batch = tuple[RawBatch, memoryview]


def data(base: int, *times_ms: int, producer: int = 7, codec: int = 0) -> bytes:
    writer = {"transactional": True, "producer_id": producer, "producer_epoch": 3, "base_sequence": 11}
    builder = MemoryRecordsBuilder(2, codec, 1 << 20, offset=base, **writer)
    for time_ms in times_ms:
        builder.append(time_ms, b"k", b"v" * 50)
    builder.close()
    return bytes(builder.buffer())


def batch(base: int, *times_ms: int, producer: int = 7, codec: int = 0) -> Batch:
    content = data(base, *times_ms, producer=producer, codec=codec)
    return next(parse_batches(content)), memoryview(content)


def marker(at: int, producer: int = 7) -> Batch:
    found = RawBatch(at, at, 1, producer, 3, -1, transactional=True, control=True, marker="abort", max_timestamp=0)
    return found, memoryview(b"")


GZIP = 1


@pytest.mark.parametrize(
    ("start", "aborted", "batches", "told"),
    [
        (0, [], [batch(0, 100, 200)], (100, 0)),
        (1, [], [batch(0, 100, 200)], (200, 1)),
        (0, [], [batch(0, -1)], (-1, 0)),
        (0, [(7, 0)], [batch(0, 100), marker(1), batch(2, 300)], (300, 2)),
        (0, [(7, 0), (7, 2)], [batch(0, 100), marker(1), batch(2, 300), marker(3)], (None, 4)),
        (0, [(7, 0)], [batch(0, 100), batch(1, 200, producer=8)], (200, 1)),
        (0, [(7, 1)], [batch(0, 100, producer=8), batch(1, 200)], (100, 0)),
        (5, [], [marker(5), batch(6, 600)], (600, 6)),
        # Compressed: the first one's of the batch is as near as its header tells.
        (1, [], [batch(0, 100, 200, codec=GZIP)], (100, 1)),
        (0, [], [], (None, 0)),
    ],
)
def test_markers_and_aborted_records_are_none(
    start: int, aborted: list[tuple[int, int]], batches: list[Batch], told: tuple[int | None, int]
) -> None:
    """An abort ends at its marker: the same producer's next transaction is another one."""
    assert _first(iter(batches), aborted, start) == told


class Log:
    """Answers with one batch, or with all of them where more than one is asked for."""

    def __init__(self, *answers: tuple[bytes, list[tuple[int, int]]]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[int, int]] = []

    def visible(self, _topic: str, _partition: int, offset: int, most: int, _deadline: Deadline) -> Any:
        self.asked.append((offset, most))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def asked(log: Log, last_stable: int) -> FirstVisible:
    return first_visible(log, "in", 0, 0, last_stable, Deadline(5))  # type: ignore[arg-type]


def test_one_small_fetch_tells_where_the_first_batch_is_visible() -> None:
    """That is what a look costs for each partition that lags."""
    log = Log((data(0, 100), []))
    assert (asked(log, 9), log.asked) == (FirstVisible(100), [(0, 1024)])


def test_behind_aborted_batches_larger_fetches_go_on_to_the_end_and_not_for_ever() -> None:
    """Nothing below the last stable offset is told as that; a row that never ends is given up on."""
    log = Log((data(0, 100), [(7, 0)]), (data(1, 200), []))
    assert (asked(log, 2), [offset for offset, _ in log.asked]) == (FirstVisible(200), [0, 1])
    assert log.asked[1][1] > log.asked[0][1]
    assert asked(Log((data(0, 100), [(7, 0)])), 1) == FirstVisible(nothing=True)
    assert asked(Log((b"", [])), 5) == FirstVisible(nothing=True)
    endless = Log((data(0, 100), [(7, 0)]))
    assert (asked(endless, 10**9), len(endless.asked)) == (FirstVisible(), 8)


def test_a_record_without_a_timestamp_has_no_age() -> None:
    assert asked(Log((data(0, -1), [])), 1) == FirstVisible()
