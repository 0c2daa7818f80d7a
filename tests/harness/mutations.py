"""Bad histories: a corrupted plan, log or journal, each with the name that the checker must report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brew.cluster import OffsetBatch, OffsetCommit
from brew.journal import Run, Step
from brew.offsets import LogOffsets, SourcePosition
from harness.histories import DEAD, OUT, History, HistoryPlan, Txn, read_line
from proof.findings import Name

PlanMutation = Callable[[HistoryPlan], None]


def _transactions_of(plan: HistoryPlan, txn: Txn) -> tuple[list[Txn], int]:
    transactions = plan.transactions[txn.partition]
    return transactions, next(n for n, other in enumerate(transactions) if other is txn)


def _after(plan: HistoryPlan, txn: Txn, *more: Txn) -> None:
    transactions, index = _transactions_of(plan, txn)
    transactions[index + 1 : index + 1] = more


def lose_a_record(plan: HistoryPlan) -> None:
    txn = plan.pick(2)
    txn.rows.pop(plan.dice.randrange(1, len(txn.rows)))


def lose_a_dead_letter(plan: HistoryPlan) -> None:
    txn = plan.pick(1, DEAD)
    txn.rows.remove(next(row for row in txn.rows if row[0] == DEAD))


def lose_the_first_of_a_range(plan: HistoryPlan) -> None:
    txn = plan.dice.choice([t for p in plan.transactions for t in plan.done(p)[1:] if len(t.rows) > 1])
    txn.rows.pop(0)


def lose_all_of_a_range(plan: HistoryPlan) -> None:
    plan.pick(2).rows.clear()


def write_twice_in_one(plan: HistoryPlan) -> None:
    txn = plan.pick(1)
    txn.rows.append(plan.dice.choice(txn.rows))


def write_on_both_topics(plan: HistoryPlan) -> None:
    txn = plan.pick(1)
    topic, row = txn.rows[0]
    txn.rows.append((DEAD if topic == OUT else OUT, row))


def replay_a_range(plan: HistoryPlan) -> None:
    txn = plan.pick(2)
    last = plan.transactions[txn.partition][-1]
    _after(plan, last, replace(txn, epoch=last.epoch + 1, until=None, rows=list(txn.rows)))


def replay_with_its_offset(plan: HistoryPlan) -> None:
    txn = plan.done(0)[0]
    last = plan.last(0)
    _after(plan, last, replace(txn, epoch=last.epoch + 1, rows=list(txn.rows), journaled=False))


def move_the_offset_back(plan: HistoryPlan) -> None:
    last = plan.last(0)
    _after(plan, last, Txn(0, last.pid, last.epoch + 1, plan.done(0)[0].until, []))


def invent_a_source(plan: HistoryPlan) -> None:
    txn = plan.pick(1)
    topic, row = txn.rows[-1]
    source = SourcePosition("in", txn.partition, plan.logs[txn.partition].end - 1).headers()
    txn.rows.append((topic, row._replace(headers=[*row.headers[:-3], *source])))


def write_without_source(plan: HistoryPlan) -> None:
    txn = plan.pick(1)
    txn.rows.append((OUT, txn.rows[0][1]._replace(headers=[])))


def write_an_input_that_was_aborted(plan: HistoryPlan) -> None:
    _, row = plan.pick(1).rows[0]
    source = SourcePosition.of(row.headers)
    assert source is not None
    plan.inputs.remove(next(i for i in plan.inputs if (i.partition, i.offset) == (source.partition, source.offset)))


def change_a_value(plan: HistoryPlan) -> None:
    txn = plan.pick(1)
    index = next(n for n, (topic, _) in enumerate(txn.rows) if topic == OUT)
    row = txn.rows[index][1]
    txn.rows[index] = OUT, row._replace(value=(row.value or b"").replace(b'"quantity":', b'"quantity":1'))


def change_a_key(plan: HistoryPlan) -> None:
    txn = plan.pick(1)
    txn.rows[0] = txn.rows[0][0], txn.rows[0][1]._replace(key=b"gold-other")


def turn_round(plan: HistoryPlan) -> None:
    txn = plan.pick(2)
    a, b = [n for n, (topic, _) in enumerate(txn.rows) if topic == OUT][:2]
    txn.rows[a], txn.rows[b] = txn.rows[b], txn.rows[a]


def two_outcomes(plan: HistoryPlan) -> None:
    txn = next(t for t in plan.done() if {OUT, DEAD} == {topic for topic, _ in t.rows})
    txn.outcomes = {DEAD: "abort"}


def offset_aborted_records_visible(plan: HistoryPlan) -> None:
    plan.pick(2).outcomes = {"offsets": "abort"}


def no_offset_in_it(plan: HistoryPlan) -> None:
    """As if committed after a failed send-offsets; the next range includes them."""
    txn = plan.dice.choice(plan.done(0)[:-1])
    txn.until = None


def late_end_hits_the_next(plan: HistoryPlan) -> None:
    """A reused producer: the late commit makes half of its next transaction visible, without offset."""
    transactions, index = _transactions_of(plan, plan.pick(4))
    txn = transactions[index]
    half = [row for row in txn.rows if row[0] == OUT][:2]
    transactions[index:index] = [
        replace(txn, until=None, rows=half, journaled=False),
        replace(txn, rows=[], until=None, journaled=False),
    ]


def late_abort_hits_the_next(plan: HistoryPlan) -> None:
    """The first half of a transaction is aborted; its second half and its offset are committed."""
    transactions, index = _transactions_of(plan, plan.pick(4))
    txn = transactions[index]
    half, rest = txn.rows[:2], txn.rows[2:]
    txn.rows = rest
    gone = replace(txn, until=None, rows=half, outcome="abort")
    transactions[index:index] = [gone, Txn(txn.partition, txn.pid, txn.epoch, None, [], "mark", journaled=False)]


def use_an_epoch_again(plan: HistoryPlan) -> None:
    transactions = plan.done(0)
    transactions[1].epoch = transactions[0].epoch
    for txn in plan.transactions[0]:
        if txn.outcome != "commit" and transactions[0].epoch < txn.epoch:
            txn.epoch = max(txn.epoch, transactions[1].epoch)
    plan.transactions[0] = [txn for txn in plan.transactions[0] if txn.outcome == "commit"]


def use_one_producer_for_all(plan: HistoryPlan) -> None:
    transactions = plan.transactions[0] = plan.done(0)
    for txn in transactions:
        txn.epoch = 3


def write_as_a_zombie(plan: HistoryPlan) -> None:
    transactions = plan.done(0)
    index = plan.dice.randrange(1, len(transactions))
    transactions[index].epoch = transactions[0].epoch - 1 if transactions[0].epoch else 0
    transactions[0].epoch += transactions[0].epoch == 0
    plan.transactions[0] = transactions


def come_back_with_an_old_id(plan: HistoryPlan) -> None:
    transactions = plan.transactions[0] = plan.done(0)
    for txn in transactions[1:-1]:
        txn.pid = 500
    transactions[-1].epoch = transactions[0].epoch + 9


def never_end(plan: HistoryPlan) -> None:
    last = plan.last(0)
    plan.transactions[0].append(
        replace(last, epoch=last.epoch + 1, until=None, outcome=None, rows=last.rows[:1], journaled=False)
    )


PLAN_MUTATIONS: list[tuple[PlanMutation, Name]] = [
    (lose_a_record, Name.LOST),
    (lose_a_record, Name.LOST_COMMIT),
    (lose_a_record, Name.TORN),
    (lose_a_dead_letter, Name.LOST),
    (lose_the_first_of_a_range, Name.OFFSET_GAP),
    (lose_all_of_a_range, Name.TORN),
    (write_twice_in_one, Name.DUPLICATE),
    (write_on_both_topics, Name.DUPLICATE),
    (replay_a_range, Name.DUPLICATE),
    (replay_with_its_offset, Name.OFFSET_REGRESSION),
    (move_the_offset_back, Name.OFFSET_REGRESSION),
    (move_the_offset_back, Name.OFFSET_BEHIND),
    (invent_a_source, Name.PHANTOM),
    (write_without_source, Name.PHANTOM),
    (write_an_input_that_was_aborted, Name.PHANTOM),
    (change_a_value, Name.CORRUPT),
    (change_a_key, Name.CORRUPT),
    (turn_round, Name.NONMONOTONIC),
    (two_outcomes, Name.TORN),
    (offset_aborted_records_visible, Name.TORN),
    (no_offset_in_it, Name.TORN),
    (late_end_hits_the_next, Name.TORN),
    (late_end_hits_the_next, Name.EPOCH_REUSE),
    (late_abort_hits_the_next, Name.TORN),
    (use_an_epoch_again, Name.EPOCH_REUSE),
    (use_one_producer_for_all, Name.EPOCH_REUSE),
    (write_as_a_zombie, Name.ZOMBIE),
    (come_back_with_an_old_id, Name.ZOMBIE),
    (never_end, Name.HANGING),
]

LogMutation = Callable[[HistoryPlan, History], None]


def roll_back_an_acknowledged_range(plan: HistoryPlan, made: History) -> None:
    """A whole transaction is missing from all logs, and the journal has its commit as done."""
    commits = [e for e in made.entries if e.step is Step.COMMIT and e.fields["partition"] == 0]
    made.entries.append(commits[-1]._replace(fields={**commits[-1].fields, "start": plan.logs[0].end, "until": 10**6}))


def show_an_aborted_record(_plan: HistoryPlan, made: History) -> None:
    topic, row = made.hidden[0]
    made.visible[topic] = sorted([*made.visible[topic], row], key=lambda one: one[:2])


def write_outside_of_a_transaction(plan: HistoryPlan, made: History) -> None:
    """One record of a range, amid its transaction's, comes from a producer without transactions."""
    topic, row = plan.pick(3).wrote[1]
    batches = made.batches[topic, row.partition]
    index = next(n for n, one in enumerate(batches) if one.base_offset == row.offset)
    batches[index] = replace(batches[index], producer_id=-1, producer_epoch=-1, transactional=False)


def read_an_aborted_record(_plan: HistoryPlan, made: History) -> None:
    topic, row = made.hidden[-1]
    made.entries.append(read_line(21, topic, row.partition, [(row.offset, 0, 1)]))


def _reading(made: History, least: int) -> int:
    """Return the index of a reader's line that has a run of at least that many records."""
    return next(
        n for n, e in enumerate(made.entries)
        if e.step is Step.READ and any(run[3] >= least for run in e.fields.get("runs", []))
    )  # fmt: skip


def _reread(made: History, index: int, runs: list[Run]) -> None:
    made.entries[index] = made.entries[index]._replace(fields={**made.entries[index].fields, "runs": runs})


def skip_in_a_poll(_plan: HistoryPlan, made: History) -> None:
    index = _reading(made, 1)
    runs = [Run(*run) for run in made.entries[index].fields["runs"]]
    rest = [Run(o + 1, p, s + 1, n - 1) for o, p, s, n in runs[1:2] if n > 1]
    _reread(made, index, [runs[0], *rest, *runs[2:]])


def go_back_in_a_poll(_plan: HistoryPlan, made: History) -> None:
    index = _reading(made, 1)
    runs = made.entries[index].fields["runs"]
    _reread(made, index, [*runs, runs[0]])


def read_something_else(_plan: HistoryPlan, made: History) -> None:
    index = _reading(made, 1)
    run, *rest = (Run(*run) for run in made.entries[index].fields["runs"])
    _reread(made, index, [run._replace(source_offset=run.source_offset + 1000), *rest])


def read_a_marker(_plan: HistoryPlan, made: History) -> None:
    place, marker = next((p, b) for p, some in made.batches.items() for b in some if b.control)
    made.entries.append(read_line(21, place[0], place[1], [(marker.base_offset, 0, 1)]))


def end_too_early(_plan: HistoryPlan, made: History) -> None:
    last = max(n for n, e in enumerate(made.entries) if e.pid == 99 and "runs" in e.fields)
    del made.entries[last]


def never_look_at_a_partition(_plan: HistoryPlan, made: History) -> None:
    made.entries = [e for e in made.entries if e.pid != 99 or e.fields.get("partition") != 0]


def stand_behind(_plan: HistoryPlan, made: History) -> None:
    source = SourcePosition.of(made.visible[OUT][-1].headers)
    assert source is not None
    made.facts.committed[source.partition] = source.offset


def stand_before_the_end(plan: HistoryPlan, made: History) -> None:
    made.facts.committed[0] = plan.logs[0].end + 1


def name_an_older_offset(_plan: HistoryPlan, made: History) -> None:
    """The coordinator came back with less than its log shows."""
    made.facts.committed[0] = (made.facts.committed[0] or 1) - 1


def apply_a_late_offset_commit(_plan: HistoryPlan, made: History) -> None:
    """The commit of an earlier transaction of the same producer reaches the log within the last one, as its second."""
    index = max(n for n, one in enumerate(made.offsets) if one.commits and one.commits[0].partition == 0)
    first = next(one for one in made.offsets if one.commits and one.commits[0].partition == 0)
    both = (*made.offsets[index].commits, OffsetCommit(0, first.commits[0].until))
    made.offsets[index] = OffsetBatch(made.offsets[index].raw, both)


def hold_back_the_input(plan: HistoryPlan, made: History) -> None:
    log = plan.logs[0]
    made.facts.logs[0] = LogOffsets(log.first, log.last_stable, log.end + 1)


def stall_for_ever(_plan: HistoryPlan, made: History) -> None:
    made.facts = replace(made.facts, healed_ms=(10**12,))
    made.bound_s = 5.0


def come_too_late(_plan: HistoryPlan, made: History) -> None:
    made.facts = replace(made.facts, healed_ms=(900_000,))
    made.bound_s = 0.5


def fire_nothing(_plan: HistoryPlan, made: History) -> None:
    made.needed = {"kills": 10}
    made.fired = {"kills": 3}


def demand_more_aborts(_plan: HistoryPlan, made: History) -> None:
    made.needed = {"aborted_records": 10**6}


def leak(_plan: HistoryPlan, made: History) -> None:
    made.files = {"log.txt": b"well, the-canary sang"}


LOG_MUTATIONS: list[tuple[LogMutation, Name]] = [
    (roll_back_an_acknowledged_range, Name.LOST_COMMIT),
    (show_an_aborted_record, Name.ABORTED_READ),
    (write_outside_of_a_transaction, Name.TORN),
    (read_an_aborted_record, Name.ABORTED_READ),
    (skip_in_a_poll, Name.POLL_SKIP),
    (go_back_in_a_poll, Name.NONMONOTONIC_POLL),
    (read_something_else, Name.INCONSISTENT),
    (read_a_marker, Name.INCONSISTENT),
    (end_too_early, Name.UNSEEN),
    (never_look_at_a_partition, Name.UNSEEN),
    (stand_behind, Name.OFFSET_BEHIND),
    (stand_before_the_end, Name.OFFSET_AHEAD),
    (name_an_older_offset, Name.OFFSET_BEHIND),
    (apply_a_late_offset_commit, Name.OFFSET_REGRESSION),
    (hold_back_the_input, Name.HANGING),
    (stall_for_ever, Name.STALL),
    (come_too_late, Name.STALL),
    (fire_nothing, Name.SILENT_FAULT),
    (demand_more_aborts, Name.SILENT_FAULT),
    (leak, Name.SECRET),
]
