"""Sources to the live view: states, rates, transactions, and what is stale."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest
from harness.programs import until
from harness.ui_views import (
    NAMES,
    T0,
    failed,
    flow,
    holder,
    look,
    moving,
    own,
    running,
    seen,
    status,
    statuses,
    strip,
    tails,
)

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.observability.status import Transactions
from operations.ui.build import PollResults, ViewHistory, document
from operations.ui.model import InputSnapshot, PollResult
from operations.ui.page import parts
from operations.ui.poller import Poller
from operations.ui.terminal import screen


def test_kafka_alone_tells_rates_and_that_it_works() -> None:
    """Positions that move by fifty a second, without any running program's help."""
    view = seen(*moving())
    (row,) = view.rows
    assert (row.state, row.rate, row.unit, row.position, row.left) == ("working", 50.0, "offsets", 1350, 3650)
    assert (view.totals.rate, view.totals.trace[-1], row.open_s) == (50.0, 50.0, 0.4)
    assert view.source_statuses["status"].off
    assert view.source_statuses["proof"].said == "not verified yet: brew verify (make verify)"


def test_a_blocked_partition_names_who_blocks_it() -> None:
    """Even where the program itself only says that it is idle."""
    blocked = look(3, 10, 10, 22, holders=holder(3))
    for running_programs in ((), (statuses(status(running(3, "idle"))),)):
        view = seen(PollResults(flow(blocked), tails(), running_programs))
        (row,) = view.unhealthy()
        assert (row.partition, row.state) == (3, "blocked")
        assert "12 offsets behind 'billing-7' (producer 3, epoch 0, open for 34 s)" in row.why


def test_nothing_is_called_stuck_before_it_was_looked_at_for_some_seconds() -> None:
    """Not moving takes two looks; a position outside of the log is wrong at once."""
    memory = ViewHistory()
    resting = PollResults(flow(look(0, 10, 50), at_s=100.0), tails())
    assert seen(resting, memory).rows[0].state == "looking"
    later = replace(resting, flow=flow(look(0, 10, 50), at_s=105.5))
    assert seen(later, memory, 105.6).rows[0].state == "stuck"
    assert seen(PollResults(flow(look(0, 60, 50)), tails())).rows[0].state == "stuck"


def test_a_program_that_is_ill_is_believed_and_a_healthy_one_only_where_kafka_has_no_better_word() -> None:
    """Stuck counts from whoever says it; working overrules that no transaction is known."""
    memory = ViewHistory()
    resting = look(0, 10, 50)
    seen(PollResults(flow(resting, at_s=90.0), tails()), memory, 90.0)
    alone = PollResults(flow(resting), tails())
    assert seen(alone, memory).rows[0].state == "stuck"
    assert seen(replace(alone, statuses=(statuses(status(running(0))),)), memory).rows[0].state == "working"
    idle = PollResults(flow(look(0, 50, 50)), tails(), (statuses(status(running(0, "unrecoverable"))),))
    assert (seen(idle).rows[0].state, seen(idle).rows[0].why) == ("unrecoverable", "it says so")


def test_a_program_tells_steps_and_records_and_its_last_transaction_seconds() -> None:
    """What no broker knows; the log's own transaction that ends at the program's position gets its seconds."""
    answers, memory = moving(statuses=(statuses(status(running(0))),))
    row = seen(answers, memory).rows[0]
    assert (row.rate, row.unit, row.step, row.steps["produce"]) == (812.0, "records", "produce", 0.2)
    assert row.last is not None
    assert (row.last.outcome, row.last.epoch, row.last.seconds) == ("committed", 4, 0.25)


def test_how_old_the_oldest_is_a_program_knows_and_else_the_log() -> None:
    """The program's word comes first; a partition at its end is 0, and all of them are as old as the oldest."""
    snapshots = (look(0, 5, 10, oldest_ms=T0 - 75_000), look(1, 5, 5), look(2, 5, 10))
    view = seen(PollResults(flow(*snapshots), tails()))
    assert ([row.lag_s for row in view.rows], view.totals.lag_s) == ([75.0, 0.0, None], 75.0)
    told = statuses(status(running(0, lag_s=30.0), running(2, lag_s=0.5), running(1)))
    view = seen(PollResults(flow(*snapshots), tails(), (told,)))
    assert ([row.lag_s for row in view.rows], view.totals.lag_s) == ([30.0, 0.0, 0.5], 30.0)
    found = parts(view)
    assert "the oldest is 30 s old" in str(found["tile-left"])
    assert ("30 s" in str(found["r0-left"]), "how old" in str(found["r1-left"])) == (True, False)
    assert any("to read, 30 s old" in str(line) for line in screen(view, 140, 40).renderables)
    told_row, told_all = document(view)["partitions"][0], document(view)["totals"]
    assert (told_row["lag_s"], told_all["lag_s"]) == (30.0, 30.0)


def test_a_program_of_another_group_is_left_out_and_said_so() -> None:
    """Its numbers would be somebody else's."""
    view = seen(PollResults(flow(look(0, 5, 5)), tails(), (statuses(status(running(0), group="other")),)))
    assert view.rows[0].step is None
    assert view.notes == ("http://h:3000/status tells of group other, not of g: it is left out",)


def test_of_two_programs_the_one_that_moved_last_tells_of_a_partition() -> None:
    """With `--share` partitions change hands."""
    old, new = status(running(0, rate=1.0, progress_age_s=60.0)), status(running(0, rate=9.0))
    both = PollResults(flow(look(0, 5, 9)), tails(), (statuses(new, name="a"), statuses(old, name="b")))
    assert seen(both).rows[0].rate == 9.0


def test_transactions_are_those_of_the_log_with_their_source_and_the_coordinators_begin() -> None:
    """Open first; the aborted one was ended by the fence's marker, whose epoch is newer than the writer's."""
    memory = ViewHistory()
    open_one = PollResults(flow(look(0, 5, 9, own=own(0)), at_s=99.0), tails())
    seen(open_one, memory)
    view = seen(PollResults(flow(look(0, 5, 9)), tails(strip())), memory)
    told = [(one.outcome, one.producer_id, one.epoch, one.records, one.marker) for one in view.transactions]
    assert told == [("open", 100, 5, 5, None), ("committed", 100, 4, 20, 41), ("aborted", 100, 3, 20, 20)]
    committed = view.transactions[1]
    assert (committed.transactional_id, committed.first, committed.last) == ("g:in:0", 30, 49)
    assert committed.seconds == pytest.approx(0.3)
    assert view.transactions[2].seconds is None
    assert view.totals.outcomes == {"open": 1, "committed": 1, "aborted": 1}


def test_of_an_open_transaction_the_coordinators_state_and_its_age_against_the_time_out_are_told() -> None:
    """The group's own, as its last look saw it; what has ended, or is somebody else's, has neither."""
    mine = PollResults(flow(look(0, 5, 9, own=own(0, epoch=5))), tails(strip()))
    first, *ended = seen(mine).transactions
    assert (first.outcome, first.state, first.timeout_s, first.seconds) == ("open", "Ongoing", 60.0, 0.4)
    assert {(one.state, one.timeout_s) for one in ended} == {(None, None)}
    shown = parts(seen(mine))
    assert "Ongoing, 0.40 s of 60 s" in str(shown["transactions"])
    foreign = seen(PollResults(flow(look(0, 5, 9, own=own(0, epoch=6))), tails(strip()))).transactions[0]
    assert (foreign.state, foreign.timeout_s) == (None, None)


def test_what_programs_count_is_told_by_its_own_name() -> None:
    """An unknown commit is not an abort."""
    made = Transactions(committed=7, aborted=2, fenced=1, refused=5, indefinite=3)
    view = seen(PollResults(flow(look(0, 5, 9)), tails(strip()), (statuses(status(running(0, transactions=made))),)))
    assert view.totals.counted == "since the start of what runs"
    assert view.totals.outcomes == {"open": 1, "committed": 7, "aborted": 2, "fenced": 1, "indefinite": 3}
    assert "indefinite" in str(parts(view)["tile-outcomes"])


def test_a_source_that_fails_is_stale_at_once_and_the_last_answer_stays() -> None:
    """With its age and the reason."""
    answers, memory = moving()
    view = seen(replace(answers, flow=failed(answers.flow, "no broker answered")), memory, 112.0)
    assert view.source_statuses["flow"].stale == "last answer 12 s ago: no broker answered"
    assert view.rows[0].position == 1350
    assert seen(answers, memory).source_statuses["flow"].stale is None


def test_what_a_program_says_counts_where_kafka_is_stale() -> None:
    """And the other way round: a status that does not answer leaves Kafka's word."""
    idle = PollResults(flow(look(0, 5, 5)), tails(), (statuses(status(running(0))),))
    assert seen(idle).rows[0].state == "idle"
    assert seen(replace(idle, flow=failed(idle.flow, "gone"))).rows[0].state == "working"
    unavailable: PollResult = replace(idle.statuses[0], value=None, at_s=None, failed="refused")
    alone = seen(replace(idle, statuses=(unavailable,)))
    assert (alone.rows[0].state, alone.source_statuses["status-0"].stale) == ("idle", "never answered: refused")


def test_a_question_that_never_comes_back_turns_stale_and_holds_nobody_up() -> None:
    """The break of the stale mark: a source that hangs, with an answer from before."""
    hang, asked = threading.Event(), []

    def ask(_deadline: Deadline) -> InputSnapshot:
        asked.append(1)
        if len(asked) > 1:
            hang.wait(30)
        return flow(look(0, 5, 5)).value or InputSnapshot(T0, ())

    asker = Poller("flow", ask, every_s=0.01, patience_s=0.2)
    asker.start()
    try:
        until(lambda: len(asked) > 1, "the second question")
        answer = asker.answer
        assert answer.at_s is not None
        assert not answer.stale(answer.at_s + 0.1)
        until(lambda: asker.answer.stale(time.monotonic()), "the stale mark")
        view = seen(PollResults(asker.answer, tails()), now_s=time.monotonic())
        assert "the question has not come back" in str(view.source_statuses["flow"].stale)
        began = time.monotonic()
        asker.stop()
        asker.leave(Deadline(0.3))
        assert time.monotonic() - began < 1.5
    finally:
        hang.set()


def test_errors_become_the_reason_and_the_next_answer_clears_it() -> None:
    """Errors of the house in their own words; of others only the kind, since their text may hold anything."""
    turn = iter([DeadlineExceeded("no end within 1 s"), RuntimeError("password=canary"), None])
    reasons: list[str | None] = []

    def ask(_deadline: Deadline) -> int:
        error = next(turn, None)
        if error is not None:
            raise error
        return 7

    asker: Poller[int] = Poller("x", ask, every_s=0.01, patience_s=0.2)
    for _ in range(3):
        asker._once()
        reasons.append(asker.answer.failed)
    assert reasons == ["no end within 1 s", "a question ended with RuntimeError", None]
    assert asker.answer.value == 7


def test_other_numbers_of_partitions_are_said() -> None:
    """Rows show input and output of the same number beside each other."""
    view = seen(PollResults(flow(look(0, 5, 5)), tails(strip(0), strip(1))))
    assert [row.partition for row in view.rows] == [0, 1]
    assert view.rows[1].state == "unknown"
    assert f"{NAMES.input} has 1 partitions and {NAMES.output} 2" in view.notes[0]
