"""How partitions are shared out among members, by group or by claim."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness.claims import (
    GROUP,
    START_MS,
    TOPIC,
    MemoryLog,
    Shared,
    beat,
    claim,
    fold,
    member,
    pass_by,
    release,
    words,
)

from brew.claims import member as claims_member
from brew.claims.log import Item
from brew.claims.member import Plan, fair_counts, plan_claims, read_to_end
from brew.claims.messages import MAX_INTERVAL_MS, WHOLE_TOPIC, ReleaseGroup, encode
from brew.claims.state import (
    PARTIAL_MS,
    SNAPSHOT_MS,
    ClaimsView,
    OwnedPartition,
    RecordEffect,
    Status,
    Table,
    snapshot_of,
)
from brew.deadline import Deadline
from brew.errors import Refused


def world(**owners: str | None) -> dict[int, OwnedPartition]:
    """`p0="a"`: partition 0 is a's; None: nobody's."""
    return {int(p[1:]): OwnedPartition(one, 7, Status.FRESH, 0, -1) for p, one in owners.items()}


def shared_out(view: dict[int, OwnedPartition], *members: str) -> Plan:
    """What member a does, together with these."""
    return plan_claims(view, members, "a", paused=False, share=True)


def test_a_paused_member_claims_nothing_and_gives_all_back() -> None:
    view = world(p0="a", p1="b", p2=None)
    assert plan_claims(view, ["a", "b"], "a", paused=True, share=True) == Plan([], [0])
    assert plan_claims(view, ["a", "b"], "a", paused=True, share=False) == Plan([], [0])


def test_who_does_not_share_claims_all_that_is_free_and_gives_nothing_back() -> None:
    assert plan_claims(world(p0="a", p1=None, p2="b"), ["a", "b"], "a", paused=False, share=False) == Plan([1], [])


def test_an_owner_that_never_said_it_is_a_member_counts_as_one() -> None:
    """Its share is not dealt to the others."""
    assert shared_out(world(p0="z", p1=None, p2=None, p3=None), "a") == Plan([1, 2], [])
    assert shared_out(world(p0="z", p1=None)) == Plan([1], [])


def test_a_partition_of_a_stale_owner_is_free_and_makes_no_member() -> None:
    stale = OwnedPartition("gone", 3, Status.STALE, 5000, -1)
    assert shared_out({0: stale, 1: stale}, "a") == Plan([0, 1], [])


def test_nobody_gives_back_more_than_it_has_too_much() -> None:
    """At its share a member keeps all; one above, it gives the last."""
    assert shared_out(world(p0="a", p1="b"), "a", "b") == Plan([], [])
    assert shared_out(world(p0="a", p1="a", p2="a", p3="b"), "a", "b") == Plan([], [2])
    assert shared_out(world(p0="a", p1=None, p2="b", p3=None), "a", "b") == Plan([1], [])


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


def test_an_owner_that_was_adopted_counts_from_its_heartbeat_with_its_own_interval() -> None:
    table = Table(begin=100)
    long = beat("a", 40)._replace(interval_ms=5000)
    assert words(table, (10, long), (9000, claim("b")), (10_011, claim("b"))) == "adopted held granted"
    again = Table(begin=100)
    assert words(again, (10, beat("a", 40, resume=True)), (11, beat("a", 100))) == "resumed refreshed"


def test_a_heartbeat_is_adopted_in_place_of_an_owner_that_gave_back() -> None:
    records = (0, claim("b")), (1, release("b", 100)), (2, beat("a", 40))
    assert words(Table(begin=100), *records) == "granted released adopted"


def test_a_snapshot_is_due_an_hour_after_the_first_record_whatever_the_clock_did(table: Table) -> None:
    """A clock that goes back takes the last snapshot's time with it."""
    assert not table.snapshot_due
    fold(table, (0, claim("a")), (-5000, claim("a")), (SNAPSHOT_MS - 5001, claim("a")))
    assert not table.snapshot_due
    fold(table, (SNAPSHOT_MS - 5000, claim("a")))
    assert table.snapshot_due


def test_a_member_that_was_heard_in_the_future_was_heard_when_the_clock_went_back(table: Table) -> None:
    """Else it would count as present until that time comes."""
    fold(table, (60_000, beat("a", -1, partition=None)), (0, beat("b", -1, partition=None)))
    assert table.members[GROUP, TOPIC]["a"].last_heartbeat_ms == START_MS
    fold(table, (500, beat("c", -1, partition=None)))
    assert table.members[GROUP, TOPIC]["a"].last_heartbeat_ms == START_MS


def test_a_record_of_the_same_millisecond_turns_no_clock_back(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    fold(table, (5, claim("a")))
    monkeypatch.setattr(Table, "_clock_went_back", lambda _self, _time: pytest.fail("turned back"))
    assert fold(table, (5, claim("b"))) == [RecordEffect.HELD]


def test_a_member_that_leaves_takes_only_itself(table: Table) -> None:
    """Of its own group and topic; one that never came leaves without a trace."""
    fold(table, (0, beat("a", -1, partition=None)), (1, beat("b", -1, partition=None)))
    fold(table, (2, release("a", -1, partition=None)), (3, release("z", -1, partition=None)))
    assert set(table.members[GROUP, TOPIC]) == {"b"}


def test_a_pause_that_ends_at_the_records_own_time_is_none() -> None:
    """One millisecond more is one."""
    for until, wanted in ((0, {}), (1, {GROUP})):
        table = Table()
        fold(table, (0, ReleaseGroup("admin", GROUP, START_MS + until)))
        assert set(table.pauses) == set(wanted)


def test_partitions_that_come_to_the_topic_are_shared_too(shared: Shared) -> None:
    a, b = member(shared, "a", (0, 1)), member(shared, "b", (0, 1))
    pass_by(shared, 1.0, a, b)
    for one in (a, b):
        one.membership = replace(one.membership, partitions=(0, 1, 2, 3))
    pass_by(shared, 1.0, a, b)
    assert [len(one.held()) for one in (a, b)] == [2, 2]


def test_members_that_share_and_members_that_take_all_refuse_each_other(shared: Shared) -> None:
    """Neither sees the other's claims; once those are stale or given back, either way is open."""
    whole = member(shared, "a", (WHOLE_TOPIC,))
    pass_by(shared, 0.2, whole)
    with pytest.raises(Refused, match=r"'a' of group .* as a whole, and 'b' would take it divided"):
        member(shared, "b", (0, 1))
    whole.leave(Deadline(5))
    part = member(shared, "b", (0, 1))
    pass_by(shared, 0.2, part)
    with pytest.raises(Refused, match="divided, and 'c' would take it as a whole"):
        member(shared, "c", (WHOLE_TOPIC,))
    pass_by(shared, 2.5)
    member(shared, "c", (WHOLE_TOPIC,))


def folded(shared: Shared, until: int | None = None) -> Table:
    """All records applied one after another."""
    view = ClaimsView([Table()])
    for entry in shared.entries[0]:
        if until is None or entry.offset < until:
            view.apply(entry)
    return view.tables[0]


def snapshot(shared: Shared, until: int, told: int | None = None) -> None:
    """A snapshot of the records below ``until``; ``told`` says that it holds another end."""
    made = snapshot_of(folded(shared, until), "x")
    shared.append(Item(0, *encode(made if told is None else made._replace(until=told))))


def arrived(shared: Shared) -> Table:
    return read_to_end(MemoryLog(shared), Deadline(5)).tables[0]


def test_records_between_a_snapshots_end_and_the_window_are_read_too(
    monkeypatch: pytest.MonkeyPatch, shared: Shared
) -> None:
    """Others wrote while it was taken; two of them lie before the last three records."""
    monkeypatch.setattr(claims_member, "WINDOW", 3)
    shared.write(claim("a", 0))
    shared.write(claim("a", 1))
    shared.write(claim("b", 2))
    snapshot(shared, until=1)
    shared.write(beat("a", 0, 5))
    shared.write(beat("a", 1, 6, partition=1))
    assert arrived(shared).owners == folded(shared).owners
    assert len(arrived(shared).owners) == 3


def test_what_a_snapshot_holds_is_not_applied_again(shared: Shared) -> None:
    """The clock would go back with it, and owners would be stale before their time."""
    for at, message in enumerate((claim("a"), release("a", 0), claim("b"))):
        shared.now_ms += 100 * at
        shared.write(message)
    snapshot(shared, until=3)
    table = arrived(shared)
    assert (table.owners, table.clock) == (folded(shared).owners, folded(shared).clock)


@pytest.mark.parametrize("beyond", [0, 2])
def test_a_snapshot_that_tells_of_records_behind_itself_is_none(beyond: int, shared: Shared) -> None:
    """Its own offset is the last end that it can hold; with a later one records would be passed over."""
    shared.write(claim("a"))
    snapshot(shared, until=1, told=1 + beyond)
    shared.write(claim("b", 1))
    assert arrived(shared).owners == folded(shared).owners
    assert len(arrived(shared).owners) == 2


def test_reading_goes_on_at_the_logs_end_although_no_record_stands_before_it(shared: Shared) -> None:
    """Compaction and markers leave gaps: a table that stood lower would call what is written next a shrunk log."""

    class Gapped(MemoryLog):
        def bounds(self, deadline: Deadline) -> dict[int, tuple[int, int]]:
            return {p: (first, end + 5) for p, (first, end) in super().bounds(deadline).items()}

    shared.write(claim("a"))
    assert read_to_end(Gapped(shared), Deadline(5)).ends() == {0: 6}
