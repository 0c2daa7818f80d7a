"""The director decides with workers that are played: who gets what, what comes back, and when it ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from harness.lease_play import Play, both, grants, heard

from brew.driver import leases as directing
from brew.errors import Refused
from brew.outcome import Outcome, Status
from brew.readers.direct.messages import outcome_message, released_message
from brew.settings import DirectSettings


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    play = Play(monkeypatch)
    yield play
    play.workers.closed = True
    play.stop.set()
    assert play.ended()


def test_partitions_are_spread_and_the_run_ends_when_all_have_reached_their_goals(play: Play) -> None:
    one, other = both(play)
    first, second = grants(one, 2), grants(other, 2)
    assert first.keys() | second.keys() == {0, 1, 2, 3}
    assert {grant.goal for grant in (*first.values(), *second.values())} == {100}
    for session, held in ((one, first), (other, second)):
        for partition in held:
            play.finishes(session, partition)
    for session in (one, other):
        heard(session, "end")
        play.says(session, None)
    assert play.ended()
    assert (play.shared.running, play.shared.progress.totals.enriched, play.workers.opened) == ({}, 400, 2)


def test_what_a_dead_worker_held_is_granted_to_another_and_exempt_from_crash_once(play: Play) -> None:
    one, other = both(play)
    lost = grants(one, 2)
    grants(other, 2)
    play.cluster.known |= dict.fromkeys(lost, 40)
    play.says(one, None)
    again = grants(other, 2)
    assert again.keys() == lost.keys()
    assert all(grant.exempt_from_crash and grant.start == 40 for grant in again.values())


def test_a_transaction_that_did_not_end_well_is_planned_again_from_kafkas_answer(play: Play) -> None:
    """After a pause, and from where the group stands by then."""
    one, other = both(play)
    partition = next(iter(grants(one, 2)))
    grants(other, 2)
    play.cluster.committed[partition] = 70
    began = time.monotonic()
    play.says(one, outcome_message(Outcome(partition, 0, 50, Status.FENCED, detail="a newer attempt")))
    play.says(one, released_message(partition, 0))
    again = grants(one, 1)[partition]
    assert (again.start, again.exempt_from_crash) == (70, False)
    assert time.monotonic() - began >= 0.05, "at once again would keep two pipelines in step"


@pytest.mark.parametrize("status", [Status.AHEAD, Status.ALREADY_DONE])
def test_where_a_transaction_found_the_group_is_not_forgotten_over_an_older_answer(play: Play, status: Status) -> None:
    """The next grant begins there, whatever the survey says: it may be told by a coordinator that is cut off."""
    one, other = both(play)
    partition = next(iter(grants(one, 2)))
    grants(other, 2)
    play.says(one, outcome_message(Outcome(partition, 0, 50, status, 60)))
    play.says(one, released_message(partition, 0))
    assert grants(one, 1)[partition].start == 60


def test_a_crash_on_purpose_calls_everyone_back_before_it_is_told(play: Play) -> None:
    """What still runs elsewhere counts for the number that the crash announces."""
    one, other = both(play)
    partition = next(iter(grants(one, 2)))
    grants(other, 2)
    play.says(one, outcome_message(Outcome(partition, 0, 50, Status.CRASHED, enriched=50)))
    for session in (one, other):
        heard(session, "end")
    assert play.stop.is_set()
    assert [outcome.enriched for outcome in play.shared.crashed] == [50]
    assert len(play.shared.running) == 3
    for session in (one, other):
        play.says(session, None)
    assert play.ended()
    assert play.shared.running == {}


def test_what_a_crash_leaves_is_told_before_nothing_runs_any_more(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies by itself as soon as nothing is running."""
    told: list[Outcome] = []
    told_at_the_end: dict[int, int] = {}

    class Running(dict[int, Any]):
        def pop(self, partition: int, *_: Any) -> Any:
            told_at_the_end.setdefault(partition, len(told))
            return super().pop(partition, None)

    one, two = both(play)
    crashing, other = grants(one, 2)
    monkeypatch.setattr(play.shared.view, "cycle", lambda _lane, outcomes, _seconds: told.extend(outcomes))
    monkeypatch.setattr(play.shared, "running", Running(play.shared.running))
    play.says(one, outcome_message(Outcome(crashing, 0, 50, Status.CRASHED, enriched=50)))
    play.says(one, outcome_message(Outcome(other, 0, 50, Status.COMMITTED, enriched=50)))
    play.says(one, released_message(other, 50))
    for session in (one, two):
        play.says(session, None)
    assert play.ended()
    assert {partition: told_at_the_end[partition] for partition in (crashing, other)} == {crashing: 1, other: 2}


def test_a_partition_moves_when_one_slot_has_two_and_the_other_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot that came late gets its share."""
    play = Play(monkeypatch, direct=DirectSettings(lease_s=1.0))
    one = play.worker(0)
    held = grants(one, 4)
    other = play.worker(1)
    released = heard(one, "release")["release"]
    assert released in held
    play.says(one, released_message(released, 30))
    play.cluster.committed[released] = play.cluster.known[released] = 30
    assert grants(other, 1)[released].start == 30
    play.stop.set()
    for session in (one, other):
        heard(session, "end")
        play.says(session, None)
    assert play.ended()


def test_a_job_that_can_run_no_worker_ends_the_run_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(monkeypatch)
    play.workers.broken = Refused("Spark's JVM has ended by itself")
    assert play.ended()
    assert [str(error) for error in play.errors] == ["Spark's JVM has ended by itself"]


def test_without_a_task_the_run_gives_up_when_its_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directing, "_SURVEY_INTERVAL_S", 0.05)
    play = Play(monkeypatch, patience_s=1.0)
    assert play.ended()
    assert "no Spark task has reported" in str(play.errors[0])
