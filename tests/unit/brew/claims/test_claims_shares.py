"""How partitions are shared out among members, by group or by claim."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness.claims import MemoryLog, Shared, advance, beat, claim, member, release

from brew.claims import member as claims_member
from brew.claims.log import Item
from brew.claims.member import fair_counts, plan_claims, read_to_end
from brew.claims.messages import WHOLE_TOPIC, encode
from brew.claims.state import ClaimsView, OwnedPartition, Status, Table, snapshot_of
from brew.deadline import Deadline
from brew.errors import Refused


def owned_partitions(owners: str) -> dict[int, OwnedPartition]:
    """`a b! c? -`: partition 0 is a's, 1 was b's and is stale, of c nobody knows, 3 is nobody's."""
    state = {"!": Status.STALE, "?": Status.UNKNOWN}
    names = [None if one == "-" else one for one in owners.split()]
    return {
        p: OwnedPartition(one and one.rstrip("!?"), 7, state.get((one or "-")[-1], Status.FRESH), -1)
        for p, one in enumerate(names)
    }


@pytest.mark.parametrize(
    ("owners", "members", "how", "plans"),
    [
        ("a b -", "ab", "paused", {"a": ([], [0])}),
        ("a b -", "ab", "paused alone", {"a": ([], [0])}),
        ("a a a a a", "ab", "paused", {"a": ([], [0, 1, 2, 3, 4])}),
        ("a - b", "ab", "alone", {"a": ([1], [])}),
        # An owner that never said it is a member counts as one: its share is not dealt to the others.
        ("z - - -", "a", "share", {"a": ([1, 2], [])}),
        ("z -", "", "share", {"a": ([1], [])}),
        # A partition of a stale owner is free and makes no member; nobody gives it back, whatever name is beside it.
        ("gone! gone!", "a", "share", {"a": ([0, 1], [])}),
        ("a! a?", "a", "paused", {"a": ([], [1])}),
        ("a! a?", "a", "share", {"a": ([0], [])}),
        # At its share a member keeps all; one above, it gives the last. One more than another is even.
        ("a b", "ab", "share", {"a": ([], []), "b": ([], [])}),
        ("a b b a b", "ab", "share", {"a": ([], []), "b": ([], [])}),
        ("a a a b", "ab", "share", {"a": ([], [2])}),
        ("a a a a a", "ab", "share", {"a": ([], [3, 4])}),
        ("a - b -", "ab", "share", {"a": ([1], [])}),
        # Each member computes the same deal: no two claim the same.
        ("- a - - - -", "abc", "share", {"a": ([0], []), "b": ([2, 3], []), "c": ([4, 5], [])}),
    ],
)
def test_a_member_claims_what_is_due_to_it_and_gives_back_what_others_lack(
    owners: str, members: str, how: str, plans: dict[str, tuple[list[int], list[int]]]
) -> None:
    """A paused one claims nothing and gives all back; who does not share claims all that is free and keeps it."""
    settings = {"paused": "paused" in how, "share": "alone" not in how}
    assert {me: plan_claims(owned_partitions(owners), list(members), me, **settings) for me in plans} == plans


def test_what_does_not_divide_stays_with_those_that_hold_the_most() -> None:
    assert fair_counts({"a": 0, "b": 2, "c": 2}, 7) == {"b": 3, "a": 2, "c": 2}
    assert fair_counts({"a": 1}, 0) == {"a": 0}
    assert sum(fair_counts({"a": 9, "b": 0, "c": 1}, 10).values()) == 10


def test_partitions_that_come_to_the_topic_are_shared_too(shared: Shared) -> None:
    a, b = member(shared, "a", (0, 1)), member(shared, "b", (0, 1))
    advance(shared, 1.0, a, b)
    for one in (a, b):
        one.membership = replace(one.membership, partitions=(0, 1, 2, 3))
    advance(shared, 1.0, a, b)
    assert [len(one.held()) for one in (a, b)] == [2, 2]


def test_members_that_share_and_members_that_take_all_refuse_each_other(shared: Shared) -> None:
    """Neither sees the other's claims; once those are stale or given back, either way is open."""
    exclusive = member(shared, "a", (WHOLE_TOPIC,))
    advance(shared, 0.2, exclusive)
    with pytest.raises(Refused, match=r"'a' of group .* as a whole, and 'b' would take it divided"):
        member(shared, "b", (0, 1))
    exclusive.leave(Deadline(5))
    part = member(shared, "b", (0, 1))
    advance(shared, 0.2, part)
    with pytest.raises(Refused, match="divided, and 'c' would take it as a whole"):
        member(shared, "c", (WHOLE_TOPIC,))
    advance(shared, 2.5)
    member(shared, "c", (WHOLE_TOPIC,))


def folded(shared: Shared, until: int | None = None) -> Table:
    """All records applied one after another."""
    view = ClaimsView([Table()])
    for entry in shared.entries[0]:
        if until is None or entry.offset < until:
            view.apply(entry)
    return view.tables[0]


def snapshot(shared: Shared, until: int, until_told: int | None = None) -> None:
    """A snapshot of the records below ``until``; ``until_told``: it says that it ends there."""
    message = snapshot_of(folded(shared, until), "x")
    shared.append(Item(0, *encode(message if until_told is None else message._replace(until=until_told))))


def arrived(shared: Shared) -> Table:
    return read_to_end(MemoryLog(shared), Deadline(5)).tables[0]


def test_records_between_a_snapshot_and_the_window_are_read(monkeypatch: pytest.MonkeyPatch, shared: Shared) -> None:
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
    for number, message in enumerate((claim("a"), release("a", 0), claim("b"))):
        shared.now_ms += 100 * number
        shared.write(message)
    snapshot(shared, until=3)
    table = arrived(shared)
    assert (table.owners, table.clock) == (folded(shared).owners, folded(shared).clock)


@pytest.mark.parametrize("beyond", [0, 2])
def test_a_snapshot_that_tells_of_records_behind_itself_is_none(beyond: int, shared: Shared) -> None:
    """Its own offset is the last end that it can hold; with a later one records would be passed over."""
    shared.write(claim("a"))
    snapshot(shared, until=1, until_told=1 + beyond)
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
