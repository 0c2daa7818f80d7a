"""The writer path without Spark: the same promise, at every crash point, in a process that starts in a moment."""

from __future__ import annotations

import itertools
import json
import signal
import threading
from pathlib import Path

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.pipeline import Stage
from harness.programs import until

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.journal import Phase, Step, entries
from brew.kafka.clients import producer
from brew.kafka.log_reader import RangeReader
from brew.names import CrashPoint


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    return Stage(broker, names)


def offsets(reader: RangeReader, start: int, until: int) -> list[int]:
    return [r.offset() for some in reader.read(start, until, Deadline(10), threading.Event()) for r in some]


def test_it_drains_what_spark_would_and_says_so(stage: Stage) -> None:
    """Aborted records, a partition of markers alone, poison: all as through Spark."""
    stage.create()
    stage.seed(300, "--transactional", "--markers-only-partition", "2")
    stage.seed(40, "--bad-every", "5")
    ran = stage.pipeline("--master", "none", seconds=60)
    assert ran.code == 0, ran
    assert "332 enriched, 8 rejected" in ran.out
    stage.proven(inputs=340, outputs=332)


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


def test_a_sigkill_at_every_crash_point_heals(stage: Stage, tmp_path: Path) -> None:
    """The journal's last line tells where the process died; the next one finds out the rest from Kafka alone."""
    stage.create(2)
    seeded = 0
    for point in CrashPoint:
        stage.seed(20)
        seeded += 20
        journal = tmp_path / point.value
        crash = ["--crash-mode", "worker", "--crash-prob", "1.0", "--crash-point", point.value]
        died = stage.pipeline("--master", "none", "--journal", str(journal), *crash, seconds=60)
        assert died.code == -signal.SIGKILL
        answered = [one for one in entries(journal) if one.step is Step.COMMIT and one.phase is Phase.DONE]
        if point is not CrashPoint.COMMIT_IN_FLIGHT:  # there the answer may come before the kill
            assert bool(answered) == (point in {CrashPoint.AFTER_COMMIT, CrashPoint.BEFORE_REPORT}), point
        healed = stage.pipeline("--master", "none", seconds=60)
        assert healed.code == 0, healed
    stage.proven(inputs=seeded, outputs=seeded)


def test_sigterm_ends_a_following_run_in_good_order(stage: Stage) -> None:
    stage.create(2)
    stage.seed(20)
    with stage.follow("--master", "none", "--follow") as program:
        until(lambda: sum(at or 0 for at in stage.committed().values()) == 20, "all is committed", 30)
        program.terminate()
        assert program.wait(30).code == 0
    stage.proven(inputs=20, outputs=20)


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
