"""Analysis of transactions, lag and an order's history: the whole sentence that a person reads, with its numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brew.cluster import (
    ONGOING,
    CoordinatorTransaction,
    OffsetBatch,
    OffsetCommit,
    OpenTransaction,
    PartitionTransaction,
    RawBatch,
    ReadBounds,
)
from brew.offsets import Committed, LogOffsets, SourcePosition
from operations.explain.verdict import Copy, DeliveryStatus, Order, OrderHistory, Verdict, delivery_status, verdict
from operations.hanging_transactions import (
    AgeLimits,
    Diagnosis,
    Kind,
    blocked_partitions,
    diagnose,
    reprocessed_after_abort,
    select_to_abort,
    still_hanging,
)
from operations.partition_state import (
    PartitionSnapshot,
    Remaining,
    RemainingRecordsCounter,
    State,
    StateReason,
    classify,
)
from operations.record_status import RecordState, RecordStateFinder, RecordWriter, Span, Visibility, spans, visibility

NOW_MS = 10_000_000
HELD = PartitionTransaction("out", 2, 90, 7, 3, NOW_MS - 1000)
PATIENCE = AgeLimits(older_than_s=60)


def known(state: str = ONGOING, age_s: float = 5.0, timeout_s: float = 120.0, **more: object) -> CoordinatorTransaction:
    places = frozenset({("out", 2)})
    one = CoordinatorTransaction("g:in:2", state, 7, 3, int(timeout_s * 1000), int(NOW_MS - age_s * 1000), places)
    return replace(one, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("held", "owner", "why"),
    [
        (HELD, known(), "within its time-out"),
        (HELD, known("PrepareCommit", age_s=500), "PrepareCommit: its markers are being written"),
        (HELD, known(age_s=121), "open for longer than its time-out of 120 s"),
        (HELD, known(age_s=120), "open for longer than 60 s; its time-out ends it in 0 s"),
        (HELD, known(age_s=90, timeout_s=900), "open for longer than 60 s; its time-out ends it in 810 s"),
        (HELD, known(began_ms=None), "within its time-out"),
        (HELD, known("Empty"), "its coordinator has nothing open there ('g:in:2' is Empty): nobody ends it"),
        (HELD, None, "no coordinator tells of it: not ours to see (Describe on transactional ids), or hanging"),
        (
            replace(HELD, last_ms=NOW_MS - 1_300_000),
            None,
            "no coordinator knows the producer, and its last record is 1300 s old: nobody ends it",
        ),
    ],
)
def test_a_case_says_why_with_its_numbers(
    held: PartitionTransaction, owner: CoordinatorTransaction | None, why: str
) -> None:
    (case,) = diagnose([held], [owner] if owner else [], PATIENCE, NOW_MS)
    assert case.why == why
    assert (case.producer_id, case.producer_epoch, case.holds) == (7, 3, (held,))
    coordinated = owner is not None and owner.state != "Empty" and owner.began_ms is not None
    assert (case.known, case.age_s is not None) == (owner, coordinated)


def test_cases_are_told_worst_first_then_oldest_first() -> None:
    """Equal ones go by producer; one whose age is not known comes behind all whose age is."""
    held = [replace(HELD, producer_id=p) for p in (1, 2, 3, 4, 5, 6, 7)]
    owners = [
        known("Empty", producer_id=1),
        known(producer_id=3, age_s=70),
        known(producer_id=4, age_s=90),
        known(producer_id=5, age_s=0.5),
        known(producer_id=6, age_s=0.5),
        known(producer_id=7, began_ms=None),
    ]
    told = diagnose(held[::-1], owners, PATIENCE, NOW_MS)
    assert [(one.kind, one.producer_id) for one in told] == [
        (Kind.HANGING, 1),
        (Kind.LINGERING, 4),
        (Kind.LINGERING, 3),
        (Kind.UNKNOWN, 2),
        (Kind.OPEN, 5),
        (Kind.OPEN, 6),
        (Kind.OPEN, 7),
    ]


def test_the_newest_record_of_a_transaction_says_whether_it_may_still_live() -> None:
    """In whichever partition it lies."""
    old, young = replace(HELD, last_ms=0), replace(HELD, partition=3)
    (case,) = diagnose([old, young], [], PATIENCE, NOW_MS)
    assert (case.kind, case.holds) == (Kind.UNKNOWN, (old, young))


def test_an_id_that_goes_on_elsewhere_is_a_case_of_its_own() -> None:
    """What hangs under its older epoch is another one."""
    newer = known(producer_epoch=4)
    hanging, going_on = diagnose([HELD], [newer], PATIENCE, NOW_MS)
    assert (hanging.kind, hanging.holds, hanging.names) == (Kind.HANGING, (HELD,), ("out/2/7",))
    assert (going_on.kind, going_on.holds, going_on.producer_epoch) == (Kind.OPEN, (), 4)
    assert going_on.names == ("g:in:2",)
    bare = Diagnosis(Kind.HANGING, "", 7, 3, (), newer)
    assert bare.names == ("g:in:2",)


@pytest.mark.parametrize(("age_s", "overdue"), [(None, False), (119.9, False), (120.0, False), (120.1, True)])
def test_a_transaction_is_overdue_behind_its_own_time_out(age_s: float | None, overdue: bool) -> None:
    case = Diagnosis(Kind.LINGERING, "", 7, 3, (HELD,), known(), age_s)
    assert case.overdue is overdue
    assert select_to_abort([case], [], everything=True) == ([case] if overdue else [])
    assert not Diagnosis(Kind.LINGERING, "", 7, 3, (HELD,), None, 10**9).overdue


def test_offsets_and_groups_behind_a_transaction_are_counted_from_its_first_record() -> None:
    """At it counts as waiting; a partition that nobody asked about holds up nothing."""
    groups = {"b": {("out", 2): 90}, "a": {("out", 2): 91}, "c": {("out", 2): 89}}
    case = Diagnosis(Kind.OPEN, "", 7, 3, (HELD, replace(HELD, partition=3)), known())
    here, there = blocked_partitions(case, {("out", 2): ReadBounds(90, 91)}, groups)
    assert (here.held, here.offsets, here.blocked_groups, here.approaching_groups) == (HELD, 1, ("a", "b"), ("c",))
    assert (there.offsets, there.blocked_groups, there.approaching_groups) == (0, (), ())
    (behind,) = blocked_partitions(replace(case, holds=(HELD,)), {("out", 2): ReadBounds(80, 80)}, {})
    assert behind.offsets == 0


def test_a_marker_is_written_while_a_coordinator_knows_only_another_epoch() -> None:
    hanging = Diagnosis(Kind.HANGING, "", 7, 3, (HELD,), known("Empty"))
    assert still_hanging(hanging, [HELD], [known(producer_epoch=4)]) == [HELD]
    assert still_hanging(hanging, [HELD], [known(producer_id=8)]) == [HELD]


def test_what_is_read_again_is_told_with_its_place() -> None:
    case = Diagnosis(Kind.OPEN, "", 7, 3, (HELD,), known())
    assert reprocessed_after_abort(case, {"g": {("in", 2): 17}}) == (
        "group g reads in[2] again from offset 17, at its next attempt; "
        "the aborted copies stay in the log, hidden from read_committed readers"
    )
    assert reprocessed_after_abort(case, {}).startswith("group g reads in[2] again from its first offset, ")


def batch(
    base: int, last: int, producer: int = 7, epoch: int = 3, marker: str | None = None, *, transactional: bool = True
) -> RawBatch:
    return RawBatch(base, last, last - base + 1, producer, epoch, 0, transactional, marker is not None, marker, 0)


@pytest.mark.parametrize(
    ("offset", "one", "last"),
    [
        (10, batch(10, 12), False),
        (12, batch(10, 12), False),
        (10, batch(10, 12, transactional=False), True),
        (9, batch(10, 12), True),
        (13, batch(10, 12), False),
        (10, batch(10, 10, marker="commit"), False),
    ],
)
def test_a_reader_of_batches_knows_when_it_has_seen_enough(offset: int, one: RawBatch, last: bool) -> None:
    """The batch that holds the offset, or the first one behind it."""
    assert RecordStateFinder(offset).add(one) is last


def test_only_the_next_marker_of_the_same_producer_ends_the_search() -> None:
    finder = RecordStateFinder(11)
    told = [finder.add(one) for one in (batch(10, 12), batch(13, 13, 8, marker="abort"), batch(14, 15))]
    assert told == [False, False, False]
    assert finder.add(batch(16, 16, epoch=4, marker="commit"))
    assert finder.written() == RecordWriter(RecordState.COMMITTED, 7, 3, 16, 4)


def test_a_record_in_no_transaction_names_its_producer_and_no_marker() -> None:
    finder = RecordStateFinder(11)
    finder.add(batch(10, 12, transactional=False))
    assert finder.written() == RecordWriter(RecordState.PLAIN, 7, 3, None, None)


def test_who_sees_a_record_is_told_by_one_rule() -> None:
    log = LogOffsets(0, 100, 120)
    aborted = "aborted by the marker at 60"
    assert (
        visibility(5, RecordWriter(RecordState.ABORTED, 7, 3, 60, None), log).rule
        == f"{aborted} (its own writer ended it)"
    )
    fenced = f"{aborted} (epoch 4, newer than the writer's: a fence or its time-out ended it)"
    assert visibility(5, RecordWriter(RecordState.ABORTED, 7, 3, 60, 4), log) == Visibility(visible=False, rule=fenced)
    waits = "not below the last stable offset 100: an older transaction is open, and readers wait for it"
    assert visibility(100, RecordWriter(RecordState.PLAIN), log) == Visibility(visible=False, rule=waits)


def look(
    at: int | None,
    remaining: int,
    *,
    stable: int = 100,
    holders: tuple[OpenTransaction, ...] = (),
    own: CoordinatorTransaction | None = None,
) -> PartitionSnapshot:
    committed = None if at is None else Committed(at, "")
    return PartitionSnapshot(0, LogOffsets(5, stable, 100), committed, Remaining(remaining), holders, own)


HOLDER = OpenTransaction(0, 42, 6, 90, "up", 33.3)


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (look(4, 1), look(4, 1), StateReason(State.STUCK, "input-lost: the position 4 is outside the log [5, 100]")),
        (
            look(101, 0),
            look(101, 0),
            StateReason(State.STUCK, "offset-ahead: the position 101 is outside the log [5, 100]"),
        ),
        (
            look(5, 1),
            look(5, 1),
            StateReason(State.STUCK, "nothing moves, and no transaction of the pipeline is known: is it running?"),
        ),
        (look(99, 0), look(99, 0), StateReason(State.IDLE, "only markers and aborted records are left (1 offset)")),
        (look(98, 0), look(98, 0), StateReason(State.IDLE, "only markers and aborted records are left (2 offsets)")),
        (look(100, 0), look(100, 0), StateReason(State.IDLE, "at the end")),
        (look(90, 0), look(99, 0), StateReason(State.WORKING, "+9 offsets since the last look")),
        (
            look(90, 0, stable=90),
            look(90, 0, stable=90, holders=(HOLDER,)),
            StateReason(State.BLOCKED, "10 offsets behind 'up' (producer 42, epoch 6, open for 33 s)"),
        ),
        (
            look(90, 0, stable=99),
            look(90, 0, stable=99, holders=(replace(HOLDER, transactional_id=None, age_s=None), HOLDER)),
            StateReason(State.BLOCKED, "1 offset behind an unknown transactional id (producer 42, epoch 6) and 1 more"),
        ),
        (
            look(50, 9, own=known(age_s=1)),
            look(50, 9, own=known(age_s=1)),
            StateReason(State.WORKING, "a transaction is open for 1.0 s"),
        ),
        (
            look(50, 9),
            look(50, 9, own=known(age_s=121)),
            StateReason(
                State.STUCK, "its own transaction is open for 121 s, longer than its time-out: see `brew doctor`"
            ),
        ),
        (
            look(50, 9),
            look(50, 9, own=known(began_ms=None)),
            StateReason(State.STUCK, "its own transaction is open, longer than its time-out: see `brew doctor`"),
        ),
        (
            look(50, 9, own=known("Empty", producer_id=6)),
            look(50, 9, own=known("Empty", producer_epoch=5)),
            StateReason(
                State.FENCED,
                "attempts begin (epoch 3 to 5) and none commits: two runs fence each other, or each attempt fails",
            ),
        ),
        (
            look(50, 9),
            look(50, 9, own=known("Empty")),
            StateReason(State.STUCK, "nothing moves and no transaction is open: is it running?"),
        ),
    ],
)
def test_a_partitions_state_is_told_in_one_sentence(
    before: PartitionSnapshot, now: PartitionSnapshot, told: StateReason
) -> None:
    assert classify(before, now, NOW_MS) == told


def test_what_was_not_looked_at_may_all_be_visible() -> None:
    """Behind the end nothing is left; a pending transaction is not settled."""
    counter = RemainingRecordsCounter(5, 10)
    assert counter.remaining() == Remaining(5, exact=False)
    counter.add(batch(0, 4, transactional=False))
    assert counter.remaining() == Remaining(5, exact=False)
    counter.add(batch(5, 8))
    assert counter.remaining() == Remaining(5, exact=False)
    counter.add(batch(9, 11, 8, transactional=False))
    assert (counter.settled, counter.remaining()) == (False, Remaining(5, exact=False))
    counter.add(batch(12, 12, marker="commit"))
    assert (counter.settled, counter.remaining()) == (True, Remaining(5))
    counter.add(batch(13, 14, transactional=False))
    assert counter.remaining() == Remaining(5)
    assert [str(Remaining(1234)), str(Remaining(1234, exact=False))] == ["1,234", "at most 1,234"]


def test_several_batches_of_one_transaction_are_counted_together() -> None:
    counter = RemainingRecordsCounter(0, 10)
    for one in (batch(0, 2), batch(3, 4), batch(5, 5, 8), batch(6, 6, marker="commit"), batch(7, 7, 8, marker="abort")):
        counter.add(one)
    counter.add(batch(8, 8, transactional=False))
    counter.add(batch(9, 9, transactional=False))
    assert counter.remaining() == Remaining(7)


def copy(
    state: RecordState = RecordState.COMMITTED,
    offset: int = 13,
    epoch: int = 3,
    name: str | None = "g:in:0",
    producer: int = 7,
) -> Copy:
    visible = state in {RecordState.COMMITTED, RecordState.PLAIN}
    return Copy("output", "out", 0, offset, RecordWriter(state, producer, epoch), Visibility(visible, "a rule"), name)


SOURCE = copy(RecordState.PLAIN)


def history(*copies: Copy, at: int | None = 50, source: Copy | None = SOURCE, complete: bool = True) -> OrderHistory:
    return OrderHistory(SourcePosition("in", 0, 40), source, copies, at, complete)


LETTER = replace(copy(), reason="not-json")
ABORTED = copy(RecordState.ABORTED)


@pytest.mark.parametrize(
    ("told", "found"),
    [
        (
            history(ABORTED, ABORTED, copy()),
            (
                DeliveryStatus.DELIVERED,
                "delivered once, to out[0] offset 13; 2 aborted copies beside it: read_uncommitted readers see 3",
            ),
        ),
        (history(LETTER), (DeliveryStatus.REJECTED, "not-json; dead letter out/0/13")),
        (
            replace(history(replace(LETTER, message="m")), replays=("in/0/1", "in/0/2")),
            (
                DeliveryStatus.REJECTED,
                "not-json: m; dead letter out/0/13; written back as in/0/1; written back as in/0/2",
            ),
        ),
        (
            history(ABORTED, ABORTED, copy(RecordState.OPEN)),
            (DeliveryStatus.IN_FLIGHT, "written, and its transaction is still open, 2 attempts aborted"),
        ),
        (
            history(ABORTED, at=40),
            (DeliveryStatus.NOT_READ, "nothing committed yet, 1 attempt aborted; the next run reads it again"),
        ),
        (history(at=40), (DeliveryStatus.NOT_READ, "nothing committed yet; the next run reads it again")),
        (
            history(source=copy(RecordState.OPEN)),
            (DeliveryStatus.NOT_VISIBLE, "not visible on the input: a rule"),
        ),
        (
            history(source=None),
            (DeliveryStatus.NOT_FOUND, "the group stands behind it, no copy was found, and the input record is gone"),
        ),
        (
            history(complete=False),
            (
                DeliveryStatus.NOT_FOUND,
                "the group stands behind it, no copy was found, and a part of the output logs is gone or was left out",
            ),
        ),
        (
            history(copy(), copy(epoch=4, name=None, producer=9)),
            (
                DeliveryStatus.TWICE,
                (
                    "2 copies were committed (out/0/13 and out/0/13), in 2 transactions of g:in:0 and producer 9: "
                    "two groups, or two programs, write to this topic"
                ),
            ),
        ),
        (
            history(copy(), copy(offset=14)),
            (
                DeliveryStatus.TWICE,
                (
                    "2 copies were committed (out/0/13 and out/0/14), in 1 transaction of g:in:0: "
                    "its writer produced the record more than once"
                ),
            ),
        ),
        (
            history(copy(), copy(RecordState.PLAIN, epoch=-1, producer=-1)),
            (
                DeliveryStatus.TWICE,
                (
                    "2 copies (out/0/13 and out/0/13), 1 committed by g:in:0 and 1 written in no transaction at all: "
                    "another program writes to this topic"
                ),
            ),
        ),
    ],
)
def test_an_answer_is_one_whole_sentence(told: OrderHistory, found: tuple[DeliveryStatus, str]) -> None:
    assert delivery_status(told) == found


def test_an_orders_dead_letters_are_those_that_stand() -> None:
    """An output is none, nor is one that was aborted."""
    assert history(copy(), LETTER, replace(ABORTED, reason="not-json")).letters == [LETTER]


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (history(at=None), "no committed offset: not read yet"),
        (history(at=41), "done: the group stands at 41"),
        (
            history(copy(RecordState.OPEN), ABORTED, at=40),
            "in flight: the group stands at 40, and a transaction is open",
        ),
        (history(ABORTED, at=40), "not read yet: the group stands at 40"),
    ],
)
def test_where_the_group_stands_is_one_whole_sentence(told: OrderHistory, text: str) -> None:
    assert told.group_view() == text


def ordered(offset: int, order: Order, *copies: Copy) -> OrderHistory:
    return OrderHistory(SourcePosition("in", 0, offset), copy(RecordState.PLAIN), copies or (copy(),), 50, order=order)


def test_a_verdict_is_one_whole_sentence() -> None:
    one, other = Order("o-1", b"a"), Order("o-1", b"b")
    twice = ordered(1, one, copy(), copy(offset=14))
    for times, rest in ((1, ""), (2, ", and so on for 1 more"), (3, ", and so on for 2 more")):
        again = verdict([twice] * times)
        assert again is not None
        assert again[1].startswith(f"in/0/1 was delivered more than once{rest}: 2 copies")
    assert verdict([ordered(1, one), ordered(2, other, LETTER)]) == (
        Verdict.WRITTEN_TWICE,
        (
            "upstream wrote order 'o-1' 2 times, with different values, at in/0/1 and in/0/2; "
            "to the pipeline each is an order of its own (delivered, rejected)"
        ),
    )
    assert verdict([ordered(1, one), ordered(2, one)]) == (
        Verdict.WRITTEN_TWICE,
        (
            "upstream wrote order 'o-1' 2 times, with the same bytes, at in/0/1 and in/0/2; "
            "to the pipeline each is an order of its own (delivered)"
        ),
    )
    back = replace(one, replay_of=SourcePosition("dlq", 0, 5))
    assert verdict([ordered(1, one), ordered(2, back), ordered(3, back, LETTER)]) == (
        Verdict.REPLAYED,
        (
            "not twice: in/0/2 is dead letter dlq/0/5, written back, and it is delivered; "
            "in/0/3 is dead letter dlq/0/5, written back, and it is rejected"
        ),
    )
    assert verdict([ordered(1, one), ordered(2, Order("o-2", b"a"))]) == (
        Verdict.DIFFERENT,
        "2 records, no order twice among those that readers see: each is told by itself",
    )


def test_ranges_of_several_partitions_in_one_transaction_are_kept_apart() -> None:
    """A gap anywhere in the offset log makes all later beginnings unknown, not those that are known already."""

    def offsets(base: int, last: int, producer: int, *commits: OffsetCommit, marker: str | None = None) -> OffsetBatch:
        return OffsetBatch(batch(base, last, producer, marker=marker), commits)

    log = [
        offsets(0, 0, 7, OffsetCommit(0, 5)),
        offsets(1, 1, 7, OffsetCommit(1, 6)),
        offsets(2, 2, 7, marker="commit"),
        OffsetBatch(replace(batch(3, 5, 8), records=2), (OffsetCommit(0, 9), OffsetCommit(2, 4))),
        offsets(6, 6, 8, OffsetCommit(3, None)),
        offsets(7, 7, 9, OffsetCommit(4, 8)),
        offsets(8, 8, 5, marker="commit"),  # what it commits lay in the gap
    ]
    assert spans(log, dict.fromkeys(range(5), 0)) == {
        (7, 3): {0: Span(0, 5), 1: Span(0, 6)},
        (8, 3): {0: Span(5, 9), 2: Span(None, 4)},
        (9, 3): {4: Span(None, 8)},
    }
