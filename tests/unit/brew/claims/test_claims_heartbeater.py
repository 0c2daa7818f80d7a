"""Handlers on claims, heartbeats, and how a newcomer reads the log."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from confluent_kafka import KafkaError, KafkaException
from harness.claims import GROUP, MemoryLog, Shared, claim
from harness.fakes import log_record
from harness.programs import until
from rich.console import Console

from brew.claims import heartbeater as claims_heartbeater
from brew.claims.heartbeater import Heartbeater, HeldPartitions, StandBy
from brew.claims.log import Appended, Entry, Item
from brew.claims.member import Holding, Membership
from brew.claims.messages import UNKNOWN_ID, WHOLE_TOPIC, ReleaseGroup
from brew.claims.state import ClaimsView, Table
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Fatal, KafkaFailure, Refused
from brew.kafka import claims_log, topics
from brew.kafka.claims_log import ClaimsLog
from brew.kafka.group_consumer import Member
from downstream.claims import admin as claims_admin
from downstream.claims.admin import ClaimsSnapshot, PauseRow, Watcher
from downstream.claims.commands import tables
from downstream.claims.ownership import AtLeastOnce, AtMostOnce, ClaimedMember
from downstream.consume import handler
from downstream.consume.handler import (
    AssignedPartition,
    HandlerContext,
    LastingFailure,
    NotOwned,
    PartitionBatch,
    RetryLater,
    start,
)


class Recorder:
    """Notes all calls, in order."""

    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        self.calls = calls

    def assigned(self, assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:  # noqa: ARG002
        self.calls.append(("assigned", [assignment.committed for assignment in assignments]))
        assert all(assignment.claimed is (assignment.committed != 50) for assignment in assignments)
        return {assignment.partition: assignment.committed or assignment.first for assignment in assignments}

    def handle(self, slices: Sequence[PartitionBatch], context: HandlerContext) -> None:
        self.calls.append(("handle", [(one.partition, one.until) for one in slices]))
        context.report({one.partition: one.until for one in slices})

    def tick(self, context: HandlerContext) -> None: ...

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:  # noqa: ARG002
        self.calls.append(("revoked", list(partitions)))

    def lost(self, partitions: Collection[int]) -> None:
        self.calls.append(("lost", list(partitions)))

    def close(self, deadline: Deadline) -> None: ...


class FakeHeartbeater:
    """Holds what it is told, grants what it is told, and notes what it hears."""

    grants = True

    def __init__(self, calls: list[tuple[str, Any]]) -> None:
        self.calls = calls
        self.holdings = {0: Holding(7, 100, 1e9), 1: Holding(8, -1, 1e9)}

    def held(self) -> dict[int, Holding]:
        return dict(self.holdings)

    def progress(self, done: Mapping[int, Holding]) -> None:
        self.calls.append(("progress", {p: (one.token, one.position) for p, one in done.items()}))

    def claim_messages(self, partition: int, holding: Holding, proposed: int) -> bool:
        self.calls.append(("claim", (partition, holding.token, proposed)))
        return self.grants

    def release_partitions(self, done: Mapping[int, Holding], deadline: Deadline) -> None:
        assert deadline.remaining_s() > 0.5, "handlers may have used up the time before"
        self.calls.append(("give back", {p: (one.token, one.position) for p, one in done.items()}))


class Behind(Recorder):
    """Takes what it is given, and is done with it later."""

    done: Mapping[int, int] = {}

    def handle(self, slices: Sequence[PartitionBatch], context: HandlerContext) -> None:
        self.calls.append(("handle", [(one.partition, one.until) for one in slices]))
        self.report = context.report

    def tick(self, context: HandlerContext) -> None:
        context.report(self.done)

    def revoked(self, partitions: Collection[int], deadline: Deadline) -> None:  # noqa: ARG002
        self.report({0: 115})


class Starting(Recorder):
    """Starts where the pattern of `brew call` does."""

    def assigned(self, assignments: Sequence[AssignedPartition], _deadline: Deadline) -> Mapping[int, int]:
        return {assignment.partition: start(assignment) for assignment in assignments}


def context(heard: list[Mapping[int, int]]) -> HandlerContext:
    return HandlerContext(Deadline(20), frozenset({0, 1}), lambda _: None, lambda _: None, heard.append)


CONTEXT = context([])


def assignments() -> list[AssignedPartition]:
    return [AssignedPartition("t", "id", p, committed=50, first=0, last_stable=500) for p in (0, 1)]


Calls = list[tuple[str, Any]]


def flow_of(kind: type[AtLeastOnce | AtMostOnce], inner: type[Recorder] = Recorder) -> tuple[Any, Any, Any, Calls]:
    """A flow that has been assigned both partitions; its handler, its keeper, and all calls."""
    calls: Calls = []
    heartbeater, handler = FakeHeartbeater(calls), inner(calls)
    flow = kind(handler, cast("Heartbeater", heartbeater))
    flow.assigned(assignments(), Deadline(5))
    return flow, handler, heartbeater, calls


def test_at_least_once_works_first_and_tells_then() -> None:
    """From the log's position where it has one, else from the committed offset; handed over where it ended."""
    flow, _, _, calls = flow_of(AtLeastOnce)
    flow.handle([PartitionBatch(0, 100, 120, [])], CONTEXT)
    flow.revoked([0, 1], Deadline(5))
    assert calls == [
        ("assigned", [100, 50]),
        ("handle", [(0, 120)]),
        ("progress", {0: (7, 120)}),
        ("revoked", [0, 1]),
        ("give back", {0: (7, 120), 1: (8, -1)}),
    ]


def test_the_position_in_a_topic_that_was_recreated_since_is_not_taken_over() -> None:
    """Kafka deletes its own offset with the topic: the records below the log's position were skipped."""
    heartbeater, handler = FakeHeartbeater([]), Starting([])
    flow = AtLeastOnce(handler, cast("Heartbeater", heartbeater))
    for known in ("id", UNKNOWN_ID):
        heartbeater.holdings[0] = Holding(7, 100, 1e9, known)
        assert flow.assigned(assignments()[:1], Deadline(5)) == {0: 100}
        flow.lost([0])
    heartbeater.holdings[0] = Holding(7, 100, 1e9, "the id before")
    with pytest.raises(Refused, match=r"topic-recreated: .* id the id before, but the topic now has id id"):
        flow.assigned(assignments()[:1], Deadline(5))


def test_what_was_only_begun_is_not_told() -> None:
    """A pattern that works behind the loop's back: the log hears what it reports, or a crash would skip the rest."""
    heard: list[Mapping[int, int]] = []
    flow, inner, _, calls = flow_of(AtLeastOnce, Behind)
    flow.handle([PartitionBatch(0, 100, 120, [])], context(heard))
    assert calls[1:] == [("handle", [(0, 120)])]
    inner.done = {0: 110}
    flow.tick(context(heard))
    flow.revoked([0], Deadline(5))
    assert heard == [{0: 110}, {0: 115}]
    assert calls[2:] == [("progress", {0: (7, 110)}), ("progress", {0: (7, 115)}), ("give back", {0: (7, 115)})]


def test_at_most_once_never_goes_back_behind_what_it_claimed() -> None:
    """What is done lies below what was claimed, and what was claimed is never worked on again."""
    flow, inner, _, calls = flow_of(AtMostOnce, Behind)
    flow.handle([PartitionBatch(0, 100, 120, [])], CONTEXT)
    inner.done = {0: 110}
    flow.tick(CONTEXT)
    flow.assigned(assignments(), Deadline(5))
    assert calls[-1] == ("assigned", [120, 50])


def test_at_most_once_claims_before_it_works() -> None:
    """Slice by slice, so that a crash drops no more than it must; what could not be claimed is not worked on."""
    flow, _, heartbeater, calls = flow_of(AtMostOnce)
    flow.handle([PartitionBatch(0, 100, 120, []), PartitionBatch(1, 50, 60, [])], CONTEXT)
    assert calls[1:] == [("claim", (0, 7, 120)), ("handle", [(0, 120)]), ("claim", (1, 8, 60)), ("handle", [(1, 60)])]
    heartbeater.grants = False
    with pytest.raises(NotOwned, match="could not be claimed"):
        flow.handle([PartitionBatch(0, 120, 130, [])], CONTEXT)
    assert calls[5:] == [("claim", (0, 7, 130))]


def test_at_most_once_works_on_what_it_has_claimed_before_but_not_begun() -> None:
    """The answer to a claim was lost, or a ledger starts where its database is; the log takes no claim twice."""
    flow, _, heartbeater, calls = flow_of(AtMostOnce)
    heartbeater.grants = False
    heartbeater.holdings[0] = Holding(7, 120, 1e9)
    flow.handle([PartitionBatch(0, 100, 120, [])], CONTEXT)
    assert calls[1:] == [("handle", [(0, 120)])]
    heartbeater.holdings[0] = Holding(8, 140, 1e9)
    for end in (121, 140):
        with pytest.raises(NotOwned, match="could not be claimed"):
            flow.handle([PartitionBatch(0, 120, end, [])], CONTEXT)


def test_at_most_once_does_not_repeat_a_batch_whose_store_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that broke does not say whether the effect happened."""
    flow, inner, _, calls = flow_of(AtMostOnce)
    monkeypatch.setattr(inner, "handle", Mock(side_effect=RetryLater("redis: connection closed")))
    with pytest.raises(RetryLater):
        flow.handle([PartitionBatch(0, 100, 120, [])], CONTEXT)
    flow.assigned(assignments(), Deadline(5))
    assert calls[-1] == ("assigned", [120, 50])


def test_a_partition_that_is_not_surely_ours_is_not_worked_on() -> None:
    """Silent for two intervals, or claimed again since under another token."""
    flow, _, heartbeater, calls = flow_of(AtLeastOnce)
    heartbeater.holdings[0] = Holding(9, 100, 1e9)
    with pytest.raises(NotOwned):
        flow.handle([PartitionBatch(0, 100, 120, [])], CONTEXT)
    del heartbeater.holdings[0]
    with pytest.raises(NotOwned):
        flow.handle([PartitionBatch(0, 100, 120, [])], CONTEXT)
    with pytest.raises(RetryLater):
        flow.assigned(assignments(), Deadline(5))
    assert [name for name, _ in calls] == ["assigned"]
    heartbeater.holdings[0] = Holding(11, 140, 1e9)
    flow.assigned(assignments(), Deadline(5))
    assert calls[1:] == [("assigned", [140, 50])], "where its owner in between left it"


def test_a_partition_that_was_lost_is_forgotten_and_not_given_back() -> None:
    flow, _, _, calls = flow_of(AtLeastOnce)
    flow.lost([0])
    flow.revoked([1], Deadline(1e-9))
    assert calls[1:] == [("lost", [0]), ("revoked", [1]), ("give back", {1: (8, -1)})]


@contextmanager
def started_heartbeater(
    shared: Shared, *, healthy: list[bool] | None = None, patience_s: float | None = None
) -> Iterator[Heartbeater]:
    """Partitions 0 and 1, kept with intervals of a second of the test's clock."""
    says = healthy or [True]
    membership = Membership("a", GROUP, "orders", (0, 1), 1.0)
    more: Any = {"healthy": lambda: says[0], "now": shared.now, "patience_s": patience_s}
    with Heartbeater(lambda: MemoryLog(shared), membership, **more) as heartbeater:
        until(lambda: len(heartbeater.held()) == 2, "both partitions")
        yield heartbeater


def released_positions(shared: Shared) -> dict[int, tuple[str | None, int]]:
    """Owner and position of each partition, as the log has them."""
    view = ClaimsView([Table()])
    for entry in shared.entries[0]:
        view.apply(entry)
    return {place[2]: (owner.client_id, owner.position) for place, owner in view.tables[0].owners.items()}


def test_a_keeper_whose_work_hangs_falls_silent_and_is_sure_of_nothing_two_intervals_later() -> None:
    shared, healthy = Shared(), [True]
    with started_heartbeater(shared, healthy=healthy) as heartbeater:
        healthy[0] = False
        until(lambda: heartbeater.last_error == "the work hangs", "its silence")
        written, sure = len(shared.entries[0]), min(one.confirmed_until for one in heartbeater.held().values())
        shared.now_ms = round(sure * 1000) - 1
        assert sorted(heartbeater.held()) == [0, 1]
        shared.now_ms += 1
        assert heartbeater.held() == {}
        time.sleep(0.25)  # its thread has had two turns
        assert len(shared.entries[0]) == written


@pytest.mark.parametrize("patience_s", [30, None])
def test_a_heartbeater_gives_up_once_its_topic_was_out_of_reach_for_too_long(patience_s: float | None) -> None:
    """A driver that shares partitions stood still for ever, and reported that it works, once the topic was deleted."""
    shared = Shared()
    with started_heartbeater(shared, patience_s=patience_s) as heartbeater:
        shared.down = True
        shared.now_ms += 3000  # what it held is stale, so every turn has to write
        until(lambda: heartbeater.last_error is not None, "a failure")
        assert heartbeater.last_error == "append: no answer within 2.0 s", "two intervals, or nobody could leave"
        assert heartbeater.held() == {}
        shared.now_ms += 30_001
        if patience_s is None:
            assert heartbeater.held() == {}
            return

        def given_up() -> bool:
            try:
                return heartbeater.held() != {}
            except Refused as error:
                return "out of reach for 30 s (--patience is 30 s)" in str(error) and "run it again" in str(error)

        until(given_up, "its end")


def test_an_answer_in_between_starts_the_patience_again() -> None:
    shared = Shared()
    with started_heartbeater(shared, patience_s=30) as heartbeater:
        for _ in range(3):
            shared.down = True
            shared.now_ms += 3000
            until(lambda: heartbeater.last_error is not None, "a failure")
            shared.now_ms += 20_000
            shared.down = False
            until(lambda: heartbeater.last_error is None and len(heartbeater.held()) == 2, "both partitions")


@pytest.mark.parametrize("healed", [False, True])
def test_a_missing_right_ends_a_heartbeater_after_ten_seconds_whatever_its_patience(*, healed: bool) -> None:
    """Turns between two heartbeats succeed, since they ask no broker: they must not hide that heartbeats fail."""
    shared = Shared()
    with started_heartbeater(shared) as heartbeater:
        shared.denied = True
        shared.now_ms += 600
        until(lambda: heartbeater.last_error is not None, "a failure")
        time.sleep(0.3)
        assert "TOPIC_AUTHORIZATION_FAILED" in str(heartbeater.last_error)
        shared.denied = not healed
        shared.now_ms += 10_001
        if healed:
            until(lambda: heartbeater.last_error is None and len(heartbeater.held()) == 2, "both partitions")
            return
        with pytest.raises(Refused, match=r"10 s after an authorization failure.* grant the right, and run it again"):
            until(lambda: heartbeater.held() is None, "its end")


def test_a_denial_before_an_outage_does_not_end_a_heartbeater() -> None:
    """It was kept until the next success, so an outage of ten seconds ended a member that would have waited."""
    shared = Shared()
    with started_heartbeater(shared) as heartbeater:
        shared.denied = True
        shared.now_ms += 600
        until(lambda: heartbeater.last_error is not None, "a denial")
        shared.down, shared.denied = True, False
        shared.now_ms += 600
        until(lambda: "AUTHORIZATION" not in str(heartbeater.last_error), "the outage")
        shared.now_ms += 10_001
        time.sleep(0.3)
        heartbeater.held()  # raises if it gave up
        shared.down = False
        shared.now_ms += 600
        until(lambda: heartbeater.last_error is None and len(heartbeater.held()) == 2, "both partitions")


@pytest.mark.parametrize(("interval_s", "denied_s"), [(3.0, 0.0), (80.0, 80.0)])
def test_denials_are_a_row_although_heartbeats_are_rare(interval_s: float, denied_s: float) -> None:
    membership = Membership("m", "g", "t", (0,), interval_s)
    denials = Heartbeater(Mock(), membership)._denials
    assert [denials.failed("TOPIC_AUTHORIZATION_FAILED", now) for now in (0.0, 40.0, 80.0)] == [0, 0, denied_s]


def test_a_read_that_was_refused_stays_refused_until_a_record_comes() -> None:
    """The client library reports a missing Read once; what follows looked like an outage."""
    log, reader = ClaimsLog.__new__(ClaimsLog), Mock()
    log._connection, log._topic, log._failing_since = Connection("b:1"), "my.claims", math.inf
    log._reader, log._next, log._waiting, log._refused = reader, {0: 0}, [], None
    denied = Mock(**{"error.return_value": KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)})
    reader.poll.side_effect = chain([denied], repeat(None))
    reader.consume.return_value = []
    for _ in range(2):
        with pytest.raises(KafkaFailure, match="TOPIC_AUTHORIZATION_FAILED"):
            log.read({0: 1}, Deadline(0.01))


@pytest.mark.parametrize(
    ("code", "raised"),
    [(KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaFailure), (KafkaError._AUTO_OFFSET_RESET, Refused)],
)
def test_records_behind_an_error_of_the_same_call_are_kept(code: int, raised: type[Exception]) -> None:
    """They were lost, and the next record moved the position past them: the reader's fold differed from the others'."""
    log: Any = ClaimsLog.__new__(ClaimsLog)
    log._connection, log._topic, log._failing_since = Connection("b:1"), "my.claims", math.inf
    log._next, log._waiting, log._refused = {0: 5}, [], None
    denied = log_record(0, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    first, *rest, later = [log_record(offset, timestamp=(2, 0)) for offset in (5, 6, 7, 8)]
    fetched = iter([[denied, log_record(0, error=KafkaError(code)), *rest], []])
    log._reader = Mock(poll=Mock(side_effect=[first, later]), consume=lambda *_, **__: next(fetched))
    with pytest.raises(raised):
        log.read({0: 8}, Deadline(5))
    assert log._refused is None, "a record came behind it"
    assert [entry.offset for entry in log.read({0: 9}, Deadline(5))] == [5, 6, 7, 8]


def test_a_missing_right_on_the_claims_topic_is_named_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """Once, although heartbeats are tried again, and each attempt to join opens the topic anew."""
    for _ in range(2):
        log = ClaimsLog.__new__(ClaimsLog)
        log._connection, log._topic, log._failing_since = Connection("b:1"), "my.claims", math.inf
        for text in ("no answer", "Broker: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)"):
            with pytest.raises(Fatal), log._renewing():
                raise Fatal(f"append to topic my.claims: {text}")
    [warning] = caplog.messages
    assert "User:ANONYMOUS lacks Write on topic my.claims: `kafka-acls --add" in warning


class Writer:
    """A producer: what its queue refuses, and what a flush answers for each record, by its place in the call."""

    def __init__(self, answers: Mapping[int, int | None], refuses: Mapping[int, int] | None = None) -> None:
        self.answers, self.refuses = answers, refuses or {}
        self.queued, self.calls = list[Callable[..., None]](), list[str]()

    def produce(self, _topic: str, *_record: object, on_delivery: Callable[..., None]) -> None:
        if (code := self.refuses.get(len(self.queued))) is not None:
            raise KafkaException(KafkaError(code))
        self.queued.append(on_delivery)

    def flush(self, _timeout: float) -> None:
        self.calls.append("flush")
        for place in reversed(self.answers):
            code = self.answers[place]
            message = log_record(100 + place, place, timestamp=(2, 1000 + place))
            self.queued[place](None if code is None else KafkaError(code), message)

    def purge(self) -> None:
        self.calls.append("purge")


Append = Callable[[], list[Appended]]


@pytest.fixture
def append(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Append, list[Writer]]]:
    """A log that has these producers, one after another, and appends two records at each call; those that it took."""

    def of(*writers: Writer) -> tuple[Append, list[Writer]]:
        log, left, taken = ClaimsLog.__new__(ClaimsLog), [*writers], list[Writer]()
        log._connection, log._topic, log._failing_since = Connection("b:1"), "my.claims", math.inf
        log._producer, log._missing = None, False
        monkeypatch.setattr(claims_log, "producer", lambda *_, **__: taken.append(left.pop(0)) or taken[-1])
        return lambda: log.append([Item(0, b"k", b"v")] * 2, Deadline(5)), taken

    return of


BOTH: dict[int, int | None] = {0: None, 1: None}
APPENDED = [Appended(0, 100, 1000), Appended(1, 101, 1001)]


def test_what_was_appended_is_told_in_its_order(append: Callable[..., tuple[Append, list[Writer]]]) -> None:
    """Whichever the brokers answer first: the members' tokens are these offsets."""
    call, _ = append(Writer(BOTH))
    assert call() == APPENDED


def test_a_record_without_an_answer_is_taken_back(append: Callable[..., tuple[Append, list[Writer]]]) -> None:
    """A claim that is delivered minutes later would take the partition from its owner."""
    call, taken = append(writer := Writer({0: None}))
    with pytest.raises(DeadlineExceeded, match=r"append to topic my\.claims: no answer within 5 s"):
        call()
    assert writer.calls == ["flush", "purge", "flush"]
    assert taken == [writer]


@pytest.mark.parametrize(
    ("first", "raised", "producers"),
    [
        # Brokers that are away: the same producer goes on.
        (Writer({0: KafkaError._MSG_TIMED_OUT, 1: None}), DeadlineExceeded, 1),
        # One that failed takes no more records, and says no more why.
        (Writer({0: None, 1: KafkaError.TOPIC_AUTHORIZATION_FAILED}), KafkaFailure, 2),
        (Writer(BOTH, refuses={0: KafkaError._FATAL}), None, 2),
        # What came before it may be delivered: only the next call begins with a new one.
        (Writer(BOTH, refuses={1: KafkaError._FATAL}), KafkaFailure, 1),
        (Writer(BOTH, refuses={0: KafkaError._QUEUE_FULL}), KafkaFailure, 1),
    ],
)
def test_a_producer_that_failed_for_good_is_replaced(
    append: Callable[..., tuple[Append, list[Writer]]],
    first: Writer,
    raised: type[Exception] | None,
    producers: int,
) -> None:
    call, taken = append(first, Writer(BOTH))
    if raised is not None:
        with pytest.raises(raised):
            call()
        first.refuses, first.answers, first.queued = {}, BOTH, []
    assert call() == APPENDED
    assert len(taken) == producers


def test_a_claims_topic_that_two_looks_do_not_find_was_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """One is not enough: a broker that starts does not know all topics yet."""
    log, there = ClaimsLog.__new__(ClaimsLog), [True, False, True, False, False]
    log._admin, log._topic, log._missing = Mock(), "my.claims", False
    monkeypatch.setattr(claims_log.topics, "describe", lambda *_: ["my.claims"] if there.pop(0) else [])
    for _ in range(4):
        log._check_exists()
    with pytest.raises(Refused, match=r"topic 'my\.claims' was deleted"):
        log._check_exists()


def test_what_is_left_is_released_at_the_position_that_was_told_last(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryLog, "close", closed := Mock())
    with started_heartbeater(shared) as heartbeater:
        held = heartbeater.held()
        heartbeater.progress({0: replace(held[0], position=70)})
        heartbeater.progress({1: replace(held[1], position=71), 0: replace(held[0], position=75)})
    assert released_positions(shared) == {0: (None, 75), 1: (None, 71)}
    assert (heartbeater.held(), closed.call_count) == ({}, 1)


@pytest.mark.parametrize("why", ["down", "denied"])
def test_messages_whose_claim_is_not_in_the_log_are_not_claimed(shared: Shared, why: str) -> None:
    """Nor is a failed claim an error of the work, which goes on when the log answers again."""
    with started_heartbeater(shared) as heartbeater:
        held = heartbeater.held()[0]
        for failing in (True, False):
            setattr(shared, why, failing)
            assert heartbeater.claim_messages(0, held, 120) is not failing
        assert heartbeater.held()[0].position == 120


def test_who_leaves_while_a_call_waits_for_a_broker_does_not_wait_for_it(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process is killed ten seconds after SIGTERM, and the lock of the call was waited for. All becomes stale."""
    monkeypatch.setattr(claims_heartbeater, "_LEAVE_S", 0.2)
    asked, answered = threading.Event(), threading.Event()

    def hang(*_: Any) -> list[Appended]:
        asked.set()
        answered.wait(9)
        raise DeadlineExceeded("append: no answer")

    with started_heartbeater(shared) as heartbeater:
        monkeypatch.setattr(MemoryLog, "append", hang)
        shared.now_ms += 600
        assert asked.wait(5)
        began = time.monotonic()
        heartbeater.release_partitions(heartbeater.held(), Deadline(0.2))
        heartbeater.leave()
        assert time.monotonic() - began < 1
        assert heartbeater.held() == {}
        answered.set()
        thread: Any = heartbeater._thread
        thread.join(5)
        assert heartbeater.held() == {}, "nor once the call has ended"
    assert {name for name, _ in released_positions(shared).values()} == {"a"}


def test_who_leaves_while_heartbeats_fail_writes_nothing(shared: Shared, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without brokers each more call would take seconds, and tell nobody."""
    with started_heartbeater(shared) as heartbeater:
        shared.down = True
        shared.now_ms += 600
        until(lambda: heartbeater.last_error is not None, "a failure")
        append = Mock(side_effect=DeadlineExceeded("append: no answer"))
        monkeypatch.setattr(MemoryLog, "append", append)
        heartbeater.leave()
        assert (append.call_count, heartbeater.held()) == (0, {})


def test_a_position_told_under_an_earlier_claim_is_not_told_again(shared: Shared) -> None:
    """The partition was given back and claimed anew: its next owner's work is not set back, nor ahead."""
    with started_heartbeater(shared) as heartbeater:
        old = heartbeater.held()[0]
        heartbeater.progress({0: replace(old, position=99)})
        heartbeater.release_partitions({0: replace(old, position=40)})
        until(lambda: 0 in heartbeater.held() and heartbeater.held()[0].token != old.token, "another claim")
        assert heartbeater.held()[0].position == 40
    assert released_positions(shared)[0] == (None, 40)


def test_the_partitions_of_a_topic_that_grew_are_claimed_too(shared: Shared) -> None:
    with started_heartbeater(shared) as heartbeater:
        heartbeater.set_partitions((0, 1, 2))
        until(lambda: sorted(heartbeater.held()) == [0, 1, 2], "the new partition")
        assert heartbeater.membership.partitions == (0, 1, 2), "what a driver that shares reports"


def test_a_join_that_failed_leaves_no_client_behind() -> None:
    """It is tried again for as long as the topic is out of reach."""
    log = Mock(bounds=Mock(side_effect=DeadlineExceeded("no answer")))
    with pytest.raises(DeadlineExceeded):
        Heartbeater(lambda: log, Membership("a", GROUP, "orders", (0,))).__enter__()
    log.close.assert_called_once_with()


def test_a_stand_by_that_is_stopped_waits_for_nobody() -> None:
    stand_by, stop = StandBy(Mock(), group=GROUP, topic="orders", client_id="a"), threading.Event()
    stop.set()
    assert not stand_by.wait(stop, Mock(side_effect=AssertionError("it goes on")))


def test_a_stand_by_whose_group_is_paused_gives_its_leadership_back(shared: Shared) -> None:
    """`brew claims release` waited for it, and ended the pause: leaders went on as if nothing had been said."""
    stand_by = StandBy(lambda: MemoryLog(shared), group=GROUP, topic="orders", client_id="a", interval_s=1.0)
    stand_by._heartbeater._now = shared.now
    stop = threading.Event()
    with stand_by:
        assert stand_by.wait(stop)
        shared.write(ReleaseGroup("admin", GROUP, shared.now_ms + 9000))
        until(lambda: not stand_by.holds(), "the pause")
        assert released_positions(shared)[WHOLE_TOPIC][0] == "a", "what it does may not have ended yet"
        assert not stand_by.wait(stop, stop.set)
        assert released_positions(shared)[WHOLE_TOPIC][0] is None
        shared.write(ReleaseGroup("admin", GROUP, 0))
        stop.clear()
        assert stand_by.wait(stop)


def test_a_leader_that_fell_silent_is_nobodys_leader(shared: Shared) -> None:
    """While the group is paused nobody takes over: who waits, and its probes, went on to name one that had died."""
    shared.write(claim("a", WHOLE_TOPIC))
    stand_by = StandBy(lambda: MemoryLog(shared), group=GROUP, topic="orders", client_id="b", interval_s=1.0)
    stand_by._heartbeater._now = shared.now
    with stand_by:
        until(lambda: stand_by.owner == "a", "the leader")
        shared.write(ReleaseGroup("admin", GROUP, shared.now_ms + 60_000))
        shared.now_ms += 3000
        until(lambda: stand_by.owner is None, "its silence")
        assert not stand_by.holds()


def test_a_read_that_took_too_long_is_continued_and_nothing_is_read_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each record changes the fold once; one that was lost in between would leave its reader with another state."""
    log: Any = ClaimsLog.__new__(ClaimsLog)
    log._connection, log._topic, log._failing_since = Connection("b:1"), "my.claims", math.inf
    log._next, log._waiting = {0: 5}, []
    new, fetched = Mock(), iter([log_record(5, timestamp=(2, 0)), *[None] * 9, log_record(6, timestamp=(2, 0))])
    log._reader = Mock(poll=lambda _wait_s: next(fetched), consume=Mock(return_value=[]))
    with pytest.raises(DeadlineExceeded):
        log.read({0: 7}, Deadline(5, iter([0.0, *[9.0] * 9]).__next__))
    assert [entry.offset for entry in log.read({0: 7}, Deadline(5))] == [5, 6]
    monkeypatch.setattr(claims_log, "consumer", lambda *_, **__: new)
    log._open_reader()  # as when a client has lost the brokers for good
    [[[assigned]], _] = new.assign.call_args
    assert (assigned.partition, assigned.offset) == (0, 7)


def failing_log(monkeypatch: pytest.MonkeyPatch, clock: list[float]) -> Any:
    """A log whose clients are looked into, but not replaced; ``clock``: the time that it sees."""
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    log: Any = ClaimsLog.__new__(ClaimsLog)
    log._connection, log._topic, log._failing_since = Connection("b:1"), "my.claims", math.inf
    log._next, log._waiting, log._refused = {0: 5}, [], None
    log._check_exists, log.replace_cut_off = Mock(), Mock()
    return log


def test_a_reader_that_was_cut_off_is_found_although_appends_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    """With intervals of 2.5 s and less each append began anew, before the next read had failed for long enough."""
    clock, answers = [0.0], list[Any]()

    def poll(_wait_s: float) -> Any:
        clock[0] += 1.0
        return answers.pop() if answers else None

    log = failing_log(monkeypatch, clock)
    log._append, log._reader = Mock(return_value=[]), Mock(poll=poll, consume=Mock(return_value=[]))

    def turn() -> None:
        log.append([], Deadline(5))
        assert log.read({}, Deadline(4, lambda: clock[0])) == []
        with pytest.raises(DeadlineExceeded):
            log.read({0: 7}, Deadline(4, lambda: clock[0]))

    turn()
    assert log.replace_cut_off.call_count == 0
    turn()
    assert log.replace_cut_off.call_count == 1
    answers.append(log_record(5, timestamp=(2, 0)))
    assert len(log.read({0: 6}, Deadline(4, lambda: clock[0]))) == 1
    turn()
    assert log.replace_cut_off.call_count == 1, "it had answered"


def test_a_log_that_can_not_be_appended_to_is_looked_into_although_others_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Appends that fail at once leave time to read what others write, which said nothing about them."""
    clock = [0.0]
    log = failing_log(monkeypatch, clock)
    log._append = Mock(side_effect=Fatal("append to topic my.claims: unknown topic"))
    stored = iter([log_record(offset, timestamp=(2, 0)) for offset in (5, 6, 7)])
    log._reader = Mock(poll=lambda _wait_s: next(stored), consume=Mock(return_value=[]))
    for looked in (0, 0, 1):
        assert len(log.read({}, Deadline(5))) == 1
        with pytest.raises(Fatal):
            log.append([], Deadline(5))
        assert log._check_exists.call_count == log.replace_cut_off.call_count == looked
        clock[0] += 3.0


def test_a_claim_that_was_not_appended_in_time_is_not_appended_later() -> None:
    log: Any = ClaimsLog.__new__(ClaimsLog)
    log._connection, log._topic, log._failing_since = Connection("b:1"), "my.claims", math.inf
    log._producer = Mock()
    with pytest.raises(DeadlineExceeded):
        log.append([Item(0, b"k", b"v")], Deadline(5))
    log._producer.purge.assert_called_once_with()


def test_a_topic_that_one_broker_did_not_know_once_is_not_deleted_since_it_was_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Weeks later, one answer of a broker that had just started ended the members: the first was never forgotten."""
    log: Any = ClaimsLog.__new__(ClaimsLog)
    log._connection, log._topic, log._failing_since = Connection("b:1"), "my.claims", math.inf
    log._admin, log._missing = Mock(), False
    stored = log_record(0, timestamp=(2, 0))
    log._producer = Mock(produce=lambda *_, on_delivery: on_delivery(None, stored))
    monkeypatch.setattr(topics, "describe", lambda *_: {})
    log._check_exists()
    assert len(log.append([Item(0, b"k", b"v")], Deadline(5))) == 1
    log._check_exists()
    with pytest.raises(Refused, match="was deleted"):
        log._check_exists()


def test_a_log_that_was_made_again_ends_the_keeper_where_the_work_asks(shared: Shared) -> None:
    with started_heartbeater(shared) as heartbeater:
        held = heartbeater.held()
        shared.entries[0] = list[Entry]()
        shared.now_ms += 600
        with pytest.raises(Refused, match="recreated or emptied"):
            until(lambda: heartbeater.held() is None, "the failure")
        heartbeater.release_partitions(held)
    assert released_positions(shared) == {}, "what came too late counts for nothing"


def test_a_member_by_claims_reports_that_others_own_all_only_once_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a loss, too: what is free, because the log is out of reach, is nobody's work."""
    member: Any = ClaimedMember.__new__(ClaimedMember)
    keeper = SimpleNamespace(
        held=dict,
        to_release=frozenset,
        owners={0: "b"},
        membership=Membership("a", GROUP, "orders", (0, 1)),
        last_error=None,
    )
    told: list[str] = []
    member._claiming = LastingFailure("claims in claims", told.append)
    member.heartbeater, member._held, member._listener = keeper, HeldPartitions(cast("Any", keeper)), Mock()
    member._assignment_reported, member._idle_after = False, Deadline(1e-9)
    monkeypatch.setattr(member, "_add", lambda _: None)
    monkeypatch.setattr(member, "_drop", lambda _: None)
    member._follow_claims()
    assert (member.all_owned(), member._listener.assigned.call_count) == (False, 0)
    keeper.owners = {0: "b", 1: "c"}
    monkeypatch.setattr(Member, "poll", lambda *_: {})
    member._polled_at = 0.0
    for _ in range(2):
        member.poll(1, 0)
    assert (member.all_owned(), member._listener.assigned.call_count) == (True, 1)
    assert member._polled_at > 0, "who polls is heard"
    member._held._tokens = {1: 7}
    member._follow_claims()
    assert (member._listener.lost.call_args.args, member._listener.assigned.call_count) == (([1],), 2)
    monkeypatch.setattr(handler, "_LASTS_S", 1e-9)
    for keeper.last_error in ("not authorized", "not authorized", None, "not authorized"):
        member._follow_claims()
    assert told == ["claims in claims: still failing, will be tried again: not authorized"]


def test_a_partition_that_its_handler_could_not_begin_is_released_too(shared: Shared) -> None:
    """Else it would be assigned and revoked at each poll, and a pause of its group would never begin."""
    member: Any = ClaimedMember.__new__(ClaimedMember)
    member._claiming, member._listener, member._owned = LastingFailure("claims", print), Mock(), set()
    member._add = member._drop = lambda _: None
    with started_heartbeater(shared) as member.heartbeater:
        member._held = HeldPartitions(member.heartbeater)
        member._follow_claims()
        shared.write(ReleaseGroup("admin", GROUP, shared.now_ms + 60_000))
        until(lambda: len(member.heartbeater.to_release()) == 2, "the pause")
        member._follow_claims()
        assert released_positions(shared) == {0: (None, -1), 1: (None, -1)}


def test_a_watcher_that_hears_nothing_gets_a_new_reader_if_its_own_was_cut_off(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart of a lone broker may do that: all owners looked stale for ever."""
    log: Any = MemoryLog(shared)
    log.replace_cut_off = Mock()
    monkeypatch.setattr(claims_admin, "ClaimsLog", lambda *_, **__: log)
    monkeypatch.setattr(claims_admin, "SILENT_S", 1e-9)
    watcher = Watcher(Connection("b:1"), "my.claims")
    shared.write(ReleaseGroup("admin", GROUP, 0))
    assert (watcher.read_new(), log.replace_cut_off.call_count) == (True, 0)
    assert (watcher.read_new(), log.replace_cut_off.call_count) == (False, 1)


def test_a_pause_is_shown_with_the_whole_command_that_ends_it(capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = ClaimsSnapshot([], [], [PauseRow("my group", "admin", 9.0)])
    Console(width=240).print(tables(snapshot, "my.claims"))
    command = "`downstream claims release --claims my.claims --group 'my group' --end`"
    assert command in capsys.readouterr().out
