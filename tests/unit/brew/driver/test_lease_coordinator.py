"""The lease coordinator with workers that are played: first round and later ones, hand-overs, failures, the end."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from harness.lease_coordinator import (
    FakeCluster,
    FakeConnection,
    FakeOwnership,
    FakeWorkers,
    LeaseRun,
    grants,
    next_message,
    run_context,
    two_workers,
    workers_with_grants,
)
from harness.waiting import until

from brew.connection import Connection
from brew.deadline import Deadline
from brew.driver import lease_coordinator, limits, work_planner
from brew.driver.lease_coordinator import lease_workers
from brew.driver.run_context import RunProgress
from brew.errors import DeadlineExceeded, Fatal, Refused
from brew.offsets import LogOffsets, OffsetRange
from brew.outcome import Outcome, Status
from brew.planner import PartitionFacts
from brew.readers.direct.lease_server import ReceivedMessage, WorkerSession
from brew.readers.direct.messages import outcome_message, released_message
from brew.settings import DirectSettings, PipelineSettings

Plays = Callable[..., LeaseRun]
_TURN_S = 0.05
"""The longest that the coordinator waits for a message before it looks around."""


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plays]:
    """Plays that end with the test; ``survey_s``, ``startup_s``: its interval, and its wait for the first workers."""
    plays_made: list[LeaseRun] = []
    monkeypatch.setattr(lease_coordinator, "_REPORT_INTERVAL_S", _TURN_S)

    def play(*cluster: Any, survey_s: float = 0.2, startup_s: float = 0.3, **more: Any) -> LeaseRun:
        monkeypatch.setattr(lease_coordinator, "_SURVEY_INTERVAL_S", survey_s)
        monkeypatch.setattr(lease_coordinator, "_STARTUP_WAIT_S", startup_s)
        plays_made.append(LeaseRun(monkeypatch, *cluster, **more))
        return plays_made[-1]

    yield play
    for one in plays_made:
        one.workers.closed = True
        one.stop.set()
        assert one.ended()
        assert one.cluster.closed


@pytest.fixture
def play(plays: Plays) -> LeaseRun:
    return plays()


def test_partitions_are_spread_and_the_run_ends_when_all_have_reached_their_goals(play: LeaseRun) -> None:
    worker, other, first, second = workers_with_grants(play)
    assert first.keys() | second.keys() == {0, 1, 2, 3}
    assert {grant.goal for grant in (*first.values(), *second.values())} == {100}
    for session, held in ((worker, first), (other, second)):
        for partition in held:
            play.finish(session, partition)
    run_ends(play, worker, other)
    assert (play.shared.running, play.shared.progress.totals.enriched, play.workers.opened) == ({}, 400, 2)


def test_a_worker_that_connects_while_the_run_ends_is_ended_too(plays: Plays) -> None:
    """A task that Spark started again may be late; its lease was renewed, and the drain never ended."""
    play = plays(FakeCluster(100, 100, 40, 100))
    worker = play.worker(0)
    play.finish(worker, *grants(worker, 1))
    assert next_message(worker, "end")
    late_worker = play.worker(1)
    play.send(worker, None)
    assert next_message(late_worker, "end")
    play.send(late_worker, None)
    assert play.ended()


def test_what_a_dead_worker_held_is_granted_to_another_and_exempt_from_crash_once(play: LeaseRun) -> None:
    worker, other, lost, _ = workers_with_grants(play)
    play.cluster.last_positions |= dict.fromkeys(lost, 40)
    play.send(worker, None)
    again = grants(other, 2)
    assert again.keys() == lost.keys()
    assert all(grant.exempt_from_crash and grant.start == 40 for grant in again.values())


def test_partitions_are_granted_again_when_their_records_belong_elsewhere(play: LeaseRun) -> None:
    """An output that got as many partitions as the input; leases that knew its old number went on by key."""
    worker, _, held, _ = workers_with_grants(play)
    assert {grant.targets.output_partition for grant in held.values()} == {-1}
    play.cluster.output_partition = 3
    released = [next_message(worker, "release")["release"] for _ in held]
    assert sorted(released) == sorted(held)
    for partition in released:
        play.send(worker, released_message(partition, 0))
    assert {grant.targets.output_partition for grant in grants(worker, 2).values()} == {3}


def test_a_transaction_that_did_not_end_well_is_planned_again_from_kafkas_answer(play: LeaseRun) -> None:
    """After a pause, and from where the group stands by then, which an older answer does not change."""
    worker, _, (partition, _), _ = workers_with_grants(play)
    for status in (Status.AHEAD, Status.ALREADY_DONE):
        play.send(worker, outcome_message(Outcome(partition, 0, 50, status, 60)))
        play.send(worker, released_message(partition, 0))
        assert grants(worker, 1)[partition].start == 60
        play.cluster.last_positions.clear()
    assert play.workers.worked_slots == [0, 0], "its slot's failures are over"
    play.cluster.committed[partition] = 70
    began = time.monotonic()
    play.send(worker, outcome_message(Outcome(partition, 0, 50, Status.FENCED, detail="a newer attempt")))
    play.send(worker, released_message(partition, 0))
    again = grants(worker, 1)[partition]
    assert (again.start, again.exempt_from_crash, len(play.workers.worked_slots)) == (70, False, 2)
    assert time.monotonic() - began >= 0.05, "at once again would keep two pipelines in step"


def test_a_failed_transaction_is_fenced_at_the_end_unless_it_is_attempted_again(play: LeaseRun) -> None:
    """Its abort may have had no answer: readers of the output would wait for its time-out."""
    worker, other, (partition, _), (another, _) = workers_with_grants(play)
    failure = Outcome(partition, 40, 50, Status.FAILED, detail="no answer")
    play.send(worker, outcome_message(failure))
    play.send(worker, released_message(partition, 40))
    grants(worker, 1)
    assert play.shared.lost == {}, "the new attempt fences it"
    play.send(other, outcome_message(replace(failure, partition=another)))
    until(lambda: play.shared.lost == {another: OffsetRange("in", another, 40, 50)}, "what may be open")
    play.stop.set()
    play.send(other, released_message(another, 40))
    run_ends(play, worker, other)
    assert play.shared.lost.keys() >= {another}


def test_a_failed_transaction_that_ends_the_run_is_fenced_too(plays: Plays) -> None:
    play, deadline = plays(patience_s=1.0), Deadline(10)
    worker, other, (partition, _), _ = workers_with_grants(play)
    while not play.workers.restarts_stopped and not deadline.expired():
        play.send(worker, outcome_message(Outcome(partition, 40, 50, Status.FAILED, detail="no answer")))
        time.sleep(0.05)
    play.send(worker, released_message(partition, 40))
    run_ends(play, worker, other)
    assert "last ended failed: no answer" in str(play.errors[0])
    assert play.shared.lost[partition] == OffsetRange("in", partition, 40, 50)


def test_a_crash_on_purpose_calls_everyone_back_before_it_is_told(play: LeaseRun) -> None:
    """What still runs elsewhere counts for the number that the crash announces."""
    worker, other, (partition, _), _ = workers_with_grants(play)
    play.send(worker, outcome_message(Outcome(partition, 0, 50, Status.CRASHED, enriched=50)))
    for session in (worker, other):
        next_message(session, "end")
    assert play.stop.is_set()
    assert [outcome.enriched for outcome in play.shared.crashed] == [50]
    assert len(play.shared.running) == 3
    for session in (worker, other):
        play.send(session, None)
    assert play.ended()
    assert play.shared.running == {}


def test_what_a_crash_leaves_is_told_before_nothing_runs_any_more(
    play: LeaseRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies by itself as soon as nothing is running."""
    reported: list[Outcome] = []
    reported_before_end: dict[int, int] = {}

    class Running(dict[int, Any]):
        def pop(self, partition: int, *_: Any) -> Any:
            reported_before_end.setdefault(partition, len(reported))
            return super().pop(partition, None)

    worker, idle_worker = two_workers(play)
    crashing, other = grants(worker, 2)
    monkeypatch.setattr(play.shared.view, "cycle", lambda _lane, outcomes, _seconds: reported.extend(outcomes))
    monkeypatch.setattr(play.shared, "running", Running(play.shared.running))
    play.send(worker, outcome_message(Outcome(crashing, 0, 50, Status.CRASHED, enriched=50)))
    play.send(worker, outcome_message(Outcome(other, 0, 50, Status.COMMITTED, enriched=50)))
    play.send(worker, released_message(other, 50))
    for session in (worker, idle_worker):
        play.send(session, None)
    assert play.ended()
    assert {partition: reported_before_end[partition] for partition in (crashing, other)} == {crashing: 1, other: 2}


def test_a_partition_moves_when_one_slot_has_two_and_the_other_none(plays: Plays) -> None:
    play = plays(direct=DirectSettings(lease_s=1.0), startup_s=0.0)
    worker = play.worker(0)
    held = grants(worker, 4)
    other = play.worker(1)
    released = next_message(worker, "release")["release"]
    assert released in held
    play.send(worker, released_message(released, 30))
    play.cluster.committed[released] = play.cluster.last_positions[released] = 30
    assert grants(other, 1)[released].start == 30


def test_a_job_that_can_run_no_worker_ends_the_run_with_its_reason_or_when_patience_ends(
    plays: Plays, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "_MAX_BACKOFF_S", 0.1)
    play = plays()
    play.workers.broken = Refused("Spark's JVM has ended by itself")
    assert play.ended()
    assert [str(error) for error in play.errors] == ["Spark's JVM has ended by itself"]
    for failure in (None, "ModuleNotFoundError: No module named 'rates'"):
        play = plays(patience_s=1.0, survey_s=0.05)
        play.workers.failure = failure
        assert play.ended()
        reason = failure or "the cluster has no free slot"
        assert str(play.errors[0]).endswith(f"no Spark task has reported: {reason}")


def test_workers_that_die_one_after_another_end_the_run_when_patience_ends(plays: Plays) -> None:
    """A record whose function takes its process with it: who gets its partition dies, others stay connected."""
    play = plays(FakeCluster(0, 100, 100, 100), patience_s=1.0)
    play.workers.failure = "the Python worker exited unexpectedly (crashed)"
    workers, deadline = [play.worker(slot) for slot in (0, 1)], Deadline(10)
    while not play.workers.restarts_stopped and not deadline.expired():
        for slot, worker in enumerate(workers):
            sent = cast("queue.Queue[Any]", worker.connection.sent)  # type: ignore[attr-defined]
            if any("grant" in sent.get() for _ in range(sent.qsize())):
                play.send(worker, None)
                workers[slot] = play.worker(slot)
        time.sleep(0.02)
    play.workers.closed = True
    assert play.ended()
    reason = "the worker in slot . has ended, which had partitions \\[0\\]: the Python worker exited unexpectedly"
    assert re.search(f"^no progress for 1 s .*; {reason}", str(play.errors[0]))


def hears_nothing(session: WorkerSession, seconds: float = 3 * _TURN_S) -> None:
    """Assert that this worker is told nothing for a while."""
    connection: Any = session.connection
    with pytest.raises(queue.Empty):
        pytest.fail(f"it was told {connection.sent.get(timeout=seconds)}")


def run_ends(play: LeaseRun, *sessions: WorkerSession) -> None:
    """The run sends its workers away, and ends when they are gone."""
    for session in sessions:
        next_message(session, "end")
        play.send(session, None)
    assert play.ended()
    assert play.cluster.closed


def test_each_grant_asks_whether_it_may_begin_anew(plays: Plays, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission covers one attempt; a known position that vanished since must not count as the first time."""
    cluster, checked = FakeCluster(None, 0, None, 7), list[int]()
    known = cluster.first_attempt
    monkeypatch.setattr(cluster, "first_attempt", lambda fact: checked.append(fact.partition) or known(fact))
    _, _, first, second = workers_with_grants(plays(cluster))
    granted = [(grant.first_time, grant.start) for _, grant in sorted((first | second).items())]
    assert granted == [(True, 0), (False, 0), (True, 0), (False, 7)]
    assert sorted(checked) == [0, 1, 2, 3]


def test_a_partition_without_a_position_is_granted_from_its_first_record(plays: Plays) -> None:
    """Its topic was recreated: where the old one had been read to says nothing, and would skip what comes first."""
    cluster = FakeCluster(None, 100, 100, 100)
    cluster.last_positions[0] = 40
    granted = grants(plays(cluster).worker(0), 1)[0]
    assert (granted.start, granted.first_time) == (0, True)


def worker_without_a_position(plays: Plays) -> tuple[LeaseRun, WorkerSession]:
    """A worker with the only partition that is not done, and no survey that is due by itself."""
    play = plays(FakeCluster(None, 100, 100, 100), survey_s=60.0)
    worker = play.worker(0)
    assert grants(worker, 1)[0].first_time
    return play, worker


def test_what_came_back_is_granted_by_a_new_answer_of_the_brokers_only(plays: Plays) -> None:
    """The old one says: no position yet. Behind a commit whose offset has vanished since, that doubles the output."""
    play, worker = worker_without_a_position(plays)
    cluster = play.cluster
    cluster.down = Fatal("survey: the brokers don't answer")
    play.send(worker, outcome_message(Outcome(0, 0, 50, Status.COMMITTED, -1, 50)))
    play.send(worker, outcome_message(Outcome(0, 50, 60, Status.OFFSET_GAP, -1)))
    play.send(worker, released_message(0, 50))
    hears_nothing(worker, 1.0)
    cluster.committed[0], cluster.down = 50, None
    again = grants(worker, 1)[0]
    assert (again.first_time, again.start) == (False, 50)


def test_what_a_dead_worker_held_is_granted_by_a_new_answer_too(plays: Plays) -> None:
    play, worker = worker_without_a_position(plays)
    other = play.worker(1)
    play.cluster.committed[0] = 30
    play.send(worker, None)
    again = grants(other, 1)[0]
    assert (again.first_time, again.start) == (False, 30)


def test_what_a_replaced_worker_held_is_granted_by_a_new_answer_too(plays: Plays) -> None:
    """Also if it has to rest after a failure: nothing else would ask for a new answer when the pause is over."""
    play, worker = worker_without_a_position(plays)
    play.cluster.committed[0] = 50
    play.send(worker, outcome_message(Outcome(0, 0, 50, Status.COMMITTED, -1, 50)))
    play.send(worker, outcome_message(Outcome(0, 50, 60, Status.FAILED)))
    again = grants(play.worker(0), 1)[0]
    assert (again.first_time, again.start) == (False, 50)


def test_a_following_run_grants_without_an_end(plays: Plays) -> None:
    play = plays(follow=True)
    worker, other, first, second = workers_with_grants(play)
    assert [grant.goal for grant in (first | second).values()] == [None] * 4
    play.stop.set()
    run_ends(play, worker, other)


def test_a_slots_new_worker_takes_the_place_of_the_one_before(play: LeaseRun) -> None:
    """Spark may start a task again before its dead connection is noticed; nobody else would grant what it held."""
    worker, other, held, _ = workers_with_grants(play)
    successor = play.worker(0)
    again = grants(successor, 2)
    assert again.keys() == held.keys()
    assert all(grant.exempt_from_crash for grant in again.values())
    one, its_successor = (cast("FakeConnection", session.connection) for session in (worker, successor))
    assert (one.closed, its_successor.closed) == (True, False), "if it lives, it would go on beside its successor"
    # What the dead one still says counts no more, least of all that it is gone.
    partition = next(iter(held))
    play.send(worker, outcome_message(Outcome(partition, 0, 100, Status.COMMITTED, 0, 100)))
    play.send(worker, released_message(partition, 100))
    play.send(worker, None)
    hears_nothing(successor)
    assert (play.shared.progress.totals.enriched, len(play.shared.running)) == (0, 4)
    play.stop.set()
    run_ends(play, successor, other)


def test_a_partition_that_could_not_go_on_rests_and_one_that_was_called_back_does_not(play: LeaseRun) -> None:
    """Whatever broke it may break it at once again; each time the pause is longer."""
    worker, _, (partition, _), _ = workers_with_grants(play)
    began = time.monotonic()
    play.send(worker, released_message(partition, 0, "Fatal: read of in[0]: it can't be read"))
    assert grants(worker, 1).keys() == {partition}
    assert time.monotonic() - began >= 0.05
    play.send(worker, released_message(partition, 20))
    play.cluster.last_positions[partition] = 20
    assert grants(worker, 1)[partition].start == 20
    assert not play.shared.progress.totals.enriched


def test_no_second_partition_is_called_back_before_the_first_one_was_left(plays: Plays) -> None:
    """And it is told so once: its transaction may take a while, and lags change meanwhile."""
    play = plays(direct=DirectSettings(lease_s=1.0), survey_s=0.05, startup_s=0.0)
    worker = play.worker(0)
    grants(worker, 4)
    other = play.worker(1)
    released = next_message(worker, "release")["release"]
    play.cluster.committed[released] = 99
    hears_nothing(worker, 0.8)
    play.cluster.committed[released] = 0
    play.send(worker, released_message(released, 0))
    grants(other, 1)
    assert next_message(worker, "release")["release"] != released, "four to none: two are to move"


def test_a_partition_that_another_driver_is_due_is_called_back_and_handed_over(plays: Plays) -> None:
    """Only what is ours is granted, and what is held is not idle."""
    ownership = FakeOwnership(0, 1)
    play = plays(ownership=ownership, survey_s=60.0)
    worker, other = two_workers(play)
    held = {**dict.fromkeys(grants(worker, 1), worker), **dict.fromkeys(grants(other, 1), other)}
    assert held.keys() == {0, 1}
    play.cluster.committed[2] = 33
    ownership.partitions = {1, 2}
    assert next_message(held[0], "release")["release"] == 0
    assert grants(held[0], 1)[2].start == 33, "where its last owner left it"
    ownership.partitions = {2}
    assert next_message(held[1], "release")["release"] == 1
    hears_nothing(held[0])
    assert ownership.idle[0] is False
    play.send(held[0], released_message(0, 10))
    until(lambda: ownership.idle[0], "it may be handed over")
    hears_nothing(held[0])
    hears_nothing(held[1])


@pytest.mark.parametrize("unanswered", [True, False])
@pytest.mark.parametrize("committed_here", [True, False])
def test_a_partition_that_an_outsider_moved_back_is_granted_from_there(
    plays: Plays, committed_here: bool, unanswered: bool
) -> None:
    """Its worker has nothing to read, so without a call it would not look where the group stands until news comes."""
    cluster = FakeCluster(60, 60, 60, 60)
    play = plays(cluster, follow=True, survey_s=0.05)
    worker, other, first, second = workers_with_grants(play)
    held = dict.fromkeys(first, worker) | dict.fromkeys(second, other)
    if unanswered:  # it commits, and is moved, while the driver can't look
        cluster.down = Fatal("no answer")
    if committed_here:
        cluster.committed[0] = 80
        play.send(held[0], outcome_message(Outcome(0, 60, 80, Status.COMMITTED, 60, 20)))
    looks = len(cluster.surveys)
    until(lambda: len(cluster.surveys) > looks + 2, "looks at what stands still or goes on")
    hears_nothing(held[0])
    moved_to = 70 if committed_here else 20
    cluster.committed[0] = cluster.last_positions[0] = moved_to
    cluster.down = None
    assert next_message(held[0], "release")["release"] == 0
    play.send(held[0], released_message(0, 80 if committed_here else 60))
    assert grants(held[0], 1)[0].start == moved_to
    hears_nothing(worker)
    hears_nothing(other)


def test_too_many_rejected_end_the_run_after_everyone_was_called_back(plays: Plays) -> None:
    play = plays(max_rejected=0.5)
    worker, other, (partition, _), _ = workers_with_grants(play)
    play.send(worker, outcome_message(Outcome(partition, 0, 50, Status.COMMITTED, 0, enriched=500, rejected=500)))
    play.send(worker, outcome_message(Outcome(partition, 50, 60, Status.COMMITTED, 0, enriched=0, rejected=1)))
    for session in (worker, other):
        next_message(session, "end")
        assert play.workers.restarts_stopped, "or a slot would be started again"
        play.send(session, None)
    assert play.ended()
    assert [str(error).partition(":")[0] for error in play.errors] == ["too-many-rejected"]
    assert play.shared.progress.totals.rejected == 501, "what is out is told"


def test_a_second_error_while_the_run_ends_keeps_nobody_from_finishing(play: LeaseRun) -> None:
    """What others committed by then was not counted, and their transactions were fenced."""
    worker, other, failing, (partition, _) = workers_with_grants(play)
    for number in failing:
        play.send(worker, outcome_message(Outcome(number, 0, 50, Status.TRANSFORM_FAILED, detail=f"in {number}")))
    next_message(other, "end")
    play.send(other, outcome_message(Outcome(partition, 0, 50, Status.COMMITTED, 0, enriched=50)))
    for session in (worker, other):
        play.send(session, None)
    assert play.ended()
    assert [str(error) for error in play.errors] == [f"in {next(iter(failing))}"]
    assert play.shared.progress.totals.enriched == 50


def test_the_first_worker_waits_for_the_others(plays: Plays) -> None:
    """Or it would get all, and give half of them back one after another."""
    play = plays(startup_s=60.0)
    worker = play.worker(0)
    hears_nothing(worker)
    other = play.worker(1)
    assert (len(grants(worker, 2)), len(grants(other, 2))) == (2, 2)


@pytest.mark.parametrize(("slots", "share"), [(1, 4), (2, 2), (3, 2), (4, 1)])
def test_a_worker_is_told_how_many_partitions_its_read_ahead_is_for(plays: Plays, slots: int, share: int) -> None:
    """Rounded up: less read ahead than there is memory for, never more."""
    play = plays(startup_s=60.0)
    play.workers.most_slots = slots
    sessions = [play.worker(slot) for slot in range(slots)]
    assert {next_message(session, "grant")["share"] for session in sessions} == {share}


def test_no_more_slots_are_opened_than_there_is_work_for(plays: Plays) -> None:
    """A Spark task that holds nothing keeps a core from others."""
    play = plays(FakeCluster(100, 100, 40, 100))
    worker = play.worker(0)
    assert grants(worker, 1).keys() == {2}
    assert play.workers.opened == 1


def test_a_run_is_not_drained_before_all_partitions_were_seen(plays: Plays) -> None:
    """One whose position has to be looked for is not done because it is not told."""
    cluster = FakeCluster(100, 100, 100, 40)
    cluster.withheld, cluster.complete = {3}, False
    play = plays(cluster, survey_s=0.05)
    until(lambda: len(cluster.surveys) > 5, "some looks")
    assert play.thread.is_alive()
    cluster.withheld = set()
    worker = play.worker(0)
    assert grants(worker, 1).keys() == {3}


def test_brokers_that_do_not_answer_are_asked_less_and_less(plays: Plays, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, messages = FakeCluster(), list[str]()
    cluster.down = Fatal("survey: nobody is there")
    monkeypatch.setattr(RunProgress, "unanswered", lambda _board, why: messages.append(why))
    play = plays(cluster, patience_s=1.0)
    assert play.ended()
    assert "survey: survey: nobody is there" in str(play.errors[0])
    assert messages == ["survey: nobody is there"] * len(cluster.surveys)
    assert len(cluster.surveys) < 20


def test_a_partition_that_upstream_holds_back_is_told_and_given_up_on(plays: Plays) -> None:
    cluster = FakeCluster(60, 100, 100, 100)
    cluster.stable = 60
    play = plays(cluster, blocked_patience_s=1.0, survey_s=0.05)
    assert play.ended()
    assert "[0] of in were held back by an open upstream transaction" in str(play.errors[0])
    assert list(cluster.blocked) == [0]  # type: ignore[call-overload]


def test_a_transaction_is_told_when_it_begins(play: LeaseRun, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(play.shared.progress, "begun", begun.put)
    worker, _, (partition, _), _ = workers_with_grants(play)
    play.send(worker, {"begun": partition})
    assert begun.get(timeout=5) == partition


class Reading:
    """A coordinator whose only worker holds partition 0 and has read nothing; time passes only between its surveys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.readable = 1000.0, True
        self.cluster = FakeCluster()
        monkeypatch.setattr(work_planner, "PartitionSurvey", lambda _shared: self.cluster)
        monkeypatch.setattr(lease_coordinator, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(lease_coordinator, "scan", self._scan)
        settings = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
        self.leases = lease_coordinator.LeaseCoordinator(run_context(settings), FakeWorkers())
        self.connects()

    def connects(self) -> None:
        connection: Any = FakeConnection()
        self.session = WorkerSession(0, connection)
        self.hears({"hello": {}})
        self.leases._assignments.assign(0, 0)

    def hears(self, message: dict[str, Any] | None) -> None:
        self.leases._handle(ReceivedMessage(self.session, message))

    def _scan(self, _connection: object, topic: str, ranges: object, *_: object, **__: object) -> Iterator[list[str]]:
        assert (topic, ranges) == ("in", {0: (0, 60)})
        if not self.readable:
            raise DeadlineExceeded("scan of in: no record for 5 s")
        yield ["a record"]

    def surveys(self, times: int, partition: int = 0, every_s: float = 1.0) -> None:
        for _ in range(times):
            self.now += every_s
            self.leases._check_reading([PartitionFacts("in", partition, "id", None, LogOffsets(0, 60, 100))])

    def survey_fails(self) -> None:
        self.cluster.down = Fatal("survey: no answer")
        self.leases._survey_if_due()


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    return Reading(monkeypatch)


def test_workers_that_reach_the_driver_and_not_the_brokers_end_the_run(reading: Reading) -> None:
    """Their client library tries for ever and tells nobody, and the driver's surveys succeed."""
    reading.surveys(240)  # --patience and two transaction time-outs
    with pytest.raises(Refused, match=r"read no record of partitions \[0\] of in for 241 s, .* advertised\.listeners"):
        reading.surveys(1)


@pytest.mark.parametrize(
    "sign", [{"begun": 0}, outcome_message(Outcome(0, 0, 9, Status.FENCED))], ids=["it has begun", "it has ended"]
)
def test_a_worker_that_has_read_once_may_take_as_long_as_it_likes(reading: Reading, sign: dict[str, Any]) -> None:
    """A function may need an hour for its records; a worker that replaces this one has to read first, too."""
    reading.surveys(240)
    reading.hears(sign)
    reading.surveys(10_000)
    reading.hears(None)
    reading.connects()
    with pytest.raises(Refused, match="for 241 s"):
        reading.surveys(241)


def test_a_worker_without_records_or_that_reports_why_it_reads_none_does_not_end_the_run(reading: Reading) -> None:
    """Others hold what has records, a reason was told, or the driver reaches no broker either: then it begins anew."""
    reading.surveys(240)
    reading.surveys(1, partition=1)
    reading.surveys(240)
    reading.hears(released_message(0, 0, "Denied: read of in[0]"))
    reading.leases._assignments.assign(0, 0)
    reading.surveys(240)
    reading.survey_fails()
    reading.surveys(240)
    reading.readable = False
    reading.surveys(1)
    reading.readable = True
    reading.surveys(240)
    with pytest.raises(Refused, match="for 241 s"):
        reading.surveys(1)


def test_a_driver_that_was_suspended_has_not_waited(reading: Reading) -> None:
    reading.surveys(200)
    reading.surveys(1, every_s=3600.0)
    reading.surveys(38)
    with pytest.raises(Refused, match="for 241 s"):
        reading.surveys(1)


@pytest.mark.parametrize(
    ("conf", "bound", "host"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"spark.driver.host": "driver"}, "driver", "driver"),
        ({"spark.driver.host": "driver", "spark.driver.bindAddress": "0.0.0.0"}, "0.0.0.0", "driver"),
    ],
)
def test_workers_are_told_the_drivers_name(
    monkeypatch: pytest.MonkeyPatch, conf: dict[str, str], bound: str, host: str
) -> None:
    """In a pod the name is a service's, to which nothing can be bound."""
    from brew.readers.direct import executors  # noqa: PLC0415 - Spark is slow to import
    from brew.spark import session  # noqa: PLC0415 - as above

    context, servers = Mock(getConf=lambda: conf), list[tuple[str, float]]()
    monkeypatch.setattr(lease_coordinator, "LeaseServer", lambda *address: servers.append(address) or Mock())
    monkeypatch.setattr(lease_coordinator, "transformation", Mock())
    monkeypatch.setattr(lease_coordinator, "for_executors", lambda made, _pickled: made)
    monkeypatch.setattr(session, "start_context", Mock(return_value=context))
    settings = PipelineSettings(Connection("nowhere:1"), "in", "out", "dead", "group")
    workers: Any = lease_workers(run_context(settings))
    assert isinstance(workers, executors.SparkWorkers)
    assert (servers, workers._settings.host) == ([(bound, settings.direct.lease_s)], host)
    assert workers._context is context
