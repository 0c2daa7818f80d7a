"""Runs without Spark: ranges with nothing to write, the kept reader of ranges, and what a run says as JSON."""

from __future__ import annotations

import itertools
import json
import threading

import pytest
from harness.pipeline import Stage

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.kafka.clients import producer
from brew.kafka.log_reader import RangeReader
from brew.names import CrashPoint


def offsets(reader: RangeReader, start: int, until: int) -> list[int]:
    return [r.offset() for some in reader.read(start, until, Deadline(10), threading.Event()) for r in some]


@pytest.mark.parametrize("reader", ["connector", "direct"])
def test_a_crash_that_finds_nothing_to_write_lets_the_range_pass(stage: Stage, reader: str) -> None:
    """Offsets of an aborted transaction alone: `mid-produce` is never reached, and the position goes on behind them."""
    stage.create(1)
    upstream = producer(stage.connection, f"{stage.names.stem}-upstream", timeout_s=60, message_max_bytes=1_000_000)
    upstream.init_transactions(20)
    upstream.begin_transaction()
    upstream.produce(stage.names.input, b"{}", b"gold-1", 0)
    upstream.flush(20)
    upstream.abort_transaction(20)
    crash = ("--crash-mode", "worker", "--crash-prob", "1.0", "--crash-point", CrashPoint.MID_PRODUCE.value)
    ran = stage.pipeline("--master", "none", "--reader", reader, *crash, seconds=60)
    assert ran.code == 0, ran
    assert stage.committed() == {0: 2}


def test_a_kept_reader_gives_each_range_its_records_and_no_other(stage: Stage) -> None:
    """Ranges that follow each other, that end in markers, that hold nothing visible, and one read again."""
    stage.create(1)
    stage.seed(30, "--transactional", "--transaction-size", "10")
    visible = [one.offset() for one in stage.records(stage.names.input)]  # which waits for the last marker
    end = stage.logs(stage.names.input)[0].last_stable
    assert len(visible) == 30
    assert visible[-1] + 1 < end, "it has to end in markers"
    reader = RangeReader(stage.connection, stage.names.input, 0, stage.names.group)
    try:
        cuts = [0, 3, 4, visible[9] + 1, visible[10], visible[-1] + 1, end]
        for start, stop in itertools.pairwise(cuts):
            assert offsets(reader, start, stop) == [at for at in visible if start <= at < stop]
        stage.seed(5)
        more = stage.logs(stage.names.input)[0].last_stable
        assert len(offsets(reader, end, more)) == 5
        assert offsets(reader, 2, end) == [at for at in visible if at >= 2]
    finally:
        reader.close()


def test_a_reader_that_finds_nothing_gives_up_at_its_deadline_and_when_told(stage: Stage) -> None:
    stage.create(1)
    stage.seed(3)
    reader = RangeReader(stage.connection, stage.names.input, 0, stage.names.group)
    stop = threading.Event()
    try:
        with pytest.raises(DeadlineExceeded, match=r"offsets 0 to 10"):
            list(reader.read(0, 10, Deadline(0.5), stop))
        stop.set()
        with pytest.raises(DeadlineExceeded, match="the run stops"):
            list(reader.read(0, 10, Deadline(10), stop))
    finally:
        reader.close()


def test_a_run_as_json_says_nothing_that_is_no_document(stage: Stage) -> None:
    """A line each on stdout, the sum last; refused, it is one object on stderr."""
    stage.create(1)
    stage.seed(20)
    ran = stage.pipeline("--master", "none", "--json")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert (ran.code, {"cycle"} <= {one["event"] for one in lines}) == (0, True), ran.text
    assert (lines[-1]["event"], lines[-1]["enriched"] + lines[-1]["rejected"]) == ("done", 20)
    refused = stage.pipeline("--master", "none", "--json", "--input", stage.names.topic("nowhere"))
    assert (refused.code, refused.out) == (3, "")
    assert "nowhere" in json.loads(refused.err)["error"]
