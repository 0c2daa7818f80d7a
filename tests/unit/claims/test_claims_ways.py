"""Members whose topic grows, and members of which some share a topic and some take it as a whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from harness.claims import GROUP, MemoryLog, Shared

from brew.claims.member import Member, Membership
from brew.claims.messages import WHOLE_TOPIC
from brew.deadline import Deadline
from brew.errors import Refused

INTERVAL_S = 1.0


def member(shared: Shared, client: str, partitions: tuple[int, ...] = (0, 1)) -> Member:
    made = Member(MemoryLog(shared), Membership(client, GROUP, "orders", partitions, INTERVAL_S), shared.now)
    made.join(Deadline(5))
    return made


def pass_by(shared: Shared, seconds: float, *turning: Member) -> None:
    for _ in range(round(seconds * 10)):
        shared.now_ms += 100
        for one in turning:
            one.turn(Deadline(5))
            one.release_partitions({p: one.holdings[p] for p in one.give_back_wanted}, Deadline(5))


def test_partitions_that_come_to_the_topic_are_shared_too() -> None:
    shared = Shared()
    a, b = member(shared, "a"), member(shared, "b")
    pass_by(shared, 1.0, a, b)
    for one in (a, b):
        one.who = replace(one.who, partitions=(0, 1, 2, 3))
    pass_by(shared, 1.0, a, b)
    assert [len(one.held()) for one in (a, b)] == [2, 2]


def test_members_that_share_and_members_that_take_all_refuse_each_other() -> None:
    """Neither sees the other's claims; once those are stale or given back, either way is open."""
    shared = Shared()
    whole = member(shared, "a", (WHOLE_TOPIC,))
    pass_by(shared, 0.2, whole)
    with pytest.raises(Refused, match=r"'a' of group .* as a whole, and 'b' would take it divided"):
        member(shared, "b")
    whole.leave(Deadline(5))
    part = member(shared, "b")
    pass_by(shared, 0.2, part)
    with pytest.raises(Refused, match="divided, and 'c' would take it as a whole"):
        member(shared, "c", (WHOLE_TOPIC,))
    pass_by(shared, 2 * INTERVAL_S + 0.5)
    member(shared, "c", (WHOLE_TOPIC,))
