"""Where a downstream record stands, and when it comes, changes nothing about what it is: each side of each border."""

from __future__ import annotations

import pytest

from brew.cluster import OffsetBatch, OffsetCommit, RawBatch
from brew.offsets import LogOffsets, SourcePosition
from brew.records import ERROR_REASON
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts, Record
from proof.findings import Name, Verdict

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


@pytest.mark.parametrize("output_partitions", [2, 3])
@pytest.mark.parametrize("copy", [0, 1])
@pytest.mark.parametrize("first", ["input", "output"])
def test_a_duplicate_counts_in_whatever_output_partition_it_lies(first: str, copy: int, output_partitions: int) -> None:
    """In the record's own or in another one, whether its input was read before it or after it."""
    made = checker(partitions=2, output_partitions=output_partitions)
    inputs = [came(n, partition=p) for p in (0, 1) for n in range(4)]
    outputs = [out(n, n, partition=p, of=p) for p in (0, 1) for n in range(4)]
    twin = [out(2, 9, partition=copy, of=0)]
    if first == "input":
        made.input(inputs)
    for rows in (outputs, twin):
        made.output(rows)
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
    made.output([out(2, 8)])
    made.output([out(2, 9, partition=copy)])
    made.output([out(2, 10, partition=copy)])
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
    """Behind 5, both 3 and 4 come too late: what counts is the highest so far, not the one before."""
    made = checker(6)
    made.input([came(n) for n in range(6)])
    made.output([out(source, n) for n, source in enumerate((0, 1, 2, 5, 3, 4))])
    assert named(made) == {"nonmonotonic-output": 2}


def test_a_record_that_comes_behind_one_that_was_right_at_first_sight_is_told() -> None:
    """The quick comparison keeps in mind how far the partition is, as the slow one does."""
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
    """Whatever it looks like, there it has to say why it was rejected."""
    made = checker(1)
    made.input([came(0)])
    made.dead_letters([out(0, 0)])
    assert named(made) == {"corrupt-output": 1}


def test_an_input_that_is_read_when_nothing_can_come_out_any_more_is_lost() -> None:
    """Output and dead letters have ended before the input was read to its end."""
    made = checker(3)
    made.input([came(0)])
    made.output([out(0, 0)])
    made.downstream_ended()
    made.input([came(1), came(2)])
    made.input_ended()
    assert made.in_flight == 0
    assert made.report().totals == {"lost-output": 2}


def test_an_output_whose_input_is_passed_by_waits_no_longer() -> None:
    """It is told as soon as the reading is behind its source, not kept until the end."""
    made = checker(5)
    made.output([out(2, 0), out(4, 1)])
    made.input([came(n) for n in (0, 1, 3)])
    assert made.found.totals[Name.PHANTOM] == 1
    assert made.in_flight == 4, "three inputs and the output of the fifth"


def raw(base: int, records: int, key: tuple[int, int], marker: str | None = None) -> RawBatch:
    return RawBatch(base, base + records - 1, records, *key, 0, True, marker is not None, marker, 0)


@pytest.mark.parametrize("together", [True, False])
def test_the_evidence_of_a_torn_transaction_names_all_of_its_sources(together: bool) -> None:
    """Also where its records were right at first sight, whether others follow in the same reading or not."""
    first, second = (7, 0), (8, 0)
    facts = BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, 12, 12)}, {0: 12}, 1)
    made = Checker(facts)
    made.offsets.begin(0)
    for at, (key, until) in enumerate((((5, 0), 6), (second, 12))):
        made.offsets.take([OffsetBatch(raw(2 * at, 1, key), (OffsetCommit(0, until),))])
        made.offsets.take([OffsetBatch(raw(2 * at + 1, 1, key, "commit"))])
    made.batches("out", 0, [raw(0, 9, first), raw(9, 1, first, "commit")])
    made.batches("out", 0, [raw(10, 3, second), raw(13, 1, second, "commit")])
    made.input([came(n) for n in range(12)])
    rows = [out(n, n) for n in range(9)], [out(n, n + 1) for n in range(9, 12)]
    for some in [rows[0] + rows[1]] if together else rows:
        made.output(some)
    made.input_ended()
    made.downstream_ended()
    made.finish()
    torn = [one for one in made.found.first() if one.name is Name.TORN and one.producer_id == first[0]]
    assert [one.evidence.partition(" of ")[0] for one in torn] == ["9 visible records with sources 0 to 8"]
