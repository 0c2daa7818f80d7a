"""Topics and orders on a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.waiting import markers_written

from brew.cli import STOPPED_EXIT, exit_code_of
from brew.connection import Connection
from brew.deadline import Deadline
from brew.kafka import topics
from brew.kafka.clients import admin
from brew.kafka.kafka_python import open_transactions
from brew.kafka.log_reader import scan
from brew.kafka.offsets import log_offsets
from brew.names import READ_COMMITTED
from proof.__main__ import proof

Capture = pytest.CaptureFixture[str]


def call(broker: Broker, capsys: Capture, *arguments: str) -> Any:
    """The JSON that a successful command prints."""
    command, *rest = arguments
    code = exit_code_of(proof, "proof", [command, "--bootstrap", broker.bootstrap, *rest, "--json"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


def make(broker: Broker, names: Names, capsys: Capture, partitions: int = 4) -> list[dict[str, Any]]:
    named = ("--input", names.input, "--output", names.output, "--dead-letter", names.dead_letter)
    more = ("--customers", names.topic("customers"), "--claims", names.topic("claims"))
    made: list[dict[str, Any]] = call(broker, capsys, "topics", "--partitions", str(partitions), *named, *more)
    return made


def totals(broker: Broker, names: Names, capsys: Capture) -> dict[str, int]:
    partitions = call(broker, capsys, "end-offsets", "--topic", names.input)
    return {
        kind: sum(partition[kind] for partition in partitions)
        for kind in ("visible", "waiting", "aborted", "open", "control")
    }


def test_topics_are_made_once_and_kept_as_they_are(broker: Broker, names: Names, capsys: Capture) -> None:
    """A second call with another partition count changes nothing and says so."""
    first, second = make(broker, names, capsys), make(broker, names, capsys, partitions=2)
    assert [topic["created"] for topic in first] == [True] * 5
    assert [topic["created"] for topic in second] == [False] * 5
    assert [topic["partitions"] for topic in second] == [4, 4, 4, 4, 1]
    client = admin(Connection(broker.bootstrap))
    sizes = {
        n: topics.max_message_bytes(client, n, Deadline(10)) for n in (names.input, names.output, names.dead_letter)
    }
    assert sizes[names.output] == sizes[names.dead_letter] == sizes[names.input] + 65_536


def test_a_second_seeding_goes_on_with_fresh_numbers(broker: Broker, names: Names, capsys: Capture) -> None:
    """Keys stay unique without anybody keeping count."""
    make(broker, names, capsys)
    assert call(broker, capsys, "seed", "--topic", names.input, "--count", "30")["first"] == 0
    assert call(broker, capsys, "seed", "--topic", names.input, "--count", "30")["first"] == 30
    ends = dict.fromkeys(range(4), (0, 15))
    batches = list(scan(Connection(broker.bootstrap), names.input, ends, READ_COMMITTED))
    assert len({record.key() for batch in batches for record in batch}) == 60


def test_aborted_transactions_come_on_top_of_the_count(broker: Broker, names: Names, capsys: Capture) -> None:
    """The visible orders are as many as asked for, and one partition holds none of them."""
    make(broker, names, capsys)
    options = ("--transactional", "--markers-only-partition", "2")
    seeded = call(broker, capsys, "seed", "--topic", names.input, "--count", "40", *options)
    markers_written(Connection(broker.bootstrap), names.input)
    counts = totals(broker, names, capsys)
    assert (counts["visible"], counts["aborted"], counts["open"]) == (40, seeded["aborted"], 0)
    assert counts["aborted"] > 0
    only_markers = call(broker, capsys, "end-offsets", "--topic", names.input)[2]
    assert (only_markers["visible"], only_markers["aborted"] > 0, only_markers["control"] > 0) == (0, True, True)


def test_a_transaction_left_open_holds_back_what_comes_after_it_until_it_is_resolved(
    broker: Broker, names: Names, capsys: Capture
) -> None:
    """The seeder names the transactional id, the broker agrees, and fencing the id ends it."""
    make(broker, names, capsys)
    open_id = call(broker, capsys, "seed", "--topic", names.input, "--count", "8", "--leave-open")["open_id"]
    call(broker, capsys, "seed", "--topic", names.input, "--count", "12")
    assert totals(broker, names, capsys) == {"visible": 8, "waiting": 12, "aborted": 0, "open": 4, "control": 0}
    connection = Connection(broker.bootstrap)
    blockers = open_transactions(connection, names.input, range(4), Deadline(20))
    assert {transaction.transactional_id for transaction in blockers} == {open_id}
    assert (
        exit_code_of(proof, "proof", ["resolve", "--bootstrap", broker.bootstrap, "--transactional-id", open_id]) == 0
    )
    capsys.readouterr()
    deadline, logs = Deadline(20), log_offsets(admin(connection), names.input, range(4), Deadline(20))
    while any(log.last_stable < log.end for log in logs.values()):
        deadline.check("markers")
        logs = log_offsets(admin(connection), names.input, range(4), Deadline(20))
    assert totals(broker, names, capsys) == {"visible": 20, "waiting": 0, "aborted": 4, "open": 0, "control": 4}


def test_a_missing_topic_is_refused_in_one_sentence(broker: Broker, names: Names, capsys: Capture) -> None:
    """Nothing is made by accident."""
    code = exit_code_of(
        proof, "proof", ["seed", "--bootstrap", broker.bootstrap, "--topic", names.input, "--count", "1"]
    )
    assert code == 3
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--transactional"]], ids=["plain", "transactional"])
def test_sigterm_ends_a_seeder_cleanly(broker: Broker, names: Names, capsys: Capture, options: list[str]) -> None:
    """No stack trace, the documented exit code, and no transaction left open."""
    make(broker, names, capsys)
    arguments = ["seed", "--bootstrap", broker.bootstrap, "--topic", names.input, "--count", "100000000", *options]
    process = subprocess.Popen([sys.executable, "-m", "proof", *arguments], stderr=subprocess.PIPE, text=True)
    try:
        client, deadline = admin(Connection(broker.bootstrap)), Deadline(30)
        while not log_offsets(client, names.input, [0], deadline)[0].end:
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
    while open_transactions(Connection(broker.bootstrap), names.input, range(4), Deadline(20)):
        deadline.check("the abort's markers")
