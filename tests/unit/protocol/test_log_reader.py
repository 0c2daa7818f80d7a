"""Readers of a log: what a scan keeps, where it ends, and consumers that say nothing, idle or cut off for good."""

from __future__ import annotations

import random
import threading
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition
from harness.fakes import log_record
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import micro_batches
from brew.driver.micro_batches import LocalEngine
from brew.errors import DeadlineExceeded, Denied, Unreachable
from brew.kafka import clients, group_consumer, log_reader
from brew.kafka.group_consumer import Member, MemberSettings
from brew.kafka.log_reader import RangeReader, TailReader, _take_messages
from brew.kafka.offsets import log_offsets
from brew.offsets import LogOffsets, OffsetRange
from brew.settings import Limits
from pipeline.transformation import OrderEnrichment


def test_rows_are_those_of_the_messages_and_end_the_same_partitions() -> None:
    """Any mixture of records below, at and past the ends, of other partitions, and of end-of-partition events."""
    for seed in range(300):
        dice = random.Random(seed)
        got, offsets = [], [0, 0, 0, 0]
        for _ in range(dice.randint(0, 12)):
            partition = dice.randrange(4)
            offsets[partition] += dice.randint(1, 2)
            end = KafkaError(KafkaError._PARTITION_EOF) if dice.random() < 0.1 else None
            got.append(log_record(offsets[partition], partition, error=end))
        ends = {p: dice.randint(1, 6) for p in range(3)}
        plain, rows = dict(ends), dict(ends)
        messages = log_reader._take_messages(list(got), plain)
        places = [(one.partition(), one.offset()) for one in messages]
        assert [row[:2] for row in log_reader._take_rows(list(got), rows)] == places
        assert plain == rows


def test_a_broker_s_own_timestamp_is_none() -> None:
    """It says nothing about the producer; and a record without headers has an empty list."""
    times = (TIMESTAMP_LOG_APPEND_TIME, 12), (TIMESTAMP_CREATE_TIME, 12)
    found = log_reader._take_rows([log_record(n, timestamp=time) for n, time in enumerate(times, 1)], {0: 9})
    assert found == [(0, 1, b"k", None, [], None), (0, 2, b"k", None, [], 12)]


def at(offset: int, error: int) -> Any:
    """An event of partition 0."""
    return log_record(offset, error=KafkaError(error))


def wanted(left: dict[int, int], *messages: Any) -> list[int]:
    return [message.offset() for message in _take_messages(list(messages), left)]


def test_the_record_before_the_end_ends_its_partition() -> None:
    """Records at or past the end are not handed out."""
    left = {0: 5}
    assert wanted(left, *map(log_record, (3, 4, 5))) == [3, 4]
    assert left == {}


def test_a_record_past_the_end_ends_it_too_since_markers_leave_gaps() -> None:
    """Offsets 4 and 5 were markers: nobody ever sees the last offset of the range."""
    left = {0: 5, 1: 9}
    assert wanted(left, log_record(3), log_record(6)) == [3]
    assert left == {1: 9}


def test_the_end_of_partition_event_ends_it_only_at_or_past_the_end() -> None:
    """A broker that is not up to date yet may report an earlier end."""
    left = {0: 5}
    wanted(left, at(4, KafkaError._PARTITION_EOF))
    assert left == {0: 5}
    wanted(left, at(5, KafkaError._PARTITION_EOF))
    assert left == {}


def test_a_lost_connection_is_waited_for_and_a_lost_offset_is_not() -> None:
    """Librdkafka connects again by itself; a record that retention took never comes."""
    left = {0: 5}
    assert wanted(left, at(0, KafkaError._TRANSPORT), at(0, KafkaError._ALL_BROKERS_DOWN)) == []
    with pytest.raises(KafkaException):
        wanted(left, at(0, KafkaError._AUTO_OFFSET_RESET))


class _Leaders:
    """Answers `list_offsets` with the next of ``offsets``, the last one for good."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = list(offsets)
        self.asked = 0

    def list_offsets(self, wanted: dict[Any, Any], **_more: Any) -> dict[Any, Any]:
        self.asked += 1
        offset = self._offsets.pop(0) if len(self._offsets) > 1 else self._offsets[0]
        return {tp: SimpleNamespace(result=lambda: SimpleNamespace(offset=offset)) for tp in wanted}


def test_an_answer_without_an_offset_is_asked_again() -> None:
    """-1001 came back for the end of a log whose leader had just died: it read as a truncated log."""
    leaders: Any = _Leaders(0, 700, -1001, 0, 700, 705)
    assert log_offsets(leaders, "orders", [1], Deadline(5)) == {1: LogOffsets(0, 700, 705)}
    assert leaders.asked == 6


def test_a_leader_that_never_names_an_offset_ends_with_the_deadline() -> None:
    leaders: Any = _Leaders(-1001)
    with pytest.raises(DeadlineExceeded, match=r"the leader of partitions \[1\] has none yet"):
        log_offsets(leaders, "orders", [1], Deadline(0.1))


class Silent:
    """A consumer that has nothing to say; ``broker``: whether its questions are answered."""

    def __init__(self, *, broker: bool, error_cb: Any = None) -> None:
        self.broker, self.closed, self.asked, self.error_cb = broker, False, 0, error_cb
        self.assigned: list[TopicPartition] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += partitions

    def poll(self, _wait_s: float) -> None: ...

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

    def consumer(*_: Any, error_cb: Any, **__: Any) -> Silent:
        made.append(Silent(broker=broker, error_cb=error_cb))
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
    reader, made = _reader(monkeypatch, 0, broker=False)
    made[-1].error_cb(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
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
    monkeypatch.setattr(micro_batches, "RangeReader", lambda *_: made.append(Stuck()) or made[-1])
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


def _read_nothing() -> None:
    reader = RangeReader(Connection("nowhere:1"), "in", 2, "g")
    with pytest.raises(DeadlineExceeded):
        list(reader.read(5, 9, Deadline(0.05), threading.Event()))


def test_a_range_reader_that_lost_the_brokers_goes_on_with_a_new_consumer(made: list[Listed]) -> None:
    """Within the range, at the offset that comes next: its transaction need not time out first."""
    _read_nothing()
    assert [one.closed for one in made] == [True, False]
    assert [(one.partition, one.offset) for one in made[1].assigned] == [(2, 5)]


def test_nobody_is_replaced_while_the_brokers_are_away(made: list[Listed], monkeypatch: pytest.MonkeyPatch) -> None:
    """A new client would not reach them either."""

    def away(*_: Any, **__: Any) -> None:
        raise Unreachable("nobody answered")

    monkeypatch.setattr(clients, "reach", away)
    _read_nothing()
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
