"""The checker on good and on bad histories."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from harness.histories import OUT, random_plan, waiting
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.offsets import LogOffsets, SourcePosition
from brew.records import ERROR_OMITTED, ERROR_REASON
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts, Record
from proof.findings import Name, Report, Verdict
from proof.oracle import key_hash
from proof.seed import orders


@dataclass
class History:
    """Three logs and the group's position; clean until a test spoils it."""

    inputs: list[Record] = field(default_factory=list)
    outputs: list[Record] = field(default_factory=list)
    dead: list[Record] = field(default_factory=list)
    logs: dict[int, LogOffsets] = field(default_factory=dict)
    committed: dict[int, int | None] = field(default_factory=dict)
    output_partitions: int = 0
    doubts: tuple[str, ...] = ()

    def report(self, dice: random.Random | None = None) -> Report:
        """Judge it; with dice, the three logs arrive in an arbitrary interleaving."""
        facts = BrokerFacts("in", "out", "dlq", self.logs, self.committed, self.output_partitions, self.doubts)
        checker = Checker(facts)
        rows = [*self.inputs], [*self.outputs], [*self.dead]
        takes = list(zip((checker.input, checker.output, checker.dead_letters), rows, strict=True))
        while any(rest for _, rest in takes):
            take, rest = (dice or random).choice([one for one in takes if one[1]])
            take([rest.pop(0)])
        first, second = checker.input_ended, checker.downstream_ended
        if dice is not None and dice.random() < 0.5:
            first, second = second, first
        first()
        second()
        assert waiting(checker) == 0
        checker.finish()
        return checker.report()


def clean_history(
    seed: int, partitions: int = 3, output_partitions: int | None = None, per_partition: int = 12
) -> History:
    """The committed records of a plan: gaps in the offsets, some rejected records, headers of an older pipeline."""
    world = random_plan(seed, partitions, output_partitions, per_partition)
    history = History(world.inputs, logs=world.logs, output_partitions=world.shape)
    history.committed = {p: log.last_stable for p, log in world.logs.items()}
    ends: Counter[tuple[str, int]] = Counter()
    for topic, row in (row for txn in world.done() for row in txn.rows):
        ends[topic, row.partition] += world.dice.choice([1, 1, 2])
        placed = row._replace(offset=ends[topic, row.partition])
        if topic == OUT:
            history.outputs.append(placed)
        else:
            history.dead.append(placed._replace(created=None))
    return history


@settings(max_examples=60, deadline=None)
@given(st.integers(), st.integers(1, 4), st.integers(1, 4))
def test_a_clean_history_is_proven_in_any_interleaving(seed: int, partitions: int, output_partitions: int) -> None:
    history = clean_history(seed, partitions, output_partitions)
    report = history.report(random.Random(seed))
    assert (report.verdict, report.findings, report.doubts) == (Verdict.PROVEN, [], [])
    assert report.inputs == report.outputs + report.dead_letters == len(history.inputs)


Spoil = Callable[[History, int], object]


def again(**fields: object) -> Spoil:
    return lambda h, number: h.outputs.append(h.outputs[number]._replace(**{"offset": 9_999, **fields}))


def changed(change: Callable[[Record], Record]) -> Spoil:
    return lambda h, number: h.outputs.__setitem__(number, change(h.outputs[number]))


def repeat_elsewhere(h: History, number: int) -> None:
    twin = h.outputs[number]
    h.dead.append(twin._replace(offset=9_999, headers=[(ERROR_REASON, b"not-json"), *twin.headers]))


def misplace(h: History, number: int) -> None:
    """Neither where its input is, nor where its key is: that may be from before the input was expanded."""
    one = h.outputs[number]
    right = {one.partition, key_hash(one.key or b"") % 3}
    h.outputs[number] = one._replace(partition=min({0, 1, 2} - right))


def invent(h: History, number: int) -> None:
    source = _source(h.outputs[number])
    ghost = h.inputs.pop(next(n for n, one in enumerate(h.inputs) if (one.partition, one.offset) == source))
    assert ghost.key == h.outputs[number].key


def spoil_dead_letter(h: History, _at: int) -> None:
    h.dead[0] = h.dead[0]._replace(value=b"changed")


def spoil_reason(h: History, _at: int) -> None:
    h.dead[0] = h.dead[0]._replace(headers=[(ERROR_REASON, b"bad-mood"), *h.dead[0].headers[-3:]])


def swap(h: History, number: int) -> None:
    p = h.outputs[number].partition
    mine = [n for n, one in enumerate(h.outputs) if one.partition == p]
    a, b = mine[0], mine[1]
    first, second = h.outputs[a], h.outputs[b]
    h.outputs[a], h.outputs[b] = second._replace(offset=first.offset), first._replace(offset=second.offset)


def _source(record: Record) -> tuple[int, int]:
    position = SourcePosition.of(record.headers)
    assert position is not None
    return position.partition, position.offset


@pytest.mark.parametrize("seed", [0, 1, 2, 4, 5])  # with 3 the copy elsewhere is read first: it is corrupt as well
@pytest.mark.parametrize(
    ("spoil", "name"),
    [
        (lambda h, n: h.outputs.pop(n), Name.LOST),
        (again(), Name.DUPLICATE),
        (repeat_elsewhere, Name.DUPLICATE),
        (invent, Name.PHANTOM),
        (again(headers=[]), Name.PHANTOM),
        (again(headers=SourcePosition("other", 0, 1).headers()), Name.PHANTOM),
        (again(headers=SourcePosition("in", 0, 10**6).headers()), Name.PHANTOM),
        (changed(lambda one: one._replace(value=(one.value or b"").replace(b'ity":', b'ity":1'))), Name.CORRUPT),
        (changed(lambda one: one._replace(key=b"gold-other")), Name.CORRUPT),
        (changed(lambda one: one._replace(created=1)), Name.CORRUPT),
        (changed(lambda one: one._replace(headers=[("new", b"1"), *one.headers])), Name.CORRUPT),
        (spoil_dead_letter, Name.CORRUPT),
        (spoil_reason, Name.CORRUPT),
        (swap, Name.NONMONOTONIC),
        (misplace, Name.NONMONOTONIC),
        (lambda h, n: h.committed.update([_source(h.outputs[n])]), Name.OFFSET_BEHIND),
        (lambda h, n: h.committed.update({_source(h.outputs[n])[0]: None}), Name.OFFSET_BEHIND),
        (lambda h, _at: h.committed.update({0: h.logs[0].end + 1}), Name.OFFSET_AHEAD),
    ],
)
def test_a_bad_history_is_found_by_its_name_and_only_that(spoil: Spoil, name: Name, seed: int) -> None:
    history = clean_history(seed)
    spoil(history, random.Random(seed).randrange(len(history.outputs) - 1))
    report = history.report(random.Random(seed))
    assert set(report.totals) == {name}
    assert report.verdict is Verdict.VIOLATED
    assert report.findings[0].evidence


def test_inputs_that_wait_are_no_loss_but_no_proof_either_and_none_at_all_prove_nothing() -> None:
    """Above the committed offset nothing has to be out yet."""
    history = clean_history(1)
    history.committed = {p: log.first for p, log in history.logs.items()}
    history.outputs, history.dead = [], []
    report = history.report()
    assert (report.verdict, report.backlog) == (Verdict.INCONCLUSIVE, len(history.inputs))
    assert "lag" in report.doubts[0]
    empty = History(logs={0: LogOffsets(0, 0, 0)}, committed={0: None}, output_partitions=1)
    assert empty.report().verdict is Verdict.INCONCLUSIVE, "nothing to prove is not proven"


def test_an_output_whose_source_retention_took_is_unverifiable() -> None:
    history = clean_history(2, partitions=1)
    first = history.inputs[3].offset + 1
    history.inputs = [one for one in history.inputs if one.offset >= first]
    history.logs[0] = LogOffsets(first, history.logs[0].last_stable, history.logs[0].end)
    report = history.report()
    assert (report.verdict, report.unverifiable) == (Verdict.INCONCLUSIVE, 4)
    (doubt,) = report.doubts
    assert doubt.startswith("the sources of 4 outputs are below the input's log start (retention) and can't be ")


def test_two_outputs_of_a_source_that_retention_took_are_duplicates_in_whatever_topic() -> None:
    """Of records that came out, no input has to be seen for it; what is there once is unverifiable and no more."""
    history = clean_history(2, partitions=1)
    first = history.inputs[3].offset + 1
    history.inputs = [one for one in history.inputs if one.offset >= first]
    history.logs[0] = LogOffsets(first, history.logs[0].last_stable, history.logs[0].end)
    removed = [one for one in history.outputs if _source(one)[1] < first]
    again()(history, 0)
    twin = removed[-1]
    history.dead.append(twin._replace(offset=9_999, headers=[(ERROR_REASON, b"not-json"), *twin.headers]))
    report = history.report(random.Random(1))
    assert (report.verdict, report.totals, report.unverifiable) == (Verdict.VIOLATED, {Name.DUPLICATE: 2}, 6)
    assert {one.evidence for one in report.findings} == {
        f"its source in[0] offset {_source(one)[1]} came out before" for one in (removed[0], twin)
    }


def test_missing_output_behind_an_open_transaction_is_a_doubt_not_a_loss() -> None:
    history = clean_history(3)
    history.outputs.pop(0)
    history.doubts = ("out[0] has an open transaction at offset 5",)
    report = history.report()
    assert report.verdict is Verdict.INCONCLUSIVE
    assert "1 input without output" in report.doubts[0]
    assert report.doubts[1:] == list(history.doubts)
    changed(lambda one: one._replace(key=b"gold-other"))(history, 3)
    report = history.report()
    assert (report.totals, [one.name for one in report.findings]) == ({Name.CORRUPT: 1}, [Name.CORRUPT])
    whole = clean_history(3)
    whole.doubts = history.doubts
    assert whole.report().doubts == list(history.doubts)


def test_a_value_left_out_of_a_dead_letter_is_accepted_with_its_length_told() -> None:
    """Too large for the dead-letter topic: a header says how many bytes stayed in the input."""
    key, value = orders(0)(1)
    logs = {0: LogOffsets(0, 1, 1)}
    history = History([Record(0, 0, key, value, [], 1)], logs=logs, committed={0: 1}, output_partitions=1)
    source = SourcePosition("in", 0, 0).headers()
    for omitted, verdict in ((len(value or b""), Verdict.PROVEN), (3, Verdict.VIOLATED)):
        headers = [(ERROR_REASON, b"too-large"), (ERROR_OMITTED, b"%d" % omitted), *source]
        history.dead = [Record(0, 0, key, None, headers, 1)]
        assert history.report().verdict is verdict


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("reasons", "note"),
    [
        (("too-large", "too-deep"), "2 dead letters by the run's limits of length and depth, which can't be verified"),
        (("too-large", "no-idea"), "1 dead letter by the run's limits of length and depth, which can't be verified"),
        (("no-value",), None),
    ],
)
def test_dead_letters_for_size_or_depth_are_noted_since_only_the_run_knew_its_limits(
    reasons: tuple[str, ...], note: str | None, late: bool
) -> None:
    """A run that rejects all of its orders for that is proven, and says so."""
    key, value = orders(0)(1)
    count = len(reasons)
    checker = Checker(BrokerFacts("in", "out", "dlq", {0: LogOffsets(0, count, count)}, {0: count}, 1))
    value = None if reasons[0] == "no-value" else value
    rows = [Record(0, n, key, value, [], 1) for n in range(count)]
    headers = [[(ERROR_REASON, why.encode()), *SourcePosition("in", 0, n).headers()] for n, why in enumerate(reasons)]
    letters = [row._replace(headers=more) for row, more in zip(rows, headers, strict=True)]
    takes = [(checker.input, rows), (checker.dead_letters, letters)]
    for take, some in reversed(takes) if late else takes:
        take(some)
    checker.input_ended()
    checker.downstream_ended()
    checker.finish()
    assert checker.report(["before"]).notes == ["before", *([] if note is None else [note])]
    assert checker.report().totals == ({"corrupt-output": 1} if "no-idea" in reasons else {})


def test_at_most_twenty_findings_are_kept_and_all_are_counted() -> None:
    history = clean_history(4, per_partition=40)
    expected = len(history.outputs)
    history.outputs = []
    report = history.report()
    assert report.totals == {"lost-output": expected}
    assert len(report.findings) == 20
