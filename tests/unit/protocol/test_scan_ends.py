"""When a partition's scan is over."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from brew.kafka.log_reader import _take_messages


class Message:
    """A record, or an event, at a place."""

    def __init__(self, partition: int, offset: int, error: int | None = None) -> None:
        self._place = partition, offset
        self._error = None if error is None else KafkaError(error)

    def partition(self) -> int:
        return self._place[0]

    def offset(self) -> int:
        return self._place[1]

    def error(self) -> KafkaError | None:
        return self._error


def wanted(messages: list[Message], left: dict[int, int]) -> list[int]:
    return [message.offset() for message in _take_messages(messages, left)]  # type: ignore[arg-type]


def test_the_record_before_the_end_ends_its_partition() -> None:
    """Records at or past the end are not handed out."""
    left = {0: 5}
    assert wanted([Message(0, 3), Message(0, 4), Message(0, 5)], left) == [3, 4]
    assert left == {}


def test_a_record_past_the_end_ends_it_too_since_markers_leave_gaps() -> None:
    """Offsets 4 and 5 were markers: nobody ever sees the last offset of the range."""
    left = {0: 5, 1: 9}
    assert wanted([Message(0, 3), Message(0, 6)], left) == [3]
    assert left == {1: 9}


def test_the_end_of_partition_event_ends_it_only_at_or_past_the_end() -> None:
    """A broker that is not up to date yet may report an earlier end."""
    left = {0: 5}
    wanted([Message(0, 4, KafkaError._PARTITION_EOF)], left)
    assert left == {0: 5}
    wanted([Message(0, 5, KafkaError._PARTITION_EOF)], left)
    assert left == {}


def test_a_lost_connection_is_waited_for_and_a_lost_offset_is_not() -> None:
    """Librdkafka connects again by itself; a record that retention took never comes."""
    left = {0: 5}
    assert wanted([Message(0, 0, KafkaError._TRANSPORT), Message(0, 0, KafkaError._ALL_BROKERS_DOWN)], left) == []
    with pytest.raises(KafkaException):
        wanted([Message(0, 0, KafkaError._AUTO_OFFSET_RESET)], left)
