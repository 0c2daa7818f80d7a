"""What `brew show` says of records: fates, bytes that are no text, and their order."""

from __future__ import annotations

import io
import re
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harness.xray_logs import batch, marker
from rich.console import Console

from brew.cluster import RawBatch
from brew.connection import Connection
from brew.errors import Refused, Retriable, Unreachable, UsageError
from brew.kafka.topics import Topic
from brew.names import READ_COMMITTED
from brew.offsets import LogOffsets
from brew.signals import Stopped
from operations import show
from operations.dlq.dead_letter_reader import DeadLetter
from operations.options import chosen_partitions
from operations.show import (
    Reader,
    RecordQuery,
    _merged,
    collected,
    content_document,
    lines,
    marker_document,
    record_document,
)
from operations.xray.model import RunBuilder


def folded(until: int, *batches: RawBatch) -> RunBuilder:
    builder = RunBuilder(0, until)
    for one in batches:
        builder.add(one)
    return builder


def test_a_window_is_undecided_until_the_marker_of_what_began_in_it() -> None:
    log = [batch(0, 5, 7), batch(5, 5, 8)]
    assert (folded(5, *log).undecided, folded(0, *log).undecided) == (True, False)
    log.append(marker(10, 7, "commit"))
    assert (folded(5, *log).undecided, folded(6, *log).undecided) == (False, True)


def test_markers_of_every_type_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A control batch whose type this program does not know is no gap; those outside of the span are not shown."""
    log = [marker(0, 6, "commit"), batch(1, 2, 7), marker(3, 7, "abort", 1), replace(marker(4, -1, ""), marker=None)]
    reader = Reader.__new__(Reader)
    reader._connection, reader.wanted = Connection("k:9092"), RecordQuery("out", markers=True)
    reader._raw = SimpleNamespace(batches=lambda *_: iter([(one, b"") for one in log]))
    monkeypatch.setattr("operations.show.scan", lambda *_: iter([]))
    records = reader.span(0, 1, 5, LogOffsets(0, 5, 5))
    shown = [(one["offset"], one["fate"], one["producer_id"], one["producer_epoch"]) for one in records]
    assert shown == [(3, "abort-marker", 7, 1), (4, "unknown-marker", None, None)]
    console = Console(file=io.StringIO(), width=200)
    console.print(lines(records))
    assert "unknown-marker" in console.file.getvalue()


def test_an_outage_of_the_brokers_does_not_end_it_and_is_reported_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended at the first restart of the only broker (`No leaders found`); clients may have to be opened anew."""
    gone = Retriable("query leaders: No leaders found")
    answers: list[Any] = [10, gone, Unreachable("no broker"), 12, Stopped()]
    opened: list[int] = []

    def bounds() -> dict[int, LogOffsets]:
        answer = answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return {0: LogOffsets(0, answer, answer)}

    def reader(*_: object) -> Any:
        opened.append(1)
        forward = lambda _, start, log: [(log.end, [start, log.end])] if start < log.end else []  # noqa: E731
        return SimpleNamespace(bounds=bounds, forward=forward, current_id=lambda: "id", leave_out_leaderless=list)

    monkeypatch.setattr(show, "raw_logs", lambda *_: nullcontext())
    monkeypatch.setattr(show, "Reader", reader)
    monkeypatch.setattr(show, "_POLL_S", 0)
    shown: list[Any] = []
    with pytest.raises(Stopped):
        show.follow_log(Connection("k:9092"), RecordQuery("out"), {0: 10}, shown.append, "id")
    assert (shown, len(opened)) == ([[10, 12]], 3)
    assert re.findall("brokers-(away|back): k:9092", capsys.readouterr().err) == ["away", "back"]


def test_a_partition_that_is_new_after_an_outage_is_followed_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended with a KeyError; and a place that retention had passed meanwhile was reported as an outage for ever."""
    answers = [{0: LogOffsets(0, 10, 10)}, {0: LogOffsets(20, 25, 25), 1: LogOffsets(3, 5, 5)}]

    def bounds() -> dict[int, LogOffsets]:
        if not answers:
            raise Stopped
        return answers.pop(0)

    forward = lambda p, start, log: [(log.end, [(p, start)])] if start < log.end else []  # noqa: E731
    reader = SimpleNamespace(bounds=bounds, current_id=lambda: "id", forward=forward, leave_out_leaderless=list)
    monkeypatch.setattr(show, "raw_logs", lambda *_: nullcontext())
    monkeypatch.setattr(show, "Reader", lambda *_: reader)
    monkeypatch.setattr(show, "_POLL_S", 0)
    shown: list[Any] = []
    with pytest.raises(Stopped):
        show.follow_log(Connection("k:9092"), RecordQuery("out"), {0: 10}, shown.append, "id")
    assert shown == [[(0, 20)], [(1, 3)]]


def test_a_topic_that_is_recreated_is_shown_from_its_first_record_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it was shown until it was as long as the old one. It may be missing for long, also after an outage."""
    described = [("old", 1), None, Unreachable("no broker"), None, ("new", 2), ("new", 2)]
    monkeypatch.setattr(show, "raw_logs", lambda *_: nullcontext())
    monkeypatch.setattr(show, "_POLL_S", 0)
    monkeypatch.setattr(show, "admin", lambda _connection: None)
    monkeypatch.setattr(show.cluster_admin, "leaderless", lambda *_: [])

    def describe(*_: object) -> dict[str, Topic]:
        if not described:
            raise Stopped
        known = described.pop(0)
        if isinstance(known, Unreachable):
            raise known
        return {} if known is None else {"out": Topic("out", *known, 1)}

    monkeypatch.setattr(show.topics, "describe", describe)
    monkeypatch.setattr(
        show, "log_offsets", lambda _client, _topic, asked, _deadline: {p: LogOffsets(0, 3, 3) for p in asked}
    )
    monkeypatch.setattr(Reader, "span", lambda _self, *where: [where[:2]])
    shown: list[Any] = []
    with pytest.raises(Stopped):
        show.follow_log(Connection("k:9092"), RecordQuery("out"), {0: 100}, shown.append, "old")
    assert shown == [[(0, 0)], [(1, 0)]]
    away, back, recreated = capsys.readouterr().err.splitlines()
    assert (away[:12], back[:12]) == ("brokers-away", "brokers-back")
    assert recreated == "out was deleted and recreated: showing the new one from its first record on"


def test_a_partition_without_a_leader_hides_no_others_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No record of any was shown, and the brokers, which answered, were reported away. It is named once."""
    leaderless = [[1], [1], [0, 1], [], Stopped()]

    def found(*_: object) -> list[int]:
        answer = leaderless.pop(0)
        if isinstance(answer, Stopped):
            raise answer
        return answer

    def offsets(_client: object, _topic: str, asked: list[int], _deadline: object) -> dict[int, LogOffsets]:
        end = 13 - len(leaderless)
        return {p: LogOffsets(0, end, end) for p in asked}

    monkeypatch.setattr(show, "raw_logs", lambda *_: nullcontext())
    monkeypatch.setattr(show, "_POLL_S", 0)
    monkeypatch.setattr(show, "admin", lambda _connection: None)
    monkeypatch.setattr(show.topics, "describe", lambda *_: {"out": Topic("out", "id", 2, 1)})
    monkeypatch.setattr(show.cluster_admin, "leaderless", found)
    monkeypatch.setattr(show, "log_offsets", offsets)
    monkeypatch.setattr(Reader, "span", lambda _self, *where: [where[:3]])
    shown: list[Any] = []
    with pytest.raises(Stopped):
        show.follow_log(Connection("k:9092"), RecordQuery("out"), {0: 8, 1: 8}, shown.append, "id")
    assert shown == [[(0, 8, 9)], [(0, 9, 10)], [(0, 10, 12)], [(1, 8, 12)]]
    one, both = capsys.readouterr().err.splitlines()
    assert one == "no leader for out[1]; start a broker that holds them; showing the others"
    assert both.startswith("no leader for out[0], out[1];")


def test_a_long_log_is_followed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of a partition was held in memory, and shown only once its end was read."""
    reader = Reader.__new__(Reader)
    reader.wanted, starts = RecordQuery("out"), {0: 10}
    monkeypatch.setattr(Reader, "bounds", lambda _self: {0: LogOffsets(0, 5000, 5000)})
    monkeypatch.setattr(Reader, "span", lambda _self, *where: [where[1:3]])
    shown: list[Any] = []
    show._show_new(reader, starts, shown.append)
    assert (shown, starts) == ([[(10, 2010)], [(2010, 4010)], [(4010, 5000)]], {0: 5000})


def test_a_record_without_a_timestamp_is_shown_without_one() -> None:
    """It was shown as 1969-12-31T23:59:59.999Z."""
    record = marker_document("out", 0, 7, -1, "plain") | {"key": {"null": True}, "value": {"null": True}, "headers": []}
    console = Console(file=io.StringIO(), width=200)
    console.print(lines([record]))
    (row,) = [line for line in console.file.getvalue().splitlines() if "0/7" in line]
    assert [cell.strip() for cell in row.split("│")[1:4]] == ["0/7", "-", "plain"]


@pytest.mark.parametrize(
    ("content", "document"),
    [
        (b"gold-1", {"text": "gold-1"}),
        ("Café".encode(), {"text": "Café"}),
        (b"", {"text": ""}),
        (None, {"null": True}),
        (b"\xff\xfe", {"base64": "//4="}),
        (b"\xed\xa0\x80", {"base64": "7aCA"}),
    ],
)
def test_bytes_say_whether_they_are_text(content: bytes | None, document: dict[str, object]) -> None:
    """Invalid UTF-8, lone surrogates among it, is base64 and not a replaced character."""
    assert content_document(content) == document


def test_a_record_whose_headers_can_not_be_read_is_shown_without_them() -> None:
    """The client library fails at a name that is not UTF-8; unguarded, it ended the process by SIGSEGV."""

    def headers() -> list[tuple[str, bytes | None]]:
        raise SystemError("returned a result with an exception set")

    known = {"partition": 0, "offset": 1, "timestamp": (0, 1), "key": b"k", "value": b"v"}
    record: Any = SimpleNamespace(**{name: lambda value=value: value for name, value in known.items()}, headers=headers)
    document = record_document("out", record, None)
    assert (document["key"], document["headers"]) == ({"text": "k"}, None)
    Console(file=(out := io.StringIO()), width=200).print(lines([document]))
    assert "(unreadable: a name is not UTF-8)" in out.getvalue()
    with pytest.raises(Refused, match=r"partition 0, offset 1 has a header whose name is not UTF-8"):
        DeadLetter.of(record)


def test_nothing_that_a_terminal_could_take_for_a_command_is_printed() -> None:
    """Neither escape sequences nor rich's own markup."""
    console = Console(file=(out := io.StringIO()), width=200)
    record = {"partition": 0, "offset": 1, "timestamp_ms": 2**62, "fate": "plain", "key": {"text": "[red]k[/red]"}}
    console.print(lines([{**record, "value": {"text": "\x1b[2Jx"}, "headers": [["h\x07", {"null": True}]]}]))
    text = out.getvalue()
    assert ("\x1b" in text, "\x07" in text, "[red]k[/red]" in text, "(null)" in text) == (False, False, True, True)


def test_records_of_several_partitions_are_merged_by_time_and_keep_each_partitions_order() -> None:
    """Timestamps of a partition may run backwards; its offsets never do."""
    given = [(0, 0, 50), (0, 1, 10), (1, 0, 20), (1, 1, 60)]
    merged = _merged({"partition": p, "offset": offset, "timestamp_ms": ms} for p, offset, ms in given)
    assert [(one["partition"], one["offset"]) for one in merged] == [(1, 0), (0, 0), (0, 1), (1, 1)]


LOGS = {0: LogOffsets(10, 5000, 5010), 1: LogOffsets(0, 7, 7)}


def reader_of(monkeypatch: pytest.MonkeyPatch, wanted: RecordQuery) -> tuple[Reader, list[tuple[int, int, int]]]:
    """A reader whose logs hold a record at every tenth offset, of that time; and the spans that it reads."""
    """A reader whose logs hold a record at every tenth offset, which is its time, too; and the spans that it reads."""
    reader, spans = Reader.__new__(Reader), list[tuple[int, int, int]]()
    reader.wanted, reader._admin = wanted, None  # type: ignore[assignment]

    def span(_self: Reader, partition: int, start: int, until: int, _log: LogOffsets) -> list[dict[str, Any]]:
        spans.append((partition, start, until))
        there = range(-(-start // 10) * 10, until, 10)
        return [{"partition": partition, "offset": offset, "timestamp_ms": offset} for offset in there]

    monkeypatch.setattr(Reader, "span", span)
    monkeypatch.setattr(show, "offsets_at", lambda *_: {0: 4990, 1: None})
    return reader, spans


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        (RecordQuery("out", limit=3), [(0, 4980), (0, 4990), (0, 5000)]),
        (RecordQuery("out", limit=3, isolation=READ_COMMITTED), [(0, 4970), (0, 4980), (0, 4990)]),
        (RecordQuery("out", start=4981, limit=2), [(0, 4990), (0, 5000)]),
        (RecordQuery("out", start=0, limit=2), [(1, 0), (0, 10)]),
        # A time behind the last record of a partition has no record there.
        (RecordQuery("out", since_ms=4990, limit=0), [(0, 4990), (0, 5000)]),
        (RecordQuery("out", start=5000, limit=9, isolation=READ_COMMITTED), []),
    ],
)
def test_the_newest_or_the_first_records_from_a_place_are_shown(
    monkeypatch: pytest.MonkeyPatch, wanted: RecordQuery, places: list[tuple[int, int]]
) -> None:
    """In the order of time, over all partitions; a committed reader is given nothing behind the last stable offset."""
    reader, _ = reader_of(monkeypatch, wanted)
    assert [(one["partition"], one["offset"]) for one in collected(reader, LOGS)] == places


def test_the_newest_records_are_read_in_few_steps_back_and_each_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long log is not read from its start; with all of it wanted, none is left out."""
    reader, spans = reader_of(monkeypatch, RecordQuery("out", limit=3))
    reader.newest(0, LOGS[0])
    assert spans == [(0, 4990, 5010), (0, 4950, 4990)]
    reader, spans = reader_of(monkeypatch, RecordQuery("out", limit=0))
    assert [one["offset"] for one in reader.newest(0, LOGS[0])] == list(range(10, 5010, 10))
    assert len(spans) == 3


def test_an_offset_below_the_log_is_refused_where_one_partition_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several partitions, each begins where it does."""
    reader, _ = reader_of(monkeypatch, RecordQuery("out", start=9))
    with pytest.raises(Refused, match=r"--offset is 9, but the log of out\[0\] begins at 10; set --offset to 10"):
        reader.starts({0: LOGS[0]})
    assert reader.starts(LOGS) == {0: 10, 1: 9}


@pytest.mark.parametrize(
    ("chosen", "partitions"), [((), [0, 1, 2]), ((2, 0, 2), [0, 2]), ((3,), None), ((0, -1), None)]
)
def test_a_partition_that_a_topic_has_not_is_refused(chosen: tuple[int, ...], partitions: list[int] | None) -> None:
    if partitions is None:
        with pytest.raises(UsageError, match=r"--partition is (3|-1): out has partitions 0 to 2"):
            chosen_partitions(chosen, "out", 3)
    else:
        assert chosen_partitions(chosen, "out", 3) == partitions
