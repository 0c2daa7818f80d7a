"""What each kind of reader counts on a real broker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
from harness.programs import call_program
from harness.servers import Broker, Names, make_topics
from harness.waiting import markers_written

from brew.connection import Connection
from brew.kafka.clients import producer
from brew.offsets import SourcePosition
from downstream.__main__ import downstream
from proof.__main__ import proof


@dataclass
class CountedTopic:
    """One test's topic, and `downstream count` of it."""

    broker: Broker
    names: Names

    def fill(self, *options: str) -> None:
        """Make the topic where it is missing, and write orders to it."""
        make_topics(Connection(self.broker.bootstrap), self.names.output, partitions=3)
        arguments = ("--bootstrap", self.broker.bootstrap, "--topic", self.names.output, *options)
        assert call_program(proof, "proof", "seed", *arguments)[0] == 0

    def write(self, offsets: list[int | None]) -> None:
        """Write records of one key, each with an input offset or none."""
        writer = producer(Connection(self.broker.bootstrap), None, timeout_s=20, message_max_bytes=1_000_000)
        for offset in offsets:
            headers: Any = None if offset is None else SourcePosition("in", 0, offset).headers()
            writer.produce(self.names.output, b"v", b"same", 0, headers=headers)
        assert writer.flush(20) == 0

    def count(self, *options: str, code: int = 0) -> str:
        arguments = ("--bootstrap", self.broker.bootstrap, "--topic", self.names.output, *options)
        exit_code, out, err = call_program(downstream, "downstream", "count", *arguments)
        assert exit_code == code, out + err
        return out

    def document(self, *options: str, code: int = 0) -> Any:
        return json.loads(self.count(*options, "--json", code=code))


@pytest.fixture
def topic(broker: Broker, names: Names) -> CountedTopic:
    return CountedTopic(broker, names)


def test_thirty_orders_are_thirty_records_and_thirty_keys(topic: CountedTopic) -> None:
    """The line that the story shows; orders that no pipeline wrote have no source position."""
    topic.fill("--count", "30")
    assert topic.count().splitlines() == [
        "30 records, 30 unique keys, 0 duplicates (read_committed, by key)",
        "no record has a readable source position in the headers: counted by key instead",
    ]
    by_key = topic.count("--unique-by", "key")
    assert by_key == "30 records, 30 unique keys, 0 duplicates (read_committed, by key)\n"


def test_records_behind_the_last_stable_offset_are_counted_as_waiting(topic: CountedTopic) -> None:
    """A committed reader sees none of them, an uncommitted one all."""
    topic.fill("--count", "0", "--leave-open")
    assert topic.count().splitlines() == [
        "0 records, 0 unique keys, 0 duplicates (read_committed, by source position)",
        "3 records are above the last stable offset in partitions 0, 1, 2",
    ]
    assert topic.document("--isolation", "read_uncommitted")["records"] == 3


def test_aborted_records_and_markers_are_no_records_for_a_committed_reader(topic: CountedTopic) -> None:
    """Each reader ends at its own end, also where markers are the last thing in the log."""
    topic.fill("--count", "20", "--transactional")
    markers_written(Connection(topic.broker.bootstrap), topic.names.output)
    committed = topic.document()
    everything = topic.document("--isolation", "read_uncommitted")
    assert (committed["records"], committed["waiting"]) == (20, 0)
    assert everything["records"] > 20


def test_duplicates_alarm_a_committed_reader_only(topic: CountedTopic) -> None:
    """Exit 1 with the first keys; the uncommitted reader says why they are expected there."""
    topic.fill("--count", "5", "--start", "0")
    topic.fill("--count", "2", "--start", "0")
    report = topic.document(code=1)
    assert (report["records"], report["unique"], report["duplicates"]) == (7, 5, 2)
    assert sorted(report["examples"]) == ["gold-000000", "silver-000001"]
    assert "duplicates are expected" in topic.count("--isolation", "read_uncommitted")


def test_keys_that_repeat_by_right_alarm_only_who_counts_by_key(topic: CountedTopic) -> None:
    """Equal keys from different places are no duplicates; equal places are, with the first of them named."""
    topic.fill("--count", "0")
    topic.write([1, 2])
    assert topic.count() == "2 records, 1 unique key, 0 duplicates (read_committed, by source position)\n"
    by_key = topic.count("--unique-by", "key", code=1)
    assert "1 duplicate (read_committed, by key)\nduplicate keys, the first of them: same" in by_key
    topic.write([2])
    assert "duplicate source positions, the first of them: in[0]@2" in topic.count(code=1)


def test_records_without_a_source_position_are_counted_by_key(topic: CountedTopic) -> None:
    """And the output says how many; the document tells what either way of counting gives."""
    topic.fill("--count", "0")
    topic.write([1, 2, 2, None, None])
    report = topic.document(code=1)
    assert (report["unique_by"], report["records"], report["unique"], report["duplicates"]) == ("source", 5, 3, 2)
    assert report["counted_by_key_instead"] == 2
    assert report["by_source"] == {"unique": 2, "duplicates": 1, "unidentified": 2}
    assert report["by_key"] == {"unique": 1, "duplicates": 4, "unidentified": 0}
    assert report["examples"] == ["in[0]@2", "same"]


def test_a_missing_topic_is_refused(topic: CountedTopic) -> None:
    """One sentence, exit 3."""
    assert topic.count(code=3) == ""
