"""`brew explain` holds several input records against each other: who wrote twice, upstream or the pipeline?"""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.offsets import SourcePosition
from brew.records import REPLAYED_FROM
from operations.explain.command import document, remarks, render
from operations.explain.verdict import Copy, Order, OrderHistory, order_id, verdict
from operations.options import show
from operations.record_status import RecordState, RecordWriter, Span, Visibility, spans

LETTER = SourcePosition("dlq", 0, 5)


def copy(state: str = "committed", offset: int = 0) -> Copy:
    return Copy("output", "out", 0, offset, RecordWriter(RecordState(state), 7, 3), Visibility(True, "a rule"))


def history(offset: int, order: Order | None, *copies: Copy, source: str = "plain") -> OrderHistory:
    return OrderHistory(SourcePosition("in", 0, offset), copy(source), copies or (copy(),), 50, order=order)


ONE, SAME, OTHER = Order("o-1", b"a"), Order("o-1", b"b"), Order("o-2", b"a")
NAMELESS, REPLAY = Order(None, b"a"), Order("o-1", b"a", LETTER)
DLQ = replace(copy(), reason="not-json")
TWICE = history(1, ONE, copy(), copy(offset=1))
UPSTREAM = "upstream wrote order 'o-1' 2 times"
AT_1_AND_2 = "at in/0/1 and in/0/2"
EACH = "the pipeline treats each as a separate order"
IS_REPLAY = "is the replay of dead letter dlq/0/5"
BY_ITSELF = "records; the visible ones are all different orders"
WRITER = (
    "2 copies were committed (out/0/0 and out/0/1), in 1 transaction of producer 7: its writer produced the record "
    "more than once"
)

SAME_BYTES = "with the same bytes"
DIFFERENT_VALUES = f"{UPSTREAM}, with different values, {AT_1_AND_2}; {EACH} (delivered, rejected)"
NO_DUPLICATE = f"no duplicate: in/0/2 {IS_REPLAY}"
TWO_REPLAYS = f"{NO_DUPLICATE} (delivered); in/0/3 {IS_REPLAY} (rejected)"
NAMED, FIRST, AGAIN = history(1, ONE), history(1, NAMELESS), history(2, NAMELESS)
BOTH = f"{EACH} (delivered)"
APART = f"{UPSTREAM}, {SAME_BYTES}, at in/0/1 and in/0/3; {BOTH}"


@pytest.mark.parametrize(
    ("histories", "name", "why"),
    [
        ([NAMED, history(2, ONE)], "written-twice", f"{UPSTREAM}, {SAME_BYTES}, {AT_1_AND_2}; {BOTH}"),
        ([NAMED, history(2, SAME, DLQ)], "written-twice", DIFFERENT_VALUES),
        ([FIRST, AGAIN], "written-twice", f"upstream wrote a record 2 times, {SAME_BYTES}, {AT_1_AND_2}; {BOTH}"),
        ([NAMED, history(2, OTHER), history(3, ONE)], "written-twice", APART),
        ([FIRST, history(2, Order(None, b"b"))], "different", f"2 {BY_ITSELF}"),
        ([FIRST, history(2, ONE)], "different", f"2 {BY_ITSELF}"),
        ([NAMED, history(2, OTHER)], "different", f"2 {BY_ITSELF}"),
        ([NAMED, history(2, ONE, source="aborted")], "different", f"2 {BY_ITSELF}"),
        ([NAMED, history(2, REPLAY, source="aborted")], "different", f"2 {BY_ITSELF}"),
        ([NAMED, history(2, REPLAY)], "replayed", f"{NO_DUPLICATE} (delivered)"),
        ([NAMED, history(2, REPLAY), history(3, REPLAY, DLQ)], "replayed", TWO_REPLAYS),
        ([TWICE, history(2, ONE)], "delivered-twice", f"in/0/1 was delivered more than once: {WRITER}"),
        ([], None, ""),
        ([NAMED], None, "there is nothing to hold one record against"),
        ([TWICE], "delivered-twice", f"in/0/1 was delivered more than once: {WRITER}"),
        (
            [TWICE, history(2, ONE, copy(), copy(offset=1))],
            "delivered-twice",
            f"in/0/1 and 1 more were delivered more than once: {WRITER}",
        ),
        ([TWICE] * 3, "delivered-twice", f"in/0/1 and 2 more were delivered more than once: {WRITER}"),
    ],
)
def test_what_upstream_wrote_twice_is_not_what_was_delivered_twice(
    histories: list[OrderHistory], name: str | None, why: str
) -> None:
    """One order's records, by id or by bytes; replays are our own, and what upstream aborted nobody sees."""
    assert verdict(histories) == (name and (name, why))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b'{"order_id":"o-1"}', "o-1"),
        (b'{"order_id":17}', "17"),
        (b'{"order_id":true}', None),
        (b'{"order_id":["o-1"]}', None),
        (b'["order_id"]', None),
        (b"broken", None),
        (None, None),
        pytest.param(b'{"order_id":"o-1"}'.ljust(1_000_000), "o-1", id="1,000,000 bytes"),
        pytest.param(b'{"order_id":"o-1"}'.ljust(1_000_001), None, id="1,000,001 bytes"),
    ],
)
def test_an_order_id_is_read_where_there_is_one(value: bytes | None, expected: str | None) -> None:
    assert order_id(value) == expected


def test_an_order_is_known_by_its_id_its_bytes_and_the_dead_letter_that_it_was() -> None:
    """A record without a value has no bytes; what is no place is no link."""
    for value, expected_id in ((b'{"order_id":"o-1"}', "o-1"), (b"broken", None), (b"", None)):
        assert Order.of(value, None) == Order(expected_id, sha256(value).digest())
    assert Order.of(None, None) == Order.of(b"", None)
    for place, letter in ((b"dlq/0/5", LETTER), (b"elsewhere", None), (b"\xff", None)):
        assert Order.of(b"{}", [(REPLAYED_FROM, place)]).replay_of == letter


def batch(
    offset: int, producer: int, *commits: OffsetCommit, marker: str | None = None, epoch: int = 3, count: int = 1
) -> OffsetBatch:
    end, control, transactional = offset + count - 1, marker is not None, producer >= 0
    raw = RawBatch(offset, end, count, producer, epoch, 0, transactional, control, marker, 0)
    return OffsetBatch(raw, commits)


def test_a_range_begins_where_the_group_stood_before() -> None:
    """An aborted commit moves nothing; one by hand does."""
    log = [
        batch(0, 7, OffsetCommit(0, 5)),
        batch(1, 7, marker="commit"),
        batch(2, 8, OffsetCommit(0, 9)),
        batch(3, 8, marker="abort"),
        batch(4, 9, OffsetCommit(0, 9)),
        batch(5, 9, marker="commit"),
        batch(6, -1, OffsetCommit(0, 2)),
        batch(7, 9, OffsetCommit(0, 4), epoch=4),
    ]
    moves = spans(log, {0: 0})
    assert moves == {(7, 3): {0: Span(0, 5)}, (8, 3): {0: Span(5, 9)}, (9, 3): {0: Span(5, 9)}, (9, 4): {0: Span(2, 4)}}


@pytest.mark.parametrize(("offset", "first", "start"), [(0, 0, 0), (1, 0, None), (0, 3, None)])
def test_a_first_range_has_a_beginning_only_where_nothing_can_be_missing(
    offset: int, first: int, start: int | None
) -> None:
    """Compaction leaves gaps in the offset log, retention another log start; deleted positions tell none."""
    assert spans([batch(offset, 7, OffsetCommit(0, 5))], {0: first}) == {(7, 3): {0: Span(start, 5)}}
    log = [batch(0, -1, OffsetCommit(0, 2)), batch(1, -1, OffsetCommit(0, None)), batch(2, 7, OffsetCommit(0, 5))]
    assert spans(log, {0: 0}) == {(7, 3): {0: Span(None, 5)}}


def test_ranges_of_several_partitions_in_one_transaction_are_kept_apart() -> None:
    """A gap anywhere in the offset log makes all later beginnings unknown, not those that are known already."""
    thinned = batch(3, 8, OffsetCommit(0, 9), OffsetCommit(2, 4), count=3)
    log = [
        batch(0, 7, OffsetCommit(0, 5)),
        batch(1, 7, OffsetCommit(1, 6)),
        batch(2, 7, marker="commit"),
        replace(thinned, raw=replace(thinned.raw, records=2)),
        batch(6, 8, OffsetCommit(3, None)),
        batch(7, 9, OffsetCommit(4, 8)),
        batch(8, 5, marker="commit"),  # what it commits lay in the gap
    ]
    assert spans(log, dict.fromkeys(range(5), 0)) == {
        (7, 3): {0: Span(0, 5), 1: Span(0, 6)},
        (8, 3): {0: Span(5, 9), 2: Span(None, 4)},
        (9, 3): {4: Span(None, 8)},
    }


def test_a_transactional_id_is_shown_as_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of input topic `ox`, it was shown as `g🐂0`; one with `[/a]`, which another program chose, ended explain."""
    monkeypatch.setenv("COLUMNS", "120")
    for name in ("g:ox:0", "[/a]"):
        show(render(document(history(1, ONE, replace(copy(), transactional_id=name)))))
        assert name in capsys.readouterr().out


def test_neither_a_reason_nor_what_is_unavailable_controls_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other programs choose their ids, and a function's error may quote a record."""
    monkeypatch.setenv("COLUMNS", "300")
    twice = history(1, ONE, *(replace(copy(offset=offset), transactional_id="\x1b[2J") for offset in (0, 1)))
    name, why = verdict([twice]) or ("", "")
    notes = ["the function raised ValueError: \x1b[2J"]
    show(render(document(twice)), *remarks({"verdict": {"verdict": name, "why": why}, "unavailable": notes}))
    text = capsys.readouterr().out
    assert ("\x1b[2J" in text, text.count(r"\x1b[2J")) == (False, 5)
