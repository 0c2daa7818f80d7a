"""What a driver that shares does at each turn, with a keeper that the test plays; its plan, patience and options."""

from __future__ import annotations

import threading
import time
from collections.abc import Container, Mapping
from typing import Any

import pytest
from harness.pipeline import Here

from brew.claims.member import Holding, Membership
from brew.driver import coordination, run
from brew.driver.limits import GiveUpPolicy
from brew.driver.ownership import ALL_PARTITIONS, ClaimedOwnership, FullOwnership, IsIdle, listed
from brew.driver.run import PreflightResult
from brew.errors import Fatal, Refused, UsageError
from brew.kafka.transaction import TransactionSettings
from brew.offsets import OffsetRange
from brew.planner import Plan
from brew.settings import PipelineSettings
from pipeline.__main__ import run_command, settings_of
from pipeline.submit import same_options


def settings(*options: str) -> PipelineSettings:
    return settings_of(run_command.make_context("run", ["--master", "none", *options]).params)


class Keeper:
    """Holds what the test says."""

    def __init__(self) -> None:
        self.membership = Membership("me", "g", "orders", tuple(range(8)))
        self.holdings: dict[int, Holding] = {}
        self.wanted: frozenset[int] = frozenset()
        self.given: list[int] = []
        self.failure: Refused | None = None

    def holds(self, **tokens: int) -> None:
        self.holdings = {int(name[1:]): Holding(token, -1, 0.0) for name, token in tokens.items()}

    def held(self) -> dict[int, Holding]:
        if self.failure is not None:
            raise self.failure
        return dict(self.holdings)

    def to_release(self) -> frozenset[int]:
        return self.wanted

    def release_partitions(self, done: Mapping[int, Holding]) -> None:
        self.given += done
        self.holdings = {p: one for p, one in self.holdings.items() if p not in done}


@pytest.fixture
def played() -> tuple[Keeper, ClaimedOwnership, list[str]]:
    notes: list[str] = []
    keeper: Any = Keeper()
    return keeper, ClaimedOwnership(keeper, notes.append), notes


def idle(_partition: int) -> bool:
    return True


def busy(_partition: int) -> bool:
    return False


def inside(found: Container[int]) -> list[int]:
    return [partition for partition in range(8) if partition in found]


def test_a_driver_works_on_what_it_holds_and_tells_each_change_once(
    played: tuple[Keeper, ClaimedOwnership, list[str]],
) -> None:
    keeper, owned, notes = played
    assert inside(owned.refresh(idle)) == []
    keeper.holds(p0=1, p1=2, p2=3, p6=4)
    assert inside(owned.refresh(idle)) == inside(owned.refresh(idle)) == [0, 1, 2, 6]
    keeper.holds(p0=1, p1=2)
    assert inside(owned.refresh(idle)) == [0, 1]
    assert notes == ["me works on 4 of 8 partitions: 0-2, 6", "me works on 2 of 8 partitions: 0-1; lost 2, 6"]


def test_what_others_are_due_is_begun_no_more_and_given_back_once_it_is_idle(
    played: tuple[Keeper, ClaimedOwnership, list[str]],
) -> None:
    keeper, owned, notes = played
    keeper.holds(p0=1, p1=2)
    owned.refresh(idle)
    keeper.wanted = frozenset({1})
    assert (inside(owned.refresh(busy)), keeper.given) == ([0], [])
    assert (inside(owned.refresh(idle)), keeper.given) == ([0], [1])
    assert notes[-1] == "me works on 1 of 8 partitions: 0; gave back 1"


def test_a_partition_that_was_lost_and_claimed_anew_is_another_one(
    played: tuple[Keeper, ClaimedOwnership, list[str]],
) -> None:
    keeper, owned, notes = played
    keeper.holds(p0=1)
    owned.refresh(idle)
    keeper.holds(p0=9)
    assert inside(owned.refresh(idle)) == [0]
    assert notes[-1].endswith("lost 0")


def test_a_keeper_that_gave_up_ends_the_work(played: tuple[Keeper, ClaimedOwnership, list[str]]) -> None:
    """`turn` raises; what is asked on the way out does not."""
    keeper, owned, _ = played
    keeper.failure = Refused("made again")
    with pytest.raises(Refused, match="made again"):
        owned.refresh(idle)
    assert inside(owned.current_partitions()) == []


def test_a_driver_alone_works_on_everything() -> None:
    never: IsIdle = busy
    assert 123 in FullOwnership().refresh(never)
    assert FullOwnership().current_partitions() is ALL_PARTITIONS


def test_numbers_are_listed_in_runs() -> None:
    assert (listed([]), listed([3]), listed([5, 1, 2, 0, 7, 8])) == ("", "3", "0-2, 5, 7-8")


def test_a_plan_is_split_into_ours_and_the_others() -> None:
    """Drained is what all of them are, whoever did it."""
    plan = Plan((OffsetRange("in", 0, 5, 9), OffsetRange("in", 1, 6, 9)), (2, 3), drained=False).split({0, 2})
    assert [one.partition for one in plan.ranges] == [0]
    assert (plan.blocked, plan.drained, plan.elsewhere) == ((2,), False, {1: 6})


def test_who_waits_for_others_gives_up_only_when_they_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    patience = GiveUpPolicy(settings("--blocked-patience", "10"))
    for position in range(5):
        clock[0] += 9
        patience.blocked((), {1: position})
    clock[0] += 11
    with pytest.raises(Refused, match=r"partitions \[1\] of brew.orders.v1 belong to other drivers"):
        patience.blocked((), {1: 4})


def test_the_options_of_sharing_reach_the_settings_and_spark_submit() -> None:
    given = settings("--share", "--claim-interval", "1.5", "--client-id", "d", "--claims", "c")
    assert given.share is not None
    assert (given.share.interval_s, given.share.name, given.share.claims, given.stand_by) == (1.5, "d", "c", None)
    assert settings_of(run_command.make_context("run", same_options(given)).params).share == given.share
    with pytest.raises(UsageError, match=r"--stand-by.*--share"):
        settings("--share", "--stand-by")


def test_lanes_turn_at_once(played: tuple[Keeper, ClaimedOwnership, list[str]]) -> None:
    """What two threads are told belongs together."""
    keeper, owned, notes = played
    keeper.holds(p0=1, p1=2)
    threads = [threading.Thread(target=lambda: [owned.refresh(busy) for _ in range(50)]) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert notes == ["me works on 2 of 8 partitions: 0-1"]


def test_a_claims_topic_that_one_broker_does_not_know_yet_is_asked_for_again() -> None:
    """Two drivers that start at once on three brokers: one of them has just made it."""

    class Late(Keeper):
        tries = 0

        def __enter__(self) -> None:
            self.tries += 1
            if self.tries == 1:
                raise Fatal("bounds of the claims topic: unknown topic")

    keeper: Any = Late()
    view, given = Here(), settings("--share")
    transaction = TransactionSettings(given.connection, given.group, 60.0)
    shared = run.create_context(
        PreflightResult({}, None, given, 1, transaction, 0), threading.Event(), view.progress, view
    )
    assert coordination._joined(keeper, shared)
    assert keeper.tries == 2
    assert view.notes[0].startswith("the claims topic is out of reach, trying again: bounds")
