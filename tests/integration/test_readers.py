"""One partition's readers on a real broker: what they give out and weigh, how they rest, and when they give up."""

from __future__ import annotations

import contextlib
import itertools
import operator
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from harness.pipeline import Stage
from harness.programs import until

from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded
from brew.kafka.clients import FULL_MS
from brew.kafka.log_reader import FetchedRecords, RangeReader, TailReader

AHEAD_BYTES = 64 * 1024
WAKE_UPS = 30
VOLUNTARY = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


def tail(stage: Stage, start: int = 0) -> TailReader:
    return TailReader(stage.connection, stage.names.group, stage.names.input, 0, start, 4 * 1024 * 1024)


def read_to_the_end(reader: TailReader, end: int, most: int = 1000) -> list[FetchedRecords]:
    """All up to the log's end: a look that finds nothing may only have come too early."""
    parts: list[FetchedRecords] = []

    def at_the_end() -> bool:
        fetched = reader.take(most, 1_000_000, 0.3)
        parts.extend([fetched] if fetched is not None else [])
        return bool(parts) and parts[-1].until >= end

    until(at_the_end, "the end", 20)
    return parts


def test_a_tail_gives_each_record_once_and_counts_markers_as_read(stage: Stage) -> None:
    stage.create(1)
    stage.seed(30, "--transactional", "--transaction-size", "10")
    visible = [record.offset() for record in stage.records(stage.names.input)]
    log = stage.logs(stage.names.input)[0]  # looked at behind the records: the last marker is there now
    assert visible[-1] + 1 < log.end, "it has to end in markers"
    with contextlib.closing(tail(stage)) as reader:
        parts = read_to_the_end(reader, log.end, most=7)
        assert [record.offset() for part in parts for record in part.records] == visible
        assert max(len(part.records) for part in parts) <= 7
        assert parts[-1].until == log.end
        stage.seed(3)
        parts = read_to_the_end(reader, log.end + 3)
        assert [record.offset() for part in parts for record in part.records] == [log.end, log.end + 1, log.end + 2]


def test_a_tail_tells_what_records_weigh_from_the_first_on(stage: Stage) -> None:
    """Not what it had guessed before: a partition's first transaction ended after a fifth of its bytes."""
    stage.create(1, orders=3000)
    with contextlib.closing(tail(stage)) as reader:
        parts = read_to_the_end(reader, 3000)
    records = [record for part in parts for record in part.records]
    size = sum(len(record.value() or b"") + len(record.key() or b"") for record in records)
    assert size < sum(part.size for part in parts) < 2 * size


def test_a_tail_whose_position_is_gone_says_so(stage: Stage) -> None:
    """It never starts anywhere else by itself."""
    stage.create(1, orders=3)
    reader = tail(stage, start=1000)
    with contextlib.closing(reader), pytest.raises(BrewError, match="read of"):
        until(lambda: reader.take(10, 1000, 0.1) is not None, "an answer", 20)


@contextlib.contextmanager
def full_reader(stage: Stage, full_ms: int) -> Iterator[set[int]]:
    """A reader that has more than it may fetch ahead; the threads of its client."""
    before = {thread.id for thread in psutil.Process().threads()}
    reader = TailReader(stage.connection, stage.names.group, stage.names.input, 0, 0, AHEAD_BYTES, full_ms=full_ms)
    with contextlib.closing(reader):
        until(lambda: reader.take(1, AHEAD_BYTES, 0.1) is not None, "the first record", 20)
        yield {thread.id for thread in psutil.Process().threads()} - before


def seconds_for_wake_ups(threads: set[int]) -> float:
    """How long the busiest of these threads takes to go to sleep and wake up so often."""
    before, began = _sleep_counts(threads), time.monotonic()
    until(lambda: max(map(operator.sub, _sleep_counts(threads), before)) >= WAKE_UPS, "wake-ups", 60)
    return time.monotonic() - began


def _sleep_counts(threads: set[int]) -> list[int]:
    """Of each thread: how often it went to sleep by itself; 0 of one that has ended."""
    return [_sleep_count(Path(f"/proc/self/task/{thread}/status")) for thread in sorted(threads)]


def _sleep_count(status: Path) -> int:
    try:
        match = VOLUNTARY.search(status.read_text())
    except (FileNotFoundError, ProcessLookupError):
        return 0
    assert match, "the kernel tells it"
    return int(match[1])


def test_a_full_reader_rests_as_long_as_it_was_told(stage: Stage) -> None:
    """Most of many readers are full, and wait for their turn: what they do meanwhile costs the one whose turn it is."""
    stage.create(1, orders=3000)
    rest_ms = 10 * FULL_MS
    with full_reader(stage, rest_ms) as threads:
        assert seconds_for_wake_ups(threads) > WAKE_UPS * rest_ms / 1000 / 2


def offsets(reader: RangeReader, start: int, until: int) -> list[int]:
    batches = reader.read(start, until, Deadline(10), threading.Event())
    return [record.offset() for batch in batches for record in batch]


def test_a_kept_reader_gives_each_range_its_records_and_no_other(stage: Stage) -> None:
    """Ranges that follow each other, that end in markers, that hold nothing visible, and one read again."""
    stage.create(1)
    stage.seed(30, "--transactional", "--transaction-size", "10")
    visible = [record.offset() for record in stage.records(stage.names.input)]  # which waits for the last marker
    end = stage.logs(stage.names.input)[0].last_stable
    assert len(visible) == 30
    assert visible[-1] + 1 < end, "it has to end in markers"
    with contextlib.closing(RangeReader(stage.connection, stage.names.input, 0, stage.names.group)) as reader:
        cuts = [0, 3, 4, visible[9] + 1, visible[10], visible[-1] + 1, end]
        for start, stop in itertools.pairwise(cuts):
            assert offsets(reader, start, stop) == [offset for offset in visible if start <= offset < stop]
        stage.seed(5)
        new_end = stage.logs(stage.names.input)[0].last_stable
        assert len(offsets(reader, end, new_end)) == 5
        assert offsets(reader, 2, end) == [offset for offset in visible if offset >= 2]


def test_a_reader_that_finds_nothing_gives_up_at_its_deadline_and_when_told(stage: Stage) -> None:
    stage.create(1, orders=3)
    stop = threading.Event()
    with contextlib.closing(RangeReader(stage.connection, stage.names.input, 0, stage.names.group)) as reader:
        with pytest.raises(DeadlineExceeded, match=r"offsets 0 to 10"):
            list(reader.read(0, 10, Deadline(0.5), stop))
        stop.set()
        with pytest.raises(DeadlineExceeded, match="the run stops"):
            list(reader.read(0, 10, Deadline(10), stop))
