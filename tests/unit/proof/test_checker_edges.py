"""Transactions, writers' and readers' journals, matching: the first good and the first bad value of each comparison."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from harness.histories import batch, waiting

from brew.cluster import OffsetBatch, OffsetCommit
from brew.journal import Entry, Phase, Run, Step
from brew.offsets import LogOffsets, SourcePosition
from brew.orders import Reason
from brew.records import (
    ERROR_EXCEPTION,
    ERROR_MESSAGE,
    ERROR_OFFSET,
    ERROR_OMITTED,
    ERROR_OMITTED_HEADERS,
    ERROR_PARTITION,
    ERROR_REASON,
    ERROR_TOPIC,
)
from proof.checking.checker import Checker
from proof.checking.comparison import wrong_dead_letter, wrong_output
from proof.checking.input_partition import BrokerFacts, InputPartition, Layout, Record, Stream
from proof.checking.journals import Acknowledged, check_readers
from proof.checking.positions import OffsetLog, Positions
from proof.checking.transactions import Attempt, Endings, RawLog
from proof.findings import Finding, Findings, Name, Verdict
from proof.oracle import beyond, wrong_enrichment


class Log:
    """One partition's batches, each a record long, one after another."""

    def __init__(self) -> None:
        self.found = Findings()
        self.endings = Endings(self.found)
        self.raw = RawLog("out", 0, self.found, self.endings, strict=True)
        self._next = 0

    def wrote(self, epoch: int, producer: int = 7, how: str | None = None) -> Any:
        self._next += 1
        return self.raw.take(batch(self._next, 1, (producer, epoch), how))

    def ended(self, epoch: int, how: str) -> None:
        self.wrote(epoch, how=how)

    @property
    def named(self) -> dict[str, int]:
        self.endings.report()
        return {str(name): count for name, count in self.found.totals.items()}


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.mark.parametrize(
    ("transactions", "named"),
    [
        ([(5, "commit"), (5, "commit")], {"epoch-reuse": 1}),
        ([(5, "commit"), (4, "commit")], {"zombie-write": 1}),
        ([(5, "commit"), (4, "abort")], {}),
        ([(5, "commit"), (6, "commit")], {}),
        ([(1, "commit"), (0, "commit")], {"zombie-write": 1}),
        ([(0, "commit"), (0, "commit")], {"epoch-reuse": 1}),
        # A zombie's records take nothing back either: behind one at epoch 4, another at epoch 5 is still below 6.
        ([(6, "commit"), (4, "abort"), (5, "commit")], {"zombie-write": 1}),
    ],
)
def test_an_epoch_below_the_highest_is_a_zombies_and_the_same_one_is_used_again(
    transactions: list[tuple[int, str]], named: dict[str, int], log: Log
) -> None:
    """What was aborted breaks nothing; the first producer id and epoch have no lower ones."""
    for epoch, how in transactions:
        log.wrote(epoch)
        log.ended(epoch, how)
    assert log.named == named


def test_a_marker_of_a_higher_epoch_makes_the_one_below_a_zombie(log: Log) -> None:
    """Whoever fenced wrote nothing here but its marker; a marker of an older epoch takes nothing back."""
    log.ended(9, "abort")
    log.ended(3, "abort")
    log.wrote(8)
    log.ended(8, "commit")
    assert log.named == {"zombie-write": 1}


def test_a_marker_ends_everything_that_its_producer_has_open(log: Log) -> None:
    """A zombie's batch stands between the holder's: one marker makes both visible."""
    ends = [log.wrote(5), log.wrote(4), log.wrote(5, producer=8)]
    log.ended(5, "commit")
    assert [one.status for one in ends] == ["commit", "commit", None]
    assert log.named == {"zombie-write": 1}


@pytest.mark.parametrize("marker_first", [True, False])
def test_a_visible_record_of_an_aborted_transaction_is_told_once_at_the_logs_first_offset_too(
    marker_first: bool, log: Log
) -> None:
    stream = Stream(log.raw, lambda *_: None, None, 0)
    records = [batch(offset, key=(7, 5)) for offset in (0, 1)]
    marker = batch(2, 1, (7, 5), "abort")
    for one in [[*records, marker], []] if marker_first else [records[:1], records[1:]]:
        stream.batches(one)
        stream.move_to(stream.upto + 1)
    stream.batches([] if marker_first else [marker])
    evidence = "a read_committed reader returned it, but its transaction was aborted"
    assert log.found.first() == [Finding(Name.ABORTED_READ, "out", 0, 0, evidence, 7, 5)]


def test_a_record_before_a_transaction_is_none_of_it_and_the_next_one_is_its_first(log: Log) -> None:
    stream = Stream(log.raw, lambda *_: None, None, 0)
    stream.batches([batch(0, key=(-1, -1))])
    stream.batches([batch(1, 2, (7, 5))])
    shown = [(stream.upto, stream.key)]
    for offset in (0, 1, 2, 3):
        if offset > stream.upto:
            stream.move_to(offset)
        shown.append((stream.upto, stream.key))
    assert shown == [(-1, None), (0, None), (2, (7, 5)), (2, (7, 5)), (3, None)]


def test_records_that_no_transaction_wrote_are_torn_once_a_batch(log: Log) -> None:
    """Before, amid and behind a transaction's; not where the raw log is not known."""
    stream = Stream(log.raw, lambda *_: None, None, 0)
    stream.batches([batch(0, 2, (-1, -1)), batch(2), batch(3, 2, (-1, -1)), batch(5), batch(6, marker="commit")])
    stream.batches([batch(7, 1, (-1, -1))])
    keys = []
    for offset in (0, 1, 2, 3, 4, 5, 7, 8):
        if offset > stream.upto:
            stream.move_to(offset)
        stream.note(0, offset, offset, 1)
        keys.append(stream.key)
    assert keys == [None, None, (7, 0), None, None, (7, 0), None, None]
    evidence = "written outside of any transaction, so nothing ties it to its offset"
    assert log.found.first() == [Finding(Name.TORN, "out", 0, offset, evidence) for offset in (0, 3, 7)]
    assert not stream.compacted


@pytest.mark.parametrize(
    ("first", "batches", "compacted"),
    [
        (0, [batch(0, 2), batch(2)], False),
        (1, [batch(0, 2), batch(2)], False),
        (2, [batch(2)], False),
        (0, [batch(1)], True),
        (2, [batch(3)], True),
        (0, [batch(0, 2), batch(3)], True),
        (0, [replace(batch(0, 2), records=1)], True),
        (0, [batch(0), batch(1, marker="commit"), batch(2)], False),
    ],
)
def test_a_log_with_holes_was_compacted(first: int, batches: list[Any], compacted: bool, log: Log) -> None:
    """Retention may cut the first batch, and nothing else."""
    stream = Stream(log.raw, lambda *_: None, None, first)
    stream.batches(batches)
    assert stream.compacted is compacted


@pytest.mark.parametrize(("present", "found"), [((0, 2), 0), ((0, 1, 2), 2)])
def test_a_reader_may_have_seen_what_compaction_has_removed_since(
    present: tuple[int, ...], found: int, log: Log
) -> None:
    layout = Layout(0)
    stream = Stream(log.raw, lambda *_: None, layout, 0)
    stream.batches([batch(offset) for offset in present])
    for offset in (0, 2):
        layout.add(offset, 0, offset)
    check_readers([read((0, 4))], {("out", 0): layout}, log.found, Acknowledged([], "in"))
    assert log.found.totals[Name.INCONSISTENT] == found


def test_records_of_a_transaction_without_an_end_count_as_aborted_for_readers(log: Log) -> None:
    stream = Stream(log.raw, lambda *_: None, Layout(0), 0)
    for first, producer, marker in ((1, 7, "commit"), (4, 8, "abort"), (7, 9, None), (9, 6, None)):
        stream.batches([batch(first, 2, (producer, 5))])
        if marker is not None:
            stream.batches([batch(first + 2, 1, (producer, 5), marker)])
    assert stream.layout is not None
    assert [offset for offset in range(12) if stream.layout.aborted(offset)] == [4, 5]
    assert [one.key for one in stream.ended()] == [(9, 5), (6, 5)]
    assert [offset for offset in range(12) if stream.layout.aborted(offset)] == [4, 5, 7, 8, 9, 10]


# The group's offset log.


class Offsets:
    """Two partitions of input, one without a commit, and the log of their group's."""

    def __init__(self) -> None:
        self.found = Findings()
        self.position = Positions("in", 0, InputPartition(0), self.found, lambda _key: False)
        other = Positions("in", 1, InputPartition(0), self.found, lambda _key: False)
        self.log = OffsetLog({1: other, 0: self.position}, self.found, Endings(self.found), strict=True)
        self.log.begin(4)
        self._next = 0

    def commit(self, *commits: OffsetCommit, in_transaction: bool = True, records: int = 1, until: int = 1) -> None:
        """``records`` of ``until`` offsets are left of the batch."""
        raw = replace(batch(self._next, until), records=records, transactional=in_transaction)
        self._next += until
        self.log.take([OffsetBatch(raw, commits)])


@pytest.fixture
def offsets() -> Offsets:
    return Offsets()


@pytest.mark.parametrize(
    ("shown", "returned", "name"),
    [(3, 3, None), (3, 4, Name.OFFSET_AHEAD), (3, 2, Name.OFFSET_BEHIND), (0, 3, Name.OFFSET_AHEAD), (3, None, None)],
)
def test_the_coordinator_names_the_last_offset_of_the_log(
    shown: int, returned: int | None, name: Name | None, offsets: Offsets
) -> None:
    offsets.commit(OffsetCommit(9, 1), OffsetCommit(0, shown), in_transaction=False)
    offsets.log.compare({0: returned})
    evidence = f"the coordinator returns this offset, but the last commit in __consumer_offsets is {shown}"
    assert offsets.found.first() == ([] if name is None else [Finding(name, "in", 0, returned or 0, evidence)])


@pytest.mark.parametrize(
    ("first", "commit", "evidence"),
    [
        (0, None, "__consumer_offsets has no commit of this partition"),
        (1, None, None),
        (1, OffsetCommit(0, None), "the last commit in __consumer_offsets is a deletion"),
        (1, OffsetCommit(0, 3), "the last commit in __consumer_offsets is 3"),
        (1, OffsetCommit(0, 5), None),
    ],
)
@pytest.mark.parametrize("compacted", [False, True])
def test_an_offset_is_missed_as_far_as_the_log_reaches(
    compacted: bool, first: int, commit: OffsetCommit | None, evidence: str | None, offsets: Offsets
) -> None:
    """Compaction keeps the last commit of each partition, so only a log that lost its start excuses one."""
    offsets.log.begin(4, first)
    offsets.commit(*([] if commit is None else [commit]), in_transaction=False)
    if compacted:
        offsets.commit(records=2, until=3)
    offsets.log.compare({0: 5, 1: None})
    said = [] if evidence is None else [f"the coordinator returns this offset, but {evidence}"]
    assert [(one.name, one.offset, one.evidence) for one in offsets.found.first()] == [
        (Name.OFFSET_AHEAD, 5, text) for text in said
    ]


@pytest.mark.parametrize(("by_hand", "shown", "named"), [(2, 2, {}), (9, 9, {}), (None, 5, {})])
def test_an_offset_set_by_hand_while_a_transaction_ends_stands(
    by_hand: int | None, shown: int, named: dict[str, int], offsets: Offsets
) -> None:
    """The transaction sent its own before, and ends after; only a deletion does not outlast it."""
    offsets.commit(OffsetCommit(0, 3))
    offsets.log.take([OffsetBatch(batch(1, marker="commit"))])
    offsets._next = 2
    offsets.log.take([OffsetBatch(batch(2, key=(7, 1)), (OffsetCommit(0, 5),))])
    offsets._next = 3
    offsets.commit(OffsetCommit(0, by_hand), in_transaction=False)
    offsets.log.take([OffsetBatch(batch(4, key=(7, 1), marker="commit"))])
    offsets.log.compare({0: shown})
    assert offsets.found.totals == named
    assert offsets.position.last == shown
    assert offsets.position.by_hand is (by_hand is not None)


def test_an_offset_set_by_hand_twice_while_a_transaction_ends_leaves_its_range_as_it_was(offsets: Offsets) -> None:
    """It began at the offset before the first of the two."""
    offsets.commit(OffsetCommit(0, 3), in_transaction=False)
    offsets.commit(OffsetCommit(0, 5))
    for until in (9, 8):
        offsets.commit(OffsetCommit(0, until), in_transaction=False)
    offsets.log.take([OffsetBatch(batch(4, marker="commit"))])
    offsets.log.compare({0: 8})
    assert (offsets.found.totals, offsets.position.last) == ({}, 8)


def test_a_transaction_that_ends_behind_a_later_one_is_told_although_an_offset_was_set_by_hand_between(
    offsets: Offsets,
) -> None:
    """Two at once for one partition are a violation, whatever an operator did before the second one."""
    offsets.commit(OffsetCommit(0, 4))
    offsets.commit(OffsetCommit(0, 2), in_transaction=False)
    offsets.log.take([OffsetBatch(batch(2, key=(8, 0)), (OffsetCommit(0, 6),))])
    offsets.log.take([OffsetBatch(batch(3, key=(8, 0), marker="commit")), OffsetBatch(batch(4, marker="commit"))])
    (finding,) = offsets.found.first()
    assert (finding.name, finding.offset, finding.evidence) == (
        Name.OFFSET_REGRESSION,
        4,
        "the committed offset was 6 before",
    )
    assert not offsets.position.by_hand


@pytest.mark.parametrize(("records", "compacted"), [(3, False), (2, True)])
def test_a_batch_that_lost_records_to_compaction_breaks_the_chain(
    records: int, compacted: bool, offsets: Offsets
) -> None:
    """As a missing batch does: what comes next has an unknown start, and a note says so."""
    offsets.commit(OffsetCommit(0, 3), in_transaction=False)
    offsets.commit(records=records, until=3)
    offsets.commit(records=records, until=3)
    assert (offsets.position.last is None) is compacted
    (note,) = offsets.log.notes or [""]
    assert note.startswith("older offset commits of the group were compacted") is compacted


def test_an_offset_that_a_transaction_deletes_is_a_new_start(offsets: Offsets) -> None:
    offsets.commit(OffsetCommit(0, 3), in_transaction=False)
    offsets.commit(OffsetCommit(0, None))
    assert offsets.position.by_hand
    assert offsets.position.last is None


@pytest.mark.parametrize(
    ("sent", "named"), [((4, 6), {}), ((6, 6), {}), ((6, 4), {}), ((6, 2), {"offset-regression": 1})]
)
def test_of_several_offsets_in_one_transaction_the_last_counts(
    sent: tuple[int, int], named: dict[str, int], offsets: Offsets
) -> None:
    """As in the coordinator: the range reaches to it, whatever was sent before."""
    offsets.commit(OffsetCommit(0, 3), in_transaction=False)
    for until in sent:
        offsets.commit(OffsetCommit(0, until))
    offsets.position.wrote(Attempt("out", 0, 7, 0, first=0, sources={0: [3, 3, 1]}))
    offsets.log.take([OffsetBatch(batch(3, marker="commit"))])
    offsets.position.ended(())
    offsets.log.compare({0: sent[1]})
    assert offsets.found.totals == named
    assert offsets.position.last == sent[1]


def test_another_groups_open_transaction_is_none_of_ours(offsets: Offsets) -> None:
    offsets.commit()
    assert list(offsets.log.open()) == []
    offsets.commit(OffsetCommit(0, 3))
    assert [one.key for one in offsets.log.open()] == [(7, 0)]


# What writers were told.


def commit_entry(start: int, until: int) -> Entry:
    fields = {"topic": "in", "group": "g", "partition": 0, "start": start, "until": until}
    return Entry(0.0, "writer", 1, Step.COMMIT, Phase.DONE, fields)


# What readers were given: visible 0 to 3, aborted 4 and 5, visible 8.


def read(*runs: tuple[int, int], isolation: str = "read_committed", final: bool = False, source: int = 0) -> Entry:
    """(offset, records) of each run; sources as the offsets, from ``source`` on; -1: none."""
    known = source >= 0
    read_runs = [Run(offset, 0 if known else -1, offset + source if known else -1, length) for offset, length in runs]
    fields = {"topic": "out", "partition": 0, "isolation": isolation, "runs": read_runs, "final": final}
    return Entry(0.0, "reader", 1, Step.READ, Phase.DONE, fields)


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ([read((0, 4), (8, 1))], {}),
        ([read((0, 4)), read((3, 1))], {"nonmonotonic-poll": 1}),
        ([read((0, 4)), read((1, 1)), read((2, 2))], {"nonmonotonic-poll": 2}),
        ([read((0, 3), (8, 1))], {"poll-skip": 1}),
        ([read((3, 2))], {"aborted-read": 1}),
        ([read((3, 1), (6, 1))], {"inconsistent-offset": 1}),
        ([read((2, 7))], {"aborted-read": 1}),
        ([read((5, 1), (8, 1), isolation="read_uncommitted")], {}),
        ([read((0, 1), source=1)], {"inconsistent-offset": 1}),
        ([read((0, 1), source=-1)], {}),
        ([read((0, 4), final=True)], {"unseen": 1}),
        ([read((1, 3), (8, 1), final=True)], {"unseen": 1}),
        ([read((0, 4), final=True, isolation="read_uncommitted")], {}),
        ([read((0, 4), (8, 1), final=True)], {}),
    ],
)
def test_a_reader_is_held_against_what_was_visible(lines: list[Entry], named: dict[str, int]) -> None:
    layout = Layout(0)
    for offset in (0, 1, 2, 3, 8):
        layout.add(offset, 0, offset)
    layout.add_aborted(4, 5)
    findings = Findings()
    check_readers(lines, {("out", 0): layout}, findings, Acknowledged([], "in"))
    assert {str(name): count for name, count in findings.totals.items()} == named


def test_what_a_reader_got_from_a_partition_that_is_empty_now_is_found() -> None:
    downstream = {"out": {0: LogOffsets(0, 0, 0), 1: LogOffsets(2, 2, 2)}}
    facts = BrokerFacts("in", "out", "dlq", {}, {}, 1, downstream=downstream, journals=True)
    for partition, offset, named in ((0, 0, 1), (1, 1, 0), (1, 2, 1)):
        checker = Checker(facts)
        fields = {"topic": "out", "partition": partition, "runs": [Run(offset, 0, 7, 1)]}
        entry = Entry(0.0, "reader", 1, Step.READ, Phase.DONE, fields)
        check_readers([entry], checker.layouts, checker.found, Acknowledged([], "in"))
        assert checker.found.totals[Name.INCONSISTENT] == named


# The whole.

VALUE = b'{"customer_id":"c"}'
ENRICHED = VALUE[:-1] + b',"loyalty_tier":"gold","loyalty_discount":0.15}'


def ended(log: LogOffsets, committed: int | None, acknowledged: list[Entry], **more: Any) -> Checker:
    """Inputs 0 to 2 are out; their offset commit is in the log. A partition 1 is not there any more."""
    facts = BrokerFacts("in", "out", "dlq", {0: log}, {0: committed, 1: 9}, 1, **more)
    checker = Checker(facts, Acknowledged(acknowledged, "in"))
    checker.input([Record(0, n, b"gold-1", VALUE, [], 1) for n in range(3)])
    sources = [[*SourcePosition("in", 0, n).headers()] for n in range(3)]
    checker.output([Record(0, n, b"gold-1", ENRICHED, source, 1) for n, source in enumerate(sources)])
    checker.input_ended()
    checker.downstream_ended()
    return checker


@pytest.mark.parametrize(
    ("log", "doubts"),
    [
        (LogOffsets(0, 3, 3), []),
        (LogOffsets(3, 3, 3), ["in has no visible record"]),
        (LogOffsets(4, 4, 4), ["in has no visible record", "in[0] begins at 4, above the committed offset 3"]),
        (LogOffsets(0, 3, 5), ["in[0]: an open transaction holds back offsets 3 to 4"]),
    ],
)
def test_an_input_that_does_not_show_all_of_itself_leaves_a_doubt(log: LogOffsets, doubts: list[str]) -> None:
    checker = ended(log, 3, []) if log.first == 0 else Checker(BrokerFacts("in", "out", "dlq", {0: log}, {0: 3}, 1))
    reported = checker.report().doubts
    assert [text[: len(doubt)] for text, doubt in zip(reported, doubts, strict=True)] == doubts


@pytest.mark.parametrize(("committed", "named"), [(3, {}), (4, {"offset-ahead": 1})])
def test_a_committed_offset_may_be_the_last_stable_one_and_no_later(committed: int, named: dict[str, int]) -> None:
    checker = ended(LogOffsets(0, 3, 9), committed, [])
    checker.finish()
    assert checker.report().totals == named
    evidence = "committed, but the input is readable only up to 3 (log end 9)"
    assert checker.found.first() == [Finding(Name.OFFSET_AHEAD, "in", 0, 4, evidence) for _ in named]


MOVED, END = OffsetBatch(batch(0), (OffsetCommit(0, 3),)), OffsetBatch(batch(1, marker="commit"))
BY_HAND = replace(MOVED, raw=replace(MOVED.raw, transactional=False))


@pytest.mark.parametrize(
    ("until", "log", "lost"),
    [(3, [MOVED, END], 0), (4, [MOVED, END], 1), (4, [BY_HAND], 0), (4, [], 1), (4, None, 0)],
    ids=["moved", "behind", "by hand", "without a commit", "unreadable"],
)
def test_a_group_behind_what_was_acknowledged_lost_a_commit_unless_moved(
    until: int, log: list[OffsetBatch] | None, lost: int
) -> None:
    """Where its log can't be read, an operator may have moved it."""
    checker = ended(LogOffsets(0, 3, 3), 3, [commit_entry(0, until)])
    if log is not None:
        checker.offsets.begin(0, 1)
        checker.offsets.take(log)
    checker.finish()
    evidence = "a writer's journal records the commit of 4 as done, but 3 is committed"
    assert checker.found.first() == [Finding(Name.LOST_COMMIT, "in", 0, 3, evidence)] * lost


@pytest.mark.parametrize(
    ("begin", "commits", "lost"),
    [(0, (), 1), (0, (OffsetCommit(0, 3),), 0), (0, (OffsetCommit(0, None),), 0), (9, (), 0), (None, (), 0)],
)
def test_a_group_without_an_offset_lost_an_acknowledged_one(begin: int | None, commits: Any, lost: int) -> None:
    """
    Its first transaction, say, with all of its records.

    Not one that was set or deleted by hand, nor where the offset log is compacted or can not be read.
    """
    facts = BrokerFacts("in", "out", "dlq", {0: LogOffsets(2, 5, 5)}, {0: None}, 1)
    checker = Checker(facts, Acknowledged([commit_entry(2, 4)], "in"))
    checker.input([Record(0, n, b"gold-1", VALUE, [], 1) for n in (2, 3, 4)])
    checker.input_ended()
    checker.downstream_ended()
    if begin is not None:
        checker.offsets.begin(0)
        checker.offsets.take([OffsetBatch(replace(batch(begin), transactional=False), commits)])
    checker.finish()
    evidence = "a writer's journal records the commit of 4 as done, but none is committed"
    assert checker.found.first() == [Finding(Name.LOST_COMMIT, "in", 0, 2, evidence)] * lost


def test_a_range_of_lost_commits_is_told_once() -> None:
    facts = BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 3, 3)}, {0: 3}, 1)
    checker = Checker(facts, Acknowledged([commit_entry(0, 3)], "in"))
    checker.input([Record(0, n, b"gold-1", VALUE, [], 1) for n in range(3)])
    checker.input_ended()
    checker.downstream_ended()
    checker.finish()
    assert checker.report().totals == {"lost-output": 3, "lost-commit": 1}
    evidence = "a writer's journal records the commit of [0, 3) as done"
    assert checker.found.first()[-1] == Finding(Name.LOST_COMMIT, "in", 0, 0, evidence)


@pytest.mark.parametrize(("settled", "hanging"), [(True, 1), (False, 0)])
def test_a_transaction_without_an_end_hangs_once_the_run_has_settled(settled: bool, hanging: int) -> None:
    """It is told once, by its producer, and not again by the last stable offset that it holds back."""
    downstream = {"out": {0: LogOffsets(0, 3, 6)}}
    checker = ended(LogOffsets(0, 3, 3), 3, [], settled=settled, downstream=downstream)
    checker.batches("out", 0, [batch(3, 2)])
    checker.batches("out", 0, [batch(5, key=(8, 0))])
    checker.offsets.begin(4, 1)
    checker.offsets.take([OffsetBatch(batch(0, key=(9, 0)), (OffsetCommit(0, 3),))])
    checker.finish()
    open_ends = [("out", 0, 3, "2 records up to offset 4", 7), ("out", 0, 5, "1 record up to offset 5", 8)]
    open_ends.append(("__consumer_offsets", 4, 0, "1 record up to offset 0", 9))
    hangs = [
        Finding(Name.HANGING, *place, f"{records}, and no end marker after them", producer, 0)
        for *place, records, producer in open_ends
    ]
    assert checker.found.first() == (hangs if hanging else [])
    assert checker.counts["open_transactions"] == 3


def test_the_report_tells_what_was_not_seen_and_how_long_each_recovery_took() -> None:
    """In the order of the heals, None where no commit came behind one."""
    checker = ended(LogOffsets(0, 3, 3), 3, [], healed_ms=(5000, 1000))
    checker.batches("out", 0, [batch(0, 4)])
    checker.batches("out", 0, [batch(4, marker="commit", at_ms=2500)])
    checker.finish()
    report = checker.report(["a note"], ["nobody may read it"])
    assert report.recovery_s == [1.5, None]
    assert (report.notes, report.doubts, report.verdict) == (["a note"], ["nobody may read it"], Verdict.INCONCLUSIVE)
    assert (report.inputs, report.outputs, report.dead_letters, report.backlog, report.unverifiable) == (3, 3, 0, 0, 0)
    none = ("dead_letters", "aborted_transactions", "aborted_records", "fences", "open_transactions")
    assert report.counts == {"inputs": 3, "outputs": 3, "committed_transactions": 1, **dict.fromkeys(none, 0)}


def test_an_output_that_stops_short_of_its_end_hangs_although_no_transaction_was_seen() -> None:
    downstream = {"out": {0: LogOffsets(0, 3, 4)}, "dlq": {0: LogOffsets(0, 0, 0)}}
    checker = ended(LogOffsets(0, 3, 3), 3, [], settled=True, downstream=downstream)
    checker.output([out(headers=[])])
    checker.finish()
    evidence = "a transaction never ended: readers stop here, but the log ends at 4"
    phantom = Finding(Name.PHANTOM, "out", 0, 0, "no readable source headers")
    assert checker.found.first() == [phantom, Finding(Name.HANGING, "out", 0, 3, evidence)]


def test_a_transaction_that_commits_here_and_aborts_there_is_torn() -> None:
    checker = ended(LogOffsets(0, 3, 3), 3, [])
    for topic, how in (("out", "commit"), ("dlq", "abort")):
        checker.batches(topic, 0, [batch(3), batch(4, marker=how)])
    checker.finish()
    evidence = "it ended with abort here, but differently in another partition"
    assert checker.found.first() == [Finding(Name.TORN, "dlq", 0, 3, evidence, 7, 0)]


# Matching.

SOURCE = SourcePosition("in", 0, 5)
INPUT = Record(0, 5, b"gold-1", VALUE, [("trace", b"1")], 1000)


def out(**changed: Any) -> Record:
    return Record(0, 0, b"gold-1", ENRICHED, [("trace", b"1"), *SOURCE.headers()], 1000)._replace(**changed)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, None),
        ({"created": None}, None),
        ({"created": 1001}, "timestamp"),
        ({"key": None}, "key"),
        ({"headers": [*SOURCE.headers()]}, "headers"),
        ({"headers": [("trace", b"1"), ("more", b"1"), *SOURCE.headers()]}, "headers"),
        ({"headers": [*SOURCE.headers(), ("trace", b"1")]}, "headers"),
    ],
)
def test_an_output_carries_key_time_and_headers_of_its_input(changed: dict[str, Any], wrong: str | None) -> None:
    complaint = wrong_output(INPUT, out(**changed), SOURCE)
    assert complaint is None if wrong is None else (complaint or "").startswith(wrong)


LEFT_OUT = [("trace", b"1"), (ERROR_REASON, b"too-large"), (ERROR_OMITTED, b"7"), *SOURCE.headers()]


NO_HEADERS = [(ERROR_REASON, b"not-json"), (ERROR_OMITTED_HEADERS, b"1"), *SOURCE.headers()]


ERRORS = [(ERROR_REASON, b"not-json"), (ERROR_EXCEPTION, b"Reject"), (ERROR_MESSAGE, b"no JSON")]
ERRORS += [(ERROR_TOPIC, b"in"), (ERROR_PARTITION, b"0"), (ERROR_OFFSET, b"5")]


def between(*errors: tuple[str, bytes]) -> list[tuple[str, bytes]]:
    return [("trace", b"1"), *errors, *SOURCE.headers()]


def rejected(**changed: Any) -> Record:
    headers = [("trace", b"1"), (ERROR_REASON, b"not-json"), *SOURCE.headers()]
    return Record(0, 0, b"gold-1", b"no json", headers, None)._replace(**changed)


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [
        ({}, None),
        ({"key": b"other"}, "key is"),
        ({"headers": [(ERROR_REASON, b"not-json"), *SOURCE.headers()]}, "the first headers are not"),
        ({"headers": [("trace", b"1"), (ERROR_REASON, b"not-json")]}, "the last headers are not"),
        ({"headers": [("trace", b"1"), *SOURCE.headers(), (ERROR_REASON, b"not-json")]}, "the last headers are not"),
        ({"created": 1000}, None),
        ({"created": 1001}, "timestamp is 1001, should be 1000"),
        ({"headers": [("trace", b"1"), (ERROR_REASON, b"no-idea"), *SOURCE.headers()]}, "reason 'no-idea'"),
        ({"headers": [("trace", b"1"), (ERROR_REASON, b"\xff"), *SOURCE.headers()]}, "reason '\ufffd' is not one of"),
        ({"headers": [("trace", b"1"), *SOURCE.headers()]}, "reason '' is not one of"),
        ({"value": b"no jsoN"}, "the value differs"),
        ({"value": None}, "the value differs"),
        ({"value": b"x", "headers": LEFT_OUT}, "the value differs"),
        ({"value": None, "headers": LEFT_OUT}, None),
        ({"headers": LEFT_OUT}, "the value differs"),
        ({"headers": between(*ERRORS)}, None),
        ({"headers": between(*ERRORS, ("x", b"1"))}, "header x does not belong"),
        ({"headers": between(ERRORS[0], (ERROR_MESSAGE, b"a"), (ERROR_MESSAGE, b"b"))}, f"header {ERROR_MESSAGE} does"),
        ({"headers": between((ERROR_REASON, b"too-large"), *ERRORS)}, f"header {ERROR_REASON} does not belong"),
        ({"headers": between(*ERRORS, (ERROR_TOPIC, b"other"))}, f"header {ERROR_TOPIC} does not"),
        ({"headers": between(*ERRORS[:3], (ERROR_TOPIC, b"i"))}, f"header {ERROR_TOPIC} is b'i', should be b'in'"),
        (
            {"headers": between(*ERRORS[:4], (ERROR_PARTITION, b"5"))},
            f"header {ERROR_PARTITION} is b'5', should be b'0'",
        ),
        ({"headers": between(*ERRORS[:5], (ERROR_OFFSET, b"6"))}, f"header {ERROR_OFFSET} is b'6', should be b'5'"),
        ({"headers": NO_HEADERS}, None),
        ({"headers": [("trace", b"2"), *NO_HEADERS]}, "the first headers are not"),
        ({"headers": [(ERROR_REASON, b"no-idea"), *NO_HEADERS[1:]]}, "reason 'no-idea'"),
        ({"headers": [*NO_HEADERS[:1], (ERROR_OMITTED_HEADERS, b"2"), *SOURCE.headers()]}, "the first headers are not"),
    ],
)
def test_a_dead_letter_carries_all_of_its_input_and_says_why(changed: dict[str, Any], wrong: str | None) -> None:
    complaint = wrong_dead_letter(INPUT._replace(value=b"no json"), rejected(**changed), SOURCE)
    assert complaint is None if wrong is None else (complaint or "").startswith(wrong)


def matched(
    *rows: tuple[str, Record], inputs: tuple[int, ...] = (5,), committed: int = 9, came: Record = INPUT
) -> Checker:
    """Downstream records (topic, record), and then the input at these offsets."""
    checker = Checker(BrokerFacts("in", "out", "dlq", {0: LogOffsets(5, 9, 9)}, {0: committed}, 1))
    checker.offsets.begin(0, 1)
    checker.batches("out", 0, [batch(0, 3), batch(3, marker="commit")])
    for topic, row in rows:
        (checker.output if topic == "out" else checker.dead_letters)([row])
    checker.input([came._replace(offset=offset) for offset in inputs])
    return checker


@pytest.mark.parametrize(
    ("topic", "changed", "came", "wrong"),
    [
        ("out", {}, {}, None),
        ("out", {"created": None}, {}, None),
        ("out", {}, {"created": None}, None),
        ("out", {"key": b"x"}, {}, "key is b'x', should be b'gold-1'"),
        ("out", {"value": None}, {}, "the output has no value, so it can't be an enriched order"),
        ("out", {}, {"value": None}, "the input has no value, so it can't be an enriched order"),
        ("dlq", {}, {}, "the value differs from the input's"),
    ],
)
def test_what_comes_before_its_input_is_compared_as_well(
    topic: str, changed: dict[str, Any], came: dict[str, Any], wrong: str | None
) -> None:
    """Also a perfect output in the topic of the dead letters."""
    corrupt = [] if wrong is None else [Finding(Name.CORRUPT, topic, 0, 0, f"source in[0] offset 5: {wrong}")]
    assert matched((topic, out(**changed)), came=INPUT._replace(**came)).found.first() == corrupt


@pytest.mark.parametrize("inputs", [(5, 7), (5,)])
def test_what_comes_before_an_input_that_does_not_exist_is_named_with_place_and_source(inputs: tuple[int, ...]) -> None:
    """As soon as a later input shows it, or at the input's end."""
    ghost = out(headers=SourcePosition("in", 0, 6).headers())
    checker = matched(("out", ghost), inputs=inputs)
    assert bool(checker.found.first()) is (7 in inputs)
    checker.input_ended()
    evidence = "its source in[0] offset 6 is not a visible record (aborted, or never written)"
    assert checker.found.first() == [Finding(Name.PHANTOM, "out", 0, 0, evidence)]


def test_inputs_behind_the_end_of_the_outputs_are_lost_and_those_behind_the_commit_wait() -> None:
    checker = matched(committed=7, inputs=())
    checker.downstream_ended()
    checker.input([INPUT._replace(offset=offset) for offset in (5, 6, 7, 8)])
    lost = [Finding(Name.LOST, "in", 0, offset, "neither on out nor dlq") for offset in (5, 6)]
    assert (checker.found.first(), waiting(checker), checker.report().backlog) == (lost, 0, 2)


def test_an_output_below_an_exact_one_is_out_of_order() -> None:
    """A dead letter in between has passed it, and the two were read one by one."""
    checker = matched(inputs=(5, 6, 7))
    fifth, sixth, seventh = ([*SourcePosition("in", 0, offset).headers()] for offset in (5, 6, 7))
    reason = (ERROR_REASON, b"too-large")
    checker.dead_letters([out(value=VALUE, headers=[*INPUT.headers, reason, *sixth])])
    for offset, source in enumerate((seventh, fifth)):
        checker.output([out(offset=offset, headers=[*INPUT.headers, *source])])
    evidence = "its source in[0] offset 5 was output after offset 7"
    assert checker.found.first() == [Finding(Name.NONMONOTONIC, "out", 0, 1, evidence, 7, 0)]


def test_a_torn_transaction_counts_each_record_once_however_it_was_matched() -> None:
    """The first comes before its input, the second is no exact copy."""
    checker = matched(("out", out()), inputs=(5, 6, 7))
    for offset, created in ((6, None), (7, 1000)):
        headers = [("trace", b"1"), *SourcePosition("in", 0, offset).headers()]
        checker.output([out(offset=offset - 5, headers=headers, created=created)])
    checker.finish()
    (torn,) = checker.found.first()
    assert torn.evidence.startswith("3 visible records with sources 5 to 7 of in[0]: no offset commit")


def test_a_field_that_is_overwritten_missing_or_added_is_named_from_either_side() -> None:
    """With the same text behind it, an input would have the field twice, and the last one counts."""
    value = VALUE[:-1] + b',"loyalty_discount":9}'
    doubled = value[:-1] + ENRICHED[len(VALUE) - 1 :]
    assert wrong_enrichment(b"gold-1", value, doubled) is None
    complaint = wrong_enrichment(b"gold-1", value, value[:-1] + b',"loyalty_tier":"gold"}')
    assert complaint == "field 'loyalty_discount' is 9, should be 0.15"
    nobody = ENRICHED.replace(b'"customer_id":"c",', b"")
    assert wrong_enrichment(b"gold-1", VALUE, nobody) == "field 'customer_id' is missing"
    assert wrong_enrichment(b"gold-1", VALUE, ENRICHED[:-1] + b',"zzz":1}') == "field 'zzz' was added"
    assert wrong_enrichment(b"gold-vip-1", VALUE, ENRICHED) is None, "the tier ends at the first hyphen"


def test_the_limits_of_length_and_depth_are_the_last_values_that_pass() -> None:
    assert beyond(b"x" * 10, 10, 5) is None
    assert beyond(b"x" * 11, 10, 5) is Reason.TOO_LARGE
    assert beyond(b"[" * 5, 10, 5) is None
    assert beyond(b"[" * 6, 10, 5) is Reason.TOO_DEEP
