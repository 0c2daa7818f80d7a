"""pipeline lag against a real broker: how much is left, how old it is, and who holds it back."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from harness.operate import command_line, json_of, pipeline, upstream, write
from harness.pipeline import Stage
from harness.waiting import markers_written

from brew.deadline import Deadline
from brew.kafka.kafka_python import RawLogs
from brew.kafka.transactions_admin import fence
from brew.names import ExitCode, TransactionalId
from operations.lag import Observer
from operations.partition_state import State, classify


def lag_of(stage: Stage) -> dict[str, Any]:
    report = json_of(stage, "lag", "--interval", "0.1")
    return dict(report["partitions"][0])


def test_lag_counts_records_and_tells_who_blocks(stage: Stage) -> None:
    """A tail of markers and aborted records is no lag; records behind an open transaction wait for its owner."""
    stage.create(1)
    stage.seed(5)
    stage.drain_locally()
    at_end = lag_of(stage)
    assert (at_end["state"], at_end["remaining"], at_end["why"]) == ("idle", 0, "at the end of the log")
    with upstream(stage, "up") as writer, upstream(stage, "late") as late:
        write(stage, writer, 3)
        writer.abort_transaction(20)
        markers_written(stage.connection, stage.names.input)
        tail = lag_of(stage)
        assert tail["last_stable"] - tail["committed"] == 4
        assert (tail["state"], tail["remaining"], tail["exact"]) == ("idle", 0, True)
        assert "only markers and aborted records" in tail["why"]

        write(stage, late, 2)
        blocked = lag_of(stage)
        assert (blocked["state"], blocked["remaining"]) == ("blocked", 0)
        (holder,) = blocked["held_by"]
        assert (holder["transactional_id"], holder["first_offset"]) == (stage.names.topic("late"), tail["end"])
        assert holder["age_s"] >= 0

        write(stage, writer, 3)
        writer.commit_transaction(20)
        markers_written(stage.connection, stage.names.input)
        assert lag_of(stage)["remaining"] == 0
        late.commit_transaction(20)
        markers_written(stage.connection, stage.names.input)
        behind = lag_of(stage)
        assert (behind["state"], behind["remaining"], behind["exact"]) == ("stuck", 5, True)
        stuck = ("--interval", "0.1", "--fail-on", "stuck")
        assert json_of(stage, "lag", *stuck, "--fail-on", "fenced", code=1)["states"] == {"stuck": 1}
        assert pipeline(stage, "lag", *stuck)[0] == ExitCode.VIOLATION
        assert json_of(stage, "lag", "--interval", "0.1", "--fail-on", "fenced")["states"] == {"stuck": 1}
        assert pipeline(stage, "lag", *stuck, "--watch")[0] == ExitCode.USAGE
        at_most = json_of(stage, "lag", "--interval", "0.1", "--exact", "0")
        assert (at_most["remaining"], at_most["exact"]) == (11, False)
    stage.drain_locally()
    assert lag_of(stage)["state"] == "idle"
    assert json_of(stage, "lag", *stuck)["states"] == {"idle": 1}


def test_the_lag_in_seconds_is_the_age_of_the_first_record_that_a_reader_is_given(stage: Stage) -> None:
    """Markers and aborted records have no age; an idle partition, or what waits behind somebody's transaction, is 0."""
    stage.create(2)
    stage.seed(6)
    stage.drain_locally()
    assert [row["lag_s"] for row in json_of(stage, "lag", "--interval", "0.1")["partitions"]] == [0, 0]
    with upstream(stage, "up") as writer:
        write(stage, writer, 3)  # ages of these would be small
        writer.abort_transaction(20)
        markers_written(stage.connection, stage.names.input)
        assert lag_of(stage)["lag_s"] == 0
        hour_ago = int(time.time() * 1000) - 3_600_000
        order, new = b'{"customer_id":"c-1"}', hour_ago + 3_000_000
        stage.produce(stage.names.input, (0, b"gold-1", order, None, hour_ago), (0, b"gold-1", order, None, new))
        report = json_of(stage, "lag", "--interval", "0.1")
        ages = [row["lag_s"] for row in report["partitions"]]
        assert (3_600 <= ages[0] < 3_700, ages[1], report["lag_s"]) == (True, 0, ages[0])
        assert json_of(stage, "lag", "--interval", "0.1", "--exact", "0")["lag_s"] >= 3_600
        fail_older_than = ("--interval", "0.1", "--fail-older-than")
        assert pipeline(stage, "lag", *fail_older_than, "60")[0] == ExitCode.VIOLATION
        code, text = pipeline(stage, "lag", *fail_older_than, "7200")
        assert (code, "2 records to read, the oldest is 3,6" in text) == (ExitCode.DONE, True)
        assert pipeline(stage, "lag", *fail_older_than, "60", "--watch")[0] == ExitCode.USAGE
    stage.drain_locally()
    with upstream(stage, "late") as late:
        write(stage, late, 2)
        blocked = lag_of(stage)
        assert (blocked["state"], blocked["lag_s"]) == ("blocked", 0)


def test_a_look_asks_for_the_first_record_once_as_long_as_the_position_stands_still(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One fetch for each partition that lags and has moved, and none for those that are at the end."""
    stage.create(2)
    stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id":"c-1"}'))
    fetches: list[tuple[int, int]] = []
    visible = RawLogs.visible

    def count_fetches(self: RawLogs, topic: str, partition: int, offset: int, *more: Any) -> Any:
        fetches.append((partition, offset))
        return visible(self, topic, partition, offset, *more)

    monkeypatch.setattr(RawLogs, "visible", count_fetches)
    with Observer(stage.connection, stage.names.input, stage.names.group, exact=100) as observer:
        ages = [observer.snapshot(Deadline(20))[0].oldest_ms for _ in range(3)]
        assert (len(set(ages)), fetches) == (1, [(0, 0)])
        stage.drain_locally()
        observer.snapshot(Deadline(20))
        stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id":"c-1"}'))
        assert observer.snapshot(Deadline(20))[0].oldest_ms >= ages[0]
    assert fetches == [(0, 0), (0, 1)]
    with Observer(stage.connection, stage.names.input, stage.names.group, exact=100, ages=False) as observer:
        assert observer.snapshot(Deadline(20))[0].oldest_ms is None
    assert len(fetches) == 2


def test_a_partition_whose_attempts_end_each_other_is_fenced(stage: Stage) -> None:
    """Between two looks somebody took the id over, and committed nothing; before that it only stands still."""
    stage.create(1)
    stage.seed(5)
    transactional_id = str(TransactionalId(stage.names.group, stage.names.input, 0))
    fence(stage.connection, transactional_id, Deadline(20))
    with Observer(stage.connection, stage.names.input, stage.names.group, exact=100) as observer:
        (before,), (unchanged,) = observer.snapshot(Deadline(20)), observer.snapshot(Deadline(20))
        fence(stage.connection, transactional_id, Deadline(20))
        (after,) = observer.snapshot(Deadline(20))
    now_ms = int(time.time() * 1000)
    assert classify(before, unchanged, now_ms).state is State.STUCK
    classification = classify(unchanged, after, now_ms)
    assert (classification.state, "two runs fence each other" in classification.why) == (State.FENCED, True)
    assert after.remaining.records == 5


def test_watching_the_lag_goes_on_until_sigterm(stage: Stage) -> None:
    """A line per look."""
    stage.create(1)
    with stage.python("pipeline", *command_line(stage, "lag"), "--watch", "--json", "--interval", "0.1") as program:
        program.await_line(lambda line: '"states":{"idle":1}' in line, times=2)
        program.terminate()
        assert program.wait(30).code == 128 + signal.SIGTERM
