"""The checker's places and positions: where records lie, and what the group's offsets claim."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from harness.histories import batch, held_bytes, waiting

from brew.cluster import OffsetBatch, OffsetCommit
from brew.journal import Run
from brew.offsets import LogOffsets, SourcePosition
from brew.records import ERROR_REASON
from brew.sink.rows import partitions_of
from proof.checking.checker import Checker
from proof.checking.comparison import Comparison
from proof.checking.input_partition import BrokerFacts, InputPartition, Record, Stream
from proof.checking.positions import OffsetLog, Positions
from proof.checking.transactions import Attempt, Endings, Key, RawLog
from proof.checking.transformed import Oracle
from proof.findings import Finding, Findings, Name, Verdict
from proof.oracle import key_hash

A, B, C, X = (1, 0), (1, 1), (1, 2), (9, 9)
"""Producer id and epoch of four transactions; nobody ever commits an offset as X."""


def test_a_partition_without_a_committed_offset_is_before_its_first_record() -> None:
    facts = BrokerFacts("in", "out", "dlq", {}, {0: None, 1: 0, 2: 5}, 1)
    assert [facts.position(partition) for partition in range(4)] == [-1, 0, 5, -1]


class Log:
    """One input partition whose inputs below offset 100 have all come out."""

    def __init__(self, both: Callable[[Key], bool] = lambda _key: False) -> None:
        self.found = Findings()
        self.inputs = InputPartition(0)
        self.inputs.read = 100
        self.positions = Positions("in", 0, self.inputs, self.found, both)
        self.positions.readable = True

    def wrote(self, key: Key, lowest: int, highest: int, partition: int = 0) -> None:
        sources = {0: [lowest, highest, highest - lowest + 1]}
        self.positions.wrote(Attempt("out", partition, *key, first=lowest, sources=sources))

    def moved(self, until: int, key: Key, *, strict: bool = True) -> None:
        self.positions.moved(until, key, strict=strict)

    def named(self, *lost: int) -> dict[str, int]:
        """What is found once all logs have ended; nothing behind a lost input is settled before."""
        self.inputs.read = min(lost, default=self.inputs.read)
        self.positions.settle()
        self.positions.ended(lost)
        return {str(name): count for name, count in self.found.totals.items()}

    @property
    def evidence(self) -> list[str]:
        return [one.evidence for one in self.found.first()]


@pytest.fixture
def log() -> Log:
    return Log()


def test_transactions_that_cover_exactly_their_ranges_raise_no_alarm(log: Log) -> None:
    """The last offset of a range and the first of the next, and one transaction in two output partitions."""
    for key, start in ((A, 0), (B, 10), (C, 20)):
        log.moved(start + 10, key)
        log.wrote(key, start, start + 8, partition=0)
        log.wrote(key, start + 9, start + 9, partition=1)
    assert log.named() == {}


@pytest.mark.parametrize(
    ("lowest", "highest", "torn"), [(10, 19, False), (9, 19, True), (10, 20, True), (9, 9, True), (9, 20, True)]
)
def test_a_transaction_is_torn_by_its_lowest_source_and_by_its_highest(
    lowest: int, highest: int, torn: bool, log: Log
) -> None:
    """Its range is [10, 20); one record below or one above is not covered, and the evidence names both ends."""
    log.positions.set_by_hand(10)
    log.moved(20, B)
    log.wrote(B, lowest, highest)
    assert log.named() == ({"torn-txn": 1} if torn else {})
    if torn:
        count = highest - lowest + 1
        evidence = f"{count} visible records with sources {lowest} to {highest} of in[0]: "
        evidence += "no offset commit of this transaction covers exactly them"
        assert log.found.first() == [Finding(Name.TORN, "out", 0, lowest, evidence, *B)]


@pytest.mark.parametrize(
    ("key", "gap"),
    [(X, False), (A, False), (A, True)],
    ids=["another", "a second one of the same producer and epoch", "a second one behind a gap in the offset log"],
)
def test_another_transactions_records_amid_a_range_are_torn(key: Key, gap: bool, log: Log) -> None:
    """They came out, and the offset behind them is none of their own: one transaction ends once in a partition."""
    if gap:
        log.positions.broken()
    log.moved(10, A)
    log.wrote(A, 0, 4)
    log.wrote(key, 5, 9)
    assert log.named() == {"torn-txn": 1}


def test_a_transaction_that_begins_in_the_range_before_its_own_is_torn_at_the_first_of_the_two(log: Log) -> None:
    """Taken by its highest source alone it would wait for its own range, of which the start is not known here."""
    log.moved(10, A)
    log.wrote(A, 0, 4)
    log.wrote(B, 5, 15)
    log.positions.broken()
    log.moved(20, B)
    assert log.named() == {"torn-txn": 1}
    assert "sources 5 to 15" in log.evidence[0]


@pytest.mark.parametrize(("key", "highest", "torn"), [(A, 9, 0), (A, 10, 1), (X, 9, 0), (X, 10, 1)])
def test_behind_a_gap_in_the_offset_log_a_range_still_has_an_end(key: Key, highest: int, torn: int, log: Log) -> None:
    """A commit that compaction took may cover what lies below the range's end, and never what straddles it."""
    log.positions.broken()
    log.moved(10, A)
    log.wrote(C, 1, 2)
    log.wrote(key, 0, highest)
    assert log.named().get("torn-txn", 0) == torn


def test_behind_a_gap_in_the_offset_log_the_inputs_first_record_is_missed_too(log: Log) -> None:
    log.positions.broken()
    log.moved(10, A)
    log.wrote(A, 3, 9)
    assert log.named(0) == {"offset-gap": 1}


def test_all_ranges_whose_inputs_have_come_out_are_judged_at_once(log: Log) -> None:
    """The second one too, and up to the lowest input that still waits; the rest when it comes out."""
    for key, until in ((A, 10), (B, 20), (C, 30)):
        log.moved(until, key)
        log.wrote(X, until - 10, until - 9)
    log.inputs.read = 20
    log.positions.settle()
    assert log.found.totals[Name.TORN] == 2
    log.inputs.read = 30
    log.positions.settle()
    assert log.found.totals[Name.TORN] == 3


def test_an_offset_that_is_committed_again_is_no_regression_and_one_below_is(log: Log) -> None:
    """What the next commit is held against is the offset as it stands, not the highest ever."""
    log.moved(10, A)
    log.moved(10, B)
    assert log.found.totals[Name.OFFSET_REGRESSION] == 0
    log.moved(9, C)
    log.moved(9, (1, 3))
    log.moved(10, (1, 4))
    log.named()
    assert log.found.first() == [Finding(Name.OFFSET_REGRESSION, "in", 0, 9, "the committed offset was 10 before", *C)]


def test_a_transaction_that_moves_the_offset_back_is_told_as_that_alone(log: Log) -> None:
    """Not as torn as well; what others wrote without a commit is still told."""
    log.moved(10, A)
    log.wrote(C, 10, 12)
    log.wrote(X, 13, 14)
    log.moved(5, C)
    assert log.named() == {"offset-regression": 1, "torn-txn": 1}
    assert "sources 13 to 14" in log.evidence[1]


def test_a_producer_id_that_comes_back_after_two_others_is_a_zombie() -> None:
    """Not only the first holder is remembered; and only where an epoch is good for one transaction."""
    for strict in (True, False):
        log = Log()
        for number, producer in enumerate((1, 2, 3, 2)):
            log.moved(10 * number + 10, (producer, 0), strict=strict)
        evidence = "this producer id moved the offset again, after another one had taken the partition over"
        assert log.found.first() == ([Finding(Name.ZOMBIE, "in", 0, 40, evidence, 2, 0)] if strict else [])


def test_an_offset_set_by_hand_is_a_start_until_a_transaction_moves_it(log: Log) -> None:
    """Inputs that an operator skipped are in nobody's range; the next commit is a transaction's own again."""
    log.moved(10, A)
    log.wrote(A, 0, 9)
    log.positions.set_by_hand(20)
    assert log.positions.by_hand
    log.moved(30, B)
    log.wrote(B, 20, 29)
    assert not log.positions.by_hand
    assert log.named(15, 19) == {}


@pytest.mark.parametrize(
    ("gap", "wrote", "torn"),
    [
        (True, [(A, 0, 9), (X, 10, 19)], 0),
        (False, [(A, 0, 9)], 1),
        (True, [(A, 0, 20)], 1),
        (True, [(A, 20, 22)], 1),
        (True, [(B, 19, 29)], 1),
        (True, [(X, 30, 31)], 1),
    ],
    ids=["compacted", "not compacted", "straddles", "above", "its own straddles", "behind all"],
)
def test_an_offset_set_by_hand_behind_a_gap_has_the_commits_below_it_in_the_gap(
    gap: bool, wrote: list[tuple[Key, int, int]], torn: int, log: Log
) -> None:
    """They were called torn. What reaches above that offset, or lies above it, still has to have a commit."""
    if gap:
        log.positions.broken()
    log.positions.set_by_hand(20)
    log.moved(30, B)
    for one in wrote if wrote[0][0] == B else [*wrote, (B, 20, 29)]:
        log.wrote(*one)
    assert log.named().get("torn-txn", 0) == torn


@pytest.mark.parametrize(("highest", "torn"), [(9, 0), (10, 1)])
def test_a_transaction_from_before_an_offset_was_set_by_hand_behind_a_gap_has_its_own_range(
    highest: int, torn: int, log: Log
) -> None:
    """It ended after that. Its records are not excused by the commits that are missing."""
    log.positions.broken()
    log.positions.set_by_hand(20)
    log.positions.moved_before_hand(10, A, strict=True)
    log.wrote(A, 5, highest)
    assert log.named().get("torn-txn", 0) == torn


def test_inputs_that_were_skipped_by_hand_behind_a_gap_are_in_nobodys_range(log: Log) -> None:
    log.positions.broken()
    log.positions.set_by_hand(20)
    log.moved(30, B)
    log.wrote(B, 20, 29)
    assert log.named(15, 19) == {}
    log.positions.broken()
    log.positions.set_by_hand(None)
    log.positions.set_by_hand(40)
    log.wrote(X, 31, 39)
    assert log.named() == {}, "a deletion in between changes nothing"


@pytest.mark.parametrize(
    ("lost", "named"),
    [((0, 2), ["offset-gap"]), ((0, 3), ["torn-txn"]), ((0, 9), ["torn-txn"]), ((5,), ["torn-txn"]), ((10,), [])],
)
def test_inputs_lost_before_a_transaction_are_a_gap_and_amid_it_a_tear(
    lost: tuple[int, ...], named: list[str], log: Log
) -> None:
    """It wrote 3 to 9 of [0, 10): the last of those lost decides, and what lies behind the range is another's."""
    log.moved(10, A)
    log.wrote(A, 3, 9)
    assert list(log.named(*lost)) == named


def test_a_gap_before_a_transaction_that_also_aborted_is_a_tear_too() -> None:
    log = Log(both=lambda key: key == A)
    log.moved(10, A)
    log.wrote(A, 3, 9)
    log.named(0, 1)
    gap = "-1 was committed, but the transaction that moved it to 10 begins at 3"
    assert log.found.first() == [
        Finding(Name.OFFSET_GAP, "in", 0, 0, gap, *A),
        Finding(Name.TORN, "in", 0, 0, "its offset 10 is committed, but 2 of its records are not visible", *A),
    ]


def test_a_range_of_which_nothing_came_out_is_torn(log: Log) -> None:
    log.moved(10, A)
    log.moved(20, B)
    log.wrote(B, 10, 19)
    assert log.named(*range(10)) == {"torn-txn": 1}
    assert "10 of its records are not visible" in log.evidence[0]


@pytest.mark.parametrize(("readable", "gap", "torn"), [(True, False, 2), (False, False, 0), (True, True, 0)])
def test_records_without_an_offset_commit_are_torn_where_the_log_can_tell(
    readable: bool, gap: bool, torn: int, log: Log
) -> None:
    """Not where it can't be read, nor where it ends with a gap: the commit may have lain there."""
    log.positions.readable = readable
    log.moved(10, A)
    log.wrote(X, 10, 12)
    log.wrote(B, 13, 14)
    if gap:
        log.positions.broken()
    assert log.named().get("torn-txn", 0) == torn


def test_a_transactions_sources_reach_from_the_lowest_to_the_highest_of_all_its_stretches() -> None:
    findings = Findings()
    raw = RawLog("out", 0, findings, Endings(findings), strict=True)
    attempts: list[Attempt] = []
    stream = Stream(raw, lambda _partition, attempt: attempts.append(attempt), None, 0)
    stream.batches([batch(0, 10, A)])
    stream.move_to(0)
    for lowest, highest in ((5, 7), (2, 3), (9, 9), (4, 4)):
        stream.note(0, lowest, highest, highest - lowest + 1)
    assert [one.sources for one in attempts] == [{0: [2, 9, 7]}]


def reused(commits: tuple[OffsetCommit, ...]) -> list[OffsetBatch]:
    raw = [batch(offset, 1, (7, 3), marker, 1000) for offset, marker in enumerate((None, "commit", None, "abort"))]
    return [OffsetBatch(one, () if one.control else commits) for one in raw]


@pytest.mark.parametrize(("ours", "reuses", "counted"), [(True, 1, 2), (False, 0, 0)])
def test_a_foreign_groups_transactions_are_neither_judged_nor_counted(ours: bool, reuses: int, counted: int) -> None:
    """Found by the mutants: one group's reused epoch made its neighbours' runs red, and their counts too high."""
    findings = Findings()
    endings = Endings(findings, [500])
    position = Positions("in", 0, InputPartition(0), findings, endings.both)
    log = OffsetLog({0: position}, findings, endings, strict=True)
    log.begin(4)

    log.take(reused((OffsetCommit(0, 5),) if ours else ()))

    assert findings.totals[Name.EPOCH_REUSE] == reuses
    assert endings.counts["committed_transactions"] + endings.counts["aborted_transactions"] == counted
    assert endings.counts["committed_records"] + endings.counts["aborted_records"] == 0, "they are offset commits"
    assert endings.first_commit_ms == {500: 1000 if ours else None}


VALUE = b'{"customer_id":"c"}'
ENRICHED = VALUE[:-1] + b',"loyalty_tier":"gold","loyalty_discount":0.15}'
BROKEN = b"no json"


def order(offset: int, value: bytes = VALUE, partition: int = 0) -> Record:
    return Record(partition, offset, b"gold-1", value, [], 1)


def output(source: int, offset: int, partition: int = 0, of: int = 0) -> Record:
    """The output of the input at `of[source]`, at ``offset`` of output partition ``partition``."""
    return Record(partition, offset, b"gold-1", ENRICHED, list(SourcePosition("in", of, source).headers()), 1)


def dead_letter(source: int, offset: int, partition: int = 0) -> Record:
    headers = [(ERROR_REASON, b"not-json"), *SourcePosition("in", 0, source).headers()]
    return Record(partition, offset, b"gold-1", BROKEN, headers, None)


def new_checker(
    until: int = 4, committed: int | None = None, partitions: int = 1, output_partitions: int = 1
) -> Checker:
    """``until``: the last stable offset of every input partition, and of the log's end two more."""
    logs = {p: LogOffsets(0, until, until + 2) for p in range(partitions)}
    position = until if committed is None else committed
    return Checker(BrokerFacts("in", "out", "dlq", logs, dict.fromkeys(logs, position), output_partitions))


def named(checker: Checker) -> dict[str, int]:
    checker.input_ended()
    checker.downstream_ended()
    assert waiting(checker) == 0
    return checker.report().totals


def committed(offset: int, key: Key, until: int) -> list[OffsetBatch]:
    commits = (OffsetCommit(0, until),)
    return [OffsetBatch(batch(offset, 1, key), commits), OffsetBatch(batch(offset + 1, 1, key, "commit"))]


@pytest.mark.parametrize("output_partitions", [2, 3])
@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("first", ["input", "output"])
def test_a_duplicate_counts_in_whatever_output_partition_it_lies(first: str, copy: int, output_partitions: int) -> None:
    checker = new_checker(partitions=2, output_partitions=output_partitions)
    inputs = [order(n, partition=p) for p in (0, 1) for n in range(4)]
    if first == "input":
        checker.input(inputs)
    checker.output([output(n, n, partition=p, of=p) for p in (0, 1) for n in range(4)])
    checker.output([output(2, 9, partition=copy, of=0)])
    if first == "output":
        checker.input(inputs)
    assert named(checker) == {"duplicate-output": 1}


@pytest.mark.parametrize(("indices", "name"), [((0, 1), "duplicate-output"), ((1,), "corrupt-output")])
@pytest.mark.parametrize("first", ["input", "output"])
def test_an_order_has_one_output_whatever_its_index(first: str, indices: tuple[int, ...], name: str) -> None:
    """Only functions return several records for an input."""
    checker = new_checker(1)
    headers = [list(SourcePosition("in", 0, 0, index).headers()) for index in indices]
    steps = {
        "input": lambda: checker.input([order(0)]),
        "output": lambda: checker.output([output(0, n)._replace(headers=some) for n, some in enumerate(headers)]),
    }
    for step in sorted(steps, key=first.__ne__):
        steps[step]()
    assert named(checker) == {name: 1}


def test_an_output_that_is_read_before_its_input_is_told_with_its_own_producer() -> None:
    """Not with that of the record that was read last."""
    logs = {0: LogOffsets(0, 2, 2)}
    checker = Checker(BrokerFacts("in", "out", "dlq", logs, {0: 2}, 1), None, Oracle("f", lambda record: record))
    ends = [batch(1, 1, A, "commit"), batch(3, 1, X, "commit")]
    checker.batches("out", 0, [batch(0, 1, A), ends[0], batch(2, 1, X), ends[1]])
    checker.output([output(0, 0)._replace(value=b"wrong"), output(1, 2)])
    checker.input([Record(0, offset, b"gold-1", ENRICHED, [], 1) for offset in (0, 1)])
    assert [(one.name, one.offset, one.producer_id, one.epoch) for one in checker.found.first()] == [
        (Name.CORRUPT, 0, *A)
    ]


def test_an_orders_second_output_is_a_duplicate_without_a_committed_offset_too() -> None:
    """Whatever its index: only the first may be explained by an offset that was deleted."""
    facts = BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 1, 3)}, {0: None}, 1)
    checker = Checker(facts)
    second = list(SourcePosition("in", 0, 0, 1).headers())
    checker.output([output(0, 0), output(0, 1)._replace(headers=second)])
    assert checker.found.totals == {Name.DUPLICATE: 1}


@pytest.mark.parametrize(
    ("key", "partitions", "partition", "place", "fewer"),
    [
        (b"gold-1", 3, 2, None, False),
        (b"gold-1", 3, 1, 2, False),
        (b"gold-1", 3, 0, None, True),
        (b"golden-1", 4, 2, None, False),
        (b"golden-1", 4, 1, None, True),
        (b"golden-1", 4, 3, 2, False),
        (None, 3, 1, None, False),
        (b"", 3, 1, None, False),
    ],
)
@pytest.mark.parametrize("first", ["input", "output"])
def test_the_key_selects_the_partition_of_an_output_with_other_partitions_than_the_input(
    first: str, key: bytes | None, partitions: int, partition: int, place: int | None, fewer: bool
) -> None:
    """Else the order of a key's records is lost; where fewer partitions may explain it, that is a doubt."""
    checker = new_checker(2, partitions=6, output_partitions=partitions)
    tier = ENRICHED if key == b"gold-1" else ENRICHED.replace(b"gold", b"standard").replace(b"0.15", b"0.0")
    steps = {
        "input": lambda: checker.input([order(n, partition=5)._replace(key=key) for n in (0, 1)]),
        "output": lambda: checker.output([output(n, n, partition, 5)._replace(key=key, value=tier) for n in (0, 1)]),
    }
    for name in sorted(steps, key=first.__ne__):
        steps[name]()
    assert named(checker) == ({} if place is None else {"nonmonotonic-output": 2})
    if place is not None:
        evidence = f"its source in[5] offset 0 belongs in output partition {place}, to keep the order of its key"
        assert checker.found.first()[0] == Finding(Name.NONMONOTONIC, "out", partition, 0, evidence)
    doubts = [text for text in checker.report().doubts if "as if a topic had had fewer" in text]
    assert [text[:30] for text in doubts] == (["2 outputs in another partition"] if fewer else [])


@pytest.mark.parametrize("output_partitions", [2, 4])
def test_outputs_stay_where_they_were_before_a_topic_was_expanded(output_partitions: int) -> None:
    """With equal counts before, the input's partition was right, and the order of a key is kept in it."""
    checker = new_checker(2, partitions=3, output_partitions=output_partitions)
    late = ENRICHED.replace(b":", b" :")  # looked at more closely, and right
    checker.input([order(n, partition=1)._replace(key=b"gold-3") for n in (0, 1)])
    checker.output([output(n, n, 1, 1)._replace(key=b"gold-3", value=(ENRICHED, late)[n]) for n in (0, 1)])
    assert named(checker) == {}
    assert [text for text in checker.report().doubts if "as if a topic had had fewer" in text] == []


@pytest.mark.parametrize(
    ("key", "partitions", "of", "partition", "found"),
    [
        (b"gold-1", 3, 0, 2, "doubt"),
        (b"gold-1", 3, 0, 1, "violation"),
        (b"gold-1", 3, 1, 0, "violation"),
        (b"gold-1", 3, 2, 2, "nothing"),
        (b"gold-1", 3, 1, 1, "nothing"),
        (b"golden-1", 4, 1, 2, "doubt"),
        (b"golden-1", 4, 2, 1, "violation"),
        (b"golden-1", 4, 0, 3, "violation"),
        (None, 3, 0, 1, "doubt"),
        (b"", 3, 0, 1, "doubt"),
        (None, 3, 1, 1, "nothing"),
    ],
)
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("first", ["input", "output"])
def test_an_output_in_its_keys_partition_may_be_from_before_the_input_was_expanded_to_as_many(
    first: str, transformed: bool, key: bytes | None, partitions: int, of: int, partition: int, found: str
) -> None:
    """Then the key selected the partition, and without one any was right; no other count of outputs explains one."""
    tier = ENRICHED if key == b"gold-1" else ENRICHED.replace(b"gold", b"standard").replace(b"0.15", b"0.0")
    logs = {p: LogOffsets(0, 2, 2) for p in range(partitions)}
    facts = BrokerFacts("in", "out", "dlq", logs, dict.fromkeys(logs, 2), partitions, downstream={"out": logs})
    checker = Checker(facts, None, Oracle("f", lambda record: record.with_value(tier)) if transformed else None)
    steps = {
        "input": lambda: checker.input([order(n, partition=of)._replace(key=key) for n in (0, 1)]),
        "output": lambda: checker.output([output(n, n, partition, of)._replace(key=key, value=tier) for n in (0, 1)]),
    }
    for name in sorted(steps, key=first.__ne__):
        steps[name]()
    name = "corrupt-output" if transformed else "nonmonotonic-output"
    assert named(checker) == ({name: 2} if found == "violation" else {})
    belongs = f"in partition {of}, to keep the order of its key" if transformed else f"in output partition {of}, to"
    assert all(belongs in one.evidence for one in checker.found.first())
    text = "2 outputs in another partition than the present numbers of partitions select, as if a topic had had fewer"
    doubts = [one[: len(text)] for one in checker.report().doubts if "another partition" in one]
    assert doubts == ([text] if found == "doubt" else [])


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("transformed", [False, True])
@pytest.mark.parametrize("first", ["input", "output"])
def test_an_output_whose_input_compaction_may_have_removed_is_a_doubt(
    first: str, transformed: bool, compacted: bool
) -> None:
    facts = BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 4, 4)}, {0: 4}, 1, compacted=lambda: compacted)
    oracle = Oracle("f", lambda record: record.with_value(ENRICHED)) if transformed else None
    checker = Checker(facts, None, oracle)
    steps = {
        "input": lambda: checker.input([order(n) for n in (0, 3)]),
        "output": lambda: checker.output([output(n, n) for n in range(4)]),
    }
    for name in sorted(steps, key=first.__ne__):
        steps[name]()
    assert named(checker) == ({} if compacted else {"phantom-output": 2})
    doubts = [
        text for text in checker.report().doubts if text.startswith("the sources of 2 outputs are not in in, which")
    ]
    assert bool(doubts) is compacted


COMPACTED = ", unless it never had one (older commits were compacted)"


@pytest.mark.parametrize(
    ("log", "doubt"),
    [
        (((0, OffsetCommit(0, None)),), ""),
        (((0, OffsetCommit(0, 4)),), None),
        (((0, None),), None),
        (None, None),
        (((1, None),), COMPACTED),
        (((0, None), (2, None)), COMPACTED),
        (((1, OffsetCommit(0, None)),), ""),
        (((0, OffsetCommit(0, None)), (2, None)), ""),
        (((1, OffsetCommit(0, 4)),), None),
        (((0, OffsetCommit(0, 4)), (2, None)), None),
    ],
    ids=[
        *("deleted", "committed", "no commit", "unreadable", "compacted", "compacted later", "compacted and deleted"),
        *("deleted and compacted", "compacted and committed", "committed and compacted"),
    ],
)
@pytest.mark.parametrize("transformed", [False, True])
def test_outputs_without_a_committed_offset_are_a_doubt_where_the_offset_may_have_been_deleted(
    transformed: bool, log: tuple[tuple[int, OffsetCommit | None], ...] | None, doubt: str | None
) -> None:
    """
    By hand, or because it expired, also where compaction has removed the deletion; it never removes a last commit.

    The second of two equal outputs is a duplicate still.
    """
    facts = BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 4, 4)}, {0: None}, 1)
    checker = Checker(facts, None, Oracle("f", lambda record: record) if transformed else None)
    if log is not None:
        checker.offsets.begin(0)
        commits = [(offset, () if commit is None else (commit,)) for offset, commit in log]
        checker.offsets.take([OffsetBatch(batch(offset, 1, (-1, -1)), some) for offset, some in commits])
    checker.input([order(n) for n in range(4)])
    checker.output([*(output(n, n) for n in range(4)), output(3, 4)])
    checker.input_ended()
    checker.downstream_ended()
    checker.finish()
    report = checker.report()
    excused = doubt is not None
    assert report.totals == {"duplicate-output": 1} | ({} if excused else {"offset-behind": 4})
    assert len(report.findings) == (1 if excused else 5)
    text = f"the committed offset of in[0] was deleted or has expired{doubt}, so 4 outputs can't be compared with it; "
    assert [one[: len(text)] for one in report.doubts if "has expired" in one] == ([text] if excused else [])


def test_the_partition_of_a_key_is_that_of_javas_client() -> None:
    """The first three from Kafka's own tests; every length of the rest of a key."""
    known = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
    assert [key_hash(key) for key in known] == [value & 0x7FFFFFFF for value in known.values()]
    keys = [bytes(range(200, 200 + size)) for size in range(40)]
    for partitions in (1, 3, 64):
        places = partitions_of(pa.array(keys, pa.binary()), partitions).tolist()
        assert [key_hash(key) % partitions for key in keys] == places


def test_a_duplicate_that_comes_before_the_record_in_its_own_partition_counts_too() -> None:
    """The one elsewhere is then the first, and stands in the wrong partition beside."""
    checker = new_checker(partitions=2, output_partitions=2)
    checker.input([order(n, partition=p) for p in (0, 1) for n in range(4)])
    checker.output([output(2, 0, partition=1)])
    checker.output([output(n, n, partition=p, of=p) for p in (0, 1) for n in range(1 - p, 4)])
    checker.output([output(0, 8)])
    totals = named(checker)
    assert totals["duplicate-output"] == 1
    assert checker.report().verdict is Verdict.VIOLATED


@pytest.mark.parametrize("transformed", [False, True])
def test_below_the_inputs_start_a_source_is_told_from_others_by_partition_offset_and_index(transformed: bool) -> None:
    """The last offset below it, too; their order can't be judged, since several outputs are read side by side."""
    logs = {p: LogOffsets(3, 3, 3) for p in (0, 1)}
    facts = BrokerFacts("in", "out", "dlq", logs, dict.fromkeys(logs, 3), 2)
    checker = Checker(facts, None, Oracle("f", lambda record: record) if transformed else None)
    checker.batches("out", 0, [batch(0, 20, A), batch(20, 1, A, "commit")])
    second = list(SourcePosition("in", 0, 2, index=1).headers())
    checker.output([output(2, 0), output(2, 1)._replace(headers=second), output(0, 2), output(1, 3)])
    checker.output([output(2, 0, partition=1, of=1), output(1, 1, partition=1, of=1)])
    assert checker.found.first() == []
    checker.output([output(2, 4), output(2, 5)._replace(headers=second), output(1, 6, of=1)])
    sources = (("in[0] offset 2", 4), ("in[0] offset 2", 5), ("in[1] offset 1", 6))
    assert checker.found.first() == [
        Finding(Name.DUPLICATE, "out", 0, offset, f"its source {source} came out before", *A)
        for source, offset in sources
    ]
    assert (named(checker), checker.report().unverifiable) == ({"duplicate-output": 3}, 9)
    assert held_bytes(checker) == 3 * 512


@pytest.mark.parametrize("copy", [0, 1])
def test_a_duplicate_above_the_committed_offset_is_one_too(copy: int) -> None:
    """The first is told as out too early, each one behind it as its copy."""
    checker = new_checker(committed=2, partitions=2, output_partitions=2)
    checker.input([order(n, partition=p) for p in (0, 1) for n in range(4)])
    checker.output([output(n, n, partition=p, of=p) for p in (0, 1) for n in range(2)])
    for rows in ([output(2, 8)], [output(2, 9, partition=copy)], [output(2, 10, partition=copy)]):
        checker.output(rows)
    assert named(checker) == {"offset-behind": 1, "duplicate-output": 2}


@pytest.mark.parametrize(
    ("source", "committed", "name"),
    [(3, 4, None), (4, 4, "phantom-output"), (4, 5, "phantom-output"), (2, 2, "offset-behind"), (1, 2, None)],
)
def test_the_last_stable_offset_and_the_committed_one_are_the_first_that_are_not_below(
    source: int, committed: int, name: str | None
) -> None:
    """One below each is an output as it should be; at the last stable offset no reader can see an input."""
    checker = new_checker(committed=committed)
    checker.input([order(n) for n in range(4)])
    checker.output([output(n, n) for n in range(min(committed, 4)) if n != source])
    checker.dead_letters([])
    checker.output([output(source, 20)])
    totals = named(checker)
    totals.pop("nonmonotonic-output", None)
    totals.pop("offset-ahead", None)
    assert totals == ({} if name is None else {name: 1})


def test_every_record_that_overtook_others_is_told() -> None:
    """
    Behind 5, both 3 and 4 come too late: what counts is the highest so far, not the one before.

    The quick comparison of what is right at first sight keeps in mind how far the partition is, as the slow one does.
    """
    checker = new_checker(6)
    checker.input([order(n) for n in range(6)])
    checker.output([output(source, n) for n, source in enumerate((0, 1, 2, 5, 3, 4))])
    assert named(checker) == {"nonmonotonic-output": 2}
    checker = new_checker(3)
    checker.input([order(0), order(1, BROKEN), order(2)])
    checker.dead_letters([dead_letter(1, 0)])
    checker.output([output(2, 0), output(0, 1)])
    assert named(checker) == {"nonmonotonic-output": 1}


def test_dead_letters_may_lie_in_any_partition_and_outputs_may_not() -> None:
    """Only where input and output have as many partitions does the order per key hang on it."""
    checker = new_checker(2, partitions=2, output_partitions=2)
    checker.input([order(0, BROKEN), order(1), order(0, partition=1), order(1, partition=1)])
    checker.dead_letters([dead_letter(0, 0, partition=1)])
    checker.output([output(1, 0, partition=1), output(0, 1, partition=1, of=1), output(1, 2, partition=1, of=1)])
    assert named(checker) == {"nonmonotonic-output": 1}


def test_an_enriched_record_on_the_dead_letter_topic_is_corrupt() -> None:
    checker = new_checker(1)
    checker.input([order(0)])
    checker.dead_letters([output(0, 0)])
    assert named(checker) == {"corrupt-output": 1}


def test_an_input_that_is_read_when_nothing_can_come_out_any_more_is_lost() -> None:
    checker = new_checker(3)
    checker.input([order(0)])
    checker.output([output(0, 0)])
    checker.downstream_ended()
    checker.input([order(1), order(2)])
    assert named(checker) == {"lost-output": 2}


def test_an_output_whose_input_is_passed_by_waits_no_longer() -> None:
    checker = new_checker(5)
    checker.output([output(2, 0), output(4, 1)])
    checker.input([order(n) for n in (0, 1, 3)])
    assert checker.found.totals[Name.PHANTOM] == 1
    assert waiting(checker) == 4, "three inputs and the output of the fifth"


def seen(checker: Checker, *outputs: Record) -> list[Finding]:
    """What is found in these rows of one transaction, where 0, 1, 2, 4 and 5 are the input; 5 is not committed."""
    checker.batches("out", 0, [batch(0, 20, A), batch(20, 1, A, "commit")])
    checker.input([order(n) for n in (0, 1, 2, 4, 5)])
    checker.output(outputs)
    return checker.found.first()


def test_what_is_found_names_the_record_its_transaction_and_its_source() -> None:
    rows = [output(source, n) for n, source in enumerate((0, 2, 1, 1, 5, 5, 4))]
    rows[-1] = rows[-1]._replace(key=b"x")
    checker, early = new_checker(6, 5), "its source in[0] offset 5 was output, but the committed offset is 5"
    assert seen(checker, *rows) == [
        Finding(Name.NONMONOTONIC, "out", 0, 2, "its source in[0] offset 1 was output after offset 2", *A),
        Finding(Name.DUPLICATE, "out", 0, 3, "its source in[0] offset 1 came out before", *A),
        Finding(Name.DUPLICATE, "out", 0, 5, "its source in[0] offset 5 came out before", *A),
        Finding(Name.OFFSET_BEHIND, "out", 0, 4, early, *A),
        Finding(Name.CORRUPT, "out", 0, 6, "source in[0] offset 4: key is b'x', should be b'gold-1'"),
    ]
    assert (checker.counts["inputs"], checker.counts["outputs"], checker.report().backlog) == (4, 7, 1)


INVISIBLE = "is not a visible record (aborted, or never written)"


@pytest.mark.parametrize(
    ("headers", "evidence", "key"),
    [
        ([], "no readable source headers", A),
        (SourcePosition("x", 0, 1).headers(), "its source is x[0] offset 1, not in in", A),
        (SourcePosition("in", 1, 1).headers(), "its source is in[1] offset 1, not in in", A),
        (SourcePosition("in", 0, 6).headers(), "its source in[0] offset 6 is not visible (LSO 6)", A),
        (SourcePosition("in", 0, 3).headers(), f"its source in[0] offset 3 {INVISIBLE}", (None, None)),
    ],
)
def test_a_phantom_is_told_by_what_its_headers_name(
    headers: list[tuple[str, bytes | None]], evidence: str, key: tuple[int | None, int | None]
) -> None:
    findings = seen(new_checker(6, 5), output(0, 7)._replace(headers=headers))
    assert findings == [Finding(Name.PHANTOM, "out", 0, 7, evidence, *key)]


def test_lost_inputs_and_outputs_in_a_foreign_partition_are_told_with_their_places() -> None:
    checker = new_checker(2, partitions=2, output_partitions=2)
    checker.input([order(n, partition=p) for p in (0, 1) for n in range(2)])
    checker.output([output(0, 3, partition=1)])
    named(checker)
    belongs = "its source in[0] offset 0 belongs in output partition 0, to keep the order of its key"
    assert checker.found.first() == [
        Finding(Name.NONMONOTONIC, "out", 1, 3, belongs),
        *[Finding(Name.LOST, "in", p, n, "neither on out nor dlq") for p, n in ((0, 1), (1, 0), (1, 1))],
    ]


def test_outputs_that_are_right_at_first_sight_are_not_looked_at_any_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is a matter of time alone: whatever the key and however many partitions, and behind one that is not."""
    slowly: list[int] = []
    look = Comparison._slowly
    monkeypatch.setattr(
        Comparison, "_slowly", lambda self, stream, row: (slowly.append(row[1]), look(self, stream, row))[1]
    )
    standard = ENRICHED.replace(b"gold", b"standard").replace(b"0.15", b"0.0")
    for output_partitions in (1, 2):
        checker = new_checker(6, output_partitions=output_partitions)
        keys = [(b"gold-1", ENRICHED), (None, standard), (b"golden-1", standard)] * 2
        checker.input([order(n)._replace(key=key) for n, (key, _) in enumerate(keys)])
        late = ENRICHED.replace(b":", b" :")
        checker.output(
            [output(n, n)._replace(key=key, value=late if n == 3 else text) for n, (key, text) in enumerate(keys)]
        )
        assert named(checker) == {}
    assert slowly == [3, 3]


@pytest.mark.parametrize("readable", [True, False])
def test_a_transaction_without_an_offset_commit_is_torn_where_the_log_can_be_read(readable: bool) -> None:
    """Whichever input partition its records are of."""
    checker = new_checker(1, partitions=2, output_partitions=2)
    if readable:
        checker.offsets.begin(0, 1)
    for partition, key in ((0, A), (1, B)):
        checker.batches("out", partition, [batch(0, 1, key), batch(1, 1, key, "commit")])
        checker.input([order(0, partition=partition)])
        checker.output([output(0, 0, partition, of=partition)])
    named(checker)
    checker.finish()
    assert checker.report().totals == ({"torn-txn": 2} if readable else {})


def test_a_transaction_is_torn_where_its_sources_reach_above_the_offset_that_it_committed() -> None:
    checker = new_checker(4, committed=1)
    checker.offsets.begin(0)
    checker.offsets.take(committed(0, A, 1))
    checker.batches("out", 0, [batch(0, 3, A), batch(3, 1, A, "commit")])
    checker.input([order(n) for n in range(3)])
    checker.output([output(n, n) for n in range(3)])
    named(checker)
    checker.finish()
    assert checker.report().totals == {"offset-behind": 2, "torn-txn": 1}
    assert checker.found.first()[-1].evidence.startswith("3 visible records with sources 0 to 2 of in[0]")


def test_what_readers_could_see_is_kept_with_its_source_or_without_one() -> None:
    for kept in (True, False):
        checker = Checker(BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 9, 9)}, {0: 9}, 1, journals=kept))
        checker.input([order(n) for n in range(9)])
        foreign = list(SourcePosition("x", 0, 3).headers())
        checker.output(
            [output(0, 0), output(1, 1), output(2, 2)._replace(headers=[]), output(3, 3)._replace(headers=foreign)]
        )
        checker.dead_letters([output(4, 5)])
        shown = {place: (layout.first, layout.runs) for place, layout in checker.layouts.items()}
        runs = [Run(0, 0, 0, 2), Run(2, -1, -1, 1), Run(3, -1, -1, 1)]
        assert shown == ({("out", 0): (0, runs), ("dlq", 0): (0, [Run(5, 0, 4, 1)])} if kept else {})


@pytest.mark.parametrize("together", [True, False])
def test_the_evidence_of_a_torn_transaction_names_all_of_its_sources(together: bool) -> None:
    """Also where its records were right at first sight, whether others follow in the same reading or not."""
    first, second = (7, 0), (8, 0)
    checker = Checker(BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 12, 12)}, {0: 12}, 1))
    checker.offsets.begin(0)
    checker.offsets.take([*committed(0, (5, 0), 6), *committed(2, second, 12)])
    checker.batches("out", 0, [batch(0, 9, first), batch(9, 1, first, "commit")])
    checker.batches("out", 0, [batch(10, 3, second), batch(13, 1, second, "commit")])
    checker.input([order(n) for n in range(12)])
    rows = [output(n, n) for n in range(9)], [output(n, n + 1) for n in range(9, 12)]
    for some in [rows[0] + rows[1]] if together else rows:
        checker.output(some)
    named(checker)
    checker.finish()
    torn = [one for one in checker.found.first() if one.name is Name.TORN and one.producer_id == first[0]]
    assert [one.evidence.partition(" of ")[0] for one in torn] == ["9 visible records with sources 0 to 8"]
