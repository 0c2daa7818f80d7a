"""`brew explain` decides from values: a record's fate, who sees it, and the answer for an order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brew.cluster import RawBatch
from brew.errors import UsageError
from brew.offsets import LogOffsets, SourcePosition
from operations.explain.command import since
from operations.explain.verdict import BROKEN, Copy, DeliveryStatus, Order, OrderHistory, delivery_status, link_replays
from operations.record_status import RecordState, RecordStateFinder, RecordWriter, Visibility, visibility

LOG = LogOffsets(0, 100, 120)


def batch(base: int, count: int = 1, producer: int = 7, epoch: int = 3, marker: str | None = None) -> RawBatch:
    last = base + count - 1
    control = marker is not None
    return RawBatch(
        base, last, count, producer, epoch, 0, transactional=True, control=control, marker=marker, max_timestamp=0
    )


def plain(base: int) -> RawBatch:
    return RawBatch(base, base, 1, -1, -1, -1, transactional=False, control=False, marker=None, max_timestamp=0)


@pytest.mark.parametrize(
    ("offset", "batches", "written"),
    [
        (11, [batch(10, 5), batch(15, marker="commit")], RecordWriter(RecordState.COMMITTED, 7, 3, 15, 3)),
        (11, [batch(10, 5), batch(15, epoch=4, marker="abort")], RecordWriter(RecordState.ABORTED, 7, 3, 15, 4)),
        (11, [batch(10, 5), batch(15, producer=8, marker="commit")], RecordWriter(RecordState.OPEN, 7, 3)),
        (
            11,
            [batch(10, 5), batch(15, marker="abort"), batch(16, marker="commit")],
            RecordWriter(RecordState.ABORTED, 7, 3, 15, 3),
        ),
        (11, [plain(11)], RecordWriter(RecordState.PLAIN, -1, -1)),
        (11, [batch(12, 2), batch(14, marker="commit")], RecordWriter(RecordState.UNKNOWN)),
        (11, [], RecordWriter(RecordState.UNKNOWN)),
    ],
)  # fmt: skip
def test_the_next_marker_of_its_producer_decides_a_records_fate(
    offset: int, batches: list[RawBatch], written: RecordWriter
) -> None:
    """Markers of others, and later ones of the same producer, do not."""
    finder = RecordStateFinder(offset)
    for one in batches:
        if finder.add(one):
            break
    assert finder.written() == written


@pytest.mark.parametrize(
    ("offset", "written", "visible", "rule"),
    [
        (99, RecordWriter(RecordState.COMMITTED, 7, 3, 99, 3), True, "committed by the marker at 99"),
        (100, RecordWriter(RecordState.COMMITTED, 7, 3, 110, 3), False, "older transaction is open"),
        (99, RecordWriter(RecordState.PLAIN), True, "no transaction"),
        (100, RecordWriter(RecordState.PLAIN), False, "older transaction is open"),
        (50, RecordWriter(RecordState.ABORTED, 7, 3, 60, 3), False, "its own writer"),
        (50, RecordWriter(RecordState.ABORTED, 7, 3, 60, 4), False, "a fence or its time-out"),
        (101, RecordWriter(RecordState.OPEN, 7, 3), False, "no marker yet"),
        (5, RecordWriter(RecordState.UNKNOWN), False, "retention or compaction"),
    ],
)
def test_a_rule_says_who_sees_a_record(offset: int, written: RecordWriter, visible: bool, rule: str) -> None:
    """The last stable offset is the first that readers are not given."""
    told = visibility(offset, written, LOG)
    assert (told.visible, rule in told.rule) == (visible, True), told


def copy(state: RecordState, epoch: int = 3, name: str | None = "g:in:0", *, visible: bool | None = None) -> Copy:
    seen = state in {RecordState.COMMITTED, RecordState.PLAIN} if visible is None else visible
    return Copy("output", "out", 0, 10 + epoch, RecordWriter(state, 7, epoch), Visibility(seen, "a rule"), name)


PLAIN = copy(RecordState.PLAIN)


LETTER = replace(
    copy(RecordState.COMMITTED), role="dead-letter", topic="dlq", reason="not-json", message="not JSON: line 1"
)


def history(*copies: Copy, at: int | None = 50, source: Copy | None = PLAIN, complete: bool = True) -> OrderHistory:
    return OrderHistory(SourcePosition("in", 0, 40), source, copies, at, complete)


@pytest.mark.parametrize(
    ("told", "verdict", "why"),
    [
        (history(copy(RecordState.COMMITTED)), DeliveryStatus.DELIVERED, "delivered once, to out[0] offset 13"),
        (
            history(copy(RecordState.ABORTED, 2), copy(RecordState.COMMITTED)),
            DeliveryStatus.DELIVERED,
            "1 aborted copy beside it",
        ),
        (history(copy(RecordState.COMMITTED, visible=False)), DeliveryStatus.WAITING, "older open transaction"),
        (history(LETTER), DeliveryStatus.REJECTED, "not-json: not JSON: line 1; dead letter dlq/0/13"),
        (history(copy(RecordState.ABORTED, 2), LETTER), DeliveryStatus.REJECTED, "1 aborted copy beside it"),
        (
            history(replace(LETTER, view=Visibility(visible=False, rule=""))),
            DeliveryStatus.WAITING,
            "older open transaction",
        ),
        (history(LETTER, copy(RecordState.COMMITTED, 5)), DeliveryStatus.TWICE, "2 copies were committed"),
        (history(copy(RecordState.OPEN), at=40), DeliveryStatus.IN_FLIGHT, "still open"),
        (history(at=40), DeliveryStatus.NOT_READ, "nothing committed yet"),
        (history(copy(RecordState.ABORTED), at=None), DeliveryStatus.NOT_READ, "1 attempt aborted"),
        (history(at=41), DeliveryStatus.LOST, "moved the position forward"),
        (history(copy(RecordState.ABORTED), at=41), DeliveryStatus.LOST, "no committed copy"),
        (history(complete=False), DeliveryStatus.NOT_FOUND, "left out"),
        (history(source=None), DeliveryStatus.NOT_FOUND, "input record is gone"),
        (
            history(copy(RecordState.COMMITTED), copy(RecordState.COMMITTED, 5)),
            DeliveryStatus.TWICE,
            "moved back by hand",
        ),
        (
            history(copy(RecordState.COMMITTED), copy(RecordState.COMMITTED, 5, "h:in:0")),
            DeliveryStatus.TWICE,
            "two groups",
        ),
        (
            history(copy(RecordState.COMMITTED), copy(RecordState.PLAIN, 5)),
            DeliveryStatus.TWICE,
            "in no transaction at all",
        ),
        (history(source=copy(RecordState.ABORTED)), DeliveryStatus.NOT_VISIBLE, "was aborted"),
        (
            history(copy(RecordState.COMMITTED), source=copy(RecordState.ABORTED)),
            DeliveryStatus.GHOST,
            "yet it was delivered",
        ),
        (history(at=40, source=copy(RecordState.OPEN)), DeliveryStatus.NOT_VISIBLE, "not visible on the input"),
        (
            history(replace(copy(RecordState.COMMITTED), topic="late", index=1), copy(RecordState.COMMITTED)),
            DeliveryStatus.DELIVERED,
            "delivered once, as 2 outputs: out/0/13, late/0/13",
        ),
        (
            history(
                *(replace(copy(RecordState.COMMITTED, epoch), index=1) for epoch in (3, 4)), copy(RecordState.PLAIN)
            ),
            DeliveryStatus.TWICE,
            "2 copies were committed (out/0/13 and out/0/14)",
        ),
        (history(replace(copy(RecordState.COMMITTED), index=1), LETTER), DeliveryStatus.TWICE, "2 copies"),
        (
            history(copy(RecordState.ABORTED), replace(copy(RecordState.ABORTED), index=1), at=None),
            DeliveryStatus.NOT_READ,
            "1 attempt aborted",
        ),
        (replace(history(at=41), dropped=True), DeliveryStatus.DROPPED, "makes nothing of it"),
        (replace(history(at=40), dropped=True), DeliveryStatus.NOT_READ, "nothing committed yet"),
    ],
)
def test_an_order_has_one_answer(told: OrderHistory, verdict: DeliveryStatus, why: str) -> None:
    """Where it is, or why it is there twice."""
    found, text = delivery_status(told)
    assert (found, why in text) == (verdict, True), (found, text)


def test_a_replay_is_linked_to_the_dead_letter_that_it_was() -> None:
    """The record says from which; its dead letter's record learns where to. Those that stand first are told first."""
    replay = replace(history(), at=SourcePosition("in", 1, 2), order=Order("o-1", b"x", SourcePosition("dlq", 0, 13)))
    stranger = replace(history(), at=SourcePosition("in", 1, 3), order=Order("o-1", b"x", SourcePosition("dlq", 0, 99)))
    first, second, third = link_replays([replay, stranger, history(LETTER)])
    assert (first.replays, second.replays, third.replays) == (("in/1/2",), (), ())
    assert "written back as in/1/2" in delivery_status(first)[1]


def test_the_answers_that_break_the_promise_are_three() -> None:
    """They make the exit code 1."""
    assert {DeliveryStatus.TWICE, DeliveryStatus.LOST, DeliveryStatus.GHOST} == BROKEN


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (history(at=None), "no committed offset"),
        (history(at=40), "not read yet"),
        (history(copy(RecordState.OPEN), at=40), "in flight"),
        (history(at=41), "done"),
    ],
)
def test_the_groups_offset_is_held_against_the_order(told: OrderHistory, text: str) -> None:
    """The committed offset is the next one to read."""
    assert text in told.group_view()


def test_times_are_spans_or_dates() -> None:
    """A date without a zone is UTC."""
    assert since("90s", 1000.0) == 910_000
    assert since("2h", 10_000.0) == 2_800_000
    assert since("1970-01-01T00:01", 0.0) == 60_000
    assert since("1970-01-01T01:01+01:00", 0.0) == 60_000
    with pytest.raises(UsageError, match="yesterday"):
        since("yesterday", 0.0)
