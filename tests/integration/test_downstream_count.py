"""What each kind of reader counts on a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.waiting import markers_written

from downstream.__main__ import downstream
from proof.__main__ import proof
from protocol.command import outcome
from protocol.connection import Connection
from protocol.deadline import Deadline
from protocol.kafka import topics
from protocol.kafka.clients import admin, producer
from protocol.position import SourcePosition

Capture = pytest.CaptureFixture[str]


def filled(broker: Broker, names: Names, *options: str) -> None:
    connection = Connection(broker.bootstrap)
    topics.create(admin(connection), [topics.Wanted(names.output, 3, {})], Deadline(20))
    topics.describe_all(admin(connection), [names.output], Deadline(20))
    arguments = ["seed", "--bootstrap", broker.bootstrap, "--topic", names.output, *options]
    assert outcome(proof, "proof", arguments) == 0


def counted(broker: Broker, names: Names, capsys: Capture, *options: str, code: int = 0) -> str:
    capsys.readouterr()
    arguments = ["count", "--bootstrap", broker.bootstrap, "--topic", names.output, *options]
    assert outcome(downstream, "downstream", arguments) == code
    return capsys.readouterr().out


def document(broker: Broker, names: Names, capsys: Capture, *options: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(counted(broker, names, capsys, *options, "--json", code=code))
    return found


def test_thirty_orders_are_thirty_records_and_thirty_keys(broker: Broker, names: Names, capsys: Capture) -> None:
    """The line that the story shows."""
    filled(broker, names, "--count", "30")
    assert counted(broker, names, capsys) == "30 records, 30 unique keys, 0 duplicates (read_committed)\n"


def test_records_behind_the_last_stable_offset_are_counted_as_waiting(
    broker: Broker, names: Names, capsys: Capture
) -> None:
    """A committed reader sees none of them, an uncommitted one all."""
    filled(broker, names, "--count", "0", "--leave-open")
    assert counted(broker, names, capsys).splitlines() == [
        "0 records, 0 unique keys, 0 duplicates (read_committed)",
        "3 records wait behind the last stable offset in partitions 0, 1, 2",
    ]
    assert document(broker, names, capsys, "--isolation", "read_uncommitted")["records"] == 3


def test_aborted_records_and_markers_are_no_records_for_a_committed_reader(
    broker: Broker, names: Names, capsys: Capture
) -> None:
    """Each reader ends at its own end, also where markers are the last thing in the log."""
    filled(broker, names, "--count", "20", "--transactional")
    markers_written(Connection(broker.bootstrap), names.output)
    committed = document(broker, names, capsys)
    everything = document(broker, names, capsys, "--isolation", "read_uncommitted")
    assert (committed["records"], committed["waiting"]) == (20, 0)
    assert everything["records"] > 20


def test_duplicates_alarm_a_committed_reader_only(broker: Broker, names: Names, capsys: Capture) -> None:
    """Exit 1 with the first keys; the uncommitted reader says why it is no fault there."""
    filled(broker, names, "--count", "5", "--start", "0")
    filled(broker, names, "--count", "2", "--start", "0")
    found = document(broker, names, capsys, code=1)
    assert (found["records"], found["unique"], found["duplicates"]) == (7, 5, 2)
    assert sorted(found["examples"]) == ["gold-000000", "silver-000001"]
    assert "no fault" in counted(broker, names, capsys, "--isolation", "read_uncommitted")


def test_records_can_be_told_apart_by_their_source(broker: Broker, names: Names, capsys: Capture) -> None:
    """Equal keys from different places are no duplicates; equal places are; no place is counted apart."""
    filled(broker, names, "--count", "0")
    writer = producer(Connection(broker.bootstrap), None, timeout_s=20, message_max_bytes=1_000_000)
    for offset in (1, 2, 2):
        headers: Any = SourcePosition("in", 0, offset).headers()
        writer.produce(names.output, b"v", b"same", 0, headers=headers)
    writer.produce(names.output, b"v", b"same", 0)
    assert writer.flush(20) == 0
    found = document(broker, names, capsys, "--unique-by", "source", code=1)
    assert (found["records"], found["unique"], found["duplicates"], found["unidentified"]) == (4, 2, 1, 1)


def test_a_missing_topic_is_refused(broker: Broker, names: Names, capsys: Capture) -> None:
    """One sentence, exit 3."""
    assert counted(broker, names, capsys, code=3) == ""
