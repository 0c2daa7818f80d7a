"""`pipeline explain` decides from values: a record's fate, who sees it, and the answer for an order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brew.cluster import RawBatch
from brew.errors import UsageError
from brew.offsets import LogOffsets, SourcePosition
from operations.explain.command import since
from operations.explain.verdict import BROKEN, Answer, Copy, Order, Story, answer, linked
from operations.record_status import Fate, Finder, View, Written, view

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
        (11, [batch(10, 5), batch(15, marker="commit")], Written(Fate.COMMITTED, 7, 3, 15, 3)),
        (11, [batch(10, 5), batch(15, epoch=4, marker="abort")], Written(Fate.ABORTED, 7, 3, 15, 4)),
        (11, [batch(10, 5), batch(15, producer=8, marker="commit")], Written(Fate.OPEN, 7, 3)),
        (11, [batch(10, 5), batch(15, marker="abort"), batch(16, marker="commit")], Written(Fate.ABORTED, 7, 3, 15, 3)),
        (11, [plain(11)], Written(Fate.PLAIN, -1, -1)),
        (11, [batch(12, 2), batch(14, marker="commit")], Written(Fate.UNKNOWN)),
        (11, [], Written(Fate.UNKNOWN)),
    ],
)  # fmt: skip
def test_the_next_marker_of_its_producer_decides_a_records_fate(
    offset: int, batches: list[RawBatch], written: Written
) -> None:
    """Markers of others, and later ones of the same producer, do not."""
    finder = Finder(offset)
    for one in batches:
        if finder.add(one):
            break
    assert finder.written() == written


@pytest.mark.parametrize(
    ("offset", "written", "visible", "rule"),
    [
        (99, Written(Fate.COMMITTED, 7, 3, 99, 3), True, "committed by the marker at 99"),
        (100, Written(Fate.COMMITTED, 7, 3, 110, 3), False, "older transaction is open"),
        (99, Written(Fate.PLAIN), True, "no transaction"),
        (100, Written(Fate.PLAIN), False, "older transaction is open"),
        (50, Written(Fate.ABORTED, 7, 3, 60, 3), False, "its own writer"),
        (50, Written(Fate.ABORTED, 7, 3, 60, 4), False, "a fence or its time-out"),
        (101, Written(Fate.OPEN, 7, 3), False, "no marker yet"),
        (5, Written(Fate.UNKNOWN), False, "retention or compaction"),
    ],
)
def test_a_rule_says_who_sees_a_record(offset: int, written: Written, visible: bool, rule: str) -> None:
    """The last stable offset is the first that readers are not given."""
    told = view(offset, written, LOG)
    assert (told.visible, rule in told.rule) == (visible, True), told


def copy(fate: Fate, epoch: int = 3, name: str | None = "g:in:0", *, visible: bool | None = None) -> Copy:
    seen = fate in {Fate.COMMITTED, Fate.PLAIN} if visible is None else visible
    return Copy("output", "out", 0, 10 + epoch, Written(fate, 7, epoch), View(seen, "a rule"), name)


PLAIN = copy(Fate.PLAIN)


LETTER = replace(copy(Fate.COMMITTED), role="dead-letter", topic="dlq", reason="not-json", message="not JSON: line 1")


def story(*copies: Copy, at: int | None = 50, source: Copy | None = PLAIN, complete: bool = True) -> Story:
    return Story(SourcePosition("in", 0, 40), source, copies, at, complete)


@pytest.mark.parametrize(
    ("told", "verdict", "why"),
    [
        (story(copy(Fate.COMMITTED)), Answer.DELIVERED, "delivered once, to out[0] offset 13"),
        (story(copy(Fate.ABORTED, 2), copy(Fate.COMMITTED)), Answer.DELIVERED, "1 aborted copy beside it"),
        (story(copy(Fate.COMMITTED, visible=False)), Answer.WAITING, "older open transaction"),
        (story(LETTER), Answer.REJECTED, "not-json: not JSON: line 1; dead letter dlq/0/13"),
        (story(copy(Fate.ABORTED, 2), LETTER), Answer.REJECTED, "1 aborted copy beside it"),
        (story(replace(LETTER, view=View(visible=False, rule=""))), Answer.WAITING, "older open transaction"),
        (story(LETTER, copy(Fate.COMMITTED, 5)), Answer.TWICE, "2 copies were committed"),
        (story(copy(Fate.OPEN), at=40), Answer.IN_FLIGHT, "still open"),
        (story(at=40), Answer.NOT_READ, "nothing committed yet"),
        (story(copy(Fate.ABORTED), at=None), Answer.NOT_READ, "1 attempt aborted"),
        (story(at=41), Answer.LOST, "moved the position forward"),
        (story(copy(Fate.ABORTED), at=41), Answer.LOST, "no committed copy"),
        (story(complete=False), Answer.NOT_FOUND, "left out"),
        (story(source=None), Answer.NOT_FOUND, "input record is gone"),
        (story(copy(Fate.COMMITTED), copy(Fate.COMMITTED, 5)), Answer.TWICE, "moved back by hand"),
        (story(copy(Fate.COMMITTED), copy(Fate.COMMITTED, 5, "h:in:0")), Answer.TWICE, "two groups"),
        (story(copy(Fate.COMMITTED), copy(Fate.PLAIN, 5)), Answer.TWICE, "in no transaction at all"),
        (story(source=copy(Fate.ABORTED)), Answer.NOT_VISIBLE, "was aborted"),
        (story(copy(Fate.COMMITTED), source=copy(Fate.ABORTED)), Answer.GHOST, "yet it was delivered"),
        (story(at=40, source=copy(Fate.OPEN)), Answer.NOT_VISIBLE, "not visible on the input"),
    ],
)
def test_an_order_has_one_answer(told: Story, verdict: Answer, why: str) -> None:
    """Where it is, or why it is there twice."""
    found, text = answer(told)
    assert (found, why in text) == (verdict, True), (found, text)


def test_a_replay_is_linked_to_the_dead_letter_that_it_was() -> None:
    """The record says from which; its dead letter's record learns where to. Those that stand first are told first."""
    replay = replace(story(), at=SourcePosition("in", 1, 2), order=Order("o-1", b"x", SourcePosition("dlq", 0, 13)))
    stranger = replace(story(), at=SourcePosition("in", 1, 3), order=Order("o-1", b"x", SourcePosition("dlq", 0, 99)))
    first, second, third = linked([replay, stranger, story(LETTER)])
    assert (first.replays, second.replays, third.replays) == (("in/1/2",), (), ())
    assert "written back as in/1/2" in answer(first)[1]


def test_the_answers_that_break_the_promise_are_three() -> None:
    """They make the exit code 1."""
    assert {Answer.TWICE, Answer.LOST, Answer.GHOST} == BROKEN


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (story(at=None), "no committed offset"),
        (story(at=40), "not read yet"),
        (story(copy(Fate.OPEN), at=40), "in flight"),
        (story(at=41), "done"),
    ],
)
def test_the_groups_offset_is_held_against_the_order(told: Story, text: str) -> None:
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
