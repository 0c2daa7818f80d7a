"""The checker with a function: it calls the same one, and every way of being wrong is told."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa
import pytest
from harness.histories import batch, waiting

import brew
from brew.cluster import OffsetBatch, OffsetCommit
from brew.offsets import LogOffsets, SourcePosition
from brew.record import Function
from brew.record import Record as Given
from brew.records import ERROR_REASON
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts, Record
from proof.checking.transformed import Oracle, _shown
from proof.findings import Finding, Name, Report, Verdict

IN, OUT, ALSO, DEAD = "in", "out", "late", "dlq"


def function(record: brew.Record) -> brew.Record | list[brew.Record] | None:
    """By the number in the value: 0 drops, 1 to 3 are that many outputs, 4 routes, 5 rejects, 6 raises."""
    number = record.json()["n"]
    if number == 0:
        return None
    if number == 4:
        return record.with_json({"late": number}).to(ALSO)
    if number == 5:
        raise brew.Reject("five")
    if number == 6:
        raise ZeroDivisionError
    return [record.with_json({"copy": i}) for i in range(number)]


def inputs(*numbers: int, partition: int = 0) -> list[Record]:
    return [Record(partition, i, b"k", orjson.dumps({"n": n}), [("h", b"1")], 100 + i) for i, n in enumerate(numbers)]


@dataclass
class Logs:
    """What a right run leaves; tests spoil it."""

    inputs: list[Record]
    committed: int | None = None
    transform: Function = function
    rows: dict[str, list[Record]] = field(default_factory=lambda: {OUT: [], ALSO: [], DEAD: []})

    def add(self, topic: str, source: Record, value: bytes | None, index: int = 0, reason: str = "") -> None:
        error = [(ERROR_REASON, reason.encode())] if reason else []
        headers = [*source.headers, *error, *SourcePosition(IN, source.partition, source.offset, index).headers()]
        rows = self.rows[topic]
        rows.append(Record(source.partition, len(rows), source.key, value, headers, source.created))

    def renumber(self) -> None:
        for rows in self.rows.values():
            rows.sort(key=lambda row: row.partition)
            next_offset = [0, 0]
            for i, row in enumerate(rows):
                rows[i] = row._replace(offset=next_offset[row.partition])
                next_offset[row.partition] += 1


def right(records: list[Record], transform: Function = function) -> Logs:
    logs = Logs(records, transform=transform)
    for one in records:
        given = Given(IN, one.partition, one.offset, one.key, one.value, tuple(one.headers), one.created or 0)
        try:
            answer = brew.record.apply(transform, given)
        except ZeroDivisionError:
            answer = brew.Reject("transform-error")
        if isinstance(answer, brew.Reject):
            logs.add(DEAD, one, one.value, reason=answer.reason)
            continue
        for index, output in enumerate(answer):
            logs.add(output.destination or OUT, one, output.value, index)
    return logs


def judged(
    logs: Logs,
    transform: Function | None = None,
    *,
    late: bool = False,
    together: bool = False,
    first: int = 0,
    end: int | None = None,
    partitions: int = 1,
    outputs: int = 1,
    before: Callable[[Checker], None] = lambda _checker: None,
) -> Report:
    """
    Judge a run whose outputs are read before their inputs, and these one by one (``late``).

    ``together``: neither log is told to have ended before both were read; ``first`` and ``end`` of the input;
    ``partitions`` of it, ``outputs`` of each topic behind it; ``before``: what the checker takes in first.
    """
    logs.renumber()
    ends = [end or sum(one.partition == p for one in logs.inputs) for p in range(partitions)]
    known = {p: LogOffsets(first, until, until) for p, until in enumerate(ends)}
    committed = {p: until if logs.committed is None else logs.committed for p, until in enumerate(ends)}
    downstream = {
        name: {p: LogOffsets(0, end, end) for p in range(outputs) for end in [sum(r.partition == p for r in rows)]}
        for name, rows in logs.rows.items()
    }
    facts = BrokerFacts(IN, OUT, DEAD, known, committed, outputs, downstream=downstream, also_output=(ALSO,))
    checker = Checker(facts, None, Oracle("clicks:f", transform or logs.transform))
    before(checker)
    records = [one for one in logs.inputs if one.offset >= first]
    pieces = [[one] for one in records] if late else [records]

    def read_input() -> None:
        for piece in pieces:
            checker.input(piece)

    def read_outputs() -> None:
        checker.output(logs.rows[OUT])
        checker.output(logs.rows[ALSO], ALSO)
        checker.dead_letters(logs.rows[DEAD])

    sides = [(read_input, checker.input_ended), (read_outputs, checker.downstream_ended)]
    (read, end_it), second = reversed(sides) if late else sides
    for step in (read, *second, end_it) if together else (read, end_it, *second):
        step()
    checker.finish()
    assert waiting(checker) == 0
    return checker.report()


NUMBERS = (1, 0, 2, 4, 5, 6, 3, 0, 1)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_a_right_run_is_proven_and_everything_is_counted(late: bool, together: bool) -> None:
    report = judged(right(inputs(*NUMBERS)), late=late, together=together)
    assert (report.verdict, report.findings, report.doubts) == (Verdict.PROVEN, [], [])
    assert (report.inputs, report.outputs, report.dead_letters) == (9, 8, 2)
    counted = {"inputs": 9, "outputs": 8, "dead_letters": 2, "transformed": 5, "dropped": 2}
    assert {name: count for name, count in report.counts.items() if count} == counted


Spoil = Callable[[Logs], object]


def _change(topic: str, **fields: Any) -> Spoil:
    def spoil(logs: Logs) -> None:
        logs.rows[topic][0] = logs.rows[topic][0]._replace(**fields)

    return spoil


def _extra(number: int, index: int = 0, **fields: Any) -> Spoil:
    return lambda logs: logs.add(OUT, logs.inputs[number]._replace(**fields), b"{}", index)


def _lose(topic: str, number: int = 0) -> Spoil:
    return lambda logs: logs.rows[topic].pop(number)


def _reason(reason: bytes | None) -> Spoil:
    def spoil(logs: Logs) -> None:
        headers = [(name, reason if name == ERROR_REASON else value) for name, value in logs.rows[DEAD][0].headers]
        _change(DEAD, headers=headers)(logs)

    return spoil


def _one_between(logs: Logs) -> None:
    _extra(2, index=2)(logs)
    logs.rows[OUT].insert(2, logs.rows[OUT].pop())


def _out_of_order(logs: Logs) -> None:
    logs.rows[OUT][1:3] = reversed(logs.rows[OUT][1:3])


def _letter_of_a_good_one(logs: Logs) -> None:
    del logs.rows[OUT][0]
    logs.add(DEAD, logs.inputs[0], logs.inputs[0].value, reason="five")


def _good_one_of_a_letter(logs: Logs) -> None:
    del logs.rows[DEAD][0]
    _extra(4)(logs)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("spoil", "name", "ending"),
    [
        (_change(OUT, value=b'{"copy":9}'), Name.CORRUPT, "value is b'{\"copy\":9}', should be b'{\"copy\":0}'"),
        (lambda logs: logs.rows[OUT].insert(2, logs.rows[OUT][1]), Name.DUPLICATE, "came out before"),
        (_lose(OUT), Name.LOST, "neither on out, late nor dlq"),
        (_lose(OUT, 2), Name.LOST, "1 of its 2 outputs are neither on out, late nor dlq"),
        (_lose(DEAD), Name.LOST, "neither on out, late nor dlq"),
        (_extra(2, index=7), Name.DUPLICATE, "in/0/2#7 came out before, or the function returns fewer records for it"),
        (_one_between, Name.CORRUPT, "source in/0/2#2: the function returns 2 records for it"),
        (_extra(4, index=1), Name.DUPLICATE, "in/0/4#1 came out before, or the function returns fewer records for it"),
        (_extra(7), Name.CORRUPT, "source in[0] offset 7: the function drops it"),
        (_good_one_of_a_letter, Name.CORRUPT, "source in[0] offset 4: the function rejects it (five)"),
        (lambda logs: logs.rows[OUT].insert(3, logs.rows[ALSO].pop()), Name.CORRUPT, "it belongs on late"),
        (_reason(b"six"), Name.CORRUPT, "rejected as six, but the function rejects it as five"),
        (_reason(b"\xff"), Name.CORRUPT, "rejected as \ufffd, but the function rejects it as five"),
        (_reason(None), Name.CORRUPT, "rejected as , but the function rejects it as five"),
        (_change(OUT, key=b"other"), Name.CORRUPT, "key is b'other', should be b'k'"),
        (
            lambda logs: _change(OUT, headers=logs.rows[OUT][0].headers[1:])(logs),
            *(Name.CORRUPT, "should be the function's and then source headers"),
        ),
        (_change(OUT, created=1), Name.CORRUPT, "timestamp is 1, should be 100"),
        (_out_of_order, Name.NONMONOTONIC, "was output after 2#1"),
        (_extra(0, offset=99), Name.PHANTOM, "its source in[0] offset 99 is not visible (LSO 9)"),
        (_letter_of_a_good_one, Name.CORRUPT, "as five, but the function returns b'{\"copy\":0}', and 0 came out"),
        (_change(DEAD, value=b"{}"), Name.CORRUPT, "the value differs from the input's"),
    ],
)
def test_whatever_is_wrong_is_a_violation_of_its_name(spoil: Spoil, name: Name, ending: str, late: bool) -> None:
    logs = right(inputs(*NUMBERS))
    spoil(logs)
    report = judged(logs, late=late)
    named = [one for one in report.findings if one.name is name]
    assert report.verdict is Verdict.VIOLATED
    assert any(one.evidence.endswith(ending) for one in named), report.findings


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(("spoil", "offset", "also"), [(_lose(OUT), 0, "offset-gap"), (_lose(DEAD), 4, "torn-txn")])
def test_a_lost_input_is_told_with_place_and_what_its_transaction_lacks(
    spoil: Spoil, offset: int, also: str, late: bool
) -> None:
    """The offset behind it is committed: a record in front is a gap, one amid the others a tear."""
    logs = right(inputs(*NUMBERS))
    spoil(logs)
    report = judged(logs, late=late, before=lambda checker: _commits(checker, 9, 20))
    assert report.findings[0] == Finding(Name.LOST, IN, 0, offset, "neither on out, late nor dlq")
    assert report.totals == {"lost-output": 1, also: 1}


def _commits(checker: Checker, until: int, records: int) -> None:
    """One transaction, of so many records in the output, that moves the offset."""
    key = (7, 3)
    commit = OffsetBatch(batch(0, 1, key), (OffsetCommit(0, until),))
    checker.offsets.begin(0)
    checker.offsets.take([commit, OffsetBatch(batch(1, 1, key, "commit"))])
    checker.batches(OUT, 0, [batch(0, records, key), batch(records, 1, key, "commit")])


def test_what_is_out_above_the_committed_offset_is_told() -> None:
    """What is out twice is a duplicate, too."""
    logs = right(inputs(1, 2, 1))
    logs.committed = 1
    report = judged(logs)
    assert report.totals == {"offset-behind": 3}
    assert (report.inputs, report.backlog) == (1, 2)
    logs = right(inputs(1, 1))
    logs.rows[OUT].append(logs.rows[OUT][1])
    logs.committed = 1
    report = judged(logs)
    assert report.totals == {"offset-behind": 1, "duplicate-output": 1}
    evidence = "its source in[0] offset 1 was output, but the committed offset is 1"
    assert {one.evidence for one in report.findings} == {evidence, "its source in[0] offset 1 came out before"}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("last", [3, 1])
def test_an_output_of_an_offset_without_a_visible_record_is_a_phantom(last: int, late: bool) -> None:
    """A marker, or an aborted record, also at the input's end; told with the place of the output."""
    records = [record._replace(offset=offset) for record, offset in zip(inputs(1, 1, 1), (0, 1, 3), strict=True)]
    records = [record for record in records if record.offset <= last]
    logs = right(records)
    logs.add(OUT, records[1]._replace(offset=2), b"{}")
    logs.rows[OUT].insert(2, logs.rows[OUT].pop())
    report = judged(logs, late=late, end=4)
    evidence = "its source in[0] offset 2 is not a visible record (aborted, or never written)"
    assert report.findings == [Finding(Name.PHANTOM, OUT, 0, 2, evidence)]


@pytest.mark.parametrize("late", [False, True])
def test_outputs_of_records_that_retention_took_are_counted_apart(late: bool) -> None:
    """The input begins at 3: nobody can say what came before."""
    report = judged(right(inputs(*NUMBERS)), late=late, first=3)
    assert (report.totals, report.unverifiable, report.inputs) == ({}, 3, 6)


def test_a_transaction_is_torn_where_its_sources_reach_above_the_offset_that_it_committed() -> None:
    logs = right(inputs(1, 2, 1))
    logs.committed = 1
    report = judged(logs, before=lambda checker: _commits(checker, 1, 4))
    (torn,) = [one for one in report.findings if one.name is Name.TORN]
    assert torn.evidence.startswith("4 visible records with sources 0 to 2 of in[0]")
    assert {(one.producer_id, one.epoch) for one in report.findings} == {(7, 3)}
    assert report.totals == {"offset-behind": 3, "torn-txn": 1}


def test_a_source_at_the_inputs_end_is_a_phantom_whatever_the_group_has_committed() -> None:
    logs = right(inputs(1, 1))
    logs.add(OUT, logs.inputs[1]._replace(offset=2), b"{}")
    report = judged(logs)
    assert report.totals == {"phantom-output": 1}
    assert report.findings[0].evidence == "its source in[0] offset 2 is not visible (LSO 2)"


@pytest.mark.parametrize("late", [False, True])
def test_outputs_that_keep_their_key_stay_in_their_partition_where_there_are_as_many(late: bool) -> None:
    """Another key decides on its own, and so does one where the topics differ in shape."""
    records = [*inputs(1, 4), *inputs(1, 2, partition=1)]
    report = judged(right(records), late=late, partitions=2, outputs=2)
    assert (report.verdict, report.inputs) == (Verdict.PROVEN, 4)
    for topic in (OUT, ALSO):
        logs = right(records)
        _change(topic, partition=1 - logs.rows[topic][0].partition)(logs)
        report = judged(logs, late=late, partitions=2, outputs=2)
        assert report.totals == {"corrupt-output": 1}
        assert "it belongs in partition 0, to keep the order of its key" in report.findings[0].evidence
    logs = right(records)
    for rows in logs.rows.values():
        rows[:] = [row._replace(partition=0) for row in rows]
    assert judged(logs, late=late, partitions=2, outputs=1).verdict is Verdict.PROVEN
    logs = right(records, lambda record: record.with_key(b"new"))
    logs.rows[OUT] = [row._replace(key=b"new", partition=1) for row in logs.rows[OUT]]
    assert judged(logs, late=late, partitions=2, outputs=2).verdict is Verdict.PROVEN
    logs.rows[OUT][0] = logs.rows[OUT][0]._replace(partition=0)
    report = judged(logs, late=late, partitions=2, outputs=2)
    assert (report.verdict, report.totals) == (Verdict.INCONCLUSIVE, {}), "as if there had been one partition"
    logs = right(records)
    assert judged(logs, late=late, partitions=2, outputs=3).verdict is Verdict.PROVEN, "expanded"
    logs.rows[OUT] = [row._replace(partition=1) for row in logs.rows[OUT]]
    evidence = "it belongs in partition 2, to keep the order of its key"
    assert evidence in judged(logs, late=late, partitions=2, outputs=3).findings[0].evidence


def test_a_dead_letter_for_its_size_is_noted_since_only_the_run_knew_its_limits() -> None:
    logs = right(inputs(1, 2, 1, 1))
    del logs.rows[OUT][:3]
    for source in logs.inputs[:2]:
        logs.add(DEAD, source, source.value, reason="too-large")
    report = judged(logs)
    assert report.verdict is Verdict.PROVEN
    assert report.notes == ["2 inputs were rejected because an output was too large, which can't be verified"]
    assert report.counts["transformed"] == 2


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_dead_letter_for_its_size_stands_for_all_outputs_of_its_input(kept: int, late: bool) -> None:
    """One of them beside it is told, also where it is not the one of the letter's own index."""
    logs = right(inputs(2))
    logs.rows[OUT] = [logs.rows[OUT][kept]]
    logs.add(DEAD, logs.inputs[0], logs.inputs[0].value, reason="too-large")
    report = judged(logs, late=late)
    assert (report.verdict, report.notes) == (Verdict.VIOLATED, [])
    first = repr(b'{"copy":0}')
    evidence = f"rejected as too-large, but the function returns 2 records, the first with {first}, and 1 came out"
    assert (evidence in str(report.findings[0])) is (kept == 1)


def test_the_reason_of_a_dead_letter_is_its_own_and_not_one_that_its_input_carried() -> None:
    """A record that was replayed through another pipeline brings such headers along."""
    records = [one._replace(headers=[(ERROR_REASON, b"five")]) for one in inputs(5)]
    assert judged(right(records)).verdict is Verdict.PROVEN
    logs = right(records)
    letter = logs.rows[DEAD][0]
    logs.rows[DEAD] = [letter._replace(headers=[letter.headers[0], *letter.headers[2:]])]
    assert judged(logs).totals == {"corrupt-output": 1}


def test_a_function_is_given_each_record_as_it_came() -> None:
    """Where the broker set its time, 0, and the output may have any."""
    records = inputs(1, 1, 1)
    records[1] = records[1]._replace(created=None)
    logs = right(records, lambda record: record.with_value(repr(record).encode()))
    assert judged(logs).totals == {}
    logs.rows[OUT][1] = logs.rows[OUT][1]._replace(created=7)
    assert judged(logs).totals == {}


def test_the_time_that_a_function_gives_is_the_outputs() -> None:
    logs = right(inputs(1), lambda record: dataclasses.replace(record, timestamp=555))
    assert "timestamp is 100, should be 555" in judged(logs).findings[0].evidence
    logs = right([inputs(1)[0]._replace(created=0)])
    logs.rows[OUT][0] = logs.rows[OUT][0]._replace(created=777)  # to librdkafka, 0 is now
    assert judged(logs).verdict is Verdict.PROVEN
    logs.rows[OUT][0] = logs.rows[OUT][0]._replace(created=555)
    assert judged(logs).verdict is Verdict.PROVEN


# What is not deterministic.


def test_a_function_that_gives_another_answer_each_time_is_noticed_and_nothing_is_claimed() -> None:
    """Outputs that differ for that reason are no violation: nobody can tell. Doubled ones are."""
    counting = itertools.count()
    logs = right(inputs(1, 1, 1), lambda record: record.with_json(next(counting)))
    report = judged(logs)
    assert (report.verdict, report.totals) == (Verdict.INCONCLUSIVE, {})
    (doubt,) = report.doubts
    assert "clicks:f is not deterministic: called twice for in[0] offset 0, it returned b'" in doubt
    assert "; 3 records can't be verified" in doubt
    logs.rows[OUT].insert(1, logs.rows[OUT][0])
    report = judged(logs)
    assert (report.verdict, report.totals) == (Verdict.VIOLATED, {"duplicate-output": 1})
    backlog, differs = judged(Logs(inputs(1, 1), committed=1, transform=logs.transform)).doubts
    assert backlog.startswith("1 visible input not yet processed")
    assert differs.startswith("clicks:f is not deterministic")


@pytest.mark.parametrize(("created", "verdict"), [(None, Verdict.INCONCLUSIVE), (100, Verdict.PROVEN)])
def test_what_depends_on_a_timestamp_that_the_brokers_set_is_not_judged(created: int | None, verdict: Verdict) -> None:
    """The log has it, and the checker does not; what depends on nothing else is judged all the same."""
    records = [one._replace(created=created) for one in inputs(1, 1)]

    def timely(record: brew.Record) -> brew.Record:
        return record.with_json({"late": record.timestamp > 100})

    logs = right([one._replace(created=created or 101) for one in records], timely)
    logs.inputs = records
    report = judged(logs, timely)
    assert (report.verdict, report.totals) == (verdict, {})
    assert all(
        "called with two timestamps (the brokers set the input's) for in[0] offset 0" in d for d in report.doubts
    )
    constant = right(records, function)
    assert judged(constant).verdict is Verdict.PROVEN
    constant.rows[OUT][1] = constant.rows[OUT][1]._replace(value=b"{}")
    assert judged(constant).totals == {"corrupt-output": 1}


def test_one_that_drops_by_chance_is_noticed_too() -> None:
    """Records seem lost, and others seem to come from nowhere."""
    dice = itertools.cycle([True, False, False])
    logs = right(inputs(*[1] * 20), lambda record: record)
    report = judged(logs, lambda record: record if next(dice) else None)
    assert (report.verdict, report.totals) == (Verdict.INCONCLUSIVE, {})
    assert "; 13 records can't be verified" in report.doubts[0]


def test_what_is_there_once_more_by_chance_is_no_duplicate() -> None:
    sizes = itertools.cycle([1, 2])
    report = judged(right(inputs(1), lambda record: [record] * 2), lambda record: [record] * next(sizes))
    assert (report.verdict, report.totals) == (Verdict.INCONCLUSIVE, {})
    assert "; 1 record can't be verified" in report.doubts[0]


def test_what_is_missing_by_chance_is_no_loss_and_what_is_missing_for_sure_is() -> None:
    """Of the first three inputs the function makes a record only when it is asked for the first time."""
    seen: set[int] = set()

    def once(record: brew.Record) -> brew.Record | None:
        new = record.offset not in seen or record.offset == 3
        seen.add(record.offset)
        return record if new else None

    report = judged(Logs(inputs(1, 1, 1, 1), transform=once))
    assert (report.verdict, report.totals) == (Verdict.VIOLATED, {"lost-output": 1})
    assert "; 3 records can't be verified" in report.doubts[0]


def test_one_that_depends_on_where_batches_end_is_noticed_and_one_that_is_right_is_proven() -> None:
    """A running number over the rows of a batch is another one in the next attempt."""

    @brew.batches
    def numbered(batch: pa.RecordBatch) -> pa.RecordBatch:
        values = [str(i).encode() for i in range(batch.num_rows)]
        return pa.RecordBatch.from_pydict({"offset": batch["offset"], "value": values})

    report = judged(right(inputs(1, 1, 1), numbered))
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "called alone and in a batch for in[0] offset 1," in report.doubts[0]
    assert judged(right(inputs(1, 2, 3), brew.batches(lambda batch: batch.slice(0)))).verdict is Verdict.PROVEN


def test_the_first_thousand_are_asked_for_twice_and_then_each_hundredth() -> None:
    calls: list[int] = []

    def noting(record: brew.Record) -> None:
        calls.append(record.offset)

    oracle = Oracle("f", noting)
    records = [Given(topic=IN, partition=0, offset=offset) for offset in range(1, 1202)]
    assert oracle.answers(records[:999]) + oracle.answers(records[999:]) == [()] * 1201
    twice = [offset for offset in range(1, 1202) if calls.count(offset) == 2]
    assert twice == [*range(1, 1001), 1100, 1200]
    assert len(calls) == 1201 + len(twice)
    assert oracle.differs == ""


@pytest.mark.parametrize(
    ("answers", "difference"),
    [
        ([None, b"1"], "nothing and b'1'"),
        ([brew.Reject("five"), []], "a rejection (five) and nothing"),
        ([[b"1", b"2"], [b"1", b"2", b"3"]], "2 records, the first with b'1' and 3 records, the first with b'1'"),
        ([brew.Record(key=b"k"), b"x" * 61], f"no value and {b'x' * 60!r}"),
        ([SystemExit(3), b"1"], "a rejection (transform-error) and b'1'"),
    ],
)
def test_two_answers_that_differ_are_told_in_short_the_first_time(answers: list[Any], difference: str) -> None:
    left = iter([*answers, b"again", b"other"])

    def given(answer: Any) -> Any:
        return brew.Record(value=answer) if isinstance(answer, bytes) else answer

    def changing(_record: brew.Record) -> Any:
        answer = next(left)
        if isinstance(answer, BaseException):
            raise answer
        return [given(one) for one in answer] if isinstance(answer, list) else given(answer)

    oracle = Oracle("f", changing)
    for offset in (7, 8):
        oracle.answers([Given(topic=IN, partition=3, offset=offset, timestamp=1)])
    assert oracle.differs == f"called twice for in[3] offset 7, it returned {difference}"


def test_values_are_shown_whole_up_to_a_line() -> None:
    assert _shown(None) == "none"
    assert _shown(b"x" * 80) == repr(b"x" * 80)
    assert _shown(b"x" * 81) == f"{b'x' * 77!r}... (81 bytes)"


def test_an_exception_is_a_rejection_with_its_words_and_what_a_function_does_not_get_is_no_answer() -> None:
    """Else a Schema Registry that is away would make a violation of every record."""

    def raising(error: BaseException) -> Oracle:
        def failing(_record: brew.Record) -> None:
            raise error

        return Oracle("f", failing)

    batch = Oracle("f", brew.batches(lambda batch: sys.exit(3) if batch.num_rows > 1 else batch))
    given = [Given(offset=offset, value=b"1") for offset in range(2)]
    assert batch.answers(given) == [(record,) for record in given], "one record at a time, as a run does"
    (answer,) = raising(SystemExit(3)).answers([Given(value=b"1")])
    assert isinstance(answer, brew.Reject)
    assert (answer.reason, answer.message) == ("transform-error", "SystemExit: 3")
    no_text = type("NoTextError", (Exception,), {"__str__": None})()
    (answer,) = raising(no_text).answers([Given(value=b"1")])
    assert isinstance(answer, brew.Reject)
    assert answer.message == "NoTextError: (no text: its __str__ raised TypeError)"
    with pytest.raises(brew.Refused, match="does not answer"):
        raising(brew.Refused("the registry does not answer")).answers([Given(value=b"1")])
