"""Totals, round after round: what an attempt leaves behind, and up to where a log may be believed; no broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, cast

import pytest

from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Refused
from brew.offsets import LogOffsets
from downstream.totals import recompute, stages, state_store
from downstream.totals.stages import Aggregate, Output, Split
from downstream.totals.state_store import (
    CHECKPOINT_KEY,
    MemoryStore,
    StoreCheckpoint,
    checkpoint_value,
    restore,
    settled,
)
from downstream.totals.topics import TotalsSettings
from downstream.totals.total import Total

if TYPE_CHECKING:
    from brew.kafka.clients import AdminClient

NOWHERE = cast("AdminClient", None)
SETTINGS = TotalsSettings(Connection("nowhere"), "g", "in", "out")
ORDER = b'{"customer_id":"c","loyalty_tier":"gold","total_cents":100,"loyalty_discount":0.5}'
ONE = Total(1).encode()


class Record:
    """As much of a record as is looked at here."""

    def __init__(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        self.offset, self.key, self.value = (lambda: offset), (lambda: key), (lambda: value)


def logs_of(monkeypatch: pytest.MonkeyPatch, module: Any, *found: LogOffsets) -> list[LogOffsets]:
    """The brokers answer these one after another, the last one for ever; returns what is left of them."""
    left = list(found)

    def told(_client: object, _topic: str, partitions: Iterable[int], _deadline: Deadline) -> dict[int, LogOffsets]:
        now = left.pop(0) if len(left) > 1 else left[0]
        return dict.fromkeys(partitions, now)

    monkeypatch.setattr(module, "log_offsets", told)
    return left


def log(last_stable: int, end: int | None = None, first: int = 0) -> LogOffsets:
    return LogOffsets(first, last_stable, last_stable if end is None else end)


def counts(outputs: Iterator[Output]) -> dict[bytes, int]:
    """Key -> orders, of one topic's outputs."""
    return {one.key: Total.decode(one.value).orders for one in outputs if one.key != CHECKPOINT_KEY}


@pytest.mark.parametrize("how", ["ready", "dropped", "committed"])
def test_orders_that_a_round_took_are_gone_when_the_next_one_begins(how: str) -> None:
    """An attempt may end while it reads, without a word to the work: only the next one's beginning tells."""
    split = Split("d")
    split.ready(0, fresh=True)
    split.take([Record(0, b"k", ORDER)])
    split.ready(0, fresh=True) if how == "ready" else getattr(split, how)()
    split.take([Record(0, b"k", ORDER)])
    assert counts(split.outputs(1)) == {b"customer/c": 1, b"tier/gold": 1}


def aggregate(store: MemoryStore) -> Aggregate:
    return Aggregate(SETTINGS, NOWHERE, 0, store)


def own(outputs: Iterator[Output]) -> dict[bytes, int]:
    return counts(one for one in outputs if one.topic == SETTINGS.changelog)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """Two deltas are in it, and its changelog has five records."""
    logs_of(monkeypatch, stages, log(5))
    made = MemoryStore()
    made.write({b"a": Total(2).encode()}, StoreCheckpoint(2, 0, 1))
    return made


@pytest.mark.parametrize("how", ["ready", "dropped"])
def test_deltas_that_a_round_took_are_added_once(store: MemoryStore, how: str) -> None:
    """The round began again after its reading broke off: what it had taken is read, and taken, again."""
    adding = aggregate(store)
    assert adding.ready(2, fresh=False) is None
    adding.take([Record(2, b"a", ONE), Record(3, b"b", ONE)])
    if how == "dropped":
        adding.dropped()
    assert adding.ready(2, fresh=False) is None
    adding.take([Record(2, b"a", ONE)])
    assert own(adding.outputs(3)) == {b"a": 3}
    adding.committed()
    assert store.get([b"a", b"b"]) == [Total(3).encode(), None]


def test_a_commit_that_failed_changes_nothing_in_the_store(store: MemoryStore) -> None:
    """Nor what the next round writes: its changes begin from the store, and the keys are counted from there."""
    adding = aggregate(store)
    for _ in range(2):
        adding.ready(2, fresh=False)
        adding.take([Record(2, b"a", ONE), Record(3, b"b", ONE)])
        outputs = list(adding.outputs(4))
        assert own(iter(outputs)) == {b"a": 3, b"b": 1}
        assert outputs[-1].value == checkpoint_value(4, 2)
        adding.dropped()
    assert store.get([b"a", b"b"]) == [Total(2).encode(), None]
    assert store.checkpoint is not None
    assert (store.checkpoint.until, store.checkpoint.keys) == (2, 1)


def test_what_a_failed_commit_would_have_changed_is_not_in_the_next_one(store: MemoryStore) -> None:
    """The next round may be cut shorter, and hold other keys."""
    adding = aggregate(store)
    adding.ready(2, fresh=False)
    adding.take([Record(2, b"a", ONE), Record(3, b"b", ONE)])
    list(adding.outputs(4))
    adding.dropped()
    adding.ready(2, fresh=False)
    adding.take([Record(2, b"a", ONE)])
    list(adding.outputs(3))
    adding.committed()
    assert dict(store.items()) == {b"a": Total(3).encode()}
    assert store.checkpoint is not None
    assert (store.checkpoint.until, store.checkpoint.keys) == (3, 1)


@pytest.mark.parametrize(("until", "restored"), [(1, True), (2, False), (3, True)])
def test_a_store_that_stands_elsewhere_is_restored_and_one_that_is_ahead_from_nothing(
    monkeypatch: pytest.MonkeyPatch, until: int, restored: bool
) -> None:
    """Ahead it holds what was never committed; behind it is brought up to the committed offset."""
    logs_of(monkeypatch, stages, log(5))
    began: list[StoreCheckpoint | None] = []

    def restoring(*where: Any) -> int:
        began.append(where[5].checkpoint)
        where[5].write({}, StoreCheckpoint(2, 5, 0))
        return 1

    monkeypatch.setattr(stages, "restore", restoring)
    store = MemoryStore()
    store.write({b"a": ONE}, StoreCheckpoint(until, 1, 1))
    assert aggregate(store).ready(2, fresh=False) is None
    assert began == ([None if until > 2 else StoreCheckpoint(until, 1, 1)] if restored else [])
    assert (b"a" in dict(store.items())) == (until <= 2)


@pytest.mark.parametrize("changelog_holds", [None, 1, 3])
def test_a_changelog_that_stands_elsewhere_than_the_group_is_a_contradiction(
    monkeypatch: pytest.MonkeyPatch, changelog_holds: int | None
) -> None:
    """Less or more than the committed offset, or nothing: deltas would be left out or counted twice."""
    logs_of(monkeypatch, stages, log(5))

    def restoring(*where: Any) -> int:
        if changelog_holds is not None:
            where[5].write({}, StoreCheckpoint(changelog_holds, 5, 0))
        return 1

    monkeypatch.setattr(stages, "restore", restoring)
    said = aggregate(MemoryStore()).ready(2, fresh=False)
    assert said is not None
    assert said.startswith("position-moved")


def test_a_first_look_at_the_logs_beginning_is_fresh_and_one_behind_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offset 0 and offset 1."""
    monkeypatch.setattr(stages, "restore", lambda *_where: 0)
    assert aggregate(MemoryStore()).ready(0, fresh=True) is None
    said = aggregate(MemoryStore()).ready(1, fresh=True)
    assert said is not None
    assert said.startswith("range-lost")


def test_the_brokers_are_asked_for_the_end_now_and_then(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with every transaction, and a commit keeps what is known of it."""
    left = logs_of(monkeypatch, stages, log(4), log(5), log(6))
    adding = aggregate(store)
    for at in (2, 3, 4):
        adding.ready(at, fresh=False)
        adding.take([Record(at, b"a", ONE)])
        list(adding.outputs(at + 1))
        adding.committed()
    assert left == [log(5), log(6)]
    assert store.checkpoint == StoreCheckpoint(5, 4, 1)


def test_a_second_transaction_begins_where_the_first_one_ended(store: MemoryStore) -> None:
    """Nothing of the first one is added again."""
    adding = aggregate(store)
    for at in (2, 3):
        assert adding.ready(at, fresh=False) is None
        adding.take([Record(at, b"a", ONE)])
        assert own(adding.outputs(at + 1)) == {b"a": at + 1}
        adding.committed()
    assert store.checkpoint is not None
    assert store.checkpoint.until == 4


def test_the_end_of_the_changelog_is_believed_a_round_after_it_was_seen(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is seen now may hold what a newer holder has added: a restore from there would read too little."""
    monkeypatch.setattr(stages, "_LOOK_EVERY_S", 0.0)
    logs_of(monkeypatch, stages, log(10), log(20), log(30))
    adding, starts = aggregate(store), []
    for _ in range(3):
        adding.ready(2, fresh=False)
        assert store.checkpoint is not None
        starts.append(store.checkpoint.changelog)
    assert starts == [0, 10, 20]


def test_the_start_of_a_restore_never_goes_back(store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stages, "_LOOK_EVERY_S", 0.0)
    logs_of(monkeypatch, stages, log(10))
    store.write({}, StoreCheckpoint(2, 15, 1))
    adding = aggregate(store)
    for _ in range(2):
        adding.ready(2, fresh=False)
    assert store.checkpoint == StoreCheckpoint(2, 15, 1)


def test_an_end_counts_once_no_transaction_is_open_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first look sees an open one; its records, and where it ends, are known at the second."""
    monkeypatch.setattr(state_store, "_PAUSE_S", 0.0)
    left = logs_of(monkeypatch, state_store, log(3, 8), log(7, 8), log(9, 9), log(99, 99))
    assert settled(NOWHERE, "t", [0], Deadline(10)) == {0: log(9)}
    assert left == [log(99)]


def test_a_transaction_that_stays_open_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    logs_of(monkeypatch, state_store, log(3, 8))
    with pytest.raises(DeadlineExceeded, match=r"t\[1\] has an open transaction from offset 3 on"):
        settled(NOWHERE, "t", [1], Deadline(0.001))


def restoring(monkeypatch: pytest.MonkeyPatch, records: list[Record], *seen: LogOffsets) -> list[tuple[int, int]]:
    """The ranges that a restore reads from these records."""
    read: list[tuple[int, int]] = []

    class Reader:
        def __init__(self, *_where: object) -> None: ...

        def read(self, start: int, until: int, *_how: object) -> Iterator[list[Record]]:
            read.append((start, until))
            inside = [one for one in records if start <= one.offset() < until]
            return iter([inside] if inside else [])

        def close(self) -> None: ...

    monkeypatch.setattr(state_store, "_PAUSE_S", 0.0)
    monkeypatch.setattr(state_store, "RangeReader", Reader)
    logs_of(monkeypatch, state_store, *seen)
    return read


def test_a_restore_reads_to_the_end_of_what_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last transaction's markers are still on their way when it looks first."""
    records = [
        Record(0, b"a", ONE),
        Record(1, CHECKPOINT_KEY, b"1 1"),
        Record(3, b"b", ONE),
        Record(4, CHECKPOINT_KEY, b"2 2"),
    ]
    read = restoring(monkeypatch, records, log(1, 3), log(6))
    store = MemoryStore()
    done = restore(SETTINGS.connection, "g", NOWHERE, "c", 0, store, Deadline(10))
    assert (read, done) == ([(0, 6)], 4)
    assert (store.checkpoint, dict(store.items())) == (StoreCheckpoint(2, 5, 2), {b"a": ONE, b"b": ONE})


@pytest.mark.parametrize(
    ("known", "first", "start", "kept"),
    [(1, 1, 1, True), (1, 2, 2, False), (6, 0, 6, True), (7, 0, 0, False)],
    ids=["first", "gone", "end", "beyond"],
)
def test_a_restore_begins_where_the_store_stands_while_the_log_holds_that(
    monkeypatch: pytest.MonkeyPatch, known: int, first: int, start: int, kept: bool
) -> None:
    """One before the log's first offset, or one behind its end, is another log's."""
    read = restoring(monkeypatch, [Record(5, CHECKPOINT_KEY, b"9 %d" % kept)], log(6, first=first))
    store = MemoryStore()
    store.write({b"a": ONE}, StoreCheckpoint(1, known, 1))
    restore(SETTINGS.connection, "g", NOWHERE, "c", 0, store, Deadline(10))
    assert (read, dict(store.items())) == ([(start, 6)], {b"a": ONE} if kept else {})


def test_a_changelog_that_lost_a_total_is_refused_and_what_it_gave_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    restoring(monkeypatch, [Record(0, b"a", ONE), Record(1, CHECKPOINT_KEY, b"1 2")], log(2))
    store = MemoryStore()
    with pytest.raises(Refused, match=r"changelog-damaged: c\[0\] gives 1 totals where .* left 2"):
        restore(SETTINGS.connection, "g", NOWHERE, "c", 0, store, Deadline(10))
    assert (store.checkpoint, list(store.items())) == (None, [])


def test_a_recomputation_reads_what_is_decided_and_no_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the restore does: the end that it sees first may be in front of the last transaction."""
    monkeypatch.setattr(state_store, "_PAUSE_S", 0.0)
    logs_of(monkeypatch, state_store, log(3, 6), log(6))
    topic = cast("Any", type("Topic", (), {"name": "c", "partitions": 1}))
    assert recompute._ends(NOWHERE, topic) == {0: (0, 6)}
