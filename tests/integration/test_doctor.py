"""The doctor and the lag, against a real broker: what lingers, hangs and is left, who holds it back, how it ends."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import KafkaException
from harness.hanging import hang
from harness.operate import command_line, crash, json_of, pipeline, upstream, write
from harness.pipeline import Stage
from harness.waiting import markers_written

from brew.deadline import Deadline
from brew.kafka import cluster_admin, transactions_admin
from brew.kafka.kafka_python import RawLogs
from brew.kafka.transactions_admin import fence
from brew.names import ExitCode, TransactionalId
from operations import doctor
from operations.doctor import Scope, abort_transaction, examine
from operations.lag import Observer
from operations.partition_state import State, classify
from proof.wire.codec import Api
from proof.wire.proxy import WireProxy
from proof.wire.rules import Action, Rule, Side


def test_doctor_ends_a_lingering_transaction_and_the_reader_goes_on(stage: Stage) -> None:
    """It is attributed to its pipeline, and says what is read again."""
    stage.create(1, orders=10)
    crash(stage)
    topic = ("--topic", stage.names.output)
    assert json_of(stage, "doctor", *topic)["sick"] == 0
    (transaction,) = json_of(stage, "doctor", *topic, "--older-than", "0", code=1)["transactions"]
    assert transaction["kind"] == "lingering"
    assert transaction["pipeline"] == {"group": stage.names.group, "input": stage.names.input, "partition": 0}
    assert transaction["holds"][0]["offsets_waiting"] == 10
    assert "from its first offset" in transaction["read_again"]
    assert pipeline(stage, "doctor", *topic, "--abort")[0] == ExitCode.USAGE

    stage.produce(stage.names.output, (0, b"k", b"of somebody else"))
    assert stage.outputs() == 0
    code, text = pipeline(stage, "doctor", *topic, "--abort", "--yes", "--transaction", "nobody")
    assert (code, "--transaction is 'nobody': there is no such open transaction" in text) == (3, True)
    abort_all = ("--older-than", "0", "--abort", "--yes", "--all")
    assert json_of(stage, "doctor", *topic, "--group", "of.nobody", *abort_all)["transactions"] == []
    after = json_of(stage, "doctor", *topic, "--abort", "--yes", "--transaction", transaction["transactional_id"])
    assert (after["ended"], after["sick"]) == ([transaction["transactional_id"]], 0)
    assert (stage.outputs(), stage.unstable_offsets()) == (1, 0)
    stage.drain_locally()
    assert stage.outputs() == 11


def test_a_group_whose_coordinator_is_silent_is_named_beside_those_that_are_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait, too: nothing about it is not the same as its not being there."""
    stage.create(1, orders=3)
    crash(stage)
    output = stage.names.output
    groups = [f"{stage.names.group}.{suffix}" for suffix in "abc"]
    for group in groups:
        cluster_admin.set_offsets(stage.connection, group, output, {0: 0}, Deadline(20))
    monkeypatch.setattr(doctor, "groups", lambda *_: groups)
    monkeypatch.setattr(transactions_admin, "_GROUPS_S", 0.5)
    with WireProxy(stage.broker.bootstrap) as proxy:
        proxy.add(Rule(Api.OffsetFetch, Action.DROP, Side.REPLY, nth=2, times=0))
        examination = examine(proxy.connection, Scope([output], older_than_s=0), Deadline(20))
    assert examination.groups == {groups[0]: {(output, 0): 0}}
    (unavailable,) = examination.unavailable
    assert unavailable.split(": ")[0] == f"offsets of 2 groups ({groups[1]}, {groups[2]})"


def test_doctor_ends_a_hanging_transaction_that_no_coordinator_knows(stage: Stage) -> None:
    """Only a marker by hand ends it; what was in it stays hidden."""
    stage.create(1, output=1)
    topic = ("--topic", stage.names.output)
    producer_id = hang(stage.connection, stage.names.output, stage.names.topic("late"))
    stage.produce(stage.names.output, (0, b"k", b"waits"))
    assert stage.outputs() == 1
    (transaction,) = json_of(stage, "doctor", *topic, code=1)["transactions"]
    assert (transaction["kind"], transaction["producer_id"]) == ("hanging", producer_id)
    assert "CompleteCommit" in transaction["why"]
    command = (
        f"kafka-transactions.sh --bootstrap-server {stage.broker.bootstrap} abort "
        f"--topic {stage.names.output} --partition 0 --start-offset 2"
    )
    assert (transaction["ends_by"], transaction["commands"]) == ("marker", [command])
    code, text = pipeline(stage, "doctor", *topic, "--abort", "--all", "--yes")
    assert (code, "no known position goes back" in " ".join(text.split())) == (0, True)
    assert [record.value() for record in stage.records(stage.names.output)] == [b"in good order", b"waits"]
    assert max(map(len, text.splitlines())) <= 200


def test_doctor_lets_a_transaction_live_that_is_within_its_own_time_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--all` leaves it to its owner, who commits; whoever says where and how old may end it, too."""
    stage.create(1)
    monkeypatch.setattr(doctor, "_OLDER_THAN_S", 0.0)
    topic, abort_all = ("--topic", stage.names.input), ("--abort", "--all", "--yes")
    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        report = json_of(stage, "doctor", *topic, *abort_all, code=1)
        assert (report["ended"], report["left"], report["sick"]) == ([], [stage.names.topic("up")], 1)
        code, text = pipeline(stage, "doctor", *topic, *abort_all)
        assert (code, "within its own timeout" in " ".join(text.split())) == (1, True)
        writer.commit_transaction(20)
    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        report = json_of(stage, "doctor", *topic, "--older-than", "0", *abort_all)
        assert (report["ended"], report["left"], report["sick"]) == ([stage.names.topic("up")], [], 0)
        with pytest.raises(KafkaException):
            writer.commit_transaction(20)


def test_doctor_asks_again_before_it_ends_a_transaction(stage: Stage) -> None:
    """Its owner has committed meanwhile and begun anew, under the same id and epoch: that one is not ended."""
    stage.create(1)
    transactional_id = stage.names.topic("up")
    scope = Scope((stage.names.input,), older_than_s=0)
    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        (case,) = examine(stage.connection, scope, Deadline(20)).cases
        assert case.transactional_id == transactional_id
        writer.commit_transaction(20)
        markers_written(stage.connection, stage.names.input)
        assert not abort_transaction(stage.connection, case, Deadline(20))
        write(stage, writer, 3)
        assert not abort_transaction(stage.connection, case, Deadline(20))
        writer.commit_transaction(20)
        markers_written(stage.connection, stage.names.input)
    assert len(stage.records(stage.names.input)) == 5


def lag_of(stage: Stage) -> dict[str, Any]:
    report = json_of(stage, "lag", "--interval", "0.1")
    return dict(report["partitions"][0])


def test_lag_counts_records_and_tells_who_blocks(stage: Stage) -> None:
    """A tail of markers and aborted records is no lag; records behind an open transaction wait for its owner."""
    stage.create(1, orders=5)
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
    stage.create(2, orders=6)
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
    with closing(Observer(stage.connection, stage.names.input, stage.names.group, exact=100)) as observer:
        ages = [observer.snapshot(Deadline(20))[0].oldest_ms for _ in range(3)]
        assert (len(set(ages)), fetches) == (1, [(0, 0)])
        stage.drain_locally()
        observer.snapshot(Deadline(20))
        stage.produce(stage.names.input, (0, b"gold-1", b'{"customer_id":"c-1"}'))
        assert observer.snapshot(Deadline(20))[0].oldest_ms >= ages[0]
    assert fetches == [(0, 0), (0, 1)]
    with closing(Observer(stage.connection, stage.names.input, stage.names.group, 100, ages=False)) as observer:
        assert observer.snapshot(Deadline(20))[0].oldest_ms is None
    assert len(fetches) == 2


def test_a_partition_whose_attempts_end_each_other_is_fenced(stage: Stage) -> None:
    """Between two looks somebody took the id over, and committed nothing; before that it only stands still."""
    stage.create(1, orders=5)
    transactional_id = str(TransactionalId(stage.names.group, stage.names.input, 0))
    fence(stage.connection, transactional_id, Deadline(20))
    with closing(Observer(stage.connection, stage.names.input, stage.names.group, exact=100)) as observer:
        (before,), (unchanged,) = observer.snapshot(Deadline(20)), observer.snapshot(Deadline(20))
        fence(stage.connection, transactional_id, Deadline(20))
        (after,) = observer.snapshot(Deadline(20))
    now_ms = int(time.time() * 1000)
    assert classify(before, unchanged, now_ms)[0] is State.STUCK
    state, why = classify(unchanged, after, now_ms)
    assert (state, "two runs fence each other" in why) == (State.FENCED, True)
    assert after.remaining.records == 5


def test_watching_the_lag_goes_on_until_sigterm(stage: Stage) -> None:
    """A line per look."""
    stage.create(1)
    with stage.python("pipeline", *command_line(stage, "lag"), "--watch", "--json", "--interval", "0.1") as program:
        program.await_line(lambda line: '"states":{"idle":1}' in line, times=2)
        program.terminate()
        assert program.wait(30).code == 128 + signal.SIGTERM
