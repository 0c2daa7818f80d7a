"""One partition's offset commits and the transactions that belong to them: the first good and the first bad offset."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from proof.checking.input_partition import InputPartition, Stream
from proof.checking.positions import OffsetLog, Positions
from proof.checking.transactions import Attempt, Endings, Key, RawLog
from proof.findings import Findings, Name

A, B, C, X = (1, 0), (1, 1), (1, 2), (9, 9)
"""Producer id and epoch of four transactions; nobody ever commits an offset as X."""


class Log:
    """One input partition whose inputs below offset 100 have all come out."""

    def __init__(self, both: Callable[[Key], bool] = lambda _key: False) -> None:
        self.found = Findings()
        self.lane = InputPartition(0)
        self.lane.read = 100
        self.positions = Positions("in", 0, self.lane, self.found, both)
        self.positions.readable = True

    def wrote(self, key: Key, lowest: int, highest: int, partition: int = 0) -> None:
        sources = {0: [lowest, highest, highest - lowest + 1]}
        self.positions.wrote(Attempt("out", partition, *key, first=lowest, sources=sources))

    def moved(self, until: int, key: Key, *, strict: bool = True) -> None:
        self.positions.moved(until, key, 0, strict=strict)

    def named(self, *lost: int) -> dict[str, int]:
        """What is found once all logs have ended; nothing behind a lost input is settled before."""
        self.lane.read = min(lost, default=self.lane.read)
        self.positions.settle()
        self.positions.ended(lost)
        return {str(name): count for name, count in self.found.totals.items()}

    @property
    def evidence(self) -> list[str]:
        return [one.evidence for one in self.found.first()]


def test_transactions_that_cover_exactly_their_ranges_raise_no_alarm() -> None:
    """The last offset of a range and the first of the next, and one transaction in two output partitions."""
    log = Log()
    for key, start in ((A, 0), (B, 10), (C, 20)):
        log.moved(start + 10, key)
        log.wrote(key, start, start + 8, partition=0)
        log.wrote(key, start + 9, start + 9, partition=1)
    assert log.named() == {}


@pytest.mark.parametrize(
    ("lowest", "highest", "torn"), [(10, 19, False), (9, 19, True), (10, 20, True), (9, 9, True), (9, 20, True)]
)
def test_a_transaction_is_torn_by_its_lowest_source_and_by_its_highest(lowest: int, highest: int, torn: bool) -> None:
    """Its range is [10, 20); one record below or one above is not covered, and the evidence names both ends."""
    log = Log()
    log.positions.set_by_hand(10)
    log.moved(20, B)
    log.wrote(B, lowest, highest)
    assert log.named() == ({"torn-txn": 1} if torn else {})
    if torn:
        count = highest - lowest + 1
        assert log.evidence[0].startswith(f"{count} visible records with sources {lowest} to {highest} of in[0]")


def test_another_transactions_records_amid_a_range_are_torn() -> None:
    """They came out, and the offset behind them is none of their own."""
    log = Log()
    log.moved(10, A)
    log.wrote(A, 0, 4)
    log.wrote(X, 5, 9)
    assert log.named() == {"torn-txn": 1}


def test_a_transaction_that_begins_in_the_range_before_its_own_is_torn_at_the_first_of_the_two() -> None:
    """Taken by its highest source alone it would wait for its own range, of which the start is not known here."""
    log = Log()
    log.moved(10, A)
    log.wrote(A, 0, 4)
    log.wrote(B, 5, 15)
    log.positions.broken()
    log.moved(20, B)
    assert log.named() == {"torn-txn": 1}
    assert "sources 5 to 15" in log.evidence[0]


@pytest.mark.parametrize(("key", "highest", "torn"), [(A, 9, 0), (A, 10, 1), (X, 9, 0), (X, 10, 1)])
def test_behind_a_gap_in_the_offset_log_a_range_still_has_an_end(key: Key, highest: int, torn: int) -> None:
    """A commit that compaction took may cover what lies below the range's end, and never what straddles it."""
    log = Log()
    log.positions.broken()
    log.moved(10, A)
    log.wrote(key, 3, highest)
    assert log.named().get("torn-txn", 0) == torn


def test_one_transaction_ends_once_in_a_partition() -> None:
    """The same producer and epoch twice in one output partition is two transactions with one offset between them."""
    log = Log()
    log.moved(10, A)
    log.wrote(A, 0, 4)
    log.wrote(A, 5, 9)
    assert log.named() == {"torn-txn": 1}


def test_all_ranges_whose_inputs_have_come_out_are_judged_at_once() -> None:
    """The second one too, and up to the lowest input that still waits; the rest when it comes out."""
    log = Log()
    for key, until in ((A, 10), (B, 20), (C, 30)):
        log.moved(until, key)
        log.wrote(X, until - 10, until - 9)
    log.lane.read = 20
    log.positions.settle()
    assert log.found.totals[Name.TORN] == 2
    log.lane.read = 30
    log.positions.settle()
    assert log.found.totals[Name.TORN] == 3


def test_an_offset_that_is_committed_again_is_no_regression_and_one_below_is() -> None:
    """What the next commit is held against is the offset as it stands, not the highest ever."""
    log = Log()
    log.moved(10, A)
    log.moved(10, B)
    assert log.found.totals[Name.OFFSET_REGRESSION] == 0
    log.moved(9, C)
    log.moved(9, (1, 3))
    log.moved(10, (1, 4))
    assert log.named() == {"offset-regression": 1}


def test_a_transaction_that_moves_the_offset_back_is_told_as_that_alone() -> None:
    """Not as torn as well; what others wrote without a commit is still told."""
    log = Log()
    log.moved(10, A)
    log.wrote(C, 10, 12)
    log.wrote(X, 13, 14)
    log.moved(5, C)
    assert log.named() == {"offset-regression": 1, "torn-txn": 1}
    assert "sources 13 to 14" in log.evidence[1]


def test_a_producer_id_that_comes_back_after_two_others_is_a_zombie() -> None:
    """Not only the first holder is remembered; and only where an epoch is good for one transaction."""
    for strict in (True, False):
        log = Log()
        for at, producer in enumerate((1, 2, 3, 2)):
            log.moved(10 * at + 10, (producer, 0), strict=strict)
        assert log.found.totals[Name.ZOMBIE] == strict


def test_an_offset_set_by_hand_is_a_start_until_a_transaction_moves_it() -> None:
    """Inputs that an operator skipped are in nobody's range; the next commit is a transaction's own again."""
    log = Log()
    log.moved(10, A)
    log.wrote(A, 0, 9)
    log.positions.set_by_hand(20)
    assert log.positions.by_hand
    log.moved(30, B)
    log.wrote(B, 20, 29)
    assert not log.positions.by_hand
    assert log.named(15, 19) == {}


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ((0, 2), {"offset-gap"}),
        ((0, 3), {"torn-txn"}),
        ((0, 9), {"torn-txn"}),
        ((5,), {"torn-txn"}),
        ((10,), set()),
    ],
)
def test_inputs_lost_before_a_transaction_are_a_gap_and_amid_it_a_tear(lost: tuple[int, ...], named: set[str]) -> None:
    """It wrote 3 to 9 of [0, 10): the last of those lost decides, and what lies behind the range is another's."""
    log = Log()
    log.moved(10, A)
    log.wrote(A, 3, 9)
    assert set(log.named(*lost)) == named


def test_a_gap_before_a_transaction_that_also_aborted_is_a_tear_too() -> None:
    log = Log(both=lambda key: key == A)
    log.moved(10, A)
    log.wrote(A, 3, 9)
    assert log.named(0, 1) == {"offset-gap": 1, "torn-txn": 1}


def test_a_range_of_which_nothing_came_out_is_torn() -> None:
    log = Log()
    log.moved(10, A)
    log.moved(20, B)
    log.wrote(B, 10, 19)
    assert log.named(*range(10)) == {"torn-txn": 1}
    assert "10 of its records are not visible" in log.evidence[0]


@pytest.mark.parametrize(("readable", "gap", "torn"), [(True, False, 1), (False, False, 0), (True, True, 0)])
def test_records_without_any_offset_commit_are_torn_where_the_offset_log_can_tell(
    readable: bool, gap: bool, torn: int
) -> None:
    """Not where it can't be read, nor where it ends with a gap: the commit may have lain there."""
    log = Log()
    log.positions.readable = readable
    log.moved(10, A)
    log.wrote(X, 10, 12)
    if gap:
        log.positions.broken()
    assert log.named().get("torn-txn", 0) == torn


def test_a_transactions_sources_reach_from_the_lowest_to_the_highest_of_all_its_stretches() -> None:
    """Whatever their order; each is counted."""
    found = Findings()
    raw = RawLog("out", 0, found, Endings(found), strict=True)
    came: list[Attempt] = []
    stream = Stream(raw, lambda _partition, attempt: came.append(attempt), None)
    stream.batches([RawBatch(0, 9, 10, 1, 0, 0, True, False, None, 0)])
    stream.move_to(0)
    for lowest, highest in ((5, 7), (2, 3), (9, 9), (4, 4)):
        stream.note(0, lowest, highest, highest - lowest + 1)
    assert [one.sources for one in came] == [{0: [2, 9, 7]}]


def reused(commits: tuple[OffsetCommit, ...]) -> list[OffsetBatch]:
    """Two transactions of one producer in one epoch, each with these commits."""

    def raw(offset: int, marker: str | None = None) -> RawBatch:
        return RawBatch(offset, offset, 1, 7, 3, 0, True, marker is not None, marker, 1000)

    return [
        OffsetBatch(raw(0), commits),
        OffsetBatch(raw(1, "commit")),
        OffsetBatch(raw(2), commits),
        OffsetBatch(raw(3, "abort")),
    ]


@pytest.mark.parametrize(("ours", "reuses", "counted"), [(True, 1, 2), (False, 0, 0)])
def test_a_foreign_groups_transactions_are_neither_judged_nor_counted(ours: bool, reuses: int, counted: int) -> None:
    """Found by the mutants: one group's reused epoch made its neighbours' runs red, and their counts too high."""
    found = Findings()
    endings = Endings(found, [500])
    position = Positions("in", 0, InputPartition(0), found, endings.both)
    log = OffsetLog({0: position}, found, endings, strict=True)
    log.begin(4)

    log.take(reused((OffsetCommit(0, 5),) if ours else ()))

    assert found.totals[Name.EPOCH_REUSE] == reuses
    assert endings.counts["committed_transactions"] + endings.counts["aborted_transactions"] == counted
    assert endings.first_commit_ms == {500: 1000 if ours else None}
