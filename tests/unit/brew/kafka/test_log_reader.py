"""Readers of a log: what a scan keeps, where it ends, and consumers that say nothing, idle or cut off for good."""

from __future__ import annotations

import random
import threading
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition
from harness.fakes import log_record
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import micro_batches
from brew.driver.micro_batches import LocalEngine
from brew.errors import DeadlineExceeded, Denied, Refused, Unreachable
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
        rng = random.Random(seed)
        got, offsets = [], [0, 0, 0, 0]
        for _ in range(rng.randint(0, 12)):
            partition = rng.randrange(4)
            offsets[partition] += rng.randint(1, 2)
            end = KafkaError(KafkaError._PARTITION_EOF) if rng.random() < 0.1 else None
            got.append(log_record(offsets[partition], partition, error=end))
        ends = {p: rng.randint(1, 6) for p in range(3)}
        plain, rows = dict(ends), dict(ends)
        messages = log_reader._take_messages(list(got), plain)
        places = [(one.partition(), one.offset()) for one in messages]
        assert [row[:2] for row in log_reader._take_rows(list(got), rows)] == places
        assert plain == rows


def test_a_broker_s_own_timestamp_is_none() -> None:
    """It says nothing about the producer; and a record without headers has an empty list."""
    times = (TIMESTAMP_LOG_APPEND_TIME, 12), (TIMESTAMP_CREATE_TIME, 12)
    rows = log_reader._take_rows([log_record(n, timestamp=time) for n, time in enumerate(times, 1)], {0: 9})
    assert rows == [(0, 1, b"k", None, [], None), (0, 2, b"k", None, [], 12)]


@pytest.mark.parametrize("failing", [{1}, {2, 3}, {1, 2, 3}])
def test_headers_that_the_library_can_not_read_are_asked_for_elsewhere(failing: set[int]) -> None:
    """A second call for the same record would return a list that ends the process."""

    def record(offset: int) -> Any:
        def headers() -> list[tuple[str, bytes | None]]:
            assert not calls.count(offset)
            calls.append(offset)
            if offset in failing:
                raise SystemError("returned a result with an exception set")
            return [("h", b"%d" % offset)]

        return SimpleNamespace(**{**vars(log_record(offset, 3)), "headers": headers})

    calls: list[int] = []
    rows = log_reader._take_rows([record(n) for n in (1, 2, 3)], {3: 9}, "in", lambda *place: [(str(place), None)])
    assert [row[4] for row in rows] == [
        [(f"('in', 3, {n})", None)] if n in failing else [("h", b"%d" % n)] for n in (1, 2, 3)
    ]
    calls.clear()
    with pytest.raises(Refused, match=rf"record at in\[3\] offset {min(failing)} has a header .*`brew show`"):
        log_reader._take_rows([record(n) for n in (1, 2, 3)], {3: 9}, "in")


def error_at(offset: int, error: int) -> Any:
    """An event of partition 0."""
    return log_record(offset, error=KafkaError(error))


@pytest.mark.parametrize(
    ("messages", "handed_out", "left"),
    [
        ([log_record(3), log_record(4), log_record(5)], [3, 4], {1: 9}),
        # Offsets 4 and 5 were markers: nobody ever sees the last offset of the range.
        ([log_record(3), log_record(6)], [3], {1: 9}),
        # A broker that is not up to date yet may report an earlier end.
        ([error_at(4, KafkaError._PARTITION_EOF)], [], {0: 5, 1: 9}),
        ([error_at(5, KafkaError._PARTITION_EOF)], [], {1: 9}),
        # Librdkafka connects again by itself.
        ([error_at(0, KafkaError._TRANSPORT), error_at(0, KafkaError._ALL_BROKERS_DOWN)], [], {0: 5, 1: 9}),
    ],
    ids=["at the end", "past the end", "a reported end before it", "a reported end", "a lost connection"],
)
def test_what_ends_a_partition(messages: list[Any], handed_out: list[int], left: dict[int, int]) -> None:
    """Records at or past the end, which is 5 here, are not handed out."""
    open_ends = {0: 5, 1: 9}
    assert [message.offset() for message in _take_messages(messages, open_ends)] == handed_out
    assert open_ends == left


def test_a_record_that_retention_took_is_not_waited_for() -> None:
    with pytest.raises(KafkaException):
        _take_messages([error_at(0, KafkaError._AUTO_OFFSET_RESET)], {0: 5})


class Feed:
    """A consumer that returns these messages, one call after another, and takes 40 s for each call."""

    def __init__(self, *answers: list[Any]) -> None:
        self.answers, self.now, self.closed = list(answers), 0.0, False
        self.unassigned: list[list[int]] = []

    def consume(self, _most: int, timeout: float) -> list[Any]:
        assert timeout > 0
        self.now += 40
        return self.answers.pop(0) if self.answers else []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned = {one.partition: one.offset for one in partitions}

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self.unassigned.append([one.partition for one in partitions])

    def close(self) -> None:
        self.closed = True


def scanned(monkeypatch: pytest.MonkeyPatch, feed: Feed, ranges: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Partition and offset of all records of a scan that waits for 60 s."""
    monkeypatch.setattr(log_reader, "consumer", lambda *_, **__: feed)
    monkeypatch.setattr(log_reader, "Deadline", lambda seconds: Deadline(seconds, lambda: feed.now))
    batches = log_reader.scan(Connection("nowhere:1"), "in", ranges, "read_committed", idle_s=60)
    return [(record.partition(), record.offset()) for batch in batches for record in batch]


def test_a_scan_waits_for_each_record_anew_and_stops_fetching_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long log takes longer than a record may; what is written behind a range is not read along."""
    end = log_record(9, 1, error=KafkaError(KafkaError._PARTITION_EOF))
    feed = Feed([log_record(3)], [log_record(4)], [], [end, log_record(5)], [log_record(6)], [log_record(7)])
    assert scanned(monkeypatch, feed, {0: (3, 8), 1: (0, 9), 2: (5, 5)}) == [(0, n) for n in (3, 4, 5, 6, 7)]
    assert (feed.assigned, feed.unassigned, feed.closed) == ({0: 3, 1: 0}, [[1], [0]], True)


def test_what_is_written_behind_a_range_is_no_sign_that_the_range_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    late = [log_record(7, 4), error_at(0, KafkaError._TRANSPORT)]
    feed = Feed([log_record(3)], *[late] * 9)
    with pytest.raises(DeadlineExceeded, match=r"scan of in: no record for 60 s, partitions \[0, 1\] left"):
        scanned(monkeypatch, feed, {1: (0, 9), 0: (3, 8)})
    assert (len(feed.answers), feed.closed) == (7, True)


class _Leaders:
    """Answers `list_offsets` with the next of ``offsets``, the last one for good."""

    def __init__(self, *offsets: int) -> None:
        self._offsets = list(offsets)
        self.calls = 0

    def list_offsets(self, wanted: dict[Any, Any], **_more: Any) -> dict[Any, Any]:
        self.calls += 1
        offset = self._offsets.pop(0) if len(self._offsets) > 1 else self._offsets[0]
        return {tp: SimpleNamespace(result=lambda: SimpleNamespace(offset=offset)) for tp in wanted}


def test_an_answer_without_an_offset_is_asked_again_within_the_deadline() -> None:
    """-1001 came back for the end of a log whose leader had just died: it read as a truncated log."""
    leaders: Any = _Leaders(0, 700, -1001, 0, 700, 705)
    assert log_offsets(leaders, "orders", [1], Deadline(5)) == {1: LogOffsets(0, 700, 705)}
    assert leaders.calls == 6
    leaders = _Leaders(-1001)
    with pytest.raises(DeadlineExceeded, match=r"the leader of partitions \[1\] has none yet"):
        log_offsets(leaders, "orders", [1], Deadline(0.1))


class Silent:
    """A consumer that has nothing to say; ``broker``: whether its questions are answered."""

    def __init__(self, *, broker: bool, error_cb: Any = None) -> None:
        self.broker, self.closed, self.calls, self.error_cb = broker, False, 0, error_cb
        self.assigned: list[TopicPartition] = []

    def assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += partitions

    incremental_assign = assign

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        gone = {one.partition for one in partitions}
        self.assigned = [one for one in self.assigned if one.partition not in gone]

    def subscribe(self, topics: list[str], **_: Any) -> None:
        self.subscribed = topics

    def poll(self, _wait_s: float) -> None: ...

    def consume(self, _most: int, timeout: float) -> list[Any]:
        assert timeout >= 0
        return []

    def get_watermark_offsets(self, _partition: TopicPartition, timeout: float) -> tuple[int, int]:
        assert 0 < timeout <= 1
        self.calls += 1
        if not self.broker:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, 7

    def list_topics(self, _topic: str, timeout: float) -> None:
        assert timeout > 0
        if not self.broker:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def close(self) -> None:
        self.closed = True


def _reader(monkeypatch: pytest.MonkeyPatch, silent_s: float, *, broker: bool) -> tuple[TailReader, list[Silent]]:
    consumers: list[Silent] = []

    def consumer(*_: Any, error_cb: Any, **__: Any) -> Silent:
        consumers.append(Silent(broker=broker, error_cb=error_cb))
        return consumers[-1]

    monkeypatch.setattr(log_reader, "consumer", consumer)
    monkeypatch.setattr(log_reader, "_QUIET_S", silent_s)
    return TailReader(Connection("nowhere:1"), "g", "in", 2, 7, 1_000_000), consumers


def test_a_consumer_that_reaches_no_broker_is_replaced_where_it_stood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Librdkafka issue 5301: it would stay silent for good, and its partition stand still."""
    reader, consumers = _reader(monkeypatch, 0, broker=False)
    assert reader.take(10, 1000, 0) is None
    assert [one.closed for one in consumers] == [True, False]
    assert [(one.topic, one.partition, one.offset) for one in consumers[1].assigned] == [("in", 2, 7)]


def test_a_consumer_whose_password_is_refused_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports nothing to its reader; a run whose password was changed stood still for good (campaign, F36)."""
    reader, consumers = _reader(monkeypatch, 0, broker=False)
    consumers[-1].error_cb(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
    with pytest.raises(Denied, match=r"read of in\[2\]: wrong password"):
        reader.take(10, 1000, 0)


@pytest.mark.parametrize(("silent_s", "broker", "calls"), [(0, True, 3), (3600, False, 0)])
def test_an_idle_consumer_is_kept(monkeypatch: pytest.MonkeyPatch, silent_s: float, broker: bool, calls: int) -> None:
    """Its broker answers that there is nothing new; it is not asked before the consumer was silent for a while."""
    reader, consumers = _reader(monkeypatch, silent_s, broker=broker)
    assert [reader.take(10, 1000, 0) for _ in range(3)] == [None] * 3
    assert [(one.closed, one.calls) for one in consumers] == [(False, calls)]


def test_a_range_that_could_not_be_read_is_read_by_another_client_next_time(monkeypatch: pytest.MonkeyPatch) -> None:
    readers: list[Any] = []

    def stuck(*_: Any) -> Any:
        readers.append(Mock(read=Mock(side_effect=DeadlineExceeded("read: in[0] was not read in time"))))
        return readers[-1]

    monkeypatch.setattr(micro_batches, "RangeReader", stuck)
    engine = LocalEngine(Connection("nowhere:1"), "g", OrderEnrichment(Limits()))
    for _ in range(2):
        with pytest.raises(DeadlineExceeded):
            list(engine._rows(OffsetRange("in", 0, 3, 5), 1))
    assert [one.close.called for one in readers] == [True, True]
    *_, stop = readers[1].read.call_args.args
    assert not stop.is_set()
    engine.interrupt()
    assert stop.is_set(), "a read ends with the run"
    engine.close()


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[Silent]:
    """The consumers that were created: the first one has lost the brokers, and a new one reaches them."""
    consumers: list[Silent] = []

    def consumer(*_: Any, **__: Any) -> Silent:
        consumers.append(Silent(broker=bool(consumers)))
        return consumers[-1]

    for module in (log_reader, group_consumer):
        monkeypatch.setattr(module, "consumer", consumer)
        monkeypatch.setattr(module, "SILENT_S", 0)
    monkeypatch.setattr(clients, "reach", lambda *_, **__: None)
    return consumers


def _read_nothing() -> None:
    reader = RangeReader(Connection("nowhere:1"), "in", 2, "g")
    with pytest.raises(DeadlineExceeded):
        list(reader.read(5, 9, Deadline(0.05), threading.Event()))


def test_a_range_reader_that_lost_the_brokers_goes_on_with_a_new_consumer(created: list[Silent]) -> None:
    """Within the range, at the offset that comes next: its transaction need not time out first."""
    _read_nothing()
    assert [one.closed for one in created] == [True, False]
    assert [(one.partition, one.offset) for one in created[1].assigned] == [(2, 5)]


def test_a_range_reader_that_lost_the_brokers_amid_a_range_reads_no_record_twice(created: list[Silent]) -> None:
    reader = RangeReader(Connection("nowhere:1"), "in", 2, "g")
    answers = [[log_record(5, 2), log_record(6, 2)], []]
    created[0].consume = lambda *_, **__: answers.pop(0)  # type: ignore[method-assign]
    batches = reader.read(5, 9, Deadline(5), threading.Event())
    assert [record.offset() for record in next(batches)] == [5, 6]
    new = [log_record(7, 2), error_at(9, KafkaError._PARTITION_EOF)]
    second = Silent(broker=True)
    second.consume = lambda *_, **__: new  # type: ignore[method-assign]
    reader._made = lambda: second  # type: ignore[assignment,return-value]
    assert [record.offset() for batch in batches for record in batch] == [7]
    assert [(one.partition, one.offset) for one in second.assigned] == [(2, 7)]


def test_nobody_is_replaced_while_the_brokers_are_away(created: list[Silent], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "reach", Mock(side_effect=Unreachable("nobody answered")))
    _read_nothing()
    assert [one.closed for one in created] == [False]


@pytest.mark.parametrize("named", [False, True])
def test_a_member_that_lost_the_brokers_joins_again_with_a_new_consumer(created: list[Silent], named: bool) -> None:
    """Its partitions may be somebody else's by now; those that are named it has again, from where it is told."""
    member = Member(MemberSettings(Connection("nowhere:1"), "g", "in"))
    listener = Mock(assigned=Mock(side_effect=lambda partitions: dict.fromkeys(partitions, 7)))
    created[0].broker = named
    if named:
        member.take([0, 1], listener)
        created[0].broker = False
    else:
        member.join(listener)
        member._assigned([0, 1])
    assert member.poll(10, 0) == {}
    expected = [("assigned", [0, 1]), ("lost", [0, 1]), ("assigned", [0, 1])]
    heard = [(name, sorted(partitions)) for name, (partitions,), _ in listener.mock_calls]
    assert (heard, member.owned) == ((expected, {0, 1}) if named else (expected[:2], set()))
    assert len(created) == 2
    if named:
        assert [(one.partition, one.offset) for one in created[1].assigned] == [(0, 7), (1, 7)]
    else:
        assert created[1].subscribed == ["in"]
    until(lambda: created[0].closed, "the old consumer is closed")


def test_a_consumer_that_was_given_up_calls_nobody_as_it_closes(created: list[Silent]) -> None:
    """It closes in a thread of its own: the handler was stopped there while the member's thread told it of the loss."""
    member, callbacks = Member(MemberSettings(Connection("nowhere:1"), "g", "in")), dict[str, Any]()
    ours = [TopicPartition("in", 0)]
    created[0].subscribe = lambda _topics, **given: callbacks.update(given)  # type: ignore[method-assign]
    listener = Mock(assigned=Mock(return_value={0: 7}))
    member.join(listener)
    callbacks["on_assign"](created[0], ours)
    closed = threading.Event()

    def close() -> None:
        for name in ("on_revoke", "on_lost", "on_assign"):
            callbacks[name](created[0], ours)
        closed.set()

    created[0].close = close  # type: ignore[method-assign]
    assert member.poll(10, 0) == {}
    assert closed.wait(5)
    assert [name for name, *_ in listener.mock_calls] == ["assigned", "lost"]
    assert (member.owned, created[1].assigned) == (frozenset(), [])


@pytest.mark.parametrize(("session_s", "heartbeat_ms"), [(10.0, 1000), (2.0, 500)])
def test_a_members_times_reach_the_client_in_milliseconds(
    monkeypatch: pytest.MonkeyPatch, session_s: float, heartbeat_ms: int
) -> None:
    """A second heartbeat fits into each session: one that is lost must not cost the partitions."""
    consumer = Mock()
    monkeypatch.setattr(group_consumer, "consumer", consumer)
    Member(MemberSettings(Connection("nowhere:1"), "g", "in", max_poll_interval_s=90.0, session_timeout_s=session_s))
    names = ("max.poll.interval.ms", "session.timeout.ms", "heartbeat.interval.ms")
    given = [consumer.call_args.kwargs[name] for name in names]
    assert given == [90_000, int(session_s * 1000), heartbeat_ms]


def test_a_members_report_is_not_waited_for_and_its_failure_is_none(created: list[Silent]) -> None:
    """Records are read again then; a commit without partitions would be one of all that was read."""
    member = Member(MemberSettings(Connection("nowhere:1"), "g", "in"))
    commit = Mock(side_effect=KafkaException(KafkaError(KafkaError._NO_OFFSET)))
    created[0].commit = commit  # type: ignore[attr-defined]
    member.report({}, "")
    commit.assert_not_called()
    member.report({3: 5}, "id")
    [offset] = commit.call_args.kwargs["offsets"]
    assert (offset.topic, offset.partition, offset.offset, offset.metadata) == ("in", 3, 5, "id")
    assert commit.call_args.kwargs["asynchronous"] is True


def test_the_last_report_of_a_member_waits_no_longer_than_it_may(created: list[Silent]) -> None:
    """Without brokers the library waits for them: a program that was stopped in an outage was killed for it."""
    member, held, answered = Member(MemberSettings(Connection("nowhere:1"), "g", "in")), threading.Event(), list[bool]()
    created[0].commit = lambda **_: answered.append(held.wait(9))  # type: ignore[attr-defined]
    member.report({0: 5}, "", wait=Deadline(0.05))
    assert answered == []
    held.set()


def test_a_member_refuses_a_record_whose_headers_the_client_can_not_read(created: list[Silent]) -> None:
    """The programs read them later, where a second call returns a broken list that ends the process."""
    member = Member(MemberSettings(Connection("nowhere:1"), "g", "in"))
    created[0].broker = True
    member.take([2], Mock(assigned=Mock(return_value={2: 7})))
    unreadable = log_record(8, 2)
    unreadable.headers = Mock(side_effect=SystemError("returned a result with an exception set"))
    created[0].consume = lambda *_, **__: [log_record(7, 2), unreadable, log_record(9, 2)]  # type: ignore[method-assign]
    polled = member.poll(10, 0)
    assert ([one.offset() for one in polled[2].records], polled[2].until) == ([7], 8)
    with pytest.raises(Refused, match=r"record at in\[2\] offset 8 has a header .* move the position from 8 to 9: "):
        member.poll(10, 0)


@pytest.mark.parametrize("lost", [True, False])
def test_a_member_hands_out_what_it_owns_and_reads_on_from_where_it_is_told(created: list[Silent], lost: bool) -> None:
    """What was fetched before a partition left is its next owner's; an end that a broker reports late moves nothing."""
    member, consumer = Member(MemberSettings(Connection("nowhere:1"), "g", "in")), created[0]
    consumer.broker = True
    member.take([0, 2], Mock(assigned=Mock(return_value={0: 7, 2: 7})))
    fetched = [log_record(7), log_record(8, 2), error_at(5, KafkaError._PARTITION_EOF)]
    consumer.consume = lambda *_, **__: fetched  # type: ignore[method-assign]
    ends = {p: (len(polled.records), polled.until) for p, polled in member.poll(10, 0).items()}
    assert ends == {0: (1, 8), 2: (1, 9)}
    member._taken([2], lost=lost)
    assert (member.poll(10, 0).keys(), member.owned) == ({0}, {0})
    member.seek({0: 3, 2: 3})
    assert [(one.partition, one.offset) for one in consumer.assigned] == [(0, 3)]
