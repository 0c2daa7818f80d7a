"""The checker proves itself: every name on seeded bad histories, no alarm on clean ones."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from harness.histories import DEAD, OUT, History, HistoryPlan, batch, held_bytes, random_plan, run_plan, waiting
from harness.mutations import LOG_MUTATIONS, PLAN_MUTATIONS, LogMutation, PlanMutation
from hypothesis import given, settings
from hypothesis import strategies as st

from brew.journal import Step
from brew.offsets import LogOffsets, SourcePosition
from proof.checking.checker import Checker
from proof.checking.input_partition import BrokerFacts
from proof.findings import Name, Verdict

SEEDS = range(3)


def trim_input(plan: HistoryPlan, history: History) -> None:
    for p, log in plan.logs.items():
        first = log.first + 10
        history.facts.logs[p] = LogOffsets(first, log.last_stable, log.end)
        history.inputs = [one for one in history.inputs if one.partition != p or one.offset >= first]


def compact_offsets(plan: HistoryPlan, history: History) -> None:
    last = {one.commits[0].partition: n for n, one in enumerate(history.offsets) if one.commits}
    keep = set(last.values())
    history.offsets = [
        one for n, one in enumerate(history.offsets) if n in keep or one.raw.control or plan.dice.random() < 0.5
    ]


def trim_offsets(plan: HistoryPlan, history: History) -> None:
    history.offsets = history.offsets[plan.dice.randrange(len(history.offsets)) :]
    history.offsets_begin = history.offsets[0].raw.base_offset


def trim_output(_plan: HistoryPlan, history: History) -> None:
    for topic, logs in history.facts.downstream.items():
        for p, log in logs.items():
            first = logs[p] = replace(log, first=log.end // 2)
            history.visible[topic] = [
                one
                for one in history.visible[topic]
                if (one.partition, one.offset) >= (p, first.first) or one.partition != p
            ]
            history.batches[topic, p] = [one for one in history.batches[topic, p] if one.base_offset >= first.first]
    history.facts = replace(history.facts, doubts=("out[0] begins at offset 9",))


def compact_output(_plan: HistoryPlan, history: History) -> None:
    """Readers' journals have what was there before."""
    gone = {(one.partition, one.offset) for one in history.visible[OUT][2:9]}
    history.visible[OUT] = [one for one in history.visible[OUT] if (one.partition, one.offset) not in gone]
    for (topic, p), batches in history.batches.items():
        history.batches[topic, p] = [one for one in batches if topic != OUT or (p, one.base_offset) not in gone]
    history.entries = [one for one in history.entries if one.step is not Step.READ]


WEAR = {"whole": lambda *_: None, "trimmed": trim_input, "compacted": compact_offsets, "late": trim_offsets}


@settings(max_examples=110, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.sampled_from([None, 1, 2, 3]), st.sampled_from(sorted(WEAR)))
def test_a_clean_history_raises_no_alarm(seed: int, partitions: int, shape: int | None, wear: str) -> None:
    """Aborted, fenced, retried and timed-out attempts, dead letters, readers, compaction, retention: all in order."""
    plan = random_plan(seed, partitions, shape)
    history = run_plan(plan)
    WEAR[wear](plan, history)
    report = history.report(seed)
    assert report.findings == []
    assert (report.verdict is Verdict.PROVEN) == (report.unverifiable == 0)
    assert history.held == 0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("wear", "doubt"), [(trim_output, "begins at offset"), (compact_output, "was compacted, so")])
def test_what_is_gone_from_the_output_leaves_a_doubt_and_no_violation(wear: LogMutation, doubt: str, seed: int) -> None:
    """Neither lost, nor torn from its offset, nor a commit that was lost; the writers' journals have it as done."""
    plan = random_plan(seed)
    history = run_plan(plan)
    wear(plan, history)
    report = history.report(seed)
    assert (report.totals, report.findings, report.verdict) == ({}, [], Verdict.INCONCLUSIVE)
    lost, gone = report.doubts
    assert "without output, which the following may explain" in lost
    assert doubt in gone


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("spoil", "name"), PLAN_MUTATIONS, ids=lambda one: getattr(one, "__name__", one))
def test_a_plan_that_goes_wrong_is_named(spoil: PlanMutation, name: Name, seed: int) -> None:
    plan = random_plan(seed)
    spoil(plan)
    report = run_plan(plan).report(seed)
    assert name in report.totals
    assert any(one.name is name and one.evidence for one in report.findings)
    assert report.verdict is Verdict.VIOLATED


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("spoil", "name"), LOG_MUTATIONS, ids=lambda one: getattr(one, "__name__", one))
def test_logs_and_journals_that_disagree_are_named(spoil: LogMutation, name: Name, seed: int) -> None:
    """What a broken broker, client or campaign would leave behind; a fault that did not fire is no violation."""
    plan = random_plan(seed)
    history = run_plan(plan)
    spoil(plan, history)
    report = history.report(seed)
    assert name in report.totals
    assert report.verdict is (Verdict.VIOLATED if name.violation else Verdict.INCONCLUSIVE)


def test_sixty_bad_histories_cover_every_name() -> None:
    cases = [*PLAN_MUTATIONS, *LOG_MUTATIONS]
    assert {name for _, name in cases} == set(Name)
    assert len({spoil for spoil, _ in cases}) * len(SEEDS) >= 60


def test_evidence_names_the_producer_where_it_is_known() -> None:
    plan = random_plan(3)
    next(spoil for spoil, name in PLAN_MUTATIONS if name is Name.ZOMBIE)(plan)
    finding = next(one for one in run_plan(plan).report(3).findings if one.name is Name.ZOMBIE)
    assert finding.producer_id is not None
    assert finding.epoch is not None
    assert f"producer {finding.producer_id}, epoch {finding.epoch}" in str(finding)


def test_a_producer_that_is_allowed_to_reuse_its_epoch_raises_no_alarm() -> None:
    """Other producers keep an epoch for all of their transactions."""
    plan = random_plan(5)
    for partition in plan.transactions:
        plan.transactions[partition] = plan.done(partition)
        for txn in plan.transactions[partition]:
            txn.epoch = 0
    assert run_not_strict(plan).report().verdict is Verdict.PROVEN


def run_not_strict(plan: HistoryPlan) -> History:
    history = run_plan(plan)
    history.facts = replace(history.facts, strict=False)
    return history


@pytest.mark.parametrize("seed", SEEDS)
def test_an_epoch_that_aborts_one_transaction_and_commits_another_elsewhere_raises_no_alarm(seed: int) -> None:
    """No partition has both, so none shows the reuse: it looked like one transaction with two ends."""
    plan = random_plan(seed)
    txn = next(one for one in plan.done() if {topic for topic, _ in one.rows} == {OUT})
    transactions = plan.transactions[txn.partition]
    at = next(n for n, one in enumerate(transactions) if one is txn)
    aborted = replace(txn, until=None, rows=[(DEAD, row) for _, row in txn.rows], outcome="abort")
    transactions[at:at] = [aborted, replace(aborted, rows=[], outcome="mark")]
    assert run_not_strict(plan).report(seed).totals == {}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("spoil", [spoil for spoil, name in PLAN_MUTATIONS if name is Name.TORN])
def test_a_torn_transaction_is_named_also_where_epochs_may_be_reused(spoil: PlanMutation, seed: int) -> None:
    plan = random_plan(seed)
    spoil(plan)
    assert "torn-txn" in run_not_strict(plan).report(seed).totals


def test_the_document_holds_every_finding_as_json_takes_it() -> None:
    plan = random_plan(1)
    plan.pick(2).rows.pop()
    document = run_plan(plan).report().document()
    assert document["verdict"] == "violated"
    finding = document["findings"][0]
    assert finding.keys() >= {"name", "topic", "partition", "offset", "producer_id", "epoch", "evidence"}
    assert type(finding["name"]) is str


@pytest.mark.parametrize(("total", "step"), [(20_000, 1), (40_000, 500)])
def test_memory_does_not_grow_with_logs_that_arrive_in_order(total: int, step: int) -> None:
    """Inputs one batch ahead of outputs: what waits is that batch, what stays is nothing per record."""
    waits = []
    facts = BrokerFacts("in", OUT, "dlq", {0: LogOffsets(0, total, total)}, {0: total}, 1)
    checker, key = Checker(facts), b"gold-1"
    checker.offsets.begin(0)
    value = b'{"customer_id":"c"}'
    out = value[:-1] + b',"loyalty_tier":"gold","loyalty_discount":0.15}'
    for n, start in enumerate(range(0, total, step)):
        checker.input([(0, offset, key, value, [], 1) for offset in range(start, start + step)])
        waits.append(waiting(checker))
        base = start + n
        checker.batches(OUT, 0, [batch(base, step, (7, n))])
        sources = [[*SourcePosition("in", 0, offset).headers()] for offset in range(start, start + step)]
        checker.output([(0, base + offset, key, out, source, 1) for offset, source in enumerate(sources)])
        checker.batches(OUT, 0, [batch(base + step, 1, (7, n), "commit")])
        assert waiting(checker) == 0
    assert (max(waits), held_bytes(checker)) == (step, 0)
    checker.input_ended()
    checker.downstream_ended()
    assert checker.report().verdict is Verdict.PROVEN


def test_gaps_cost_sixteen_bytes_each_and_records_nothing() -> None:
    """A transactional input has a gap per marker or aborted transaction."""
    facts = BrokerFacts("in", OUT, "dlq", {0: LogOffsets(0, 2000, 2000)}, {0: 0}, 1)
    checker = Checker(facts)
    checker.input([(0, offset, b"k", b"{}", [], 1) for offset in range(0, 2000, 2)])
    assert held_bytes(checker) <= 16 * 1000
    assert waiting(checker) == 0


def test_a_late_phantom_is_told_from_a_duplicate() -> None:
    """An aborted input between two visible ones, written long after its neighbours."""
    dice = random.Random(4)
    plan = random_plan(4)
    gone = dice.choice([one for one in plan.inputs if one.partition == 0][:8])
    plan.inputs.remove(gone)
    late = next(row for txn in plan.done(0) for row in txn.rows if row[1].headers[-1][1] == b"%d" % gone.offset)
    for txn in plan.transactions[0]:
        txn.rows = [row for row in txn.rows if row is not late]
    plan.last(0).rows.append(late)
    assert set(run_plan(plan).report(4).totals) == {"phantom-output"}
