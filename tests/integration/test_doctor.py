"""The doctor against a real broker: what lingers and what hangs, and how it ends."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaException
from harness.hanging import hang
from harness.operate import asked, crash, pipeline, upstream, write
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
    mine = ("--topic", stage.names.output)
    assert asked(stage, "doctor", *mine)["sick"] == 0
    told = asked(stage, "doctor", *mine, "--older-than", "0", code=1)
    (found,) = told["transactions"]
    assert (found["kind"], found["pipeline"]) == (
        "lingering",
        {"group": stage.names.group, "input": stage.names.input, "partition": 0},
    )
    assert (found["holds"][0]["offsets_waiting"], "from its first offset" in found["read_again"]) == (10, True)
    assert pipeline(stage, "doctor", *mine, "--abort")[0] == ExitCode.USAGE

    stage.produce(stage.names.output, (0, b"k", b"of somebody else"))
    assert stage.outputs() == 0
    code, text = pipeline(stage, "doctor", *mine, "--abort", "--yes", "--transaction", "nobody")
    assert (code, "--transaction is 'nobody': there is no such open transaction" in text) == (3, True)
    ours = ("--older-than", "0", "--abort", "--yes", "--all")
    assert asked(stage, "doctor", *mine, "--group", "of.nobody", *ours)["transactions"] == []
    ended = asked(stage, "doctor", *mine, "--abort", "--yes", "--transaction", found["transactional_id"])
    assert (ended["ended"], ended["sick"]) == ([found["transactional_id"]], 0)
    assert (stage.outputs(), stage.waiting()) == (1, 0)
    stage.drain_alone()
    assert stage.outputs() == 11


def test_a_group_whose_coordinator_is_silent_is_named_beside_those_that_are_told(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may wait, too: nothing about it is not the same as its not being there."""
    stage.create(1)
    stage.seed(3)
    crash(stage)
    output = stage.names.output
    groups = [f"{stage.names.group}.{one}" for one in "abc"]
    for group in groups:
        cluster_admin.set_offsets(stage.connection, group, output, {0: 0}, Deadline(20))
    monkeypatch.setattr(doctor, "groups", lambda *_: groups)
    monkeypatch.setattr(transactions_admin, "_GROUPS_S", 0.5)
    with WireProxy(stage.broker.bootstrap) as proxy:
        proxy.add(Rule(Api.OFFSET_FETCH, Action.DROP, Side.REPLY, nth=2, times=0))
        found = examine(proxy.connection, Scope([output], older_than_s=0), Deadline(20))
    assert found.groups == {groups[0]: {(output, 0): 0}}
    assert [one.split(": ")[0] for one in found.unavailable] == [f"offsets of 2 groups ({groups[1]}, {groups[2]})"]


def test_doctor_ends_a_hanging_transaction_that_no_coordinator_knows(stage: Stage) -> None:
    """Only a marker by hand ends it; what was in it stays hidden."""
    stage.create(1, output=1)
    mine = ("--topic", stage.names.output)
    producer_id = hang(stage.connection, stage.names.output, stage.names.topic("late"))
    stage.produce(stage.names.output, (0, b"k", b"waits"))
    assert stage.outputs() == 1
    told = asked(stage, "doctor", *mine, code=1)
    (found,) = told["transactions"]
    assert (found["kind"], found["producer_id"], "CompleteCommit" in found["why"]) == ("hanging", producer_id, True)
    command = (
        f"kafka-transactions.sh --bootstrap-server {stage.broker.bootstrap} abort "
        f"--topic {stage.names.output} --partition 0 --start-offset 2"
    )
    assert (found["ends_by"], found["commands"]) == ("marker", [command])
    code, text = pipeline(stage, "doctor", *mine, "--abort", "--all", "--yes")
    assert (code, "no known position goes back" in " ".join(text.split())) == (0, True)
    assert [one.value() for one in stage.records(stage.names.output)] == [b"in good order", b"waits"]
    assert max(map(len, text.splitlines())) <= 200


def test_doctor_lets_a_transaction_live_that_is_within_its_own_time_out(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--all` leaves it to its owner, who commits; whoever says where and how old may end it, too."""
    stage.create(1)
    monkeypatch.setattr(doctor, "_OLDER_THAN_S", 0.0)
    mine, everything = ("--topic", stage.names.input), ("--abort", "--all", "--yes")
    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        told = asked(stage, "doctor", *mine, *everything, code=1)
        assert (told["ended"], told["left"], told["sick"]) == ([], [stage.names.topic("up")], 1)
        code, text = pipeline(stage, "doctor", *mine, *everything)
        assert (code, "within its own timeout" in " ".join(text.split())) == (1, True)
        writer.commit_transaction(20)
    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        told = asked(stage, "doctor", *mine, "--older-than", "0", *everything)
        assert (told["ended"], told["left"], told["sick"]) == ([stage.names.topic("up")], [], 0)
        with pytest.raises(KafkaException):
            writer.commit_transaction(20)


def test_doctor_asks_again_before_it_ends_a_transaction(stage: Stage) -> None:
    """Its owner has committed meanwhile and begun anew, under the same id and epoch: that one is not ended."""
    stage.create(1)
    name = stage.names.topic("up")
    scope = Scope((stage.names.input,), older_than_s=0)
    with upstream(stage, "up") as writer:
        write(stage, writer, 2)
        (looked_at,) = examine(stage.connection, scope, Deadline(20)).cases
        assert looked_at.transactional_id == name
        writer.commit_transaction(20)
        markers_written(stage.connection, stage.names.input)
        assert not abort_transaction(stage.connection, looked_at, Deadline(20))
        write(stage, writer, 3)
        assert not abort_transaction(stage.connection, looked_at, Deadline(20))
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
    with upstream(stage, "a") as one, upstream(stage, "b") as other:
        write(stage, one, 1)
        write(stage, other, 1)
        mine = ("--topic", stage.names.input, "--older-than", "0")
        told = asked(stage, "doctor", *mine, "--abort", "--all", "--yes", code=3)
        (failed,) = told["failed"]
        assert (told["ended"], failed["transaction"], told["sick"]) == ([second], first, 1)
        assert "docs/SECURITY.md" in failed["error"]
        (left,) = asked(stage, "doctor", *mine, code=1)["transactions"]
        assert left["transactional_id"] == first
