"""Members on a log in memory: claims, shares, restarts, sleepers, flows, pauses; the test sets all clocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from harness.claims import GROUP, START_MS, MemoryLog, Shared, advance, beat, claim, member, new_deadline, release

from brew.claims import state as claims_state
from brew.claims.log import Appended, Entry, Item
from brew.claims.member import Member, Membership
from brew.claims.messages import SNAPSHOT_KEY, WHOLE_TOPIC, Heartbeat, ReleaseGroup, coordinating_partition, decode
from brew.claims.state import SNAPSHOT_RECORDS, Status
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, KafkaFailure, Refused, UsageError
from downstream.claims.admin import Filter, pause

INTERVAL_S = 1.0
EIGHT = tuple(range(8))


def owner(partitions: tuple[int, ...] = (0,)) -> tuple[Shared, Member]:
    """A log, and the member `a` that has claimed these partitions there."""
    shared = Shared()
    owning_member = member(shared, "a", partitions)
    assert owning_member.claim(partitions, new_deadline()) == list(partitions)
    return shared, owning_member


def test_a_member_alone_takes_all_and_beats_twice_per_interval(shared: Shared) -> None:
    """64 partitions would be 128 heartbeats per interval, and two of the member itself."""
    alone = member(shared, "a")
    advance(shared, 0.1, alone)
    before = len(shared.entries[0])
    advance(shared, 10 * INTERVAL_S, alone)
    assert sorted(alone.held()) == list(EIGHT)
    assert len(shared.entries[0]) - before == 20 * (len(EIGHT) + 1)


@pytest.mark.parametrize("partitions", [1, 3])
def test_members_share_and_shares_follow_those_who_come_and_go(partitions: int) -> None:
    """Each gets its fair part; one that leaves gives it back at once, one that dies after two intervals."""
    shared = Shared(partitions)
    a = member(shared, "a")
    advance(shared, 0.1, a)
    b = member(shared, "b")
    advance(shared, 0.5, a, b)
    assert [len(one.held()) for one in (a, b)] == [4, 4]
    c = member(shared, "c")
    advance(shared, 0.8, a, b, c)
    assert sorted(len(one.held()) for one in (a, b, c)) == [2, 3, 3]
    assert sorted([*a.held(), *b.held(), *c.held()]) == list(EIGHT)
    b.leave(new_deadline())
    advance(shared, 0.2, a, c)
    assert [len(one.held()) for one in (a, c)] == [4, 4]
    advance(shared, 2 * INTERVAL_S - 0.1, a)
    assert len(a.held()) == 4
    advance(shared, 0.5, a)
    assert sorted(a.held()) == list(EIGHT)


def test_two_claims_for_one_partition_give_it_to_the_earlier_record(shared: Shared) -> None:
    """Both read the same view, both write; the loser reads that it lost, also to a claim of its own before."""
    a, b = member(shared, "a"), member(shared, "b")
    before = len(shared.entries[0])
    assert b.claim([0, 1], new_deadline()) == [0, 1]
    assert a.claim([1, 2], new_deadline()) == [2]
    token = b.holdings[1].token
    assert a.holdings[2].token > token >= before
    assert b.claim([1], new_deadline()) == []
    assert b.holdings[1].token == token


def test_a_sleeper_that_wakes_up_after_two_intervals_has_lost_what_others_took(shared: Shared) -> None:
    """It knows so by its own clock before it has read anything, and writes nothing that counts."""
    sleeper, other = member(shared, "a", (0,)), member(shared, "b", (0,))
    advance(shared, 0.2, sleeper)
    old = sleeper.holdings[0]
    advance(shared, 2 * INTERVAL_S + 0.6, other)
    assert list(other.held()) == [0]
    assert sleeper.held() == {}
    assert not sleeper.claim_messages(0, old, 100, new_deadline())
    advance(shared, 1.0, sleeper, other)
    assert (list(sleeper.holdings), list(other.held())) == ([], [0])
    assert other.holdings[0].token > old.token


class SlowLog(MemoryLog):
    """The answer to every append comes 1.5 s after the record's own time."""

    delay_ms = 1500

    def append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
        done = super().append(items, deadline)
        self._shared.now_ms += self.delay_ms
        return done


def test_an_owner_is_sure_from_the_moment_it_wrote_not_from_the_answer(shared: Shared) -> None:
    """The log counts from the record's time: two intervals after it others may own the partition."""
    slow = member(shared, "a", (0,), 1.5, log=SlowLog)
    slow.claim([0], new_deadline())
    last = max(one.time_ms for one in shared.entries[0] if b"Heartbeat" in one.key)
    assert slow.holdings[0].confirmed_until == last / 1000 + 3
    shared.now_ms = last + 2999
    assert list(slow.held()) == [0]
    shared.now_ms = last + 3000
    assert slow.held() == {}


class Overtaken(MemoryLog):
    """Behind each record of partition 0 a process of the same ``client_id`` resumes it, and both are read at once."""

    def append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
        done = super().append(items, deadline)
        message = decode(items[0].value)
        token = message.token if isinstance(message, Heartbeat) else done[0].offset
        self._shared.write(beat("a", token, resume=True))
        return done

    def read(self, _until: Mapping[int, int], deadline: Deadline) -> list[Entry]:
        return super().read({}, deadline)


@pytest.mark.parametrize(("log", "sure_s"), [(SlowLog, {0: 3.0}), (Overtaken, {})])
def test_a_claim_whose_heartbeat_fails_is_sure_from_the_moment_it_was_written(
    log: type[MemoryLog], sure_s: dict[int, float], shared: Shared
) -> None:
    """The log is away since: the claim alone says how long it holds, or that another process has it already."""

    class Away(log):  # type: ignore[misc, valid-type]
        def append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
            done: list[Appended] = super().append(items, deadline)
            shared.down = any(b"ClaimingPartition" in one.key for one in items)
            return done

    a = member(shared, "a", (0,), 1.5, log=Away)
    began = shared.now()
    with pytest.raises(DeadlineExceeded):
        a.claim([0], new_deadline())
    assert {p: one.confirmed_until - began for p, one in a.holdings.items()} == sure_s


def test_a_heartbeat_confirms_nothing_that_a_record_behind_it_took() -> None:
    """The process that resumed the partition has the token; nothing is ours for two more intervals."""
    shared, a = owner()
    a._log = Overtaken(shared)
    a._log.tail(a.view.ends())
    assert not a.claim_messages(0, a.holdings[0], 10, new_deadline())
    assert a.holdings == {}


def test_two_members_are_never_sure_of_one_partition_at_once_however_slow_the_log_answers(shared: Shared) -> None:
    """Every 50 ms both are asked; one of them hears of its own heartbeats too late."""
    slow = member(shared, "a", (0,), log=SlowLog)
    other = member(shared, "b", (0,))
    slow.claim([0], new_deadline())
    owners = []
    for _ in range(80):
        shared.now_ms += 50
        other.turn(new_deadline())
        owners.append([name for name, one in (("a", slow), ("b", other)) if one.held()])
    assert ["a", "b"] not in owners
    assert owners[-1] == ["b"]


def test_a_restarted_process_takes_its_partitions_back_without_a_claim(shared: Shared) -> None:
    """Under its stable client_id, at the positions that it had told; the older process has lost them."""
    first = member(shared, "a")
    advance(shared, 0.1, first)
    first.progress({p: replace(one, position=70 + p) for p, one in first.holdings.items()})
    advance(shared, 0.6, first)
    claims = sum(b"ClaimingPartition" in entry.key for entry in shared.entries[0])
    again = member(shared, "a")
    assert {p: one.position for p, one in again.held().items()} == {p: 70 + p for p in EIGHT}
    advance(shared, 1.0, first, again)
    assert sorted(again.held()) == list(EIGHT)
    assert first.holdings == {}
    assert sum(b"ClaimingPartition" in entry.key for entry in shared.entries[0]) == claims


def test_a_restart_after_two_intervals_claims_like_everybody(shared: Shared) -> None:
    first = member(shared, "a")
    advance(shared, 0.1, first)
    shared.now_ms += 2001
    again = member(shared, "a")
    assert again.held() == {}
    advance(shared, 0.1, again)
    assert sorted(again.held()) == list(EIGHT)


def test_a_log_that_can_not_be_written_stops_an_owner_after_two_intervals(shared: Shared) -> None:
    """When it can again, the first heartbeat brings the partitions back, if nobody was quicker."""
    alone = member(shared, "a")
    advance(shared, 0.1, alone)
    shared.down = True
    for _ in range(20):
        shared.now_ms += 105
        alone._next_heartbeat_at = 0
        with pytest.raises(DeadlineExceeded):
            alone.turn(new_deadline())
    assert alone.held() == {}
    shared.down = False
    advance(shared, 0.6, alone)
    assert sorted(alone.held()) == list(EIGHT)


def test_claimed_messages_are_claimed_once(shared: Shared) -> None:
    a = member(shared, "a", (0,))
    advance(shared, 0.1, a)
    first = a.holdings[0]
    assert a.claim_messages(0, first, 100, new_deadline())
    assert decode(shared.entries[0][-2].value) == beat("a", first.token, 100), "the heartbeat behind it says so, too"
    assert not a.claim_messages(0, first, 100, new_deadline())
    assert not a.claim_messages(0, type(first)(first.token + 1, 0, 0), 200, new_deadline())
    assert a.holdings[0].position == 100
    shared.now_ms += 2500
    b = member(shared, "b", (0,))
    advance(shared, 0.1, b)
    assert b.holdings[0].position == 100


def test_what_is_done_never_lowers_a_position_below_what_was_claimed() -> None:
    """The log kept the higher one, but `held` went back, to messages that are not to be worked on again."""
    _, a = owner()
    assert a.claim_messages(0, a.holdings[0], 100, new_deadline())
    a.progress({0: replace(a.holdings[0], position=60)})
    assert a.holdings[0].position == 100
    a.progress({0: replace(a.holdings[0], position=160)})
    assert a.holdings[0].position == 160


def test_a_paused_group_gives_everything_back_and_an_administrator_sets_its_position() -> None:
    """Even backwards; when the pause ends work goes on from there."""
    shared = Shared(2)
    a, b = member(shared, "a"), member(shared, "b")
    advance(shared, 1, a, b)
    a.progress({p: replace(one, position=500) for p, one in a.holdings.items()})
    admin = member(shared, "admin")
    admin.pause_group(60, new_deadline())
    advance(shared, 0.2, a, b)
    assert a.holdings == b.holdings == {}
    assert sorted(admin.claim(list(EIGHT), new_deadline())) == list(EIGHT)
    admin.release_partitions({p: replace(one, position=7) for p, one in admin.holdings.items()}, new_deadline())
    advance(shared, 1, a, b)
    assert a.holdings == b.holdings == {}
    admin.pause_group(0, new_deadline())
    admin.leave(new_deadline())
    advance(shared, 1, a, b)
    assert {**a.held(), **b.held()}.keys() == set(EIGHT)
    assert {one.position for one in (*a.held().values(), *b.held().values())} == {7}


@pytest.mark.parametrize(("for_s", "wait_s", "option"), [(60, 0.01, "--wait-s"), (0.01, 60, "--for-s")])
def test_a_pause_waits_for_its_members_no_longer_than_it_lasts(
    for_s: float, wait_s: float, option: str, shared: Shared
) -> None:
    """Afterwards they claim again: it waited on, and advised to wait longer."""
    advance(shared, 1, member(shared, "busy"))
    with pytest.raises(Refused, match=rf"still owns partitions after 0.01 s: busy; .*wait longer \({option}\)"):
        pause(member(shared, "admin", works=False), Filter(GROUP), for_s, wait_s)


@pytest.mark.parametrize(("for_s", "until"), [(0, [0]), (1, [0, START_MS + 1000])])
def test_a_pause_goes_by_the_brokers_clock_and_ends_another(for_s: float, until: list[int], shared: Shared) -> None:
    """A pause of no time only ends one; an administrator is no member, so it writes nothing else."""
    member(shared, "admin", works=False).pause_group(for_s, new_deadline())
    assert [decode(one.value) for one in shared.entries[0]] == [ReleaseGroup("admin", GROUP, time) for time in until]


def test_an_administrator_writes_nothing_as_it_joins_and_sees_owners_by_the_logs_newest_record(shared: Shared) -> None:
    """It takes no part, so it does not matter that others take the topic as a whole."""
    shared.write(claim("a", WHOLE_TOPIC))
    admin = member(shared, "admin", works=False)
    assert (admin.membership.presence(), len(shared.entries[0])) == ([], 1)
    shared.now_ms += 2 * 1000 + 1
    shared.write(beat("b", -1, partition=None))
    assert member(shared, "admin", (WHOLE_TOPIC,), works=False).owned()[WHOLE_TOPIC].status is Status.STALE


def test_the_brokers_clock_is_that_of_the_newest_record_that_was_read_or_appended(shared: Shared) -> None:
    """The member's own clock stands still here; an append counts although nothing can be read behind it."""

    class Blind(MemoryLog):
        def read(self, until: Mapping[int, int], _deadline: Deadline) -> list[Entry]:
            raise DeadlineExceeded(f"read: not up to {until}")

    a = Member(MemoryLog(shared), Membership("a", GROUP, "orders", EIGHT, INTERVAL_S), lambda: 0.0)
    a.join(new_deadline())
    shared.now_ms += 700
    shared.write(claim("b", 1))
    a.read_new(new_deadline())
    assert (a.owned()[1].owner, a.clock.now_ms(0)) == ("b", START_MS + 700)
    a._log = Blind(shared)
    shared.now_ms += 800
    with pytest.raises(DeadlineExceeded):
        a.claim([0], new_deadline())
    assert a.clock.now_ms(0) == START_MS + 1500


@pytest.mark.parametrize("error", [DeadlineExceeded, KafkaFailure])
def test_a_snapshot_without_room_is_left_for_later(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    class NoRoom(MemoryLog):
        def append(self, items: Sequence[Item], deadline: Deadline) -> list[Appended]:
            if items[0].key == SNAPSHOT_KEY:
                tried.append(items[0].partition)
                raise error("no room")
            return super().append(items, deadline)

    tried: list[int] = []
    monkeypatch.setattr(claims_state, "SNAPSHOT_RECORDS", 1)
    assert member(Shared(), "a", (0,), log=NoRoom).claim([0], new_deadline()) == [0]
    assert len(tried) == 4


def test_a_member_writes_a_snapshot_when_its_write_finds_it_due(shared: Shared) -> None:
    """And a newcomer reads from there."""
    for _ in range(SNAPSHOT_RECORDS):
        shared.write(claim("x"))
    alone = member(shared, "a")
    assert [entry.offset for entry in shared.entries[0] if entry.key == b"Snapshot"] == [SNAPSHOT_RECORDS + 1]
    advance(shared, 0.1, alone)
    assert sum(entry.key == b"Snapshot" for entry in shared.entries[0]) == 1
    del shared.entries[0][:SNAPSHOT_RECORDS]
    newcomer = member(shared, "b")
    assert not newcomer.view.partial
    assert newcomer.view.tables[0].owners == alone.view.tables[0].owners


@pytest.mark.parametrize("silent", [False, True])
def test_a_newcomer_to_a_log_without_begin_waits_two_intervals_before_it_claims(silent: bool, shared: Shared) -> None:
    """The owner that it could not read of has beaten by then, or is silent; two of its own intervals, to the moment."""
    a = member(shared, "a", (0,))
    advance(shared, 3, a)
    del shared.entries[0][:-1]
    b = member(shared, "b", (0,), 1.5)
    assert b.view.partial
    if not silent:
        advance(shared, 5, a, b)
        assert (list(a.held()), list(b.held())) == ([0], [])
        return
    advance(shared, 2.9, b)
    assert list(b.held()) == []
    advance(shared, 0.1, b)
    assert list(b.held()) == [0]


def test_a_log_that_was_made_again_ends_the_member(shared: Shared) -> None:
    a = member(shared, "a", (0,))
    advance(shared, 1, a)
    shared.entries[0].clear()
    with pytest.raises(Refused, match="recreated or emptied"):
        advance(shared, 1, a)


def test_one_works_on_a_topic_as_a_whole_and_the_others_stand_by(shared: Shared) -> None:
    """Nothing is shared; the next one takes over when it dies."""
    standing = [member(shared, name, (WHOLE_TOPIC,)) for name in "abc"]
    advance(shared, 3, *standing)
    assert [len(one.held()) for one in standing] == [1, 0, 0]
    advance(shared, 2 * INTERVAL_S + 0.6, *standing[1:])
    assert sorted(len(one.held()) for one in standing[1:]) == [0, 1]
    assert standing[0].held() == {}


def test_an_interval_that_nobody_could_keep_is_refused() -> None:
    """And ids that no message can carry; the shortest and the longest one are good."""
    for interval_s in (0.049, 600.001):
        with pytest.raises(UsageError, match=r"may be 0\.05 to 600 s; set --heartbeat-interval-s"):
            Membership("a", GROUP, "orders", EIGHT, interval_s)
    assert [Membership("a", GROUP, "orders", EIGHT, one).interval_ms for one in (0.05, 600)] == [50, 600_000]
    assert Membership("a", GROUP, "orders", EIGHT, INTERVAL_S).presence() == [beat("a", -1, partition=None)]
    for client_id in ("", "caf\udce9"):  # the second is a byte of the command line that is not UTF-8
        with pytest.raises(UsageError, match="client_id"):
            Membership(client_id, GROUP, "orders", EIGHT)


def test_a_message_of_a_partition_stands_in_its_coordinating_partition() -> None:
    """And one of the member itself in every partition of the log."""
    shared = Shared(3)
    a = member(shared, "a")
    advance(shared, 0.1, a)
    for partition in EIGHT:
        home = coordinating_partition("orders", partition, 3)
        assert a.view.tables[home].owners[GROUP, "orders", partition].client_id == "a"
    assert all("a" in table.members[GROUP, "orders"] for table in a.view.tables)


def test_a_holding_of_an_earlier_claim_is_nobodys_any_more() -> None:
    """The same member lost the partition and claimed it anew: what was done under the old token changes nothing."""
    _, a = owner()
    old = a.holdings[0]
    a.release_partitions({0: old}, new_deadline())
    assert a.claim([0], new_deadline()) == [0]
    new = a.holdings[0]
    a.progress({0: replace(old, position=50)})
    assert a.holdings[0].position == new.position
    a.release_partitions({0: replace(old, position=60)}, new_deadline())
    assert a.holdings[0].token == new.token > old.token
    assert not a.claim_messages(0, old, 70, new_deadline())
    assert a.owned()[0].position == new.position


def test_messages_are_claimed_by_a_member_that_is_sure_before_and_behind_it() -> None:
    """The last sure millisecond; and an answer that comes too late leaves it to somebody else to work on them."""
    shared, a = owner((0, 1))
    shared.now_ms += 2 * 1000
    written = len(shared.entries[0])
    assert not a.claim_messages(0, a.holdings[0], 10, new_deadline())
    assert len(shared.entries[0]) == written, "nothing is written by who is not sure"

    class Late(SlowLog):
        """The answer to a claim of messages, and to the heartbeat behind it, takes longer than two intervals."""

        delay_ms = 2100

    fresh = Shared()
    slow = member(fresh, "a", (0,), log=SlowLog)
    slow.claim([0], new_deadline())
    slow._log = Late(fresh)
    slow._log.tail(slow.view.ends())
    assert not slow.claim_messages(0, slow.holdings[0], 10, new_deadline())


def test_a_claim_of_messages_that_the_log_calls_late_is_none() -> None:
    """Another member's claim stands before it in the log, and was not read yet."""
    shared, a = owner()
    holding = a.holdings[0]
    shared.write(beat("a", -1, partition=None))
    shared.write(release("a", holding.token))
    shared.write(claim("b"))
    assert not a.claim_messages(0, holding, 10, new_deadline())
    assert a.holdings == {}


def test_a_partition_that_is_lost_takes_no_other_ones_heartbeat() -> None:
    """Each heartbeat's answer is its own partition's, also behind one that was given back, and is claimed anew."""
    shared, a = owner((0, 1, 2))
    shared.write(release("a", a.holdings[0].token))
    shared.now_ms += 600
    a.turn(new_deadline())
    sure_until = shared.now() + 2 * a.membership.interval_s
    assert {p: holding.confirmed_until for p, holding in a.holdings.items()} == dict.fromkeys(range(3), sure_until)


def test_what_was_given_back_is_not_asked_for_again() -> None:
    shared, a = owner((0, 1))
    member(shared, "b", (0, 1))
    a.turn(new_deadline())
    assert a.to_release == {1}
    a.release_partitions({1: a.holdings[1]}, new_deadline())
    assert a.to_release == frozenset()


def test_positions_are_the_higher_of_what_the_member_and_the_log_know() -> None:
    """A heartbeat carries the member's; a claim brings the log's."""
    shared, a = owner()
    shared.write(beat("a", a.holdings[0].token, 30))
    shared.now_ms += 600
    a.turn(new_deadline())
    assert a.holdings[0].position == 30
    a.progress({0: replace(a.holdings[0], position=40)})
    shared.now_ms += 600
    a.turn(new_deadline())
    assert a.holdings[0].position == a.owned()[0].position == 40


@pytest.mark.parametrize("taken", [False, True])
def test_a_partition_that_was_given_back_is_not_resumed_by_its_former_owner(taken: bool) -> None:
    """It is free, or somebody else's: a restart has to claim like everybody."""
    shared, a = owner()
    a.release_partitions(dict(a.holdings), new_deadline())
    if taken:
        assert member(shared, "b", (0,)).claim([0], new_deadline()) == [0]
    before = len(shared.entries[0])
    again = member(shared, "a", (0,))
    assert again.held() == {}
    assert all(b'"partition":0' not in (one.value or b"") for one in shared.entries[0][before:])
