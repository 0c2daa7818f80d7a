"""The parts of the checker one by one: lanes, layouts, journals of readers and writers, demands, epochs."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest
from harness.histories import batch, gap_bytes, page_bytes, waiting_in

from brew.cluster import RawBatch
from brew.journal import Entry, Phase, Run, Step
from proof.checking.input_partition import Early, InputPartition, Layout, OffsetRanges, Record, Row, SeenSources
from proof.checking.journals import Acknowledged, check_fired, check_readers, check_secrets, check_stalls
from proof.checking.transactions import Endings, RawLog
from proof.findings import Finding, Findings, Name


def row(offset: int) -> Row:
    return 0, offset, None, None, [], None


@pytest.fixture
def findings() -> Findings:
    return Findings()


def input_partition(*offsets: int, read: int = 10) -> InputPartition:
    partition = InputPartition(0)
    for offset in offsets:
        partition.skip_to(offset)
        partition.queue.append(row(offset))
        partition.read = offset + 1
    partition.skip_to(read)
    return partition


def test_a_lane_gives_out_each_input_once_and_knows_which_were_visible() -> None:
    inputs = input_partition(1, 2, 5)
    assert [inputs.visible(offset) for offset in range(10)] == [n in {1, 2, 5} for n in range(10)]
    assert (inputs.low, waiting_in(inputs), gap_bytes(inputs)) == (1, 3, 48)
    assert inputs.take(5) == row(5)
    assert (inputs.low, waiting_in(inputs)) == (1, 2)
    assert inputs.take(3) is None
    assert inputs.take(2) == row(2)
    assert inputs.take(2) is None
    assert [waits[1] for waits in inputs.waiting()] == [1]
    assert inputs.take(1) == row(1)
    assert (inputs.low, waiting_in(inputs)) == (10, 0)


def test_a_lane_waits_for_both_sides_until_it_forgets() -> None:
    inputs = input_partition(1, 2, 3, read=4)
    inputs.early |= {(offset, 0): Early(Mock(), Record(*row(offset)), None) for offset in (7, 3, 4, 0)}
    assert inputs.take(2) == row(2)
    assert waiting_in(inputs) == 6
    assert [waits[1] for waits in inputs.waiting()] == [1, 3]
    assert [(place, early[1][1]) for place, early in inputs.overdue()] == [((3, 0), 3), ((0, 0), 0)]
    assert set(inputs.early) == {(7, 0), (4, 0)}
    inputs.forget()
    assert (waiting_in(inputs), list(inputs.waiting())) == (2, [])


def test_a_stretch_that_was_read_already_is_no_gap() -> None:
    inputs = InputPartition(5)
    inputs.skip_to(5)
    inputs.skip_to(4)
    assert (inputs.read, gap_bytes(inputs), inputs.visible(4)) == (5, 0, True)
    inputs.skip_to(6)
    assert (inputs.read, gap_bytes(inputs), inputs.visible(5), inputs.visible(6)) == (6, 16, False, True)


def test_a_source_was_seen_once_it_was_added_and_no_other_one_was() -> None:
    seen, some = SeenSources(), [*range(4090, 4100), 0, 1, 2 * 4096, 10**12]
    assert page_bytes(seen) == 0
    for index in (0, 1):
        assert [seen.add(offset, index) for offset in some] == [False] * len(some)
    for _ in ("second", "third"):
        assert all(seen.add(offset, index) for index in (0, 1) for offset in some)
    assert not any(seen.add(offset, 0) for offset in (2, 4089, 4100, 2 * 4096 + 1, 10**12 + 1))
    assert page_bytes(seen) == 8 * 512


def test_offsets_are_kept_as_ranges() -> None:
    kept = OffsetRanges()
    assert 0 not in kept
    for offset in (3, 4, 7):
        kept.add(offset, offset + 1)
    assert [offset for offset in range(10) if offset in kept] == [3, 4, 7]
    assert (list(kept._starts), list(kept._ends)) == ([3, 7], [5, 8])


def layout(*records: tuple[int, int, int], first: int = 0) -> Layout:
    layout = Layout(first)
    for record in records:
        layout.add(*record)
    return layout


def test_records_make_one_run_while_offset_and_source_rise_together() -> None:
    records = layout((2, 0, 5), (3, 0, 6), (4, 1, 7), (5, 1, 9), (7, 1, 10), (8, 1, 11))
    assert records.runs == [Run(2, 0, 5, 2), Run(4, 1, 7, 1), Run(5, 1, 9, 1), Run(7, 1, 10, 2)]
    assert records.end == 9
    assert layout(first=3).end == 3


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        (0, 2, []),
        (0, 3, [Run(2, 0, 5, 1)]),
        (3, 4, [Run(3, 0, 6, 1)]),
        (3, 9, [Run(3, 0, 6, 2), Run(7, 0, 20, 2)]),
        (5, 7, []),
        (8, 99, [Run(8, 0, 21, 1)]),
        (9, 99, []),
        (4, 4, []),
    ],
)
def test_the_runs_between_two_offsets_are_cut_to_them(start: int, until: int, expected: list[Run]) -> None:
    records = layout((2, 0, 5), (3, 0, 6), (4, 0, 7), (7, 0, 20), (8, 0, 21))
    assert list(records.between(start, until)) == expected


def test_an_aborted_stretch_holds_its_first_and_its_last_record() -> None:
    records = Layout(0)
    records.add_aborted(10, 12)
    records.add_aborted(3, 4)
    assert [n for n in range(20) if records.aborted(n)] == [3, 4, 10, 11, 12]
    records.add_aborted(0, 0)
    assert [n for n in range(20) if records.aborted(n)] == [0, 3, 4, 10, 11, 12]


def read(topic: str = "out", partition: int | None = 0, pid: int = 1, **fields: object) -> Entry:
    details = {"topic": topic, **fields} | ({} if partition is None else {"partition": partition})
    return Entry(1.0, "r", pid, Step.READ, Phase.DONE, details)


def final() -> Entry:
    return Entry(2.0, "r", 1, Step.READ, Phase.DONE, {"final": True})


def judged(
    *entries: Entry, layouts: dict[tuple[str, int], Layout] | None = None, acknowledged: Acknowledged | None = None
) -> list[Finding]:
    findings = Findings()
    if layouts is None:
        visible = layout(*((n, 0, n + 100) for n in range(2, 10) if n != 6))
        visible.add_aborted(6, 6)
        layouts = {("out", 0): visible}
    check_readers(entries, layouts, findings, acknowledged or Acknowledged((), "in"))
    return findings.first()


def finding_at(name: Name, offset: int, evidence: str) -> Finding:
    return Finding(name, "out", 0, offset, evidence)


ALL = [Run(2, 0, 102, 4), Run(7, 0, 107, 3)]
ABORTED = "r 1 read it with read_committed, but its transaction did not commit"
SKIPPED = "r 1 went from {} to {} and skipped {} visible records"


def test_a_reader_that_saw_what_the_log_holds_is_right() -> None:
    assert judged(read(runs=ALL), read("else", runs=[Run(0, 0, 0, 9)]), read(runs=[]), final()) == []
    assert judged(read(runs=[Run(2, 0, 102, 2)]), read(runs=[Run(4, 0, 104, 2), ALL[1]]), final()) == []
    assert judged(read(runs=[Run(5, 0, 0, 1)])._replace(step=Step.COMMIT)) == []
    assert judged(read(), read(partition=None)) == []
    second = {("out", 1): layout((2, 0, 9))}
    assert judged(read(partition=None, runs=[Run(2, 0, 0, 1)]), layouts=second) == [], "an entry of no partition"
    assert judged(read(runs=[Run(2, -1, -1, 4)])) == [], "a record without a source is compared by its place alone"
    retained = {("out", 0): layout((2, 0, 9), first=2)}
    assert judged(read(runs=[Run(0, 0, 7, 3)]), layouts=retained) == [], "below the log's first offset nothing is known"
    uncommitted = read(runs=[Run(5, 0, 105, 2)], isolation="read_uncommitted")
    assert judged(uncommitted, final()) == [], "it may see aborted records, and its end says nothing"


@pytest.mark.parametrize(
    ("runs", "finding"),
    [
        ([Run(2, 0, 102, 2), Run(3, 0, 103, 3)], finding_at(Name.NONMONOTONIC_POLL, 3, "r 1 had read up to 3 before")),
        ([Run(2, 0, 102, 2), Run(5, 0, 105, 1)], finding_at(Name.POLL_SKIP, 4, SKIPPED.format(3, 5, 1))),
        ([Run(2, 0, 102, 1), Run(9, 0, 109, 1)], finding_at(Name.POLL_SKIP, 3, SKIPPED.format(2, 9, 3))),
        ([Run(2, 0, 103, 2)], finding_at(Name.INCONSISTENT, 2, "r 1 read source 0:103, but the log has 0:102")),
        ([Run(2, 1, 102, 1)], finding_at(Name.INCONSISTENT, 2, "r 1 read source 1:102, but the log has 0:102")),
        ([Run(3, 0, 0, 1)], finding_at(Name.INCONSISTENT, 3, "r 1 read source 0:0, but the log has 0:103")),
        ([Run(5, 0, 105, 3)], finding_at(Name.ABORTED_READ, 6, ABORTED)),
        ([Run(5, 0, 105, 2)], finding_at(Name.ABORTED_READ, 6, ABORTED)),
        ([Run(9, 0, 109, 2)], finding_at(Name.INCONSISTENT, 10, "r 1 read a record here, but the log has none")),
    ],
)
def test_a_reader_that_saw_something_else_is_told_with_the_place(runs: list[Run], finding: Finding) -> None:
    assert judged(read(runs=runs)) == [finding]


def test_two_readers_are_two_and_two_partitions_are_two() -> None:
    layouts = {("out", p): layout((2, 0, 102), (3, 0, 103)) for p in (0, 1)}
    again = [Run(2, 0, 102, 2)]
    assert judged(read(runs=again), read(runs=again, pid=2), read(partition=1, runs=again), layouts=layouts) == []
    (finding,) = judged(read(runs=again), read(partition=1, runs=again), read(partition=1, runs=again), layouts=layouts)
    assert (finding.name, finding.partition) == (Name.NONMONOTONIC_POLL, 1)


def commit(partition: int = 0, start: int = 0, until: int = 0, **more: object) -> Entry:
    return Entry(1.0, "w", 9, Step.COMMIT, Phase.DONE, {"partition": partition, "start": start, "until": until, **more})


@pytest.mark.parametrize(
    ("runs", "offset", "count"),
    [([Run(2, 0, 102, 4)], 7, 3), ([Run(3, 0, 103, 3), ALL[1]], 2, 1), ([], 2, 4)],
)
def test_who_drains_a_topic_gets_all_that_was_acknowledged(runs: list[Run], offset: int, count: int) -> None:
    evidence = f"r 1 read to the end but missed {count} committed records from here on"
    wanted = [finding_at(Name.UNSEEN, offset, evidence)]
    assert judged(read(runs=runs), final()) == wanted
    assert judged(read(runs=ALL, pid=2), read(runs=runs), final()) == wanted
    assert judged(read(runs=runs), final(), read("else", runs=[])) == wanted
    assert judged(read(runs=runs)) == []
    assert judged(read("else", runs=runs), final()) == []
    covering = Acknowledged([commit(start=102, until=110)], "in")
    assert judged(read(runs=runs), final(), acknowledged=covering) == wanted
    beyond = Acknowledged([commit(start=110, until=120)], "in")
    assert judged(read(runs=runs), final(), acknowledged=beyond) == []


def test_acknowledged_ranges_are_merged_where_they_touch() -> None:
    acks = Acknowledged([commit(0, 5, 7), commit(0, 0, 3), commit(0, 3, 5), commit(0, 9, 12), commit(0, 9, 10)], "in")
    assert acks.ranges == {0: [(0, 7), (9, 12)]}
    assert (acks.until(0), acks.until(1)) == (12, -1)
    assert [acks.holding(0, n) for n in (0, 6, 7, 8, 9, 11, 12)] == [(0, 7), (0, 7), None, None, (9, 12), (9, 12), None]
    assert acks.holding(1, 0) is None
    assert [acks.covers(0, n, 2) for n in (-2, -1, 6, 7, 8, 11, 12)] == [False, True, True, False, True, True, False]
    assert not acks.covers(1, 0, 9)


def test_only_a_commit_that_was_done_is_acknowledged() -> None:
    done = commit(0, 0, 3)
    others = [
        *(done._replace(phase=phase) for phase in (Phase.INTENT, Phase.FAILED)),
        done._replace(step=Step.FLUSH),
        commit(0, 0, 3, topic="x"),
        group := commit(0, 0, 3, topic="in", group="h"),
    ]
    for entry in others:
        acks = Acknowledged([entry], "in", "g")
        assert (acks.ranges, acks.any_writer) == ({}, True)
    assert Acknowledged(others, "in", "h").ranges == {0: [(0, 3)]}
    assert Acknowledged([group], "in").ranges == {0: [(0, 3)]}
    assert Acknowledged([commit(1, 0, 3)], "in", "g").ranges == {1: [(0, 3)]}
    readers = Acknowledged([read(runs=[])], "in")
    assert not readers.any_writer
    assert readers.covers(0, 0, 1)
    assert Acknowledged([read(runs=[]), commit(0, 0, 3)], "in").ranges == {0: [(0, 3)]}


def test_a_fault_that_fired_less_often_than_demanded_is_silent(findings: Findings) -> None:
    check_fired({"b": 2, "a": 1, "c": 3}, {"b": 1, "c": 3, "d": 9}, findings)
    why = "run longer, or check why the fault had no effect"
    too_few = ((0, "a: 0 seen, 1 needed"), (1, "b: 1 seen, 2 needed"))
    assert findings.first() == [Finding(Name.SILENT_FAULT, "run", -1, seen, f"{text}; {why}") for seen, text in too_few]


def test_a_first_commit_that_comes_later_than_the_bound_is_a_stall(findings: Findings) -> None:
    commits = {4000: None, 1000: 3000, 3000: 63_000, 2000: 4001}
    check_stalls(commits, None, findings)
    assert findings.first() == []
    check_stalls(commits, 2.0, findings)
    assert findings.first() == [
        Finding(Name.STALL, "run", -1, healed, f"first commit {took} after the heal; the bound is 2 s")
        for healed, took in ((2000, "after 2.0 s"), (3000, "after 60.0 s"), (4000, "never"))
    ]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_secret_is_found_at_its_byte_however_the_file_is_cut(size: int) -> None:
    """Several in one file, overlapping ones too; empty ones are none. What is found is not repeated."""
    text, canaries = b"xxabab..key.ab.zzz", ["", "aba", "key", "ab", "zz"]
    findings = Findings()
    check_secrets("f", [text[n : n + size] for n in range(0, len(text), size)], canaries, findings)
    assert not any(canary in str(one) for one in findings.first() for canary in filter(None, canaries))
    evidence = sorted((one.offset, one.evidence) for one in findings.first())
    places = [(2, 1), (2, 3), (4, 3), (8, 2), (12, 3), (15, 4), (16, 4)]
    assert evidence == [(offset, f"canary number {number} is at byte {offset}") for offset, number in places]
    assert {(one.name, one.topic, one.partition) for one in findings.first()} == {(Name.SECRET, "f", -1)}
    check_secrets("g", [text], [], findings)
    assert len(findings.first()) == 7


def data(base: int, epoch: int = 3) -> RawBatch:
    return batch(base, 2, (7, epoch))


def ends(base: int, kind: str, epoch: int = 3, at_ms: int = 0) -> RawBatch:
    return batch(base, 1, (7, epoch), kind, at_ms)


def log(*batches: RawBatch, strict: bool = True, healed: tuple[int, ...] = ()) -> tuple[list[Finding], Endings]:
    findings = Findings()
    endings = Endings(findings, healed)
    raw = RawLog("out", 0, findings, endings, strict=strict)
    for one in batches:
        raw.take(one)
    endings.report()
    return findings.first(), endings


def test_a_commit_with_a_newer_epoch_takes_back_the_fences_of_its_own_producer_alone() -> None:
    """Under KIP-890, each end has a newer epoch, so the aborts before it were no fences."""
    fenced = [data(0), ends(2, "abort", 4), data(3, 4), ends(5, "abort", 5)]
    other = [batch(6, 2, (8, 3)), batch(8, 1, (8, 4), "commit", 0)]
    assert log(*fenced, *other)[1].counts["fences"] == 2
    assert log(*fenced, *other, data(9, 5), ends(11, "commit", 6))[1].counts["fences"] == 0


def test_transactions_and_their_records_are_counted_once() -> None:
    """
    A fence is an abort by a newer epoch; in another partition it is the same transaction.

    A control batch of another kind ends nothing.
    """
    findings, endings = log(
        data(0), replace(ends(2, "commit"), marker=None), ends(3, "commit"), data(4, 4), data(6, 4),
        ends(8, "abort", 5), data(9, 6), ends(11, "abort", 7), data(12, 8), ends(14, "abort", 8),
    )  # fmt: skip
    assert findings == []
    committed = {"committed_transactions": 1, "committed_records": 2}
    assert endings.counts == {**committed, "aborted_transactions": 3, "aborted_records": 8, "fences": 2}
    other = RawLog("out", 1, Findings(), endings, strict=True)
    for one in (data(0), ends(2, "commit"), data(3, 4), ends(5, "abort", 5)):
        other.take(one)
    again = {"committed_records": 4, "aborted_transactions": 3, "aborted_records": 10, "fences": 2}
    assert endings.counts == {**committed, **again}


def test_a_marker_ends_all_that_its_producer_has_open_whatever_the_epochs() -> None:
    """Records that a late marker of an older epoch did not end were neither committed nor hanging."""
    assert log(data(0, 5), data(2, 6), ends(4, "commit", 5))[1].counts["committed_records"] == 4


def test_an_abort_of_a_producer_whose_commits_have_newer_epochs_too_is_no_fence() -> None:
    """Under `transaction.version` 2, each end of a transaction bumps the epoch, also the producer's own abort."""
    aborted, committed = (data(0), ends(2, "abort", 4)), (data(3, 4), ends(5, "commit", 5))
    assert log(*aborted)[1].counts["fences"] == 1
    assert log(*aborted, *committed)[1].counts["fences"] == 0
    assert log(*committed, data(6, 5), ends(8, "abort", 6))[1].counts["fences"] == 0
    assert log(*aborted, *committed)[0] == []


def test_an_epoch_that_is_used_again_is_told_where_that_begins() -> None:
    batches = data(0), ends(2, "commit"), data(3), ends(5, "abort")
    findings, endings = log(*batches)
    evidence = "this epoch had ended with commit before: a late request from then could affect this one"
    assert findings == [Finding(Name.EPOCH_REUSE, "out", 0, 3, evidence, 7, 3)]
    assert (endings.counts["committed_transactions"], endings.counts["aborted_transactions"]) == (1, 1)
    assert log(*batches, strict=False)[0] == []
    _, twice = log(data(0), ends(2, "commit"), data(3), ends(5, "commit"), strict=False)
    assert twice.counts["committed_transactions"] == 2


def test_an_older_epoch_that_commits_behind_a_newer_one_is_a_zombie() -> None:
    evidence = "visible, although the higher epoch 4 wrote or ended a transaction here before"
    findings, _ = log(data(0, 4), ends(2, "commit", 4), data(3), ends(5, "commit"))
    assert findings == [Finding(Name.ZOMBIE, "out", 0, 3, evidence, 7, 3)]
    fenced, _ = log(data(0), ends(2, "abort", 4), data(3), ends(5, "commit"))
    assert Name.ZOMBIE in {one.name for one in fenced}


@pytest.mark.parametrize(
    ("first", "second", "epoch", "reused"),
    [
        ("commit", "commit", 3, False),
        ("commit", "abort", 3, True),
        ("commit", "abort", 4, False),
        ("abort", "abort", 3, False),
        ("abort", "commit", 3, True),
    ],
)
def test_a_second_marker_of_the_same_kind_says_nothing_new(first: str, second: str, epoch: int, reused: bool) -> None:
    """One of the other kind is a late frame."""
    findings, _ = log(data(0), ends(2, first), ends(3, second, epoch))
    evidence = f"this epoch had ended with {first} before: a late request from then could affect this one"
    assert findings == ([Finding(Name.EPOCH_REUSE, "out", 0, 3, evidence, 7, 3)] if reused else [])


def test_each_transaction_with_two_ends_is_torn(findings: Findings) -> None:
    endings = Endings(findings)
    for partition, kind in ((0, "commit"), (1, "abort")):
        raw = RawLog("out", partition, findings, endings, strict=True)
        for one in (data(5), ends(7, kind), data(8, 4), ends(10, "abort", 4), data(11, 5), ends(13, kind, 5)):
            raw.take(one)
    assert [epoch for epoch in range(7) if endings.both((7, epoch))] == [3, 5]
    endings.report()
    evidence = "it ended with abort here, but differently in another partition"
    assert findings.first() == [Finding(Name.TORN, "out", 1, at, evidence, 7, epoch) for at, epoch in ((5, 3), (11, 5))]


def test_the_first_commit_after_each_heal_is_kept() -> None:
    """At the same moment counts, in whatever order they are read, and without the records; an abort does not."""
    _, endings = log(
        data(0), ends(2, "abort", at_ms=1500), data(3, 4), ends(5, "commit", 4, at_ms=3000), data(6, 5),
        ends(8, "commit", 5, at_ms=2000), data(9, 6), ends(11, "commit", 6, at_ms=2500), data(12, 7),
        ends(14, "commit", 7, at_ms=999), ends(15, "commit", 8, at_ms=3001),
        healed=(1000, 2000, 2001, 3000, 3001, 3002),
    )  # fmt: skip
    assert endings.first_commit_ms == {1000: 2000, 2000: 2000, 2001: 2500, 3000: 3000, 3001: 3001, 3002: None}


def test_epochs_of_one_producer_are_kept_apart_up_to_the_last(findings: Findings) -> None:
    """Bytes and bits at their borders."""
    endings = Endings(findings)
    for epoch in (0, 7, 8, 32767):
        for partition, kind, producer_epoch in ((0, "commit", epoch), (1, "abort", epoch + 1 if epoch < 9 else 9)):
            raw = RawLog("out", partition, findings, endings, strict=True)
            raw.take(data(0, producer_epoch))
            raw.take(ends(2, kind, producer_epoch))
    assert [epoch for epoch in (0, 1, 6, 7, 8, 9, 16, 32767) if endings.both((7, epoch))] == [8]
