"""The fold over the claims log: exact edges, tokens, clocks that jump, pauses, and random logs."""

from __future__ import annotations

import copy

import pytest
from harness.claims import (
    GROUP,
    INTERVAL,
    START_MS,
    TOPIC,
    MemoryLog,
    Shared,
    beat,
    claim,
    fold,
    owner_of,
    release,
    words,
)
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from brew.claims import state as claims_state
from brew.claims.log import Entry
from brew.claims.member import read_to_end
from brew.claims.messages import (
    SNAPSHOT_KEY,
    ClaimingMessages,
    ClaimingPartition,
    Heartbeat,
    Message,
    ReleaseGroup,
    ReleasingPartition,
    coordinating_partition,
    decode,
    encode,
)
from brew.claims.state import (
    PARTIAL_MS,
    SNAPSHOT_MS,
    SNAPSHOT_RECORDS,
    BrokerClock,
    ClaimsView,
    OwnedPartition,
    RecordEffect,
    Status,
    Table,
    snapshot_of,
    status,
    table_from,
)
from brew.deadline import Deadline


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


def test_the_earliest_claim_in_the_log_wins(table: Table) -> None:
    """Its offset is the token; the others are told who has it."""
    assert words(table, (0, claim("b")), (0, claim("a")), (0, claim("b"))) == "granted held held"
    assert (owner_of(table).client_id, owner_of(table).token) == ("b", 0)


def test_the_writes_of_an_owner_that_was_replaced_are_late(table: Table) -> None:
    """Whatever it writes with its old token changes nothing, also when it names the right partition."""
    fold(table, (0, claim("a")), (2001, claim("b")))
    before = copy.copy(owner_of(table))
    late = beat("a", 0, 99), release("a", 0, 99), messages("a", 0, 99), beat("b", 0)
    assert fold(table, *((2002 + n, one) for n, one in enumerate(late))) == [RecordEffect.LATE] * 4
    assert (before.client_id, before.token) == ("b", 1)
    assert owner_of(table) == before


def test_an_owner_that_was_stale_and_not_replaced_goes_on() -> None:
    """Its heartbeat stands before the other's claim in the log."""
    assert words(Table(), (0, claim("a")), (5000, beat("a", 0)), (5001, claim("b"))) == "granted refreshed held"


def test_a_restarted_process_gets_a_new_token_and_the_older_one_is_late(table: Table) -> None:
    """The same client_id: a stop and a start, or a process that only slept."""
    told = words(
        table,
        (0, claim("a")),
        (1000, beat("a", 0, resume=True)),
        (1001, beat("a", 0)),
        (1002, beat("a", 0, resume=True)),
        (1003, beat("a", 1)),
        (3004, beat("a", 1, resume=True)),
    )
    assert told == "granted resumed late late refreshed late"
    assert owner_of(table).token == 1


def test_a_heartbeat_of_a_clock_that_was_ahead_holds_nothing_back() -> None:
    """A broker that was a minute ahead wrote it; another one leads now."""
    records = (0, claim("a")), (60_000, beat("a", 0)), (100, claim("b")), (2101, claim("b"))
    assert words(Table(), *records) == "granted refreshed held granted"


def test_without_the_turning_back_a_clock_that_was_ahead_would_hold_a_partition_for_a_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rule above is what heals it."""
    monkeypatch.setattr(Table, "_clock_went_back", lambda _self, _time: None)
    assert fold(Table(), (0, claim("a")), (60_000, beat("a", 0)), (2101, claim("b")))[-1] is RecordEffect.HELD


def test_a_clock_that_jumps_ahead_costs_an_owner_its_partition_once() -> None:
    """The claim is granted, and the owner sees that it is late."""
    assert words(Table(), (0, claim("a")), (60_000, claim("b")), (60_001, beat("a", 0))) == "granted granted late"


def test_positions_only_go_forward(table: Table) -> None:
    """Heartbeats, releases and claims of messages; -1 says nothing."""
    fold(table, (0, claim("a")), (1, beat("a", 0, 10)), (2, beat("a", 0, 5)), (3, beat("a", 0)))
    assert owner_of(table).position == 10
    assert words(table, (4, messages("a", 0, 10)), (5, messages("a", 0, 20))) == "behind advanced"
    assert words(table, (6, release("a", 0, 7)), (7, claim("b"))) == "released granted"
    assert (owner_of(table).client_id, owner_of(table).token, owner_of(table).position) == ("b", 7, 20)


def test_a_paused_group_claims_nothing_until_the_time_is_over(table: Table) -> None:
    """Owners keep what they have and may give it back; the administrator alone may claim, and set a position."""
    fold(table, (0, claim("a")), (1, beat("a", 0, 50)), (2, ReleaseGroup("admin", GROUP, START_MS + 5000)))
    told = words(table, (3, beat("a", 0, 60)), (4, release("a", 0, 60)), (5, claim("a")))
    assert told == "refreshed released paused"
    assert words(table, (6, claim("admin")), (7, release("admin", 6, 3))) == "granted released"
    assert owner_of(table).position == 3
    assert words(table, (4999, claim("a")), (5000, claim("a"))) == "paused granted"


def test_a_pause_is_ended_before_its_time_and_another_group_never_hears_of_it() -> None:
    """`ReleaseGroup` with a time that is over."""
    pause, end = ReleaseGroup("admin", GROUP, START_MS + 5000), ReleaseGroup("admin", GROUP, 0)
    other = claim("a")._replace(group_id="other")
    told = words(Table(), (0, pause), (1, other), (2, claim("a")), (3, end), (4, claim("a")))
    assert told == "noted granted paused noted granted"


def test_an_administrators_position_does_not_outlive_its_pause(table: Table) -> None:
    """Afterwards it is a client like all others, whose positions only go forward."""
    fold(table, (0, ReleaseGroup("admin", GROUP, START_MS + 10)), (1, claim("admin")), (2, beat("admin", 1, 50)))
    assert fold(table, (10, release("admin", 1, 3))) == [RecordEffect.RELEASED]
    assert owner_of(table).position == 50


def test_stale_members_are_forgotten_when_another_one_comes(table: Table) -> None:
    """A thousand restarts under fresh names leave no thousand members."""
    fold(table, *((at * 2001, beat(f"m{at}", -1, partition=None)) for at in range(1000)))
    assert set(table.members[GROUP, TOPIC]) == {"m999"}
    fold(table, (2_000_000, release("m999", -1, partition=None)))
    assert table.members == {}


def test_a_snapshot_is_due_by_records_and_by_time(table: Table) -> None:
    """At exactly so many of either."""
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
    assert words(table, (0, beat("a", 40, 7)), (1, claim("b")), (2, beat("a", 40, 8))) == "adopted held refreshed"
    assert (owner_of(table).client_id, owner_of(table).token, owner_of(table).position) == ("a", 40, 8)
    assert words(table, (2003, claim("b")), (2004, beat("a", 40, 9))) == "granted late"


def test_a_log_that_was_read_from_its_begin_adopts_nobody() -> None:
    """Nor does one that has been followed for twice the longest interval."""
    assert fold(Table(), (0, beat("a", 0))) == [RecordEffect.LATE]
    table = Table(begin=100)
    fold(table, (0, claim("b", 1)))
    assert table.partial
    assert not table.snapshot_due
    assert fold(table, (PARTIAL_MS, beat("a", 40))) == [RecordEffect.LATE]
    assert not table.partial


def test_what_is_no_message_changes_nothing_but_the_clock(table: Table) -> None:
    """All readers pass over it alike."""
    assert table.apply(0, START_MS, None) is RecordEffect.UNREADABLE
    assert (table.next, table.clock, table.owners) == (1, START_MS, {})


def test_a_claim_of_messages_is_heard_as_a_heartbeat_is() -> None:
    """Two intervals count from it; a millisecond later the partition is free."""
    claimed = (0, claim("a")), (1900, messages("a", 0, 10))
    assert fold(Table(), *claimed, (3900, claim("b")))[-1] is RecordEffect.HELD
    assert fold(Table(), *claimed, (3901, claim("b")))[-1] is RecordEffect.GRANTED


def test_a_token_is_good_for_its_owner_only(table: Table) -> None:
    """Another member that names it touches nothing."""
    answers = fold(table, (0, claim("a")), (1, beat("b", 0, 9)), (2, messages("b", 0, 9)), (3, release("b", 0, 9)))
    assert answers[1:] == [RecordEffect.LATE] * 3
    assert (owner_of(table).client_id, owner_of(table).position) == ("a", -1)


def test_an_administrator_that_names_no_position_leaves_it_as_it_is(table: Table) -> None:
    fold(table, (0, claim("a")), (1, beat("a", 0, 20)), (2, release("a", 0)))
    fold(table, (3, ReleaseGroup("admin", GROUP, START_MS + 9000)), (4, claim("admin")), (5, release("admin", 4)))
    assert owner_of(table).position == 20


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


def test_the_brokers_clock_goes_on_from_the_newest_record_of_a_partition() -> None:
    """By what has passed here since; one that was never heard of stands at 0."""
    here = [5.0]
    clock = BrokerClock(lambda: here[0])
    assert clock.now_ms(0) == 0
    clock.observe(0, START_MS)
    here[0] += 2.5
    assert (clock.now_ms(0), clock.now_ms(1)) == (START_MS + 2500, 0)


def test_a_view_asks_each_partition_of_the_log_by_that_partitions_own_clock() -> None:
    """Owners with their age, the members that any partition has heard, and a pause up to its last millisecond."""
    view, here = ClaimsView([Table(), Table(), Table()]), [0.0]
    clock = BrokerClock(lambda: here[0])
    home = coordinating_partition(TOPIC, 0, 3)
    later = [table for table in range(3) if table != home]
    fold(view.tables[home], (0, claim("a")), (1, beat("a", 0, 7)), (1, beat("z", -1, partition=None)))
    fold(view.tables[later[0]], (0, beat("b", -1, partition=None)), (0, ReleaseGroup("admin", GROUP, START_MS + 500)))
    for partition in range(3):
        clock.observe(partition, START_MS + 1)
    here[0] = 0.498
    assert view.owned(GROUP, TOPIC, [0, 1], clock) == {
        0: OwnedPartition("a", 0, Status.FRESH, 498, 7),
        1: OwnedPartition(None, -1, Status.STALE, 0, -1),
    }
    assert view.members(GROUP, TOPIC, clock) == ["b", "z"]
    assert view.paused_by(GROUP, clock) == "admin"
    here[0] = 0.499
    assert view.paused_by(GROUP, clock) is None


_client = st.sampled_from(["a", "b", "c"])
_partition = st.integers(0, 1)
_token = st.integers(-1, 40)
_position = st.integers(-1, 30)
_maybe = st.one_of(st.none(), _partition)
_message: st.SearchStrategy[Message] = st.one_of(
    st.builds(ClaimingPartition, _client, st.just(GROUP), st.just(TOPIC), _partition, st.just(INTERVAL)),
    st.builds(
        Heartbeat, _client, st.just(GROUP), st.just(TOPIC), _maybe, _position, _token, st.just(INTERVAL), st.booleans()
    ),
    st.builds(ReleasingPartition, _client, st.just(GROUP), st.just(TOPIC), _maybe, _position, _token),
    st.builds(ClaimingMessages, _client, st.just(GROUP), st.just(TOPIC), _partition, st.integers(0, 30), _token),
    st.builds(ReleaseGroup, st.sampled_from(["a", "admin"]), st.just(GROUP), st.integers(START_MS, START_MS + 9000)),
)

# Steps of the brokers' clock: mostly ahead by little, sometimes by more than two intervals, sometimes back.
_step = st.one_of(
    st.integers(0, 900), st.sampled_from([0, INTERVAL, 2 * INTERVAL, 2 * INTERVAL + 1, -700, -70_000, 70_000])
)
_log = st.lists(st.tuples(_step, _message, st.booleans()), max_size=60)
_quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _aimed(table: Table, message: Message, right: bool) -> Message:
    """Half of the writes name the current token, as members do; the others whatever came up."""
    if (
        right
        and isinstance(message, (Heartbeat, ReleasingPartition, ClaimingMessages))
        and message.partition is not None
    ):
        owner = table.owners.get((GROUP, TOPIC, message.partition))
        if owner is not None and owner.client_id is not None:
            return message._replace(client_id=owner.client_id, token=owner.token)
    return message


def _written(steps: list[tuple[int, Message, bool]]) -> Shared:
    """The steps as a log, whose clock never falls to nothing."""
    shared, table = Shared(), Table()
    for step, message, right in steps:
        shared.now_ms = max(START_MS, shared.now_ms + step)
        aimed = _aimed(table, message, right)
        table.apply(shared.write(aimed).offset, shared.now_ms, aimed)
    return shared


def _facts(table: Table) -> object:
    return table.owners, table.members, table.pauses, table.next, table.clock


@_quick
@given(_log)
def test_an_owner_changes_only_by_a_granted_claim_and_tokens_only_rise(steps: list[tuple[int, Message, bool]]) -> None:
    """At each log position at most one owner, and no write without the current token touches anything."""
    assert _check(steps) == len(steps)


def _check(steps: list[tuple[int, Message, bool]]) -> int:
    """How many entries were judged."""
    shared, view = _written(steps), ClaimsView([Table()])
    for entry in shared.entries[0]:
        before = copy.deepcopy(view.tables[0].owners)
        answer = view.apply(entry)
        message = decode(entry.value)
        if isinstance(message, (Heartbeat, ReleasingPartition, ClaimingMessages)) and message.partition is not None:
            named = before.get((GROUP, TOPIC, message.partition))
            rests = named is not None and (named.client_id, named.token) == (message.client_id, message.token)
            assert rests or answer is RecordEffect.LATE
        for place, current in view.tables[0].owners.items():
            old = before.get(place)
            if old is None or (old.client_id, old.token) != (current.client_id, current.token):
                assert answer in {RecordEffect.GRANTED, RecordEffect.RESUMED, RecordEffect.RELEASED}
                assert old is None or current.token >= old.token
            if (
                answer is RecordEffect.GRANTED
                and current.token == entry.offset
                and old is not None
                and old.client_id is not None
            ):
                heard = min(old.last_heartbeat_ms, entry.time_ms)
                assert claims_state.status(heard, old.interval_ms, entry.time_ms) is Status.STALE
        if answer in {RecordEffect.LATE, RecordEffect.HELD, RecordEffect.PAUSED, RecordEffect.BEHIND}:
            after = {p: (o.client_id, o.token, o.position) for p, o in view.tables[0].owners.items()}
            assert after == {p: (o.client_id, o.token, o.position) for p, o in before.items()}
    return len(shared.entries[0])


@_quick
@given(_log, st.data())
def test_a_newcomer_with_a_snapshot_gets_the_same_world(
    steps: list[tuple[int, Message, bool]], data: st.DataObject
) -> None:
    """Taken anywhere, written anywhere behind, and with all before it gone or compacted."""
    shared, table = _written(steps), Table()
    entries = shared.entries[0]
    until = data.draw(st.integers(0, len(entries)))
    for entry in entries[:until]:
        ClaimsView([table]).apply(entry)
    at = data.draw(st.integers(until, len(entries)))
    key, value = encode(snapshot_of(table, "writer"))
    time_ms = entries[at - 1].time_ms if at else START_MS
    for later in range(at, len(entries)):
        entries[later] = entries[later]._replace(offset=later + 1)
    # Offsets behind it have moved, so some tokens name something else now: both worlds see that.
    entries.insert(at, Entry(0, at, time_ms, key, value))
    whole = ClaimsView([Table()])
    for entry in entries:
        whole.apply(entry)
    del entries[: data.draw(st.integers(0, until))]
    came = read_to_end(MemoryLog(shared), Deadline(5))
    assert _facts(came.tables[0]) == _facts(whole.tables[0])
    assert not came.partial


@_quick
@given(_log, st.integers(0, 60))
def test_compaction_takes_nothing_that_counts(steps: list[tuple[int, Message, bool]], every: int) -> None:
    """All keys but a snapshot's are different, so a compacted log still holds every message."""
    shared = _written(steps)
    keys = [entry.key for entry in shared.entries[0]]
    assert len(set(keys)) == len(keys)
    assert SNAPSHOT_KEY not in keys
    if every < len(keys):
        table = ClaimsView([Table()])
        for entry in shared.entries[0][:every]:
            table.apply(entry)
        assert _facts(table_from(snapshot_of(table.tables[0], "x"))) == _facts(table.tables[0])


@pytest.mark.parametrize("broken", ["no-token", "held-is-ignored"])
def test_a_fold_without_its_rules_breaks_the_property(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The properties above go red for a fold that forgets the token, or grants what is held."""
    if broken == "no-token":
        monkeypatch.setattr(Table, "_current_owner", lambda self, m, p: self.owners.get((m.group_id, m.topic, p)))
    else:
        monkeypatch.setattr(claims_state.PartitionOwner, "status", lambda _self, _now: Status.STALE)
    quickly = settings(max_examples=500, deadline=None, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        quickly(given(_log)(test_an_owner_changes_only_by_a_granted_claim_and_tokens_only_rise.hypothesis.inner_test))()
