"""The consume loop without brokers: what waits, what is given back, and when a drain is over."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from unittest.mock import Mock

import pytest

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused, Retriable, UsageError
from brew.kafka.group_consumer import NOWHERE, Polled
from brew.kafka.topics import Topic
from brew.offsets import Committed, LogOffsets
from downstream.consume import loop as consuming
from downstream.consume.handler import (
    AssignedPartition,
    Handler,
    HandlerContext,
    LoopSettings,
    NotOwned,
    PartitionBatch,
    RetryLater,
)
from downstream.consume.loop import Loop


@dataclass
class FakeMember:
    """Remembers what the loop asks of it."""

    paused: set[int] = field(default_factory=set)
    seeks: list[Mapping[int, int]] = field(default_factory=list)
    reports: list[tuple[dict[int, int], bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pause, self.resume = self.paused.update, self.paused.difference_update
        self.topic_grew = Mock()

    def all_owned(self) -> bool:
        return True

    def seek(self, positions: Mapping[int, int]) -> None:
        self.seeks.append(dict(positions))

    def report(self, positions: Mapping[int, int], _metadata: str, *, wait: Deadline | None = None) -> None:
        self.reports.append((dict(positions), wait is not None))

    def close(self, _deadline: Deadline) -> bool:
        return True


class FakeHandler(Handler):
    """Starts at 5, fails as told, remembers the rest."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.handled: list[PartitionBatch] = []
        self.calls: list[object] = []
        self.ticks: list[frozenset[int]] = []

    def assigned(self, assignments: Sequence[AssignedPartition], _deadline: Deadline) -> Mapping[int, int]:
        self._fail()
        return {assignment.partition: 5 for assignment in assignments}

    def handle(self, slices: Sequence[PartitionBatch], context: HandlerContext) -> None:
        self._fail()
        self.handled += slices
        context.report({one.partition: one.until for one in slices})

    def _fail(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error

    def revoked(self, partitions: Collection[int], _deadline: Deadline) -> None:
        self.calls.append(("revoked", list(partitions)))

    def lost(self, partitions: Collection[int]) -> None:
        self.calls.append(("lost", list(partitions)))

    def tick(self, context: HandlerContext) -> None:
        self.ticks.append(context.partitions)

    def close(self, _deadline: Deadline) -> None:
        self.calls.append("closed")


@pytest.fixture
def handler() -> FakeHandler:
    return FakeHandler()


@pytest.fixture
def loop(handler: FakeHandler, monkeypatch: pytest.MonkeyPatch) -> Loop:
    settings = LoopSettings(Connection("nowhere"), "g", "t", patience_s=0.05, settle_s=0.01)
    loop = Loop(settings, handler, threading.Event())
    loop._member = FakeMember()
    loop._topic, loop._topic_checked_at = Topic("t", "id", 4, 1), math.inf
    described = [AssignedPartition("t", "id", p, None, 0, 10) for p in range(4)]
    monkeypatch.setattr(loop, "_describe_assigned", lambda numbers, _deadline: [described[p] for p in sorted(numbers)])
    return loop


def _polled(until: int = 7) -> dict[int, Polled]:
    return {1: Polled([], until)}


def _round(loop: Loop, polled: dict[int, Polled]) -> None:
    loop._round(loop._slices(polled), Deadline(9))


def _retry(loop: Loop) -> None:
    """The wait of partition 1 is over."""
    loop._progress[1].retry_at = Deadline(1e-9)
    loop._retry(Deadline(9))


def _messages_of(loop: Loop) -> list[str]:
    """The loop waits for a minute; returns what it tells."""
    loop._settings = replace(loop._settings, patience_s=60)
    messages: list[str] = []
    loop._tell = messages.append
    return messages


def _lose_patience(loop: Loop) -> None:
    while not loop._progress[1].give_up_at.expired():
        pass


@pytest.mark.parametrize(("last_stable", "goal"), [(1000, 10), (8, 8)])
def test_a_drain_ends_where_it_was_to_end_though_its_partition_waited_meanwhile(
    loop: Loop, monkeypatch: pytest.MonkeyPatch, last_stable: int, goal: int
) -> None:
    """A store that fails again and again while orders come in must not move the end away each time."""
    loop.assigned([1])
    described = [AssignedPartition("t", "id", 1, None, 0, last_stable)]
    monkeypatch.setattr(loop, "_describe_assigned", lambda _numbers, _deadline: described)
    loop._postpone([1], RetryLater("the store is away"))
    _retry(loop)
    for until, drained in ((goal - 1, False), (goal, True)):
        _round(loop, _polled(until))
        assert loop._drained() == drained


def test_a_partition_whose_log_was_out_of_reach_ends_where_it_is_first_seen_to_end(
    loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = [AssignedPartition("t", "id", 1, None, 0, 9)]
    monkeypatch.setattr(loop, "_describe_assigned", Mock(side_effect=[DeadlineExceeded("no answer"), described]))
    assert loop.assigned([1]) == {1: NOWHERE}
    _retry(loop)
    for until, drained in ((8, False), (9, True)):
        _round(loop, _polled(until))
        assert loop._drained() == drained


def test_a_slice_begins_where_the_last_one_ended_and_nothing_is_handed_out_twice(
    loop: Loop, handler: FakeHandler
) -> None:
    assert loop.assigned([1]) == {1: 5}
    for until in (7, 7, 6, 10):
        _round(loop, {**_polled(until), 2: Polled([], 9)})
    assert [(one.partition, one.start, one.until) for one in handler.handled] == [(1, 5, 7), (1, 7, 10)]
    assert loop._drained()


@pytest.mark.parametrize("error", [RetryLater("busy", 0.001), NotOwned("late")])
def test_later_pauses_and_then_asks_for_the_position_again(loop: Loop, handler: FakeHandler, error: Exception) -> None:
    loop.assigned([1])
    handler.error = error
    _round(loop, _polled())
    loop._pause_waiting()
    member = loop._member
    assert member.paused == {1}
    _round(loop, _polled())  # what was fetched before the pause is not handed out
    assert handler.handled == []
    assert not loop._drained()
    _retry(loop)
    assert (member.seeks, member.paused) == ([{1: 5}], set())
    _round(loop, _polled())
    assert len(handler.handled) == 1


def test_patience_has_an_end_that_work_pushes_away(loop: Loop, handler: FakeHandler) -> None:
    """Also the end of a quiet log: a store that was away an hour ago, and is again, was not away all the time."""
    loop.assigned([1])
    handler.error = RetryLater("busy", 0.001)
    _round(loop, _polled())
    _lose_patience(loop)
    handler.error = RetryLater("still busy", 0.001)
    with pytest.raises(Refused, match="still busy"):
        _retry(loop)
    handler.error, loop._progress[1].retry_at = None, None
    _round(loop, _polled())
    assert loop._progress[1].give_up_at is None
    handler.error = RetryLater("busy", 1e-9)
    loop._turn(_polled(9))
    loop._turn({})
    assert loop._progress[1].give_up_at is not None
    loop._turn({1: Polled([], 5)})
    assert loop._progress[1].give_up_at is None


def test_a_reported_position_is_progress(loop: Loop) -> None:
    """A handler that works in the background may wait for its workers for longer than the patience lasts."""
    loop.assigned([1, 2])
    loop._postpone([1, 2], RetryLater("busy", 1e-9))
    _lose_patience(loop)
    loop._report({1: 3, 7: 1})
    loop._postpone([1], RetryLater("busy", 1e-9))
    with pytest.raises(Refused, match=r"t\[2\] made no progress"):
        loop._postpone([2], RetryLater("busy", 1e-9))


def test_a_wait_is_told_once_and_again_only_when_it_changes_or_lasts(loop: Loop, handler: FakeHandler) -> None:
    """A store that is away is asked twice a second; hundreds of equal lines would hide the others."""
    messages = _messages_of(loop)
    loop.assigned([1])
    for text in ("away", "away", "busy", "busy"):
        handler.error = RetryLater(text, 1e-9)
        loop._turn(_polled())
    assert messages == ["partitions [1] wait: away", "partitions [1] wait: busy"]
    loop._waiting_again = Deadline(1e-9)
    handler.error = RetryLater("busy", 1e-9)
    loop._turn(_polled())
    assert messages[2:] == ["partitions [1] wait: busy"]


def test_partitions_that_wait_in_turns_are_told_once_each(loop: Loop) -> None:
    """Two that failed at different times are retried at different times; and a member may wait without any."""
    messages = _messages_of(loop)
    loop.assigned([1, 2])
    for partition in (1, 2, 1, 2):
        loop._postpone([partition], RetryLater("away"))
    assert messages == ["partitions [1] wait: away", "partitions [2] wait: away"]
    loop._postpone([], RetryLater("away"))
    loop._postpone([], RetryLater("away"))
    assert messages[2:] == ["this member waits: away"]


def test_what_was_fetched_while_a_partition_waited_is_dropped_even_if_its_wait_ends_in_that_turn(
    loop: Loop, handler: FakeHandler
) -> None:
    """Those records lie behind the batch that failed: handed out from the old position, that batch would be skipped."""
    loop.assigned([1])
    handler.error = RetryLater("busy", 1e-9)
    loop._turn({1: Polled([], 7)})
    loop._turn({1: Polled([], 9)})  # polled before the pause, when the delay was over already
    assert loop._member.seeks == [{1: 5}]
    assert handler.handled == []
    assert loop._progress[1].position == 5


def test_a_turn_has_one_deadline_however_long_its_parts_take(
    loop: Loop, handler: FakeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking a partition over again uses up the time in which the others' batch is surely ours."""
    now, leases = [0.0], []
    monkeypatch.setattr(loop, "_poll_deadline", lambda: Deadline(48, lambda: now[0]))
    monkeypatch.setattr(handler, "handle", lambda _slices, context: leases.append(context))
    loop.assigned([1, 2])
    loop._progress[2].retry_at = Deadline(1e-9)

    def slowly(assignments: Sequence[AssignedPartition], deadline: Deadline) -> Mapping[int, int]:
        now[0] = 47
        assert not deadline.expired()
        return {assignment.partition: 5 for assignment in assignments}

    monkeypatch.setattr(handler, "assigned", slowly)
    loop._turn(_polled())
    leases[0].check(1)
    now[0] = 48
    with pytest.raises(NotOwned):
        leases[0].check(1)


@pytest.fixture
def reached(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> FakeMember:
    """The loop reaches its brokers; its member gets partition 1 from the group."""
    for name in ("reach", "admin"):
        monkeypatch.setattr(consuming, name, Mock())
    monkeypatch.setattr(consuming.topics, "describe_one", lambda *_: Topic("t", "id", 4, 1))
    member = loop._member
    monkeypatch.setattr(loop, "_make_member", lambda: member)
    member.join = lambda listener: listener.assigned([1])
    member.close = Mock()
    return member


def test_a_drain_reads_to_its_goal_and_says_what_it_did(loop: Loop, handler: FakeHandler, reached: FakeMember) -> None:
    """Each turn has its tick, also one without records."""
    reached.poll = Mock(side_effect=[{}, {1: Polled([], 7)}, {1: Polled([Mock()], 10)}])
    result = loop.run()
    assert (result.positions, result.batches, result.records, result.rebalances) == ({1: 10}, 2, 1, 1)
    assert (handler.ticks, result.seconds > 0) == ([frozenset({1})] * 3, True)
    assert (handler.calls, reached.close.called) == ([("revoked", [1]), "closed"], True)


def test_a_loop_that_fails_leaves_its_group_and_closes_its_handler(
    loop: Loop, handler: FakeHandler, reached: FakeMember
) -> None:
    """Else the others wait for its session to end, and a store for its connection; nothing is read of no partition."""
    reached.poll = Mock(side_effect=OSError("no disk"))
    with pytest.raises(OSError, match="no disk"):
        loop.run()
    assert (handler.calls, reached.close.called) == ([("revoked", [1]), "closed"], True)
    handler.calls.clear()
    loop._settings = replace(loop._settings, partitions=(3, 4, -1))
    with pytest.raises(Refused, match=r"^t has partitions 0 to 3, not \[4, -1\]$"):
        loop.run()
    assert handler.calls == ["closed"]


def test_a_turn_ends_before_the_group_may_give_the_partitions_to_others(loop: Loop) -> None:
    """A fifth of the interval is left to undo work in progress."""
    assert 0 < loop._poll_deadline().budget_s <= 0.8 * loop._settings.max_poll_interval_s


def test_a_handler_is_told_for_which_topic_its_offset_was_committed(
    loop: Loop, handler: FakeHandler, topics_now: dict[str, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, the position of a topic that was deleted and recreated would be one of its successor."""
    monkeypatch.setattr(loop, "_describe_assigned", partial(Loop._describe_assigned, loop))
    monkeypatch.setattr(consuming, "leaderless", lambda *_: [])
    monkeypatch.setattr(consuming.offsets, "log_offsets", lambda *_: dict.fromkeys((1, 2, 3), LogOffsets(3, 9, 10)))
    known = {1: Committed(5, "topic-id=other"), 2: Committed(6, ""), 3: None}
    monkeypatch.setattr(consuming.offsets, "committed_by", lambda *_: known)
    monkeypatch.setattr(handler, "assigned", assigned := Mock(return_value={1: 5, 2: 6, 3: 3}))
    assert topics_now
    loop.assigned([1, 2, 3])
    places = [(1, 5, "other"), (2, 6, None), (3, None, None)]
    described = [AssignedPartition("t", "id", p, at, 3, 9, of, at, end=10) for p, at, of in places]
    assert assigned.call_args.args[0] == described


def test_a_revoked_partition_is_reported_before_it_leaves_and_a_lost_one_never(
    loop: Loop, handler: FakeHandler
) -> None:
    """Who has lost a partition tells nobody where it stands."""
    loop.assigned([1, 2])
    _round(loop, {1: Polled([], 7), 2: Polled([], 8)})
    loop.lost([2])
    loop._report_due = Deadline(1e-9)
    _round(loop, {})
    loop.revoked([1])
    assert loop._member.reports == [({1: 7}, False), ({1: 7}, True)]
    assert handler.calls == [("lost", [2]), ("revoked", [1])]
    loop.revoked([1])
    assert len(handler.calls) == 2


@pytest.mark.parametrize("how", ["revoked", "left"])
def test_a_position_that_was_sent_before_is_sent_again_before_its_partition_leaves(loop: Loop, how: str) -> None:
    """A commit without an answer may have been refused, as in a rebalance: the next owner repeated all behind it."""
    loop.assigned([1, 2])
    loop._report_due = Deadline(1e-9)
    _round(loop, {1: Polled([], 7), 2: Polled([], 8)})
    loop.revoked([1]) if how == "revoked" else loop._leave()
    sent = {1: 7} if how == "revoked" else {1: 7, 2: 8}
    assert loop._member.reports == [({1: 7, 2: 8}, False), (sent, True)]


def test_positions_of_idle_partitions_are_committed_anew(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without group assignment brokers delete them after a week, and `call` repeated the whole topic at its restart."""
    of = [(1, 3, None), (2, None, None), (3, 4, "a topic that was deleted")]
    described = [AssignedPartition("t", "id", p, 3, 0, 10, of_id, reported=reported) for p, reported, of_id in of]
    monkeypatch.setattr(loop, "_describe_assigned", lambda _numbers, _deadline: described)
    loop.assigned([1, 2, 3])
    for polled, reports in (({}, [({1: 3}, False)]), (_polled(7), [({1: 7}, False)])):
        loop._member.reports.clear()
        loop._report_due = loop._renew_due = Deadline(1e-9)
        _round(loop, polled)
        loop._report_due = Deadline(1e-9)
        _round(loop, {})
        assert loop._member.reports[-1:] == reports
    loop.assigned([1])
    assert loop._reported == {1: 7}, "what was reported since is not set back"


def test_a_member_without_partitions_waits_a_moment_before_it_calls_itself_drained(loop: Loop) -> None:
    """A cooperative group gives them in a second step, and gives out anew what was lost, perhaps to the same member."""
    assert not loop._drained()
    began = loop._settled
    loop.assigned([])
    assert loop._settled is not began, "the moment begins with what was assigned last"
    now = [0.0]
    loop._settled = Deadline(3, lambda: now[0])
    now[0] = 2.9
    assert not loop._drained()
    now[0] = 3.0
    assert loop._drained()


def test_a_drain_that_lost_its_partitions_is_not_drained_until_the_group_has_assigned_them(loop: Loop) -> None:
    """It exited with 0, as if all had been read, when the brokers were away for longer than a session."""
    messages = _messages_of(loop)
    loop.assigned([1])
    loop.lost([1])
    loop._settled = Deadline(1e-9)
    assert not loop._drained()
    assert messages == ["partitions [1] were lost: this member was not heard for long, and others may own them"]
    loop.assigned([])
    loop._settled = Deadline(1e-9)
    assert loop._drained(), "others own them all"
    loop.lost([1])
    loop._regain_by = Deadline(1e-9)
    with pytest.raises(Refused, match=r"lost its partitions of t, and for 60 s \(--patience-s\).* it continues where"):
        loop._drained()


def test_a_drain_by_claims_waits_while_a_partition_has_no_owner(loop: Loop) -> None:
    """A paused group, or a claims topic that is out of reach: nobody works on what is left."""
    loop.assigned([])
    loop._settled = Deadline(1e-9)
    loop._member.all_owned = lambda: False
    assert not loop._drained()


def test_a_session_as_long_as_the_poll_interval_is_refused() -> None:
    with pytest.raises(UsageError, match="--session-timeout-s"):
        LoopSettings(Connection("nowhere"), "g", "t", max_poll_interval_s=10, session_timeout_s=10)


@pytest.mark.parametrize("error", [DeadlineExceeded("locate: no answer"), Retriable("offsets of t: no leader")])
def test_brokers_that_are_away_in_a_take_over_are_waited_for(
    loop: Loop, handler: FakeHandler, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Nobody knows where the partition stands: nothing of it is handed out until they tell, and then from there."""
    messages = _messages_of(loop)
    answer = loop._describe_assigned
    monkeypatch.setattr(loop, "_describe_assigned", Mock(side_effect=error))
    assert loop.assigned([1]) == {1: NOWHERE}
    assert not loop._drained()
    _round(loop, _polled())
    assert handler.handled == []
    assert messages == [f"partitions [1] wait: their offsets can't be read: {error}"]
    monkeypatch.setattr(loop, "_describe_assigned", answer)
    _retry(loop)
    assert loop._member.seeks == [{1: 5}]
    _round(loop, _polled())
    assert [one.start for one in handler.handled] == [5]


def test_the_patience_with_brokers_that_stay_away_has_an_end(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_describe_assigned", Mock(side_effect=DeadlineExceeded("locate: no answer")))
    loop.assigned([1])
    _lose_patience(loop)
    with pytest.raises(Refused, match=r"t\[1\] made no progress for 0.05 s \(--patience-s\): their offsets can't"):
        _retry(loop)


@pytest.fixture
def topics_now(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> dict[str, Topic]:
    """What the brokers say of the topic; the loop is to ask them at its next turn."""
    topics_now = {"t": Topic("t", "id", 4, 1)}
    monkeypatch.setattr(consuming.topics, "describe", lambda *_: topics_now)
    loop._admin, loop._topic_checked_at = None, -math.inf
    return topics_now


def test_a_topic_that_is_made_again_while_the_loop_reads_is_refused_before_its_records_are_handled(
    loop: Loop, handler: FakeHandler, topics_now: dict[str, Topic]
) -> None:
    """The client goes on at the old position: 40 of the new topic's records were skipped, the others handled."""
    loop.assigned([1])
    loop._turn(_polled(7))
    loop._turn(_polled(8))
    topics_now["t"] = Topic("t", "another", 4, 1)
    loop._topic_checked_at = -math.inf
    with pytest.raises(Refused, match=r"^topic-recreated: t had id id when"):
        loop._turn(_polled(9))
    assert [one.until for one in handler.handled] == [7, 8]


@pytest.mark.parametrize("partitions", [None, (1, 2)])
def test_a_member_is_told_that_its_topic_grew_unless_it_has_named_partitions(
    loop: Loop, topics_now: dict[str, Topic], partitions: tuple[int, ...] | None
) -> None:
    """Members by claim never claimed new partitions: nobody read them until all were started again."""
    loop._settings = replace(loop._settings, partitions=partitions)
    topics_now["t"] = Topic("t", "id", 6, 1)
    for _ in range(2):
        loop._topic_checked_at = -math.inf
        loop._turn({})
    assert [call.args for call in loop._member.topic_grew.mock_calls] == ([] if partitions else [(6,)])


def test_brokers_that_do_not_tell_of_the_topic_are_asked_again_by_a_new_client(
    loop: Loop, handler: FakeHandler, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop._admin, loop._topic_checked_at = None, -math.inf
    monkeypatch.setattr(consuming, "admin", lambda _connection: "a new client")
    monkeypatch.setattr(consuming.topics, "describe", Mock(side_effect=DeadlineExceeded("no answer")))
    loop.assigned([1])
    loop._turn(_polled(7))
    assert (loop._admin, len(handler.handled)) == ("a new client", 1)
    assert loop._topic_checked_at > time.monotonic() - 60
    loop._turn(_polled(8))
    assert consuming.topics.describe.call_count == 1, "an outage leaves time for what is fetched"


def test_a_topic_that_is_made_again_while_the_loop_runs_is_refused_at_the_next_assignment(
    loop: Loop, topics_now: dict[str, Topic], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka gives its partitions out again: an old position in the new log would skip what lies before it."""
    monkeypatch.setattr(loop, "_describe_assigned", partial(Loop._describe_assigned, loop))
    monkeypatch.setattr(consuming, "leaderless", lambda *_: [])
    monkeypatch.setattr(consuming.offsets, "log_offsets", lambda *_: {1: LogOffsets(0, 10, 10)})
    monkeypatch.setattr(consuming.offsets, "committed_by", lambda *_: {1: Committed(5, "topic-id=id")})
    assert loop.assigned([1]) == {1: 5}
    topics_now["t"] = Topic("t", "another", 4, 1)
    with pytest.raises(Refused, match="topic-recreated: t had id id when this program started, and has id another now"):
        loop.assigned([1])
    topics_now.clear()
    assert loop.assigned([1]) == {1: 5}, "who can't tell now is asked about the log"


@pytest.mark.usefixtures("topics_now")
@pytest.mark.parametrize("follow", [True, False])
def test_a_partition_without_a_leader_waits_and_the_others_are_consumed(
    loop: Loop, handler: FakeHandler, monkeypatch: pytest.MonkeyPatch, *, follow: bool
) -> None:
    """A query of offsets fails as a whole if it includes one: a program that was restarted consumed nothing."""
    without = [2]
    loop._settings = replace(loop._settings, follow=follow)
    monkeypatch.setattr(loop, "_describe_assigned", partial(Loop._describe_assigned, loop))
    monkeypatch.setattr(consuming, "leaderless", lambda *_: without)
    monkeypatch.setattr(
        consuming.offsets, "log_offsets", lambda _, __, asked, ___: dict.fromkeys(asked, LogOffsets(0, 9, 9))
    )
    monkeypatch.setattr(consuming.offsets, "committed_by", lambda *_: dict.fromkeys((1, 2)))
    assert loop.assigned([1, 2]) == {1: 5, 2: NOWHERE}
    _round(loop, {**_polled(9), 2: Polled([], 9)})
    assert [(one.partition, one.until) for one in handler.handled] == [(1, 9)]
    assert not loop._drained()
    loop._progress[2].give_up_at = loop._progress[2].retry_at = Deadline(1e-9)
    with nullcontext() if follow else pytest.raises(Refused, match=r"no progress .*: no leader for t\[2\]; start a"):
        loop._retry(Deadline(9))
    without.clear()
    loop._progress[2].retry_at = Deadline(1e-9)
    loop._retry(Deadline(9))
    assert loop._member.seeks[-1] == {2: 5}
