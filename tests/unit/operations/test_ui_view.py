"""The live view: states, rates, transactions, what is stale; on a terminal and as a page."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import sys
import termios
import threading
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import orjson
import pytest
from harness import ui_views
from harness.browser import Page
from harness.programs import until
from harness.ui_views import (
    failed,
    flow,
    moving,
    open_transaction,
    own,
    running,
    snapshot,
    status,
    statuses,
    strip,
    tails,
    view_of,
)
from rich.console import Console

from brew.deadline import Deadline
from brew.errors import DeadlineExceeded
from brew.html import Markup
from brew.observability.status import Transactions
from brew.offsets import LogOffsets
from brew.preflight import Finding, Severity
from operations.ui import page, terminal
from operations.ui.build import PollResults, ViewHistory, document
from operations.ui.model import PollResult, Proof, View
from operations.ui.page import parts, style
from operations.ui.poller import Poller
from operations.ui.server import EventBroadcaster
from operations.ui.terminal import keys, screen, sparkline

NOT_VERIFIED = "not verified yet; run brew verify (make verify)"


def test_kafka_alone_tells_rates_and_that_it_works() -> None:
    view = view_of(*moving())
    (row,) = view.rows
    assert (row.state, row.rate, row.unit, row.position, row.left) == ("working", 50.0, "offsets", 1350, 3650)
    assert (view.totals.rate, view.totals.trace[-1], row.open_s) == (50.0, 50.0, 0.4)
    assert view.source_statuses["status"].off
    assert view.source_statuses["proof"].said == NOT_VERIFIED


def test_a_proof_of_a_topic_that_was_recreated_since_is_not_shown() -> None:
    """It said `proven` of a new, empty topic, as long as the file of the last verify was there."""
    given = tails(strip())
    assert given.value is not None
    proof = PollResult("proof", 2.0, 5.0, Proof("proven", "proof verify", (), (), 1.0, "id-1"), 100.0, 50.0)
    for topic_id, shown in ((None, "proven"), ("id-1", "proven"), ("id-2", None)):
        tail = replace(given, value=replace(given.value, topic_id=topic_id))
        view = view_of(PollResults(flow(snapshot(0, 5, 5)), tail, proof=proof))
        assert (None if view.proof is None else view.proof.mark) == shown
        assert view.source_statuses["proof"].off is (shown is None)
    assert view.source_statuses["proof"].said.startswith("the output topic was recreated since the last one")


def test_a_blocked_partition_names_who_blocks_it_and_the_command_that_tells_more() -> None:
    """Even where the program itself only says that it is idle; on the page on top, in the square, in its row."""
    idle, blocked = snapshot(0, 5, 5), snapshot(1, 10, 10, 22, holders=open_transaction(1))
    for running_programs in ((), (statuses(status(running(1, "idle"))),)):
        view = view_of(PollResults(flow(idle, blocked), tails(strip(0), strip(1)), running_programs))
        (row,) = view.unhealthy()
        assert (row.partition, row.state) == (1, "blocked")
        assert "12 offsets behind 'billing-7' (producer 3, epoch 0, open for 34 s)" in row.why
        texts = drawn_page(view).texts
        assert "▲ partition 1 blocked: 12 offsets behind 'billing-7'" in texts["unhealthy"]
        assert "brew doctor --bootstrap k:9092" in texts["unhealthy"]
        assert ("▲1" in texts["tile-states"], "12 offsets behind" in texts["r1-does"]) == (True, True)


def test_nothing_is_called_stuck_before_it_was_looked_at_for_some_seconds() -> None:
    """Not moving takes two looks; a position outside of the log is wrong at once."""
    memory = ViewHistory()
    resting = PollResults(flow(snapshot(0, 10, 50), at_s=100.0), tails())
    assert view_of(resting, memory).rows[0].state == "looking"
    later = replace(resting, flow=flow(snapshot(0, 10, 50), at_s=105.5))
    assert view_of(later, memory, 105.6).rows[0].state == "stuck"
    assert view_of(PollResults(flow(snapshot(0, 60, 50)), tails())).rows[0].state == "stuck"


def test_looks_further_apart_than_the_window_are_compared_with_each_other() -> None:
    """With `--interval 10`, or after an outage: a moving partition was called stuck, compared with itself."""
    memory = ViewHistory()
    states = []
    for at_s, position in ((100.0, 10), (110.0, 20), (120.0, 20), (180.0, 30), (181.0, 30)):
        answers = PollResults(flow(snapshot(0, position, 50), at_s=at_s), tails())
        states.append(view_of(answers, memory, at_s).rows[0].state)
    assert states == ["looking", "working", "stuck", "working", "looking"]


def test_a_rate_counts_what_the_group_moved_on_whatever_set_it_back() -> None:
    """A reset to an earlier offset hid ten seconds of work; a log's start that moves on is no work at all."""
    memory, begin = ViewHistory(), snapshot(0, 0, 5000)
    rates = []
    for at_s, position in ((100.0, 4000), (101.0, 0), (102.0, 500), (104.0, 1000)):
        view = view_of(PollResults(flow(snapshot(0, position, 5000), at_s=at_s), tails()), memory, at_s)
        rates.append(view.rows[0].rate)
    assert rates == [None, 0, 250, 250]
    memory = ViewHistory()
    for at_s, first in ((100.0, 0), (101.0, 900)):
        idle = replace(begin, committed=None, log=LogOffsets(first, 5000, 5000))
        view = view_of(PollResults(flow(idle, at_s=at_s), tails()), memory, at_s)
    assert (view.rows[0].rate, view.totals.trace) == (0, (0,))


def test_a_program_that_is_ill_is_believed_and_a_healthy_one_only_where_kafka_has_no_better_word() -> None:
    """Stuck counts from whoever says it; working overrules that no transaction is known."""
    memory = ViewHistory()
    resting = snapshot(0, 10, 50)
    view_of(PollResults(flow(resting, at_s=90.0), tails()), memory, 90.0)
    alone = PollResults(flow(resting), tails())
    assert view_of(alone, memory).rows[0].state == "stuck"
    assert view_of(replace(alone, statuses=(statuses(status(running(0))),)), memory).rows[0].state == "working"
    idle = PollResults(flow(snapshot(0, 50, 50)), tails(), (statuses(status(running(0, "unrecoverable"))),))
    assert (view_of(idle).rows[0].state, view_of(idle).rows[0].why) == ("unrecoverable", "it says so")


def test_a_program_tells_steps_and_records_on_the_terminal_in_the_document_and_in_the_first_paint() -> None:
    """The last open records are seen at the strip's right end; the line of rates is as high as its highest."""
    answers, memory = moving(statuses=(statuses(status(running(0))),))
    view = view_of(answers, memory)
    row = view.rows[0]
    assert (row.rate, row.unit, row.step, row.steps["produce"]) == (812.0, "records", "produce", 0.2)
    assert row.last is not None
    assert (row.last.outcome, row.last.epoch, row.last.seconds) == ("committed", 4, 0.25)

    assert (sparkline((0.0, 5.0, 10.0), 8), sparkline((1.0, 0.0, 0.0), 2)) == (" ▄█", "▁▁")
    lines = drawn(view)
    (line,) = [line for line in lines if line.lstrip().startswith("0 ")]
    for word in ("● working", "produce", "812", "3,650", "1,350", "✓ 20 0.25 s 100:4"):
        assert word in line
    assert line.rstrip().endswith("?")
    assert NOT_VERIFIED in "\n".join(lines)

    shown = json.loads(orjson.dumps(document(view)))
    (partition,) = shown["partitions"]
    steps = partition["steps_s"]["produce"]
    assert (partition["state"], partition["position"], partition["step"], steps) == ("working", 1350, "produce", 0.2)
    assert partition["last_transaction"]["transactional_id"] == "g:in:0"
    assert shown["sources"]["flow"]["stale"] is None
    assert shown["sources"]["proof"] == {"asked": False, "said": NOT_VERIFIED, "age_s": None, "stale": None}
    assert shown["totals"]["transactions"]["open"] == 1

    first_paint = drawn_page(view)
    texts = first_paint.texts
    assert (texts["r0-state"], texts["r0-position"]) == ("● working", "1,350 / 5,000")
    for part, word in (("r0-does", "produce 0.21 s"), ("r0-last", "20 in 0.25 s 100:4"), ("r0-tail", "20 aborted")):
        assert word in texts[part]
    assert "g:in:0" in texts["transactions"]
    assert texts["proof"].startswith(NOT_VERIFIED)
    steps = [one for one in first_paint.nodes if one.attributes.get("class", "").startswith("step-")]
    assert sum(one.tag == "rect" for one in steps) > 6


def test_records_of_a_program_and_offsets_of_kafka_are_not_added_up() -> None:
    """A program reports some of the partitions: those of a driver with `--share`, or of one of two addresses."""
    answers, memory = moving(partitions=2, each=50, statuses=(statuses(status(running(0), running(2, lag=7))),))
    view = view_of(answers, memory)
    assert [(row.rate, row.unit) for row in view.rows] == [(812.0, "records"), (50.0, "offsets"), (812.0, "records")]
    assert (view.totals.rate, view.totals.unit) == (100.0, "offsets")
    assert (view.rows[2].left, view.rows[2].exact, view.totals.exact) == (7, False, False), "a lag is in offsets"
    both = replace(answers, statuses=(statuses(status(running(0), running(1))),))
    assert (view_of(both, memory).totals.rate, view_of(both, memory).totals.unit) == (1624.0, "records")


def test_how_old_the_oldest_is_a_program_knows_and_else_the_log() -> None:
    """The program's word comes first; a partition at its end is 0, and all of them are as old as the oldest."""
    snapshots = (snapshot(0, 5, 10, oldest_ms=ui_views.T0 - 75_000), snapshot(1, 5, 5), snapshot(2, 5, 10))
    view = view_of(PollResults(flow(*snapshots), tails()))
    assert ([row.lag_s for row in view.rows], view.totals.lag_s) == ([75.0, 0.0, None], 75.0)
    assert document(view)["totals"]["lag_s"] is None, "the record of an unknown age may be older"
    assert "the oldest is at least 75 s old" in str(parts(view)["tile-left"])
    assert any("to read, at least 75 s old" in str(line) for line in screen(view, 140, 40).renderables)
    programs = statuses(status(running(0, lag_s=30.0), running(2, lag_s=0.5), running(1)))
    view = view_of(PollResults(flow(*snapshots), tails(), (programs,)))
    assert ([row.lag_s for row in view.rows], view.totals.lag_s) == ([30.0, 0.0, 0.5], 30.0)
    cells = parts(view)
    assert "the oldest is 30 s old" in str(cells["tile-left"])
    assert ("30 s" in str(cells["r0-left"]), "how old" in str(cells["r1-left"])) == (True, False)
    assert any("to read, 30 s old" in str(line) for line in screen(view, 140, 40).renderables)
    row_shown, totals_shown = document(view)["partitions"][0], document(view)["totals"]
    assert (row_shown["lag_s"], totals_shown["lag_s"]) == (30.0, 30.0)


def test_of_programs_those_of_another_group_are_left_out_and_the_one_that_moved_last_tells() -> None:
    """With `--share` partitions change hands."""
    view = view_of(PollResults(flow(snapshot(0, 5, 5)), tails(), (statuses(status(running(0), group="other")),)))
    assert view.rows[0].step is None
    assert view.notes == ("http://h:3000/status reports group other, not g, and is ignored",)
    old, new = status(running(0, rate=1.0, progress_age_s=60.0)), status(running(0, rate=9.0))
    both = PollResults(flow(snapshot(0, 5, 9)), tails(), (statuses(new, name="a"), statuses(old, name="b")))
    assert view_of(both).rows[0].rate == 9.0


def test_transactions_are_those_of_the_log_with_their_source_and_the_coordinators_begin() -> None:
    """Open first; the aborted one was ended by the fence's marker, whose epoch is newer than the writer's."""
    memory = ViewHistory()
    open_one = PollResults(flow(snapshot(0, 5, 9, own=own(0)), at_s=99.0), tails())
    view_of(open_one, memory)
    view = view_of(PollResults(flow(snapshot(0, 5, 9)), tails(strip())), memory)
    outcomes = [(one.outcome, one.producer_id, one.epoch, one.records, one.marker) for one in view.transactions]
    assert outcomes == [("open", 100, 5, 5, None), ("committed", 100, 4, 20, 41), ("aborted", 100, 3, 20, 20)]
    committed = view.transactions[1]
    assert (committed.transactional_id, committed.first, committed.last) == ("g:in:0", 30, 49)
    assert committed.seconds == pytest.approx(0.3)
    assert view.transactions[2].seconds is None
    assert view.totals.outcomes == {"open": 1, "committed": 1, "aborted": 1}


def test_a_duration_is_that_of_the_commit_and_of_the_latest_one_at_its_position() -> None:
    """A failing attempt leaves the position where it was; after a reset, a commit may end where an earlier one did."""
    memory, last = ViewHistory(), running(0).last_transaction
    assert last is not None
    took = []
    for reported in (replace(last, seconds=30.0, until=None), last, replace(last, seconds=2.0)):
        now = statuses(status(running(0, last_transaction=reported)))
        took.append(view_of(PollResults(flow(snapshot(0, 50, 90)), tails(strip()), (now,)), memory).transactions[1])
    assert [one.seconds for one in took] == [None, 0.25, 2.0]


def test_of_an_open_transaction_the_coordinators_state_and_its_age_against_the_time_out_are_told() -> None:
    mine = PollResults(flow(snapshot(0, 5, 9, own=own(0, epoch=5))), tails(strip()))
    first, *ended = view_of(mine).transactions
    assert (first.outcome, first.state, first.timeout_s, first.seconds) == ("open", "Ongoing", 60.0, 0.4)
    assert {(one.state, one.timeout_s) for one in ended} == {(None, None)}
    shown = parts(view_of(mine))
    assert "Ongoing, 0.40 s of 60 s" in str(shown["transactions"])
    foreign = view_of(PollResults(flow(snapshot(0, 5, 9, own=own(0, epoch=6))), tails(strip()))).transactions[0]
    assert (foreign.state, foreign.timeout_s) == (None, None)


def test_what_programs_count_is_told_by_its_own_name() -> None:
    counts = Transactions(committed=7, aborted=2, fenced=1, refused=5, indefinite=3)
    view = view_of(
        PollResults(flow(snapshot(0, 5, 9)), tails(strip()), (statuses(status(running(0, transactions=counts))),))
    )
    assert view.totals.counted == "since the start of the programs"
    assert view.totals.outcomes == {"open": 1, "committed": 7, "aborted": 2, "fenced": 1, "indefinite": 3}
    assert "indefinite" in str(parts(view)["tile-outcomes"])
    foreign = running(0, transactions=Transactions(committed=800))
    others = (
        statuses(status(foreign, group="other"), name="b"),
        statuses(status(replace(foreign, topic="t")), name="c"),
    )
    mixed = (statuses(status(running(0, transactions=counts))), *others)
    outcomes = view_of(PollResults(flow(snapshot(0, 5, 9)), tails(strip()), mixed)).totals.outcomes
    assert outcomes == view.totals.outcomes, "those of another group or topic do not count"


def test_a_source_that_fails_is_stale_at_once_and_the_last_answer_stays() -> None:
    answers, memory = moving()
    view = view_of(replace(answers, flow=failed(answers.flow, "no broker answered")), memory, 112.0)
    reason = "last answer 12 s ago: no broker answered"
    assert (view.source_statuses["flow"].stale, view.rows[0].position) == (reason, 1350)
    texts = drawn_page(view).texts
    assert (texts["mark-flow"], "stale" in texts["lamp-flow"]) == (f"✗ stale, {reason}", True)
    assert "mark-preflight" not in texts, "the others have no mark"
    assert view_of(answers, memory).source_statuses["flow"].stale is None
    text = "\n".join(drawn(view_of(answers, memory, 130.0)))
    assert "✗ Kafka stale, last answer 30 s ago: the poll has not returned" in text


def test_what_a_program_says_counts_where_kafka_is_stale() -> None:
    """And the other way round: a status that does not answer leaves Kafka's word."""
    idle = PollResults(flow(snapshot(0, 5, 5)), tails(), (statuses(status(running(0))),))
    assert view_of(idle).rows[0].state == "idle"
    assert view_of(replace(idle, flow=failed(idle.flow, "gone"))).rows[0].state == "working"
    unavailable: PollResult = replace(idle.statuses[0], value=None, at_s=None, failed="refused")
    alone = view_of(replace(idle, statuses=(unavailable,)))
    assert (alone.rows[0].state, alone.source_statuses["status-0"].stale) == ("idle", "never answered: refused")


def test_a_question_that_never_comes_back_turns_stale_and_holds_nobody_up() -> None:
    hang = threading.Event()
    answers = chain([flow(snapshot(0, 5, 5)).value], iter(lambda: hang.wait(30), None))
    question = Mock(side_effect=answers)
    poller: Poller[Any] = Poller("flow", question, every_s=0.01, patience_s=0.2)
    poller.start()
    try:
        until(lambda: question.call_count > 1, "the second question")
        answer = poller.answer
        assert answer.at_s is not None
        assert not answer.stale(answer.at_s + 0.1)
        until(lambda: poller.answer.stale(time.monotonic()), "the stale mark")
        view = view_of(PollResults(poller.answer, tails()), now_s=time.monotonic())
        assert "the poll has not returned" in str(view.source_statuses["flow"].stale)
        began = time.monotonic()
        poller.stop()
        poller.leave(Deadline(0.3))
        assert time.monotonic() - began < 1.5
    finally:
        hang.set()


def test_errors_become_the_reason_and_the_next_answer_clears_it() -> None:
    """Errors of the house in their own words; of others only the kind, since their text may hold anything."""
    question = Mock(side_effect=[DeadlineExceeded("no end within 1 s"), RuntimeError("password=canary"), 7])
    poller: Poller[int] = Poller("x", question, every_s=0.01, patience_s=0.2)
    for reason in ("no end within 1 s", "a poll failed with RuntimeError", None):
        poller._once()
        assert poller.answer.failed == reason
    assert poller.answer.value == 7


def test_further_outputs_are_shown_beside_the_output_and_a_transaction_over_all_counts_once() -> None:
    late = [replace(strip(partition), topic="late") for partition in (0, 1)]
    answers = PollResults(flow(snapshot(0, 50, 60)), tails(strip()))
    assert answers.tail.value is not None
    tail = replace(answers.tail, value=replace(answers.tail.value, also=tuple(late)))
    view = view_of(replace(answers, tail=tail))
    assert [(row.partition, row.strip is None, row.also) for row in view.rows] == [
        (0, False, (late[0],)),
        (1, True, (late[1],)),
    ]
    assert {transaction.topic for transaction in view.transactions} == {"out", "late"}
    assert view.totals.outcomes == {"aborted": 2, "committed": 2, "open": 2}, "partition 1 has another writer"
    shown = document(view)
    assert shown["partitions"][0]["also_tails"] == {"late": shown["partitions"][0]["tail"]}
    drawn = parts(view)
    assert drawn["r0-tail"].count("<svg") == 2
    assert "late partition 1" in drawn["r1-tail"]
    assert "late" in drawn["transactions"]


def test_a_page_does_not_search_all_its_parts_for_each_partition() -> None:
    """With 1,000 partitions it took half a minute, and the server answered nobody meanwhile."""

    class Parts(dict[str, Markup]):
        searches = 0

        def items(self) -> Any:
            self.searches += 1
            return super().items()

    views = [view_of(PollResults(flow(*(snapshot(p, 5, 9) for p in range(count))), tails())) for count in (1, 9)]
    few, many = (Parts(parts(view)) for view in views)
    assert 'id="r8-tail"' in page.page(views[1], many, "x.1")
    page.page(views[0], few, "x.1")
    assert many.searches == few.searches


def test_other_numbers_of_partitions_are_said() -> None:
    view = view_of(PollResults(flow(snapshot(0, 5, 5)), tails(strip(0), strip(1))))
    assert [row.partition for row in view.rows] == [0, 1]
    assert view.rows[1].state == "unknown"
    assert f"{ui_views.NAMES.input} has 1 partition and {ui_views.NAMES.output} 2" in view.notes[0]


def drawn(view: View, width: int = 140, height: int = 40) -> list[str]:
    console = Console(file=(out := io.StringIO()), width=width, height=height)
    console.print(screen(view, width, height))
    return out.getvalue().splitlines()


def test_what_is_ill_comes_first_and_what_does_not_fit_is_counted() -> None:
    snapshots = [snapshot(p, 5, 5) for p in range(63)] + [snapshot(63, 10, 10, 22, holders=open_transaction(63))]
    for width in (40, 69, 80, 140):
        lines = drawn(view_of(PollResults(flow(*snapshots), tails(*(strip(p) for p in range(64))))), width, 24)
        assert len(lines) <= 24 or width < 80, "sentences wrap"
        assert max(map(len, lines)) <= width
        rows = [line for line in lines if "idle" in line or "blocked" in line]
        assert any(line.lstrip().startswith("63 ▲ blocked") for line in rows)
        assert any("more, in no worse state" in line for line in lines)
        assert "partition 63 blocked: 12 offsets behind" in " ".join(" ".join(lines).split())


def test_what_a_program_reports_does_not_control_the_terminal() -> None:
    """A transformation's error may hold a record's text, and Spark's has several lines."""
    sick = replace(running(0, "stuck", step="\x1b[2J"), reason="no \x1b[2J\nprogress")
    answers = PollResults(flow(snapshot(0, 5, 9)), tails(), (statuses(status(sick)), statuses(status(group="\x1b[2J"))))
    text = "\n".join(drawn(view_of(answers)))
    assert "\x1b" not in text
    assert r"partition 0 stuck: no \x1b[2J\nprogress" in text


def test_a_look_that_was_refused_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second look tells a rate; of brokers that answer one is awaited."""
    monkeypatch.setattr(terminal, "_pause", lambda _: pytest.fail("waited"))
    refused = view_of(PollResults(failed(flow(snapshot(0, 5, 10)), "no right"), tails(strip(0))))
    first = terminal._settled(Mock(view=Mock(side_effect=[refused])))
    assert first.source_statuses["flow"].stale is not None
    assert first.totals.rate is None
    answered = view_of(PollResults(flow(snapshot(0, 5, 10)), tails(strip(0))))
    with pytest.raises(pytest.fail.Exception, match="waited"):
        terminal._settled(Mock(view=Mock(side_effect=[answered])))


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a terminal at which keys are pressed; the other one is stdin."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


def test_a_key_counts_without_enter_and_the_terminal_is_left_as_it_was(keyboard: int) -> None:
    before = termios.tcgetattr(sys.stdin.fileno())
    with keys() as pressed:
        assert pressed(0.01) == ""
        os.write(keyboard, b"Q")
        assert pressed(20) == "q"
        assert termios.tcgetattr(sys.stdin.fileno()) != before
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_q_ends_the_view_and_no_other_key_does(keyboard: int) -> None:
    view, snapshots = view_of(PollResults(flow(snapshot(0, 5, 10)), tails(strip(0)))), []

    def pressing() -> View:
        snapshots.append(1)
        os.write(keyboard, b"x" if len(snapshots) < 3 else b"q")
        return view

    live_view, console = SimpleNamespace(view=pressing), Console(file=io.StringIO(), width=100, height=30)
    watching = threading.Thread(target=terminal._watch, args=[live_view, console, 60.0], daemon=True)
    watching.start()
    watching.join(30)
    assert (watching.is_alive(), len(snapshots)) == (False, 3)


def test_without_a_terminal_it_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with keys() as pressed:
            assert pressed(0.01) == ""


EVIL = '"><script>alert(1)</script>\u202e'


def drawn_page(view: View) -> Page:
    cells = parts(view)
    hub = EventBroadcaster()
    hub.publish(cells)
    return Page(page.page(view, cells, hub.position))


def test_64_partitions_have_a_row_and_a_square_each_that_leads_to_it() -> None:
    """Each part is one element with its own id: the page's script puts it in place of the old one."""
    view = view_of(*moving(partitions=64))
    page_drawn, cells = drawn_page(view), parts(view)
    ids = {one.attributes.get("id") for one in page_drawn.nodes}
    targets = [one.attributes["href"][1:] for one in page_drawn.nodes if one.tag == "a"]
    assert targets == [f"p{partition}" for partition in range(64)]
    assert set(targets) <= ids
    assert sum(map(len, cells.values())) < 1_000_000
    for name, one in cells.items():
        assert ET.fromstring(one.replace("<br>", "<br/>")).get("id") == name, "whatever is opened is closed"


def test_no_name_becomes_markup() -> None:
    finding = Finding(EVIL, EVIL, EVIL, EVIL, EVIL, Severity.WARNING)
    answers = PollResults(
        flow(snapshot(0, 10, 10, 22, holders=open_transaction(0, EVIL))),
        tails(strip()),
        (statuses(status(running(0, step=EVIL)), name=EVIL), statuses(status(group=EVIL), name=EVIL)),
        preflight=PollResult("preflight", 60, 30, [finding], 100.0, 50.0),
    )
    drawn = drawn_page(view_of(answers))
    scripts = [one.attributes for one in drawn.nodes if one.tag == "script"]
    assert scripts == [{"src": "page.js", "defer": ""}]
    assert "alert(1)" in drawn.texts["unhealthy"]
    assert "\\u202e" in drawn.texts["preflight"]


def test_the_policy_allows_the_pages_own_files_alone_and_the_page_needs_no_more() -> None:
    drawn = drawn_page(view_of(*moving()))
    assert "default-src 'none'" in page.POLICY
    assert "unsafe" not in page.POLICY
    attributes = {name for one in drawn.nodes for name in one.attributes}
    assert not {name for name in attributes if name == "style" or name.startswith("on")}
    assert not [one for one in drawn.nodes if one.tag == "style"]
    links = [one.attributes[name] for one in drawn.nodes for name in ("href", "src") if name in one.attributes]
    assert [link for link in links if not re.fullmatch(r"#p\d+|page\.(css|js)|icon\.svg", link)] == []
    for name in ("page.js", "icon.svg"):
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page.asset(name))
    assert "url(" not in page.asset("page.css")
    assert "&" not in style(), "selectors with escaped quotes match nothing"
    assert '[data-only="unhealthy"]' in style()


@pytest.mark.parametrize("count", [0, 1, 90])
def test_small_pictures_are_whole(count: int) -> None:
    view = view_of(PollResults(flow(snapshot(0, 10, 50)), tails(strip())))
    row = replace(view.rows[0], trace=(1.0,) * count, steps={}, step="fence", state="working")
    cells = parts(replace(view, rows=(row,), tail=ui_views.TAIL))
    assert ("polyline" in cells["r0-rate"]) == (count > 1)
    assert "nan" not in cells["r0-rate"].lower()
    assert cells["r0-does"].count("<rect") == 6
    assert 'class="waits"' in cells["r0-tail"]


def test_a_reader_is_told_what_changed_behind_its_place_and_nothing_else() -> None:
    """A page of another start, or with other partitions, has to load itself anew: its ids are not the parts'."""
    hub, positions = EventBroadcaster(), []
    for number in ("1", "2", "3", "3"):
        hub.publish({"a": Markup(number), "b": Markup("1")})
        positions.append(hub.position)
    assert hub.since(positions[0]) == {"a": Markup("3")}
    assert hub.since(hub.position) == {}
    assert positions[3] == positions[2]
    hub.publish({"a": Markup("3"), "r1-p": Markup("1")})
    assert hub.since(positions[3]) is None
    for text in ("", "x", "a.b", *(f"{hub.boot}.{change}" for change in (hub.change + 1, "", "b", "-1", "9" * 20))):
        assert hub.since(text) is None


def test_readers_wake_with_a_change_and_with_the_end() -> None:

    async def wait() -> list[bool]:
        hub = EventBroadcaster()
        hub.publish({"a": Markup("1")})
        slept = asyncio.create_task(hub.wait_for_change(hub.position, 30))
        await asyncio.sleep(0)
        hub.publish({"a": Markup("2")})
        await asyncio.wait_for(slept, 1)
        await asyncio.wait_for(hub.wait_for_change(hub.position, 0.01), 1)
        ended = asyncio.create_task(hub.wait_for_change(hub.position, 30))
        await asyncio.sleep(0)
        hub.close()
        await asyncio.wait_for(ended, 1)
        return [slept.done(), ended.done()]

    assert asyncio.run(wait()) == [True, True]


def test_the_badge_says_live_only_while_every_source_answers() -> None:
    fresh = PollResults(flow(snapshot(0, 10, 50)), tails(strip()))
    broken = replace(fresh, flow=failed(fresh.flow, "no broker answers"))
    nothing = replace(fresh, flow=PollResult("flow", 1.0, 5.0, since_s=100.0))
    given = ((fresh, 100.2), (fresh, 160.0), (broken, 100.2), (nothing, 100.2))
    badges = [str(parts(view_of(answers, now_s=now_s))["badge"]) for answers, now_s in given]
    for word, badge in zip((">live<", "stale: Kafka", "stale: Kafka", ">connecting<"), badges, strict=True):
        assert (word in badge, ">live<" in badge) == (True, word == ">live<")


@pytest.mark.parametrize(("width", "height"), [(40, 24), (80, 24), (40, 12), (200, 50)])
def test_sentences_that_wrap_do_not_push_each_other_off_the_screen(width: int, height: int) -> None:
    """At 80 columns, those of blocked partitions took five lines too many, and the terminal showed "..." for them."""
    held = open_transaction(0, "a-very-long-transactional-id-of-somebody:upstream.orders.v1:17")
    view = view_of(PollResults(flow(*(snapshot(p, 10, 10, 22, holders=held) for p in range(30))), tails()))
    Console(file=(out := io.StringIO()), width=width, height=height).print(screen(view, width, height))
    lines = out.getvalue().splitlines()
    assert (len(lines) <= height, any("partition 0 blocked" in line for line in lines)) == (True, height > 12)
