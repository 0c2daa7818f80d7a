"""Random logs: one owner at each position, tokens that rise, and the same world for every newcomer."""

from __future__ import annotations

import copy

import pytest
from harness.claims import GROUP, INTERVAL, START_MS, TOPIC, MemoryLog, Shared
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from brew.claims import state as fold
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
    decode,
    encode,
)
from brew.claims.state import ClaimsView, RecordEffect, Status, Table, snapshot_of, table_from
from brew.deadline import Deadline

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
        seat = table.seats.get((GROUP, TOPIC, message.partition))
        if seat is not None and seat.owner is not None:
            return message._replace(client_id=seat.owner, token=seat.token)
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
    return table.seats, table.members, table.pauses, table.next, table.clock


@_quick
@given(_log)
def test_an_owner_changes_only_by_a_granted_claim_and_tokens_only_rise(steps: list[tuple[int, Message, bool]]) -> None:
    """At each log position at most one owner, and no write without the current token touches anything."""
    assert _check(steps) == len(steps)


def _check(steps: list[tuple[int, Message, bool]]) -> int:
    """How many entries were judged."""
    shared, world = _written(steps), ClaimsView([Table()])
    for entry in shared.entries[0]:
        before = copy.deepcopy(world.tables[0].seats)
        answer = world.apply(entry)
        message = decode(entry.value)
        if isinstance(message, (Heartbeat, ReleasingPartition, ClaimingMessages)) and message.partition is not None:
            named = before.get((GROUP, TOPIC, message.partition))
            rests = named is not None and (named.owner, named.token) == (message.client_id, message.token)
            assert rests or answer is RecordEffect.LATE
        for place, seat in world.tables[0].seats.items():
            old = before.get(place)
            if old is None or (old.owner, old.token) != (seat.owner, seat.token):
                assert answer in {RecordEffect.GRANTED, RecordEffect.RESUMED, RecordEffect.RELEASED}
                assert old is None or seat.token >= old.token
            if (
                answer is RecordEffect.GRANTED
                and seat.token == entry.offset
                and old is not None
                and old.owner is not None
            ):
                heard = min(old.heard, entry.time_ms)
                assert fold.status(heard, old.interval_ms, entry.time_ms) is Status.STALE
        if answer in {RecordEffect.LATE, RecordEffect.HELD, RecordEffect.PAUSED, RecordEffect.BEHIND}:
            after = {p: (s.owner, s.token, s.position) for p, s in world.tables[0].seats.items()}
            assert after == {p: (s.owner, s.token, s.position) for p, s in before.items()}
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
        monkeypatch.setattr(Table, "_owned", lambda self, m, p: self.seats.get((m.group_id, m.topic, p)))
    else:
        monkeypatch.setattr(fold.PartitionOwner, "status", lambda _self, _now: Status.STALE)
    quickly = settings(max_examples=500, deadline=None, database=None, phases=[Phase.generate])
    with pytest.raises(AssertionError):
        quickly(given(_log)(test_an_owner_changes_only_by_a_granted_claim_and_tokens_only_rise.hypothesis.inner_test))()
