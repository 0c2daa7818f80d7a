"""Readers whose consumer says nothing: idle, or cut off for good."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from brew.connection import Connection
from brew.errors import DeadlineExceeded
from brew.kafka import log_reader
from brew.kafka.log_reader import TailReader
from brew.offsets import OffsetRange
from brew.readers import local
from brew.readers.local import LocalEngine
from brew.settings import Limits
from pipeline.enrichment import OrderEnrichment


class Silent:
    """A consumer that has nothing to say; ``broker``: whether its questions are answered."""

    def __init__(self, *, broker: bool) -> None:
        self.broker, self.closed, self.asked = broker, False, 0
        self.assigned: list[TopicPartition] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += partitions

    def poll(self, _wait_s: float) -> None:
        return None

    def get_watermark_offsets(self, _partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert 0 < timeout <= 1
        self.asked += 1
        if not self.broker:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, 7

    def close(self) -> None:
        self.closed = True


def _reader(monkeypatch: pytest.MonkeyPatch, silent_s: float, *, broker: bool) -> tuple[TailReader, list[Silent]]:
    made: list[Silent] = []

    def consumer(*_: Any, **__: Any) -> Silent:
        made.append(Silent(broker=broker))
        return made[-1]

    monkeypatch.setattr(log_reader, "consumer", consumer)
    monkeypatch.setattr(log_reader, "_QUIET_S", silent_s)
    return TailReader(Connection("nowhere:1"), "g", "in", 2, 7, 1_000_000), made


def test_a_consumer_that_reaches_no_broker_is_replaced_where_it_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka issue 5301: it would stay silent for good, and its partition stand still."""
    reader, made = _reader(monkeypatch, 0, broker=False)
    assert reader.take(10, 1000, 0) is None
    assert [one.closed for one in made] == [True, False]
    assert [(one.topic, one.partition, one.offset) for one in made[1].assigned] == [("in", 2, 7)]


def test_a_consumer_with_nothing_to_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its broker answers: there is nothing new."""
    reader, made = _reader(monkeypatch, 0, broker=True)
    assert [reader.take(10, 1000, 0) for _ in range(3)] == [None] * 3
    assert [(one.closed, one.asked) for one in made] == [(False, 3)]


def test_a_consumer_is_not_asked_before_it_has_been_silent_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle partition looks many times a second."""
    reader, made = _reader(monkeypatch, 3600, broker=False)
    assert reader.take(10, 1000, 0) is None
    assert [(one.closed, one.asked) for one in made] == [(False, 0)]


class Stuck:
    """A range reader that gives nothing until its deadline is over."""

    def __init__(self, *_: Any) -> None:
        self.closed = False

    def read(self, *_: Any) -> list[Any]:
        raise DeadlineExceeded("read: in[0] was not read in time")

    def close(self) -> None:
        self.closed = True


def test_a_range_that_could_not_be_read_is_read_by_another_client_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before may never read again."""
    made: list[Stuck] = []
    monkeypatch.setattr(local, "RangeReader", lambda *_: made.append(Stuck()) or made[-1])
    engine = LocalEngine(Connection("nowhere:1"), "g", 1, OrderEnrichment(Limits()))
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            list(engine._rows(OffsetRange("in", 0, 3, 5), 1))
    assert [one.closed for one in made] == [True, True]
    engine.close()
