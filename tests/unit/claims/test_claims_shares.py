"""Fair shares of partitions, and the corners of the fold that only one comparison decides."""

from __future__ import annotations

import pytest
from harness.claims import GROUP, INTERVAL, START_MS, TOPIC, beat, claim, fold, release, seat

from brew.claims.member import Plan, fair_counts, plan_claims
from brew.claims.messages import MAX_INTERVAL_MS, ReleaseGroup
from brew.claims.state import PARTIAL_MS, SNAPSHOT_MS, OwnedPartition, RecordEffect, Status, Table


def world(**owners: str | None) -> dict[int, OwnedPartition]:
    """`p0="a"`: partition 0 is a's; None: nobody's."""
    return {int(p[1:]): OwnedPartition(one, 7, Status.FRESH, 0, -1) for p, one in owners.items()}


def test_a_paused_member_claims_nothing_and_gives_all_back() -> None:
    view = world(p0="a", p1="b", p2=None)
    assert plan_claims(view, ["a", "b"], "a", paused=True, share=True) == Plan([], [0])
    assert plan_claims(view, ["a", "b"], "a", paused=True, share=False) == Plan([], [0])


def test_who_does_not_share_claims_all_that_is_free_and_gives_nothing_back() -> None:
    assert plan_claims(world(p0="a", p1=None, p2="b"), ["a", "b"], "a", paused=False, share=False) == Plan([1], [])


def test_an_owner_that_never_said_it_is_a_member_counts_as_one() -> None:
    """Its share is not dealt to the others."""
    assert plan_claims(world(p0="z", p1=None, p2=None, p3="z"), ["a"], "a", paused=False, share=True) == Plan(
        [1, 2], []
    )
    assert plan_claims(world(p0="z", p1=None), [], "a", paused=False, share=True) == Plan([1], [])


def test_a_partition_of_a_stale_owner_is_free_and_makes_no_member() -> None:
    stale = OwnedPartition("gone", 3, Status.STALE, 5000, -1)
    assert plan_claims({0: stale, 1: stale}, ["a"], "a", paused=False, share=True) == Plan([0, 1], [])


def test_nobody_gives_back_more_than_it_has_too_much() -> None:
    """At its share a member keeps all; one above, it gives the last."""
    assert plan_claims(world(p0="a", p1="b"), ["a", "b"], "a", paused=False, share=True) == Plan([], [])
    assert plan_claims(world(p0="a", p1="a", p2="a", p3="b"), ["a", "b"], "a", paused=False, share=True) == Plan(
        [], [2]
    )
    assert plan_claims(world(p0="a", p1=None, p2="b", p3=None), ["a", "b"], "a", paused=False, share=True) == Plan(
        [1], []
    )


def test_what_does_not_divide_stays_with_those_that_hold_the_most() -> None:
    """By name where they hold the same."""
    assert fair_counts({"a": 0, "b": 2, "c": 2}, 7) == {"b": 3, "a": 2, "c": 2}
    assert fair_counts({"a": 1}, 0) == {"a": 0}


def test_a_table_from_the_middle_of_a_log_is_partial_until_the_longest_interval_has_passed_twice() -> None:
    """One read from the begin never is."""
    assert PARTIAL_MS == 2 * MAX_INTERVAL_MS
    assert not Table().partial
    table = Table(begin=1)
    assert table.partial
    fold(table, (0, beat("a", -1, partition=None)), (PARTIAL_MS - 1, beat("a", -1, partition=None)))
    assert table.partial
    fold(table, (PARTIAL_MS, beat("a", -1, partition=None)))
    assert not table.partial


def test_only_a_token_from_before_the_begin_is_adopted() -> None:
    """A claim at the begin or behind it was read; -1 is no token."""
    for token, answer in (
        (-1, RecordEffect.LATE),
        (0, RecordEffect.ADOPTED),
        (99, RecordEffect.ADOPTED),
        (100, RecordEffect.LATE),
    ):
        assert fold(Table(begin=100), (0, beat("a", token))) == [answer]


def test_an_owner_that_was_adopted_counts_from_its_heartbeat_with_its_own_interval() -> None:
    table = Table(begin=100)
    long = beat("a", 40)._replace(interval_ms=5000)
    assert fold(table, (10, long), (9000, claim("b")), (10_011, claim("b"))) == [
        RecordEffect.ADOPTED,
        RecordEffect.HELD,
        RecordEffect.GRANTED,
    ]
    again = Table(begin=100)
    assert fold(again, (10, beat("a", 40, resume=True)), (11, beat("a", 100))) == [
        RecordEffect.RESUMED,
        RecordEffect.REFRESHED,
    ]


def test_a_heartbeat_is_adopted_in_place_of_an_owner_that_is_stale_or_gave_back() -> None:
    """Not of one that is heard."""
    for at, first, wanted in (
        (1, claim("b"), RecordEffect.LATE),
        (2 * INTERVAL, claim("b"), RecordEffect.LATE),
        (2 * INTERVAL + 1, claim("b"), RecordEffect.ADOPTED),
    ):
        table = Table(begin=100)
        assert fold(table, (0, first), (at, beat("a", 40)))[-1] is wanted
    table = Table(begin=100)
    assert fold(table, (0, claim("b")), (1, release("b", 100)), (2, beat("a", 40)))[-1] is RecordEffect.ADOPTED


def test_a_snapshot_is_due_an_hour_after_the_first_record_whatever_the_clock_did() -> None:
    """A clock that goes back takes the last snapshot's time with it."""
    table = Table()
    assert not table.snapshot_due
    fold(table, (0, claim("a")), (-5000, claim("a")), (SNAPSHOT_MS - 5001, claim("a")))
    assert not table.snapshot_due
    fold(table, (SNAPSHOT_MS - 5000, claim("a")))
    assert table.snapshot_due


def test_a_member_that_was_heard_in_the_future_was_heard_when_the_clock_went_back() -> None:
    """Else it would count as present until that time comes."""
    table = Table()
    fold(table, (60_000, beat("a", -1, partition=None)), (0, beat("b", -1, partition=None)))
    assert table.members[GROUP, TOPIC]["a"].heard == START_MS
    fold(table, (500, beat("c", -1, partition=None)))
    assert table.members[GROUP, TOPIC]["a"].heard == START_MS


def test_a_record_of_the_same_millisecond_turns_no_clock_back(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    fold(table, (5, claim("a")))
    monkeypatch.setattr(Table, "_turn_back", lambda _self, _time: pytest.fail("turned back"))
    assert fold(table, (5, claim("b"))) == [RecordEffect.HELD]


def test_a_member_that_leaves_takes_only_itself() -> None:
    """Of its own group and topic; one that never came leaves without a trace."""
    table = Table()
    fold(table, (0, beat("a", -1, partition=None)), (1, beat("b", -1, partition=None)))
    fold(table, (2, release("a", -1, partition=None)), (3, release("z", -1, partition=None)))
    assert set(table.members[GROUP, TOPIC]) == {"b"}


def test_a_pause_that_ends_at_the_records_own_time_is_none() -> None:
    """One millisecond more is one."""
    for until, wanted in ((0, {}), (1, {GROUP})):
        table = Table()
        fold(table, (0, ReleaseGroup("admin", GROUP, START_MS + until)))
        assert set(table.pauses) == set(wanted)


def test_a_granted_claim_keeps_the_position_of_the_owner_before() -> None:
    table = Table()
    fold(table, (0, claim("a")), (1, beat("a", 0, 12)), (2, release("a", 0, 12)), (3, claim("b")))
    assert (seat(table).owner, seat(table).token, seat(table).position) == ("b", 3, 12)
