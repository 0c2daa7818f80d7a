"""`brew lag` decides from values: records that remain, and what a partition is doing."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import Mock

import pytest
from rich.console import Console

from brew.cli import exit_code_of
from brew.cluster import ONGOING, CoordinatorTransaction, OpenTransaction, RawBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import BrewError, DeadlineExceeded, KafkaFailure, Refused
from brew.kafka.raw_log import FirstVisible
from brew.kafka.topics import Topic
from brew.names import ExitCode, SinkTransactionalId
from brew.offsets import Committed, LogOffsets
from brew.sink.position import BY_HAND
from operations import lag
from operations.lag import document_of, lag_table, late, sink_of, sink_position
from operations.partition_state import PartitionSnapshot, Remaining, classify, remaining_records
from pipeline.__main__ import cli

NOW_MS = 1_000_000


def data(base: int, count: int, producer: int = 7, *, transactional: bool = True, width: int | None = None) -> RawBatch:
    last = base + (width or count) - 1
    return RawBatch(base, last, count, producer, 0, 0, transactional, control=False, marker=None, max_timestamp=0)


def marker(base: int, kind: str, producer: int = 7) -> RawBatch:
    return RawBatch(base, base, 1, producer, 0, -1, transactional=True, control=True, marker=kind, max_timestamp=0)


def plain(base: int, count: int, **more: Any) -> RawBatch:
    return data(base, count, transactional=False, **more)


SEVERAL = (data(0, 3), data(3, 2), data(5, 1, 8), marker(6, "commit"), marker(7, "abort", 8))


@pytest.mark.parametrize(
    ("start", "until", "batches", "expected"),
    [
        (0, 4, [data(0, 3), marker(3, "commit")], Remaining(3)),
        (0, 4, [data(0, 3), marker(3, "abort")], Remaining(0)),
        (3, 4, [marker(3, "commit")], Remaining(0)),
        (3, 6, [marker(3, "abort"), marker(4, "commit", 8), marker(5, "abort", 9)], Remaining(0)),
        (1, 4, [data(0, 3), marker(3, "commit")], Remaining(2)),
        (0, 3, [plain(0, 3)], Remaining(3)),
        (0, 2, [plain(0, 3)], Remaining(2)),
        (0, 6, [data(0, 2), data(2, 2, 8), marker(4, "commit", 8), marker(5, "abort")], Remaining(2)),
        # Several batches of one transaction count together.
        (0, 10, [*SEVERAL, plain(8, 1), plain(9, 1)], Remaining(7)),
        # The marker stands above the last stable offset, behind an older open transaction.
        (0, 2, [data(0, 2), data(2, 1, 8), marker(3, "abort")], Remaining(0)),
        (0, 2, [data(0, 2), data(2, 1, 8), marker(3, "commit", 9)], Remaining(2, exact=False)),
        # Compaction left two of ten, and the header does not tell where they stand.
        (5, 10, [plain(0, 2, width=10)], Remaining(2, exact=False)),
        (0, 10, [plain(0, 2, width=10)], Remaining(2)),
        (5, 15, [plain(0, 2, width=10), plain(10, 6)], Remaining(7, exact=False)),
        (10, 20, [plain(0, 2, width=10), plain(10, 10)], Remaining(10)),
        # Not looked at to the end: what is left out may all be visible.
        (0, 100, [plain(0, 10)], Remaining(100, exact=False)),
        (0, 0, [], Remaining(0)),
    ],
)
def test_only_records_that_a_reader_is_given_remain(
    start: int, until: int, batches: list[RawBatch], expected: Remaining
) -> None:
    assert remaining_records(start, until, batches) == expected


def test_what_was_not_looked_at_may_all_be_visible() -> None:
    """Behind the end nothing is left; a pending transaction is not settled."""
    log = [plain(0, 5), data(5, 4), plain(9, 3, producer=8), marker(12, "commit"), plain(13, 2)]
    counts = [remaining_records(5, 10, log[:count]) for count in range(len(log) + 1)]
    assert counts == [Remaining(5, exact=False)] * 4 + [Remaining(5)] * 2
    rest = iter(log)
    remaining_records(5, 10, rest)
    assert list(rest) == log[4:]  # once settled, no more is read
    assert [str(Remaining(1234)), str(Remaining(1234, exact=False))] == ["1,234", "at most 1,234"]


def own(epoch: int = 3, state: str = ONGOING, age_s: float = 5.0, timeout_s: float = 60.0) -> CoordinatorTransaction:
    began = int(NOW_MS - age_s * 1000)
    return CoordinatorTransaction("g:in:0", state, 11, epoch, int(timeout_s * 1000), began, frozenset())


def snapshot(
    committed: int | None,
    remaining: int,
    *,
    stable: int = 100,
    end: int = 100,
    mine: CoordinatorTransaction | None = None,
    holders: tuple[OpenTransaction, ...] = (),
    oldest_ms: int | None = None,
) -> PartitionSnapshot:
    position = None if committed is None else Committed(committed, "")
    return PartitionSnapshot(0, LogOffsets(5, stable, end), position, Remaining(remaining), holders, mine, oldest_ms)


def unchanged(*given: Any, **more: Any) -> tuple[PartitionSnapshot, PartitionSnapshot]:
    """Nothing has changed between two looks."""
    return snapshot(*given, **more), snapshot(*given, **more)


HOLDER = OpenTransaction(0, 42, 6, 90, "upstream-1", 33.3)

OLDER = "its own transaction has been open{}, longer than its timeout: run `brew doctor`"
FAR = "1,005 offsets behind 'upstream-1' (producer 42, epoch 6, open for 33 s)"
NAMELESS = replace(HOLDER, transactional_id=None, age_s=None)
AND_ANOTHER = "1 offset behind an unknown transactional id (producer 42, epoch 6) and 1 more"
UNTOLD = "10 offsets behind an open transaction; the brokers did not report its producer"
NO_OFFSET = "no committed offset, and no transaction of the pipeline is known: is it running under this group?"
UNKNOWN_OWNER = "no progress, and no transaction of the pipeline is known: is it running?"
NONE_OPEN = "no progress, and no transaction is open: is the pipeline running?"
BEGIN = "attempts begin (epoch 3 to {}), but none commits: two runs fence each other, or every attempt fails"
ARRIVED = "all that is left has become readable since the last snapshot"
HALF = snapshot(50, 50)


def half(mine: CoordinatorTransaction) -> PartitionSnapshot:
    return snapshot(50, 50, mine=mine)


@pytest.mark.parametrize(
    ("before", "now", "state", "why"),
    [
        (*unchanged(100, 0), "idle", "at the end of the log"),
        (*unchanged(99, 0), "idle", "only markers and aborted records are left (1 offset)"),
        (*unchanged(90, 0, stable=1100, end=1100), "idle", "only markers and aborted records are left (1,010 offsets)"),
        (HALF, snapshot(60, 40), "working", "the position moved by +10"),
        (snapshot(60, 40), HALF, "working", "the position moved by -10"),
        (*unchanged(50, 50, mine=own()), "working", "a transaction has been open for 5.0 s"),
        (HALF, half(own(age_s=60.0)), "working", "a transaction has been open for 60.0 s"),
        (HALF, half(own(age_s=60.1)), "stuck", OLDER.format(" for 60 s")),
        (HALF, half(replace(own(), began_ms=None)), "stuck", OLDER.format("")),
        (HALF, half(own(state="PrepareCommit")), "working", "its transaction is ending"),
        (snapshot(90, 0, stable=90, end=1095), snapshot(90, 0, stable=90, end=1095, holders=(HOLDER,)), "blocked", FAR),
        (snapshot(90, 0, stable=99), snapshot(90, 0, stable=99, holders=(NAMELESS, HOLDER)), "blocked", AND_ANOTHER),
        (*unchanged(90, 0, stable=90), "blocked", UNTOLD),
        (snapshot(50, 40, stable=90), snapshot(50, 40, stable=90, holders=(HOLDER,)), "stuck", UNKNOWN_OWNER),
        (*unchanged(None, 50), "stuck", NO_OFFSET),
        # Retention moves the log start, and brokers forget a group's offset: neither is progress.
        (replace(snapshot(None, 50), log=LogOffsets(0, 100, 100)), snapshot(None, 50), "stuck", NO_OFFSET),
        (snapshot(50, 50), snapshot(None, 95), "stuck", NO_OFFSET),
        (snapshot(None, 95), snapshot(50, 50), "working", "the position moved by +45"),
        (*unchanged(5, 1), "stuck", UNKNOWN_OWNER),
        (half(own(3, "CompleteAbort")), half(own(4, "CompleteAbort")), "fenced", BEGIN.format(4)),
        (half(replace(own(3, "Empty"), producer_id=10)), half(own(5, "Empty")), "fenced", BEGIN.format(5)),
        (HALF, half(own(state="Empty")), "stuck", NONE_OPEN),
        (*unchanged(50, 50, mine=own(4, "CompleteCommit")), "stuck", NONE_OPEN),
        # A topic with a record a minute: nothing was left at the first look.
        (snapshot(90, 0, stable=90, end=90), snapshot(90, 10), "working", ARRIVED),
        (snapshot(90, 0, stable=90), snapshot(90, 10, mine=own(state="Empty")), "working", ARRIVED),
        (snapshot(90, 1, stable=91), snapshot(90, 10), "stuck", UNKNOWN_OWNER),
        (snapshot(90, 0, stable=90), snapshot(90, 10, mine=own(age_s=60.1)), "stuck", OLDER.format(" for 60 s")),
        (*unchanged(4, 96), "stuck", "input-lost: the committed offset 4 is outside the log [5, 100]"),
        (*unchanged(101, 0), "stuck", "offset-ahead: the committed offset 101 is outside the log [5, 100]"),
    ],
)
def test_a_partition_is_doing_what_two_looks_tell(
    before: PartitionSnapshot, now: PartitionSnapshot, state: str, why: str
) -> None:
    """The first rule that fits decides."""
    assert classify(before, now, NOW_MS) == (state, why)


def test_what_could_not_be_read_once_is_not_told_of_a_later_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    """`lag --watch` kept showing "unavailable" when the group had reached the end, where nothing else is read."""
    position = Committed(5, "")

    def denied(*_: object) -> NoReturn:
        raise Refused("not now")

    monkeypatch.setattr(lag, "admin", lambda *_: None)
    monkeypatch.setattr(lag, "consumer", lambda *_: None)
    monkeypatch.setattr(lag.topics, "describe_one", lambda *_: Topic("in", "id", 2, 1))
    monkeypatch.setattr(lag.cluster_admin, "leaders", lambda *_: {0: 1, 1: 1})
    monkeypatch.setattr(lag, "committed", lambda *_: {0: position, 1: Committed(9, "")})
    monkeypatch.setattr(lag, "log_offsets", lambda *_: dict.fromkeys((0, 1), LogOffsets(0, 9, 9)))
    monkeypatch.setattr(lag, "open_transactions_admin", denied)
    observer = lag.Observer(Connection("nowhere:1"), "in", "g", 100)
    snapshot, _ = observer.snapshot(Deadline(5))
    assert (snapshot.remaining.records, observer.unavailable) == (4, "not now")
    position = Committed(9, "")
    snapshot, _ = observer.snapshot(Deadline(5))
    assert (snapshot.remaining.records, observer.unavailable) == (0, None)


@pytest.fixture
def observer(monkeypatch: pytest.MonkeyPatch) -> lag.Observer:
    for client in ("admin", "consumer"):
        monkeypatch.setattr(lag, client, lambda *_: None)
    return lag.Observer(Connection("nowhere:1"), "in", "g", 10)


def test_a_marker_above_the_last_stable_offset_is_looked_for_and_a_lag_of_just_the_limit_counted(
    observer: lag.Observer,
) -> None:
    log = [data(90, 10), plain(100, 5), marker(105, "abort"), plain(106, 4)]

    def batches(_topic: str, _partition: int, _start: int, until: int, _deadline: Deadline) -> Iterator[Any]:
        return ((one, None) for one in log if one.base_offset < until)

    raw: Any = SimpleNamespace(batches=batches)
    assert observer._remaining(snapshot(90, 10, end=130), raw, Deadline(5)) == Remaining(0)
    farther = lag._plain(0, LogOffsets(5, 100, 130), Committed(89, ""))
    assert observer._remaining(farther, raw, Deadline(5)) == Remaining(11, exact=False)


def test_the_oldest_record_is_read_again_once_the_position_has_moved(
    observer: lag.Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind it, markers and aborted records may be all that is left."""
    looks, raw = list[tuple[int, int]](), cast("Any", None)

    def first_visible(_raw: object, _topic: str, _partition: int, *span: Any) -> FirstVisible:
        looks.append(span[:2])
        return FirstVisible(NOW_MS) if len(looks) == 1 else FirstVisible(nothing=True)

    monkeypatch.setattr(lag, "first_visible", first_visible)
    aged = [observer._aged(snapshot(*at), raw, Deadline(5)) for at in ((50, 50), (50, 50), (60, 40), (100, 0))]
    assert looks == [(50, 100), (60, 100)]
    assert [one.remaining.records for one in aged] == [50, 50, 0, 0]
    assert [one.oldest_ms for one in aged] == [NOW_MS, NOW_MS, None, None]


def test_the_oldest_record_of_a_recreated_topic_is_read_anew(
    observer: lag.Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a committed offset the position stays at 0: the age was that of a record which was gone."""
    ids, ages = iter(["old", "old", "new"]), iter([NOW_MS, NOW_MS + 5000])
    monkeypatch.setattr(lag.topics, "describe_one", lambda *_: Topic("in", next(ids), 1, 1))
    monkeypatch.setattr(lag.cluster_admin, "leaders", lambda *_: {0: 1})
    monkeypatch.setattr(lag, "committed", lambda *_: {0: None})
    monkeypatch.setattr(lag, "log_offsets", lambda *_: {0: LogOffsets(0, 9, 9)})
    monkeypatch.setattr(lag, "first_visible", lambda *_: FirstVisible(next(ages)))
    raw = SimpleNamespace(batches=lambda *_: iter(()))
    transactions = SimpleNamespace(raw=raw, named=lambda _ids: [], held=list, of_producers=list)
    monkeypatch.setattr(lag, "open_transactions_admin", lambda *_: nullcontext(transactions))
    assert [observer.snapshot(Deadline(5))[0].oldest_ms for _ in range(3)] == [NOW_MS, NOW_MS, NOW_MS + 5000]


def test_partitions_without_a_leader_are_left_out_and_named_beside_another_problem(
    observer: lag.Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their offsets can't be read; `sink_position` looks at the first partition there is."""
    monkeypatch.setattr(lag.topics, "describe_one", lambda *_: Topic("in", "id", 3, 1))
    monkeypatch.setattr(lag.cluster_admin, "leaders", lambda *_: {0: -1, 1: 4, 2: leader})
    monkeypatch.setattr(lag, "committed", lambda _reader, _topic, asked, _deadline: dict.fromkeys(asked))
    monkeypatch.setattr(lag, "log_offsets", lambda *_: dict.fromkeys((1, 2), LogOffsets(0, 9, 9)))
    monkeypatch.setattr(lag, "open_transactions_admin", Mock(side_effect=Refused("not now")))
    leader = -1
    assert [one.partition for one in observer.snapshot(Deadline(5))] == [1]
    assert observer.unavailable == "no leader for in[0], in[2]; start a broker that holds them; not now"
    leader = 4
    assert [one.partition for one in observer.snapshot(Deadline(5))] == [1, 2]
    assert observer.leaderless == [0]
    assert lag.sink_position([]) is None


@pytest.mark.parametrize("lost", ["an admin client", "a consumer", None])
def test_a_watch_whose_client_lost_the_brokers_goes_on_with_new_ones(
    monkeypatch: pytest.MonkeyPatch, lost: str | None
) -> None:
    """Both are replaced; of brokers that do not answer at all, none is."""
    made, closed = list[str](), Mock()
    monkeypatch.setattr(lag, "admin", lambda *_: made.append("an admin client") or made[-1])
    monkeypatch.setattr(lag, "consumer", lambda *_: made.append("a consumer") or closed)
    monkeypatch.setattr(lag, "is_cut_off", lambda client, *_: ("a consumer" if client is closed else client) == lost)
    monkeypatch.setattr(lag.topics, "describe_one", Mock(side_effect=DeadlineExceeded("no answer")))
    watching = lag.Observer(Connection("nowhere:1"), "in", "g", 10)
    with pytest.raises(DeadlineExceeded):
        watching.snapshot(Deadline(5))
    assert (made, closed.close.called) == (["an admin client", "a consumer"] * (2 if lost else 1), lost is not None)


@pytest.mark.parametrize(("state", "told"), [(ONGOING, True), ("CompleteCommit", False)])
def test_a_sinks_ended_transaction_says_nothing_of_a_partition_that_waits(
    observer: lag.Observer, state: str, *, told: bool
) -> None:
    """Its epoch grows with each batch of the others, as if two runs fenced each other."""
    waits = replace(snapshot(50, 50), committed=Committed(50, "revenue:out:sink"))
    mine = replace(own(state=state), transactional_id="revenue:out:sink")
    transactions: Any = SimpleNamespace(
        named=lambda names: [one for one in (mine, own(state=state)) if one.transactional_id in names]
    )
    assert observer._own(transactions, [waits]) == ({0: mine} if told else {})
    assert observer._own(transactions, [snapshot(50, 50)]) == {0: own(state=state)}


SINKS = replace(HALF, committed=Committed(50, BY_HAND))
OLD = replace(HALF, oldest_ms=0)


@pytest.mark.parametrize(
    ("seen", "words", "code"),
    [
        (HALF, [], ExitCode.DONE),
        (HALF, ["--fail-on", "stuck"], ExitCode.VIOLATION),
        (HALF, ["--fail-on", "fenced", "--fail-on", "stuck"], ExitCode.VIOLATION),
        (HALF, ["--fail-on", "blocked"], ExitCode.DONE),
        (OLD, ["--fail-older-than", "60"], ExitCode.VIOLATION),
        (OLD, ["--fail-older-than", "60", "--fail-on", "blocked"], ExitCode.VIOLATION),
        (OLD, ["--fail-older-than", "60", "--watch"], ExitCode.USAGE),
        (SINKS, [], ExitCode.DONE),
        *((SINKS, words, ExitCode.REFUSED) for words in (["--fail-older-than", "60"], ["--watch"])),
    ],
)
def test_an_alarm_goes_by_what_was_asked_for(
    seen: PartitionSnapshot, words: list[str], code: ExitCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink's position has no lag, so an alarm on it would never sound."""
    observer = SimpleNamespace(snapshot=lambda _: [seen], unavailable=None, leaderless=[], close=Mock())
    monkeypatch.setattr(lag.options, "connected", lambda _: None)
    monkeypatch.setattr(lag, "Observer", lambda *_: observer)
    assert exit_code_of(cli, "brew", ["lag", "--interval", "0.1", *words]) == code


def test_a_partition_whose_records_can_not_be_counted_hides_no_others_state(observer: lag.Observer) -> None:
    """A broker that went down a moment ago, or 10,000 partitions: all were "stuck", without their transactions."""
    observer._ages = False

    def batches(_topic: str, _partition: int, start: int, *_more: object) -> Iterator[tuple[RawBatch, None]]:
        yield plain(start, 5), None
        raise DeadlineExceeded("raw batches")

    transactions: Any = SimpleNamespace(
        raw=SimpleNamespace(batches=batches), named=lambda _ids: [own()], of_producers=list
    )
    (now,) = observer._deep([snapshot(90, 10)], transactions, Deadline(5))
    assert (now.own, now.remaining, observer.unavailable) == (own(), Remaining(10, exact=False), "raw batches")


def test_the_document_counts_states_and_records() -> None:
    held = snapshot(90, 0, stable=90, holders=(HOLDER,))
    loose = PartitionSnapshot(1, LogOffsets(0, 9, 9), None, Remaining(9, exact=False))
    document = document_of([held], [held, loose], NOW_MS, "brokers are too old")
    assert (document["remaining"], document["exact"]) == (9, False)
    assert document["states"] == {"blocked": 1, "stuck": 1}
    assert document["partitions"][0]["held_by"][0]["transactional_id"] == "upstream-1"
    assert len(lag_table(document, "in", "g").renderables) == 3


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_terminal_that_is_too_narrow_cuts_no_number(width: int) -> None:
    """At 80 columns, an offset above 10^11 lost its last digits, and the reason its column."""
    log = LogOffsets(0, 123_456_789_012, 123_456_789_099)
    far = PartitionSnapshot(1234, log, Committed(123_456_700_000, ""), Remaining(89_012))
    Console(file=(out := io.StringIO()), width=width).print(
        lag_table(document_of([far], [far], NOW_MS, None), "in", "g")
    )
    text = out.getvalue()
    numbers = ("1234", "123,456,700,000", "123,456,789,012", "123,456,789,099", "89,012")
    assert [number for number in numbers if number not in text] == []
    assert ("why: no progress" in text, "┃" in text) == (width < 120, width == 120)


@pytest.mark.parametrize("failure", [KafkaFailure("no answer"), Refused("no answer")])
def test_watching_while_no_broker_answers_claims_no_number_of_records(
    failure: BrewError, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    It showed "at most 0 records to read", and `"remaining": 0` to a monitor, whatever the lag was. It ended where the
    topic was missing, as while it is recreated, or at a broker that has just started.
    """
    answers = iter([failure, KeyboardInterrupt()])

    def answer(*_: object) -> NoReturn:
        raise next(answers)

    monkeypatch.setattr(lag, "_next", answer)
    with pytest.raises(KeyboardInterrupt):
        lag._watch(SimpleNamespace(), [], 0, "in", "g", as_json=True)  # type: ignore[arg-type]
    document = json.loads(capsys.readouterr().out)
    assert (document["remaining"], document["exact"], document["unavailable"]) == (None, False, "no answer")
    lines = [str(line) for line in lag_table(document, "in", "g").renderables[1:]]
    assert lines == ["unavailable: no answer"]


def test_watching_into_a_file_shows_each_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lag --watch | tee lag.log` showed nothing until it was stopped, and then the last table only."""
    tables = []

    def answer(*_: object) -> tuple[list[PartitionSnapshot], dict[str, Any]]:
        tables.append(capsys.readouterr().out)
        if len(tables) > 2:
            raise KeyboardInterrupt
        return [], document_of([], [snapshot(90, 0)], NOW_MS, None)

    monkeypatch.setattr(lag, "_next", answer)
    with pytest.raises(KeyboardInterrupt):
        lag._watch(SimpleNamespace(), [], 0, "in", "g", as_json=False)  # type: ignore[arg-type]
    assert [text.count("0 records to read") for text in tables] == [0, 1, 1]


def test_the_lag_in_seconds_is_the_age_of_the_first_record_that_is_left_and_an_age_limit_needs_it() -> None:
    """None left is 0, a record from a faster clock is not older than new; an alarm that can't know says so."""
    waits, untold = snapshot(50, 40, oldest_ms=NOW_MS - 75_000), snapshot(50, 40)
    rows = (waits, snapshot(90, 0), untold, snapshot(50, 1, oldest_ms=NOW_MS + 1))
    assert [one.lag_s(NOW_MS) for one in rows] == [75.0, 0.0, None, 0.0]
    document = document_of([waits], [snapshot(90, 0), waits], NOW_MS, None)
    assert (document["lag_s"], [row["lag_s"] for row in document["partitions"]]) == (75.0, [0.0, 75.0])
    known, partly = (document_of([], snapshots, NOW_MS, None) for snapshots in ([waits], [waits, untold]))
    assert [late(known, limit) for limit in (None, 74.9, 75)] == [False, True, False]
    assert (late(partly, 74), late(partly, None)) == (True, False)
    with pytest.raises(Refused, match=r"--fail-older-than is 75, but the age .* partition 0 is unknown"):
        late(partly, 75)
    assert (partly["lag_s"], document_of([], [snapshot(90, 0), untold], NOW_MS, None)["lag_s"]) == (None, None)
    assert str(lag_table(partly, "in", "g").renderables[-1]).endswith("the oldest is at least 75 s old")


@pytest.mark.parametrize(("offset", "kind"), [(4, "input-lost"), (101, "offset-ahead")])
def test_of_a_position_outside_the_log_neither_count_nor_age_is_claimed(offset: int, kind: str) -> None:
    """Of a topic that was recreated, `lag` said "0 records to read, 0 s old", and --fail-older-than was content."""
    outside = lag._plain(0, LogOffsets(5, 100, 100), Committed(offset, ""))
    assert (outside.remaining, outside.lag_s(NOW_MS)) == (Remaining(95, exact=False), None)
    document = document_of([outside], [outside], NOW_MS, None)
    with pytest.raises(Refused, match=f"is unknown \\({kind}: the committed offset {offset} is outside the log"):
        late(document, 75)
    emptied = lag._plain(0, LogOffsets(5, 5, 5), Committed(offset, ""))
    assert (emptied.remaining, emptied.lag_s(NOW_MS)) == (Remaining(0), 0)


@pytest.mark.parametrize(
    ("committed", "position"),
    [
        (None, None),
        (Committed(17, ""), None),
        (Committed(17, "topic-id=abc"), None),
        (Committed(17, '{"query":"q","offsets":"a","topic":"t"}'), ("q", False)),
        (Committed(17, '{"query":null,"offsets":"","topic":"t"}'), (None, False)),
        (Committed(17, BY_HAND), (None, True)),
    ],
)
def test_a_group_that_is_a_sinks_position_is_told_as_one(
    committed: Committed | None, position: tuple[str | None, bool] | None
) -> None:
    found = sink_position([PartitionSnapshot(0, LogOffsets(0, 9, 9), committed, Remaining(9))])
    known = None if position is None else {"query": position[0], "by_start_at": position[1]}
    assert found == (None if known is None else {"next_batch": 17, **known})
    assert lag._of_sink("g", {"next_batch": 17, "query": "\x1b]0;", "by_start_at": False}).isprintable()


def test_a_source_offset_names_the_sink_that_committed_it_and_another_programs_names_none() -> None:
    """Also where librdkafka appends stray bytes."""
    for metadata in ("a:revenue:out:sink", "a:revenue:out:sink\x00:?"):
        assert sink_of(Committed(17, metadata)) == SinkTransactionalId("a:revenue", "out")
    for other in (None, *(Committed(17, metadata) for metadata in ("", "topic-id=abc", "a:b:7"))):
        assert sink_of(other) is None
