"""What each kind of reader counts on a real broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from harness.brokers import Broker
from harness.names import Names
from harness.transactions import make_topics
from harness.waiting import markers_written

from brew.cli import exit_code_of
from brew.connection import Connection
from brew.kafka.clients import producer
from brew.offsets import SourcePosition
from downstream.__main__ import downstream
from proof.__main__ import proof

Capture = pytest.CaptureFixture[str]


def filled(broker: Broker, names: Names, *options: str) -> None:
    make_topics(Connection(broker.bootstrap), names.output, partitions=3)
    arguments = ["seed", "--bootstrap", broker.bootstrap, "--topic", names.output, *options]
    assert exit_code_of(proof, "proof", arguments) == 0


def counted(broker: Broker, names: Names, capsys: Capture, *options: str, code: int = 0) -> str:
    capsys.readouterr()
    arguments = ["count", "--bootstrap", broker.bootstrap, "--topic", names.output, *options]
    assert exit_code_of(downstream, "downstream", arguments) == code
    return capsys.readouterr().out


def document(broker: Broker, names: Names, capsys: Capture, *options: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(counted(broker, names, capsys, *options, "--json", code=code))
    return found


def test_thirty_orders_are_thirty_records_and_thirty_keys(broker: Broker, names: Names, capsys: Capture) -> None:
    """The line that the story shows; orders that no pipeline wrote have no source position."""
    filled(broker, names, "--count", "30")
    assert counted(broker, names, capsys).splitlines() == [
        "30 records, 30 unique keys, 0 duplicates (read_committed, by key)",
        "no record has a readable source position in the headers: counted by key instead",
    ]
    by_key = counted(broker, names, capsys, "--unique-by", "key")
    assert by_key == "30 records, 30 unique keys, 0 duplicates (read_committed, by key)\n"


def test_records_behind_the_last_stable_offset_are_counted_as_waiting(
    broker: Broker, names: Names, capsys: Capture
) -> None:
    """A committed reader sees none of them, an uncommitted one all."""
    filled(broker, names, "--count", "0", "--leave-open")
    assert counted(broker, names, capsys).splitlines() == [
        "0 records, 0 unique keys, 0 duplicates (read_committed, by source position)",
        "3 records are above the last stable offset in partitions 0, 1, 2",
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
    """Exit 1 with the first keys; the uncommitted reader says why they are expected there."""
    filled(broker, names, "--count", "5", "--start", "0")
    filled(broker, names, "--count", "2", "--start", "0")
    found = document(broker, names, capsys, code=1)
    assert (found["records"], found["unique"], found["duplicates"]) == (7, 5, 2)
    assert sorted(found["examples"]) == ["gold-000000", "silver-000001"]
    assert "duplicates are expected" in counted(broker, names, capsys, "--isolation", "read_uncommitted")


def written(broker: Broker, names: Names, offsets: list[int | None], ends: str | None = None) -> None:
    """Records of one key; each is of an offset of the input, or of none. ``ends``: how their transaction does."""
    identity = None if ends is None else names.topic("tx")
    writer = producer(Connection(broker.bootstrap), identity, timeout_s=20, message_max_bytes=1_000_000)
    if ends is not None:
        writer.init_transactions(20)
        writer.begin_transaction()
    for offset in offsets:
        headers: Any = None if offset is None else SourcePosition("in", 0, offset).headers()
        writer.produce(names.output, b"v", b"same", 0, headers=headers)
    assert writer.flush(20) == 0
    if ends is not None:
        getattr(writer, f"{ends}_transaction")(20)


def test_keys_that_repeat_by_right_alarm_only_who_counts_by_key(broker: Broker, names: Names, capsys: Capture) -> None:
    """Equal keys from different places are no duplicates; equal places are, with the first of them named."""
    filled(broker, names, "--count", "0")
    written(broker, names, [1, 2])
    assert counted(broker, names, capsys) == (
        "2 records, 1 unique key, 0 duplicates (read_committed, by source position)\n"
    )
    assert "1 duplicate (read_committed, by key)\nduplicate keys, the first of them: same" in counted(
        broker, names, capsys, "--unique-by", "key", code=1
    )
    written(broker, names, [2])
    assert "duplicate source positions, the first of them: in[0]@2" in counted(broker, names, capsys, code=1)


def test_records_without_a_source_position_are_counted_by_key(broker: Broker, names: Names, capsys: Capture) -> None:
    """And the output says how many; the document tells what either way of counting gives."""
    filled(broker, names, "--count", "0")
    written(broker, names, [1, 2, 2, None, None])
    found = document(broker, names, capsys, code=1)
    assert (found["unique_by"], found["records"], found["unique"], found["duplicates"]) == ("source", 5, 3, 2)
    assert found["counted_by_key_instead"] == 2
    assert found["by_source"] == {"unique": 2, "duplicates": 1, "unidentified": 2}
    assert found["by_key"] == {"unique": 1, "duplicates": 4, "unidentified": 0}
    assert found["examples"] == ["in[0]@2", "same"]


def test_an_uncommitted_reader_counts_aborted_and_committed_attempts_alike(
    broker: Broker, names: Names, capsys: Capture
) -> None:
    """N aborted and N committed records of the same N places: N of them are duplicates, and no fault."""
    filled(broker, names, "--count", "0")
    written(broker, names, [0, 1, 2], ends="abort")
    written(broker, names, [0, 1, 2], ends="commit")
    markers_written(Connection(broker.bootstrap), names.output)
    assert counted(broker, names, capsys, "--isolation", "read_uncommitted").splitlines() == [
        "6 records, 1 unique key, 3 duplicates (read_uncommitted, by source position)",
        "duplicates are expected here: this reader also sees aborted records",
    ]
    assert counted(broker, names, capsys) == (
        "3 records, 1 unique key, 0 duplicates (read_committed, by source position)\n"
    )


def test_a_missing_topic_is_refused(broker: Broker, names: Names, capsys: Capture) -> None:
    """One sentence, exit 3."""
    assert counted(broker, names, capsys, code=3) == ""
