"""The history of a claims log against the product's own fold, and what it says about members that are misled."""

from __future__ import annotations

import random

import pytest
from harness.claims import INTERVAL, START_MS, beat, claim, release

from brew.claims.messages import Message, encode
from brew.claims.state import Table
from proof.claims.history import Belief, History, MemberView, broken, uncovered
from proof.claims.members import Races
from proof.commands.claims import _share


def history_of(*records: tuple[int, Message]) -> History:
    history = History()
    for offset, (ms, message) in enumerate(records):
        history.add(offset, START_MS + ms, encode(message)[1])
    return history


def test_owners_follow_each_other_and_each_position_has_one() -> None:
    history = history_of(
        *((0, claim("a")), (10, claim("b")), (100, beat("a", 0))),
        *((101 + 2 * INTERVAL, claim("b")), (3000, beat("a", 0)), (3100, release("b", 3))),
    )
    owners = [history.at(0, position) for position in range(7)]
    assert owners == [(None, -1), ("a", 0), ("a", 0), ("a", 0), ("b", 3), ("b", 3), (None, -1)]
    assert history.counts == {"grants": 2, "held": 1, "takeovers": 1, "late": 1, "releases": 1, "snapshots": 0}


def test_a_member_that_holds_what_the_log_gives_to_another_is_misled() -> None:
    """Also one that holds by an older claim, or what nobody has; each at the position it has read to."""
    history = history_of((0, claim("a")), (2 * INTERVAL + 1, claim("b")))
    assert history.misled([MemberView("a", 1, {0: 0}), MemberView("b", 2, {0: 1})]) == []
    wrong = [MemberView("a", 2, {0: 0}), MemberView("b", 1, {0: 1}), MemberView("b", 2, {0: 0, 7: 3})]
    assert len(history.misled(wrong)) == 4
    assert history.misled([MemberView("a", 3, {0: 0})]) == []  # not read so far: nothing to compare with


def test_it_agrees_with_the_products_fold_on_random_logs() -> None:
    """Two pieces of code, one page of rules: whoever misreads it differs."""
    dice = random.Random(7)
    for _ in range(200):
        table, history, ms = Table(), History(), 0
        for offset in range(60):
            ms += dice.choice([-700, 0, 1, 400, INTERVAL, 2 * INTERVAL, 2 * INTERVAL + 1])
            token, name, partition = dice.randrange(offset + 1), dice.choice("abc"), dice.randrange(2)
            beats = [beat(name, token, partition=partition, resume=resume) for resume in (False, True)]
            message = dice.choice([claim(name, partition), *beats, release(name, token, partition=partition)])
            table.apply(offset, START_MS + ms, message)
            history.add(offset, START_MS + ms, encode(message)[1])
            for place in (0, 1):
                current = table.owners.get(("g", "orders", place))
                nobody = current is None or current.client_id is None
                owner = (None, -1) if nobody else (current.client_id, current.token)
                assert history.at(place, offset + 1) == owner


@pytest.mark.parametrize(
    ("beliefs", "ends"),
    [
        ([Belief("a", 0, 7), Belief("b", 1, 8)], []),
        ([Belief("b", 0, 7), Belief("b", 1, 8)], ["granted to a"]),
        ([Belief("a", 0, 7), Belief("b", 0, 7), Belief("b", 1, 8)], ["granted to a", "twice by the claim at 7"]),
        ([Belief("a", 0, 7), Belief("a", 0, 6), Belief("b", 1, 8)], ["granted to nobody"]),
        ([Belief("a", 0, 7)], ["but b did not hold it"]),
    ],
)
def test_each_grant_of_a_race_is_held_once_and_by_its_winner(beliefs: list[Belief], ends: list[str]) -> None:
    found = broken(beliefs, {(0, 7): "a", (1, 8): "b"})
    assert [text[-len(end) :] for text, end in zip(found, ends, strict=True)] == ends


@pytest.mark.parametrize(("partitions", "wrong"), [([0, 1], []), ([0], [1]), ([0, 1, 1], [1]), ([], [0, 1])])
def test_each_round_gives_each_partition_one_owner(partitions: list[int], wrong: list[int]) -> None:
    found = uncovered([Belief("a", partition, 7) for partition in partitions], 2)
    assert [int(text.split()[1]) for text in found] == wrong


@pytest.mark.parametrize(
    ("count", "shown"), [(1, (0.1, 0.1, 0.1)), (2, (0.1, 0.2, 0.2)), (50, (2.5, 5.0, 5.0)), (100, (5.0, 9.9, 10.0))]
)
def test_the_percentiles_of_races_are_by_nearest_rank(count: int, shown: tuple[float, float, float]) -> None:
    races = Races(count, 8, 64, owned_after_s=[n / 10 for n in range(count, 0, -1)])
    assert tuple(_share(races, share) for share in (0.5, 0.99, 1.0)) == shown
