"""Readers whose consumer says nothing: idle, or cut off for good."""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Denied, Unreachable
from brew.kafka import clients, group_consumer, log_reader
from brew.kafka.group_consumer import Member, MemberSettings
from brew.kafka.log_reader import RangeReader, TailReader
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
        assert timeout > 0
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


def test_a_consumer_whose_password_is_refused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports nothing to its reader; a run whose password was changed stood still for good (campaign, F36)."""
    callbacks: list[Any] = []

    def consumer(*_: Any, error_cb: Any, **__: Any) -> Silent:
        callbacks.append(error_cb)
        return Silent(broker=False)

    monkeypatch.setattr(log_reader, "_QUIET_S", 0)
    monkeypatch.setattr(log_reader, "consumer", consumer)
    reader = TailReader(Connection("nowhere:1"), "g", "in", 2, 7, 1_000_000)
    callbacks[-1](KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    with pytest.raises(Denied, match=r"read of in\[2\]: wrong password"):
        reader.take(10, 1000, 0)


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


class Listed(Silent):
    """With the questions that a range reader and a member ask."""

    def list_topics(self, _topic: str, timeout: float) -> None:
        assert timeout > 0
        if not self.broker:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def consume(self, _most: int, timeout: float) -> list[Any]:
        assert timeout >= 0
        return []

    def subscribe(self, topics: list[str], **_: Any) -> None:
        self.subscribed = topics

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += partitions


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Listed]:
    """The consumers that were made: the first one has lost the brokers, and a new one reaches them."""
    found: list[Listed] = []

    def consumer(*_: Any, **__: Any) -> Listed:
        found.append(Listed(broker=bool(found)))
        return found[-1]

    for module in (log_reader, group_consumer):
        monkeypatch.setattr(module, "consumer", consumer)
        monkeypatch.setattr(module, "SILENT_S", 0)
    monkeypatch.setattr(clients, "reach", lambda *_, **__: None)
    return found


def test_a_range_reader_that_lost_the_brokers_goes_on_with_a_new_consumer(made: list[Listed]) -> None:
    """Within the range, at the offset that comes next: its transaction need not time out first."""
    reader = RangeReader(Connection("nowhere:1"), "in", 2, "g")
    with pytest.raises(DeadlineExceeded):
        list(reader.read(5, 9, Deadline(0.05), threading.Event()))
    assert [one.closed for one in made] == [True, False]
    assert [(one.partition, one.offset) for one in made[1].assigned] == [(2, 5)]


def test_nobody_is_replaced_while_the_brokers_are_away(made: list[Listed], monkeypatch: pytest.MonkeyPatch) -> None:
    """A new client would not reach them either."""

    def away(*_: Any, **__: Any) -> None:
        raise Unreachable("nobody answered")

    monkeypatch.setattr(clients, "reach", away)
    reader = RangeReader(Connection("nowhere:1"), "in", 2, "g")
    with pytest.raises(DeadlineExceeded):
        list(reader.read(5, 9, Deadline(0.05), threading.Event()))
    assert [one.closed for one in made] == [False]


class Listener:
    """Notes what a member tells."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int]]] = []

    def assigned(self, partitions: Collection[int]) -> dict[int, int]:
        self.told.append(("assigned", sorted(partitions)))
        return dict.fromkeys(partitions, 7)

    def revoked(self, partitions: Collection[int]) -> None:
        self.told.append(("revoked", sorted(partitions)))

    def lost(self, partitions: Collection[int]) -> None:
        self.told.append(("lost", sorted(partitions)))


def test_a_member_that_lost_the_brokers_joins_again_with_a_new_consumer(made: list[Listed]) -> None:
    """Its partitions may be somebody else's by now; the group gives out anew."""
    member, listener = Member(MemberSettings(Connection("nowhere:1"), "g", "in")), Listener()
    member.join(listener)
    member._assigned([0, 1])
    assert member.poll(10, 0) == {}
    assert listener.told == [("assigned", [0, 1]), ("lost", [0, 1])]
    assert len(made) == 2
    assert made[1].subscribed == ["in"]
    assert member.owned == frozenset()
    until(lambda: made[0].closed, "the old consumer is closed")


def test_a_member_whose_partitions_are_named_has_them_again(made: list[Listed]) -> None:
    """Nobody else gives them out; the listener says where to read on."""
    member, listener = Member(MemberSettings(Connection("nowhere:1"), "g", "in")), Listener()
    made[0].broker = True
    member.take([3], listener)
    made[0].broker = False
    assert member.poll(10, 0) == {}
    assert listener.told == [("assigned", [3]), ("lost", [3]), ("assigned", [3])]
    assert [(one.partition, one.offset) for one in made[1].assigned] == [(3, 7)]
    assert member.owned == {3}
    until(lambda: made[0].closed, "the old consumer is closed")
