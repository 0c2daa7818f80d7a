"""The fold over the claims log: exact edges, tokens, clocks that jump, pauses, and random logs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from harness.claims import GROUP, INTERVAL, START_MS, TOPIC, MemoryLog, Shared, beat, claim, fold, owner_of, release
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from brew.claims import state as claims_state
from brew.claims.log import Entry
from brew.claims.member import read_to_end
from brew.claims.messages import (
    MAX_INTERVAL_MS,
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
from brew.claims.state import ClaimsView, RecordEffect, Status, Table, snapshot_of, table_from
from brew.deadline import Deadline


def messages(client: str, token: int, proposed: int) -> ClaimingMessages:
    return ClaimingMessages(client, GROUP, TOPIC, 0, proposed, token)


def present(client: str) -> Heartbeat:
    """A heartbeat of a member itself."""
    return beat(client, -1, partition=None)


MAKERS: dict[str, Callable[..., Message]] = {
    "claim": claim,
    "beat": beat,
    "resume": lambda client, token: beat(client, token, resume=True),
    "interval": lambda client, token, interval: beat(client, token)._replace(interval_ms=interval),
    "messages": messages,
    "release": release,
    "pause": lambda until: ReleaseGroup("admin", GROUP, START_MS + until),
    "end": lambda: ReleaseGroup("admin", GROUP, 0),
    "stranger": lambda client: claim(client)._replace(group_id="other"),
}


def applied(table: Table, log: str) -> str:
    """
    Apply a log of records such as `5 beat a 0 10: refreshed`, and return it with the effects that they had.

    That is: 5 ms after the start, a heartbeat of a, whose token is 0 and position 10.
    """
    effects = []
    for record in log.split(", "):
        time, kind, *words = record.partition(":")[0].split()
        arguments = [int(word) if word.lstrip("-").isdigit() else word for word in words]
        effects.append(" ".join([time, kind, *words]) + f": {fold(table, (int(time), MAKERS[kind](*arguments)))[0]}")
    return ", ".join(effects)


def owner_in(table: Table) -> str:
    """Owner, token (the offset of its claim) and position."""
    owners = [one for (group, *_), one in table.owners.items() if group == GROUP]
    return ", ".join(f"{one.client_id} {one.token} {one.position}" for one in owners)


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
    assert claims_state.status(START_MS, INTERVAL, START_MS + age) is wanted


CASES = {
    "held at once": "0 claim a: granted, 0 claim b: held -> a 0 -1",
    "held to the last unknown ms": "0 claim a: granted, 2000 claim b: held -> a 0 -1",
    "granted at the first stale ms": "0 claim a: granted, 2001 claim b: granted -> b 1 -1",
    "the earliest claim wins": "0 claim b: granted, 0 claim a: held, 0 claim b: held -> b 0 -1",
    "stale and not replaced": "0 claim a: granted, 5000 beat a 0: refreshed, 5001 claim b: held -> a 0 -1",
    "a restarted process gets a new token, and the older one is late": (
        "0 claim a: granted, 1000 resume a 0: resumed, 1001 beat a 0: late, 1002 resume a 0: late, "
        "1003 beat a 1: refreshed, 3004 resume a 1: late -> a 1 -1"
    ),
    "a clock that was a minute ahead holds nothing back": (
        "0 claim a: granted, 60000 beat a 0: refreshed, 100 claim b: held, 2101 claim b: granted -> b 3 -1"
    ),
    "a clock that jumps ahead costs an owner its partition once": (
        "0 claim a: granted, 60000 claim b: granted, 60001 beat a 0: late -> b 1 -1"
    ),
    "a heartbeat's position goes forward, and -1 says nothing": (
        "0 claim a: granted, 1 beat a 0 10: refreshed, 2 beat a 0 5: refreshed, 3 beat a 0: refreshed -> a 0 10"
    ),
    "so does that of claimed messages and of a release": (
        "0 claim a: granted, 1 beat a 0 10: refreshed, 2 messages a 0 10: behind, 3 messages a 0 20: advanced, "
        "4 release a 0 7: released, 5 claim b: granted -> b 5 20"
    ),
    "while paused, owners may go on and give back, only an administrator may claim, and set a position": (
        "0 claim a: granted, 1 beat a 0 50: refreshed, 2 pause 5000: noted, 3 beat a 0 60: refreshed, "
        "4 release a 0 60: released, 5 claim a: paused, 6 claim admin: granted, 7 release admin 6 3: released, "
        "4999 claim a: paused, 5000 claim a: granted -> a 9 3"
    ),
    "a pause is ended before its time, and another group never hears of it": (
        "0 pause 5000: noted, 1 stranger a: granted, 2 claim a: paused, 3 end: noted, 4 claim a: granted -> a 4 -1"
    ),
    "behind its pause an administrator's position only goes forward": (
        "0 pause 10: noted, 1 claim admin: granted, 2 beat admin 1 50: refreshed, "
        "10 release admin 1 3: released -> None 1 50"
    ),
    "an administrator that names no position leaves it as it is": (
        "0 claim a: granted, 1 beat a 0 20: refreshed, 2 release a 0: released, 3 pause 9000: noted, "
        "4 claim admin: granted, 5 release admin 4: released -> None 4 20"
    ),
    "a heartbeat brings its own interval": (
        "0 claim a: granted, 1 interval a 0 3000: refreshed, 6001 claim b: held, 6002 claim b: granted -> b 3 -1"
    ),
    "so does a claim": "0 claim slow 0 10000: granted, 20000 claim b: held, 20001 claim b: granted -> b 2 -1",
    "from its begin on, a log adopts nobody": "0 beat a 0: late -> ",
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_each_record_has_one_effect_and_leaves_one_owner(case: str, table: Table) -> None:
    log, _, owner = case.partition(" -> ")
    assert (applied(table, log), owner_in(table)) == (log, owner)


def test_the_writes_of_an_owner_that_was_replaced_are_late(table: Table) -> None:
    fold(table, (0, claim("a")), (2001, claim("b")))
    before = copy.copy(owner_of(table))
    late = beat("a", 0, 99), release("a", 0, 99), messages("a", 0, 99), beat("b", 0)
    assert fold(table, *((2002 + n, one) for n, one in enumerate(late))) == [RecordEffect.LATE] * 4
    assert (before.client_id, before.token) == ("b", 1)
    assert owner_of(table) == before


def test_without_turning_back_a_clock_that_was_ahead_would_hold_a_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Table, "_clock_went_back", lambda _self, _time: None)
    assert fold(Table(), (0, claim("a")), (60_000, beat("a", 0)), (2101, claim("b")))[-1] is RecordEffect.HELD


def test_members_are_forgotten_when_they_leave_or_another_one_comes_after_they_are_stale(table: Table) -> None:
    """A thousand restarts under fresh names leave no thousand members; one that leaves takes only itself."""
    fold(table, *((number * 2001, present(f"m{number}")) for number in range(1000)))
    assert set(table.members[GROUP, TOPIC]) == {"m999"}
    fold(table, (2_000_000, release("m999", -1, partition=None)))
    assert table.members == {}
    fold(table, (0, present("a")), (1, present("b")))
    fold(table, (2, release("a", -1, partition=None)), (3, release("z", -1, partition=None)))
    assert set(table.members[GROUP, TOPIC]) == {"b"}


def test_a_member_that_was_heard_in_the_future_was_heard_when_the_clock_went_back(table: Table) -> None:
    """Else it would count as present until that time comes."""
    fold(table, (60_000, present("a")), (0, present("b")))
    assert table.members[GROUP, TOPIC]["a"].last_heartbeat_ms == START_MS
    fold(table, (500, present("c")))
    assert table.members[GROUP, TOPIC]["a"].last_heartbeat_ms == START_MS


def test_a_record_of_the_same_millisecond_turns_no_clock_back(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    fold(table, (5, claim("a")))
    monkeypatch.setattr(Table, "_clock_went_back", lambda _self, _time: pytest.fail("turned back"))
    assert fold(table, (5, claim("b"))) == [RecordEffect.HELD]


@pytest.mark.parametrize(("until", "paused"), [(0, set()), (1, {GROUP})])
def test_a_pause_that_ends_at_the_records_own_time_is_none(until: int, paused: set[str], table: Table) -> None:
    applied(table, f"0 pause {until}")
    assert set(table.pauses) == paused


@pytest.mark.parametrize(
    ("times", "due"),
    [
        ([], False),
        ([0] * (claims_state.SNAPSHOT_RECORDS - 1), False),
        ([0] * claims_state.SNAPSHOT_RECORDS, True),
        ([0, claims_state.SNAPSHOT_MS - 1], False),
        ([0, claims_state.SNAPSHOT_MS - 1, claims_state.SNAPSHOT_MS], True),
        # A clock that goes back takes the time of the first record with it.
        ([0, -5000, claims_state.SNAPSHOT_MS - 5001], False),
        ([0, -5000, claims_state.SNAPSHOT_MS - 5001, claims_state.SNAPSHOT_MS - 5000], True),
    ],
    ids=lambda one: f"{len(one)} records" if isinstance(one, list) else "",
)
def test_a_snapshot_is_due_by_records_and_by_time(times: list[int], due: bool, table: Table) -> None:
    fold(table, *((time, claim("a")) for time in times))
    assert table.snapshot_due is due


ADOPTED = "0 beat a 40 7: adopted, 1 claim b: held, 2 beat a 40 8: refreshed"


@pytest.mark.parametrize(
    ("log", "owner"),
    [
        (ADOPTED, "a 40 8"),
        (f"{ADOPTED}, 2003 claim b: granted, 2004 beat a 40 9: late", "b 103 8"),
        ("10 interval a 40 5000: adopted, 9000 claim b: held, 10011 claim b: granted", "b 102 -1"),
        ("10 resume a 40: resumed, 11 beat a 100: refreshed", "a 100 -1"),
        ("0 claim b: granted, 1 release b 100: released, 2 beat a 40: adopted", "a 40 -1"),
        # It begins at offset 100: a claim there or behind it would have been read.
        ("0 beat a -1: late", ""),
        ("0 beat a 0: adopted", "a 0 -1"),
        ("0 beat a 99: adopted", "a 99 -1"),
        ("0 beat a 100: late", ""),
        # It knows an owner that is not stale, or is.
        ("0 claim b: granted, 0 beat a 3: late", "b 100 -1"),
        ("0 claim b: granted, 2000 beat a 3: late", "b 100 -1"),
        ("0 claim b: granted, 2001 beat a 3: adopted", "a 3 -1"),
    ],
)
def test_a_log_whose_begin_is_gone_adopts_owners_by_their_heartbeats(log: str, owner: str) -> None:
    """Their claims were deleted; one that another owner has replaced since is still late."""
    table = Table(begin=100)
    assert (applied(table, log), owner_in(table)) == (log, owner)


def test_a_table_from_the_middle_of_a_log_is_partial_until_the_longest_interval_has_passed_twice() -> None:
    """Then it adopts nobody any more; one read from the begin never is partial."""
    assert claims_state.PARTIAL_MS == 2 * MAX_INTERVAL_MS
    assert not Table().partial
    table = Table(begin=100)
    assert table.partial
    fold(table, (0, present("a")), (claims_state.PARTIAL_MS - 1, present("a")))
    assert (table.partial, table.snapshot_due) == (True, False)
    assert fold(table, (claims_state.PARTIAL_MS, beat("a", 40))) == [RecordEffect.LATE]
    assert not table.partial


def test_what_is_no_message_changes_nothing_but_the_clock(table: Table) -> None:
    assert table.apply(0, START_MS, None) is RecordEffect.UNREADABLE
    assert (table.next, table.clock, table.owners) == (1, START_MS, {})


def test_a_claim_of_messages_is_heard_as_a_heartbeat_is() -> None:
    claimed = (0, claim("a")), (1900, messages("a", 0, 10))
    assert fold(Table(), *claimed, (3900, claim("b")))[-1] is RecordEffect.HELD
    assert fold(Table(), *claimed, (3901, claim("b")))[-1] is RecordEffect.GRANTED


def test_a_token_is_good_for_its_owner_only(table: Table) -> None:
    answers = fold(table, (0, claim("a")), (1, beat("b", 0, 9)), (2, messages("b", 0, 9)), (3, release("b", 0, 9)))
    assert answers[1:] == [RecordEffect.LATE] * 3
    assert (owner_of(table).client_id, owner_of(table).position) == ("a", -1)


def test_the_brokers_clock_goes_on_from_the_newest_record_of_a_partition() -> None:
    """By what has passed here since; one that was never heard of stands at 0."""
    seconds = [5.0]
    clock = claims_state.BrokerClock(lambda: seconds[0])
    assert clock.now_ms(0) == 0
    clock.observe(0, START_MS)
    seconds[0] += 2.5
    assert (clock.now_ms(0), clock.now_ms(1)) == (START_MS + 2500, 0)


def test_a_view_asks_each_partition_of_the_log_by_that_partitions_own_clock() -> None:
    """Owners with their age, the members that any partition has heard, and a pause up to its last millisecond."""
    view, seconds = ClaimsView([Table(), Table(), Table()]), [0.0]
    clock = claims_state.BrokerClock(lambda: seconds[0])
    home = coordinating_partition(TOPIC, 0, 3)
    later = [table for table in range(3) if table != home]
    claimed = claim("a")._replace(topic_id="id")
    fold(view.tables[home], (0, claimed), (1, beat("a", 0, 7)), (1, beat("z", -1, partition=None)))
    fold(view.tables[later[0]], (0, beat("b", -1, partition=None)), (0, ReleaseGroup("admin", GROUP, START_MS + 500)))
    for partition in range(3):
        clock.observe(partition, START_MS + 1)
    seconds[0] = 0.498
    assert view.owned(GROUP, TOPIC, [0, 1], clock) == {
        0: claims_state.OwnedPartition("a", 0, Status.FRESH, 7, "id"),
        1: claims_state.OwnedPartition(None, -1, Status.STALE, -1),
    }
    assert view.members(GROUP, TOPIC, clock) == ["b", "z"]
    assert view.paused_by(GROUP, clock) == "admin"
    seconds[0] = 0.499
    assert view.paused_by(GROUP, clock) is None


_client = st.sampled_from(["a", "b", "c"])
_partition = st.integers(0, 1)
_token = st.integers(-1, 40)
_position = st.integers(-1, 30)
_maybe = st.one_of(st.none(), _partition)
_message: st.SearchStrategy[Message] = st.one_of(
    st.builds(
        ClaimingPartition,
        _client,
        st.just(GROUP),
        st.just(TOPIC),
        _partition,
        st.just(INTERVAL),
        st.sampled_from(["-", "id"]),
    ),
    st.builds(
        Heartbeat, _client, st.just(GROUP), st.just(TOPIC), _maybe, _position, _token, st.just(INTERVAL), st.booleans()
    ),
    st.builds(ReleasingPartition, _client, st.just(GROUP), st.just(TOPIC), _maybe, _position, _token),
    st.builds(ClaimingMessages, _client, st.just(GROUP), st.just(TOPIC), _partition, st.integers(0, 30), _token),
    st.builds(ReleaseGroup, st.sampled_from(["a", "admin"]), st.just(GROUP), st.integers(START_MS, START_MS + 9000)),
)

# Steps of the brokers' clock: mostly ahead by little, sometimes by more than two intervals, sometimes back.
_jump = st.sampled_from([0, INTERVAL, 2 * INTERVAL, 2 * INTERVAL + 1, -700, -70_000, 70_000])
_step = st.one_of(st.integers(0, 900), _jump)
Steps = list[tuple[int, Message, bool]]
_log = st.lists(st.tuples(_step, _message, st.booleans()), max_size=60)
_quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def _with_current_token(table: Table, message: Message, right: bool) -> Message:
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


def _written(steps: Steps) -> Shared:
    """The steps as a log, whose clock never falls to nothing."""
    shared, table = Shared(), Table()
    for step, message, right in steps:
        shared.now_ms = max(START_MS, shared.now_ms + step)
        written = _with_current_token(table, message, right)
        table.apply(shared.write(written).offset, shared.now_ms, written)
    return shared


def _facts(table: Table) -> object:
    return table.owners, table.members, table.pauses, table.next, table.clock


@_quick
@given(_log)
def test_an_owner_changes_only_by_a_granted_claim_and_tokens_only_rise(steps: Steps) -> None:
    """At each log position at most one owner, and no write without the current token touches anything."""
    shared, view = _written(steps), ClaimsView([Table()])
    for entry in shared.entries[0]:
        before = copy.deepcopy(view.tables[0].owners)
        answer = view.apply(entry)
        message = decode(entry.value)
        if isinstance(message, (Heartbeat, ReleasingPartition, ClaimingMessages)) and message.partition is not None:
            named = before.get((GROUP, TOPIC, message.partition))
            is_owners = named is not None and (named.client_id, named.token) == (message.client_id, message.token)
            assert is_owners or answer is RecordEffect.LATE
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
    assert len(shared.entries[0]) == len(steps)


@_quick
@given(_log, st.data())
def test_a_newcomer_with_a_snapshot_gets_the_same_world(steps: Steps, data: st.DataObject) -> None:
    """Taken anywhere, written anywhere behind, and with all before it gone or compacted."""
    shared, table = _written(steps), Table()
    entries = shared.entries[0]
    until = data.draw(st.integers(0, len(entries)))
    for entry in entries[:until]:
        ClaimsView([table]).apply(entry)
    position = data.draw(st.integers(until, len(entries)))
    key, value = encode(claims_state.snapshot_of(table, "writer"))
    time_ms = entries[position - 1].time_ms if position else START_MS
    for later in range(position, len(entries)):
        entries[later] = entries[later]._replace(offset=later + 1)
    # Offsets behind it have moved, so some tokens name something else now: both worlds see that.
    entries.insert(position, Entry(0, position, time_ms, key, value))
    everything = ClaimsView([Table()])
    for entry in entries:
        everything.apply(entry)
    del entries[: data.draw(st.integers(0, until))]
    newcomer = read_to_end(MemoryLog(shared), Deadline(5))
    assert _facts(newcomer.tables[0]) == _facts(everything.tables[0])
    assert not newcomer.partial


@_quick
@given(_log, st.integers(0, 60))
def test_compaction_takes_nothing_that_counts(steps: Steps, every: int) -> None:
    """All keys but a snapshot's are different, so a compacted log still holds every message."""
    shared = _written(steps)
    keys = [entry.key for entry in shared.entries[0]]
    assert len(set(keys)) == len(keys)
    assert SNAPSHOT_KEY not in keys
    if every < len(keys):
        table = ClaimsView([Table()])
        for entry in shared.entries[0][:every]:
            table.apply(entry)
        snapshot = claims_state.snapshot_of(table.tables[0], "x")
        assert _facts(claims_state.table_from(snapshot)) == _facts(table.tables[0])


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


def test_a_position_keeps_the_id_of_its_topic_until_an_administrator_sets_it() -> None:
    """A member that reads the recreated topic claims, too; the position is still the old one's."""
    table, key = Table(), (GROUP, TOPIC, 0)

    def claimed(offset: int, topic_id: str) -> claims_state.PartitionOwner:
        time_ms = START_MS + offset * 10 * INTERVAL
        table.apply(offset, time_ms, ClaimingPartition("a", GROUP, TOPIC, 0, INTERVAL, topic_id))
        return table.owners[key]

    assert claimed(0, "first").topic_id == "first"
    assert claimed(1, "second").topic_id == "second", "there is no position yet"
    owner = claimed(2, "second")
    owner.position = 7
    owner = claimed(3, "third")
    assert (owner.position, owner.topic_id) == (7, "second")
    assert table_from(snapshot_of(table, "a")).owners == table.owners
    table.pauses[GROUP] = claims_state.Pause("a", 2**60)
    table.apply(4, table.clock + 1, ReleasingPartition("a", GROUP, TOPIC, 0, 3, 3))
    owner = claimed(5, "third")
    assert (owner.position, owner.topic_id) == (3, "third")
