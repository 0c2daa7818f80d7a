"""Topics and orders on a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest
from harness.programs import call_program
from harness.servers import Broker, Names
from harness.waiting import markers_written

from brew.cli import STOPPED_EXIT
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.kafka.kafka_python import OpenTransaction, open_transactions
from brew.kafka.log_reader import scan
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED
from brew.offsets import LogOffsets
from proof.__main__ import proof


@dataclass
class ProofCommands:
    """Commands of `proof` on one test's topics."""

    broker: Broker
    names: Names

    @property
    def connection(self) -> Connection:
        return Connection(self.broker.bootstrap)

    def run(self, command: str, *options: str) -> tuple[int, str, str]:
        return call_program(proof, "proof", command, "--bootstrap", self.broker.bootstrap, *options)

    def call(self, command: str, *options: str) -> Any:
        """Return the JSON that a successful command prints."""
        code, out, err = self.run(command, *options, "--json")
        assert code == 0, err
        return json.loads(out)

    def create(self, partitions: int = 4) -> Any:
        names = self.names
        options = ["--input", names.input, "--output", names.output, "--dead-letter", names.dead_letter]
        options += ["--customers", names.topic("customers"), "--claims", names.topic("claims")]
        return self.call("topics", "--partitions", str(partitions), *options)

    def seed(self, count: int, *options: str) -> Any:
        return self.call("seed", "--topic", self.names.input, "--count", str(count), *options)

    def end_offsets(self) -> Any:
        return self.call("end-offsets", "--topic", self.names.input)

    def totals(self) -> dict[str, int]:
        partitions = self.end_offsets()
        kinds = ("visible", "waiting", "aborted", "open", "control")
        return {kind: sum(partition[kind] for partition in partitions) for kind in kinds}

    def logs(self) -> dict[int, LogOffsets]:
        return log_offsets(admin(self.connection), self.names.input, range(4), Deadline(20))

    def open_transactions(self) -> list[OpenTransaction]:
        return open_transactions(self.connection, self.names.input, range(4), Deadline(20))


@pytest.fixture
def commands(broker: Broker, names: Names) -> ProofCommands:
    return ProofCommands(broker, names)


def test_topics_are_made_once_and_kept_as_they_are(commands: ProofCommands) -> None:
    """A second call with another partition count changes nothing and says so."""
    names = commands.names
    first, second = commands.create(), commands.create(partitions=2)
    assert [topic["created"] for topic in first] == [True] * 5
    assert [topic["created"] for topic in second] == [False] * 5
    assert [topic["partitions"] for topic in second] == [4, 4, 4, 4, 1]
    client = admin(commands.connection)
    input_, output, dead_letter = (
        topics.max_message_bytes(client, name, Deadline(10)) for name in (names.input, names.output, names.dead_letter)
    )
    assert output == dead_letter == input_ + 65_536


def test_an_input_of_the_largest_records_gets_its_other_topics(commands: ProofCommands) -> None:
    """Kafka takes no larger size than this, so there is no room for what is added."""
    largest = {topics.MAX_MESSAGE_BYTES: str(2**31 - 1)}
    topics.create(admin(commands.connection), [topics.TopicSpec(commands.names.input, 4, largest)], Deadline(20))
    assert [made["created"] for made in commands.create()] == [False, True, True, True, True]


def test_a_second_seeding_goes_on_with_fresh_numbers(commands: ProofCommands) -> None:
    """Keys stay unique without anybody keeping count."""
    commands.create()
    assert commands.seed(30)["first"] == 0
    assert commands.seed(30)["first"] == 30
    ends = dict.fromkeys(range(4), (0, 15))
    batches = list(scan(commands.connection, commands.names.input, ends, READ_COMMITTED))
    assert len({record.key() for batch in batches for record in batch}) == 60


def test_a_seeding_after_an_interrupted_one_goes_on_above_the_last_order_that_arrived(commands: ProofCommands) -> None:
    """One partition had order 90, and what was queued for the others was dropped: keys came out twice."""
    commands.create()
    commands.seed(1, "--start", "90")
    assert commands.seed(4)["first"] == 91
    commands.seed(8, "--transactional", "--start", "500")
    assert commands.seed(1)["first"] >= 508


def test_aborted_transactions_come_on_top_of_the_count(commands: ProofCommands) -> None:
    """The visible orders are as many as asked for, and one partition holds none of them."""
    commands.create()
    seeded = commands.seed(40, "--transactional", "--markers-only-partition", "2")
    markers_written(commands.connection, commands.names.input)
    counts = commands.totals()
    assert (counts["visible"], counts["aborted"], counts["open"]) == (40, seeded["aborted"], 0)
    assert counts["aborted"] > 0
    only_markers = commands.end_offsets()[2]
    assert (only_markers["visible"], only_markers["aborted"] > 0, only_markers["control"] > 0) == (0, True, True)


def test_a_transaction_left_open_holds_back_what_comes_after_it_until_it_is_resolved(commands: ProofCommands) -> None:
    """The seeder names the transactional id, the broker agrees, and fencing the id ends it."""
    commands.create()
    open_id = commands.seed(8, "--leave-open")["open_id"]
    commands.seed(12)
    assert commands.totals() == {"visible": 8, "waiting": 12, "aborted": 0, "open": 4, "control": 0}
    assert {transaction.transactional_id for transaction in commands.open_transactions()} == {open_id}
    assert commands.run("resolve", "--transactional-id", open_id)[0] == 0
    deadline = Deadline(20)
    while any(log.last_stable < log.end for log in commands.logs().values()):
        deadline.check("markers")
    assert commands.totals() == {"visible": 20, "waiting": 0, "aborted": 4, "open": 0, "control": 4}


def test_a_missing_topic_is_refused_in_one_sentence(commands: ProofCommands) -> None:
    """Nothing is made by accident."""
    code, _, err = commands.run("seed", "--topic", commands.names.input, "--count", "1")
    assert (code, "does not exist" in err) == (3, True)


@pytest.mark.parametrize("options", [[], ["--transactional"]], ids=["plain", "transactional"])
def test_sigterm_ends_a_seeder_cleanly(commands: ProofCommands, options: list[str]) -> None:
    """No stack trace, the documented exit code, and no transaction left open."""
    commands.create()
    arguments = ["seed", "--bootstrap", commands.broker.bootstrap, "--topic", commands.names.input, *options]
    process = subprocess.Popen(
        [sys.executable, "-m", "proof", *arguments, "--count", "100000000"], stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = Deadline(30)
        while not commands.logs()[0].end:
            deadline.check("first order")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == STOPPED_EXIT
    assert "Traceback" not in errors
    # Far below the transaction's own time-out of 60 s; the abort's markers come a moment after the answer.
    deadline = Deadline(10)
    while commands.open_transactions():
        deadline.check("the abort's markers")
