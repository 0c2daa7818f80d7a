"""The doctor against a real broker: what lingers and what hangs, and how it ends."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from harness.hanging import hang
from harness.operate import crash, json_of, pipeline, upstream, write
from harness.pipeline import Stage
from harness.waiting import markers_written

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import Fatal
from brew.kafka import cluster_admin, transactions_admin
from brew.names import ExitCode
from operations import doctor
from operations.doctor import Scope, abort_transaction, examine
from proof.wire.codec import Api
from proof.wire.proxy import WireProxy
from proof.wire.rules import Action, Rule, Side


def test_doctor_ends_a_lingering_transaction_and_the_reader_goes_on(stage: Stage) -> None:
    """It is attributed to its pipeline, and says what is read again."""
    stage.create(1)
    stage.seed(10)
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
    stage.create(1)
    stage.seed(3)
    crash(stage)
    output = stage.names.output
    groups = [f"{stage.names.group}.{suffix}" for suffix in "abc"]
    for group in groups:
        cluster_admin.set_offsets(stage.connection, group, output, {0: 0}, Deadline(20))
    monkeypatch.setattr(doctor, "groups", lambda *_: groups)
    monkeypatch.setattr(transactions_admin, "_GROUPS_S", 0.5)
    with WireProxy(stage.broker.bootstrap) as proxy:
        proxy.add(Rule(Api.OFFSET_FETCH, Action.DROP, Side.REPLY, nth=2, times=0))
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


def test_doctor_tells_what_it_ended_and_what_it_could_not(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The brokers refuse one of two; the other is ended and told, also with --json."""
    stage.create(1)
    first, second = stage.names.topic("a"), stage.names.topic("b")

    def fence(connection: Connection, transactional_id: str, deadline: Deadline) -> None:
        if transactional_id == first:
            raise Fatal("fence: TRANSACTIONAL_ID_AUTHORIZATION_FAILED")
        transactions_admin.fence(connection, transactional_id, deadline)

    monkeypatch.setattr(doctor, "fence", fence)
    with upstream(stage, "a") as first_writer, upstream(stage, "b") as second_writer:
        write(stage, first_writer, 1)
        write(stage, second_writer, 1)
        options = ("--topic", stage.names.input, "--older-than", "0")
        report = json_of(stage, "doctor", *options, "--abort", "--all", "--yes", code=3)
        (failed,) = report["failed"]
        assert (report["ended"], failed["transaction"], report["sick"]) == ([second], first, 1)
        assert "docs/SECURITY.md" in failed["error"]
        (remaining,) = json_of(stage, "doctor", *options, code=1)["transactions"]
        assert remaining["transactional_id"] == first
