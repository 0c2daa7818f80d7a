"""What the director remembers of a partition is given up when a survey says otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from harness.lease_play import Play, both, grants

from brew.driver.leases import Assignments
from brew.driver.progress import ProgressView, RunProgress
from brew.offsets import Committed, LogOffsets
from brew.planner import PartitionFacts


def roster() -> Assignments:
    shared: Any = SimpleNamespace(goals={0: 10, 1: 10}, progress=RunProgress(), view=ProgressView(), running={})
    return Assignments(shared)


def surveyed(one: Assignments, *positions: int | None) -> None:
    log = LogOffsets(0, 10, 10)
    facts = [
        PartitionFacts("in", p, "id", None if at is None else Committed(at, ""), log) for p, at in enumerate(positions)
    ]
    one.surveyed(facts, all_of_them=True)


def test_a_drain_is_not_over_where_an_outsider_moved_a_position_back_behind_its_goal() -> None:
    """The other reader looks at each plan anew; this one said that it was done."""
    one = roster()
    surveyed(one, 10, 0)
    assert one.free(0.0) == {1}
    surveyed(one, 4, 10)
    assert not one.drained()
    assert (one.free(0.0), one.unfinished()) == ({0}, 1)
    one.assign(0, 0)
    one.released(0, 10)
    surveyed(one, 10, 10)
    assert one.drained()


def test_what_a_worker_reached_counts_before_the_next_survey() -> None:
    """A drain ends with its last transaction."""
    one = roster()
    surveyed(one, 0, 10)
    one.assign(0, 0)
    surveyed(one, 4, 10)
    assert not one.drained()
    one.released(0, 10)
    assert one.drained()


def test_each_grant_asks_whether_it_may_begin_without_a_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A permission covers one attempt, and the scout knows which one."""
    play, asked = Play(monkeypatch), list[int]()
    monkeypatch.setattr(
        play.cluster, "first_attempt", lambda fact: asked.append(fact.partition) or fact.partition == 2, raising=False
    )
    one, other = both(play)
    given = grants(one, 2) | grants(other, 2)
    assert {p: grant.first_time for p, grant in given.items()} == {0: False, 1: False, 2: True, 3: False}
    assert sorted(asked) == [0, 1, 2, 3]
    play.workers.closed = True
    play.stop.set()
    assert play.ended()
