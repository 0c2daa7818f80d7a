"""The live view on a terminal: what fits on the screen, and its keys."""

from __future__ import annotations

import io
import json
import os
import pty
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from harness.ui_views import (
    PollResults,
    failed,
    flow,
    holder,
    look,
    moving,
    running,
    seen,
    status,
    statuses,
    strip,
    tails,
)
from rich.console import Console

from operations.ui import terminal
from operations.ui.build import document
from operations.ui.model import View
from operations.ui.terminal import keys, screen, sparkline


def drawn(view: View, width: int = 140, height: int = 40) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height)
    console.print(screen(view, width, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_a_row_tells_state_step_rate_position_transaction_and_tail() -> None:
    """The last open records are seen at the strip's right end."""
    answers, memory = moving(statuses=(statuses(status(running(0))),))
    lines = drawn(seen(answers, memory))
    (row,) = [line for line in lines if line.lstrip().startswith("0 ")]
    for word in ("● working", "produce", "812", "3,650", "1,350", "✓ 20 0.25 s 100:4"):
        assert word in row
    assert row.rstrip().endswith("?")
    assert "not verified yet: brew verify (make verify)" in "\n".join(lines)


def test_what_is_ill_comes_first_and_what_does_not_fit_is_counted() -> None:
    """64 partitions on 24 lines, none of them wider than the terminal."""
    snapshots = [look(p, 5, 5) for p in range(63)] + [look(63, 10, 10, 22, holders=holder(63))]
    for width in (80, 140):
        lines = drawn(seen(PollResults(flow(*snapshots), tails(*(strip(p) for p in range(64))))), width, 24)
        assert len(lines) <= 24
        assert max(map(len, lines)) <= width
        rows = [line for line in lines if "idle" in line or "blocked" in line]
        assert any(line.lstrip().startswith("63 ▲ blocked") for line in rows)
        assert any("more, none of them worse" in line for line in lines)
        assert any("partition 63 blocked: 12 offsets behind 'billing-7'" in line for line in lines)


def test_a_stale_source_is_said() -> None:
    """In the line of lamps."""
    answers, memory = moving()
    text = "\n".join(drawn(seen(answers, memory, 130.0)))
    assert "✗ Kafka stale, last answer 30 s ago: the question has not come back" in text


def test_a_look_that_was_refused_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second look tells a rate; of brokers that answer one is awaited."""
    views = iter([seen(PollResults(failed(flow(look(0, 5, 10)), "no right"), tails(strip(0)))), None])

    class Desk:
        def view(self) -> View | None:
            return next(views)

    monkeypatch.setattr(terminal, "_pause", lambda _: pytest.fail("waited"))
    first = terminal._settled(Desk())  # type: ignore[arg-type]
    assert first.source_statuses["flow"].stale is not None
    assert first.totals.rate is None
    views = iter([seen(PollResults(flow(look(0, 5, 10)), tails(strip(0))))])
    with pytest.raises(pytest.fail.Exception, match="waited"):
        terminal._settled(Desk())  # type: ignore[arg-type]


def test_the_line_of_rates_is_as_high_as_its_highest() -> None:
    """Blocks from nothing to full."""
    assert sparkline((0.0, 5.0, 10.0), 8) == " ▄█"
    assert sparkline((1.0, 0.0, 0.0), 2) == "▁▁"


def test_the_document_holds_what_the_page_shows() -> None:
    """As plain JSON values."""
    answers, memory = moving(statuses=(statuses(status(running(0))),))
    told = json.loads(orjson.dumps(document(seen(answers, memory))))
    (row,) = told["partitions"]
    assert (row["state"], row["position"], row["step"], row["steps_s"]["produce"]) == ("working", 1350, "produce", 0.2)
    assert row["last_transaction"]["transactional_id"] == "g:in:0"
    assert told["sources"]["flow"]["stale"] is None
    assert told["sources"]["proof"] == {
        "asked": False,
        "said": "not verified yet: brew verify (make verify)",
    } | dict.fromkeys(("age_s", "stale"))
    assert told["totals"]["transactions"]["open"] == 1


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The end of a terminal at which keys are pressed; the other one is stdin."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield ours
    os.close(ours)


def test_a_key_counts_without_enter_and_the_terminal_is_left_as_it_was(keyboard: int) -> None:
    """A shell that gets its terminal back without lines or echo is of no use."""
    before = termios.tcgetattr(sys.stdin.fileno())
    with keys() as pressed:
        assert pressed(0.01) == ""
        os.write(keyboard, b"Q")
        assert pressed(20) == "q"
        assert termios.tcgetattr(sys.stdin.fileno()) != before
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_q_ends_the_view_and_no_other_key_does(keyboard: int) -> None:
    view, snapshots = seen(PollResults(flow(look(0, 5, 10)), tails(strip(0)))), []

    class Desk:
        def view(self) -> Any:
            snapshots.append(1)
            os.write(keyboard, b"x" if len(snapshots) < 3 else b"q")
            return view

    watching = threading.Thread(
        target=terminal._watch, args=[Desk(), Console(file=io.StringIO(), width=100, height=30), 60.0], daemon=True
    )
    watching.start()
    watching.join(30)
    assert (watching.is_alive(), len(snapshots)) == (False, 3)


def test_without_a_terminal_it_only_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """`brew top < /dev/null` draws, and ends by a signal."""
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        with keys() as pressed:
            assert pressed(0.01) == ""
