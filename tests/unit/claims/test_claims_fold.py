"""The fold over the claims log: exact edges, tokens, clocks that jump, positions, pauses."""

from __future__ import annotations

import pytest
from harness.claims import GROUP, INTERVAL, START_MS, TOPIC, beat, claim, fold, release, seat

from brew.claims.messages import ClaimingMessages, Heartbeat, ReleaseGroup
from brew.claims.state import (
    PARTIAL_MS,
    SNAPSHOT_MS,
    SNAPSHOT_RECORDS,
    GroupPartition,
    RecordEffect,
    Status,
    Table,
    status,
)


def messages(client: str, token: int, proposed: int) -> ClaimingMessages:
    return ClaimingMessages(client, GROUP, TOPIC, 0, proposed, token)


@pytest.mark.parametrize(
    ("age", "wanted"),
    [
        (-60_000, Status.FRESH),
        (0, Status.FRESH),
        (INTERVAL - 1, Status.FRESH),
        (INTERVAL, Status.UNKNOWN),
        (2 * INTERVAL, Status.UNKNOWN),
        (2 * INTERVAL + 1, Status.STALE),
    ],
)
def test_an_owner_is_fresh_below_one_interval_and_stale_beyond_two(age: int, wanted: Status) -> None:
    """The last good and the first bad millisecond; who was heard in the future is fresh."""
    assert status(START_MS, INTERVAL, START_MS + age) is wanted


@pytest.mark.parametrize(
    ("age", "wanted"),
    [(0, RecordEffect.HELD), (2 * INTERVAL, RecordEffect.HELD), (2 * INTERVAL + 1, RecordEffect.GRANTED)],
)
def test_a_claim_is_granted_from_the_first_stale_millisecond_on(age: int, wanted: RecordEffect) -> None:
    """And not at the last unknown one."""
    assert fold(Table(), (0, claim("a")), (age, claim("b"))) == [RecordEffect.GRANTED, wanted]


def test_the_earliest_claim_in_the_log_wins() -> None:
    """Its offset is the token; the others are told who has it."""
    table = Table()
    answers = fold(table, (0, claim("b")), (0, claim("a")), (0, claim("b")))

    assert answers == [RecordEffect.GRANTED, RecordEffect.HELD, RecordEffect.HELD]
    assert (seat(table).owner, seat(table).token) == ("b", 0)


def test_the_writes_of_an_owner_that_was_replaced_are_late() -> None:
    """Whatever it writes with its old token changes nothing, also when it names the right partition."""
    table = Table()
    fold(table, (0, claim("a")), (2001, claim("b")))
    before = seat(table).position, seat(table).heard

    late = fold(
        table, (2002, beat("a", 0, 99)), (2003, release("a", 0, 99)), (2004, messages("a", 0, 99)), (2005, beat("b", 0))
    )

    assert late == [RecordEffect.LATE] * 4
    assert (seat(table).owner, seat(table).token) == ("b", 1)
    assert (seat(table).position, seat(table).heard) == before


def test_an_owner_that_was_stale_and_not_replaced_goes_on() -> None:
    """Its heartbeat stands before the other's claim in the log."""
    assert fold(Table(), (0, claim("a")), (5000, beat("a", 0)), (5001, claim("b")))[1:] == [
        RecordEffect.REFRESHED,
        RecordEffect.HELD,
    ]


def test_a_restarted_process_gets_a_new_token_and_the_older_one_is_late() -> None:
    """The same client_id: a stop and a start, or a process that only slept."""
    table = Table()
    answers = fold(
        table,
        (0, claim("a")),
        (1000, beat("a", 0, resume=True)),
        (1001, beat("a", 0)),
        (1002, beat("a", 0, resume=True)),
        (1003, beat("a", 1)),
        (3004, beat("a", 1, resume=True)),
    )
    assert answers[1:] == [
        RecordEffect.RESUMED,
        RecordEffect.LATE,
        RecordEffect.LATE,
        RecordEffect.REFRESHED,
        RecordEffect.LATE,
    ]
    assert seat(table).token == 1


def test_a_heartbeat_of_a_clock_that_was_ahead_holds_nothing_back() -> None:
    """A broker that was a minute ahead wrote it; another one leads now."""
    table = Table()
    answers = fold(table, (0, claim("a")), (60_000, beat("a", 0)), (100, claim("b")), (2101, claim("b")))
    assert answers == [RecordEffect.GRANTED, RecordEffect.REFRESHED, RecordEffect.HELD, RecordEffect.GRANTED]


def test_without_the_turning_back_a_clock_that_was_ahead_would_hold_a_partition_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rule above is what heals it."""
    monkeypatch.setattr(Table, "_turn_back", lambda _self, _time: None)
    assert fold(Table(), (0, claim("a")), (60_000, beat("a", 0)), (2101, claim("b")))[-1] is RecordEffect.HELD


def test_a_clock_that_jumps_ahead_costs_an_owner_its_partition_once() -> None:
    """The claim is granted, and the owner sees that it is late."""
    answers = fold(Table(), (0, claim("a")), (60_000, claim("b")), (60_001, beat("a", 0)))
    assert answers == [RecordEffect.GRANTED, RecordEffect.GRANTED, RecordEffect.LATE]


def test_positions_only_go_forward() -> None:
    """Heartbeats, releases and claims of messages; -1 says nothing."""
    table = Table()
    fold(table, (0, claim("a")), (1, beat("a", 0, 10)), (2, beat("a", 0, 5)), (3, beat("a", 0)))
    assert seat(table).position == 10
    assert fold(table, (4, messages("a", 0, 10)), (5, messages("a", 0, 20))) == [
        RecordEffect.BEHIND,
        RecordEffect.ADVANCED,
    ]
    assert fold(table, (6, release("a", 0, 7)), (7, claim("b"))) == [RecordEffect.RELEASED, RecordEffect.GRANTED]
    assert seat(table).position == 20


def test_a_paused_group_claims_nothing_until_the_time_is_over() -> None:
    """Owners keep what they have and may give it back; the administrator alone may claim, and set a position."""
    table = Table()
    fold(table, (0, claim("a")), (1, beat("a", 0, 50)), (2, ReleaseGroup("admin", GROUP, START_MS + 5000)))

    assert fold(table, (3, beat("a", 0, 60)), (4, release("a", 0, 60)), (5, claim("a"))) == [
        RecordEffect.REFRESHED,
        RecordEffect.RELEASED,
        RecordEffect.PAUSED,
    ]
    assert fold(table, (6, claim("admin")), (7, release("admin", 6, 3))) == [
        RecordEffect.GRANTED,
        RecordEffect.RELEASED,
    ]
    assert seat(table).position == 3
    assert fold(table, (4999, claim("a")), (5000, claim("a"))) == [RecordEffect.PAUSED, RecordEffect.GRANTED]


def test_a_pause_is_ended_before_its_time_and_another_group_never_hears_of_it() -> None:
    """`ReleaseGroup` with a time that is over."""
    table = Table()
    pause, end = ReleaseGroup("admin", GROUP, START_MS + 5000), ReleaseGroup("admin", GROUP, 0)
    other = claim("a")._replace(group_id="other")
    assert fold(table, (0, pause), (1, other), (2, claim("a")), (3, end), (4, claim("a"))) == [
        RecordEffect.NOTED,
        RecordEffect.GRANTED,
        RecordEffect.PAUSED,
        RecordEffect.NOTED,
        RecordEffect.GRANTED,
    ]


def test_an_administrators_position_does_not_outlive_its_pause() -> None:
    """Afterwards it is a client like all others, whose positions only go forward."""
    table = Table()
    fold(table, (0, ReleaseGroup("admin", GROUP, START_MS + 10)), (1, claim("admin")), (2, beat("admin", 1, 50)))
    assert fold(table, (10, release("admin", 1, 3))) == [RecordEffect.RELEASED]
    assert seat(table).position == 50


def test_stale_members_are_forgotten_when_another_one_comes() -> None:
    """A thousand restarts under fresh names leave no thousand members."""
    table = Table()
    fold(table, *((at * 2001, beat(f"m{at}", -1, partition=None)) for at in range(1000)))
    assert set(table.members[GROUP, TOPIC]) == {"m999"}
    fold(table, (2_000_000, release("m999", -1, partition=None)))
    assert table.members == {}


def test_a_snapshot_is_due_by_records_and_by_time() -> None:
    """At exactly so many of either."""
    table = Table()
    fold(table, *((0, beat("a", -1, partition=None)) for _ in range(SNAPSHOT_RECORDS - 1)))
    assert not table.snapshot_due
    fold(table, (0, beat("a", -1, partition=None)))
    assert table.snapshot_due

    quiet = Table()
    fold(quiet, (0, claim("a")), (SNAPSHOT_MS - 1, claim("a")))
    assert not quiet.snapshot_due
    fold(quiet, (SNAPSHOT_MS, claim("a")))
    assert quiet.snapshot_due


def test_a_log_whose_begin_is_gone_adopts_owners_by_their_heartbeats() -> None:
    """Their claims were deleted; one that another owner has replaced since is still late."""
    table = Table(begin=100)
    assert fold(table, (0, beat("a", 40, 7)), (1, claim("b")), (2, beat("a", 40, 8))) == [
        RecordEffect.ADOPTED,
        RecordEffect.HELD,
        RecordEffect.REFRESHED,
    ]
    assert (seat(table).owner, seat(table).token, seat(table).position) == ("a", 40, 8)
    assert fold(table, (2003, claim("b")), (2004, beat("a", 40, 9))) == [RecordEffect.GRANTED, RecordEffect.LATE]


def test_a_log_that_was_read_from_its_begin_adopts_nobody() -> None:
    """Nor does one that has been followed for twice the longest interval."""
    assert fold(Table(), (0, beat("a", 0))) == [RecordEffect.LATE]
    table = Table(begin=100)
    fold(table, (0, claim("b", 1)))
    assert table.partial
    assert not table.snapshot_due
    assert fold(table, (PARTIAL_MS, beat("a", 40))) == [RecordEffect.LATE]
    assert not table.partial


def test_what_is_no_message_changes_nothing_but_the_clock() -> None:
    """All readers pass over it alike."""
    table = Table()
    assert table.apply(0, START_MS, None) is RecordEffect.UNREADABLE
    assert (table.next, table.clock, table.seats) == (1, START_MS, {})
    assert GroupPartition(GROUP, TOPIC, 0) == (GROUP, TOPIC, 0)


def test_a_claim_of_messages_is_heard_as_a_heartbeat_is() -> None:
    """Two intervals count from it; a millisecond later the partition is free."""
    claimed = (0, claim("a")), (1900, messages("a", 0, 10))
    assert fold(Table(), *claimed, (3900, claim("b")))[-1] is RecordEffect.HELD
    assert fold(Table(), *claimed, (3901, claim("b")))[-1] is RecordEffect.GRANTED


def test_a_token_is_good_for_its_owner_only() -> None:
    """Another member that names it touches nothing."""
    table = Table()
    answers = fold(table, (0, claim("a")), (1, beat("b", 0, 9)), (2, messages("b", 0, 9)), (3, release("b", 0, 9)))
    assert answers[1:] == [RecordEffect.LATE] * 3
    assert (seat(table).owner, seat(table).position) == ("a", -1)


def test_an_administrator_that_names_no_position_leaves_it_as_it_is() -> None:
    table = Table()
    fold(table, (0, claim("a")), (1, beat("a", 0, 20)), (2, release("a", 0)))
    fold(table, (3, ReleaseGroup("admin", GROUP, START_MS + 9000)), (4, claim("admin")), (5, release("admin", 4)))
    assert seat(table).position == 20


@pytest.mark.parametrize(
    ("token", "wanted"),
    [(-1, RecordEffect.LATE), (0, RecordEffect.ADOPTED), (4, RecordEffect.ADOPTED), (5, RecordEffect.LATE)],
)
def test_a_partial_table_adopts_claims_from_before_its_begin_only(token: int, wanted: RecordEffect) -> None:
    """It begins at offset 5: a claim there or behind it would have been read."""
    assert fold(Table(5), (0, beat("a", token))) == [wanted]


@pytest.mark.parametrize(
    ("age", "wanted"), [(0, RecordEffect.LATE), (2000, RecordEffect.LATE), (2001, RecordEffect.ADOPTED)]
)
def test_a_partial_table_adopts_nobody_where_it_knows_an_owner_that_is_not_stale(
    age: int, wanted: RecordEffect
) -> None:
    assert fold(Table(5), (0, claim("b")), (age, beat("a", 3)))[-1] is wanted


def test_a_heartbeat_brings_its_own_interval() -> None:
    """An owner that was started with a longer one is stale later."""
    longer = Heartbeat("a", GROUP, TOPIC, 0, -1, 0, 3 * INTERVAL, resume=False)
    assert fold(Table(), (0, claim("a")), (1, longer), (6001, claim("b")))[-1] is RecordEffect.HELD
    assert fold(Table(), (0, claim("a")), (1, longer), (6002, claim("b")))[-1] is RecordEffect.GRANTED
