"""How `verify` reads the logs: what it waits for, and in which order the checker gets it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from harness.histories import batch

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.connection import Connection
from brew.deadline import Deadline
from brew.errors import DeadlineExceeded, Denied, Refused
from brew.journal import Journal, Phase, Step, entries
from brew.kafka.kafka_python import RawLogs
from brew.names import READ_COMMITTED, READ_UNCOMMITTED
from brew.offsets import LogOffsets
from brew.signals import Stopped
from proof import verify
from proof.checking.checker import Checker
from proof.checking.input_partition import Layout, Row
from proof.checking.journals import Acknowledged, check_readers
from proof.commands import inspect
from proof.findings import Findings, Name, Verdict
from proof.verify import PipelineUnderTest, Snapshot, VerifyOptions

CLAIM = PipelineUnderTest("in", "out", "dlq", "g", ("late",))
WHOLE = LogOffsets(0, 3, 3)


class Noting:
    """A checker that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *values: self.calls.append((name, *values))

    @property
    def offsets(self) -> Noting:
        return self


def checker() -> tuple[Checker, list[Any]]:
    noting = Noting()
    return cast("Checker", noting), noting.calls


@pytest.mark.parametrize(
    ("log", "gap"),
    [
        (WHOLE, None),
        (LogOffsets(1, 3, 3), "late[2] begins at offset 1 because of retention"),
        (LogOffsets(0, 2, 3), "late[2] has an open transaction at offset 2"),
    ],
)
def test_what_may_be_missing_downstream_is_named(log: LogOffsets, gap: str | None) -> None:
    """The first offset that is not 0, and the first that readers do not get; in any of the topics."""
    found = Snapshot({0: LogOffsets(5, 6, 7)}, {"out": {0: WHOLE}, "late": {0: WHOLE, 2: log}}, {0: 3}, None).gaps
    assert [text[: len(gap or "")] for text in found] == ([] if gap is None else [gap])


def test_the_log_that_is_furthest_behind_is_read_next_and_each_end_is_told_once() -> None:
    """The outputs have ended when the last of them has, and not with the group's offsets."""
    judge, calls = checker()

    def feed(name: str, *fractions: float) -> Generator[float]:
        yield 0.0
        for fraction in fractions:
            calls.append((name, fraction))
            yield fraction

    downstream = [feed("out", 0.5, 1.0), feed("dlq", 0.1)]
    verify._read_in_step(judge, feed("in", 0.2, 0.6), downstream, [feed("offsets", 0.9)])
    read = [("offsets", 0.9), ("out", 0.5), ("dlq", 0.1), ("in", 0.2), ("in", 0.6), ("out", 1.0)]
    assert [call for call in calls if len(call) > 1] == read
    assert [call for call in calls if len(call) == 1] == [("input_ended",), ("downstream_ended",)]
    assert calls[-1] == ("downstream_ended",)


def test_raw_batches_come_before_the_records_in_them_and_those_behind_the_last_one_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each once; a partition without visible records has batches as well."""
    logs = {0: LogOffsets(0, 4, 4), 1: LogOffsets(2, 4, 4)}
    raw_of = {0: [batch(0, 2), batch(2), batch(3, marker="commit")], 1: [batch(2), batch(3, marker="abort")]}

    class Raw:
        def batches(self, topic: str, partition: int, start: int, until: int) -> Iterator[tuple[Any, memoryview]]:
            assert (topic, start, until) == ("out", logs[partition].first, 4)
            return ((one, memoryview(b"")) for one in raw_of[partition])

    def rows(*_: object) -> Generator[list[Row]]:
        for offsets in ((0,), (1, 2)):
            yield [(0, offset, None, None, [], 1) for offset in offsets]

    monkeypatch.setattr(verify, "scan_rows", rows)
    judge, calls = checker()
    lead = verify._raw_batches(cast("RawLogs", Raw()), "out", logs, judge)

    def take(some: Any) -> None:
        calls.append(("take", [row[1] for row in some]))

    fractions = list(verify._records(Connection("nowhere:1"), "out", logs, take, lead))
    assert fractions == [0, 1 / 6, 3 / 6]
    assert calls == [
        ("batches", "out", 0, raw_of[0][:1]),
        ("take", [0]),
        ("batches", "out", 0, raw_of[0][1:2]),
        ("take", [1, 2]),
        ("batches", "out", 0, raw_of[0][2:]),
        ("batches", "out", 1, raw_of[1]),
    ]


@pytest.mark.parametrize("count", [0, 1, 199, 200, 201, 400])
def test_all_offset_commits_are_passed_on_however_many(count: int) -> None:
    judge, calls = checker()
    batches = [OffsetBatch(batch(offset)) for offset in range(count)]
    fractions = list(verify._offset_commits(iter(batches), LogOffsets(0, count, count), judge))
    assert [one for _, some in calls for one in some] == batches
    assert fractions == [0.0, *(200 * n / count for n in range(1, count // 200 + 1))]


VALUE = b'{"customer_id":"c"}'
ENRICHED = VALUE[:-1] + b',"loyalty_tier":"gold","loyalty_discount":0.15}'
SOURCE = [("source.topic", b"in"), ("source.partition", b"0"), ("source.offset", b"0")]


def _known(monkeypatch: pytest.MonkeyPatch, read: Callable[..., list[str]]) -> None:
    """One order and one output, which ``read`` passes on."""
    log = LogOffsets(0, 1, 1)
    known = Snapshot({0: log}, {name: {0: log} for name in CLAIM.written}, {0: 1}, None)
    monkeypatch.setattr(verify, "snapshot", lambda *_, **__: known)
    monkeypatch.setattr(verify, "_is_compacted", lambda *_: False)
    monkeypatch.setattr(verify, "_read", read)


@pytest.mark.parametrize("settled", [False, True])
def test_a_check_that_could_not_be_made_is_a_note_and_a_doubt_once_the_run_has_ended(
    settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:

    def read(_connection: object, _claim: object, _logs: object, judge: Checker, _deadline: object) -> list[str]:
        judge.input([(0, 0, b"gold-1", VALUE, [], 1)])
        judge.output([(0, 0, b"gold-1", ENRICHED, [*SOURCE], 1)])
        judge.input_ended()
        judge.downstream_ended()
        return ["the raw logs could not be read"]

    _known(monkeypatch, read)
    report = verify.verify(Connection("nowhere:1"), CLAIM, Deadline(1), VerifyOptions(settled=settled))
    assert report.verdict is (Verdict.INCONCLUSIVE if settled else Verdict.PROVEN)
    unread = ["the raw logs could not be read"]
    assert (report.doubts, report.notes) == ((unread, []) if settled else ([], unread))


HOLES = {0: [batch(0, 2), batch(2)], 1: [batch(0), batch(2)]}
GONE = {0: [replace(batch(0, 3), records=2)]}


@pytest.mark.parametrize(
    ("policy", "raw_of", "compacted"),
    [
        ("compact,delete", None, True),
        ("delete", HOLES, True),
        ("delete", {0: HOLES[0]}, False),
        (None, GONE, True),
        (None, {0: HOLES[0]}, False),
        (None, None, False),
    ],
)
def test_a_compacted_input_is_known_by_its_settings_or_by_what_it_lacks(
    policy: str | None, raw_of: dict[int, list[RawBatch]] | None, compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `proof-reader` may not read settings, and they were others before `verify` said to change them."""

    def settings(*_: object) -> str:
        if policy is None:
            raise Denied("no right")
        return policy

    @contextmanager
    def raw_logs(*_: object) -> Iterator[Any]:
        if raw_of is None:
            raise Refused("no raw logs")
        yield SimpleNamespace(batches=lambda _topic, partition, *_: [(one, None) for one in raw_of[partition]])

    monkeypatch.setattr(verify, "admin", lambda *_: None)
    monkeypatch.setattr("proof.verify.topics.cleanup_policy", settings)
    monkeypatch.setattr(verify, "raw_logs", raw_logs)
    logs = dict.fromkeys(raw_of or [0], WHOLE)
    assert verify._is_compacted(Connection("nowhere:1"), "in", logs, 1) is compacted


def test_a_hanging_transaction_is_reported_however_long_the_logs_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it can't be said who holds it."""

    def read(_connection: object, _claim: object, _logs: object, judge: Checker, _deadline: object) -> list[str]:
        judge.found.add(Name.HANGING, ("out", 0, 3), "open")
        while not deadline.expired():
            time.sleep(0.001)
        return []

    def open_transactions(_connection: object, topic: str, _partitions: object, left: Deadline) -> list[str]:
        left.check("open transactions")
        if topic == "in":
            raise Refused("no right")
        return ["held"]

    held, deadline = LogOffsets(0, 3, 4), Deadline(0.2)
    known = Snapshot({0: held}, {name: {0: held} for name in CLAIM.written[:1]}, {0: 1}, None)
    monkeypatch.setattr(verify, "snapshot", lambda *_, **__: known)
    monkeypatch.setattr(verify, "_is_compacted", lambda *_: False)
    monkeypatch.setattr(verify, "_read", read)
    monkeypatch.setattr(verify, "open_transactions", open_transactions)
    report = verify.verify(Connection("nowhere:1"), CLAIM, deadline, VerifyOptions())
    assert (report.verdict, report.notes) == (
        Verdict.VIOLATED,
        ["in: its open transactions could not be read: no right", "out: held"],
    )


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({}, {}),
        ({"needed": {"kills": 2}, "fired": {"kills": 1}}, {"silent-fault": 1}),
        ({"needed": {"kills": 2}, "fired": {"kills": 2}}, {}),
        ({"healed_at": (1000.0,), "bound_s": 0.5}, {}),
        ({"healed_at": (1000.0,), "bound_s": 0.4}, {"stall": 1}),
        ({"journals": True}, {"unseen": 1}),
        ({"canaries": ("hunter2",), "artefacts": True}, {"secret-leak": 1}),
        ({"canaries": ("hunter2",), "journals": True}, {"secret-leak": 1, "unseen": 1}),
        ({"canaries": ("hunter3",), "artefacts": True}, {}),
    ],
)
def test_what_is_asked_beyond_the_logs_is_looked_at(
    options: dict[str, Any], found: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that missed the one output, a commit 0.45 s after the heal, and a secret in a folder of logs."""
    journals, logs = tmp_path / "journals", tmp_path / "artefacts/deep"
    with closing(Journal(journals, "reader")) as journal:
        journal.write(Step.READ, Phase.INTENT)
        about = {"topic": "out", "partition": -1, "isolation": READ_COMMITTED, "ends": [(0, 1)]}
        journal.write(Step.READ, Phase.DONE, runs=[], **about)
        journal.write(Step.READ, Phase.DONE, final=True)
    logs.mkdir(parents=True)
    for folder in (journals, logs):
        (folder / "stderr").write_text("password=hunter2")
    given = {"journals": journals, "artefacts": (tmp_path / "artefacts",)}
    asked = {name: given[name] if value is True else value for name, value in options.items()}

    def read(_connection: object, _claim: object, _logs: object, judge: Checker, _deadline: object) -> list[str]:
        judge.input([(0, 0, b"gold-1", VALUE, [], 1)])
        judge.batches("out", 0, [batch(0), batch(1, marker="commit", at_ms=1_000_450)])
        judge.output([(0, 0, b"gold-1", ENRICHED, [*SOURCE], 1)])
        judge.input_ended()
        judge.downstream_ended()
        return []

    _known(monkeypatch, read)
    report = verify.verify(Connection("nowhere:1"), CLAIM, Deadline(1), VerifyOptions(**asked))
    assert report.totals == found


def test_what_journals_got_after_the_logs_ends_were_read_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that went on, slowly, had lost a commit, and its reader had got a record that was in no log."""

    def snapshot(*_: object, **__: object) -> Snapshot:
        with closing(Journal(tmp_path, "writer")) as journal:
            journal.write(Step.COMMIT, topic="in", group="g", partition=0, start=3, until=5)
            journal.write(Step.READ, topic="out", partition=0, runs=[[3, 0, 3, 1]])
        return Snapshot({0: WHOLE}, {name: {0: WHOLE} for name in CLAIM.written}, {0: 3}, None)

    def read(_connection: object, _claim: object, _logs: object, judge: Checker, _deadline: object) -> list[str]:
        judge.offsets.begin(0)
        judge.offsets.take([OffsetBatch(batch(0), (OffsetCommit(0, 3),)), OffsetBatch(batch(1, marker="commit"))])
        return []

    monkeypatch.setattr(verify, "snapshot", snapshot)
    monkeypatch.setattr(verify, "_read", read)
    report = verify.verify(Connection("nowhere:1"), CLAIM, Deadline(1), VerifyOptions(journals=tmp_path))
    assert report.totals == {}


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, int]]:
    """Return a function that reads two topics of two records, and returns what the checker finds in the journals."""
    layouts = {(name, 0): Layout(0) for name in ("out", "dlq")}

    def reading(stopped_in: str = "", later: int = 0) -> dict[str, int]:
        def scan(_connection: object, name: str, *_: object) -> Iterator[list[Any]]:
            for offset in (0, 1):
                yield [SimpleNamespace(partition=lambda: 0, offset=lambda offset=offset: offset, headers=list)]
                if name == stopped_in:
                    raise Stopped

        monkeypatch.setattr(inspect, "scan", scan)
        with suppress(Stopped):
            inspect.journal_records(Connection("nowhere:1"), ["out", "dlq"], READ_COMMITTED, tmp_path, following=False)
        for offset in range(2, 2 + later):
            layouts["out", 0].add(offset, -1, -1)
        found = Findings()
        check_readers(entries(tmp_path), layouts, found, Acknowledged((), "in"))
        return {str(name): count for name, count in found.totals.items()}

    for layout in layouts.values():
        layout.add(0, -1, -1)
        layout.add(1, -1, -1)
    monkeypatch.setattr(inspect, "admin", lambda _connection: None)
    monkeypatch.setattr(inspect.log_summary, "topic_offsets", lambda *_: {0: LogOffsets(0, 2, 2)})
    return reading


def test_a_reader_that_was_stopped_in_its_second_topic_missed_nothing(read: Callable[..., dict[str, int]]) -> None:
    assert read(stopped_in="dlq") == {}


def test_a_process_with_the_pid_of_an_earlier_reader_is_another_one(read: Callable[..., dict[str, int]]) -> None:
    """As in a container, where each has the pid 1."""
    read(stopped_in="out")
    assert read() == {}


def test_what_is_written_after_a_reader_has_finished_is_nothing_that_it_missed(
    read: Callable[..., dict[str, int]],
) -> None:
    assert read(later=3) == {}


def test_a_silent_coordinator_is_no_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """It told of a transaction, and to run the pipeline again, while the group's partition had no leader."""

    def committed_by(*asked: Any) -> dict[int, Any]:
        if asked[4] in silent:
            raise DeadlineExceeded("locate: no stable answer within 10 s")
        return {0: None}

    monkeypatch.setattr(verify.offsets, "committed_by", committed_by)
    silent = {READ_COMMITTED, READ_UNCOMMITTED}
    for settled in (True, False):
        with pytest.raises(Refused, match="no broker answers as the coordinator of group 'g'"):
            verify._committed(Connection("nowhere:1"), CLAIM, range(1), settled=settled)
    silent = {READ_COMMITTED}
    assert verify._committed(Connection("nowhere:1"), CLAIM, range(1), settled=True) == {0: None}
    with pytest.raises(Refused, match="part of a transaction that has not ended"):
        verify._committed(Connection("nowhere:1"), CLAIM, range(1), settled=False)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], list[int], list[int]]:
    """What `snapshot` asks for; the group's positions that it is told, and the ends of an output, the last for ever."""
    asked, positions, ends = list[str](), [1], [4]

    def committed(*_: object, settled: bool) -> dict[int, int]:
        assert settled
        asked.append("position")
        return {0: positions.pop(0) if len(positions) > 1 else positions[0]}

    def log_offsets(_client: object, name: str, *_: object) -> dict[int, LogOffsets]:
        asked.append(name)
        end = ends.pop(0) if name == "out" and len(ends) > 1 else ends[0]
        return {0: LogOffsets(0, 4, end if name == "out" else 4)}

    monkeypatch.setattr(verify, "admin", lambda _: None)
    monkeypatch.setattr(verify.topics, "describe_one", lambda *_: SimpleNamespace(partitions=1))
    monkeypatch.setattr(verify.offsets, "log_offsets", log_offsets)
    monkeypatch.setattr(verify, "_committed", committed)
    monkeypatch.setattr(verify, "_offset_log", lambda *_: None)
    monkeypatch.setattr(verify, "_PAUSE_S", 0.0)
    return asked, positions, ends


LOOK = ["position", "in", "out", "late", "dlq", "position"]


@pytest.mark.parametrize(
    ("positions", "ends", "looks", "gaps"),
    [([1], [4], 1, 0), ([1, 2], [4], 2, 0), ([1], [5, 4], 2, 0), ([1], [5], 1, 1)],
    ids=["quiet", "the group moves on", "markers come later", "an open transaction"],
)
def test_logs_are_taken_between_two_equal_looks_at_the_position(
    positions: list[int],
    ends: list[int],
    looks: int,
    gaps: int,
    asked: tuple[list[str], list[int], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Logs from before a position may lack what it says is out; what stays open is a gap, after some patience."""
    monkeypatch.setattr(verify, "_SETTLE_S", 1e-9 if gaps else 60.0)
    asked[1][:], asked[2][:] = positions, ends
    found = verify.snapshot(Connection("nowhere:1"), CLAIM, Deadline(5), settled=True)
    assert (asked[0], found.committed, len(found.gaps)) == (LOOK * looks, {0: positions[-1]}, gaps)


def test_a_position_that_never_stands_still_is_refused(
    asked: tuple[list[str], list[int], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "_SETTLE_S", 1e-9)
    asked[1][:] = range(9)
    with pytest.raises(Refused, match="the position of group 'g' kept changing"):
        verify.snapshot(Connection("nowhere:1"), CLAIM, Deadline(5), settled=True)
