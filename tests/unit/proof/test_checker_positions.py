"""The checker's places and positions: where records lie, and what the group's offsets claim."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from harness.histories import batch

from brew.cluster import OffsetBatch, OffsetCommit
from brew.journal import Run
from brew.offsets import LogOffsets, SourcePosition
from brew.records import ERROR_REASON
from proof.checking.checker import Checker
from proof.checking.comparison import Comparison
from proof.checking.input_partition import BrokerFacts, InputPartition, Record, Stream
from proof.checking.positions import OffsetLog, Positions
from proof.checking.transactions import Attempt, Endings, Key, RawLog
from proof.findings import Finding, Findings, Name, Verdict

A, B, C, X = (1, 0), (1, 1), (1, 2), (9, 9)
"""Producer id and epoch of four transactions; nobody ever commits an offset as X."""


class Log:
    """One input partition whose inputs below offset 100 have all come out."""

    def __init__(self, both: Callable[[Key], bool] = lambda _key: False) -> None:
        self.found = Findings()
        self.lane = InputPartition(0)
        self.lane.read = 100
        self.positions = Positions("in", 0, self.lane, self.found, both)
        self.positions.readable = True

    def wrote(self, key: Key, lowest: int, highest: int, partition: int = 0) -> None:
        sources = {0: [lowest, highest, highest - lowest + 1]}
        self.positions.wrote(Attempt("out", partition, *key, first=lowest, sources=sources))

    def moved(self, until: int, key: Key, *, strict: bool = True) -> None:
        self.positions.moved(until, key, strict=strict)

    def named(self, *lost: int) -> dict[str, int]:
        """What is found once all logs have ended; nothing behind a lost input is settled before."""
        self.lane.read = min(lost, default=self.lane.read)
        self.positions.settle()
        self.positions.ended(lost)
        return {str(name): count for name, count in self.found.totals.items()}

    @property
    def evidence(self) -> list[str]:
        return [one.evidence for one in self.found.first()]


def test_transactions_that_cover_exactly_their_ranges_raise_no_alarm() -> None:
    """The last offset of a range and the first of the next, and one transaction in two output partitions."""
    log = Log()
    for key, start in ((A, 0), (B, 10), (C, 20)):
        log.moved(start + 10, key)
        log.wrote(key, start, start + 8, partition=0)
        log.wrote(key, start + 9, start + 9, partition=1)
    assert log.named() == {}


@pytest.mark.parametrize(
    ("lowest", "highest", "torn"), [(10, 19, False), (9, 19, True), (10, 20, True), (9, 9, True), (9, 20, True)]
)
def test_a_transaction_is_torn_by_its_lowest_source_and_by_its_highest(lowest: int, highest: int, torn: bool) -> None:
    """Its range is [10, 20); one record below or one above is not covered, and the evidence names both ends."""
    log = Log()
    log.positions.set_by_hand(10)
    log.moved(20, B)
    log.wrote(B, lowest, highest)
    assert log.named() == ({"torn-txn": 1} if torn else {})
    if torn:
        count = highest - lowest + 1
        evidence = f"{count} visible records with sources {lowest} to {highest} of in[0]: "
        evidence += "no offset commit of this transaction covers exactly them"
        assert log.found.first() == [Finding(Name.TORN, "out", 0, lowest, evidence, *B)]


@pytest.mark.parametrize("key", [X, A], ids=["another", "a second one of the same producer and epoch"])
def test_another_transactions_records_amid_a_range_are_torn(key: Key) -> None:
    """They came out, and the offset behind them is none of their own: one transaction ends once in a partition."""
    log = Log()
    log.moved(10, A)
    log.wrote(A, 0, 4)
    log.wrote(key, 5, 9)
    assert log.named() == {"torn-txn": 1}


def test_a_transaction_that_begins_in_the_range_before_its_own_is_torn_at_the_first_of_the_two() -> None:
    """Taken by its highest source alone it would wait for its own range, of which the start is not known here."""
    log = Log()
    log.moved(10, A)
    log.wrote(A, 0, 4)
    log.wrote(B, 5, 15)
    log.positions.broken()
    log.moved(20, B)
    assert log.named() == {"torn-txn": 1}
    assert "sources 5 to 15" in log.evidence[0]


@pytest.mark.parametrize(("key", "highest", "torn"), [(A, 9, 0), (A, 10, 1), (X, 9, 0), (X, 10, 1)])
def test_behind_a_gap_in_the_offset_log_a_range_still_has_an_end(key: Key, highest: int, torn: int) -> None:
    """A commit that compaction took may cover what lies below the range's end, and never what straddles it."""
    log = Log()
    log.positions.broken()
    log.moved(10, A)
    log.wrote(C, 1, 2)
    log.wrote(key, 0, highest)
    assert log.named().get("torn-txn", 0) == torn


def test_behind_a_gap_in_the_offset_log_the_inputs_first_record_is_missed_too() -> None:
    log = Log()
    log.positions.broken()
    log.moved(10, A)
    log.wrote(A, 3, 9)
    assert log.named(0) == {"offset-gap": 1}


def test_all_ranges_whose_inputs_have_come_out_are_judged_at_once() -> None:
    """The second one too, and up to the lowest input that still waits; the rest when it comes out."""
    log = Log()
    for key, until in ((A, 10), (B, 20), (C, 30)):
        log.moved(until, key)
        log.wrote(X, until - 10, until - 9)
    log.lane.read = 20
    log.positions.settle()
    assert log.found.totals[Name.TORN] == 2
    log.lane.read = 30
    log.positions.settle()
    assert log.found.totals[Name.TORN] == 3


def test_an_offset_that_is_committed_again_is_no_regression_and_one_below_is() -> None:
    """What the next commit is held against is the offset as it stands, not the highest ever."""
    log = Log()
    log.moved(10, A)
    log.moved(10, B)
    assert log.found.totals[Name.OFFSET_REGRESSION] == 0
    log.moved(9, C)
    log.moved(9, (1, 3))
    log.moved(10, (1, 4))
    log.named()
    assert log.found.first() == [Finding(Name.OFFSET_REGRESSION, "in", 0, 9, "the committed offset was 10 before", *C)]


def test_a_transaction_that_moves_the_offset_back_is_told_as_that_alone() -> None:
    """Not as torn as well; what others wrote without a commit is still told."""
    log = Log()
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
        for at, producer in enumerate((1, 2, 3, 2)):
            log.moved(10 * at + 10, (producer, 0), strict=strict)
        evidence = "this producer id moved the offset again, after another one had taken the partition over"
        assert log.found.first() == ([Finding(Name.ZOMBIE, "in", 0, 40, evidence, 2, 0)] if strict else [])


def test_an_offset_set_by_hand_is_a_start_until_a_transaction_moves_it() -> None:
    """Inputs that an operator skipped are in nobody's range; the next commit is a transaction's own again."""
    log = Log()
    log.moved(10, A)
    log.wrote(A, 0, 9)
    log.positions.set_by_hand(20)
    assert log.positions.by_hand
    log.moved(30, B)
    log.wrote(B, 20, 29)
    assert not log.positions.by_hand
    assert log.named(15, 19) == {}


@pytest.mark.parametrize(
    ("lost", "named"),
    [((0, 2), ["offset-gap"]), ((0, 3), ["torn-txn"]), ((0, 9), ["torn-txn"]), ((5,), ["torn-txn"]), ((10,), [])],
)
def test_inputs_lost_before_a_transaction_are_a_gap_and_amid_it_a_tear(lost: tuple[int, ...], named: list[str]) -> None:
    """It wrote 3 to 9 of [0, 10): the last of those lost decides, and what lies behind the range is another's."""
    log = Log()
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


def test_a_range_of_which_nothing_came_out_is_torn() -> None:
    log = Log()
    log.moved(10, A)
    log.moved(20, B)
    log.wrote(B, 10, 19)
    assert log.named(*range(10)) == {"torn-txn": 1}
    assert "10 of its records are not visible" in log.evidence[0]


@pytest.mark.parametrize(("readable", "gap", "torn"), [(True, False, 1), (False, False, 0), (True, True, 0)])
def test_records_without_an_offset_commit_are_torn_where_the_log_can_tell(readable: bool, gap: bool, torn: int) -> None:
    """Not where it can't be read, nor where it ends with a gap: the commit may have lain there."""
    log = Log()
    log.positions.readable = readable
    log.moved(10, A)
    log.wrote(X, 10, 12)
    if gap:
        log.positions.broken()
    assert log.named().get("torn-txn", 0) == torn


def test_a_transactions_sources_reach_from_the_lowest_to_the_highest_of_all_its_stretches() -> None:
    found = Findings()
    raw = RawLog("out", 0, found, Endings(found), strict=True)
    came: list[Attempt] = []
    stream = Stream(raw, lambda _partition, attempt: came.append(attempt), None)
    stream.batches([batch(0, 10, A)])
    stream.move_to(0)
    for lowest, highest in ((5, 7), (2, 3), (9, 9), (4, 4)):
        stream.note(0, lowest, highest, highest - lowest + 1)
    assert [one.sources for one in came] == [{0: [2, 9, 7]}]


def reused(commits: tuple[OffsetCommit, ...]) -> list[OffsetBatch]:
    raw = [batch(at, 1, (7, 3), marker, 1000) for at, marker in enumerate((None, "commit", None, "abort"))]
    return [OffsetBatch(one, () if one.control else commits) for one in raw]


@pytest.mark.parametrize(("ours", "reuses", "counted"), [(True, 1, 2), (False, 0, 0)])
def test_a_foreign_groups_transactions_are_neither_judged_nor_counted(ours: bool, reuses: int, counted: int) -> None:
    """Found by the mutants: one group's reused epoch made its neighbours' runs red, and their counts too high."""
    found = Findings()
    endings = Endings(found, [500])
    position = Positions("in", 0, InputPartition(0), found, endings.both)
    log = OffsetLog({0: position}, found, endings, strict=True)
    log.begin(4)

    log.take(reused((OffsetCommit(0, 5),) if ours else ()))

    assert found.totals[Name.EPOCH_REUSE] == reuses
    assert endings.counts["committed_transactions"] + endings.counts["aborted_transactions"] == counted
    assert endings.first_commit_ms == {500: 1000 if ours else None}


VALUE = b'{"customer_id":"c"}'
ENRICHED = VALUE[:-1] + b',"loyalty_tier":"gold","loyalty_discount":0.15}'
BROKEN = b"no json"


def came(offset: int, value: bytes = VALUE, partition: int = 0) -> Record:
    return Record(partition, offset, b"gold-1", value, [], 1)


def out(source: int, offset: int, partition: int = 0, of: int = 0) -> Record:
    """The output of the input at `of[source]`, at ``offset`` of output partition ``partition``."""
    return Record(partition, offset, b"gold-1", ENRICHED, list(SourcePosition("in", of, source).headers()), 1)


def dead(source: int, offset: int, partition: int = 0) -> Record:
    headers = [(ERROR_REASON, b"not-json"), *SourcePosition("in", 0, source).headers()]
    return Record(partition, offset, b"gold-1", BROKEN, headers, None)


def checker(until: int = 4, committed: int | None = None, partitions: int = 1, output_partitions: int = 1) -> Checker:
    """``until``: the last stable offset of every input partition, and of the log's end two more."""
    logs = {p: LogOffsets(0, until, until + 2) for p in range(partitions)}
    position = until if committed is None else committed
    return Checker(BrokerFacts("in", "out", "dlq", logs, dict.fromkeys(logs, position), output_partitions))


def named(made: Checker) -> dict[str, int]:
    made.input_ended()
    made.downstream_ended()
    assert made.in_flight == 0
    return made.report().totals


def committed(offset: int, key: Key, until: int) -> list[OffsetBatch]:
    commits = (OffsetCommit(0, until),)
    return [OffsetBatch(batch(offset, 1, key), commits), OffsetBatch(batch(offset + 1, 1, key, "commit"))]


@pytest.mark.parametrize("output_partitions", [2, 3])
@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("first", ["input", "output"])
def test_a_duplicate_counts_in_whatever_output_partition_it_lies(first: str, copy: int, output_partitions: int) -> None:
    made = checker(partitions=2, output_partitions=output_partitions)
    inputs = [came(n, partition=p) for p in (0, 1) for n in range(4)]
    if first == "input":
        made.input(inputs)
    made.output([out(n, n, partition=p, of=p) for p in (0, 1) for n in range(4)])
    made.output([out(2, 9, partition=copy, of=0)])
    if first == "output":
        made.input(inputs)
    assert named(made) == {"duplicate-output": 1}


def test_a_duplicate_that_comes_before_the_record_in_its_own_partition_counts_too() -> None:
    """The one elsewhere is then the first, and stands in the wrong partition beside."""
    made = checker(partitions=2, output_partitions=2)
    made.input([came(n, partition=p) for p in (0, 1) for n in range(4)])
    made.output([out(2, 0, partition=1)])
    made.output([out(n, n, partition=p, of=p) for p in (0, 1) for n in range(1 - p, 4)])
    made.output([out(0, 8)])
    totals = named(made)
    assert totals["duplicate-output"] == 1
    assert made.report().verdict is Verdict.VIOLATED


@pytest.mark.parametrize("copy", [0, 1])
def test_a_duplicate_above_the_committed_offset_is_one_too(copy: int) -> None:
    """The first is told as out too early, each one behind it as its copy."""
    made = checker(committed=2, partitions=2, output_partitions=2)
    made.input([came(n, partition=p) for p in (0, 1) for n in range(4)])
    made.output([out(n, n, partition=p, of=p) for p in (0, 1) for n in range(2)])
    for rows in ([out(2, 8)], [out(2, 9, partition=copy)], [out(2, 10, partition=copy)]):
        made.output(rows)
    assert named(made) == {"offset-behind": 1, "duplicate-output": 2}


@pytest.mark.parametrize(
    ("source", "committed", "name"),
    [(3, 4, None), (4, 4, "phantom-output"), (4, 5, "phantom-output"), (2, 2, "offset-behind"), (1, 2, None)],
)
def test_the_last_stable_offset_and_the_committed_one_are_the_first_that_are_not_below(
    source: int, committed: int, name: str | None
) -> None:
    """One below each is an output as it should be; at the last stable offset no reader can see an input."""
    made = checker(committed=committed)
    made.input([came(n) for n in range(4)])
    made.output([out(n, n) for n in range(min(committed, 4)) if n != source])
    made.dead_letters([])
    made.output([out(source, 20)])
    totals = named(made)
    totals.pop("nonmonotonic-output", None)
    totals.pop("offset-ahead", None)
    assert totals == ({} if name is None else {name: 1})


def test_every_record_that_overtook_others_is_told() -> None:
    """
    Behind 5, both 3 and 4 come too late: what counts is the highest so far, not the one before.

    The quick comparison of what is right at first sight keeps in mind how far the partition is, as the slow one does.
    """
    made = checker(6)
    made.input([came(n) for n in range(6)])
    made.output([out(source, n) for n, source in enumerate((0, 1, 2, 5, 3, 4))])
    assert named(made) == {"nonmonotonic-output": 2}
    made = checker(3)
    made.input([came(0), came(1, BROKEN), came(2)])
    made.dead_letters([dead(1, 0)])
    made.output([out(2, 0), out(0, 1)])
    assert named(made) == {"nonmonotonic-output": 1}


def test_dead_letters_may_lie_in_any_partition_and_outputs_may_not() -> None:
    """Only where input and output have as many partitions does the order per key hang on it."""
    made = checker(2, partitions=2, output_partitions=2)
    made.input([came(0, BROKEN), came(1), came(0, partition=1), came(1, partition=1)])
    made.dead_letters([dead(0, 0, partition=1)])
    made.output([out(1, 0, partition=1), out(0, 1, partition=1, of=1), out(1, 2, partition=1, of=1)])
    assert named(made) == {"nonmonotonic-output": 1}


def test_an_enriched_record_on_the_dead_letter_topic_is_corrupt() -> None:
    made = checker(1)
    made.input([came(0)])
    made.dead_letters([out(0, 0)])
    assert named(made) == {"corrupt-output": 1}


def test_an_input_that_is_read_when_nothing_can_come_out_any_more_is_lost() -> None:
    made = checker(3)
    made.input([came(0)])
    made.output([out(0, 0)])
    made.downstream_ended()
    made.input([came(1), came(2)])
    assert named(made) == {"lost-output": 2}


def test_an_output_whose_input_is_passed_by_waits_no_longer() -> None:
    made = checker(5)
    made.output([out(2, 0), out(4, 1)])
    made.input([came(n) for n in (0, 1, 3)])
    assert made.found.totals[Name.PHANTOM] == 1
    assert made.in_flight == 4, "three inputs and the output of the fifth"


def seen(made: Checker, *outputs: Record) -> list[Finding]:
    """What is found in these rows of one transaction, where 0, 1, 2, 4 and 5 are the input; 5 is not committed."""
    made.batches("out", 0, [batch(0, 20, A), batch(20, 1, A, "commit")])
    made.input([came(n) for n in (0, 1, 2, 4, 5)])
    made.output(outputs)
    return made.found.first()


def test_what_is_found_names_the_record_its_transaction_and_its_source() -> None:
    rows = [out(0, 0), out(2, 1), out(1, 2), out(1, 3), out(5, 4), out(5, 5), out(4, 6)._replace(key=b"x")]
    made, early = checker(6, 5), "its source in[0] offset 5 was output, but the committed offset is 5"
    assert seen(made, *rows) == [
        Finding(Name.NONMONOTONIC, "out", 0, 2, "its source in[0] offset 1 was output after offset 2", *A),
        Finding(Name.DUPLICATE, "out", 0, 3, "its source in[0] offset 1 came out before", *A),
        Finding(Name.DUPLICATE, "out", 0, 5, "its source in[0] offset 5 came out before", *A),
        Finding(Name.OFFSET_BEHIND, "out", 0, 4, early, *A),
        Finding(Name.CORRUPT, "out", 0, 6, "source in[0] offset 4: key is b'x', should be b'gold-1'"),
    ]
    assert (made.counts["inputs"], made.counts["outputs"], made.report().backlog) == (4, 7, 1)


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
    found = seen(checker(6, 5), out(0, 7)._replace(headers=headers))
    assert found == [Finding(Name.PHANTOM, "out", 0, 7, evidence, *key)]


def test_lost_inputs_and_outputs_in_a_foreign_partition_are_told_with_their_places() -> None:
    made = checker(2, partitions=2, output_partitions=2)
    made.input([came(n, partition=p) for p in (0, 1) for n in range(2)])
    made.output([out(0, 3, partition=1)])
    named(made)
    belongs = "its source in[0] offset 0 belongs in output partition 0, to keep the order of its key"
    assert made.found.first() == [
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
        made = checker(6, output_partitions=output_partitions)
        keys = [(b"gold-1", ENRICHED), (None, standard), (b"golden-1", standard)] * 2
        made.input([came(n)._replace(key=key) for n, (key, _) in enumerate(keys)])
        late = ENRICHED.replace(b":", b" :")
        made.output([out(n, n)._replace(key=key, value=late if n == 3 else text) for n, (key, text) in enumerate(keys)])
        assert named(made) == {}
    assert slowly == [3, 3]


def test_a_transaction_is_torn_where_its_sources_reach_above_the_offset_that_it_committed() -> None:
    made = checker(4, committed=1)
    made.offsets.begin(0)
    made.offsets.take(committed(0, A, 1))
    made.batches("out", 0, [batch(0, 3, A), batch(3, 1, A, "commit")])
    made.input([came(n) for n in range(3)])
    made.output([out(n, n) for n in range(3)])
    named(made)
    made.finish()
    assert made.report().totals == {"offset-behind": 2, "torn-txn": 1}
    assert made.found.first()[-1].evidence.startswith("3 visible records with sources 0 to 2 of in[0]")


def test_what_readers_could_see_is_kept_with_its_source_or_without_one() -> None:
    for kept in (True, False):
        made = Checker(BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 9, 9)}, {0: 9}, 1, journals=kept))
        made.input([came(n) for n in range(9)])
        foreign = list(SourcePosition("x", 0, 3).headers())
        made.output([out(0, 0), out(1, 1), out(2, 2)._replace(headers=[]), out(3, 3)._replace(headers=foreign)])
        made.dead_letters([out(4, 5)])
        shown = {place: (layout.first, layout.runs) for place, layout in made.layouts.items()}
        runs = [Run(0, 0, 0, 2), Run(2, -1, -1, 1), Run(3, -1, -1, 1)]
        assert shown == ({("out", 0): (0, runs), ("dlq", 0): (0, [Run(5, 0, 4, 1)])} if kept else {})


@pytest.mark.parametrize("together", [True, False])
def test_the_evidence_of_a_torn_transaction_names_all_of_its_sources(together: bool) -> None:
    """Also where its records were right at first sight, whether others follow in the same reading or not."""
    first, second = (7, 0), (8, 0)
    made = Checker(BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 12, 12)}, {0: 12}, 1))
    made.offsets.begin(0)
    made.offsets.take([*committed(0, (5, 0), 6), *committed(2, second, 12)])
    made.batches("out", 0, [batch(0, 9, first), batch(9, 1, first, "commit")])
    made.batches("out", 0, [batch(10, 3, second), batch(13, 1, second, "commit")])
    made.input([came(n) for n in range(12)])
    rows = [out(n, n) for n in range(9)], [out(n, n + 1) for n in range(9, 12)]
    for some in [rows[0] + rows[1]] if together else rows:
        made.output(some)
    named(made)
    made.finish()
    torn = [one for one in made.found.first() if one.name is Name.TORN and one.producer_id == first[0]]
    assert [one.evidence.partition(" of ")[0] for one in torn] == ["9 visible records with sources 0 to 8"]
