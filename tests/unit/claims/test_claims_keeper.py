"""A member in a thread of its own: what it says it holds, when it falls silent, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from harness.claims import GROUP, MemoryLog, Shared
from harness.programs import until

from brew.claims.heartbeater import Heartbeater
from brew.claims.log import Entry
from brew.claims.member import Membership
from brew.claims.state import ClaimsView, Table
from brew.errors import Refused


@contextmanager
def keeping(shared: Shared, *, healthy: list[bool] | None = None) -> Iterator[Heartbeater]:
    """Partitions 0 and 1, kept with intervals of a second of the test's clock."""
    says = healthy or [True]
    membership = Membership("a", GROUP, "orders", (0, 1), 1.0)
    with Heartbeater(lambda: MemoryLog(shared), membership, healthy=lambda: says[0], now=shared.now) as keeper:
        until(lambda: len(keeper.held()) == 2, "both partitions")
        yield keeper


def told(shared: Shared) -> dict[int, tuple[str | None, int]]:
    """Owner and position of each partition, as the log has them."""
    world = ClaimsView([Table()])
    for entry in shared.entries[0]:
        world.apply(entry)
    return {place[2]: (seat.owner, seat.position) for place, seat in world.tables[0].seats.items()}


def test_a_keeper_whose_work_hangs_falls_silent_and_is_sure_of_nothing_two_intervals_later() -> None:
    """The last sure millisecond and the first that is none; no record is written meanwhile."""
    shared, healthy = Shared(), [True]
    with keeping(shared, healthy=healthy) as keeper:
        healthy[0] = False
        until(lambda: keeper.trouble == "the work hangs", "its silence")
        written, sure = len(shared.entries[0]), min(one.confirmed_until for one in keeper.held().values())
        shared.now_ms = round(sure * 1000) - 1
        assert sorted(keeper.held()) == [0, 1]
        shared.now_ms += 1
        assert keeper.held() == {}
        assert len(shared.entries[0]) == written


def test_what_is_left_is_released_at_the_position_that_was_told_last() -> None:
    """Whoever comes next goes on there, at once."""
    shared = Shared()
    with keeping(shared) as keeper:
        held = keeper.held()
        keeper.progress({0: replace(held[0], position=70)})
        keeper.progress({1: replace(held[1], position=71), 0: replace(held[0], position=75)})
    assert told(shared) == {0: (None, 75), 1: (None, 71)}
    assert keeper.held() == {}


def test_a_position_told_under_an_earlier_claim_is_not_told_again() -> None:
    """The partition was given back and claimed anew: its next owner's work is not set back, nor ahead."""
    shared = Shared()
    with keeping(shared) as keeper:
        old = keeper.held()[0]
        keeper.progress({0: replace(old, position=99)})
        keeper.release_partitions({0: replace(old, position=40)})
        until(lambda: 0 in keeper.held() and keeper.held()[0].token != old.token, "another claim")
        assert keeper.held()[0].position == 40
    assert told(shared)[0] == (None, 40)


def test_a_log_that_was_made_again_ends_the_keeper_where_the_work_asks() -> None:
    """Nothing is held any more, and nobody goes on as if it were."""
    shared = Shared()
    with keeping(shared) as keeper:
        shared.entries[0] = list[Entry]()
        shared.now_ms += 600
        with pytest.raises(Refused, match="made again"):
            until(lambda: keeper.held() is None, "the failure")
        keeper.release_partitions({})
    assert told(shared) == {}, "what came too late counts for nothing"
