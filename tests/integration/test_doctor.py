"""The doctor against a real broker: what lingers and what hangs, and how it ends."""

from __future__ import annotations

import pytest
from harness.brokers import Broker
from harness.hanging import hang
from harness.names import Names
from harness.operate import asked, crash, pipeline
from harness.pipeline import Stage

from protocol.names import ExitCode


@pytest.fixture
def stage(broker: Broker, names: Names) -> Stage:
    return Stage(broker, names)


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
    assert (code, "no open transaction is named 'nobody'" in text) == (3, True)
    ended = asked(stage, "doctor", *mine, "--abort", "--yes", "--transaction", found["transactional_id"])
    assert (ended["ended"], ended["sick"]) == ([found["transactional_id"]], 0)
    assert (stage.outputs(), stage.waiting()) == (1, 0)
    stage.drain_alone()
    assert stage.outputs() == 11


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
    assert (code, "hidden for good" in " ".join(text.split())) == (0, True)
    assert [one.value() for one in stage.records(stage.names.output)] == [b"in good order", b"waits"]
    assert max(map(len, text.splitlines())) <= 200
