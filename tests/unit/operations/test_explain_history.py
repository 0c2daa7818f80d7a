"""`brew explain` decides from values: a record's fate, who sees it, and the answer for an order."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from harness.fakes import log_record
from harness.xray_logs import batch, marker
from rich.console import Console

from brew.cli import exit_code_of
from brew.cluster import RawBatch
from brew.errors import Fatal, Refused, UsageError
from brew.kafka import topics
from brew.names import READ_UNCOMMITTED, ExitCode
from brew.offsets import LogOffsets, SinkBatch, SourcePosition
from brew.records import ERROR_OFFSET, ERROR_PARTITION, ERROR_REASON, ERROR_TOPIC
from operations.explain import command
from operations.explain import search as searching
from operations.explain.command import has_copied_headers, since
from operations.explain.search import OrderSearch, OrderTopics
from operations.explain.verdict import (
    BROKEN,
    Copy,
    DeliveryStatus,
    Order,
    OrderHistory,
    delivery_status,
    link_replays,
)
from operations.options import table
from operations.record_status import RecordState, RecordWriter, Visibility, visibility, writer_of
from pipeline.__main__ import cli


def wrote(state: str, *more: Any) -> RecordWriter:
    return RecordWriter(RecordState(state), *more)


@pytest.mark.parametrize(
    ("batches", "written"),
    [
        ([batch(10, 5, 7, 3), marker(15, 7, "commit", 3)], ("committed", 7, 3, 15, 3)),
        ([batch(10, 5, 7, 3), marker(15, 7, "abort", 4)], ("aborted", 7, 3, 15, 4)),
        ([batch(10, 5, 7, 3), marker(15, 8, "commit", 3)], ("open", 7, 3)),
        ([batch(10, 5, 7, 3), marker(15, 7, "abort", 3), marker(16, 7, "commit", 3)], ("aborted", 7, 3, 15, 3)),
        (
            [batch(10, 3, 7, 3), marker(13, 8, "abort", 3), batch(14, 2, 7, 3), marker(16, 7, "commit", 4)],
            ("committed", 7, 3, 16, 4),
        ),
        ([batch(11, 1, -1, -1, tx=False)], ("plain", -1, -1)),
        ([batch(10, 3, 7, 3, tx=False)], ("plain", 7, 3)),
        ([batch(12, 2, 7, 3), marker(14, 7, "commit", 3)], ("unknown",)),
        ([], ("unknown",)),
    ],
)
def test_the_next_marker_of_its_producer_decides_a_records_fate(batches: list[RawBatch], written: Any) -> None:
    assert writer_of(11, batches) == wrote(*written)


@pytest.mark.parametrize(
    ("offset", "one", "last"),
    [
        (10, batch(10, 3, 7, 3), False),
        (12, batch(10, 3, 7, 3), False),
        (10, batch(10, 3, 7, 3, tx=False), True),
        (9, batch(10, 3, 7, 3), True),
        (13, batch(10, 3, 7, 3), False),
        (10, batch(10, 1, 7, 3), False),
    ],
)
def test_no_more_of_the_log_is_read_than_decides(offset: int, one: RawBatch, last: bool) -> None:
    log = iter([one, batch(13, 1, 8, 3)])
    writer_of(offset, log)
    assert bool(list(log)) is last


WAITS = "not below the last stable offset 100: readers wait for an older open transaction"

ENDED = "aborted by the marker at 60"
FENCED = f"{ENDED} (epoch 4, newer than the producer's: fenced, timed out, or aborted under transaction.version 2)"


@pytest.mark.parametrize(
    ("offset", "written", "visible", "rule"),
    [
        (99, ("committed", 7, 3, 99, 3), True, "committed by the marker at 99"),
        (100, ("committed", 7, 3, 110, 3), False, WAITS),
        (99, ("plain",), True, "written outside of transactions, and below the last stable offset"),
        (100, ("plain",), False, WAITS),
        (50, ("aborted", 7, 3, 60, 3), False, f"{ENDED} (by its own producer)"),
        (50, ("aborted", 7, 3, 60, None), False, f"{ENDED} (by its own producer)"),
        (50, ("aborted", 7, 3, 60, 4), False, FENCED),
        (101, ("open", 7, 3), False, "its transaction is still open: no marker yet"),
        (5, ("unknown",), False, "no batch contains it: retention or compaction removed it"),
    ],
)
def test_a_rule_says_who_sees_a_record(offset: int, written: Any, visible: bool, rule: str) -> None:
    """The last stable offset is the first that readers are not given."""
    assert visibility(offset, wrote(*written), LogOffsets(0, 100, 120)) == Visibility(visible, rule)


def copy(state: str, epoch: int = 3, name: str | None = "g:in:0", *, visible: bool | None = None) -> Copy:
    seen = state in {"committed", "plain"} if visible is None else visible
    return Copy("output", "out", 0, 10 + epoch, wrote(state, 7, epoch), Visibility(seen, "a rule"), name)


def planted(offset: int, state: str = "committed", pid: int = 7, epoch: int = 3, marker: int = 90) -> Copy:
    written = wrote(state, pid, epoch, None if state == "plain" else marker)
    return replace(copy(state), offset=offset, written=written, transactional_id="g:in:0" if pid == 7 else None)


PLAIN = copy("plain")
LETTER = replace(copy("committed"), role="dead-letter", topic="dlq", reason="not-json", message="not JSON: line 1")


def history(*copies: Copy, position: int | None = 50, source: Copy | None = PLAIN) -> OrderHistory:
    return OrderHistory(SourcePosition("in", 0, 40), source, copies, position)


COMMITTED, ABORTED, OPEN = map(copy, ("committed", "aborted", "open"))
EARLIER, LATER = copy("aborted", 2), copy("committed", 5)
AGAIN = "not committed yet; the next attempt processes it"
TRIED = "not committed yet, 1 attempt aborted; the next attempt processes it"
ONCE = "delivered once, to out[0] offset 13"
TWO_OUTPUTS = history(replace(COMMITTED, topic="late", index=1), COMMITTED)
REPLAYED = replace(history(replace(LETTER, message="m")), replays=("in/0/1", "in/0/2"))
REPLAYS = "not-json: m; dead letter dlq/0/13; replayed as in/0/1; replayed as in/0/2"
FANNED_OUT = (*(replace(copy("committed", epoch), index=1) for epoch in (3, 4)), copy("plain"))
STILL_OPEN = "written, and its transaction is still open"
BOTH = "2 copies were committed (out/0/13 and out/0/15)"
REFUSED = "not-json: not JSON: line 1; dead letter dlq/0/13"
BESIDE = "also 1 aborted copy (read_uncommitted readers see 2 copies)"
TWO_BESIDE = "also 2 aborted copies (read_uncommitted readers see 3 copies)"
DROPPED = "the transformation drops it, and the committed offset is past it"
TWO_GROUPS = "two groups, or two programs, write to this topic"
ANOTHER = "written outside of transactions: another program writes to this topic"
ITSELF = "its writer produced the record more than once"
TWICE_BY_ONE = f"2 copies were committed (out/0/13 and dlq/0/13), in 1 transaction of g:in:0: {ITSELF}"
PLACES = "out/0/1 and out/0/2"
ONE_WRITER = f"in 1 transaction of g:in:0: {ITSELF}"
TWO_IDS = f"in 2 transactions of g:in:0 and h:in:0: {TWO_GROUPS}"
TWO_PRODUCERS = f"in 2 transactions of g:in:0 and producer 9: {TWO_GROUPS}"
BY_US = "committed by g:in:0"
ALL_PLAIN = "all written outside of transactions: by another program"
OLDER = "committed, but readers wait for an older open transaction"
UNREAD = "the input record was deleted before the group had committed an offset past it, and no copy was found"
GONE = "the committed offset is past it, no copy was found, and"
REMOVED = "the output logs are incomplete (retention, compaction, or no such topic)"
MISSING = (
    "the committed offset is past it, and no committed copy exists: the offset was reset to a later one, "
    "the transformation drops it (check with --transform), or it went to a topic that is not searched (--also-output)"
)
MOVED = (
    "in 2 transactions of g:in:0: the committed offset was reset to an earlier one, or a run started over "
    "(--on-missing-position start-over)"
)


@pytest.mark.parametrize(
    ("order_history", "status", "why"),
    [
        (history(COMMITTED), "delivered", ONCE),
        (history(EARLIER, COMMITTED), "delivered", f"{ONCE}; {BESIDE}"),
        (history(ABORTED, ABORTED, COMMITTED), "delivered", f"{ONCE}; {TWO_BESIDE}"),
        (TWO_OUTPUTS, "delivered", "delivered once, as 2 outputs: out/0/13, late/0/13"),
        (history(copy("committed", visible=False)), "waiting", OLDER),
        (history(replace(LETTER, view=Visibility(visible=False, rule=""))), "waiting", OLDER),
        (history(LETTER), "rejected", REFUSED),
        (history(replace(LETTER, message="")), "rejected", "not-json; dead letter dlq/0/13"),
        (history(EARLIER, LETTER), "rejected", f"{REFUSED}; {BESIDE}"),
        (REPLAYED, "rejected", REPLAYS),
        (history(OPEN, position=40), "in-flight", STILL_OPEN),
        (history(ABORTED, ABORTED, OPEN), "in-flight", f"{STILL_OPEN}, 2 attempts aborted"),
        (history(position=40), "not-read", AGAIN),
        (replace(history(position=40), dropped=True), "not-read", AGAIN),
        (history(ABORTED, position=40), "not-read", TRIED),
        (history(ABORTED, position=None), "not-read", TRIED),
        (history(ABORTED, replace(ABORTED, index=1), position=None), "not-read", TRIED),
        (replace(history(position=41), dropped=True), "dropped", DROPPED),
        (history(position=41), "lost", MISSING),
        (history(ABORTED, position=41), "lost", MISSING),
        (replace(history(), complete=False), "not-found", f"{GONE} {REMOVED}"),
        (history(source=None), "not-found", f"{GONE} the input record was deleted"),
        (history(position=None, source=None), "not-found", UNREAD),
        (history(ABORTED, position=40, source=None), "not-found", f"{UNREAD}, 1 attempt aborted"),
        (history(position=40, source=OPEN), "not-visible", "not visible on the input: a rule"),
        (history(source=OPEN), "not-visible", "not visible on the input: a rule"),
        (history(source=ABORTED), "not-visible", "the input record itself was aborted, so it is not to be delivered"),
        (history(COMMITTED, source=ABORTED), "ghost", "the input record was aborted, but it was delivered"),
        (history(COMMITTED, LATER), "twice", f"{BOTH}, {MOVED}"),
        (history(LETTER, LATER), "twice", f"2 copies were committed (dlq/0/13 and out/0/15), {MOVED}"),
        (history(*FANNED_OUT), "twice", f"2 copies were committed (out/0/13 and out/0/14), {MOVED}"),
        (history(COMMITTED, copy("committed", 5, "h:in:0")), "twice", f"{BOTH}, {TWO_IDS}"),
        (history(COMMITTED, copy("plain", 5)), "twice", f"2 copies (out/0/13 and out/0/15), 1 {BY_US} and 1 {ANOTHER}"),
        (history(replace(COMMITTED, index=1), LETTER), "twice", TWICE_BY_ONE),
        # Copies as planted ones may be: in a transaction of its own, in somebody else's, or in none.
        (history(planted(1), planted(2, epoch=4, marker=91)), "twice", f"2 copies were committed ({PLACES}), {MOVED}"),
        (history(planted(1), planted(2, marker=91)), "twice", f"2 copies were committed ({PLACES}), {MOVED}"),
        (history(planted(1), planted(2)), "twice", f"2 copies were committed ({PLACES}), {ONE_WRITER}"),
        (history(planted(1), planted(2, pid=9)), "twice", f"2 copies were committed ({PLACES}), {TWO_PRODUCERS}"),
        (history(planted(1), planted(2, "plain", pid=-1)), "twice", f"2 copies ({PLACES}), 1 {BY_US} and 1 {ANOTHER}"),
        (history(planted(1, "plain"), planted(2, "plain")), "twice", f"2 copies ({PLACES}), {ALL_PLAIN}"),
    ],
)
def test_an_order_has_one_answer(order_history: OrderHistory, status: str, why: str) -> None:
    assert delivery_status(order_history) == (status, why)
    assert {"twice", "lost", "ghost"} == BROKEN, "they make the exit code 1"


def test_a_replay_is_linked_to_the_dead_letter_that_it_was() -> None:
    """The record says from which; its dead letter's record learns where to. Those that stand first are told first."""
    replay = replace(history(), at=SourcePosition("in", 1, 2), order=Order("o-1", b"x", SourcePosition("dlq", 0, 13)))
    unrelated = replace(
        history(), at=SourcePosition("in", 1, 3), order=Order("o-1", b"x", SourcePosition("dlq", 0, 99))
    )
    aborted = replace(replay, at=SourcePosition("in", 1, 4), source=ABORTED)
    first, *others = link_replays([replay, unrelated, aborted, history(LETTER)])
    assert (first.replays, [one.replays for one in others]) == (("in/1/2",), [(), (), ()])
    assert "replayed as in/1/2" in delivery_status(first)[1]
    assert history(COMMITTED, LETTER, replace(ABORTED, reason="not-json")).letters == [LETTER]


@pytest.mark.parametrize(
    ("order_history", "text"),
    [
        (history(position=None), "not processed yet: there is no committed offset"),
        (history(position=40), "not processed yet: the committed offset is 40"),
        (history(ABORTED, position=40), "not processed yet: the committed offset is 40"),
        (history(OPEN, ABORTED, position=40), "in flight: the committed offset is 40, and a transaction is open"),
        (history(position=41), "processed: the committed offset is 41"),
    ],
)
def test_the_groups_offset_is_held_against_the_order(order_history: OrderHistory, text: str) -> None:
    assert order_history.group_view() == text


def test_times_are_spans_or_dates() -> None:
    """A date without a zone is UTC. Brokers take no time before 1970."""
    assert since("90s", 1000.0) == 910_000
    assert since("2h", 10_000.0) == 2_800_000
    assert since("1970-01-01T00:01", 0.0) == 60_000
    assert since("1970-01-01T01:01+01:00", 0.0) == 60_000
    assert since("1900-01-01", 0.0) == since("30000d", 1_000_000.0) == 0
    with pytest.raises(UsageError, match="yesterday"):
        since("yesterday", 0.0)


def sinks_copy(state: str, transactional_id: str | None) -> Copy:
    return Copy("sink", "out", 0, 5, wrote(state, 7, 3), Visibility(True, "yes"), transactional_id)


@pytest.mark.parametrize(
    ("copy", "copied"),
    [
        (sinks_copy("committed", "a:revenue:out:sink"), False),
        (sinks_copy("committed", "a:revenue:positions:sink"), False),
        (sinks_copy("committed", None), False),
        (sinks_copy("committed", "revenue:out:sink"), True),
        (sinks_copy("committed", "mirror"), True),
        (sinks_copy("plain", None), True),
    ],
)
def test_a_sinks_headers_in_a_record_of_another_writer_were_copied(copy: Copy, copied: bool) -> None:
    assert has_copied_headers(SinkBatch("a:revenue", 4), copy) is copied


def test_names_with_brackets_are_shown_whole() -> None:
    """Rich took `[a]` of a transactional id for its markup."""
    console = Console(width=100, file=StringIO())
    console.print(table(["transaction"], [["revenue [a]:out:sink"]]))
    assert "revenue [a]:out:sink" in console.file.getvalue()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("policy", "answer", "notes"),
    [
        (None, DeliveryStatus.NOT_FOUND, ["topic out does not exist"]),
        ("compact", DeliveryStatus.NOT_FOUND, []),
        ("delete,compact", DeliveryStatus.NOT_FOUND, []),
        ("delete", DeliveryStatus.LOST, []),
        ("trimmed", DeliveryStatus.NOT_FOUND, []),
        (Fatal("denied"), DeliveryStatus.LOST, ["whether compaction removed a copy: denied"]),
    ],
)
def test_a_copy_that_may_be_elsewhere_or_compacted_is_not_lost(
    policy: str | Fatal | None, answer: DeliveryStatus, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    A compacted output keeps the last record of a key: `explain` called the others lost, with exit code 1.

    So did a mistyped `--output`; in both cases nobody knows.
    """

    def cleanup_policy(_client: object, name: str, _deadline: object) -> str:
        if isinstance(policy, Fatal):
            raise policy
        return policy if policy and name == "out" else "delete"

    monkeypatch.setattr(topics, "cleanup_policy", cleanup_policy)
    at, searches, known = SourcePosition("in", 0, 3), list[tuple[int | None, bool]](), list[bool]()
    search = OrderSearch.__new__(OrderSearch)
    vars(search).update(
        order_topics=OrderTopics("in", "out", "dlq", "g"),
        unavailable=[],
        _function=None,
        _admin=None,
        source=lambda _position: log_record(3),
        logs=lambda name: {} if (policy, name) == (None, "out") else {0: LogOffsets(int(policy == "trimmed"), 10, 10)},
        _logs={"out": {}},
        _positions=lambda _partitions: known.append("out" in search._logs) or {0: 4},
        _search=lambda _sources, since_ms, *, keyed: searches.append((since_ms, keyed)) or [],
        _copy=lambda *_of: PLAIN,
        _named=lambda _copies: None,
    )
    (found,) = search.histories([at])
    assert (delivery_status(found)[0], search.unavailable) == (answer, notes)
    assert searches == [(0, True), (None, False)], "committed without a copy: once more, without key and time"
    # What is committed after a log's end was read has copies behind it.
    assert (known, search._logs) == ([True], {}), "positions first, and ends anew"


def test_a_function_may_change_timestamps_and_drop_what_an_earlier_one_tried_to_write() -> None:
    """A second copy with an older timestamp was not found, and a record with an aborted copy was called lost."""
    at, searches = SourcePosition("in", 0, 3), list[tuple[int | None, bool]]()
    search = OrderSearch.__new__(OrderSearch)
    vars(search).update(
        order_topics=OrderTopics("in", "out", "dlq", "g"),
        unavailable=[],
        _function=lambda _record: None,
        source=lambda _position: log_record(3),
        logs=lambda _name: {0: LogOffsets(0, 10, 10)},
        _logs={},
        _positions=lambda _partitions: {0: 4},
        _may_be_compacted=lambda: False,
        _search=lambda _s, since_ms, *, keyed: searches.append((since_ms, keyed)) or [(at, "out", log_record(5))],
        _copy=lambda role, *_of: PLAIN if role == "input" else ABORTED,
        _named=lambda _copies: lambda _position, copy: copy,
    )
    assert delivery_status(search.histories([at])[0]) == (DeliveryStatus.DROPPED, DROPPED)
    assert searches == [(None, False)]


def searched(**known: Any) -> OrderSearch:
    search = OrderSearch.__new__(OrderSearch)
    logs = {0: LogOffsets(2, 10, 12), 1: LogOffsets(0, 10, 10), 2: LogOffsets(0, 10, 10)}
    topics_searched = OrderTopics("in", "out", "dlq", "g")
    vars(search).update(_logs={"in": logs}, order_topics=topics_searched, _connection=None, _admin=None, **known)
    return search


def test_a_record_is_found_also_if_it_is_not_visible_and_a_place_that_is_none_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An aborted or open record is what `explain` is asked about."""
    read = list[tuple[dict[int, tuple[int, int]], str]]()

    def scan(_c: object, _t: str, ranges: dict[int, tuple[int, int]], isolation: str, **_group: str) -> list[list[Any]]:
        read.append((ranges, isolation))
        return [[log_record(11)]]

    monkeypatch.setattr(searching, "scan", scan)
    search = searched()
    assert search.origin("in", 0, 11) == SourcePosition("in", 0, 11)
    assert read == [({0: (11, 12)}, READ_UNCOMMITTED)]
    assert search.origin("in", 0, 1) == SourcePosition("in", 0, 1), "retention deleted it; its copies may be there"
    for offset, why in ((12, "the log ends at 12"), (5, "there is no record")):
        with pytest.raises(Refused, match=why):
            search.origin("in", 0, offset)


def test_a_record_made_from_another_topic_than_the_input_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The offset of a group that never read it was taken for its own, and the record for lost."""
    made = log_record(3, headers=SourcePosition("clicks", 0, 7).headers())
    monkeypatch.setattr(searching, "scan", lambda *_, **__: [[made]])
    search = searched()
    search._logs["out"] = {0: LogOffsets(0, 10, 10)}
    with pytest.raises(Refused, match="out/0/3 was made from clicks/0/7, and --input is in; set --input to clicks"):
        search.origin("out", 0, 3)
    search.order_topics = replace(search.order_topics, input="clicks")
    assert search.origin("out", 0, 3) == SourcePosition("clicks", 0, 7)


def test_a_dead_letter_of_a_call_is_no_copy_of_the_order() -> None:
    """Beside the order's output, it counted as a second copy: `explain` said twice, with exit code 1."""
    at = SourcePosition("in", 0, 3)
    place = [(ERROR_TOPIC, b"out"), (ERROR_PARTITION, b"0"), (ERROR_OFFSET, b"5")]
    headers = {"out": at.headers(), "dlq": [*at.headers(), (ERROR_REASON, b"call-failed"), *place]}
    search = searched()
    search._records = lambda topic, _since_ms: iter([log_record(5, headers=list(headers[topic]))])  # type: ignore[assignment]
    assert [topic for _, topic, _ in search._search({at: log_record(3)}, None, keyed=True)] == ["out"]
    headers["dlq"] = [(ERROR_REASON, b"not-json"), *at.headers()]
    assert [topic for _, topic, _ in search._search({at: log_record(3)}, None, keyed=True)] == ["out", "dlq"]


def test_records_since_a_time_are_read_from_where_each_partition_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """From offset 0, too; a partition without a newer record is left out."""
    read = list[object]()
    monkeypatch.setattr(searching, "offsets_at", lambda *_: {0: 4, 1: 0, 2: None})
    monkeypatch.setattr(searching, "scan", lambda _c, _t, ranges, *_, **__: read.append(ranges) or [])
    assert list(searched()._records("in", 5)) == []
    assert read == [{0: (4, 12), 1: (0, 10)}]


def test_outputs_are_not_read_for_a_key_that_no_record_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them and the dead letters were read from their beginning, whatever `--since` was."""
    monkeypatch.setattr(searching, "committed_by", lambda *_: {})
    monkeypatch.setattr(searching, "scan", lambda *_, **__: pytest.fail("read"))
    search = searched(_function=None, unavailable=[], _transactions=SimpleNamespace(of_producers=list))
    search._logs |= {"out": search._logs["in"], "dlq": search._logs["in"]}
    monkeypatch.setattr(OrderSearch, "logs", lambda self, topic: self._logs.setdefault(topic, self._logs["in"]))
    assert searching.related_records(search, []) == []


def test_only_times_that_producers_set_limit_the_search_and_each_output_names_one_source() -> None:
    five, three, by_broker = (log_record(1, timestamp=stamp) for stamp in ((1, 5), (1, 3), (2, 1)))
    assert searching.earliest([five, three]) == 3
    assert [searching.earliest(some) for some in ([five, None], [five, by_broker], [])] == [None] * 3
    second = log_record(1, headers=SourcePosition("in", 0, 40, 2).headers())
    assert searching._source(second) == SourcePosition("in", 0, 40)


@pytest.mark.parametrize(
    ("histories", "code"),
    [
        ([history(COMMITTED)], ExitCode.DONE),
        ([history(COMMITTED), history(position=41)], ExitCode.VIOLATION),
        ([], ExitCode.DONE),
    ],
)
def test_a_broken_promise_is_an_exit_code(
    histories: list[OrderHistory], code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracer = SimpleNamespace(check=lambda _: None, matching=lambda *_: ([], len(histories)), unavailable=[])
    monkeypatch.setattr(command, "connected", lambda _: None)
    monkeypatch.setattr(command, "open_transactions_admin", lambda *_: nullcontext())
    monkeypatch.setattr(command, "OrderSearch", lambda *_: tracer)
    monkeypatch.setattr(command, "related_records", lambda *_: histories)
    assert exit_code_of(cli, "brew", ["explain", "gold-000016"]) == code


@pytest.mark.parametrize("failure", [ValueError, SystemExit])
def test_a_function_that_fails_says_nothing_of_a_record_and_does_not_end_explain(failure: type[BaseException]) -> None:
    def failing(_record: object) -> None:
        raise failure("no")

    found = OrderSearch.__new__(OrderSearch)
    found._function, found.order_topics, found.unavailable = failing, SimpleNamespace(input="in"), []  # type: ignore[assignment]
    assert not found._drops(log_record(3))
    assert found.unavailable == [f"the function raised {failure.__name__} on in/0/3: no"]


def test_the_newest_records_of_a_key_are_explained_in_whatever_order_partitions_are_read() -> None:
    """A key's records lie in two partitions once the topic has grown, and with --order-id in any of them."""
    times = {(1, 4): 500, (1, 5): 600, (1, 6): 700, (0, 1): 100, (0, 2): 200, (0, 3): 650}
    records = [log_record(offset, p, timestamp=(1, ms)) for (p, offset), ms in times.items()]
    search = OrderSearch.__new__(OrderSearch)
    search.order_topics, search._records = SimpleNamespace(input="in"), lambda *_what: iter(records)  # type: ignore[assignment]
    newest, count = search.matching(lambda _record: True, None, 2)
    assert ([str(one) for one in newest], count) == (["in/0/3", "in/1/6"], 6)
    assert len(search.matching(lambda _record: True, None)[0]) == 6
